use cove_protocol::process::{Selector, Spec, Stdio, TerminalSize};
use cove_protocol::{Control, FailureKind, Reply, Request};

use crate::client::{Guest, Host, argv};

const SIZE: TerminalSize = TerminalSize { rows: 24, columns: 80 };

fn terminal(guest: &Guest, words: &[&str]) -> (u32, Host) {
    guest.spawn(Spec { stdio: Stdio::Terminal(SIZE), ..argv(words) })
}

fn shows(host: &mut Host, text: &str) {
    host.until(|seen| String::from_utf8_lossy(&seen.pty).contains(text));
}

#[test]
fn a_terminal_is_one_for_all_three_streams_and_has_its_size() {
    let guest = Guest::start();
    let (_, mut host) =
        terminal(&guest, &["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size; tty; echo $TERM; exit 4"]);
    let seen = host.rest();
    let text = String::from_utf8_lossy(&seen.pty);
    assert!(text.starts_with("24 80\r\n/dev/pts/"), "{text}");
    assert!(text.ends_with("xterm-256color\r\n"), "{text}");
    assert_eq!((seen.code(), seen.stdout.len()), (Some(4), 0));
}

#[test]
fn resizing_is_felt_by_the_program_in_the_foreground() {
    let guest = Guest::start();
    let script = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done";
    let (pid, mut host) = terminal(&guest, &["sh", "-c", script]);
    shows(&mut host, "ready");
    let size = TerminalSize { rows: 50, columns: 132 };
    assert_eq!(guest.call(&Request::Resize { process: Selector::Pid(pid), size }), Ok(Reply::Done));
    shows(&mut host, "50 132");
    let (_, mut host) = terminal(&guest, &["sh", "-c", script]);
    shows(&mut host, "ready");
    host.control(&Control::Resize { size: TerminalSize { rows: 7, columns: 9 } });
    shows(&mut host, "7 9");
}

#[test]
fn a_shell_has_job_control_and_keys_are_signals() {
    let guest = Guest::start();
    let (_, mut host) = guest.spawn(Spec {
        stdio: Stdio::Terminal(SIZE),
        env: [("PS1".into(), "ready> ".into())].into(),
        ..argv(&["bash", "--norc", "--noprofile", "--noediting", "-i"])
    });
    shows(&mut host, "ready> ");
    host.stdin(b"sh -c 'echo in\"\"front; exec sleep 1000'\n");
    shows(&mut host, "infront");
    host.stdin(b"\x1a");
    shows(&mut host, "Stopped");
    host.stdin(b"kill -9 %1; sh -c 'echo list\"\"ening; exec cat'\n");
    shows(&mut host, "listening");
    host.stdin(b"echoed\n");
    shows(&mut host, "echoed\r\nechoed");
    host.stdin(b"\x03");
    host.until(|seen| seen.pty.windows(2).any(|keys| keys == b"^C") && seen.pty.ends_with(b"\r\nready> "));
    host.stdin(b"exit 9\n");
    assert_eq!(host.rest().code(), Some(9));
}

#[test]
fn a_terminal_is_left_and_taken_up_again() {
    let guest = Guest::start();
    let (pid, mut host) = terminal(&guest, &["sh", "-c", "echo first; read line; echo got $line"]);
    shows(&mut host, "first");
    drop(host);
    let (_, mut host) = guest.open(&Request::Attach { process: Selector::Pid(pid), from: Some(0) });
    shows(&mut host, "first");
    host.stdin(b"second\n");
    let seen = host.rest();
    assert!(String::from_utf8_lossy(&seen.pty).contains("got second"), "{seen:?}");
}

#[test]
fn a_terminal_belongs_to_its_user() {
    let guest = Guest::start();
    let spec = Spec {
        stdio: Stdio::Terminal(SIZE),
        user: Some("nobody".into()),
        ..argv(&["sh", "-c", "stat -c %U $(tty); echo by-name > $(tty)"])
    };
    let (_, mut host) = guest.spawn(spec);
    let seen = host.rest();
    assert_eq!(String::from_utf8_lossy(&seen.pty), "nobody\r\nby-name\r\n");
}

#[test]
fn what_has_no_terminal_cannot_be_resized() {
    let guest = Guest::start();
    let (pid, _host) = guest.spawn(argv(&["sleep", "1000"]));
    let failure = guest.call(&Request::Resize { process: Selector::Pid(pid), size: SIZE }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::WrongState);
    let (pid, _host) = terminal(&guest, &["sleep", "1000"]);
    let failure = guest.call(&Request::CloseStdin { process: Selector::Pid(pid) }).unwrap_err();
    assert_eq!(failure.kind, FailureKind::WrongState);
}
