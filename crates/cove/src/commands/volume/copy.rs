//! `cove volume cp`: files and folders into a volume and out of it.
//!
//! Sandboxes write into volumes, so what comes out is not trusted: every file is fetched by name and lands below one
//! folder (`landing`).

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use futures::{StreamExt, TryStreamExt};
use reqwest::{Body, Method};
use serde::Deserialize;
use serde_json::json;
use tokio_util::io::ReaderStream;

use super::path as volume_path;
use crate::client::{Client, block_on, query_string};
use crate::complaint::{Complaint, doing};
use crate::interrupt::or_interrupted;
use crate::landing::{Incoming, Landing};
use crate::progress::Bytes;
use crate::render::{print_json, say};

#[derive(Debug, Deserialize)]
struct Entry {
    path: String,
    kind: String,
    mode: String,
    target: Option<String>,
}

/// How much was copied.
#[derive(Debug, Default)]
struct Copied {
    files: u64,
    bytes: u64,
}

struct Inside<'a> {
    client: &'a Client,
    volume: &'a str,
}

/// `./a:b` is here; `data:a` is in a volume.
fn side(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(volume, _)| !volume.is_empty() && !volume.contains('/'))
}

pub fn run(client: &Client, from: &str, to: &str, as_json: bool) -> Result<u8, Complaint> {
    let copied = match (side(from), side(to)) {
        (None, Some((volume, path))) => block_on(or_interrupted(Inside { client, volume }.put(Path::new(from), path)))?,
        (Some((volume, path)), None) => block_on(or_interrupted(Inside { client, volume }.get(path, Path::new(to))))?,
        (None, None) => {
            return Err(Complaint::usage("neither side is in a volume")
                .hint("write VOLUME:PATH on one side, for example: cove volume cp ./f data:/f"));
        }
        (Some(_), Some(_)) => {
            return Err(Complaint::usage("both sides are in a volume").hint("copy to here first, then from here"));
        }
    };
    if as_json {
        print_json(&json!({ "from": from, "to": to, "files": copied.files, "bytes": copied.bytes }))?;
    }
    Ok(0)
}

fn failed(path: &Path, error: impl std::fmt::Display) -> Complaint {
    Complaint::failed(format!("{}: {error}", path.display()))
}

