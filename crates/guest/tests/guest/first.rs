//! The guest as PID 1, against what lives in its sandbox.

use cove_protocol::process::{Selector, Spec, Stdio};
use cove_protocol::{Reply, Request};

use crate::client::{Guest, argv};

fn still_serves(guest: &Guest) {
    assert!(matches!(guest.call(&Request::Ping), Ok(Reply::Pong { .. })));
}

#[test]
fn cannot_be_ended_by_signals_from_inside() {
    let mut guest = Guest::start_as_first();
    let script =
        "for s in TERM INT KILL STOP SEGV ABRT BUS FPE ILL QUIT USR1 USR2 ALRM PIPE HUP CHLD TSTP; do kill -$s 1; done";
    guest.run(argv(&["bash", "-c", script]));
    still_serves(&guest);
    assert!(guest.is_running());
}

#[test]
fn the_host_can_end_it_by_a_signal() {
    let mut guest = Guest::start_as_first();
    let (_, _host) = guest.spawn(argv(&["sleep", "1000"]));
    // The child of the program that made the namespace.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.pid())).unwrap();
    let first = children.split_whitespace().next().unwrap();
    assert!(std::process::Command::new("kill").args(["-TERM", first]).status().unwrap().success());
    assert_eq!(guest.ended(), Some(0));
}

#[test]
fn cannot_be_signalled_traced_or_read_by_another_user() {
    let guest = Guest::start_as_first();
    let script =
        "kill -TERM 1; kill -0 1; cat /proc/1/environ; head -c 1 /proc/1/mem; ls /proc/1/fd; readlink /proc/1/exe";
    let seen = guest.run(Spec { user: Some("nobody".into()), ..argv(&["bash", "-c", script]) });
    assert_eq!(seen.out(), "", "{}", seen.err());
    assert_eq!(seen.err().matches("not permitted").count(), 2, "{}", seen.err());
    assert_eq!(seen.err().to_lowercase().matches("permission denied").count(), 3, "{}", seen.err());
    still_serves(&guest);
}

#[test]
fn cannot_be_held_up_by_a_user_that_stops_newborn_processes() {
    let guest = Guest::start_as_first();
    let sprayer = "import os, signal\nme = os.getpid()\nprint('ready', flush=True)\nlast = me\nwhile True:\n  for pid in range(last, last + 12):\n    if pid != me:\n      try:\n        os.kill(pid, signal.SIGSTOP); last = max(last, pid)\n      except OSError: pass";
    let (_, mut host) = guest.spawn(Spec { user: Some("nobody".into()), ..argv(&["python3", "-c", sprayer]) });
    host.until(|seen| seen.out() == "ready\n");
    for _ in 0..200 {
        let spec = Spec { user: Some("nobody".into()), stdio: Stdio::Closed, ..argv(&["/bin/true"]) };
        let (pid, _host) = guest.spawn(spec);
        // Stopped after its start it may be; killed it can be.
        let _ = guest.call(&Request::Signal { process: Selector::Pid(pid), signal: 9, group: true });
        guest.wait_for(Selector::Pid(pid));
    }
    still_serves(&guest);
}

#[test]
fn shutdown_reaches_what_has_left_its_group_and_session() {
    let mut guest = Guest::start_as_first();
    let mark = guest.path("mark");
    let script = format!(
        "setsid setsid sh -c 'trap \"echo bye > {mark}; exit\" TERM; echo up; while :; do sleep 0.01; done' & wait"
    );
    let (_, mut host) = guest.spawn(argv(&["sh", "-c", &script]));
    host.until(|seen| seen.out() == "up\n");
    assert_eq!(guest.call(&Request::Shutdown { grace_ms: 5000 }), Ok(Reply::Done));
    assert_eq!(guest.ended(), Some(0));
    assert_eq!(std::fs::read_to_string(mark).unwrap(), "bye\n");
}

#[test]
fn the_guest_is_the_last_to_be_killed_for_memory() {
    let guest = Guest::start_as_first();
    let seen = guest.run(argv(&["sh", "-c", "cat /proc/1/oom_score_adj /proc/self/oom_score_adj"]));
    let scores: Vec<i32> = seen.out().lines().map(|line| line.parse().unwrap()).collect();
    assert!(scores[0] < scores[1], "{scores:?}");
}
