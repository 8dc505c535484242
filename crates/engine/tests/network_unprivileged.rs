//! Egress for an ordinary user, who has rights over a network only inside a user namespace of their own.

mod network_world;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use cove_engine::network::Proxy;
use cove_engine::network::namespace::{Kind, create_within, prepare_within};
use network_world::servers::PAGE;
use network_world::{World, open};

const INNER: &str = "what_an_ordinary_user_does";

#[test]
fn an_ordinary_user_has_egress_too() {
    World::run(|_| {
        // The tests' own directory may be closed to others: the user gets a copy of this program.
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).expect("open it");
        let program = directory.path().join("program");
        fs::copy(std::env::current_exe().expect("this program"), &program).expect("copy it");
        let output = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps=-all", "--no-new-privs"])
            .arg(&program)
            .args(["--exact", INNER, "--ignored", "--nocapture"])
            .current_dir(&directory)
            .output()
            .expect("run as nobody");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && told.contains("1 passed"),
            "{told}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    });
}

#[test]
#[ignore = "run by the test above, as an ordinary user in a world"]
fn what_an_ordinary_user_does() {
    assert!(!rustix::process::geteuid().is_root());
    let mut holder = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net", "sh", "-c", "echo ready; read gone"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a user namespace");
    BufReader::new(holder.stdout.as_mut().expect("its output")).read_line(&mut String::new()).expect("ready");
    let user = File::open(format!("/proc/{}/ns/user", holder.id())).expect("the user namespace");

    let made = create_within(user.as_fd(), Kind::Egress).expect("make a network namespace");
    let given = File::open(format!("/proc/{}/ns/net", holder.id())).expect("the network namespace");
    prepare_within(user.as_fd(), given.as_fd(), Kind::Egress).expect("set one up");

    let proxy = Proxy::start().expect("start");
    let id = "00000000000000000000".parse().expect("an id");
    for network in [made.as_fd(), given.as_fd()] {
        proxy.attach_within(&id, user.as_fd(), network, &open(&[])).expect("attach");
        let fetch = |address: &str| {
            Command::new("nsenter")
                .arg("--preserve-credentials")
                .arg(format!("--user=/proc/{}/fd/{}", std::process::id(), user.as_raw_fd()))
                .arg(format!("--net=/proc/{}/fd/{}", std::process::id(), network.as_raw_fd()))
                .args(["curl", "-sS", "--max-time", "10", &format!("http://{address}/")])
                .output()
                .expect("run curl")
        };
        let reached = fetch("203.0.113.7");
        assert_eq!(String::from_utf8_lossy(&reached.stdout), PAGE, "{reached:?}");
        assert!(!fetch("10.0.0.5").status.success(), "refused like anybody's");
    }
    let error = create_within(made.as_fd(), Kind::Egress).expect_err("that is no user namespace");
    assert!(error.to_string().starts_with("enter the user namespace of a network namespace"), "{error}");
    drop(holder.stdin.take());
    holder.wait().expect("the holder ends");
}
