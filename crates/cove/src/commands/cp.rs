//! `cove cp`: files and folders into a sandbox and out of it.
//!
//! A folder goes in as one tar stream. Out of the sandbox every file is fetched by name: a sandbox is not trusted, and
//! its archive could contain devices, set-uid programs, or paths that lead elsewhere.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use futures::StreamExt;
use reqwest::{Body, Method};
use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt;

use crate::client::sandbox::path as sandbox_path;
use crate::client::{Client, block_on, query_string};
use crate::complaint::{Complaint, doing};
use crate::interrupt::or_interrupted;
use crate::landing::{Draft, Incoming, Landing};
use crate::progress::Bytes;
use crate::render::{print_json, say};

/// Copy files and folders into a sandbox and out of it
///
/// One side is SANDBOX:PATH, the other a path here, or `-` for standard input or output. A relative path inside is below the
/// user's home.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove cp ./report.csv box:/home/user/
  cove cp ./project box:work
  cove cp box:/tmp/result.json .
  cove cp box:/tmp/log - | grep error
  cove cp box:work - | tar -tf -

A folder that goes to `-` is a tar archive of what is in it. A sandbox wrote it: look at it before you unpack it.
With --json one object is printed at the end: {\"from\", \"to\", \"files\", \"bytes\"}.
A folder goes in as one archive: then `files` is null, and `bytes` is the size of the archive.")]
pub struct Arguments {
    /// What to copy
    #[arg(add = crate::complete::copied())]
    from: String,
    /// The destination
    #[arg(add = crate::complete::copied())]
    to: String,
    /// Use the rights of this user inside
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Print what was copied as JSON
    #[arg(long)]
    json: bool,
}

/// What was copied, and where it is now.
struct Copied {
    to: String,
    /// Unknown for an archive.
    files: Option<u64>,
    bytes: u64,
}

enum Side<'a> {
    Here(&'a str),
    Inside { sandbox: &'a str, path: &'a str },
}

/// `./a:b` is here; `box:a` is inside.
fn side(text: &str) -> Side<'_> {
    match text.split_once(':') {
        Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => Side::Inside { sandbox, path },
        _ => Side::Here(text),
    }
}

#[derive(Debug, Deserialize)]
struct Entry {
    path: String,
    kind: String,
    mode: String,
    target: Option<String>,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let hint = "write SANDBOX:PATH on one side, for example: cove cp ./f box:/tmp/";
    let client = Client::from_environment()?;
    let user = arguments.user.as_deref();
    if arguments.json && arguments.to == "-" {
        return Err(Complaint::usage("--json and a copy to `-` would both be on standard output")
            .hint("copy to a file, or leave out --json"));
    }
    let copied = match (side(&arguments.from), side(&arguments.to)) {
        (Side::Here(from), Side::Inside { sandbox, path }) => {
            let inside = Inside { client: &client, sandbox, user };
            block_on(inside.put(from, path))?
        }
        (Side::Inside { sandbox, path }, Side::Here(to)) => {
            let inside = Inside { client: &client, sandbox, user };
            block_on(or_interrupted(inside.get(path, to)))?
        }
        (Side::Here(_), Side::Here(_)) => return Err(Complaint::usage("neither side is in a sandbox").hint(hint)),
        _ => return Err(Complaint::usage("both sides are in a sandbox").hint("copy to here first, then from here")),
    };
    if arguments.json {
        let Copied { to, files, bytes } = copied;
        print_json(&json!({ "from": arguments.from, "to": to, "files": files, "bytes": bytes }))?;
    }
    Ok(0)
}

struct Inside<'a> {
    client: &'a Client,
    sandbox: &'a str,
    user: Option<&'a str>,
}

