//! A passport: everything of some sandboxes in one tar file, for moves without a network.
//!
//! ```text
//!   0/sandbox.json   what it is: id, name, labels, environment, timers; its folders with their digests
//!   0/0.tar          the first folder
//!   1/sandbox.json   …
//! ```

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::origin::{Found, Origin};
use super::{Arguments, ENVIRONMENT, Folder, Piece, Sum, environment, spool, summing};
use crate::complaint::{Complaint, doing};
use crate::progress::Far;

/// Bytes that a description may have.
const LARGEST: u64 = 4 << 20;

#[derive(Serialize, Deserialize)]
struct Page {
    version: u32,
    sandbox: Found,
    folders: Vec<Kept>,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    here: String,
    sum: Sum,
}

/// The form that this program writes and reads.
const VERSION: u32 = 1;

pub async fn write(origin: &Origin, all: &[Found], folders: &[Folder], path: &Path) -> Result<(), Complaint> {
    let file = File::options().write(true).create_new(true).open(path);
    let file = file.map_err(doing(format!("make {}", path.display())))?;
    let mut tar = tar::Builder::new(file);
    let far = Far::new("passport");
    for (number, found) in all.iter().enumerate() {
        far.tell(&format!("{} of {}: {}", number + 1, all.len(), found.id));
        origin.wake(found).await?;
        let written = add(origin, found, folders, number, &mut tar).await;
        let back = origin.put_back(found).await;
        written?;
        back?;
    }
    let file = tar.into_inner().map_err(doing(format!("write {}", path.display())))?;
    file.sync_all().map_err(doing(format!("write {}", path.display())))
}

async fn add(
    origin: &Origin,
    found: &Found,
    folders: &[Folder],
    number: usize,
    tar: &mut tar::Builder<File>,
) -> Result<(), Complaint> {
    let mut sandbox = found.clone();
    if sandbox.env.is_empty() && !matches!(origin, Origin::Daytona(_)) {
        sandbox.env = environment(&origin.run(found, ENVIRONMENT).await?);
    }
    let (mut kept, mut files) = (Vec::new(), Vec::new());
    for folder in folders {
        kept.push(Kept {
            here: folder.here.clone(),
            sum: Sum::read(&origin.run(found, &summing(&folder.there)).await?)?,
        });
        let mut file = spool()?;
        origin.fetch(found, &folder.there, &mut file).await?;
        files.push(file);
    }
    let page = Page { version: VERSION, sandbox, folders: kept };
    let text =
        serde_json::to_vec_pretty(&page).map_err(|error| Complaint::failed(format!("write a passport: {error}")))?;
    append(tar, &format!("{number}/sandbox.json"), text.len() as u64, &text[..])?;
    for (place, mut file) in files.into_iter().enumerate() {
        let size = file.seek(SeekFrom::End(0)).and_then(|size| file.rewind().map(|()| size));
        append(tar, &format!("{number}/{place}.tar"), size.map_err(doing("read what was fetched"))?, file)?;
    }
    Ok(())
}

fn append(tar: &mut tar::Builder<File>, name: &str, size: u64, from: impl Read) -> Result<(), Complaint> {
    let mut header = tar::Header::new_gnu();
    header.set_size(size);
    header.set_mode(0o600);
    tar.append_data(&mut header, name, from).map_err(doing(format!("write {name} into the passport")))
}

/// Reads a passport from its beginning to its end.
pub struct Reader {
    file: File,
    /// Sandboxes that were read.
    number: usize,
}

impl Reader {
    pub fn open(path: &Path) -> Result<Reader, Complaint> {
        let file = File::open(path).map_err(doing(format!("open {}", path.display())))?;
        Ok(Reader { file, number: 0 })
    }

    /// The next sandbox that is meant.
    pub fn next(&mut self, arguments: &Arguments) -> Result<Option<(Found, Vec<Piece>)>, Complaint> {
        loop {
            let Some((found, pieces)) = self.read(self.number)? else { return Ok(None) };
            self.number += 1;
            if arguments.means(&found) {
                return Ok(Some((found, pieces)));
            }
        }
    }

    fn read(&mut self, number: usize) -> Result<Option<(Found, Vec<Piece>)>, Complaint> {
        let broken = |why: String| Complaint::failed(format!("the passport cannot be read: {why}"));
        self.file.rewind().map_err(|error| broken(error.to_string()))?;
        let mut archive = tar::Archive::new(&mut self.file);
        // With a seek over what is not wanted.
        let entries = archive.entries_with_seek().map_err(|error| broken(error.to_string()))?;
        let (mut page, mut pieces) = (None::<Page>, Vec::new());
        for entry in entries {
            let mut entry = entry.map_err(|error| broken(error.to_string()))?;
            let name = entry.path().map_err(|error| broken(error.to_string()))?.to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix(&format!("{number}/")) else { continue };
            if rest == "sandbox.json" {
                let mut text = Vec::new();
                entry.by_ref().take(LARGEST).read_to_end(&mut text).map_err(|error| broken(error.to_string()))?;
                let read: Page = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
                if read.version != VERSION {
                    return Err(broken(format!("its form is {}, and this program knows {VERSION}", read.version)));
                }
                page = Some(read);
                continue;
            }
            let place = rest.strip_suffix(".tar").and_then(|place| place.parse::<usize>().ok());
            let kept = page.as_ref().and_then(|page| page.folders.get(place?));
            let kept = kept.ok_or_else(|| broken(format!("{name} is not described in it")))?;
            let mut file = spool()?;
            std::io::copy(&mut entry, &mut file).map_err(|error| broken(error.to_string()))?;
            pieces.push(Piece { here: kept.here.clone(), sum: kept.sum.clone(), file });
        }
        match page {
            Some(page) if page.folders.len() == pieces.len() => Ok(Some((page.sandbox, pieces))),
            Some(page) => Err(broken(format!("folders of {} are missing", page.sandbox.id))),
            None => Ok(None),
        }
    }
}
