//! Verbs in a real terminal, against a real server: what a person types and sees.

use std::time::Duration;

use cove_testkit::{Terminal, TestServer};
use serde_json::Value;

fn in_terminal(server: &TestServer, arguments: &[&str]) -> Terminal {
    let url = format!("COVE_URL={}", server.url());
    let key = format!("COVE_API_KEY={}", server.key());
    let program = cove_testkit::program::cove_path();
    let mut argv = vec!["env".to_owned(), url, key, program.to_str().unwrap().to_owned()];
    argv.extend(arguments.iter().map(|&argument| argument.to_owned()));
    Terminal::start(&server.data(), argv)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn a_shell_is_a_real_one_and_leaves_the_terminal_as_it_was() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let mut shell = in_terminal(&server, &["shell", "box"]);
    shell.waits_for_raw_mode();
    shell.types("tty; stty size; echo who-$(id -un)\r");
    shell.sees("/dev/pts/");
    shell.sees("24 80");
    shell.sees("who-user");
    shell.types("echo begin-$((1+1)); sleep 600\r");
    shell.sees("begin-2");
    shell.types("\x03");
    shell.types("echo code-$?-\r");
    shell.sees("code-130-");
    shell.types("exit 9\r");
    assert_eq!(shell.ends(), 9);
    assert!(shell.is_cooked());
    // Without a terminal there is no shell, and a hint says what to do instead.
    let refused = server.cove(["shell", "box"]).finish().expect_code(2);
    assert!(refused.stderr.contains("hint: cove exec box -- "), "{}", refused.stderr);
}

#[test]
fn a_command_gets_a_terminal_of_the_right_size_and_its_changes() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let mut command = in_terminal(&server, &["exec", "-it", "box", "--", "bash", "--norc"]);
    command.waits_for_raw_mode();
    command.types("trap 'echo now:$(stty size):' WINCH; echo set-$((1+1))\r");
    command.sees("set-2");
    command.resize(50, 132);
    command.types("\r");
    command.sees("now:50 132:");
    command.types("exit 3\r");
    assert_eq!(command.ends(), 3);
    assert!(command.is_cooked());
}

#[test]
fn logs_tell_what_a_process_said_and_follow_it_to_its_end() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let nothing = server.cove(["logs", "box"]).finish().expect_code(1);
    assert!(nothing.stderr.contains("nothing has been started in box"), "{}", nothing.stderr);
    let line = "echo one; read go < /tmp/gate; echo two >&2; exit 5";
    server.cove(["exec", "box", "--", "mkfifo", "-m", "666", "/tmp/gate"]).finish().expect_success();
    server.cove(["exec", "-d", "--tag", "job", "box", "--", "sh", "-c", line]).finish().expect_success();
    let mut follower = server.cove(["logs", "--follow", "box", "job"]).spawn();
    cove_testkit::wait::until("the first line", Duration::from_secs(20), || {
        server.cove(["logs", "box", "job"]).finish().expect_success().stdout == "one\n"
    });
    server.cove(["exec", "box", "--", "sh", "-c", "echo go > /tmp/gate"]).finish().expect_success();
    let followed = follower.finish().expect_success();
    assert_eq!((followed.stdout.as_str(), followed.stderr.as_str()), ("one\n", "two\n"));
    let missing = server.cove(["logs", "box", "nobody"]).finish().expect_code(1);
    assert!(missing.stderr.contains("there is no process `nobody` in box"), "{}", missing.stderr);
}

#[test]
fn events_are_listed_newest_last_and_followed_as_they_happen() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let mut follower = in_terminal(&server, &["events", "--follow", "--sandbox", "box"]);
    // It may come between a stop and its start. Later events come in their order.
    cove_testkit::wait::until("the follower hears", Duration::from_secs(20), || {
        server.cove(["stop", "box"]).finish().expect_success();
        server.cove(["start", "box"]).finish().expect_success();
        follower.screen().contains("sandbox.stopped")
    });
    follower.sees("sandbox.stopped");
    follower.sees("sandbox.started");
    follower.types("\x03");
    assert_eq!(follower.ends(), 130);
    let two = server.cove(["events", "-n", "2"]).finish().expect_success().stdout;
    let kinds: Vec<&str> = two.lines().map(|line| line.split_whitespace().nth(3).unwrap()).collect();
    assert_eq!(kinds, ["sandbox.stopped", "sandbox.started"], "{two}");
    let all = json(&server.cove(["events", "--json"]).finish().expect_success().stdout);
    assert_eq!(all[0]["kind"], "sandbox.created");
}

#[test]
fn top_draws_what_runs_again_and_again_until_it_is_interrupted() {
    let server = TestServer::start();
    let empty = server.cove(["top"]).finish().expect_success();
    assert_eq!(empty.stdout, "no sandbox runs\n");
    server.cove(["create", "--name", "busy"]).finish().expect_success();
    server.cove(["exec", "-d", "busy", "--", "sh", "-c", "while :; do :; done"]).finish().expect_success();
    let mut top = in_terminal(&server, &["top"]);
    top.sees("SANDBOX");
    top.sees("busy");
    // Drawn in place, and again.
    top.sees("\x1b[H\x1b[J");
    top.sees("busy");
    top.types("\x03");
    assert_eq!(top.ends(), 130);
    assert!(top.is_cooked());
    let once = json(&server.cove(["top", "--json"]).finish().expect_success().stdout);
    assert_eq!((&once[0]["name"], once[0]["usage"]["processes"].as_u64() > Some(1)), (&"busy".into(), true), "{once}");
}