impl Inside<'_> {
    fn call(&self, what: &str, pairs: &[(&str, &str)]) -> Result<String, Complaint> {
        let mut pairs = pairs.to_vec();
        pairs.extend(self.user.map(|user| ("user", user)));
        Ok(format!("{}/files{what}{}", sandbox_path(self.sandbox)?, query_string(&pairs)))
    }

    async fn look(&self, path: &str) -> Result<Entry, Complaint> {
        self.client.get(&self.call("/stat", &[("path", path)])?).await
    }

    async fn is_directory(&self, path: &str) -> bool {
        self.look(path).await.is_ok_and(|entry| entry.kind == "directory")
    }

    async fn put(&self, from: &str, to: &str) -> Result<Copied, Complaint> {
        if from == "-" {
            let bytes = self.put_bytes(tokio::io::stdin(), Bytes::new("standard input", None), to, None).await?;
            return Ok(Copied { to: self.named(to), files: Some(1), bytes });
        }
        let local = Path::new(from);
        let known = std::fs::metadata(local).map_err(|error| Complaint::failed(format!("{from}: {error}")))?;
        // Into an existing folder under its own name, as cp does.
        let whole = std::path::absolute(local).map_err(doing(format!("find {from}")))?;
        let target = match whole.file_name().and_then(|name| name.to_str()) {
            Some(name) if to.is_empty() || to.ends_with('/') || self.is_directory(to).await => {
                format!("{}{}{name}", to, if to.is_empty() || to.ends_with('/') { "" } else { "/" })
            }
            _ => to.to_owned(),
        };
        if known.is_dir() {
            let bytes = self.put_folder(local, &target).await?;
            return Ok(Copied { to: self.named(&target), files: None, bytes });
        }
        let file = tokio::fs::File::open(local).await.map_err(|error| Complaint::failed(format!("{from}: {error}")))?;
        // For a new file; one that is replaced keeps its own, as with cp.
        let mode = format!("{:o}", known.permissions().mode() & 0o777);
        let bytes = self.put_bytes(file, Bytes::new(from, Some(known.len())), &target, Some(&mode)).await?;
        Ok(Copied { to: self.named(&target), files: Some(1), bytes })
    }

    /// A path inside, as it was written.
    fn named(&self, path: &str) -> String {
        format!("{}:{path}", self.sandbox)
    }

    async fn put_bytes(
        &self,
        source: impl AsyncReadExt + Unpin + Send + 'static,
        seen: Bytes,
        to: &str,
        mode: Option<&str>,
    ) -> Result<u64, Complaint> {
        let count = seen.count();
        let mut pairs = vec![("path", to), ("parents", "true")];
        pairs.extend(mode.map(|mode| ("mode", mode)));
        let request = self.client.request(Method::PUT, &self.call("/content", &pairs)?);
        self.client.send(request.body(stream_of(source, seen))).await?;
        Ok(count.get())
    }

    /// A new folder is unpacked under another name and renamed when it is complete.
    async fn put_folder(&self, from: &Path, to: &str) -> Result<u64, Complaint> {
        if self.look(to).await.is_ok() {
            return self.unpack(from, to).await;
        }
        let draft = draft_beside(to);
        let made = match or_interrupted(self.unpack(from, &draft)).await {
            Ok(bytes) => self.rename(&draft, to).await.map(|()| bytes),
            Err(complaint) => Err(complaint),
        };
        if made.is_err() {
            self.remove(&draft).await;
        }
        made
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), Complaint> {
        let body = json!({ "from": from, "to": to, "user": self.user });
        let request = self.client.request(Method::POST, &format!("{}/files/move", sandbox_path(self.sandbox)?));
        self.client.send(request.json(&body)).await.map(drop)
    }

    /// Removes what an unfinished copy made. The first complaint is the one to report.
    async fn remove(&self, path: &str) {
        if let Ok(call) = self.call("", &[("path", path), ("recursive", "true")]) {
            let _ = self.client.delete(&call).await;
        }
    }

    async fn unpack(&self, from: &Path, to: &str) -> Result<u64, Complaint> {
        let body = json!({ "path": to, "user": self.user });
        let made = self.client.request(Method::POST, &format!("{}/files/directory", sandbox_path(self.sandbox)?));
        self.client.send(made.json(&body)).await?;
        let mut left_out = Vec::new();
        for path in specials(from) {
            say(&format!("cove: {} is not a file, folder or link: left out", from.join(&path).display()));
            left_out.push(OsString::from("--exclude"));
            left_out.push(Path::new(".").join(path).into_os_string());
        }
        let mut tar = tokio::process::Command::new("tar")
            .arg("-C")
            .arg(from)
            .args(["--format=pax", "--anchored", "--no-wildcards"])
            .args(left_out)
            .args(["-cf", "-", "."])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Complaint::failed(format!("start tar: {error}")).hint("apt-get install tar"))?;
        let packed = tar.stdout.take().ok_or_else(|| Complaint::failed("tar has no output"))?;
        let request = self.client.request(Method::PUT, &self.call("/tar", &[("path", to)])?);
        let seen = Bytes::new(&from.display().to_string(), None);
        let count = seen.count();
        let sent = self.client.send(request.body(stream_of(packed, seen))).await.map(drop);
        let status = tar.wait().await.map_err(doing(format!("wait for tar of {}", from.display())))?;
        sent?;
        if status.success() {
            Ok(count.get())
        } else {
            Err(Complaint::failed(format!("tar of {}: {status}", from.display())))
        }
    }

    async fn get(&self, from: &str, to: &str) -> Result<Copied, Complaint> {
        if to == "-" && self.is_directory(from).await {
            return self.get_archive(from).await;
        }
        if to == "-" {
            let source = self.open(from).await?;
            let bytes = source.into_file(&mut std::io::stdout().lock(), Path::new("standard output")).await?;
            return Ok(Copied { to: to.to_owned(), files: Some(1), bytes });
        }
        let name = Path::new(from).file_name().and_then(|name| name.to_str()).unwrap_or("files");
        let folder = Path::new(to);
        let local = if folder.is_dir() { folder.join(name) } else { folder.to_owned() };
        let entry = self.look(from).await.ok();
        if entry.as_ref().is_some_and(|entry| entry.kind == "directory") {
            let (files, bytes) = self.get_folder(from, &local).await?;
            return Ok(Copied { to: local.display().to_string(), files: Some(files), bytes });
        }
        // Nothing here is touched before the server has the file.
        let source = self.open(from).await?;
        let is_new = !local.exists();
        // A name from the sandbox follows no link; a path that the person wrote may.
        let file = if folder.is_dir() {
            Landing::at(folder).and_then(|landing| landing.file(Path::new(name)))
        } else {
            Incoming::at(&local)
        };
        let mut file = file.map_err(|error| failed(&local, error))?;
        let bytes = source.into_file(&mut file, &local).await?;
        if let Some(entry) = entry.filter(|_| is_new) {
            set_new_mode(file.file(), &entry.mode).map_err(|error| failed(&local, error))?;
        }
        file.finish().map_err(|error| failed(&local, error))?;
        Ok(Copied { to: local.display().to_string(), files: Some(1), bytes })
    }

    /// A folder as a tar archive on standard output.
    async fn get_archive(&self, from: &str) -> Result<Copied, Complaint> {
        if std::io::stdout().is_terminal() {
            return Err(Complaint::usage(format!("{from} is a folder: its archive does not go to a terminal"))
                .hint(format!("cove cp {} - > files.tar, or name a folder instead of `-`", self.named(from))));
        }
        let request = self.client.request(Method::GET, &self.call("/tar", &[("path", from)])?);
        let source = Source { path: from.to_owned(), answer: self.client.send(request).await? };
        let bytes = source.into_file(&mut std::io::stdout().lock(), Path::new("standard output")).await?;
        Ok(Copied { to: "-".to_owned(), files: None, bytes })
    }

    async fn open(&self, path: &str) -> Result<Source, Complaint> {
        let request = self.client.request(Method::GET, &self.call("/content", &[("path", path)])?);
        Ok(Source { path: path.to_owned(), answer: self.client.send(request).await? })
    }

    /// A new folder is renamed when it is complete; an existing one is filled file by file.
    async fn get_folder(&self, from: &str, to: &Path) -> Result<(u64, u64), Complaint> {
        match Draft::of(to).map_err(|error| failed(to, error))? {
            None => self.get_into(from, to, to).await,
            Some(draft) => {
                let counted = self.get_into(from, draft.path(), to).await?;
                draft.finish().map_err(|error| failed(to, error))?;
                Ok(counted)
            }
        }
    }

    /// Writes folders and files as they are listed; links last, so that no file is ever written through one. Returns
    /// how many files, and their bytes. Complaints name them below `shown`.
    async fn get_into(&self, from: &str, to: &Path, shown: &Path) -> Result<(u64, u64), Complaint> {
        const DEEPEST: usize = 64;
        let depth = DEEPEST.to_string();
        let entries: Vec<Entry> = self.client.get(&self.call("", &[("path", from), ("depth", &depth)])?).await?;
        let root = self.look(from).await?;
        let landing = Landing::at(to).map_err(|error| failed(shown, error))?;
        let mut links = Vec::new();
        let (mut files, mut bytes) = (0, 0);
        for entry in &entries {
            let Some(relative) = below(&root.path, &entry.path) else { continue };
            let local = shown.join(relative);
            match entry.kind.as_str() {
                // The list does not go deeper.
                "directory" if relative.components().count() >= DEEPEST => {
                    return Err(Complaint::failed(format!("{} is {DEEPEST} folders deep", entry.path))
                        .hint("pack it inside with tar and copy the archive"));
                }
                "directory" => landing.directory(relative).map(drop).map_err(|error| failed(&local, error))?,
                "file" => {
                    let source = self.open(&entry.path).await?;
                    let mut file = landing.file(relative).map_err(|error| failed(&local, error))?;
                    bytes += source.into_file(&mut file, &local).await?;
                    files += 1;
                    set_mode(file.file(), &entry.mode).map_err(|error| failed(&local, error))?;
                    file.finish().map_err(|error| failed(&local, error))?;
                }
                "symlink" => links.extend(entry.target.as_ref().map(|target| (relative, target))),
                _ => say(&format!("cove: {} is not a file, folder or link: left out", entry.path)),
            }
        }
        for (relative, target) in links {
            landing.link(relative, target).map_err(|error| failed(&shown.join(relative), error))?;
        }
        Ok((files, bytes))
    }
}

