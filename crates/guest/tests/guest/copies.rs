//! Processes that copy themselves for whoever asks, as a warm interpreter does.

use cove_protocol::process::{Selector, Spec, Stdio};
use cove_protocol::{FailureKind, Reply, Request};

use crate::client::{Guest, argv, is_alive, wait_until};

/// Copies itself as the protocol wants it; the copy tells who and where it is, then echoes its input.
const ORIGINAL: &str = r#"
import _socket, json, os, sys
os.read(0, 100)
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, os.dup(0))
while True:
    packet, ancillary, _, _ = link.recvmsg(1 << 20, 256)
    if not packet:
        os._exit(0)
    wanted = json.loads(packet)
    if "REFUSE" in wanted["env"]:
        link.send(b'{"refused": "not with that"}')
        continue
    streams = [int.from_bytes(ancillary[0][2][at:at + 4], sys.byteorder) for at in (0, 4, 8)]
    waiting, tell = os.pipe()
    middle = os.fork()
    if middle == 0:
        if os.fork():
            os._exit(0)
        os.close(tell)
        os.read(waiting, 1)
        os.setsid()
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        try:
            os.chdir(wanted["directories"][0])
        except OSError as failure:
            link.send(json.dumps({"failed": failure.errno}).encode())
            os._exit(0)
        link.send(b'{"ready": true}')
        link.close()
        print(os.getcwd(), wanted["env"].get("WHO"), flush=True)
        sys.stdout.write(sys.stdin.readline())
        sys.stdout.flush()
        os._exit(7)
    os.waitpid(middle, 0)
    os.close(tell)
    os.close(waiting)
    for fd in streams:
        os.close(fd)
"#;

fn original(guest: &Guest) -> u32 {
    let spec = Spec { stdio: Stdio::Socket, tag: Some("original".into()), ..argv(&["python3", "-c", ORIGINAL]) };
    let (pid, _host) = guest.spawn(spec);
    begin(guest, pid);
    pid
}

/// On a connection that answers: a request for a copy must not overtake it.
fn begin(guest: &Guest, pid: u32) {
    let mut host = guest.send(&Request::Input { process: Selector::Pid(pid) });
    host.stdin(b"begin");
    host.end();
    assert_eq!(host.reply(), Ok(Reply::Done));
}

fn copy() -> Spec {
    Spec { stdio: Stdio::Piped, copy_of: Some("original".into()), ..argv(&["python3"]) }
}

#[test]
fn a_copy_is_a_process_like_any_other() {
    let guest = Guest::start();
    let first = original(&guest);
    let spec = Spec { cwd: Some("/usr".into()), env: [("WHO".into(), "me".into())].into(), ..copy() };
    let (pid, mut host) = guest.spawn(Spec { tag: Some("copy".into()), ..spec });
    assert_ne!(pid, first);
    host.stdin(b"heard\n");
    let seen = host.rest();
    assert_eq!((seen.out().as_str(), seen.code()), ("/usr me\nheard\n", Some(7)));
    assert_eq!(guest.wait_for(Selector::Tag("copy".into())).code, Some(7));
    assert!(is_alive(first));
}

#[test]
fn a_copy_can_be_killed_and_its_end_is_seen() {
    let guest = Guest::start();
    original(&guest);
    let (pid, _host) = guest.spawn(copy());
    let process = Selector::Pid(pid);
    assert_eq!(guest.call(&Request::Signal { process: process.clone(), signal: 9, group: true }), Ok(Reply::Done));
    assert_eq!(guest.wait_for(process).signal, Some(9));
}

#[test]
fn what_cannot_be_copied_is_refused_by_kind() {
    let guest = Guest::start();
    let kind = |spec: Spec| guest.call(&Request::Start(spec)).unwrap_err().kind;
    assert_eq!(kind(copy()), FailureKind::NotFound);
    let (other, _host) = guest.spawn(Spec { tag: Some("other".into()), ..argv(&["sleep", "60"]) });
    assert_eq!(kind(Spec { copy_of: Some("other".into()), ..copy() }), FailureKind::WrongState);
    assert!(is_alive(other));
    let first = original(&guest);
    assert_eq!(kind(Spec { env: [("REFUSE".into(), String::new())].into(), ..copy() }), FailureKind::WrongState);
    assert_eq!(kind(Spec { user: Some("65534:65534".into()), ..copy() }), FailureKind::WrongState);
    let lost = guest.call(&Request::Start(Spec { cwd: Some("/nowhere".into()), ..copy() })).unwrap_err();
    assert_eq!((lost.kind, lost.message.contains("/nowhere")), (FailureKind::NotFound, true));
    let process = Selector::Pid(first);
    guest.call(&Request::Signal { process, signal: 9, group: true }).unwrap();
    wait_until("the original is gone", || !is_alive(first));
    assert_eq!(kind(copy()), FailureKind::NotFound);
}

#[test]
fn cannot_pass_off_another_process_as_its_copy() {
    let guest = Guest::start();
    // Says "ready" itself: it is no new process, and none that just began.
    let liar = r#"
import _socket, os
os.read(0, 100)
link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, os.dup(0))
link.recvmsg(1 << 20, 256)
if os.fork() == 0:
    link.send(b'{"ready": true}')
    os.read(os.pipe()[0], 1)
link.recvmsg(1 << 20, 256)
"#;
    let spec = Spec { stdio: Stdio::Socket, tag: Some("original".into()), ..argv(&["python3", "-c", liar]) };
    let (pid, _host) = guest.spawn(spec);
    begin(&guest, pid);
    let refused = guest.call(&Request::Start(copy())).unwrap_err();
    assert_eq!(refused.kind, FailureKind::WrongState, "{refused}");
}
