//! Moments of a sandbox: kept, gone back to, branched from.

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
fn a_sandbox_goes_back_and_forth_between_its_moments() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    inside(&server, "box", "echo one > ~/state; mkdir ~/kept");
    let taken = server.cove(["snapshot", "create", "box", "--name", "before"]).finish().expect_success();
    assert_eq!(taken.stdout, "before\n");
    inside(&server, "box", "echo two > ~/state; rmdir ~/kept; echo new > ~/new");
    let id = told(&server, &["inspect", "box"])["id"].clone();
    let back = server.cove(["rollback", "box", "before"]).finish().expect_success();
    assert_eq!(back.stdout, "box running\n");
    assert_eq!(inside(&server, "box", "cat ~/state; ls ~"), "one\nkept\nstate\n");
    assert_eq!(told(&server, &["inspect", "box"])["id"], id, "it is the same sandbox");
    // The hint tells how to undo it.
    let undo = back.stderr.split("hint: to undo: cove ").nth(1).unwrap().trim();
    server.cove(undo.split(' ')).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat ~/state; ls ~"), "two\nnew\nstate\n");
    let other = server.cove(["create", "--name", "other"]).finish().expect_success();
    assert_eq!(other.stdout, "other\n");
    let refused = server.cove(["rollback", "other", "before"]).finish().expect_code(1);
    assert!(refused.stderr.contains("not one of this sandbox"), "{}", refused.stderr);
    let missing = server.cove(["rollback", "box", "never"]).finish().expect_code(1);
    assert!(missing.stderr.contains("hint: `cove snapshot ls`"), "{}", missing.stderr);
}

#[test]
fn a_snapshot_outlives_its_sandbox_and_starts_others() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "-e", "WHO=ada"]).finish().expect_success();
    inside(&server, "box", "echo work > ~/work");
    server.cove(["stop", "box"]).finish().expect_success();
    server.cove(["snapshot", "create", "box", "--name", "done", "--note", "all of it"]).finish().expect_success();
    server.cove(["rm", "box"]).finish().expect_success();
    let listed = server.cove(["snapshot", "ls"]).finish().expect_success().stdout;
    assert!(listed.contains("done") && listed.contains("all of it"), "{listed}");
    for name in ["a", "b"] {
        server.cove(["create", "--name", name, "--template", "done"]).finish().expect_success();
        assert_eq!(inside(&server, name, "cat ~/work; echo $WHO"), "work\nada\n");
    }
    server.cove(["snapshot", "rm", "done"]).finish().expect_success();
    server.cove(["snapshot", "rm", "done"]).finish().expect_code(1);
    // What was started from it stays, over a restart too.
    server.cove(["stop", "a"]).finish().expect_success();
    server.cove(["start", "a"]).finish().expect_success();
    assert_eq!(inside(&server, "a", "cat ~/work"), "work\n");
    assert!(server.cove(["snapshot", "ls"]).finish().expect_success().stderr.contains("no snapshots"));
}

#[test]
fn a_snapshot_without_a_name_is_found_by_its_id_and_one_name_holds_many_moments() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let id = server.cove(["snapshot", "create", "box"]).finish().expect_success().stdout.trim().to_owned();
    assert_eq!(told(&server, &["snapshot", "show", "--json", &id])["id"], id);
    for (tag, text) in [("line:a", "1"), ("line:b", "2")] {
        inside(&server, "box", &format!("echo {text} > ~/n"));
        let taken = server.cove(["snapshot", "create", "box", "--name", tag]).finish().expect_success();
        assert_eq!(taken.stdout, format!("{tag}\n"), "what leads to it");
        assert!(!taken.stderr.contains("another moment before"), "{}", taken.stderr);
    }
    // A name that leads elsewhere from now on is said, with the way to what it led to.
    let again = server.cove(["snapshot", "create", "box", "--name", "line:b"]).finish().expect_success();
    assert!(again.stderr.contains("line:b was another moment before"), "{}", again.stderr);
    let moments = server.cove(["snapshot", "show", "line"]).finish().expect_success().stdout;
    assert_eq!(moments.matches("line:").count(), 3, "{moments}");
    let listed = server.cove(["snapshot", "checkpoints", "box"]).finish().expect_success().stdout;
    assert!(listed.contains("snapshot line:a") && listed.contains("snapshot line:b"), "{listed}");
    server.cove(["snapshot", "rm", "line:nope"]).finish().expect_code(1);
    server.cove(["snapshot", "create", "box", "--name", "base"]).finish().expect_code(1);
    let shown = told(&server, &["snapshot", "show", "--json", "line"]);
    assert_eq!((&shown["builds"], shown["tags"].as_array().unwrap().len()), (&json!(3), 2));
    server.cove(["create", "--name", "first", "--template", "line:a"]).finish().expect_success();
    assert_eq!(inside(&server, "first", "cat ~/n"), "1\n");
    server.cove(["snapshot", "rm", "line:a"]).finish().expect_success();
    server.cove(["create", "--template", "line:a"]).finish().expect_code(1);
    assert_eq!(inside(&server, "first", "cat ~/n"), "1\n", "the middle of a lineage can go");
}