/// A file that the server has begun to send.
struct Source {
    path: String,
    answer: reqwest::Response,
}

impl Source {
    /// `shown` is what `to` is called.
    async fn into_file(self, to: &mut impl Write, shown: &Path) -> Result<u64, Complaint> {
        let seen = Bytes::new(&self.path, self.answer.content_length());
        let mut stream = self.answer.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| Complaint::failed(format!("{} broke off: {error}", self.path)))?;
            seen.more(chunk.len());
            to.write_all(&chunk).map_err(|error| failed(shown, error))?;
        }
        to.flush().map_err(|error| failed(shown, error))?;
        Ok(seen.count().get())
    }
}

fn failed(path: &Path, error: std::io::Error) -> Complaint {
    doing(format!("write {}", path.display()))(error)
}

/// Pipes, sockets and devices below a folder, which mean nothing elsewhere. What cannot be looked into, tar complains about.
fn specials(folder: &Path) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(relative) = folders.pop() {
        for entry in std::fs::read_dir(folder.join(&relative)).into_iter().flatten().flatten() {
            let path = relative.join(entry.file_name());
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                Ok(kind) if !kind.is_file() && !kind.is_symlink() => found.push(path),
                _ => {}
            }
        }
    }
    found
}

/// A temporary name next to a path inside, for an incomplete copy.
fn draft_beside(path: &str) -> String {
    let (folder, name) = match path.trim_end_matches('/').rsplit_once('/') {
        Some((folder, name)) => (format!("{folder}/"), name),
        None => (String::new(), path),
    };
    format!("{folder}.cove-draft-{}-{name}", std::process::id())
}

