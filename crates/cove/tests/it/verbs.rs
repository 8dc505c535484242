//! The verbs against a real server with real sandboxes.

use cove_testkit::TestServer;

#[test]
fn a_sandbox_is_made_used_and_removed() {
    let server = TestServer::start();
    let made = server.cove(["create", "--name", "box", "--label", "project=demo"]).finish().expect_success();
    assert_eq!(made.stdout, "box\n");
    let finished =
        server.cove(["exec", "box", "--", "sh", "-c", "echo out; echo err >&2; exit 4"]).finish().expect_code(4);
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
    let finished = server.cove(["exec", "box", "--", "tr", "a-z", "A-Z"]).input("hello").finish().expect_success();
    assert_eq!(finished.stdout, "HELLO");
    let listed = server.cove(["ls"]).finish().expect_success();
    assert!(listed.stdout.contains("box") && listed.stdout.contains("running"), "{}", listed.stdout);
    let none = server.cove(["ls", "--state", "paused"]).finish().expect_success();
    assert!(none.stderr.contains("none of these\nhint: `cove ls` lists all"), "{none:?}");
    let taken = server.cove(["exec", "-e", "COVE_TOLD", "box", "--", "sh", "-c", "echo $COVE_TOLD"]);
    assert_eq!(taken.env("COVE_TOLD", "here").finish().expect_success().stdout, "here\n");
    server.cove(["exec", "-e", "COVE_UNTOLD", "box", "--", "true"]).finish().expect_code(2);
    server.cove(["stop", "box"]).finish().expect_success();
    let stopped = server.cove(["exec", "box", "--", "true"]).finish();
    assert!(
        stopped.stderr.contains("sandbox box is stopped") && stopped.stderr.contains("hint: cove start box"),
        "{stopped:?}"
    );
    server.cove(["rm", "box"]).finish().expect_success();
    let finished = server.cove(["exec", "box", "--", "true"]).finish();
    assert!(finished.code != 0 && finished.stderr.contains("hint: "), "{finished:?}");
}

#[test]
fn files_and_folders_go_in_and_come_back() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("folder");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    std::fs::write(folder.join("deep/file"), "content\n").unwrap();
    let text = folder.to_str().unwrap();
    server.cove(["cp", text, "box:work"]).finish().expect_success();
    let seen = server.cove(["exec", "box", "--", "cat", "work/deep/file"]).finish().expect_success();
    assert_eq!(seen.stdout, "content\n");
    let back = folder.with_file_name("back");
    server.cove(["cp", "box:work", back.to_str().unwrap()]).finish().expect_success();
    assert_eq!(std::fs::read_to_string(back.join("deep/file")).unwrap(), "content\n");
    server.cove(["cp", "-", "box:/tmp/piped"]).input("piped").finish().expect_success();
    assert_eq!(server.cove(["cp", "box:/tmp/piped", "-"]).finish().expect_success().stdout, "piped");
}

#[test]
fn a_server_that_is_killed_comes_back_with_its_sandboxes() {
    let mut server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    server.cove(["exec", "box", "--", "sh", "-c", "echo kept > note"]).finish().expect_success();
    server.restart();
    let seen = server.cove(["exec", "box", "--", "cat", "note"]).finish().expect_success();
    assert_eq!(seen.stdout, "kept\n");
}

#[test]
fn without_a_server_the_verbs_say_how_to_get_one() {
    let place = cove_testkit::server::TestDirectory::new();
    let finished = place.cove(["ls"]).env("COVE_URL", "http://127.0.0.1:1").finish().expect_code(1);
    assert!(finished.stderr.contains("hint: start one with `cove serve`"), "{}", finished.stderr);
}
