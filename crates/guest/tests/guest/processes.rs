use std::time::{Duration, Instant};

use cove_protocol::process::{OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{Control, FailureKind, Kind, Reply, Request};

use crate::client::{Guest, argv, is_alive, shell, wait_until};

fn list(guest: &Guest) -> Vec<cove_protocol::process::Info> {
    match guest.call(&Request::Processes) {
        Ok(Reply::Processes { processes }) => processes,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ping_is_answered_with_the_protocol_version() {
    let guest = Guest::start();
    let reply = guest.call(&Request::Ping).unwrap();
    assert!(matches!(reply, Reply::Pong { version: cove_protocol::VERSION, .. }), "{reply:?}");
}

#[test]
fn output_and_error_are_separate_and_the_exit_code_is_told() {
    let seen = Guest::start().shell("echo out; echo err >&2; exit 3");
    assert_eq!((seen.out().as_str(), seen.err().as_str(), seen.code()), ("out\n", "err\n", Some(3)));
}

#[test]
fn a_signal_that_ended_it_is_told() {
    let seen = Guest::start().run(argv(&["sh", "-c", "kill -TERM $$"]));
    assert_eq!((seen.exit.unwrap().code, seen.exit.unwrap().signal), (None, Some(15)));
    assert_eq!(seen.exit.unwrap().status(), 143);
}

#[test]
fn it_sees_its_environment_directory_and_arguments_and_nothing_of_the_guest() {
    let guest = Guest::start_with(r#"{"env":{"SANDBOX":"yes","BOTH":"sandbox"}}"#, &[]);
    let mut spec = argv(&["sh", "-c", "pwd; env; ls /proc/self/fd; umask; grep -E 'SigBlk|SigIgn' /proc/self/status"]);
    spec.cwd = Some("/usr".into());
    spec.env = [("BOTH".into(), "process".into())].into();
    let out = guest.run(spec).out();
    assert!(out.starts_with("/usr\n"), "{out}");
    assert!(out.contains("SANDBOX=yes") && out.contains("BOTH=process") && out.contains("HOME=/root"), "{out}");
    assert!(!out.contains("COVE_GUEST"), "{out}");
    // Descriptors 0 to 2, and the one `ls` reads the list with.
    assert!(out.contains("\n0\n1\n2\n3\n"), "{out}");
    assert!(!out.contains("\n4\n"), "{out}");
    assert!(out.contains("0022"), "{out}");
    assert!(out.contains("SigBlk:\t0000000000000000") && out.contains("SigIgn:\t0000000000000000"), "{out}");
}

#[test]
fn configure_changes_what_later_processes_inherit() {
    let guest = Guest::start();
    let configure = Request::Configure {
        env: Some([("COLOUR".into(), "blue".into())].into()),
        default_user: None,
        default_cwd: Some("/usr/lib".into()),
    };
    assert_eq!(guest.call(&configure), Ok(Reply::Done));
    assert_eq!(guest.shell("pwd; echo $COLOUR").out(), "/usr/lib\nblue\n");
}

#[test]
fn a_default_working_folder_that_is_missing_is_made() {
    let guest = Guest::start();
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("not/there").display().to_string();
    let configure = Request::Configure { env: None, default_user: None, default_cwd: Some(folder.clone()) };
    assert_eq!(guest.call(&configure), Ok(Reply::Done));
    assert_eq!(guest.shell("pwd").out(), format!("{folder}\n"));
    assert_eq!(guest.shell("stat -c %a . ..").out(), "755\n755\n", "nobody else writes there");
}

#[test]
fn a_program_or_directory_or_user_that_is_not_there_is_named() {
    let guest = Guest::start();
    let failure = guest.call(&Request::Start(argv(&["no-such-program"]))).unwrap_err();
    assert_eq!(
        (failure.kind, failure.message.as_str()),
        (FailureKind::NotFound, "run no-such-program: no such file or directory")
    );
    let failure = guest.call(&Request::Start(argv(&["/etc/passwd"]))).unwrap_err();
    assert_eq!(
        (failure.kind, failure.message.as_str()),
        (FailureKind::PermissionDenied, "run /etc/passwd: permission denied")
    );
    let failure = guest.call(&Request::Start(Spec { cwd: Some("/no/where".into()), ..argv(&["true"]) })).unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotFound);
    assert!(failure.message.contains("/no/where"), "{failure}");
    let failure = guest.call(&Request::Start(Spec { user: Some("mallory".into()), ..argv(&["true"]) })).unwrap_err();
    assert_eq!(failure.kind, FailureKind::UnknownUser);
    assert!(failure.message.contains("mallory"), "{failure}");
    let failure = guest.call(&Request::Start(argv(&[]))).unwrap_err();
    assert_eq!(failure.kind, FailureKind::InvalidArgument);
}

#[test]
fn it_runs_as_the_user_asked_for_with_that_users_groups_and_no_rights_left() {
    let guest = Guest::start();
    let script = "id -u; id -g; id -G; cat /etc/shadow; grep CapEff /proc/self/status; cat /proc/self/oom_score_adj";
    let seen = guest.run(Spec { user: Some("nobody".into()), ..argv(&["sh", "-c", script]) });
    let out = seen.out();
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(&lines[..3], ["65534", "65534", "65534"], "{out}");
    assert!(seen.err().contains("/etc/shadow: Permission denied"), "{}", seen.err());
    assert!(lines[3].ends_with("0000000000000000"), "{out}");
    assert!(lines[4].parse::<i32>().unwrap() >= 500, "{out}");
    assert_eq!(
        guest.run(Spec { user: Some("1234:99".into()), ..argv(&["sh", "-c", "id -u; id -g"]) }).out(),
        "1234\n99\n"
    );
}

#[test]
fn input_reaches_the_process_and_its_end_does_too() {
    let guest = Guest::start();
    let (_, mut host) = guest.spawn(Spec { stdio: Stdio::Piped, ..argv(&["sha256sum"]) });
    for _ in 0..300 {
        host.stdin(&[b'x'; 10_000]);
    }
    host.end();
    // sha256 of three million times `x`.
    let expected = guest.shell("head -c 3000000 /dev/zero | tr '\\0' x | sha256sum").out();
    assert_eq!(host.rest().out(), expected);
}

#[test]
fn without_input_the_process_reads_nothing_and_ends() {
    assert_eq!(Guest::start().run(argv(&["cat"])).code(), Some(0));
}

#[test]
fn input_signals_and_the_end_can_come_from_other_connections() {
    let guest = Guest::start();
    let (pid, mut host) = guest.spawn(Spec { stdio: Stdio::Piped, tag: Some("cat".into()), ..argv(&["cat"]) });
    let mut other = guest.send(&Request::Input { process: Selector::Tag("cat".into()) });
    other.stdin(b"from elsewhere");
    other.end();
    assert_eq!(other.reply(), Ok(Reply::Done));
    host.until(|seen| seen.stdout == b"from elsewhere");
    let process = Selector::Pid(pid);
    assert_eq!(guest.call(&Request::CloseStdin { process: process.clone() }), Ok(Reply::Done));
    assert_eq!(guest.call(&Request::CloseStdin { process: process.clone() }), Ok(Reply::Done));
    assert_eq!(host.rest().code(), Some(0));
    let failure = guest.call(&Request::Input { process: process.clone() }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::WrongState);
    let failure = guest.call(&Request::Signal { process, signal: 15, group: false }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::WrongState);
}

#[test]
fn a_signal_reaches_the_process_or_its_whole_group() {
    let guest = Guest::start();
    let (pid, mut host) = guest.spawn(argv(&["sh", "-c", "sleep 1000 & echo $!; wait"]));
    let child: u32 = host.until(|seen| seen.stdout.ends_with(b"\n")).out().trim().parse().unwrap();
    let signal = Request::Signal { process: Selector::Pid(pid), signal: 9, group: true };
    assert_eq!(guest.call(&signal), Ok(Reply::Done));
    assert_eq!(host.rest().exit.unwrap().signal, Some(9));
    wait_until("the child is gone", || !is_alive(child));
    let (pid, mut host) = guest.spawn(argv(&["sleep", "1000"]));
    host.control(&Control::Signal { signal: 15, group: false });
    assert_eq!(host.rest().exit.unwrap().signal, Some(15));
    assert!(!is_alive(pid), "the dead are reaped");
    let bad = Request::Signal { process: Selector::Pid(999_999_999), signal: 15, group: false };
    assert_eq!(guest.call(&bad).unwrap_err().kind, FailureKind::NotFound);
}

#[test]
fn it_leads_neither_a_session_nor_a_group_and_setsid_is_waited_for() {
    let guest = Guest::start();
    // setsid(1) forks where its caller leads a group, and the fork would be nobody's to wait for.
    let seen = guest.run(argv(&["setsid", "sh", "-c", "sleep 0.3; echo done; exit 3"]));
    assert_eq!((seen.out().as_str(), seen.code()), ("done\n", Some(3)));
    let seen = guest.run(argv(&["sh", "-c", "cut -d' ' -f1,5,6 /proc/$$/stat; echo $$"]));
    let out = seen.out();
    let [pid, group, session, own] = out.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{out}") };
    assert_eq!(pid, own);
    assert!(group != own && session != own, "{out}");
    let (reply, mut terminal) = guest.open(&Request::Start(Spec {
        stdio: Stdio::Terminal(cove_protocol::process::TerminalSize { rows: 24, columns: 80 }),
        ..argv(&["sh", "-c", "test $(cut -d' ' -f6 /proc/$$/stat) = $$"])
    }));
    assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
    assert_eq!(terminal.rest().code(), Some(0), "a terminal needs a session");
}

#[test]
fn a_process_that_left_its_group_is_killed_with_the_group_it_made() {
    let guest = Guest::start();
    let line = "exec setsid sh -c 'sleep 1000 & echo $!; wait'";
    let (pid, mut host) = guest.spawn(argv(&["sh", "-c", line]));
    let child: u32 = host.until(|seen| seen.out().contains('\n')).out().trim().parse().unwrap();
    assert!(is_alive(child));
    guest.call(&Request::Signal { process: Selector::Pid(pid), signal: 9, group: true }).unwrap();
    assert_eq!(host.rest().exit.unwrap().signal, Some(9));
    wait_until("the child is gone too", || !is_alive(child));
}

#[test]
fn a_timeout_kills_the_whole_group_and_says_so() {
    let guest = Guest::start();
    let mut spec = argv(&["sh", "-c", "sleep 1000 & echo $!; wait"]);
    spec.timeout_ms = Some(200);
    let begun = Instant::now();
    let seen = guest.run(spec);
    assert!(begun.elapsed() >= Duration::from_millis(200));
    let exit = seen.exit.unwrap();
    assert!(exit.timed_out && exit.signal == Some(9), "{exit:?}");
    let child: u32 = seen.out().trim().parse().unwrap();
    wait_until("the child is gone", || !is_alive(child));
}

#[test]
fn a_lost_connection_is_taken_up_again_where_it_broke() {
    let guest = Guest::start();
    let go = guest.path("go");
    let script = format!("echo one; echo two >&2; while [ ! -e {go} ]; do sleep 0.01; done; echo three");
    let (pid, mut host) = guest.spawn(argv(&["sh", "-c", &script]));
    host.until(|seen| seen.stdout.len() + seen.stderr.len() == 8);
    drop(host);
    let (reply, mut host) = guest.open(&Request::Attach { process: Selector::Pid(pid), from: Some(4) });
    assert_eq!(reply, Reply::Started { pid, output_start: 4 });
    std::fs::write(&go, "").unwrap();
    let seen = host.rest();
    assert_eq!((seen.out().as_str(), seen.err().as_str(), seen.code()), ("three\n", "two\n", Some(0)));
    // Finished, and still all there for who comes late.
    let (_, mut late) = guest.open(&Request::Attach { process: Selector::Pid(pid), from: Some(0) });
    let seen = late.rest();
    assert_eq!((seen.out().as_str(), seen.err().as_str(), seen.code()), ("one\nthree\n", "two\n", Some(0)));
    assert_eq!(guest.wait_for(Selector::Pid(pid)).code, Some(0));
    let info = list(&guest).into_iter().find(|info| info.pid == pid).unwrap();
    assert_eq!((info.output_start, info.output_end, info.exit.unwrap().code), (0, 14, Some(0)));
    assert_eq!(guest.call(&Request::Forget { process: Selector::Pid(pid) }), Ok(Reply::Done));
    let failure = guest.call(&Request::Attach { process: Selector::Pid(pid), from: None }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::NotFound);
}

#[test]
fn several_readers_see_the_same() {
    let guest = Guest::start();
    let (pid, mut first) = guest.spawn(Spec { stdio: Stdio::Piped, ..argv(&["cat"]) });
    let mut others: Vec<_> =
        (0..5).map(|_| guest.open(&Request::Attach { process: Selector::Pid(pid), from: Some(0) }).1).collect();
    let text = "all for one ".repeat(50_000);
    for chunk in text.as_bytes().chunks(60_000) {
        first.stdin(chunk);
        others.iter_mut().for_each(|other| {
            other.until(|seen| seen.stdout.len() >= chunk.len());
        });
        first.until(|seen| seen.stdout.len() >= chunk.len());
    }
    first.end();
    assert_eq!(first.rest().code(), Some(0));
    assert!(others.iter_mut().all(|other| other.rest().code() == Some(0)));
}

#[test]
fn the_newest_bearer_of_a_tag_answers() {
    let guest = Guest::start();
    let tagged = |code| Spec { tag: Some("job".into()), ..argv(&["sh", "-c", &format!("exit {code}")]) };
    guest.run(tagged(1));
    guest.run(tagged(2));
    assert_eq!(guest.wait_for(Selector::Tag("job".into())).code, Some(2));
    assert_eq!(
        guest.call(&Request::Wait { process: Selector::Tag("none".into()) }).unwrap_err().kind,
        FailureKind::NotFound
    );
}

#[test]
fn a_process_dies_with_its_connection_only_where_that_was_asked_for() {
    let guest = Guest::start();
    let (mortal, host) = guest.spawn(Spec { on_disconnect: OnDisconnect::Kill, ..argv(&["sleep", "1000"]) });
    let (other, keeper) = guest.spawn(argv(&["sleep", "1000"]));
    drop(host);
    drop(keeper);
    assert_eq!(guest.wait_for(Selector::Pid(mortal)).signal, Some(9));
    assert!(is_alive(other));
    assert_eq!(
        guest.call(&Request::Forget { process: Selector::Pid(other) }).unwrap_err().kind,
        FailureKind::WrongState
    );
}

#[test]
fn a_daemon_left_behind_neither_delays_the_exit_nor_dies_of_it() {
    let guest = Guest::start();
    let begun = Instant::now();
    let go = guest.path("go");
    let done = guest.path("done");
    let line = format!("(while [ ! -e {go} ]; do sleep 0.01; done; echo still here; echo yes > {done}) & echo started");
    let seen = guest.run(argv(&["sh", "-c", &line]));
    assert_eq!((seen.out().as_str(), seen.code()), ("started\n", Some(0)));
    assert!(begun.elapsed() < Duration::from_secs(20));
    std::fs::write(&go, "").unwrap();
    wait_until("the daemon has written without a broken pipe", || {
        std::fs::read(&done).is_ok_and(|text| text == b"yes\n")
    });
}

#[test]
fn a_slow_reader_loses_nothing_and_the_process_waits_for_it() {
    let guest = Guest::start();
    let (pid, mut host) = guest.spawn(argv(&["sh", "-c", "head -c 30000000 /dev/zero; echo end >&2"]));
    // Not a byte is read until the process has filled all there is and waits.
    let end = |guest: &Guest| list(guest).iter().find(|info| info.pid == pid).unwrap().output_end;
    wait_until("the process waits", || {
        let before = end(&guest);
        std::thread::sleep(Duration::from_millis(100));
        before > 500_000 && end(&guest) == before
    });
    assert!(end(&guest) < 2_000_000);
    let seen = host.rest();
    assert_eq!((seen.stdout.len(), seen.err().as_str(), seen.lost), (30_000_000, "end\n", 0));
}

#[test]
fn endless_output_without_a_reader_is_bounded_and_what_was_lost_is_told() {
    let guest = Guest::start();
    let mut jobs = Vec::new();
    for _ in 0..6 {
        let (pid, host) = guest.spawn(argv(&["sh", "-c", "yes | head -c 50000000; echo >&2; exec sleep 1000"]));
        drop(host);
        jobs.push(pid);
    }
    wait_until("all is written", || list(&guest).iter().filter(|info| info.output_end == 50_000_001).count() == 6);
    let resident = guest.status("VmRSS");
    assert!(resident < 40_000, "{resident} KiB");
    let kept: u64 = list(&guest).iter().map(|info| info.output_end - info.output_start).sum();
    assert!((1 << 20..=16 << 20).contains(&kept), "{kept}");
    let (_, mut host) = guest.open(&Request::Attach { process: Selector::Pid(jobs[5]), from: Some(0) });
    let seen = host.until(|seen| seen.lost + (seen.stdout.len() + seen.stderr.len()) as u64 >= 50_000_001);
    assert!(seen.lost > 40_000_000);
    assert_eq!(seen.lost + (seen.stdout.len() + seen.stderr.len()) as u64, 50_000_001);
}

#[test]
fn thousands_of_short_processes_leave_nothing_behind() {
    let guest = Guest::start();
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let guest = &guest;
            scope.spawn(move || {
                for turn in 0..500 {
                    let seen = guest.run(argv(&["/bin/echo", &format!("{worker} {turn}")]));
                    assert_eq!((seen.out(), seen.code()), (format!("{worker} {turn}\n"), Some(0)));
                }
            });
        }
    });
    // And as many orphans that nobody asked for: the guest is the parent of the parentless.
    for _ in 0..8 {
        let seen = guest.run(argv(&["bash", "-c", "for i in {1..1000}; do (true &) ; done; echo done"]));
        assert_eq!(seen.out(), "done\n");
    }
    wait_until("no zombie is left", || {
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", guest.pid())).unwrap();
        children.trim().is_empty()
    });
    assert!(list(&guest).len() <= 256);
    // The thread of the last connection ends a moment after its answer.
    wait_until("one thread is left", || std::fs::read_dir(format!("/proc/{}/task", guest.pid())).unwrap().count() == 1);
    let files = std::fs::read_dir(format!("/proc/{}/fd", guest.pid())).unwrap().count();
    assert!(files < 12, "{files} descriptors");
    let resident = guest.status("VmRSS");
    assert!(resident < 12_000, "{resident} KiB");
}

