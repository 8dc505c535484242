//! Archives that are sent for a build: what COPY takes its files from.
//!
//! Whoever sends one names it by a hash of its own choice, so an archive belongs to one organisation and is looked at
//! as anything else that comes from outside. It is in the object store under that name as a whole or not at all.
//!
//! One that is sent with the request for its build has a name that nobody knows. It goes with the end of the build, and
//! after an hour where no build was begun: until then it counts as storage of the organisation, which cannot remove it.

use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;
use object_store::path::Path as Key;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::io::StreamReader;

use super::request::check_hash;
use crate::{App, Caller, Error, Scope, right};

const CHUNK: usize = 256 << 10;
/// An archive that no build has used for this long makes room for another, where there is none. One that was sent for a
/// build that was never begun is removed in any case.
const IDLE_MS: i64 = 3600 * 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildFile {
    pub organisation: String,
    pub hash: String,
    pub bytes: u64,
}

impl BuildFile {
    fn key(&self) -> Key {
        key(&self.organisation, &self.hash)
    }
}

/// Who may use an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meant {
    /// Every build of the organisation, under the name that it was sent by.
    ForAny,
    /// The build that is begun with it, and no other.
    ForOne,
}

fn key(organisation: &str, hash: &str) -> Key {
    Key::from_iter(["build-files", organisation, hash])
}

/// Counts what is held of an archive for whoever sends it, as of every body: many that are never finished would fill the
/// memory of all.
fn count_held(bytes: u64, part: usize) -> Result<(), Error> {
    let held = usize::try_from(bytes).unwrap_or(usize::MAX).min(part);
    right::current().map_or(Ok(()), |admission| admission.holds_body(held))
}

fn trouble(verb: &str, error: impl std::fmt::Display) -> Error {
    Error::internal(format!("{verb} an archive of a build: {error}"))
}

impl App {
    /// Whether an archive is there already.
    pub async fn has_build_file(&self, caller: &Caller, hash: &str) -> Result<bool, Error> {
        check_hash(hash)?;
        let found = self.store().build_file(&caller.organisation, hash).await?;
        if found.is_some() {
            self.store().touch_build_file(&caller.organisation, hash, self.now().as_millisecond()).await?;
        }
        Ok(found.is_some())
    }

    /// Keeps an archive. One that is there is replaced.
    pub async fn put_build_file(
        &self,
        caller: &Caller,
        hash: &str,
        from: impl AsyncRead + Send + Unpin,
    ) -> Result<BuildFile, Error> {
        self.receive_build_file(caller, hash, from, Meant::ForAny).await
    }

    /// Keeps an archive until the build has ended that is begun with it.
    pub async fn put_archive_of_one_build(
        &self,
        caller: &Caller,
        hash: &str,
        from: impl AsyncRead + Send + Unpin,
    ) -> Result<BuildFile, Error> {
        self.receive_build_file(caller, hash, from, Meant::ForOne).await
    }

    async fn receive_build_file(
        &self,
        caller: &Caller,
        hash: &str,
        mut from: impl AsyncRead + Send + Unpin,
        meant: Meant,
    ) -> Result<BuildFile, Error> {
        caller.require(Scope::Write)?;
        check_hash(hash)?;
        let most = self.config().builds.file_bytes;
        let quota = self.quota(&caller.organisation).await?.storage_bytes;
        let full = || Error::Quota { message: "the organisation's archives take all the room it has".into() };
        let mut kept = self.store().build_file_bytes(&caller.organisation).await?;
        let mut has_made_room = false;
        let mut arrival = self.builds().arrival(&caller.organisation);
        if self.config().archive.url.is_none() {
            self.check_disk(self.default_provider())?;
        }
        let (mut writer, part) = self.object_writer(key(&caller.organisation, hash), most);
        let mut buffer = vec![0; CHUNK];
        let mut bytes: u64 = 0;
        let received = loop {
            let count = match from.read(&mut buffer).await {
                // Others that came meanwhile have their rows by now.
                Ok(0) => match self.store().build_file_bytes(&caller.organisation).await {
                    Ok(kept) if kept.saturating_add(arrival.add(0)) > quota => break Err(full()),
                    kept => break kept.map(drop),
                },
                Ok(count) => count,
                Err(error) => break Err(Error::invalid("body", error.to_string())),
            };
            bytes += count as u64;
            let arriving = arrival.add(count as u64);
            if bytes > most {
                break Err(Error::invalid("body", format!("an archive has at most {} MiB", most >> 20)));
            }
            if let Err(error) = count_held(bytes, part) {
                break Err(error);
            }
            if kept.saturating_add(arriving) > quota && !has_made_room {
                // Nobody else can remove them: whoever sent them has no way to.
                has_made_room = true;
                kept = match self.forget_idle_build_files(&caller.organisation).await {
                    Ok(kept) => kept,
                    Err(error) => break Err(error),
                };
            }
            if kept.saturating_add(arriving) > quota {
                break Err(full());
            }
            if let Err(error) = writer.write_all(&buffer[..count]).await {
                break Err(trouble("write", error));
            }
        };
        if let Err(error) = received {
            // What was written of it never appears.
            let _nothing_to_say = writer.abort().await;
            return Err(error);
        }
        writer.shutdown().await.map_err(|error| trouble("write", error))?;
        let file = BuildFile { organisation: caller.organisation.clone(), hash: hash.to_owned(), bytes };
        self.store().put_build_file(&file, meant, self.now().as_millisecond()).await?;
        Ok(file)
    }

