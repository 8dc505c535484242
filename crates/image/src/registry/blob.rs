//! Layers into files: several at a time, digested while they come, resumed where they broke off.
//!
//! A layer is written to `DIGEST.part` and renamed to `DIGEST` (64 hexadecimal digits) once it is right. A directory that
//! is given again continues where the last pull stopped.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use reqwest::header::{CONTENT_RANGE, HeaderValue, RANGE};
use reqwest::{Method, Response, StatusCode};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::dial::failed;
use super::send::Call;
use super::{Endpoint, Error, Inspected, Registry};
use crate::digest::{Digest, Hashing};

/// How often a layer may break off, if every attempt brings something.
const BREAKS: u32 = 100;

/// How far a layer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub layer: Digest,
    pub done: u64,
    pub size: u64,
}

/// What is on disk of a layer.
struct Part {
    file: Hashing<File>,
    size: u64,
    digest: Digest,
    /// A former pull wrote the beginning, perhaps right before the power went.
    is_old: bool,
}

/// What became of one answer.
enum Outcome {
    Complete,
    /// The connection ended too early.
    BrokeOff(Error),
}

impl Registry {
    /// Fetches layers (by their numbers, 0 lowest) into the directory. Each is there once, under its digest.
    pub async fn fetch(
        &self,
        image: &Inspected,
        wanted: impl IntoIterator<Item = usize>,
        into: &OwnedFd,
        progress: impl Fn(Progress) + Sync,
    ) -> Result<(), Error> {
        let into = Arc::new(into.try_clone()?);
        // An image can have a layer twice.
        let wanted = wanted.into_iter().filter_map(|number| image.manifest.layers.get(number));
        let wanted: BTreeMap<Digest, u64> = wanted.map(|layer| (layer.digest, layer.size)).collect();
        let mut endpoints = self.endpoints(&image.reference);
        // Where the manifest was, the layers are.
        let first = image.endpoint.min(endpoints.len());
        endpoints.rotate_left(first);
        let (endpoints, progress) = (&endpoints, &progress);
        stream::iter(wanted)
            .map(|(digest, size)| {
                let into = Arc::clone(&into);
                async move { self.layer(endpoints, digest, size, into, progress).await }
            })
            .buffer_unordered(self.options().parallel.max(1))
            .try_collect()
            .await
    }

