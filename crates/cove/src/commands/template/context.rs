//! The files that a Dockerfile may copy: a folder without what `.dockerignore` leaves out, as one archive.
//!
//! The archive is named by what is in it, without times, so files that did not change are not sent again and steps that
//! copy them are found done.

use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cove_image::dockerfile::Ignore;
use futures::{StreamExt, TryStreamExt};
use reqwest::{Body, Method};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio_util::io::ReaderStream;

use crate::client::Client;
use crate::complaint::{Complaint, doing};
use crate::progress::Bytes;

const IGNORE: &str = ".dockerignore";
/// Bytes that are read at a time.
const CHUNK: usize = 256 << 10;

/// A folder, and what of it a build sees.
#[derive(Debug)]
pub struct Context {
    top: PathBuf,
    ignore: Ignore,
    /// Relative paths, each folder before what is in it.
    entries: Vec<PathBuf>,
    bytes: u64,
    hash: String,
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Complaint {
    Complaint::failed(format!("{}: {error}", path.display()))
}

impl Context {
    /// `dockerfile` may have rules of its own beside it: `NAME.dockerignore`.
    pub fn of(top: &Path, dockerfile: Option<&Path>) -> Result<Context, Complaint> {
        if !top.is_dir() {
            return Err(Complaint::usage(format!("{} is not a folder", top.display()))
                .hint("the last word is the folder whose files the Dockerfile may copy, for example `.`"));
        }
        Context::look(top, rules(top, dockerfile)?)
    }

    fn look(top: &Path, ignore: Ignore) -> Result<Context, Complaint> {
        let (entries, hash) = (Vec::new(), String::new());
        let mut context = Context { top: top.to_owned(), ignore: ignore.clone(), entries, bytes: 0, hash };
        let mut hash = Sha256::new();
        context.walk(Path::new(""), &ignore, &mut hash)?;
        context.hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(context)
    }

