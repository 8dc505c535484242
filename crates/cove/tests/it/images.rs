//! Templates of one's own: from commands, from a Dockerfile, from a file, and out again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_testkit::TestServer;
use serde_json::{Value, json};

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    let said = server.cove(arguments.iter().copied()).finish().expect_success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn inside(server: &TestServer, sandbox: &str, line: &str) -> String {
    server.cove(["exec", sandbox, "--", "sh", "-c", line]).finish().expect_success().stdout
}

fn folder(server: &TestServer, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let folder = server.data().with_file_name(name);
    for (path, text) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn list_of(archive: &Path) -> String {
    let listed = Command::new("tar").arg("-tf").arg(archive).output().unwrap();
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).unwrap()
}

/// What the layers of an exported image hold together.
fn files_of(archive: &Path) -> String {
    let unpacked = archive.with_extension("unpacked");
    fs::create_dir_all(&unpacked).unwrap();
    let done = Command::new("tar").arg("-C").arg(&unpacked).arg("-xf").arg(archive).status().unwrap();
    assert!(done.success());
    let manifest: Value = serde_json::from_slice(&fs::read(unpacked.join("manifest.json")).unwrap()).unwrap();
    let layers = manifest[0]["Layers"].as_array().unwrap();
    layers.iter().map(|layer| list_of(&unpacked.join(layer.as_str().unwrap()))).collect()
}