    async fn layer(
        &self,
        endpoints: &[Endpoint],
        digest: Digest,
        size: u64,
        into: Arc<OwnedFd>,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Result<(), Error> {
        let directory = Arc::clone(&into);
        let part = blocking(move || Part::open(&directory, digest, size)).await?;
        let Some(mut part) = part else {
            progress(Progress { layer: digest, done: size, size });
            return Ok(());
        };
        let mut last = Error::NotFound { what: digest.to_string() };
        for endpoint in endpoints {
            match self.fill(endpoint, &mut part, progress).await {
                Ok(()) => return blocking(move || part.keep(&into)).await,
                Err(error) if error.is_ours() => return Err(error),
                Err(error) => last = error,
            }
        }
        if matches!(last, Error::Content { .. }) {
            blocking(move || part.discard(&into)).await?;
        }
        Err(last)
    }

    /// Until the layer is there, from one place.
    async fn fill(
        &self,
        endpoint: &Endpoint,
        part: &mut Part,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Result<(), Error> {
        let what = endpoint.blob(&part.digest);
        let url = self.url(endpoint, &format!("blobs/{}", part.digest)).await?;
        let (mut fruitless, mut breaks) = (0, 0);
        loop {
            let before = part.file.bytes;
            let mut call = Call::new(Method::GET, url.clone(), endpoint, what.clone());
            if before > 0 {
                let range = HeaderValue::from_str(&format!("bytes={before}-"));
                call.headers.insert(RANGE, range.map_err(|_| Error::NotFound { what: what.clone() })?);
            }
            let error = match self.attempt(&call).await {
                Ok(response) => match part.take(response, &what, progress).await? {
                    Outcome::Complete if part.is_old && part.file.digest() != part.digest => {
                        part.restart()?;
                        continue;
                    }
                    Outcome::Complete => return part.check(&what),
                    Outcome::BrokeOff(error) => error,
                },
                // What is there is all there is, or more: begin again.
                Err(Error::Answer { status: 416, .. }) if before > 0 => {
                    part.restart()?;
                    continue;
                }
                Err(error) => error,
            };
            breaks += 1;
            fruitless = if part.file.bytes > before { 1 } else { fruitless + 1 };
            if !error.is_passing() || fruitless >= self.options().attempts || breaks >= BREAKS {
                return Err(error);
            }
            self.pause(fruitless, &error).await?;
        }
    }
}

impl Part {
    /// `None` if the whole layer is already there.
    fn open(directory: &OwnedFd, digest: Digest, size: u64) -> Result<Option<Self>, Error> {
        let whole = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(directory, digest.hex(), whole, Mode::empty()) {
            Ok(fd) => {
                let mut there = Hashing::new(File::from(fd));
                io::copy(&mut Read::by_ref(&mut there).take(size.saturating_add(1)), &mut io::sink())?;
                if there.bytes == size && there.digest() == digest {
                    return Ok(None);
                }
                unlinkat(directory, digest.hex(), AtFlags::empty()).map_err(io::Error::from)?;
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = openat(directory, part_name(&digest), flags, mode).map_err(io::Error::from)?;
        let mut part = Part { file: Hashing::new(File::from(fd)), size, digest, is_old: false };
        // What a former pull left; the file is then at its end.
        io::copy(&mut Read::by_ref(&mut part.file).take(size), &mut io::sink())?;
        if part.file.bytes == size || part.file.inner.metadata()?.len() > size {
            part.restart()?;
        }
        part.is_old = part.file.bytes > 0;
        Ok(Some(part))
    }

    /// Throws away what is there.
    fn restart(&mut self) -> Result<(), Error> {
        let file = self.file.inner.try_clone()?;
        file.set_len(0)?;
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(io::Error::from)?;
        self.file = Hashing::new(file);
        self.is_old = false;
        Ok(())
    }

    async fn take(
        &mut self,
        mut response: Response,
        what: &str,
        progress: &(impl Fn(Progress) + Sync),
    ) -> Result<Outcome, Error> {
        let wrong = |why: String| Error::Content { what: what.to_owned(), why };
        if self.file.bytes > 0 && !continues(&response, self.file.bytes) {
            // The whole layer again: this server has no ranges.
            if response.status() == StatusCode::PARTIAL_CONTENT {
                return Err(wrong("it sends another part than was asked for".into()));
            }
            self.restart()?;
        }
        let left = self.size - self.file.bytes;
        if let Some(length) = response.content_length()
            && length != left
        {
            return Err(wrong(format!("it says {length} bytes follow, the manifest says {left}")));
        }
        loop {
            let piece = match response.chunk().await {
                Ok(Some(piece)) => piece,
                Ok(None) if self.file.bytes == self.size => return Ok(Outcome::Complete),
                Ok(None) => {
                    let why = format!("it ends after {} of {} bytes", self.file.bytes, self.size);
                    return Ok(Outcome::BrokeOff(Error::Unreachable { what: what.to_owned(), why }));
                }
                Err(error) => return Ok(Outcome::BrokeOff(failed(what, &error))),
            };
            if self.file.bytes + piece.len() as u64 > self.size {
                return Err(wrong(format!("it is larger than the {} bytes that the manifest says", self.size)));
            }
            // A page cache write of a few KiB: not worth a thread.
            self.file.write_all(&piece)?;
            progress(Progress { layer: self.digest, done: self.file.bytes, size: self.size });
        }
    }

    fn check(&mut self, what: &str) -> Result<(), Error> {
        let found = self.file.digest();
        if found == self.digest {
            return Ok(());
        }
        self.restart()?;
        Err(Error::Content { what: what.to_owned(), why: format!("the layer has another content: {found}") })
    }

    fn keep(self, directory: &OwnedFd) -> Result<(), Error> {
        let directory = directory.as_fd();
        Ok(renameat(directory, part_name(&self.digest), directory, self.digest.hex()).map_err(io::Error::from)?)
    }

    fn discard(self, directory: &OwnedFd) -> Result<(), Error> {
        match unlinkat(directory, part_name(&self.digest), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(io::Error::from(errno).into()),
        }
    }
}

fn part_name(digest: &Digest) -> String {
    format!("{}.part", digest.hex())
}

/// Whether an answer goes on where we are.
fn continues(response: &Response, at: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|range| range.to_str().ok());
    let start = range.and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.trim().parse::<u64>().ok());
    response.status() == StatusCode::PARTIAL_CONTENT && start == Some(at)
}

/// Reads and hashes files off the async workers.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::Disk(io::Error::other(error)))?
}

/// A fetched layer, to be unpacked.
pub fn open_layer(directory: impl AsFd, digest: &Digest) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(openat(directory, digest.hex(), flags, Mode::empty())?))
}
