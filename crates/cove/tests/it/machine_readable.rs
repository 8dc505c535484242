//! `--json` on the verbs that carry bytes: what a script needs to know of a command or a copy.

use cove_testkit::TestServer;
use serde_json::{Value, json};

fn read(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_commands_outcome_is_one_object() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let line = "echo out; echo err >&2; exit 4";
    let told = server.cove(["exec", "--json", "box", "--", "sh", "-c", line]).finish().expect_code(4);
    let outcome = read(&told.stdout);
    assert!(outcome["pid"].as_u64().is_some_and(|pid| pid > 1), "{outcome}");
    for (field, value) in [
        ("exit_code", json!(4)),
        ("stdout", json!("out\n")),
        ("stderr", json!("err\n")),
        ("timed_out", json!(false)),
        ("out_of_memory", json!(false)),
        ("lost_bytes", json!(0)),
    ] {
        assert_eq!(outcome[field], value, "{field} of {outcome}");
    }
    let late = server.cove(["exec", "--json", "--timeout", "300ms", "box", "--", "sleep", "60"]).finish();
    assert_eq!((late.code, &read(&late.stdout)["timed_out"]), (124, &json!(true)), "{late:?}");
    // Also where the program could not be run.
    let place = cove_testkit::server::TestDirectory::new();
    for lost in
        [place.cove(["run", "--json", "--", "/nothing"]), server.cove(["exec", "--json", "box", "--", "/nothing"])]
    {
        let lost = lost.finish().expect_code(127);
        let outcome = read(&lost.stdout);
        assert_eq!(outcome["exit_code"], 127, "{outcome}");
        assert!(outcome["error"].as_str().is_some_and(|why| why.contains("/nothing")), "{outcome}");
        assert!(lost.stderr.starts_with("error: "), "{}", lost.stderr);
    }
    let fed = server.cove(["exec", "--json", "box", "--", "wc", "-c"]).input("12345").finish().expect_success();
    assert_eq!(read(&fed.stdout)["stdout"], "5\n");
}

#[test]
fn logs_tell_whether_the_process_still_runs() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let line = "echo begun; read go < /tmp/go; echo ended; exit 3";
    server.cove(["exec", "box", "--", "mkfifo", "/tmp/go"]).finish().expect_success();
    let started = server.cove(["exec", "--json", "-d", "--tag", "job", "box", "--", "sh", "-c", line]).finish();
    let pid = read(&started.expect_success().stdout)["pid"].clone();
    let logs = |more: &[&str]| {
        let arguments = ["logs", "--json"].into_iter().chain(more.iter().copied()).chain(["box", "job"]);
        read(&server.cove(arguments).finish().expect_success().stdout)
    };
    let running = cove_testkit::wait::until_some("its first words", cove_testkit::wait::LIMIT, || {
        Some(logs(&[])).filter(|told| told["stdout"] == "begun\n")
    });
    assert_eq!((&running["running"], &running["exit_code"], &running["pid"]), (&json!(true), &Value::Null, &pid));
    assert_eq!(running["tag"], "job");
    server.cove(["exec", "box", "--", "sh", "-c", "echo go > /tmp/go"]).finish().expect_success();
    let ended = logs(&["--follow"]);
    assert_eq!((&ended["running"], &ended["exit_code"]), (&json!(false), &json!(3)));
    assert_eq!(ended["stdout"], "begun\nended\n");
}

#[test]
fn a_copy_tells_where_it_went_and_how_much_it_was() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("folder");
    std::fs::create_dir_all(folder.join("deep")).unwrap();
    std::fs::write(folder.join("deep/one"), "12345").unwrap();
    std::fs::write(folder.join("two"), "123").unwrap();
    let copy = |from: &str, to: &str| read(&server.cove(["cp", "--json", from, to]).finish().expect_success().stdout);
    let two = folder.join("two");
    let into = copy(two.to_str().unwrap(), "box:/tmp/");
    assert_eq!((&into["to"], &into["files"], &into["bytes"]), (&json!("box:/tmp/two"), &json!(1), &json!(3)));
    let whole = copy(folder.to_str().unwrap(), "box:work");
    assert_eq!((&whole["to"], &whole["files"]), (&json!("box:work"), &Value::Null));
    assert!(whole["bytes"].as_u64() >= Some(8), "{whole}");
    let back = folder.with_file_name("back");
    let out = copy("box:work", back.to_str().unwrap());
    assert_eq!((&out["files"], &out["bytes"]), (&json!(2), &json!(8)), "{out}");
    assert_eq!(out["to"], back.to_str().unwrap());
    let refused = server.cove(["cp", "--json", "box:/tmp/two", "-"]).finish().expect_code(2);
    assert!(refused.stderr.contains("hint: "), "{}", refused.stderr);
}
