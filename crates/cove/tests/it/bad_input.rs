//! What people read when they mistype. The texts are snapshots: a change to them is a decision.

use cove_testkit::server::TestDirectory;

/// What the program says to a command line that it must refuse, with exit code 2 and nothing on stdout.
fn refusal(arguments: &[&str]) -> String {
    let place = TestDirectory::new();
    let finished = place.cove(arguments.iter().copied()).current_dir(place.path()).finish().expect_code(2);
    assert_eq!(finished.stdout, "");
    assert!(!place.data().exists(), "a refused command made files");
    finished.stderr
}

macro_rules! refuses {
    ($($name:ident: $arguments:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(refusal(&$arguments));
        })*
    };
}

refuses! {
    no_command: ["run"];
    a_verb_that_is_not_there: ["rnu", "--", "true"];
    a_flag_that_is_not_there: ["run", "--memroy", "1G", "--", "true"];
    a_size_without_a_meaning: ["run", "--memory", "lots", "--", "true"];
    a_size_of_nothing: ["run", "--memory", "0", "--", "true"];
    a_memory_too_small_to_start: ["run", "--memory", "100", "--", "true"];
    a_time_without_a_meaning: ["run", "--timeout", "soon", "--", "true"];
    no_processors: ["run", "--cpus", "0", "--", "true"];
    more_processors_than_can_be_counted: ["run", "--cpus", "NaN", "--", "true"];
    an_address_that_is_a_name: ["run", "--allow", "nowhere.invalid", "--", "true"];
    an_address_that_is_none: ["run", "--allow", "10.0.0.0/99", "--", "true"];
    a_word_of_another_tool: ["delete", "box"];
    a_word_of_another_tool_within_a_verb: ["keys", "list"];
    a_verb_that_only_reset_is_like: ["rset"];
    a_verb_with_a_letter_too_many: ["lst"];
    a_verb_that_is_a_flag: ["version"];
    an_address_without_a_network: ["run", "--network", "none", "--allow", "10.0.0.1", "--", "true"];
    a_network_that_is_not_there: ["run", "--network", "bridge", "--", "true"];
    a_mount_of_nothing: ["run", "--mount", "./nothing:/data", "--", "true"];
    a_mount_over_the_root: ["run", "--mount", "/usr:/", "--", "true"];
    a_mount_in_an_unknown_way: ["run", "--mount", "/usr:/data:rx", "--", "true"];
    a_variable_without_a_name: ["run", "--env", "=x", "--", "true"];
    an_env_file_that_is_not_there: ["run", "--env-file", "nothing.env", "--", "true"];
    a_template_that_is_not_there: ["run", "--template", "gentoo", "--", "true"];
    a_host_name_with_a_blank: ["run", "--name", "my box", "--", "true"];
    a_terminal_where_there_is_none: ["run", "-it", "--", "bash"];
    a_directory_that_is_relative: ["run", "--workdir", "here", "--", "true"];
    a_time_before_now: ["run", "--timeout", "-1s", "--", "true"];
    a_port_that_is_a_word: ["link", "box", "http"];
    a_moment_in_words: ["usage", "--from", "yesterday"];
    a_resolver_that_is_none: ["create", "--resolver", "999"];
    a_variable_that_no_shell_can_read: ["create", "--env", "A B=1"];
    a_disk_too_small_to_start: ["run", "--disk", "1K", "--", "true"];
    a_user_beyond_all_users: ["run", "--user", "99999999", "--", "true"];
}

#[test]
fn no_verb_at_all_shows_the_verbs() {
    for arguments in [&[][..], &["keys"]] {
        let said = refusal(arguments);
        let lists = said.contains("Commands:") || said.contains("Sandboxes:");
        assert!(said.contains("Usage: cove") && lists && !said.contains("error:"), "{said}");
    }
}

#[test]
fn a_wrong_line_of_an_env_file_is_named() {
    let place = TestDirectory::new();
    std::fs::write(place.path().join("my.env"), "A=1\nnot a name=2\n").unwrap();
    let finished = place.cove(["run", "--env-file", "my.env", "--", "true"]).current_dir(place.path()).finish();
    insta::assert_snapshot!(finished.expect_code(2).stderr);
}

#[test]
fn a_user_who_is_not_there_is_named() {
    let place = TestDirectory::new();
    let finished = place.cove(["run", "--user", "nobody-here", "--", "true"]).finish().expect_code(125);
    insta::assert_snapshot!(finished.stderr);
}

#[test]
fn a_bundle_of_authorities_that_is_not_there_is_named_at_once_with_its_remedy() {
    let place = TestDirectory::new();
    for arguments in [&["serve", "--listen", "127.0.0.1:0"][..], &["ls"]] {
        let begun = std::time::Instant::now();
        let program =
            place.cove(arguments.iter().copied()).env("SSL_CERT_FILE", "/nothing").env("SSL_CERT_DIR", "/nothing");
        let finished = program.finish().expect_code(1);
        assert_eq!(
            finished.stderr.lines().filter(|line| line.starts_with("error: ")).count(),
            1,
            "{}",
            finished.stderr
        );
        assert!(finished.stderr.contains("SSL_CERT_FILE is \"/nothing\""), "{}", finished.stderr);
        assert!(finished.stderr.contains("install the package ca-certificates"), "{}", finished.stderr);
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_database_that_is_cut_short_is_named_at_once_with_its_remedy() {
    let place = TestDirectory::new();
    std::fs::create_dir(place.data()).unwrap();
    std::fs::write(place.data().join("cove.db"), b"SQLite format 3\0 and then no more").unwrap();
    let finished = place.cove(["serve", "--listen", "127.0.0.1:0"]).finish().expect_code(1);
    let said = &finished.stderr;
    assert!(said.contains("cove.db is damaged") && said.contains("Put a backup in its place"), "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("error: ")).count(), 1, "{said}");
}
