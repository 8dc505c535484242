//! `cove reset`: nothing is left of Cove, and nothing else is touched.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use cove_testkit::TestServer;
use cove_testkit::ordinary::{Ids, OrdinaryUser};
use cove_testkit::server::TestDirectory;
use cove_testkit::wait::{LIMIT, until_some};
use serde_json::json;

/// `rm -rf` could not: the files belong to ids that the user has only inside a user namespace.
#[test]
fn an_ordinary_user_gets_rid_of_everything() {
    for ids in [Ids::Single, Ids::Range] {
        let user = OrdinaryUser::with(ids);
        let mut server = user.serve();
        let data = server.data();
        let data = data.to_str().unwrap();
        server.request("POST", "/api/sandboxes", Some(&json!({"name": "box"}))).expect_status(201);
        server.cove(["exec", "box", "--", "sh", "-c", "mkdir ~/d && echo x > ~/d/x"]).finish().expect_success();
        user.cove(["run", "--data", data, "--", "true"]).finish().expect_success();
        if ids == Ids::Range {
            let foreign = |path: &PathBuf| path.symlink_metadata().unwrap().uid() != user.uid;
            assert!(user.files(&server.data().join("run")).iter().any(foreign), "else this would show nothing");
        }
        let refused = user.cove(["reset", "--yes", "--data", data]).finish().expect_code(1);
        assert!(refused.stderr.contains("has the data directory"), "{}", refused.stderr);
        assert!(refused.stderr.contains("hint: stop that server first, and wait"), "{}", refused.stderr);

        // The sandbox goes on without a server, and ends here.
        server.kill();
        assert!(!user.processes().is_empty());
        let finished = user.cove(["reset", "--yes", "--data", data]).finish().expect_success();
        assert_eq!(finished.stdout, format!("removed {data}\n"));
        assert!(!server.data().exists());
        until_some("the end of its processes", LIMIT, || user.processes().is_empty().then_some(()));
        let finished = user.cove(["reset", "--yes", "--data", data]).finish().expect_success();
        assert_eq!(finished.stdout, format!("nothing is kept in {data}\n"));
    }
}

#[test]
fn what_cove_did_not_make_is_left_alone() {
    let mut server = TestServer::start();
    let disk = json!({"name": "box", "limits": {"disk": 64 << 20}});
    server.request("POST", "/api/sandboxes", Some(&disk)).expect_status(201);
    server.stop();
    let notes = server.data().join("notes");
    std::fs::write(&notes, "mine").unwrap();
    let data = server.data();
    let data = data.to_str().unwrap();
    let finished = server.cove(["reset", "--data", data]).finish().expect_code(2);
    assert!(finished.stderr.contains("hint: --yes"), "{}", finished.stderr);
    let finished = server.cove(["reset", "--yes", "--data", data]).finish().expect_success();
    assert!(finished.stderr.contains(&format!("left alone, because Cove does not make them: {data}/notes")));
    assert_eq!(std::fs::read_to_string(&notes).unwrap(), "mine");
    let left: Vec<_> = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["notes"]);
}

#[test]
fn a_directory_that_is_not_coves_is_refused() {
    let place = TestDirectory::new();
    let theirs = place.path().join("project/sandboxes");
    std::fs::create_dir_all(&theirs).unwrap();
    let project = theirs.parent().unwrap().to_str().unwrap();
    let finished = place.cove(["reset", "--yes", "--data", project]).finish().expect_code(2);
    assert!(finished.stderr.contains("is not a data directory of Cove"), "{}", finished.stderr);
    assert!(theirs.exists());
}

#[test]
fn at_a_terminal_it_asks() {
    let place = TestDirectory::new();
    place.cove(["run", "--", "true"]).finish().expect_success();
    for (answer, code) in [("n\n", 1), ("y\n", 0)] {
        let mut terminal = cove_testkit::Terminal::cove(&place.data(), ["reset"]);
        terminal.sees("[y/N]");
        assert!(place.data().exists());
        terminal.types(answer);
        assert_eq!(terminal.ends(), code);
    }
    assert!(!place.data().exists());
}