#[test]
fn commands_on_base_become_a_template_and_the_second_time_they_are_not_run() {
    let server = TestServer::start();
    let build = ["template", "build", "tools", "--from", "base", "--run", "echo made > /opt/greeting", "-e", "WHO=ada"];
    let first = server.cove(build).finish().expect_success();
    assert_eq!(first.stdout, "tools\n");
    assert!(first.stderr.contains("RUN echo made") && !first.stderr.contains("CACHED"), "{}", first.stderr);
    server.cove(["create", "--name", "box", "--template", "tools"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat /opt/greeting; echo $WHO"), "made\nada\n");
    let again = server.cove(build).finish().expect_success();
    assert!(again.stderr.contains("CACHED [builder 1/2] RUN echo made"), "{}", again.stderr);
    let anew = server.cove(build.into_iter().chain(["--no-cache"])).finish().expect_success();
    assert!(!anew.stderr.contains("CACHED"), "{}", anew.stderr);
    assert_eq!(told(&server, &["template", "show", "--json", "tools"])["builds"], 3);
    // A sandbox keeps what it stands on.
    server.cove(["template", "rm", "tools"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat /opt/greeting"), "made\n");
    let gone = server.cove(["create", "--template", "tools"]).finish().expect_code(1);
    assert!(gone.stderr.contains("hint: `cove template ls`"), "{}", gone.stderr);
}

#[test]
fn a_build_that_fails_names_the_step_and_its_log_stays() {
    let server = TestServer::start();
    let build = ["template", "build", "odd", "--from", "base", "--run", "true", "--run", "echo oh no >&2; exit 3"];
    let failed = server.cove(build).finish().expect_code(1);
    assert!(failed.stderr.contains("oh no"), "{}", failed.stderr);
    assert!(failed.stderr.contains("error: the build failed at step 2"), "{}", failed.stderr);
    let log = server.cove(["template", "logs", "odd"]).finish().expect_success().stdout;
    assert!(log.contains("oh no"), "{log}");
    let lines = server.cove(["template", "logs", "odd", "--json"]).finish().expect_success().stdout;
    let numbers: Vec<i64> =
        lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["seq"].as_i64().unwrap()).collect();
    assert!(!numbers.is_empty() && numbers.iter().copied().eq(1..=numbers.len() as i64), "{numbers:?}");
    server.cove(["template", "logs", "odd", "--follow"]).finish().expect_code(1);
    let refused = server.cove(["create", "--template", "odd"]).finish().expect_code(1);
    assert!(refused.stderr.contains("odd"), "{}", refused.stderr);
    server.cove(["template", "build", "no-such-recipe"]).finish().expect_code(2);
    server.cove(["template", "build", "x", "--image", "a", "--from", "b"]).finish().expect_code(2);
}

#[test]
fn a_build_goes_on_alone_and_can_be_cancelled() {
    let server = TestServer::start();
    let build = ["template", "build", "slow", "--detach", "--from", "base", "--run", "sleep 600"];
    let id = server.cove(build).finish().expect_success().stdout.trim().to_owned();
    assert_eq!(told(&server, &["template", "show", "--json", "slow"])["state"], "building");
    let ended = told(&server, &["template", "cancel", "--json", "slow", &id]);
    assert_eq!((&ended["id"], &ended["state"]), (&json!(id), &json!("cancelled")));
    // A person who follows sees the end.
    let followed = server.cove(["template", "logs", "slow", &id, "-f"]).finish().expect_code(1);
    assert!(followed.stderr.contains("cancelled"), "{}", followed.stderr);
}

#[test]
fn tags_lead_to_builds() {
    let server = TestServer::start();
    let build = |name: &str, line: &str| {
        server.cove(["template", "build", name, "--from", "base", "--run", line]).finish().expect_success();
    };
    build("app:v1", "echo 1 > /opt/version");
    build("app:v2", "echo 2 > /opt/version");
    server.cove(["template", "tag", "app:v1", "stable", "default"]).finish().expect_success();
    for (tag, version) in [("app:v1", "1\n"), ("app:v2", "2\n"), ("app:stable", "1\n"), ("app", "1\n")] {
        let box_name = tag.replace(':', "-");
        server.cove(["create", "--name", &box_name, "--template", tag]).finish().expect_success();
        assert_eq!(inside(&server, &box_name, "cat /opt/version"), version, "{tag}");
    }
    server.cove(["template", "tag", "app", "stable", "--remove"]).finish().expect_success();
    server.cove(["create", "--template", "app:stable"]).finish().expect_code(1);
    server.cove(["template", "tag", "app", "default", "--remove"]).finish().expect_code(1);
    server.cove(["template", "tag", "nothing", "x"]).finish().expect_code(1);
}

#[test]
fn one_tag_goes_alone_and_its_log_is_its_own() {
    let server = TestServer::start();
    let build = |name: &str, line: &str| {
        server.cove(["template", "build", name, "--from", "base", "--run", line]).finish().expect_success().stdout
    };
    assert_eq!(build("app:v1", "echo 1 > /opt/version"), "app:v1\n");
    let none = server.cove(["create", "--template", "app"]).finish().expect_code(1);
    assert!(none.stderr.contains("no tag `default`") && none.stderr.contains("app:v1"), "{}", none.stderr);
    assert_eq!(build("app:V2", "echo 2 > /opt/version"), "app:v2\n");
    assert_eq!(build("app", "echo 3 > /opt/version"), "app\n");
    let log = server.cove(["template", "logs", "app:v1"]).finish().expect_success().stdout;
    assert!(log.contains("echo 1") && !log.contains("echo 3"), "{log}");
    let shown = told(&server, &["template", "show", "--json", "app:v2"]);
    assert_eq!(shown["latest_builds"].as_array().unwrap().len(), 1, "{shown}");
    // Of several, what is not there keeps no other from going, and takes nothing with it.
    let mixed = server.cove(["template", "rm", "app:nope", "app:v1"]).finish().expect_code(1);
    assert!(mixed.stdout == "app:v1\n" && mixed.stderr.contains("app:nope does not exist"), "{mixed:?}");
    let tags = told(&server, &["template", "show", "--json", "app"])["tags"].clone();
    assert_eq!(tags.as_array().unwrap().len(), 2, "{tags}");
    server.cove(["template", "tag", "app", "nope", "--remove"]).finish().expect_code(1);
    // A failed one does not hide that there is one to use; and what never worked can go.
    server.cove(["template", "build", "app", "--from", "base", "--run", "false"]).finish().expect_code(1);
    server.cove(["template", "build", "broken", "--from", "base", "--run", "false"]).finish().expect_code(1);
    let listed = server.cove(["template", "ls"]).finish().expect_success().stdout;
    assert!(listed.contains("ready, newest error"), "{listed}");
    let gone = server.cove(["template", "rm", "--failed"]).finish().expect_success().stdout;
    assert_eq!(gone, "broken\n");
    let built_in = server.cove(["template", "rm", "base"]).finish().expect_code(1);
    assert!(built_in.stderr.contains("base is built in"), "{}", built_in.stderr);
}

#[test]
fn steps_are_roots_on_whatever_has_the_ordinary_user() {
    let server = TestServer::start();
    let built = |arguments: &[&str]| {
        let words = ["template", "build"].into_iter().chain(arguments.iter().copied());
        server.cove(words).finish().expect_success()
    };
    built(&["one", "--from", "base", "--run", "id -u > /etc/who"]);
    built(&["two", "--from", "one", "--run", "id -u >> /etc/who"]);
    server.cove(["create", "--name", "box", "--template", "two"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat /etc/who; id -un"), "0\n0\nuser\n");
    server.cove(["snapshot", "create", "box", "--name", "kept"]).finish().expect_success();
    let context = folder(&server, "on-kept", &[("Dockerfile", "FROM kept\nRUN id -u >> /etc/who\nUSER user\n")]);
    built(&["three", context.to_str().unwrap()]);
    server.cove(["create", "--name", "third", "--template", "three"]).finish().expect_success();
    assert_eq!(inside(&server, "third", "cat /etc/who; id -un"), "0\n0\n0\nuser\n");
    // A folder is no archive.
    let wrong = server.cove(["template", "build", "x", "--archive", context.to_str().unwrap()]).finish().expect_code(1);
    assert!(wrong.stderr.contains("is a folder") && wrong.stderr.contains("hint: tar -C"), "{}", wrong.stderr);
    let file = context.join("Dockerfile");
    let unknown = server.cove(["template", "build", "x", "--archive", file.to_str().unwrap()]);
    let unknown = unknown.env("COVE_API_KEY", "e2b_0000").finish().expect_code(1);
    assert!(!unknown.stderr.contains("no server answers"), "{}", unknown.stderr);
}

#[test]
fn a_start_command_runs_in_every_sandbox_of_its_template() {
    let server = TestServer::start();
    let build = [
        "template",
        "build",
        "web",
        "--from",
        "base",
        "--start",
        "echo up > /tmp/started; sleep 600",
        "--ready",
        "test -e /tmp/started",
    ];
    server.cove(build).finish().expect_success();
    for name in ["one", "two"] {
        server.cove(["create", "--name", name, "--template", "web"]).finish().expect_success();
        assert_eq!(inside(&server, name, "cat /tmp/started"), "up\n");
    }
}

#[test]
fn a_dockerfile_gets_its_files_without_those_that_are_ignored() {
    let server = TestServer::start();
    let project = folder(
        &server,
        "project",
        &[
            ("Dockerfile", "FROM scratch\nARG NAME\nCOPY . /app/\nCOPY kept/$NAME /chosen\n"),
            (".dockerignore", "secret*\nnode_modules\n"),
            ("main.py", "print(1)\n"),
            ("secret.txt", "hush"),
            ("node_modules/x/y.js", "y"),
            ("kept/one", "1"),
            ("kept/two", "2"),
        ],
    );
    let path = project.to_str().unwrap();
    server.cove(["template", "build", "app", path, "--build-arg", "NAME=two"]).finish().expect_success();
    let archive = project.with_file_name("app.tar");
    let exported = told(&server, &["template", "export", "--json", "app", archive.to_str().unwrap()]);
    assert_eq!(exported["bytes"].as_u64(), Some(fs::metadata(&archive).unwrap().len()));
    let names = list_of(&archive);
    assert!(["oci-layout", "index.json", "manifest.json"].iter().all(|name| names.contains(name)), "{names}");
    let files = files_of(&archive);
    assert!(files.contains("app/main.py") && files.contains("chosen") && files.contains("app/kept/one"), "{files}");
    assert!(!files.contains("secret") && !files.contains("node_modules"), "{files}");
    // The same files are not sent again, whenever they were touched.
    let again = server.cove(["template", "build", "app", path, "--build-arg", "NAME=two"]).finish().expect_success();
    assert!(again.stderr.contains("CACHED [builder 2/3] COPY"), "{}", again.stderr);
    let missing = server.cove(["template", "build", "app", "/nowhere/at/all"]).finish().expect_code(1);
    assert!(missing.stderr.contains("/nowhere/at/all"), "{}", missing.stderr);
}

#[test]
fn a_tree_in_a_file_becomes_a_template_and_leaves_again() {
    let server = TestServer::start();
    let root = folder(&server, "root", &[("etc/greeting", "hello\n"), ("usr/share/x", "x")]);
    let archive = root.with_file_name("root.tar");
    let packed = Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status().unwrap();
    assert!(packed.success());
    server.cove(["template", "build", "tree:v1", "--archive", archive.to_str().unwrap()]).finish().expect_success();
    let shown = told(&server, &["template", "show", "--json", "tree:v1"]);
    assert_eq!(shown["latest_builds"][0]["kind"], "archive");
    let out = root.with_file_name("out.tar");
    server.cove(["template", "export", "tree:v1", out.to_str().unwrap()]).finish().expect_success();
    assert!(files_of(&out).contains("etc/greeting"));
    // What we write we read.
    server.cove(["snapshot", "import", out.to_str().unwrap(), "again"]).finish().expect_success();
    assert_eq!(told(&server, &["template", "show", "--json", "again"])["state"], "ready");
    let garbage = root.with_file_name("garbage.tar");
    fs::write(&garbage, vec![7u8; 4096]).unwrap();
    let refused = server.cove(["snapshot", "import", garbage.to_str().unwrap(), "odd"]).finish().expect_code(1);
    assert!(refused.stderr.contains("the build failed"), "{}", refused.stderr);
}

#[test]
fn what_stands_on_this_machine_is_not_exported() {
    let server = TestServer::start();
    let out = server.data().with_file_name("out.tar");
    let refused = server.cove(["template", "export", "base", out.to_str().unwrap()]).finish().expect_code(1);
    assert!(refused.stderr.contains("this machine's own programs"), "{}", refused.stderr);
    assert!(!out.exists());
}

#[test]
fn a_secret_is_in_no_log_and_no_layer() {
    let server = TestServer::start();
    let project = folder(&server, "project", &[("Dockerfile", "FROM scratch\n")]);
    let body = json!({
        "name": "secretive",
        "from": { "template": "base", "steps": [{ "run": {
            "command": "cat /run/secrets/token; cat /run/secrets/token | wc -c > /opt/length",
            "mounts": [{ "name": "token", "required": true }],
        } }] },
        "secrets": { "token": "aHVudGVyMi1odW50ZXIy" },
    });
    let started = server.request("POST", "/api/templates", Some(&body)).expect_status(202).json();
    let id = started["build"]["id"].as_str().unwrap();
    let log = server.cove(["template", "logs", "secretive", id, "-f"]).finish().expect_success().stdout;
    assert!(log.contains("***") && !log.contains("hunter2"), "{log}");
    server.cove(["create", "--name", "box", "--template", "secretive"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat /opt/length; ls /run/secrets 2>/dev/null || true").trim(), "15");
    let unset = ["template", "build", "x", project.to_str().unwrap(), "--secret", "id=COVE_TEST_NOT_SET"];
    let refused = server.cove(unset).finish().expect_code(2);
    assert!(refused.stderr.contains("COVE_TEST_NOT_SET"), "{}", refused.stderr);
}

#[test]
fn a_log_can_be_followed_from_any_line() {
    let server = TestServer::start();
    let steps: Vec<Value> = (1..=3).map(|n| json!({ "run": { "command": format!("echo line-{n}") } })).collect();
    let body = json!({ "name": "lines", "from": { "steps": steps } });
    let started = server.request("POST", "/api/templates", Some(&body)).expect_status(202).json();
    let base = format!("/api/templates/lines/builds/{}/logs", started["build"]["id"].as_str().unwrap());
    let whole = server.request("GET", &format!("{base}/follow"), None).expect_status(200).text();
    assert!(whole.contains("line-1") && whole.contains("line-3"), "{whole}");
    let last = whole.rsplit("event: end").next().unwrap();
    assert!(last.contains("\"state\":\"ready\""), "{last}");
    let all = server.request("GET", &base, None).expect_status(200).json();
    let count = all.as_array().unwrap().len();
    let rest = server.request("GET", &format!("{base}/follow?after={}", count - 1), None).expect_status(200).text();
    assert_eq!(rest.matches("event: log").count(), 1, "{rest}");
    let part = server.request("GET", &format!("{base}?after=1&limit=1"), None).expect_status(200).json();
    assert_eq!(part[0]["seq"], 2);
}
