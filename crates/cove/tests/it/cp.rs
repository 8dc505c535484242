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
fn a_program_stays_one_on_both_ways() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("here");
    fs::create_dir(&folder).unwrap();
    let (job, back) = (folder.join("job"), folder.join("back"));
    fs::write(&job, "#!/bin/sh\necho done\n").unwrap();
    fs::set_permissions(&job, fs::Permissions::from_mode(0o755)).unwrap();
    server.cove(["cp", job.to_str().unwrap(), "box:"]).finish().expect_success();
    assert_eq!(server.cove(["exec", "box", "--", "./job"]).finish().expect_success().stdout, "done\n");
    server.cove(["cp", "box:job", back.to_str().unwrap()]).finish().expect_success();
    assert_eq!(fs::metadata(&back).unwrap().permissions().mode() & 0o111, 0o111);
    // A secret stays one, and what is replaced keeps its mode.
    fs::set_permissions(&job, fs::Permissions::from_mode(0o600)).unwrap();
    server.cove(["cp", job.to_str().unwrap(), "box:secret"]).finish().expect_success();
    server.cove(["cp", job.to_str().unwrap(), "box:job"]).finish().expect_success();
    let modes = server.cove(["exec", "box", "--", "stat", "-c", "%a", "secret", "job"]).finish().expect_success();
    assert_eq!(modes.stdout, "600\n755\n");
    // The person's umask holds for what comes out.
    server.cove(["exec", "box", "--", "chmod", "4777", "job"]).finish().expect_success();
    let open = folder.join("open");
    server.cove(["cp", "box:job", open.to_str().unwrap()]).finish().expect_success();
    assert_eq!(fs::metadata(&open).unwrap().permissions().mode() & 0o7002, 0, "not for everybody to write");
}

#[test]
fn a_folder_comes_out_as_an_archive_and_a_pipe_stays_where_it_is() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("here");
    fs::create_dir_all(folder.join("deep")).unwrap();
    fs::write(folder.join("deep/file"), "text").unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.join("deep/pipe")).status().unwrap();
    assert!(made.success());
    let copied = server.cove(["cp", folder.to_str().unwrap(), "box:work"]).finish().expect_success();
    assert!(copied.stderr.contains("deep/pipe is not a file, folder or link: left out"), "{}", copied.stderr);
    let seen = server.cove(["exec", "box", "--", "ls", "work/deep"]).finish().expect_success();
    assert_eq!(seen.stdout, "file\n");
    let archive = server.cove(["cp", "box:work", "-"]).finish().expect_success().stdout;
    assert!(archive.contains("deep/file") && archive.contains("text"), "{archive:?}");
    let mut shown = Terminal::start(&server.data(), on_a_terminal(&server, &["cp", "box:work", "-"]));
    shown.sees("its archive does not go to a terminal");
    assert_eq!(shown.ends(), 2);
}

fn on_a_terminal(server: &TestServer, arguments: &[&str]) -> Vec<String> {
    let (url, key) = (format!("COVE_URL={}", server.url()), format!("COVE_API_KEY={}", server.key()));
    let program = cove_testkit::program::cove_path().to_str().unwrap().to_owned();
    ["env".to_owned(), url, key, program].into_iter().chain(arguments.iter().map(|one| (*one).to_owned())).collect()
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