#[test]
fn keys_are_made_shown_and_revoked() {
    let server = TestServer::start();
    let made = server.cove(["keys", "create", "ci", "--scope", "read", "--expires", "1h"]).finish().expect_success();
    assert!(made.stderr.contains("hint: store it now"), "{}", made.stderr);
    let secret = made.stdout.trim().to_owned();
    let listed = server.cove(["ls"]).env("COVE_API_KEY", &secret).finish();
    listed.expect_success();
    let refused = server.cove(["create"]).env("COVE_API_KEY", &secret).finish().expect_code(1);
    assert!(refused.stderr.contains("this needs a key with scope write"), "{}", refused.stderr);
    let keys = server.cove(["keys", "ls"]).finish().expect_success().stdout;
    let line = keys.lines().find(|line| line.contains(" ci ")).unwrap_or_else(|| panic!("no ci in\n{keys}"));
    assert!(line.contains("read") && line.ends_with("valid") && !keys.contains(&secret), "{keys}");
    let id = line.split_whitespace().next().unwrap();
    server.cove(["keys", "revoke", id]).finish().expect_success();
    let refused = server.cove(["ls"]).env("COVE_API_KEY", &secret).finish().expect_code(1);
    assert!(refused.stderr.contains("hint: COVE_API_KEY is the key of another server"), "{}", refused.stderr);
    assert!(server.cove(["keys", "ls"]).finish().expect_success().stdout.contains("revoked"));
    let made = json(&server.cove(["keys", "create", "x", "--json"]).finish().expect_success().stdout);
    assert!(made["secret"].as_str().unwrap().starts_with("e2b_"));
}

#[test]
fn a_lifetime_is_given_and_taken_and_a_state_is_explained() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let given = server.cove(["extend", "box", "2h"]).finish().expect_success().stdout;
    assert!(given.starts_with("box ends 20") && given.ends_with(" UTC\n"), "{given}");
    let shown = json(&server.cove(["extend", "box", "3h", "--json"]).finish().expect_success().stdout);
    assert!(shown["timers"]["deadline"].is_string());
    assert_eq!(server.cove(["extend", "box", "never"]).finish().expect_success().stdout, "box never ends\n");
    let wrong = server.cove(["extend", "box", "soon"]).finish().expect_code(2);
    assert!(wrong.stderr.contains("hint: "), "{}", wrong.stderr);
    let told = server.cove(["explain", "box"]).finish().expect_success().stdout;
    assert!(told.starts_with("box is running: a new sandbox was asked for\n  running since "), "{told}");
    server.cove(["stop", "box"]).finish().expect_success();
    let told = server.cove(["explain", "box"]).finish().expect_success().stdout;
    assert!(told.starts_with("box is stopped: a stop was asked for\n") && told.contains("hint: "), "{told}");
    let whole = json(&server.cove(["explain", "box", "--json"]).finish().expect_success().stdout);
    assert_eq!(whole["cause"]["code"], "requested");
}

#[test]
fn changes_are_told_as_json_too() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("start", "running")] {
        let told = json(&server.cove([verb, "box", "--json"]).finish().expect_success().stdout);
        assert_eq!((&told["name"], &told["state"]), (&"box".into(), &state.into()), "{verb}");
    }
    let told = json(&server.cove(["rm", "box", "--json"]).finish().expect_success().stdout);
    assert_eq!(told["state"], "destroyed");
}

#[test]
fn long_work_shows_progress_on_a_terminal_and_nowhere_else() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    // A process that does not end on SIGTERM makes the stop take its grace.
    let stubborn = "trap '' TERM; echo up; while :; do sleep 1; done";
    server.cove(["exec", "-d", "--tag", "s", "box", "--", "sh", "-c", stubborn]).finish().expect_success();
    cove_testkit::wait::until("it is up", Duration::from_secs(20), || {
        server.cove(["logs", "box", "s"]).finish().expect_success().stdout == "up\n"
    });
    let mut stop = in_terminal(&server, &["stop", "box"]);
    stop.sees("stop box (");
    stop.sees("box stopped");
    assert_eq!(stop.ends(), 0);
    let quiet = server.cove(["start", "box"]).finish().expect_success();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("box running\n", ""));
}

#[test]
fn completions_know_the_verbs() {
    let place = cove_testkit::server::TestDirectory::new();
    // Bash itself takes the script and offers the verb.
    let script = place.cove(["completions", "bash"]).finish().expect_success().stdout;
    let asks = format!(
        "{script}\nCOMP_WORDS=(cove ext); COMP_CWORD=1; _clap_complete_cove cove ext cove; echo \"${{COMPREPLY[@]}}\""
    );
    let said = std::process::Command::new("bash").args(["--norc", "-c", &asks]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "extend");
}
