//! Storage that outlives sandboxes and that several share.

use std::fs;

use cove_testkit::TestServer;
use serde_json::{Value, json};

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    let said = server.cove(arguments.iter().copied()).finish().expect_success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn inside(server: &TestServer, sandbox: &str, line: &str) -> String {
    server.cove(["exec", sandbox, "--", "sh", "-c", line]).finish().expect_success().stdout
}

#[test]
fn sandboxes_share_a_volume_and_it_stays_when_they_go() {
    let server = TestServer::start();
    server.cove(["volume", "create", "data", "--size", "64M"]).finish().expect_success();
    server.cove(["create", "--name", "writer", "--volume", "data:/data"]).finish().expect_success();
    server.cove(["create", "--name", "reader", "--volume", "data:/in:ro"]).finish().expect_success();
    inside(&server, "writer", "echo hello > /data/file");
    assert_eq!(inside(&server, "reader", "cat /in/file"), "hello\n");
    let denied = server.cove(["exec", "reader", "--", "sh", "-c", "echo x > /in/file"]).finish();
    assert!(denied.code != 0 && denied.stderr.contains("Read-only"), "{denied:?}");
    let shown = told(&server, &["volume", "show", "--json", "data"]);
    assert_eq!(shown["sandboxes"].as_array().unwrap().len(), 2, "{shown}");
    assert_eq!(told(&server, &["inspect", "reader"])["volumes"][0]["read_only"], true);
    // One that is mounted cannot go.
    let refused = server.cove(["volume", "rm", "data"]).finish().expect_code(1);
    assert!(refused.stderr.contains("in use") && refused.stderr.contains("hint: cove volume show data"), "{refused:?}");
    let shown = server.cove(["volume", "show", "data"]).finish().expect_success().stdout;
    assert!(shown.contains("reader") && shown.contains("writer"), "{shown}");
    server.cove(["rm", "writer", "reader"]).finish().expect_success();
    server.cove(["create", "--name", "later", "--volume", "data:/data"]).finish().expect_success();
    assert_eq!(inside(&server, "later", "cat /data/file"), "hello\n");
    server.cove(["rm", "later"]).finish().expect_success();
    server.cove(["volume", "rm", "data"]).finish().expect_success();
    let gone = server.cove(["volume", "show", "data"]).finish().expect_code(1);
    assert!(gone.stderr.contains("hint: `cove volume ls`"), "{}", gone.stderr);
    assert!(server.cove(["volume", "ls"]).finish().expect_success().stderr.contains("no volumes"));
}

#[test]
fn a_part_of_a_volume_is_all_that_a_sandbox_sees() {
    let server = TestServer::start();
    server.cove(["volume", "create", "data"]).finish().expect_success();
    server.cove(["create", "--name", "part", "--volume", "data:/mine:rw:teams/a"]).finish().expect_success();
    inside(&server, "part", "echo x > /mine/f; cd /mine/..; ls /mine");
    let listed = told(&server, &["volume", "files", "--json", "data", "/", "--depth", "4"]);
    let paths: Vec<&str> = listed.as_array().unwrap().iter().filter_map(|one| one["path"].as_str()).collect();
    assert!(paths.contains(&"/teams/a/f"), "{paths:?}");
    for wrong in ["data", "data:relative", "nothing:/x", "data:/proc", "data:/x:rw:../up", "data:/x:readonly"] {
        let refused = server.cove(["create", "--volume", wrong]).finish();
        assert!(refused.code != 0 && !refused.stderr.is_empty(), "{wrong}: {refused:?}");
    }
}

#[test]
fn files_go_in_and_out_without_a_sandbox() {
    let server = TestServer::start();
    server.cove(["volume", "create", "data"]).finish().expect_success();
    let here = server.data().with_file_name("here");
    fs::create_dir_all(here.join("deep/er")).unwrap();
    fs::write(here.join("deep/er/one"), "1").unwrap();
    fs::write(here.join("two"), "22").unwrap();
    let copied = told(&server, &["volume", "cp", "--json", here.to_str().unwrap(), "data:/"]);
    assert_eq!((&copied["files"], &copied["bytes"]), (&json!(2), &json!(3)), "{copied}");
    let back = here.with_file_name("back");
    server.cove(["volume", "cp", "data:/here", back.to_str().unwrap()]).finish().expect_success();
    assert_eq!(fs::read_to_string(back.join("deep/er/one")).unwrap(), "1");
    let out = server.cove(["volume", "cp", "data:/here/two", "-"]).finish().expect_success();
    assert_eq!(out.stdout, "22");
    let fed = server.cove(["volume", "cp", "-", "data:/here/fed"]).input("fed").finish();
    fed.expect_success();
    assert_eq!(server.cove(["volume", "cp", "data:/here/fed", "-"]).finish().expect_success().stdout, "fed");
    server.cove(["volume", "cp", "-", "data:/here/"]).finish().expect_code(2);
    let folder = server.cove(["volume", "cp", "data:/here", "-"]).finish().expect_code(2);
    assert!(folder.stderr.contains("is a folder"), "{}", folder.stderr);
    server.cove(["volume", "files", "data", "/here/deep", "--remove"]).finish().expect_success();
    let left = server.cove(["volume", "files", "data", "/here"]).finish().expect_success().stdout;
    assert!(left.contains("/here/two") && !left.contains("deep"), "{left}");
    // A sandbox owns what came in.
    server.cove(["create", "--name", "box", "--volume", "data:/data"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "echo 333 > /data/here/two && cat /data/here/two"), "333\n");
    // A link that a sandbox made leads nowhere.
    inside(&server, "box", "ln -s /etc/passwd /data/link");
    let refused = server.cove(["volume", "cp", "data:/link", "-"]).finish().expect_code(1);
    assert!(!refused.stdout.contains("root:"), "{}", refused.stdout);
    server.cove(["volume", "cp", "a", "b"]).finish().expect_code(2);
}

#[test]
fn a_volume_holds_what_it_may_hold() {
    let server = TestServer::start();
    server.cove(["volume", "create", "small", "--size", "16M"]).finish().expect_success();
    server.cove(["create", "--name", "box", "--volume", "small:/s"]).finish().expect_success();
    let full = server.cove(["exec", "box", "--", "dd", "if=/dev/urandom", "of=/s/f", "bs=1M", "count=40"]).finish();
    assert!(full.code != 0, "{full:?}");
    server.cove(["volume", "resize", "small", "64M"]).finish().expect_success();
    inside(&server, "box", "dd if=/dev/urandom of=/s/f bs=1M count=40 2>/dev/null; sync");
    let refused = server.cove(["volume", "resize", "small", "8M"]).finish().expect_code(1);
    assert!(refused.stderr.contains("holds"), "{}", refused.stderr);
    server.cove(["volume", "create", "small"]).finish().expect_code(1);
    server.cove(["volume", "create", "tiny", "--size", "1K"]).finish().expect_code(1);
}
