//! A sandbox's directory before it has a name.
//!
//! Every new file costs a disk a quarter of a millisecond, and tens of milliseconds while others write. So the
//! directory is made ahead with everything that a life needs: empty files for the records, a listening socket. A launch
//! fills in the specification and gives the directory its name; nobody ever sees one with an incomplete specification.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::memory_info;
use crate::record::{LIFE, Life, MEMORY_INFO, SOCKET, SPEC, text};
use crate::spec::Spec;

#[derive(Debug)]
pub struct Cradle {
    spec: File,
    nest: Nest,
}

/// The open files of a new life.
#[derive(Debug)]
pub struct Nest {
    directory: PathBuf,
    pub listener: UnixListener,
    /// What the sandbox sees as `/proc/meminfo`.
    memory_info: File,
    life: File,
}

impl Cradle {
    pub fn make(directory: PathBuf) -> Result<Cradle, Error> {
        let made = fs::DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(Error::file("make", &directory))?;
        let fill = || {
            let spec = directory.join(SPEC);
            let spec = File::create_new(&spec).map_err(Error::file("make", &spec))?;
            Ok((spec, Nest::make(&directory)?))
        };
        match fill() {
            Ok((spec, nest)) => Ok(Cradle { spec, nest }),
            Err(error) => {
                // The first error is the one to report; the sweep finds what stays.
                let _ = fs::remove_dir_all(&directory);
                Err(error)
            }
        }
    }

    /// Nobody came.
    pub fn discard(self) {
        // The next engine finds what stays.
        let _ = fs::remove_dir_all(&self.nest.directory);
    }

    /// Gives the directory to a sandbox. On failure the directory is removed.
    pub fn name(mut self, spec: &Spec, directory: &Path) -> Result<Nest, Error> {
        let written = text(spec, directory).and_then(|text| {
            self.spec.write_all_at(&text, 0).map_err(Error::file("write", directory.join(SPEC)))?;
            if self.nest.directory == directory {
                return Ok(());
            }
            fs::rename(&self.nest.directory, directory).map_err(Error::file("name", directory))
        });
        if let Err(error) = written {
            self.discard();
            return Err(error);
        }
        self.nest.directory = directory.to_owned();
        Ok(self.nest)
    }
}

impl Nest {
    /// In a directory that may have files of earlier lives: they are removed.
    pub fn make(directory: &Path) -> Result<Nest, Error> {
        let socket = directory.join(SOCKET);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", socket)(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&socket).map_err(Error::file("listen on", &socket))?;
        let memory_info = directory.join(MEMORY_INFO);
        let file = File::create(&memory_info).map_err(Error::file("make", &memory_info))?;
        let readable = file.set_permissions(fs::Permissions::from_mode(0o444));
        readable.map_err(Error::file("open up", &memory_info))?;
        let life = directory.join(LIFE);
        let life = File::create(&life).map_err(Error::file("make", &life))?;
        Ok(Nest { directory: directory.to_owned(), listener, memory_info: file, life })
    }

    /// The picture of its memory, as a detached mount.
    pub fn memory_info(&self, memory: u64, disk: Option<u64>) -> Result<OwnedFd, Error> {
        memory_info::fill(&self.memory_info, &self.directory.join(MEMORY_INFO), memory, disk)
    }

    /// Who the sandbox is, in one write: an engine that dies before it leaves an empty record, which is ignored.
    pub fn write_life(&self, life: &Life) -> Result<(), Error> {
        let path = self.directory.join(LIFE);
        self.life.write_all_at(&text(life, &path)?, 0).map_err(Error::file("write", path))
    }
}