    /// An archive's bytes.
    pub(crate) async fn read_build_file(
        &self,
        organisation: &str,
        hash: &str,
    ) -> Result<impl AsyncRead + Send + Unpin + use<>, Error> {
        let missing = || Error::invalid("copy", format!("the files {hash} were never sent"));
        if self.store().build_file(organisation, hash).await?.is_none() {
            return Err(missing());
        }
        self.store().touch_build_file(organisation, hash, self.now().as_millisecond()).await?;
        let found = match self.objects().get(&key(organisation, hash)).await {
            Ok(found) => found,
            Err(object_store::Error::NotFound { .. }) => return Err(missing()),
            Err(error) => return Err(trouble("read", error)),
        };
        Ok(StreamReader::new(found.into_stream().map_err(std::io::Error::other)))
    }

    /// Removes archives of an organisation that no build has used for a while. Returns the bytes of those that stay.
    async fn forget_idle_build_files(&self, organisation: &str) -> Result<u64, Error> {
        let before = self.now().as_millisecond().saturating_sub(IDLE_MS);
        loop {
            let files = self.store().old_build_files(Some(organisation), before).await?;
            if files.is_empty() {
                return self.store().build_file_bytes(organisation).await;
            }
            self.remove_build_files(files, before).await?;
        }
    }

    /// Removes one archive, whenever it was used.
    pub(crate) async fn forget_build_file(&self, organisation: &str, hash: &str) -> Result<(), Error> {
        let file = BuildFile { organisation: organisation.to_owned(), hash: hash.to_owned(), bytes: 0 };
        self.remove_build_files(vec![file], i64::MAX).await
    }

    /// Removes the archive that was sent for a build which has ended.
    pub(super) async fn forget_files_of_build(&self, build: &str) {
        let forget = async {
            let files = self.store().files_of_build(build).await?;
            self.remove_build_files(files, i64::MAX).await
        };
        // The next sweep finds it.
        if let Err(error) = forget.await {
            tracing::warn!(build, %error, detail = error.detail(), "remove the archive of a build that has ended");
        }
    }

    /// Archives that were sent for one build, which has ended or was never begun: what a crash leaves, and a caller that
    /// goes away in the middle.
    pub(crate) async fn remove_spent_build_files(&self) -> Result<(), Error> {
        let begun = self.now().as_millisecond().saturating_sub(IDLE_MS);
        let files = self.store().spent_build_files(begun).await?;
        self.remove_build_files(files, i64::MAX).await
    }

    /// Archives that nobody has used since a time.
    pub(crate) async fn remove_old_build_files(&self, before: i64) -> Result<(), Error> {
        let files = self.store().old_build_files(None, before).await?;
        self.remove_build_files(files, before).await
    }

    async fn remove_build_files(&self, files: Vec<BuildFile>, before: i64) -> Result<(), Error> {
        for file in files {
            if !self.store().remove_build_file(&file, before).await? {
                continue;
            }
            match self.objects().delete(&file.key()).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                // Its row is gone: it is sent again by whoever needs it, under the same name.
                Err(error) => tracing::warn!(hash = file.hash, %error, "remove an archive of a build"),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Connections;
    use crate::right::Rights;
    use crate::right::budget::Budget;

    #[tokio::test]
    async fn what_is_held_of_archives_counts_for_their_organisation() {
        let config = Connections { unfinished_bytes: 256 << 10, ..Default::default() };
        let rights = Arc::new(Rights::new(Budget::new(&config, 1024)));
        let (first, second) = (rights.admit(), rights.admit());
        // Of one that is written as it comes, no more than a part is held.
        first.clone().within(async { count_held(9 << 30, 900 << 10) }).await.unwrap();
        let refused = second.clone().within(async { count_held(200 << 10, 5 << 20) }).await;
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
        drop(first);
        second.within(async { count_held(200 << 10, 5 << 20) }).await.unwrap();
    }
}
