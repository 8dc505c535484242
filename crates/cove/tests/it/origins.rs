//! What a sandbox starts with: a repository that is cloned before its maker is told of it.

use cove_testkit::TestServer;
use serde_json::json;

#[test]
fn a_repository_is_in_a_new_sandbox_and_one_that_is_missing_leaves_nothing() {
    let server = TestServer::start();
    server.cove(["volume", "create", "repositories"]).finish().expect_success();
    server.cove(["create", "--name", "first", "--volume", "repositories:/repositories"]).finish().expect_success();
    let make = "git init --quiet --initial-branch main /repositories/tools && cd /repositories/tools && \
                git config user.name Ada && git config user.email ada@example.com && \
                echo hello > file && git add file && git commit --quiet -m one && \
                git checkout --quiet -b next && echo later > file && git commit --quiet -am two";
    server.cove(["exec", "first", "--", "sh", "-c", make]).finish().expect_success();

    let volume = ["--volume", "repositories:/repositories:ro"];
    let mut arguments = vec!["create", "--name", "main", "--git", "file:///repositories/tools", "--git-branch", "main"];
    arguments.extend(volume);
    server.cove(arguments).finish().expect_success();
    let read = |sandbox: &str, path: &str| server.cove(["exec", sandbox, "--", "cat", path]).finish();
    assert_eq!(read("main", "tools/file").expect_success().stdout, "hello\n");
    let body = json!({
        "sandbox": {
            "name": "next",
            "git_branch": "next",
            "git_path": "/home/user/work",
            "volumes": [{ "volume": "repositories", "path": "/repositories", "read_only": true }],
        },
        "git_url": "file:///repositories/tools",
    });
    server.request("POST", "/api/sessions", Some(&body)).expect_status(201);
    assert_eq!(read("next", "/home/user/work/file").expect_success().stdout, "later\n");

    let missing = server.cove(["create", "--name", "none", "--git", "file:///repositories/none"]).finish();
    assert!(missing.code != 0 && missing.stderr.contains("git_url"), "{missing:?}");
    server.request("GET", "/api/sandboxes/none", None).expect_status(404);
    let closed = server.cove(["create", "--git", "https://example.com/acme/tools.git"]).finish();
    assert!(closed.code != 0 && closed.stderr.contains("no network"), "{closed:?}");
    server.cove(["rm", "first", "main", "next"]).finish().expect_success();
    server.cove(["volume", "rm", "repositories"]).finish().expect_success();
}