#[test]
fn copies_run_at_once_and_are_their_own() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    inside(&server, "box", "echo shared > ~/file");
    let forked = server.cove(["fork", "box", "--name", "left", "--name", "right", "-n", "3"]).finish().expect_success();
    let names: Vec<&str> = forked.stdout.lines().collect();
    assert_eq!(names[..2], ["left", "right"]);
    assert_eq!(names[2].len(), 20, "the third has an id alone");
    inside(&server, "left", "echo left >> ~/file");
    inside(&server, "right", "rm ~/file");
    assert_eq!(inside(&server, "left", "cat ~/file"), "shared\nleft\n");
    assert_eq!(inside(&server, "box", "cat ~/file"), "shared\n");
    assert_eq!(inside(&server, "right", "ls ~"), "");
    let lineage = told(&server, &["snapshot", "lineage", "--json", "box"]);
    assert_eq!(lineage["forks"].as_array().unwrap().len(), 3, "{lineage}");
    let left = told(&server, &["snapshot", "lineage", "--json", "left"]);
    assert_eq!((&left["parent"]["name"], left["ancestors"].as_array().unwrap().len()), (&json!("box"), 1));
    // Of several, each succeeds or fails for itself.
    let mixed = server.cove(["fork", "box", "--name", "left", "--name", "new"]).finish().expect_code(1);
    assert!(mixed.stdout == "new\n" && mixed.stderr.contains("\"left\""), "{mixed:?}");
    let refused = server.cove(["fork", "nothing"]).finish().expect_code(1);
    assert!(refused.stderr.contains("hint: `cove ls`"), "{}", refused.stderr);
    server.cove(["fork", "box", "-n", "0"]).finish().expect_code(2);
}

#[test]
fn checkpoints_are_made_before_each_command_and_the_rule_keeps_the_newest() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "--checkpoints", "2"]).finish().expect_success();
    for n in 1..=3 {
        inside(&server, "box", &format!("echo {n} > ~/n"));
    }
    let all = told(&server, &["snapshot", "checkpoints", "--json", "box"]);
    let automatic: Vec<&Value> = all.as_array().unwrap().iter().filter(|one| one["origin"] == "automatic").collect();
    assert_eq!(automatic.len(), 2, "{all}");
    assert!(automatic[0]["note"].as_str().unwrap().contains("echo 3"), "{all}");
    server.cove(["rollback", "box", automatic[0]["id"].as_str().unwrap()]).finish().expect_success();
    server.cove(["snapshot", "checkpoints", "box", "--off"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat ~/n"), "2\n");
    let made = server.cove(["snapshot", "checkpoints", "box", "--now", "--note", "mine"]).finish().expect_success();
    let listed = server.cove(["snapshot", "checkpoints", "box"]).finish().expect_success().stdout;
    assert!(listed.contains(made.stdout.trim()) && listed.contains("by a rollback"), "{listed}");
    server.cove(["snapshot", "checkpoints", "box", "--keep", "0"]).finish().expect_code(2);
}

#[test]
fn a_cell_is_a_command_and_has_one_checkpoint() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box", "--checkpoints", "10"]).finish().expect_success();
    let id = told(&server, &["inspect", "box"])["id"].clone();
    let session = server.request("POST", "/api/sessions", Some(&json!({"sandbox_id": id}))).expect_status(201).json();
    for line in ["echo 1 > ~/n", "echo 2 > ~/n"] {
        let body = json!({"session_id": session["session_id"], "language": "bash", "code": line});
        server.request("POST", "/api/execute", Some(&body)).expect_status(200);
    }
    let all = told(&server, &["snapshot", "checkpoints", "--json", "box"]);
    let notes: Vec<&str> = all.as_array().unwrap().iter().map(|one| one["note"].as_str().unwrap()).collect();
    assert_eq!(notes, ["echo 2 > ~/n", "echo 1 > ~/n"], "the interpreter's own processes are nobody's commands");
    server.cove(["rollback", "box", all[0]["id"].as_str().unwrap()]).finish().expect_success();
    server.cove(["snapshot", "checkpoints", "box", "--off"]).finish().expect_success();
    assert_eq!(inside(&server, "box", "cat ~/n"), "1\n");
}

