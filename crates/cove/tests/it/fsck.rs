//! A durable pause over a reboot of the machine, and the proof that the files are what they were.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use cove_testkit::TestServer;
use cove_testkit::reboot::reboot;
use serde_json::{Value, json};

fn told(server: &TestServer, arguments: &[&str]) -> Value {
    let said = server.cove(arguments.iter().copied()).finish().expect_success().stdout;
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn inside(server: &TestServer, sandbox: &str, line: &str) -> String {
    server.cove(["exec", sandbox, "--", "sh", "-c", line]).finish().expect_success().stdout
}

/// A file of a stopped sandbox, on the server's disk.
fn on_disk(server: &TestServer, id: &str, path: &str) -> PathBuf {
    let tops = ["pool", "storage"].map(|top| server.data().join(top).join("uppers").join(id));
    let upper = tops.iter().find(|upper| upper.exists()).unwrap_or_else(|| panic!("no files of {id} in {tops:?}"));
    upper.join("root").join(path)
}

#[test]
fn a_durable_pause_outlives_the_machine_and_is_proven() {
    let mut server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    inside(&server, "box", "echo kept > note; ln note same; echo x > \"$(printf 'new\\nline')\"");
    assert_eq!(told(&server, &["inspect", "box"])["manifest"], Value::Null);
    let paused = server.cove(["pause", "--durable", "box"]).finish().expect_success();
    assert_eq!(paused.stdout, "box paused\n");
    let sandbox = told(&server, &["inspect", "box"]);
    let digest = sandbox["manifest"]["digest"].as_str().unwrap().to_owned();
    assert!(sandbox["manifest"]["files"].as_u64().is_some_and(|files| files > 3), "{sandbox}");
    let sound = server.cove(["fsck", "box"]).finish().expect_success();
    assert!(sound.stdout.contains("box") && sound.stdout.contains("as in its manifest"), "{}", sound.stdout);

    // The power goes. Processes are gone, files are proven.
    server.kill();
    reboot(&server.data());
    server.restart();
    let back = told(&server, &["inspect", "box"]);
    assert_eq!((&back["state"], &back["manifest"]["digest"]), (&json!("stopped"), &json!(digest)), "{back}");
    let check = told(&server, &["fsck", "box", "--json"]);
    assert_eq!((&check["sound"], &check["items"][0]["checked_by"]), (&json!(true), &json!("manifest")), "{check}");

    // One byte is another, and its time is what it was.
    let id = back["id"].as_str().unwrap().to_owned();
    let path = on_disk(&server, &id, "home/user/note");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(b"K", 0).unwrap();
    file.set_modified(time).unwrap();
    let damaged = server.cove(["fsck", "box"]).finish().expect_code(1);
    for line in ["DAMAGED", "changed /home/user/note: content", "changed /home/user/same: content"] {
        assert!(damaged.stdout.contains(line), "{line}: {}", damaged.stdout);
    }
    fs::remove_file(on_disk(&server, &id, "home/user/new\nline")).unwrap();
    let damaged = server.cove(["fsck", "box"]).finish().expect_code(1);
    assert!(damaged.stdout.contains("missing /home/user/new\\nline: it was a file"), "{}", damaged.stdout);

    // Started, it is its own again, and nothing is claimed of it.
    server.cove(["start", "box"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat note"), "Kept\n");
    assert_eq!(told(&server, &["inspect", "box"])["manifest"], Value::Null);
    let runs = server.cove(["fsck", "box"]).finish().expect_success();
    assert!(runs.stdout.contains("not checked") && runs.stdout.contains("only its layers"), "{}", runs.stdout);
}

#[test]
fn everything_is_checked_with_its_layers_and_the_default_can_be_durable() {
    let server = TestServer::start_in(&[], &[("COVE_DURABLE", "true")]);
    server.cove(["create", "--name", "source"]).finish().expect_success();
    inside(&server, "source", "echo below > below");
    server.cove(["snapshot", "create", "source", "--name", "moment"]).finish().expect_success();
    server.cove(["create", "--name", "box", "--template", "moment"]).finish().expect_success();
    server.cove(["volume", "create", "data"]).finish().expect_success();
    server.cove(["stop", "box"]).finish().expect_success();
    assert!(told(&server, &["inspect", "box"])["manifest"]["digest"].is_string());
    server.cove(["stop", "--not-durable", "source"]).finish().expect_success();
    assert_eq!(told(&server, &["inspect", "source"])["manifest"], Value::Null);

    let check = told(&server, &["fsck", "--all", "--json"]);
    let items = check["items"].as_array().unwrap();
    let kinds = |kind: &str| Vec::from_iter(items.iter().filter(|item| item["kind"] == kind));
    assert_eq!((kinds("sandbox").len(), kinds("layer").len(), kinds("volume").len()), (2, 1, 1), "{check}");
    assert_eq!(kinds("layer")[0]["checked_by"], "manifest", "a durable stop notes the layers below too");
    assert_eq!((&check["sound"], &kinds("server")[0]["problems"]), (&json!(true), &json!([])), "{check}");

    // A file of the snapshot is another.
    let layer = kinds("layer")[0]["id"].as_str().unwrap();
    let tops = ["pool", "storage"].map(|top| server.data().join(top).join("layers").join(layer));
    let top = tops.iter().find(|top| top.exists()).unwrap();
    fs::write(top.join("root/home/user/below"), "BELOW\n").unwrap();
    let damaged = server.cove(["fsck", "--all"]).finish().expect_code(1);
    assert!(damaged.stdout.contains("changed /home/user/below: "), "{}", damaged.stdout);
    let of_one = server.cove(["fsck", "source"]).finish().expect_success();
    assert!(of_one.stdout.contains("it has no manifest"), "{}", of_one.stdout);
    let nobody = server.cove(["fsck", "nobody"]).finish().expect_code(1);
    assert!(nobody.stderr.contains("nobody"), "{}", nobody.stderr);
    server.cove(["fsck"]).finish().expect_code(2);
}
