//! A directory that lives as long as a measurement, whoever its files belong to.

use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cove_terminal::complaint::Complaint;
use tempfile::{Builder, TempDir};

/// The word with which the program around us is started again to remove directories, from its home namespace.
pub const REMOVE: &str = "__remove";

/// Sandboxes of an ordinary user write files of ids that this process does not have: they are removed by a child that moves home.
#[derive(Debug)]
pub struct OwnDirectory(Option<TempDir>);

impl OwnDirectory {
    pub fn new(prefix: &str) -> Result<OwnDirectory, Complaint> {
        OwnDirectory::below(&std::env::temp_dir(), prefix)
    }

    pub fn below(parent: &Path, prefix: &str) -> Result<OwnDirectory, Complaint> {
        let made = Builder::new().prefix(prefix).tempdir_in(parent);
        let made = made.map_err(|error| {
            Complaint::failed(format!("make a directory in {}: {error}", parent.display()))
                .hint("TMPDIR names another place for it")
        })?;
        Ok(OwnDirectory(Some(made)))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().map(TempDir::path).expect("it is there until it is removed")
    }

    /// Stays, and is somebody else's to remove.
    pub fn keep(mut self) -> PathBuf {
        self.0.take().map(TempDir::keep).expect("it is there until it is removed")
    }

    pub fn remove(mut self) -> Result<(), Complaint> {
        self.clear()
    }

    fn clear(&mut self) -> Result<(), Complaint> {
        let Some(directory) = self.0.take() else { return Ok(()) };
        let path = directory.keep();
        let trouble = |why: String| {
            Complaint::failed(format!("remove {}: {why}", path.display()))
                .hint("nothing uses it any more: it can be removed by hand")
        };
        match std::fs::remove_dir_all(&path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !cove_engine::privilege::is_host_root() => {}
            Err(error) => return Err(trouble(error.to_string())),
            Ok(()) => return Ok(()),
        }
        let mut child = Command::new(cove_terminal::program()?);
        // Ctrl-C is for us: the cleaning goes on.
        child.arg(REMOVE).arg(&path).process_group(0).stdin(Stdio::null());
        let done = child.output().map_err(|error| trouble(error.to_string()))?;
        if done.status.success() {
            return Ok(());
        }
        Err(trouble(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        if let Err(complaint) = self.clear() {
            cove_terminal::render::say(&complaint.to_string());
        }
    }
}
