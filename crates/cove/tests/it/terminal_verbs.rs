//! Verbs in a real terminal, against a real server: what a person types and sees.

use std::io::Read;
use std::time::Duration;

use cove_testkit::{Terminal, TestServer};
use rustix::process::Signal;
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

/// Tells the size of its terminal now and with each SIGWINCH; ends with the code that is typed.
pub const TELLS_SIZES: &str = "import os, signal, sys
def tell(*_):
    size = os.get_terminal_size(0)
    os.write(1, f'now:{size.lines} {size.columns}:\\n'.encode())
signal.signal(signal.SIGWINCH, tell)
tell()
sys.exit(int(sys.stdin.readline()))";

#[test]
fn a_command_gets_a_terminal_of_the_right_size_and_its_changes() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    // Not a trap of bash: it waits for the next key where the signal comes as bash begins to read, and a signal that comes
    // during the trap is forgotten.
    let mut command = in_terminal(&server, &["exec", "-it", "box", "--", "python3", "-c", TELLS_SIZES]);
    command.sees("now:24 80:");
    for (rows, columns) in [(50, 132), (30, 100)] {
        command.resize(rows, columns);
        command.sees(&format!("now:{rows} {columns}:"));
    }
    command.types("3\r");
    assert_eq!(command.ends(), 3);
    assert!(command.is_cooked());
}

/// It changes at any moment between the start of the program and that of the command.
#[test]
fn a_size_that_changes_while_a_command_starts_is_not_lost() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let script = "until [ \"$(stty size)\" = '50 132' ]; do sleep 0.05; done; echo right";
    for pause in [0, 20, 50, 100, 200] {
        let mut command = in_terminal(&server, &["exec", "-it", "box", "--", "sh", "-c", script]);
        std::thread::sleep(Duration::from_millis(pause));
        command.resize(50, 132);
        command.sees("right");
        assert_eq!(command.ends(), 0, "after {pause} ms");
    }
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
    // Who only watches ends the watching alone: a signal, and a reader that goes away.
    let line = "while :; do echo tick; sleep 0.1; done";
    server.cove(["exec", "-d", "--tag", "clock", "box", "--", "sh", "-c", line]).finish().expect_success();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let mut watcher = server.cove(["logs", "--follow", "box", "clock"]).spawn();
        let mut first = [0; 5];
        watcher.child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        watcher.signal(signal);
        assert_eq!(watcher.finish().code, 128 + signal.as_raw(), "{signal:?}");
    }
    let mut watcher = server.cove(["logs", "--follow", "box", "clock"]).spawn();
    drop(watcher.child.stdout.take());
    assert_eq!(watcher.child.wait().unwrap().code(), Some(0), "as the other verbs end when their reader is gone");
    let running = || json(&server.cove(["logs", "--json", "box", "clock"]).finish().expect_success().stdout);
    assert_eq!(running()["running"], true, "{}", running());
    server.cove(["create", "--name", "gone"]).finish().expect_success();
    server.cove(["stop", "gone"]).finish().expect_success();
    let gone = server.cove(["logs", "gone"]).finish().expect_code(1);
    assert!(gone.stderr.contains("what they said with them") && !gone.stderr.contains("cove start"), "{gone:?}");
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
    // An administrator cannot lock the operator out, and an operator can have a second key.
    let admin = server.cove(["keys", "create", "adm", "--scope", "admin"]).finish().expect_success().stdout;
    let first = json(&server.cove(["whoami", "--json"]).finish().expect_success().stdout);
    let first = first["key"].as_str().unwrap();
    let last = server.cove(["keys", "revoke", first]).finish().expect_code(1);
    assert!(last.stderr.contains("is the last operator key") && last.stderr.contains("cove keys rotate"), "{last:?}");
    let revoke = server.cove(["keys", "revoke", first]).env("COVE_API_KEY", admin.trim()).finish().expect_code(1);
    assert!(revoke.stderr.contains("this needs a key with scope operator"), "{}", revoke.stderr);
    let make =
        |key: &str| server.cove(["keys", "create", "op", "--scope", "operator"]).env("COVE_API_KEY", key).finish();
    make(admin.trim()).expect_code(1);
    let second = make(server.key()).expect_success().stdout;
    server.cove(["orgs", "ls"]).env("COVE_API_KEY", second.trim()).finish().expect_success();
    let spare = ["keys", "create", "spare", "--scope", "operator", "--json"];
    let spare = json(&server.cove(spare).finish().expect_success().stdout);
    server.cove(["keys", "revoke", spare["id"].as_str().unwrap()]).finish().expect_success();
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
    // What is gone is asked for by the name that it had.
    server.cove(["rm", "box"]).finish().expect_success();
    let told = server.cove(["explain", "box"]).finish().expect_success().stdout;
    assert!(told.starts_with("box is destroyed: "), "{told}");
    let events = server.cove(["events", "--sandbox", "box"]).finish().expect_success().stdout;
    assert!(events.contains("sandbox.created") && events.contains("sandbox.destroyed"), "{events}");
    assert!(server.cove(["usage", "box"]).finish().expect_success().stdout.contains("box "));
    for verb in [["explain", "nobody"].as_slice(), &["events", "--sandbox", "nobody"], &["usage", "nobody"]] {
        let missing = server.cove(verb.iter().copied()).finish().expect_code(1);
        assert!(missing.stderr.contains("nobody does not exist"), "{verb:?}: {}", missing.stderr);
    }
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