#[test]
fn many_copies_are_of_one_moment_while_the_source_goes_on() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let writer = "cd; n=0; while :; do n=$((n+1)); echo $n > one.new; mv one.new one; echo $n > two.new; \
                  mv two.new two; done";
    let body = json!({ "shell": writer, "background": true });
    server.request("POST", "/api/sandboxes/box/exec", Some(&body)).expect_status(200);
    inside(&server, "box", "while ! [ -s ~/two ]; do sleep 0.01; done");
    let forked = told(&server, &["fork", "--json", "box", "-n", "16"]);
    let forks = forked["forks"].as_array().unwrap();
    assert_eq!(forks.len(), 16);
    let mut seen = std::collections::BTreeSet::new();
    let mut addresses = std::collections::BTreeSet::new();
    for fork in forks {
        let id = fork["sandbox"]["id"].as_str().unwrap();
        seen.insert(inside(&server, id, "cat ~/one ~/two"));
        assert_eq!(inside(&server, id, "hostname").trim(), id, "each has a name of its own");
        addresses.insert(inside(&server, id, "readlink /proc/self/ns/net"));
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(addresses.len(), 16, "and a network of its own");
    let before: u64 = inside(&server, "box", "cat ~/two").trim().parse().unwrap();
    assert!(inside(&server, "box", "sleep 0.2; cat ~/two").trim().parse::<u64>().unwrap() > before);
}

#[test]
fn an_organisation_gets_as_many_copies_as_it_may_have() {
    let server = TestServer::start_in(&[], &[("COVE_QUOTA_SANDBOXES", "4")]);
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let forked =
        server.request("POST", "/api/sandboxes/box/fork", Some(&json!({"count": 5}))).expect_status(200).json();
    let forks = forked["forks"].as_array().unwrap();
    let made: Vec<bool> = forks.iter().map(|fork| fork["error"].is_null()).collect();
    assert_eq!(made, [true, true, true, false, false], "{forked}");
    assert_eq!(forks[4]["error"]["code"], "quota_exceeded");
    let refused = server.request("POST", "/api/sandboxes/box/fork", Some(&json!({"count": 2}))).expect_status(429);
    assert!(refused.text().contains("maximum of 4"), "{}", refused.text());
    assert_eq!(cove_testkit::guests::guests(&server.data()).len(), 4);
}

