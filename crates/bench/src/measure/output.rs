//! Files that a report goes to: looked at before a measurement, written after it.

use std::fs::{self, File};
use std::path::Path;

use cove_terminal::complaint::{Complaint, doing};
use cove_terminal::landing;

/// A measurement of many minutes is not lost for a path that was mistyped.
pub fn can_write_to(paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Result<(), Complaint> {
    for path in paths {
        let path = path.as_ref();
        let fresh = !path.exists();
        File::options().create(true).append(true).open(path).map_err(|error| {
            Complaint::usage(format!("write {}: {error}", path.display()))
                .hint("name a file in a folder that is there and that you can write to")
        })?;
        if fresh {
            fs::remove_file(path).map_err(doing(format!("remove {}", path.display())))?;
        }
    }
    Ok(())
}

pub fn write_to(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<(), Complaint> {
    let Some(path) = path else { return Ok(()) };
    landing::replace(path, text().as_bytes())
        .map_err(|error| Complaint::failed(format!("write {}: {error}", path.display())))
}
