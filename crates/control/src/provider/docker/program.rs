//! Our program as the archive that the daemon unpacks into a container.

use std::sync::OnceLock;

use bytes::Bytes;

use super::container::{FOLDER, PROGRAM_NAME};

/// Packed once: it is the same for all.
pub fn archive() -> Result<Bytes, std::io::Error> {
    static PACKED: OnceLock<Bytes> = OnceLock::new();
    if let Some(packed) = PACKED.get() {
        return Ok(packed.clone());
    }
    let packed = Bytes::from(pack(cove_engine::guest_program())?);
    Ok(PACKED.get_or_init(|| packed).clone())
}

fn pack(program: &[u8]) -> Result<Vec<u8>, std::io::Error> {
    let mut tar = tar::Builder::new(Vec::new());
    let folder = FOLDER.trim_start_matches('/');
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o700);
    of_root(&mut header, 0);
    tar.append_data(&mut header, format!("{folder}/"), std::io::empty())?;
    let mut header = tar::Header::new_ustar();
    header.set_mode(0o500);
    of_root(&mut header, program.len() as u64);
    tar.append_data(&mut header, format!("{folder}/{PROGRAM_NAME}"), program)?;
    tar.into_inner()
}

fn of_root(header: &mut tar::Header, size: u64) {
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_but_root_enters_the_folder_of_the_guest() {
        let packed = pack(b"a program").unwrap();
        let mut archive = tar::Archive::new(packed.as_slice());
        let entries: Vec<(String, u32, u64, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                (path, header.mode().unwrap(), header.uid().unwrap(), header.size().unwrap())
            })
            .collect();
        assert_eq!(entries, [(".cove/".to_owned(), 0o700, 0, 0), (".cove/guest".to_owned(), 0o500, 0, 9)]);
    }
}