#[test]
fn sixty_generations_start_as_fast_as_the_first_and_lose_nothing() {
    let server = TestServer::start();
    let request = |method: &str, path: &str, body: Value| server.request(method, path, Some(&body));
    let mut times = Vec::new();
    let mut template = "base".to_owned();
    for generation in 0..60 {
        let begun = std::time::Instant::now();
        let made = request("POST", "/api/sandboxes", json!({ "template": template })).expect_status(201).json();
        times.push(begun.elapsed());
        let id = made["id"].as_str().unwrap();
        // Each brings a file, changes one, and takes away what the one before brought.
        let line = format!(
            "echo {generation} > ~/g{generation}; echo {generation} >> ~/log; rm -rf ~/d{}; mkdir ~/d{generation}; \
             touch ~/d{generation}/f",
            generation - 1
        );
        let ran = request("POST", &format!("/api/sandboxes/{id}/exec"), json!({ "shell": line })).expect_status(200);
        assert_eq!(ran.json()["exit"]["status"], 0, "{}", ran.text());
        // A snapshot of a fork of a sandbox of a snapshot.
        let forked = request("POST", &format!("/api/sandboxes/{id}/fork"), json!({})).expect_status(200).json();
        let fork = forked["forks"][0]["sandbox"]["id"].as_str().unwrap();
        template = format!("g{generation}");
        request("POST", &format!("/api/sandboxes/{fork}/snapshots"), json!({ "name": template })).expect_status(201);
        for id in [id, fork] {
            server.request("DELETE", &format!("/api/sandboxes/{id}"), None).expect_status(204);
        }
    }
    // The middle of a lineage can go, and all but the last of it.
    for generation in 0..59 {
        server.request("DELETE", &format!("/api/snapshots/g{generation}"), None).expect_status(204);
    }
    server.cove(["create", "--name", "last", "--template", "g59"]).finish().expect_success();
    let seen = inside(&server, "last", "cat ~/g* | sort -n | uniq | wc -l; wc -l < ~/log; tail -n 1 ~/log; ls -d ~/d*");
    assert_eq!(seen, "60\n60\n59\n/home/user/d59\n");
    let median = |times: &[std::time::Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2]
    };
    let (early, late) = (median(&times[1..16]), median(&times[45..]));
    println!("a start took {early:?} in the first generations, {late:?} in the last");
    assert!(late < early * 3 + std::time::Duration::from_millis(50), "{early:?} {late:?}");
}

#[test]
fn a_snapshot_on_an_image_leaves_and_comes_back_with_what_it_took_away() {
    let server = TestServer::start();
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].map(std::path::Path::new);
    let busybox = busybox.into_iter().find(|path| path.exists());
    let busybox = busybox.expect("busybox is missing; `scripts/setup test` installs it (package busybox-static)");
    let root = server.data().with_file_name("root");
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::create_dir_all(root.join("old/deep")).unwrap();
    std::fs::write(root.join("old/deep/file"), "old").unwrap();
    std::fs::write(root.join("kept"), "kept\n").unwrap();
    std::fs::copy(busybox, root.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "ls", "rm", "mkdir", "echo", "test"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    let archive = root.with_file_name("root.tar");
    let packed = std::process::Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg(".").status();
    assert!(packed.unwrap().success());
    server.cove(["template", "build", "tiny", "--archive", archive.to_str().unwrap()]).finish().expect_success();
    let run = |sandbox: &str, line: &str| {
        let body = json!({"command": ["/bin/sh", "-c", line], "user": "root"});
        let ran = server.request("POST", &format!("/api/sandboxes/{sandbox}/exec"), Some(&body)).expect_status(200);
        ran.json()["stdout"].as_str().unwrap().to_owned()
    };
    server.cove(["create", "--name", "box", "--template", "tiny"]).finish().expect_success();
    let change =
        "cd /; /bin/rm -r old; /bin/mkdir old; /bin/echo new > old/new; /bin/echo changed > kept; /bin/echo ok";
    assert_eq!(run("box", change), "ok\n");
    server.cove(["snapshot", "create", "box", "--name", "changed"]).finish().expect_success();
    let out = root.with_file_name("out.tar");
    server.cove(["snapshot", "export", "changed", out.to_str().unwrap()]).finish().expect_success();
    server.cove(["snapshot", "import", out.to_str().unwrap(), "again"]).finish().expect_success();
    server.cove(["create", "--name", "back", "--template", "again"]).finish().expect_success();
    assert_eq!(run("back", "/bin/cat /kept; /bin/ls /old"), "changed\nnew\n", "what was taken away stays away");
}
