//! The fake guest's files: a map of paths.

use std::collections::BTreeMap;

use cove_protocol::file::{Entry, FileKind, WriteMode};
use cove_protocol::{Failure, FailureKind};

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Node {
    directory: bool,
    content: Vec<u8>,
    mode: u32,
    modified_ms: i64,
    /// Its content is where it points.
    #[serde(default)]
    link: bool,
}

#[derive(Default, Clone, serde::Serialize, serde::Deserialize)]
pub struct Files {
    nodes: BTreeMap<String, Node>,
}

fn not_found(step: &str, path: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("{step} {path}: no such file or directory"))
}

fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

/// Absolute, without `.`, `..` and a slash at the end.
pub fn absolute(path: &str) -> String {
    let path = match path.strip_prefix('~') {
        Some(rest) => format!("/home/user{rest}"),
        None if path.starts_with('/') => path.to_owned(),
        None => format!("/home/user/{path}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

impl Files {
    pub fn fresh() -> Self {
        let mut files = Files::default();
        for path in ["/", "/tmp", "/home", "/home/user"] {
            files.nodes.insert(
                path.into(),
                Node { directory: true, content: vec![], mode: 0o755, modified_ms: now_ms(), link: false },
            );
        }
        files
    }

    pub fn bytes(&self) -> u64 {
        self.nodes.values().map(|node| node.content.len() as u64).sum()
    }

    pub fn stat(&self, path: &str) -> Result<Entry, Failure> {
        let node = self.nodes.get(path).ok_or_else(|| not_found("stat", path))?;
        Ok(Entry {
            name: path.rsplit('/').next().unwrap_or_default().to_owned(),
            path: path.to_owned(),
            kind: if node.directory { FileKind::Directory } else { FileKind::File },
            size: node.content.len() as u64,
            mode: node.mode,
            uid: 1000,
            gid: 1000,
            owner: "user".into(),
            group: "user".into(),
            modified_ms: node.modified_ms,
            changed_ms: node.modified_ms,
            accessed_ms: node.modified_ms,
            target: None,
            inode: 1,
            metadata: Default::default(),
        })
    }

    pub fn list(&self, path: &str, depth: u32) -> Result<Vec<Entry>, Failure> {
        let entry = self.stat(path)?;
        if entry.kind != FileKind::Directory {
            return Err(Failure::new(FailureKind::NotADirectory, format!("list {path}: not a directory")));
        }
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let below = self.nodes.keys().filter(|key| {
            key.len() > prefix.len()
                && key.starts_with(&prefix)
                && (key[prefix.len()..].matches('/').count() as u32) < depth.max(1)
        });
        below.map(|key| self.stat(key)).collect()
    }

    pub fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let node = self.nodes.get(path).ok_or_else(|| not_found("read", path))?;
        if node.directory {
            return Err(Failure::new(FailureKind::IsADirectory, format!("read {path}: is a directory")));
        }
        if node.link {
            let target = String::from_utf8_lossy(&node.content).into_owned();
            let target = self.nodes.get(&absolute(&target)).filter(|target| !target.link && !target.directory);
            return Ok(target.ok_or_else(|| not_found("read", path))?.content.clone());
        }
        Ok(node.content.clone())
    }

    pub fn symlink(&mut self, path: &str, target: &str) -> Result<Entry, Failure> {
        if self.nodes.contains_key(path) {
            return Err(Failure::new(FailureKind::AlreadyExists, format!("link {path}: file exists")));
        }
        let (content, modified_ms) = (target.as_bytes().to_vec(), now_ms());
        self.nodes.insert(path.to_owned(), Node { directory: false, content, mode: 0o777, modified_ms, link: true });
        self.stat(path)
    }

    pub fn count(&self) -> usize {
        self.nodes.values().filter(|node| !node.directory).count()
    }

    pub fn forget_below(&mut self, path: &str) {
        let prefix = format!("{path}/");
        self.nodes.retain(|key, _| !key.starts_with(&prefix));
    }

    pub fn unpack(&mut self, path: &str, archive: &[u8]) -> Result<(), Failure> {
        let wrong = |error: std::io::Error| Failure::new(FailureKind::InvalidArgument, error.to_string());
        self.make_directory(path)?;
        for entry in tar::Archive::new(archive).entries().map_err(wrong)? {
            let mut entry = entry.map_err(wrong)?;
            let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
            let inside = absolute(&format!("{path}/{name}"));
            if entry.header().entry_type().is_dir() {
                self.make_directory(&inside)?;
                continue;
            }
            if entry.header().entry_type().is_symlink() {
                let target = entry.link_name_bytes().map(|link| String::from_utf8_lossy(&link).into_owned());
                self.nodes.remove(&inside);
                self.symlink(&inside, &target.unwrap_or_default())?;
                continue;
            }
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).map_err(wrong)?;
            let mode = entry.header().mode().ok();
            self.write(&inside, content, WriteMode::Replace, mode, true)?;
        }
        Ok(())
    }

    pub fn pack(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let wrong = |error: std::io::Error| Failure::new(FailureKind::Internal, error.to_string());
        let entry = self.stat(path)?;
        let mut builder = tar::Builder::new(Vec::new());
        for (key, content) in self.all_below(path) {
            let name = match entry.kind {
                FileKind::Directory => key[path.trim_end_matches('/').len()..].trim_start_matches('/').to_owned(),
                _ => entry.name.clone(),
            };
            let mut header = tar::Header::new_gnu();
            header.set_mode(self.nodes[&key].mode);
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, name, content.as_slice()).map_err(wrong)?;
        }
        builder.into_inner().map_err(wrong)
    }

    pub fn write(
        &mut self,
        path: &str,
        content: Vec<u8>,
        how: WriteMode,
        mode: Option<u32>,
        parents: bool,
    ) -> Result<Entry, Failure> {
        if parents {
            self.make_directory(parent(path))?;
        }
        if !self.nodes.get(parent(path)).is_some_and(|node| node.directory) {
            return Err(not_found("write", path));
        }
        let old = self.nodes.get(path);
        if old.is_some_and(|node| node.directory) {
            return Err(Failure::new(FailureKind::IsADirectory, format!("write {path}: is a directory")));
        }
        let mut whole = old.map(|node| node.content.clone()).unwrap_or_default();
        match how {
            WriteMode::Replace | WriteMode::InPlace => whole = content,
            WriteMode::Create if old.is_some() => {
                return Err(Failure::new(FailureKind::AlreadyExists, format!("write {path}: file exists")));
            }
            WriteMode::Create => whole = content,
            WriteMode::Append => whole.extend(content),
            WriteMode::At(offset) => {
                let end = offset as usize + content.len();
                whole.resize(whole.len().max(end), 0);
                whole[offset as usize..end].copy_from_slice(&content);
            }
        }
        let mode = mode.or(old.map(|node| node.mode)).unwrap_or(0o644);
        self.nodes.insert(
            path.to_owned(),
            Node { directory: false, content: whole, mode, modified_ms: now_ms(), link: false },
        );
        self.stat(path)
    }

    /// Whether it was there already.
    pub fn make_directory(&mut self, path: &str) -> Result<bool, Failure> {
        if let Some(node) = self.nodes.get(path) {
            if node.directory {
                return Ok(true);
            }
            return Err(Failure::new(FailureKind::AlreadyExists, format!("make {path}: file exists")));
        }
        if path != "/" {
            self.make_directory(parent(path))?;
        }
        self.nodes.insert(
            path.into(),
            Node { directory: true, content: vec![], mode: 0o755, modified_ms: now_ms(), link: false },
        );
        Ok(false)
    }

    pub fn rename(&mut self, from: &str, to: &str) -> Result<Entry, Failure> {
        self.stat(from)?;
        let moved: Vec<String> =
            self.nodes.keys().filter(|key| *key == from || key.starts_with(&format!("{from}/"))).cloned().collect();
        for key in moved {
            if let Some(node) = self.nodes.remove(&key) {
                self.nodes.insert(format!("{to}{}", &key[from.len()..]), node);
            }
        }
        self.stat(to)
    }

    pub fn remove(&mut self, path: &str, recursive: bool) -> Result<(), Failure> {
        self.stat(path)?;
        let prefix = format!("{path}/");
        if !recursive && self.nodes.keys().any(|key| key.starts_with(&prefix)) {
            return Err(Failure::new(FailureKind::NotEmpty, format!("remove {path}: directory not empty")));
        }
        self.nodes.retain(|key, _| key != path && !key.starts_with(&prefix));
        Ok(())
    }

    pub fn set_mode(&mut self, path: &str, mode: u32) -> Result<Entry, Failure> {
        self.nodes.get_mut(path).ok_or_else(|| not_found("chmod", path))?.mode = mode;
        self.stat(path)
    }

    pub fn all_below(&self, path: &str) -> Vec<(String, Vec<u8>)> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let files =
            self.nodes.iter().filter(|(key, node)| !node.directory && (key.starts_with(&prefix) || *key == path));
        files.map(|(key, node)| (key.clone(), node.content.clone())).collect()
    }
}
