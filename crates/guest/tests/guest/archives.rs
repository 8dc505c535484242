use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use cove_protocol::{Failure, FailureKind, Kind, Reply, Request};

use crate::client::{Guest, argv};

fn pack(guest: &Guest, path: &str) -> Vec<u8> {
    let (reply, mut host) = guest.open(&Request::TarOut { path: guest.path(path), user: None });
    assert_eq!(reply, Reply::Done);
    host.rest().data
}

fn unpack(guest: &Guest, path: &str, archive: &[u8]) -> Result<Reply, Failure> {
    unpack_as(guest, path, archive, None)
}

fn unpack_as(guest: &Guest, path: &str, archive: &[u8], user: Option<&str>) -> Result<Reply, Failure> {
    let mut host = guest.send(&Request::TarIn { path: guest.path(path), user: user.map(str::to_owned) });
    for chunk in archive.chunks(777) {
        host.send(Kind::Data, chunk);
    }
    host.end();
    host.reply()
}

/// Python's tarfile makes whatever archive it is told to, also those no honest program makes.
fn made_by_python(script: &str) -> Vec<u8> {
    let program = format!(
        "import tarfile, io, sys\n\
         out = io.BytesIO()\n\
         t = tarfile.open(fileobj=out, mode='w', format=tarfile.GNU_FORMAT)\n\
         def add(name, type=tarfile.REGTYPE, link='', data=b'', mode=0o644):\n\
         \x20   i = tarfile.TarInfo(name); i.type = type; i.linkname = link; i.size = len(data); i.mode = mode\n\
         \x20   t.addfile(i, io.BytesIO(data))\n\
         {script}\n\
         t.close(); sys.stdout.buffer.write(out.getvalue())"
    );
    let output = Command::new("python3").arg("-c").arg(program).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn a_tree(guest: &Guest) {
    let long = format!("tree/{}/{}", "d".repeat(120), "ü".repeat(60));
    std::fs::create_dir_all(guest.path(&long)).unwrap();
    std::fs::write(guest.path(&format!("{long}/file")), "deep").unwrap();
    std::fs::write(guest.path("tree/empty"), "").unwrap();
    std::fs::write(guest.path("tree/script"), vec![b'x'; 100_001]).unwrap();
    std::fs::set_permissions(guest.path("tree/script"), PermissionsExt::from_mode(0o4755)).unwrap();
    symlink("script", guest.path("tree/link")).unwrap();
    symlink("t".repeat(150), guest.path("tree/long link")).unwrap();
    std::fs::create_dir(guest.path("tree/closed")).unwrap();
    std::fs::write(guest.path("tree/closed/in"), "in").unwrap();
    std::fs::set_permissions(guest.path("tree/closed"), PermissionsExt::from_mode(0o500)).unwrap();
    guest.run(argv(&[
        "sh",
        "-c",
        "cd $1/tree && mkfifo pipe && touch -d @1234567890 script closed",
        "-",
        guest.room.path().to_str().unwrap(),
    ]));
}

fn looks(guest: &Guest, path: &str) -> String {
    let script = "cd \"$1\"; find . -mindepth 1 -printf '%P %y %m %U:%G %s %Ts %l\\n' | grep -v ' d ' | sort; find . -type d -printf '%P %m\\n' | sort; cat script closed/in | md5sum";
    guest.run(argv(&["bash", "-c", script, "-", &guest.path(path)])).out()
}

#[test]
fn a_tree_comes_out_and_goes_in_again_the_same() {
    let guest = Guest::start();
    a_tree(&guest);
    let archive = pack(&guest, "tree");
    assert_eq!(archive.len() % 512, 0);
    assert_eq!(unpack(&guest, "copy", &archive), Ok(Reply::Done));
    assert_eq!(looks(&guest, "copy"), looks(&guest, "tree"));
    // Once more over what is there.
    assert_eq!(unpack(&guest, "copy", &archive), Ok(Reply::Done));
    assert_eq!(looks(&guest, "copy"), looks(&guest, "tree"));
}

#[test]
fn tar_understands_our_archives_and_we_understand_tars() {
    let guest = Guest::start();
    a_tree(&guest);
    std::fs::create_dir(guest.path("by tar")).unwrap();
    let mut tar =
        Command::new("tar").args(["-xpf", "-", "-C", &guest.path("by tar")]).stdin(Stdio::piped()).spawn().unwrap();
    tar.stdin.take().unwrap().write_all(&pack(&guest, "tree")).unwrap();
    assert!(tar.wait().unwrap().success());
    assert_eq!(looks(&guest, "by tar"), looks(&guest, "tree"));
    for format in ["gnu", "posix", "ustar"] {
        if format == "ustar" {
            std::fs::remove_dir_all(guest.path(&format!("tree/{}", "d".repeat(120)))).unwrap();
            std::fs::remove_file(guest.path("tree/long link")).unwrap();
        }
        let arguments = [&format!("--format={format}"), "-C", &guest.path("tree"), "-cf", "-", "."];
        let archive = Command::new("tar").args(arguments).output().unwrap().stdout;
        assert_eq!(unpack(&guest, format, &archive), Ok(Reply::Done), "{format}");
        assert_eq!(looks(&guest, format), looks(&guest, "tree"), "{format}");
    }
}

#[test]
fn a_single_file_is_an_archive_too() {
    let guest = Guest::start();
    std::fs::write(guest.path("file"), "x").unwrap();
    assert_eq!(unpack(&guest, "copy", &pack(&guest, "file")), Ok(Reply::Done));
    assert_eq!(std::fs::read(guest.path("copy/file")).unwrap(), b"x");
}

#[test]
fn hard_links_within_the_archive_are_links() {
    let guest = Guest::start();
    let archive = made_by_python("add('a/one', data=b'same')\nadd('two', tarfile.LNKTYPE, 'a/one')");
    assert_eq!(unpack(&guest, "d", &archive), Ok(Reply::Done));
    let (one, two) =
        (std::fs::metadata(guest.path("d/a/one")).unwrap(), std::fs::metadata(guest.path("d/two")).unwrap());
    assert_eq!(one.ino(), two.ino());
}

#[test]
fn what_a_user_unpacks_is_the_users() {
    let guest = Guest::start();
    std::fs::set_permissions(guest.room.path(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(guest.path("own")).unwrap();
    std::os::unix::fs::chown(guest.path("own"), Some(65534), Some(65534)).unwrap();
    let archive = made_by_python("add('dir/file', data=b'x')");
    assert_eq!(unpack_as(&guest, "own", &archive, Some("nobody")), Ok(Reply::Done));
    assert_eq!(std::fs::metadata(guest.path("own/dir/file")).unwrap().uid(), 65534);
    let failure = unpack_as(&guest, "elsewhere", &archive, Some("nobody")).unwrap_err();
    assert_eq!(failure.kind, FailureKind::PermissionDenied);
}

#[test]
fn cannot_unpack_outside_by_dots() {
    let guest = Guest::start();
    for name in ["../out", "a/../../out", ".."] {
        let failure = unpack(&guest, "d", &made_by_python(&format!("add('{name}', data=b'x')"))).unwrap_err();
        assert_eq!(failure.kind, FailureKind::InvalidArgument, "{name}");
    }
    assert!(!Path::new(&guest.path("out")).exists());
}

#[test]
fn cannot_unpack_outside_by_an_absolute_name() {
    let guest = Guest::start();
    let outside = guest.path("outside");
    assert_eq!(unpack(&guest, "d", &made_by_python(&format!("add('{outside}', data=b'x')"))), Ok(Reply::Done));
    assert!(!Path::new(&outside).exists());
    assert!(Path::new(&format!("{}{outside}", guest.path("d"))).exists(), "taken as below the directory");
}

#[test]
fn cannot_unpack_outside_through_a_symlink() {
    let guest = Guest::start();
    std::fs::create_dir(guest.path("outside")).unwrap();
    let outside = guest.path("outside");
    for target in ["../outside", outside.as_str(), "/etc", "..", "/"] {
        let archive = made_by_python(&format!("add('way', tarfile.SYMTYPE, '{target}')\nadd('way/file', data=b'x')"));
        assert!(unpack(&guest, "d", &archive).is_err(), "{target}");
    }
    assert!(std::fs::read_dir(&outside).unwrap().next().is_none());
    assert!(!Path::new("/etc/file").exists());
}

#[test]
fn cannot_write_through_a_symlink_at_the_name_itself() {
    let guest = Guest::start();
    std::fs::write(guest.path("precious"), "old").unwrap();
    let archive = made_by_python("add('way', tarfile.SYMTYPE, '../precious')\nadd('way', data=b'new')");
    assert_eq!(unpack(&guest, "d", &archive), Ok(Reply::Done));
    assert_eq!(std::fs::read(guest.path("precious")).unwrap(), b"old");
    assert_eq!(std::fs::read(guest.path("d/way")).unwrap(), b"new");
}

#[test]
fn cannot_link_to_a_file_outside() {
    let guest = Guest::start();
    std::fs::write(guest.path("precious"), "old").unwrap();
    for target in ["../precious", "x/../../precious"] {
        let archive = made_by_python(&format!("add('way', tarfile.LNKTYPE, '{target}')"));
        assert_eq!(unpack(&guest, "d", &archive).unwrap_err().kind, FailureKind::InvalidArgument);
    }
    let archive = made_by_python("add('up', tarfile.SYMTYPE, '..')\nadd('way', tarfile.LNKTYPE, 'up/precious')");
    assert!(unpack(&guest, "d", &archive).is_err());
    assert_eq!(std::fs::metadata(guest.path("precious")).unwrap().nlink(), 1);
}

#[test]
fn cannot_make_devices() {
    let guest = Guest::start();
    for kind in ["CHRTYPE", "BLKTYPE"] {
        let archive = made_by_python(&format!("add('device', tarfile.{kind})"));
        assert_eq!(unpack(&guest, "d", &archive).unwrap_err().kind, FailureKind::Unsupported);
    }
}

#[test]
fn broken_archives_are_refused_with_a_reason() {
    let guest = Guest::start();
    let good = made_by_python("add('file', data=b'x' * 5000)");
    assert!(unpack(&guest, "d", &good[..1000]).unwrap_err().message.contains("ends in the middle"));
    let mut bad = good.clone();
    bad[0] = b'z';
    assert!(unpack(&guest, "d", &bad).unwrap_err().message.contains("checksum"));
    assert!(unpack(&guest, "d", &[7; 5000]).is_err());
    assert_eq!(unpack(&guest, "d", &[]), Ok(Reply::Done));
    assert_eq!(unpack(&guest, "d", &[0; 4096]), Ok(Reply::Done));
}

#[test]
fn names_that_are_no_text_stay_what_they_are() {
    use std::os::unix::ffi::OsStrExt;
    let guest = Guest::start();
    let archive = made_by_python(
        "add('caf\\udce9/a', data=b'one'); add('caf\\udce8/a', data=b'two'); add('l\\udce9', tarfile.LNKTYPE, 'caf\\udce9/a')",
    );
    unpack(&guest, "into", &archive).unwrap();
    let read =
        |name: &[u8]| std::fs::read(Path::new(&guest.path("into")).join(std::ffi::OsStr::from_bytes(name))).unwrap();
    assert_eq!(
        (read(b"caf\xe9/a"), read(b"caf\xe8/a"), read(b"l\xe9")),
        (b"one".to_vec(), b"two".to_vec(), b"one".to_vec())
    );
}
