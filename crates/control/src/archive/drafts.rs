//! Unfinished objects in the folder after a server died: the next server removes them before it begins. (An
//! S3-compatible store drops unfinished uploads by a rule of its bucket.)
//!
//! An object is written as `NAME#NUMBER` and renamed when it is complete. No object has such a name.

use std::fs;
use std::io;
use std::path::Path;

use crate::{App, Error};

impl App {
    /// Only the server that owns the data directory may call this: drafts of another server may still be written.
    pub(crate) async fn remove_drafts(&self) -> Result<(), Error> {
        if self.config().archive.url.is_some() {
            return Ok(());
        }
        let folder = self.config().data.join("archive");
        let swept = tokio::task::spawn_blocking(move || (sweep(&folder), folder)).await;
        let (swept, folder) = swept.map_err(|error| Error::internal(format!("sweep the archive: {error}")))?;
        match swept {
            Ok(0) => Ok(()),
            Ok(removed) => {
                tracing::info!(removed, "archives and artifacts that were never whole");
                Ok(())
            }
            Err(error) => Err(Error::internal(format!("sweep {}: {error}", folder.display()))),
        }
    }
}

/// How many were removed.
fn sweep(folder: &Path) -> io::Result<usize> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    };
    let mut removed = 0;
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            removed += sweep(&entry.path())?;
        } else if is_draft(&entry.file_name().to_string_lossy()) {
            fs::remove_file(entry.path())?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn is_draft(name: &str) -> bool {
    name.split_once('#').is_some_and(|(_, number)| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_never_whole_goes() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("sandboxes");
        fs::create_dir(&deep).unwrap();
        for name in ["a.tar.zst", "a.tar.zst#1", "b.tar.zst#12", "c#x", "d#"] {
            fs::write(deep.join(name), name).unwrap();
        }
        assert_eq!(sweep(folder.path()).unwrap(), 2);
        let mut left: Vec<_> =
            fs::read_dir(&deep).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["a.tar.zst", "c#x", "d#"]);
        assert_eq!(sweep(&folder.path().join("nowhere")).unwrap(), 0);
    }
}
