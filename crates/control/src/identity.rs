//! The names of this server and of its data directory's database: made once, and never changed by accident.
//!
//! A sandbox's files are in the data directory, its row is in the database. When a server comes back, it removes files
//! that the database does not know. Under another name, or on another database, it would remove everything that tenants
//! have.

use std::io;
use std::path::Path;

use crate::{Error, random};

/// The server's name among those that share a database. Made once, kept in the data directory.
pub(crate) fn of_server(data: &Path) -> Result<String, Error> {
    let path = data.join("server-id");
    match read(&path)? {
        Some(id) => Ok(id),
        None => {
            let id = random::id("server");
            write(&path, &id)?;
            Ok(id)
        }
    }
}

/// Refuses a data directory that was used with another database.
pub(crate) fn check_database(data: &Path, database: &str) -> Result<(), Error> {
    let path = data.join("database-id");
    match read(&path)? {
        None => write(&path, database),
        Some(known) if known == database => Ok(()),
        Some(_) => Err(Error::Conflict(format!(
            "the data directory {} was used with another database; this one does not know its sandboxes and would \
             remove them. Start with the database it belongs to, or remove {} to give its sandboxes up",
            data.display(),
            path.display()
        ))),
    }
}

/// Absent, or empty as a power cut may leave it.
fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::internal(format!("read {}: {error}", path.display()))),
    }
}

/// Atomic, also in a power cut.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    cove_sys::replacement::replace(path, text.as_bytes(), 0o644)
        .map_err(|error| Error::internal(format!("write {}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_made_once_and_never_made_anew_where_it_cannot_be_read() {
        let data = tempfile::tempdir().unwrap();
        let name = of_server(data.path()).unwrap();
        assert_eq!(of_server(data.path()).unwrap(), name);
        let path = data.path().join("server-id");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(of_server(data.path()).unwrap_err().detail().unwrap().starts_with("read "));
    }

    #[test]
    fn a_data_directory_belongs_to_one_database() {
        let data = tempfile::tempdir().unwrap();
        check_database(data.path(), "one").unwrap();
        check_database(data.path(), "one").unwrap();
        let refused = check_database(data.path(), "other").unwrap_err().to_string();
        assert!(refused.contains("was used with another database") && refused.contains("database-id"), "{refused}");
    }
}