/// The rest of a path below its root; `None` for a path that leads elsewhere, whatever the sandbox says.
fn below<'a>(root: &str, path: &'a str) -> Option<&'a Path> {
    let rest = Path::new(path).strip_prefix(root).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && rest.components().next().is_some()).then_some(rest)
}

/// As [`set_mode`], within the caller's umask, which a new file shows.
fn set_new_mode(file: &std::fs::File, octal: &str) -> std::io::Result<()> {
    let own = file.metadata()?.permissions().mode() & 0o777;
    // Who may read it may run it, if the source can be run.
    let within = own | ((own & 0o444) >> 2);
    let mode = u32::from_str_radix(octal.trim_start_matches("0o"), 8).unwrap_or(own) & within;
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Read, write and execute; never set-uid, whatever the sandbox says.
fn set_mode(file: &std::fs::File, octal: &str) -> std::io::Result<()> {
    let mode = u32::from_str_radix(octal.trim_start_matches("0o"), 8).unwrap_or(0o644) & 0o777;
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// A reader as a request's body, a piece at a time.
fn stream_of(source: impl AsyncReadExt + Unpin + Send + 'static, seen: Bytes) -> Body {
    Body::wrap_stream(futures::stream::try_unfold((source, seen), |(mut source, seen)| async move {
        let mut piece = vec![0u8; 128 << 10];
        let count = source.read(&mut piece).await?;
        piece.truncate(count);
        seen.more(count);
        Ok::<_, std::io::Error>(if count == 0 { None } else { Some((piece, (source, seen))) })
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_the_sandboxs_making_cannot_lead_outside() {
        assert_eq!(below("/w", "/w/a/b"), Some(Path::new("a/b")));
        for path in ["/w", "/w/", "/etc/passwd", "/w/../etc/passwd", "/w/a/../../x", "a/b", "/wx/a"] {
            assert_eq!(below("/w", path), None, "{path}");
        }
    }

    #[test]
    fn the_side_with_a_name_before_the_colon_is_inside() {
        assert!(matches!(side("box:/tmp"), Side::Inside { sandbox: "box", path: "/tmp" }));
        assert!(matches!(side("box:"), Side::Inside { path: "", .. }));
        for text in ["./a:b", "/tmp/x", "-", "a", ":x", "dir/f:x"] {
            assert!(matches!(side(text), Side::Here(_)), "{text}");
        }
    }
}
