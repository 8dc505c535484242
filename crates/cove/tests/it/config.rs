//! `cove config`: what a server would begin with, and all that is wrong with it.

use cove_testkit::server::TestDirectory;

fn written(place: &TestDirectory, text: &str) -> String {
    let path = place.path().join("cove.toml");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_wrong_key_is_named_with_its_line_and_what_was_meant() {
    let place = TestDirectory::new();
    let file = written(&place, "listen = 80\ndomian = \"x\"\n\n[quota]\nsandboxs = 3\n[Prices]\ncpu_hour = \"free\"\n");
    let told = place.cove(["config", "check", &file]).finish().expect_code(2);
    let expected = format!(
        "error: 4 things are wrong with the configuration\n  \
         {file}:1: listen: a text is wanted, not an integer\n  \
         {file}:2: domian: no such key; is domain meant?\n  \
         {file}:5: quota.sandboxs: no such key; is quota.sandboxes meant?\n  \
         {file}:6: Prices: no such key; is prices meant?\n"
    );
    assert_eq!(told.stderr, expected);
    // The same file stops a server before it does anything.
    let told = place.cove(["serve", "--config", &file]).finish().expect_code(2);
    let expected = format!("{expected}hint: cove config check FILE looks at a file without starting anything\n");
    assert_eq!((told.stdout.as_str(), told.stderr), ("", expected));
    assert!(!place.data().exists());
}

#[test]
fn a_variable_that_sets_nothing_is_noticed() {
    let place = TestDirectory::new();
    let shown = place.cove(["config", "show"]).env("COVE_QUOTA_SANDBOKSES", "5").finish().expect_success();
    assert_eq!(shown.stderr, "hint: COVE_QUOTA_SANDBOKSES sets nothing; is COVE_QUOTA_SANDBOXES meant?\n");
}

/// Values of the right kind with which no server can work.
#[test]
fn a_file_that_is_right_starts_a_server() {
    let place = TestDirectory::new();
    for (text, why) in [
        ("data = \"\"\n", ":1: data: names no directory"),
        ("database_url = \"postgres://\"\n", ":1: database_url: names no database"),
        ("[log]\nfilter = \"(((\"\n", "log.filter: "),
        ("[timers]\nidle_counts = \"foo\"\n", ":2: timers.idle_counts: "),
    ] {
        let file = written(&place, text);
        let told = place.cove(["config", "check", &file]).finish().expect_code(2);
        assert!(told.stderr.contains(why), "{text}: {}", told.stderr);
        let told = place.cove(["serve", "--config", &file]).env_remove("COVE_DATA").current_dir(place.path()).finish();
        assert!(told.code == 2 && told.stdout.is_empty(), "{text}: {told:?}");
        let made: Vec<_> = std::fs::read_dir(place.path()).unwrap().flatten().map(|one| one.file_name()).collect();
        assert_eq!(made, ["cove.toml"], "{text}: nothing is made");
    }
}

#[test]
fn half_a_configuration_stops_the_server() {
    let place = TestDirectory::new();
    let told = place.cove(["serve", "--tls", "127.0.0.1:0", "--tls-key", "/key.pem"]).finish().expect_code(2);
    assert!(told.stderr.contains("  --tls-key: needs tls.certificate as well\n"), "{}", told.stderr);
    let told = place.cove(["serve"]).env("COVE_CAPACITY_LAUNCHES", "many").finish().expect_code(2);
    assert!(told.stderr.contains("  COVE_CAPACITY_LAUNCHES: an integer is wanted, not \"many\"\n"), "{}", told.stderr);
    let told = place.cove(["serve"]).env("DATABASE_URL", "mysql://x").finish().expect_code(2);
    assert!(told.stderr.contains("  DATABASE_URL: begins with sqlite:, postgres://"), "{}", told.stderr);
    let told = place.cove(["serve", "--config", "/nowhere.toml"]).finish().expect_code(2);
    assert!(told.stderr.contains("read /nowhere.toml: No such file"), "{}", told.stderr);
}

#[test]
fn what_counts_is_shown_with_where_it_came_from_and_without_secrets() {
    let place = TestDirectory::new();
    let file = written(&place, "domain = \"file.example\"\nlisten = \"127.0.0.1:1\"\n[quota]\nsandboxes = 5\n");
    let shown = place
        .cove(["config", "show", "--changed", "--config", &file, "--listen", "127.0.0.1:2"])
        .env("COVE_QUOTA_SANDBOXES", "6")
        .env("COVE_API_KEY", "e2b_very_secret_indeed")
        .env("DATABASE_URL", "postgres://cove:secret@db.example/cove")
        .finish()
        .expect_success()
        .stdout;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    let origin = format!("{file}:1");
    for line in [
        vec!["listen", "127.0.0.1:2", "--listen"],
        vec!["domain", "file.example", &origin],
        vec!["quota.sandboxes", "6", "$COVE_QUOTA_SANDBOXES"],
        vec!["api_key", "(hidden)", "$COVE_API_KEY"],
        vec!["database_url", "postgres://cove:(hidden)@db.example/cove", "$DATABASE_URL"],
    ] {
        assert!(lines.contains(&line), "no {line:?} in\n{shown}");
    }
    assert!(!shown.contains("secret"), "{shown}");
    let json = place.cove(["config", "show", "--json", "--config", &file]).finish().expect_success().stdout;
    let all: serde_json::Value = serde_json::from_str(&json).unwrap();
    let domain = all.as_array().unwrap().iter().find(|one| one["key"] == "domain").unwrap();
    assert_eq!((&domain["value"], &domain["from"]), (&"file.example".into(), &origin.into()));
}

/// Names that other products have, and names that no product has alone.
#[test]
fn variables_of_others_are_read_in_a_stated_order_and_never_show_a_secret() {
    let place = TestDirectory::new();
    let file = written(&place, "[timers]\nidle_seconds = 60\n");
    let shown = place
        .cove(["config", "show", "--changed", "--config", &file])
        .env("SANDBOX_HOST", "127.0.0.1")
        .env("SANDBOX_PORT", "8090")
        .env("SANDBOX_TIMEOUT", "600")
        .env("POSTGRES_URL", "postgres://cove:secret@db.example/cove")
        .env("COVE_TIMERS_LIFETIME_SECONDS", "300")
        .finish()
        .expect_success()
        .stdout;
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    for line in [
        vec!["listen", "127.0.0.1:8090", "$SANDBOX_HOST", "and", "$SANDBOX_PORT"],
        vec!["database_url", "postgres://cove:(hidden)@db.example/cove", "$POSTGRES_URL"],
        vec!["timers.lifetime_seconds", "300", "$COVE_TIMERS_LIFETIME_SECONDS"],
        vec!["e2b.timeout_seconds", "600", "$SANDBOX_TIMEOUT"],
    ] {
        assert!(lines.contains(&line), "no {line:?} in\n{shown}");
    }
    assert!(!shown.contains("secret"), "{shown}");
    let file = written(&place, "database_url = \"postgres://cove@file.example/cove\"\n");
    let shown = place
        .cove(["config", "show", "--changed", "--config", &file])
        .env("POSTGRES_URL", "postgres://old.example/cove")
        .finish()
        .expect_success()
        .stdout;
    assert!(shown.contains("file.example") && !shown.contains("old.example"), "{shown}");
}