    fn walk(&mut self, folder: &Path, ignore: &Ignore, hash: &mut Sha256) -> Result<(), Complaint> {
        let full = self.top.join(folder);
        let mut names = Vec::new();
        for entry in fs::read_dir(&full).map_err(|error| failed(&full, error))? {
            names.push(entry.map_err(|error| failed(&full, error))?.file_name());
        }
        names.sort_unstable();
        for name in names {
            let relative = folder.join(&name);
            let text = relative.to_string_lossy();
            let path = self.top.join(&relative);
            let known = path.symlink_metadata().map_err(|error| failed(&path, error))?;
            let is_out = ignore.excludes(&text);
            if known.is_dir() {
                if is_out && ignore.excludes_all_below(&text) {
                    continue;
                }
                if !is_out {
                    self.take(&relative, &known, hash)?;
                }
                self.walk(&relative, ignore, hash)?;
            } else if !is_out && !is_special(&known) {
                self.take(&relative, &known, hash)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, relative: &Path, known: &Metadata, hash: &mut Sha256) -> Result<(), Complaint> {
        let path = self.top.join(relative);
        // Lengths go first: no two trees give the same bytes.
        let mut add = |kind: u8, bytes: &[u8]| {
            hash.update([kind]);
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(b'n', relative.as_os_str().as_bytes());
        if known.is_symlink() {
            let target = fs::read_link(&path).map_err(|error| failed(&path, error))?;
            add(b'l', target.as_os_str().as_bytes());
        } else {
            add(b'm', &(known.permissions().mode() & 0o7777).to_le_bytes());
        }
        if known.is_file() {
            hash.update([b'f']);
            hash.update(known.len().to_le_bytes());
            read_into(&path, hash).map_err(|error| failed(&path, error))?;
            self.bytes += known.len();
        }
        self.entries.push(relative.to_owned());
        Ok(())
    }

    /// The archive's name on the server, which has it when this returns.
    pub async fn send(&self, client: &Client) -> Result<String, Complaint> {
        let path = format!("/build-files/{}", self.hash);
        let there: Value = client.get(&path).await?;
        if there["present"] == true {
            return Ok(self.hash.clone());
        }
        // Relative to the folder, one after the other, never a flag: each begins with `./`.
        let mut tar = tokio::process::Command::new("tar")
            .arg("-C")
            .arg(&self.top)
            .args(["--format=pax", "--no-recursion", "--null", "--owner=0", "--group=0", "--numeric-owner"])
            .args(["-T", "-", "-cf", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Complaint::failed(format!("start tar: {error}")).hint("apt-get install tar"))?;
        let (Some(mut names), Some(packed)) = (tar.stdin.take(), tar.stdout.take()) else {
            return Err(Complaint::failed("tar has no input or output"));
        };
        let mut list = Vec::new();
        for entry in &self.entries {
            list.extend_from_slice(b"./");
            list.extend_from_slice(entry.as_os_str().as_bytes());
            list.push(0);
        }
        let writing = tokio::spawn(async move {
            // Where tar has ended its exit code says so.
            let _ = names.write_all(&list).await;
        });
        let seen = Bytes::new("sending the files", Some(self.bytes));
        let stream = ReaderStream::with_capacity(packed, CHUNK).inspect_ok(move |piece| seen.more(piece.len()));
        let (tell, told) = tokio::sync::oneshot::channel();
        let check = (self.top.clone(), self.ignore.clone(), self.hash.clone());
        // What is not whole, or is not what its name says, breaks the request off: the server keeps nothing of it.
        let end = futures::stream::once(async move {
            let Err(complaint) = whole(&mut tar, check).await else { return Ok(None) };
            let why = io::Error::other(complaint.to_string());
            let _ = tell.send(complaint);
            Err(why)
        });
        let stream = stream.chain(end.try_filter_map(|nothing| async move { Ok(nothing) }));
        let request = client.request(Method::POST, &path).header("content-type", "application/x-tar");
        let sent = client.send(request.body(Body::wrap_stream(stream))).await;
        let _ = writing.await;
        match (told.await, sent) {
            (Ok(complaint), _) => Err(complaint),
            (Err(_), sent) => sent.map(|_| self.hash.clone()),
        }
    }
}

/// Whether tar has packed all, and the files are still those that the archive is named by.
async fn whole(
    tar: &mut tokio::process::Child,
    (top, ignore, hash): (PathBuf, Ignore, String),
) -> Result<(), Complaint> {
    let status = tar.wait().await.map_err(doing("wait for tar"))?;
    if !status.success() {
        return Err(Complaint::failed(format!("tar could not read {}: {status}", top.display())));
    }
    if Context::look(&top, ignore)?.hash != hash {
        return Err(Complaint::failed(format!("files in {} changed while they were sent", top.display()))
            .hint("build again when they stay as they are"));
    }
    Ok(())
}

/// Sockets and devices are no files of a project.
fn is_special(known: &Metadata) -> bool {
    let kind = known.file_type();
    kind.is_socket() || kind.is_block_device() || kind.is_char_device() || kind.is_fifo()
}

fn read_into(path: &Path, hash: &mut Sha256) -> io::Result<()> {
    let mut file = fs::File::open(path)?;
    let mut piece = vec![0; CHUNK];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            count => hash.update(&piece[..count]),
        }
    }
}

/// The rules of the Dockerfile, or else those of the folder.
fn rules(top: &Path, dockerfile: Option<&Path>) -> Result<Ignore, Complaint> {
    let own = dockerfile.map(|path| {
        let mut name = path.as_os_str().to_owned();
        name.push(IGNORE);
        PathBuf::from(name)
    });
    for path in own.into_iter().chain([top.join(IGNORE)]) {
        match fs::read_to_string(&path) {
            Ok(text) => {
                return Ignore::parse(&text)
                    .map_err(|problem| failed(&path, format!("line {}: {}", problem.line, problem.message)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&path, error)),
        }
    }
    Ok(Ignore::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn names(context: &Context) -> Vec<&str> {
        context.entries.iter().map(|path| path.to_str().unwrap()).collect()
    }

    #[test]
    fn what_is_ignored_is_left_out_and_what_is_taken_back_is_in() {
        let folder = folder(&[
            (".dockerignore", "node_modules\n*.log\nbuild/*\n!build/keep\n"),
            ("main.py", "x"),
            ("a.log", "x"),
            ("node_modules/deep/x.js", "x"),
            ("build/out", "x"),
            ("build/keep", "x"),
        ]);
        let context = Context::of(folder.path(), None).unwrap();
        assert_eq!(names(&context), [".dockerignore", "build", "build/keep", "main.py"]);
    }

    #[test]
    fn a_dockerfile_can_have_rules_of_its_own() {
        let folder = folder(&[(".dockerignore", "b"), ("App.Dockerfile.dockerignore", "a"), ("a", "x"), ("b", "x")]);
        let own = Context::of(folder.path(), Some(&folder.path().join("App.Dockerfile"))).unwrap();
        assert!(names(&own).contains(&"b") && !names(&own).contains(&"a"), "{own:?}");
        let usual = Context::of(folder.path(), Some(&folder.path().join("Dockerfile"))).unwrap();
        assert!(names(&usual).contains(&"a") && !names(&usual).contains(&"b"), "{usual:?}");
    }

    #[test]
    fn the_name_changes_with_content_names_and_modes_and_not_with_times() {
        let files = [("a", "1"), ("b/c", "2")];
        let hash = |files: &[(&str, &str)]| Context::of(folder(files).path(), None).unwrap().hash;
        assert_eq!(hash(&files), hash(&files));
        assert_eq!(hash(&files).len(), 64);
        assert_ne!(hash(&files), hash(&[("a", "1"), ("b/c", "3")]));
        assert_ne!(hash(&files), hash(&[("a", "1"), ("b/d", "2")]));
        assert_ne!(hash(&[("a", "bc")]), hash(&[("ab", "c")]));
        let changed = folder(&files);
        let before = Context::of(changed.path(), None).unwrap().hash;
        fs::set_permissions(changed.path().join("a"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_ne!(before, Context::of(changed.path(), None).unwrap().hash);
    }

    #[test]
    fn links_are_kept_and_not_followed() {
        let folder = folder(&[("a", "1")]);
        std::os::unix::fs::symlink("/nowhere/at/all", folder.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("up")).unwrap();
        let context = Context::of(folder.path(), None).unwrap();
        assert_eq!(names(&context), ["a", "dangling", "up"]);
    }
}