#[test]
fn frames_of_the_wrong_kind_end_the_stream_with_a_reason() {
    let guest = Guest::start();
    let (_, mut host) = guest.spawn(Spec { on_disconnect: OnDisconnect::Kill, ..shell("sleep 1000") });
    host.send(Kind::Data, b"not for a process");
    let failure = host.reply().unwrap_err();
    assert_eq!(failure.kind, FailureKind::InvalidArgument);
}

#[test]
fn shutdown_ends_everything_politely_first() {
    let mut guest = Guest::start();
    let polite = guest.path("polite");
    let script = format!("trap 'echo bye > {polite}; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
    let (_, mut host) = guest.spawn(argv(&["sh", "-c", &script]));
    let (stubborn, mut deaf) =
        guest.spawn(argv(&["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1000; done"]));
    host.until(|seen| seen.out() == "ready\n");
    deaf.until(|seen| seen.out() == "ready\n");
    assert_eq!(guest.call(&Request::Shutdown { grace_ms: 300 }), Ok(Reply::Done));
    assert_eq!(host.rest().code(), Some(0));
    assert_eq!(guest.ended(), Some(0));
    assert_eq!(std::fs::read_to_string(&polite).unwrap(), "bye\n");
    assert!(!is_alive(stubborn));
}

#[test]
fn the_sandbox_ends_when_its_leash_is_let_go() {
    let mut guest = Guest::start_with("{}", &["--leash"]);
    let (pid, _host) = guest.spawn(argv(&["sleep", "1000"]));
    assert!(guest.is_running());
    guest.let_go_of_leash();
    assert_eq!(guest.ended(), Some(0));
    wait_until("its processes are gone", || !is_alive(pid));
}

#[test]
fn an_idle_guest_is_one_small_thread() {
    let guest = Guest::start();
    guest.shell("true");
    wait_until("one thread is left", || guest.status("Threads") == 1);
    let anonymous = guest.status("RssAnon");
    assert!(anonymous < 1024, "{anonymous} KiB");
}
