//! Finds a truncated or invalid database file when it is opened, and names it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::Error;

/// Refuses a file that is shorter than its header says. SQLite would find out later, page by page. If there is a log,
/// the file may be behind it, and SQLite decides.
pub(super) fn check(file: &Path) -> Result<(), Error> {
    let mut log = file.as_os_str().to_owned();
    log.push("-wal");
    if std::fs::metadata(&log).is_ok_and(|log| log.len() > 0) {
        return Ok(());
    }
    let Ok(mut database) = File::open(file) else { return Ok(()) };
    let length = database.metadata().map_or(0, |metadata| metadata.len());
    if length == 0 {
        return Ok(());
    }
    // https://www.sqlite.org/fileformat.html#the_database_header
    let mut header = [0; 100];
    if database.read_exact(&mut header).is_err() || !header.starts_with(b"SQLite format 3\0") {
        return Err(damaged(file, "it is not a SQLite database"));
    }
    let page = match u64::from(u16::from_be_bytes([header[16], header[17]])) {
        1 => 65536,
        size => size,
    };
    let number = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let told = u64::from(number(28)) * page;
    // The count of pages is valid if both counters agree.
    if number(24) == number(92) && length < told {
        return Err(damaged(file, &format!("it has {length} bytes and should have {told}")));
    }
    Ok(())
}

fn damaged(file: &Path, how: &str) -> Error {
    Error::Conflict(format!(
        "the database {} is damaged: {how}. Put a backup in its place, or move it away together with its -wal and \
         -shm files to begin anew; sandboxes that it knew are kept aside",
        file.display()
    ))
}

/// Why it could not be opened.
pub(super) fn name(file: &Path, error: sqlx::Error) -> Error {
    match &error {
        // SQLITE_CORRUPT and SQLITE_NOTADB, with their finer kinds.
        sqlx::Error::Database(database)
            if database
                .code()
                .and_then(|code| code.parse::<u32>().ok())
                .is_some_and(|code| matches!(code & 0xff, 11 | 26)) =>
        {
            damaged(file, database.message())
        }
        _ => Error::internal(format!("open the database {}: {error}", file.display())),
    }
}