impl Inside<'_> {
    fn call(&self, what: &str, pairs: &[(&str, &str)]) -> String {
        format!("{}/files{what}{}", volume_path(self.volume), query_string(pairs))
    }

    async fn look(&self, path: &str) -> Result<Entry, Complaint> {
        self.client.get(&self.call("/stat", &[("path", path)])).await
    }

    async fn put(&self, from: &Path, to: &str) -> Result<Copied, Complaint> {
        if from == Path::new("-") {
            return self.put_input(to).await;
        }
        let known = fs::metadata(from).map_err(|error| failed(from, error))?;
        // Into a folder under its own name, as cp does.
        let whole = std::path::absolute(from).map_err(|error| failed(from, error))?;
        let name = whole.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let into_folder = match to {
            "" => true,
            to if to.ends_with('/') => true,
            to => self.look(to).await.is_ok_and(|entry| entry.kind == "directory"),
        };
        let target = match name {
            Some(name) if into_folder => format!("{}/{name}", to.trim_end_matches('/')),
            _ => to.to_owned(),
        };
        let mut copied = Copied::default();
        if known.is_dir() {
            self.put_folder(from, &target, &mut copied).await?;
        } else {
            self.put_file(from, &target, &mut copied).await?;
        }
        Ok(copied)
    }

    /// Standard input becomes a file.
    async fn put_input(&self, to: &str) -> Result<Copied, Complaint> {
        if to.is_empty() || to.ends_with('/') {
            return Err(Complaint::usage("standard input has no name of its own")
                .hint(format!("name the file: cove volume cp - {}:{to}FILE", self.volume)));
        }
        let seen = Bytes::new("standard input", None);
        let count = seen.count();
        let stream = ReaderStream::with_capacity(tokio::io::stdin(), 256 << 10);
        let stream = stream.inspect_ok(move |piece| seen.more(piece.len()));
        let call = self.call("/content", &[("path", to)]);
        self.client.send(self.client.request(Method::PUT, &call).body(Body::wrap_stream(stream))).await?;
        Ok(Copied { files: 1, bytes: count.get() })
    }

    async fn put_folder(&self, from: &Path, to: &str, copied: &mut Copied) -> Result<(), Complaint> {
        let mut folders = vec![(from.to_owned(), to.to_owned())];
        while let Some((folder, target)) = folders.pop() {
            let body = json!({ "path": target });
            self.client.post::<serde_json::Value>(&self.call("/directory", &[]), &body).await?;
            for entry in fs::read_dir(&folder).map_err(|error| failed(&folder, error))? {
                let entry = entry.map_err(|error| failed(&folder, error))?;
                let path = entry.path();
                let Some(name) = entry.file_name().to_str().map(str::to_owned) else {
                    return Err(failed(&path, "a volume's files have names in UTF-8"));
                };
                let target = format!("{target}/{name}");
                let kind = entry.file_type().map_err(|error| failed(&path, error))?;
                if kind.is_dir() {
                    folders.push((path, target));
                } else if kind.is_file() {
                    self.put_file(&path, &target, copied).await?;
                } else {
                    say(&format!("cove: {} is not a file or folder: left out", path.display()));
                }
            }
        }
        Ok(())
    }

    async fn put_file(&self, from: &Path, to: &str, copied: &mut Copied) -> Result<(), Complaint> {
        let file = tokio::fs::File::open(from).await.map_err(|error| failed(from, error))?;
        let known = file.metadata().await.map_err(|error| failed(from, error))?;
        let mode = format!("{:o}", known.permissions().mode() & 0o777);
        let seen = Bytes::new(&from.display().to_string(), Some(known.len()));
        let count = seen.count();
        let stream = ReaderStream::with_capacity(file, 256 << 10).inspect_ok(move |piece| seen.more(piece.len()));
        let call = self.call("/content", &[("path", to), ("mode", &mode)]);
        self.client.send(self.client.request(Method::PUT, &call).body(Body::wrap_stream(stream))).await?;
        copied.files += 1;
        copied.bytes += count.get();
        Ok(())
    }

    async fn get(&self, from: &str, to: &Path) -> Result<Copied, Complaint> {
        let entry = self.look(from).await?;
        let mut copied = Copied::default();
        if entry.kind == "directory" && to == Path::new("-") {
            return Err(Complaint::usage(format!("{} is a folder, and standard output takes one file", entry.path))
                .hint(format!("to a folder here: cove volume cp {}:{} ./FOLDER", self.volume, entry.path)));
        }
        if entry.kind == "directory" {
            self.get_folder(&entry, to, &mut copied).await?;
            return Ok(copied);
        }
        if to == Path::new("-") {
            let shown = Path::new("standard output");
            self.fetch(&entry.path, &mut std::io::stdout().lock(), shown, &mut copied).await?;
            return Ok(copied);
        }
        let name = entry.path.rsplit('/').next().unwrap_or_default();
        let target = if to.is_dir() { to.join(name) } else { to.to_owned() };
        let mut file = Incoming::at(&target).map_err(|error| failed(&target, error))?;
        self.fetch(&entry.path, &mut file, &target, &mut copied).await?;
        set_mode(&file, &entry.mode).map_err(|error| failed(&target, error))?;
        file.finish().map_err(|error| failed(&target, error))?;
        Ok(copied)
    }

    async fn get_folder(&self, top: &Entry, to: &Path, copied: &mut Copied) -> Result<(), Complaint> {
        let listed: Vec<Entry> = self.client.get(&self.call("", &[("path", &top.path), ("depth", "64")])).await?;
        let landing = Landing::at(to).map_err(|error| failed(to, error))?;
        let mut links: Vec<(PathBuf, String)> = Vec::new();
        for entry in &listed {
            let Some(relative) = below(&top.path, &entry.path) else {
                return Err(Complaint::failed(format!("{} is not below {}", entry.path, top.path)));
            };
            match entry.kind.as_str() {
                "directory" => drop(landing.directory(relative).map_err(|error| failed(&to.join(relative), error))?),
                "file" => {
                    let local = to.join(relative);
                    let mut file = landing.file(relative).map_err(|error| failed(&local, error))?;
                    self.fetch(&entry.path, &mut file, &local, copied).await?;
                    set_mode(&file, &entry.mode).map_err(|error| failed(&local, error))?;
                    file.finish().map_err(|error| failed(&local, error))?;
                }
                // Last: nothing is written through them.
                "symlink" => links.extend(entry.target.clone().map(|target| (relative.to_owned(), target))),
                _ => say(&format!("cove: {} is not a file, folder or link: left out", entry.path)),
            }
        }
        for (relative, target) in links {
            landing.link(&relative, &target).map_err(|error| failed(&to.join(&relative), error))?;
        }
        Ok(())
    }

    /// `shown` is what `to` is called.
    async fn fetch(&self, path: &str, to: &mut impl Write, shown: &Path, copied: &mut Copied) -> Result<(), Complaint> {
        let request = self.client.request(Method::GET, &self.call("/content", &[("path", path)]));
        let answer = self.client.send(request).await?;
        let seen = Bytes::new(path, answer.content_length());
        let mut stream = answer.bytes_stream();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|error| Complaint::failed(format!("{path} broke off: {error}")))?;
            seen.more(chunk.len());
            to.write_all(&chunk).map_err(doing(format!("write {}", shown.display())))?;
        }
        to.flush().map_err(doing(format!("write {}", shown.display())))?;
        copied.files += 1;
        copied.bytes += seen.count().get();
        Ok(())
    }
}

/// Read, write and execute; never set-uid, whatever the volume says.
fn set_mode(file: &Incoming, octal: &str) -> std::io::Result<()> {
    let mode = u32::from_str_radix(octal, 8).unwrap_or(0o644) & 0o777;
    file.file().set_permissions(fs::Permissions::from_mode(mode))
}

/// The rest of a path below the top; `None` for one that leads elsewhere, whatever the server says.
fn below<'a>(top: &str, path: &'a str) -> Option<&'a Path> {
    let rest = Path::new(path).strip_prefix(top).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && rest.components().next().is_some()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volumes_paths_cannot_lead_outside() {
        assert_eq!(below("/", "/a/b"), Some(Path::new("a/b")));
        assert_eq!(below("/a", "/a/b"), Some(Path::new("b")));
        for path in ["/a", "/b", "/a/../b", "/a/../../etc/passwd", "a/b"] {
            assert_eq!(below("/a", path), None, "{path}");
        }
    }

    #[test]
    fn the_side_with_a_name_before_the_colon_is_the_volume() {
        assert_eq!(side("data:/x"), Some(("data", "/x")));
        for here in ["./a:b", "/tmp/x", "x", ":y", "d/f:x"] {
            assert_eq!(side(here), None, "{here}");
        }
    }
}
