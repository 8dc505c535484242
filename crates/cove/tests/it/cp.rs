//! `cove cp`: what was here is kept until the new file is whole, however the copy ends.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use cove_testkit::server::TestDirectory;
use cove_testkit::wait::{LIMIT, until};
use cove_testkit::{Terminal, TestServer};
use rustix::process::Signal;

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_copy_that_fails_leaves_the_file_that_was_here() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("here");
    fs::create_dir(&folder).unwrap();
    let kept = folder.join("kept");
    fs::write(&kept, "mine").unwrap();
    let path = kept.to_str().unwrap();
    for from in ["box:/missing", "bix:/etc/passwd", "box:/root/secret", "box:/dev/null/x"] {
        let refused = server.cove(["cp", from, path]).finish();
        assert_ne!(refused.code, 0, "{from}: {refused:?}");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "mine", "{from}");
    }
    assert_eq!(names(&folder), ["kept"]);
    // What is replaced keeps its mode, and a link leads where it led.
    fs::set_permissions(&kept, fs::Permissions::from_mode(0o640)).unwrap();
    symlink("kept", folder.join("link")).unwrap();
    server.cove(["exec", "box", "--", "sh", "-c", "echo theirs > /tmp/new"]).finish().expect_success();
    server.cove(["cp", "box:/tmp/new", folder.join("link").to_str().unwrap()]).finish().expect_success();
    assert_eq!(fs::read_to_string(&kept).unwrap(), "theirs\n");
    assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(folder.join("link").is_symlink());
    assert_eq!(names(&folder), ["kept", "link"]);
    server.cove(["cp", "box:/tmp/new", "/dev/null"]).finish().expect_success();
}

#[test]
fn an_upload_that_breaks_off_leaves_what_was_inside() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    server.cove(["exec", "box", "--", "sh", "-c", "mkdir /tmp/d && echo kept > /tmp/d/file"]).finish().expect_success();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut copy = server.cove(["cp", "-", "box:/tmp/d/file"]).input_from(reader).spawn();
    writer.write_all(&vec![b'x'; 1 << 20]).unwrap();
    let inside = || server.cove(["exec", "box", "--", "sh", "-c", "ls -A /tmp/d"]).finish().expect_success().stdout;
    until("the copy is under way", LIMIT, || inside().lines().count() == 2);
    copy.signal(Signal::INT);
    assert_eq!(copy.finish().code, 130);
    until("nothing is left of it", LIMIT, || inside() == "file\n");
    let seen = server.cove(["exec", "box", "--", "cat", "/tmp/d/file"]).finish().expect_success();
    assert_eq!(seen.stdout, "kept\n");
}

#[test]
fn a_folder_that_cannot_come_whole_does_not_come_at_all() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let line = "mkdir -p /tmp/d && echo a > /tmp/d/a && echo z > /tmp/d/z && chmod 000 /tmp/d/z";
    server.cove(["exec", "box", "--", "sh", "-c", line]).finish().expect_success();
    let folder = server.data().with_file_name("here");
    fs::create_dir(&folder).unwrap();
    let to = folder.join("copy");
    let refused = server.cove(["cp", "box:/tmp/d", to.to_str().unwrap()]).finish().expect_code(1);
    assert!(refused.stderr.contains("/tmp/d/z"), "{}", refused.stderr);
    assert_eq!(names(&folder), Vec::<String>::new());
    server.cove(["exec", "box", "--", "chmod", "644", "/tmp/d/z"]).finish().expect_success();
    server.cove(["cp", "box:/tmp/d", to.to_str().unwrap()]).finish().expect_success();
    assert_eq!((names(&folder), names(&to)), (vec!["copy".to_owned()], vec!["a".to_owned(), "z".to_owned()]));
    // The other way: a folder without a file that tar may read.
    let from = folder.join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    let refused = server.cove(["cp", from.to_str().unwrap(), "box:/proc/new"]).finish();
    assert_ne!(refused.code, 0, "{refused:?}");
    server.cove(["cp", from.to_str().unwrap(), "box:/tmp/new"]).finish().expect_success();
    let seen = server.cove(["exec", "box", "--", "ls", "-A", "/tmp", "/tmp/new"]).finish().expect_success();
    assert!(seen.stdout.contains("/tmp/new:\nfile\n") && !seen.stdout.contains(".cove-draft"), "{}", seen.stdout);
}

/// Answers as a server does, and stops in the middle of every file.
struct Stalling {
    url: String,
    /// One message for each file that has begun.
    begun: mpsc::Receiver<()>,
}

const ESCAPES: &str = "x\\u001b]0;pwned\\u0007";

impl Stalling {
    fn start() -> Stalling {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (tell, begun) = mpsc::channel();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let tell = tell.clone();
                std::thread::spawn(move || drop(answer(stream, &tell)));
            }
        });
        Stalling { url, begun }
    }
}

fn answer(mut stream: TcpStream, tell: &mpsc::Sender<()>) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    loop {
        let Some(first) = lines.next().transpose()? else { return Ok(()) };
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        let entry = |name: &str, kind: &str| format!(r#"{{"path": "{name}", "kind": "{kind}", "mode": "644"}}"#);
        let (status, body) = match first.split(' ').nth(1).unwrap_or_default() {
            path if path.contains("/content") => {
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")?;
                let _ = tell.send(());
                // A bar is shown to who has waited for a while.
                loop {
                    std::thread::sleep(Duration::from_millis(200));
                    write!(stream, "x")?;
                }
            }
            path if path.contains("/stat") && path.contains("d%2Ffile") => (200, entry("/d/file", "file")),
            path if path.contains("/stat") => (200, entry("/d", "directory")),
            _ => (200, format!("[{}]", entry(&format!("/d/{ESCAPES}"), "file"))),
        };
        write!(stream, "HTTP/1.1 {status} OK\r\ncontent-type: application/json\r\n")?;
        write!(stream, "content-length: {}\r\n\r\n{body}", body.len())?;
    }
}

#[test]
fn an_interrupted_download_leaves_nothing() {
    let stalling = Stalling::start();
    let place = TestDirectory::new();
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    fs::write(&kept, "mine").unwrap();
    let new = folder.path().join("new");
    for (from, to) in [("box:/d/file", &kept), ("box:/d", &new)] {
        let mut copy = place.cove(["cp", from, to.to_str().unwrap()]).env("COVE_URL", &stalling.url).spawn();
        stalling.begun.recv_timeout(LIMIT).unwrap();
        copy.signal(Signal::INT);
        assert_eq!(copy.finish().code, 130, "{from}");
        assert_eq!(names(folder.path()), ["kept"], "{from}");
        assert_eq!(fs::read_to_string(&kept).unwrap(), "mine");
    }
}

#[test]
fn a_name_of_the_sandboxs_making_does_not_steer_the_terminal() {
    let stalling = Stalling::start();
    let folder = tempfile::tempdir().unwrap();
    let program = cove_testkit::program::cove_path();
    let argv = [
        "env".to_owned(),
        format!("COVE_URL={}", stalling.url),
        program.to_str().unwrap().to_owned(),
        "cp".to_owned(),
        "box:/d".to_owned(),
        folder.path().join("new").to_str().unwrap().to_owned(),
    ];
    let mut terminal = Terminal::start(folder.path(), argv);
    terminal.sees(ESCAPES);
    assert!(!terminal.screen().contains("\u{1b}]0;pwned"), "{:?}", terminal.screen());
    terminal.signal(Signal::INT);
    assert_eq!(terminal.ends(), 130);
}
