//! Archived sandboxes: their files are one tar, packed with zstd, in the object store, and nothing is on the machine.

mod drafts;
mod proof;

use std::path::Path;
use std::sync::Arc;

use futures::TryStreamExt as _;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt as _};
use tokio::io::AsyncWriteExt as _;
use tokio_util::io::StreamReader;

use self::proof::{Sum, Unproven};
use crate::config::Archive;
use crate::provider::{Handle, ProviderError};
use crate::sandbox::Sandbox;
use crate::{App, Error};

/// The folder for archives where no object store is configured.
pub fn folder(path: &Path) -> Result<Arc<dyn ObjectStore>, Error> {
    crate::app::make_private_directory(path)
        .map_err(|error| Error::internal(format!("make the archive folder {}: {error}", path.display())))?;
    let store = LocalFileSystem::new_with_prefix(path)
        .map_err(|error| Error::internal(format!("open the archive folder {}: {error}", path.display())))?;
    Ok(Arc::new(store))
}

/// Opens the place for archives and artifacts: the configured store, or the folder.
pub fn open(config: &Archive, folder_path: &Path) -> Result<Arc<dyn ObjectStore>, Error> {
    let Some(url) = &config.url else { return folder(folder_path) };
    let wrong = |reason: String| Error::invalid("archive.url", reason);
    let Some(rest) = url.strip_prefix("s3://") else {
        return Err(wrong(format!("{url:?} does not begin with s3://")));
    };
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let mut builder = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket);
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(region) = &config.region {
        builder = builder.with_region(region);
    }
    let store = builder.build().map_err(|error| wrong(error.to_string()))?;
    Ok(Arc::new(object_store::prefix::PrefixStore::new(store, prefix)))
}

fn key(sandbox: &Sandbox) -> Key {
    Key::from(format!("sandboxes/{}.tar.zst", sandbox.id))
}

fn trouble(sandbox: &Sandbox, verb: &'static str, error: &object_store::Error) -> Error {
    let reason = match error {
        object_store::Error::NotFound { .. } => "it is not in the object store".to_owned(),
        object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => {
            "the object store refuses the server's credentials; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and \
             the bucket's policy"
                .to_owned()
        }
        error => format!("the object store: {error}"),
    };
    Error::Archive { id: sandbox.id.to_string(), verb, reason }
}

/// The error of a write, with the object store's own reason.
fn refused(sandbox: &Sandbox, error: std::io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<object_store::Error>());
    match inner {
        Some(inner) => trouble(sandbox, "written", inner),
        None => Error::Archive { id: sandbox.id.to_string(), verb: "written", reason: error.to_string() },
    }
}

/// When an archive was packed completely.
enum Whole {
    /// With these bytes.
    Now(Sum),
    Before,
}

/// The size of the pipe between the provider that packs and the object store.
const BUFFER: usize = 256 << 10;

/// An object store takes no smaller parts, and no more of them (Amazon S3, "Multipart upload limits").
const PART: usize = 5 << 20;
const PARTS: u64 = 10_000;
/// A folder takes parts of any size, and as many as there are.
const PART_OF_A_FILE: usize = 256 << 10;

impl App {
    /// Writes an object of at most so many bytes that comes from outside. A part is written before more is taken: whoever
    /// sends quickly waits, and fills no memory. Returns how large a part is, too: no more of the object is held.
    pub(crate) fn object_writer(&self, key: Key, most: u64) -> (BufWriter, usize) {
        let part = match self.config().archive.url {
            Some(_) => PART.max(usize::try_from(most / PARTS).unwrap_or(usize::MAX).saturating_add(1)),
            None => PART_OF_A_FILE,
        };
        let writer = BufWriter::with_capacity(Arc::clone(self.objects()), key, part);
        (writer.with_max_concurrency(1), part)
    }

    /// Copies files to the object store, then deletes them at the provider. The archive appears as a whole or not at
    /// all, and the files are deleted only when it was read back as it was sent.
    pub(crate) async fn export(&self, sandbox: &Sandbox) -> Result<(), Error> {
        let provider = self.provider(&sandbox.provider)?;
        if self.config().archive.url.is_none() {
            self.check_disk(&sandbox.provider)?;
        }
        let mut writer = BufWriter::new(Arc::clone(self.objects()), key(sandbox));
        let (mut near, mut far) = tokio::io::duplex(BUFFER);
        let handle = sandbox.handle();
        let packing = async {
            let packed = provider.export(&handle, &mut near).await;
            // The reader waits for the end.
            drop(near);
            packed
        };
        let (packed, kept) = tokio::join!(packing, async {
            let kept = proof::carry(&mut far, &mut writer).await;
            // Closes the pipe, so that the packer notices that nobody reads.
            drop(far);
            kept
        });
        let whole = match (packed, kept) {
            (_, Err(error)) => Err(refused(sandbox, error)),
            (Ok(()), Ok(sent)) => Ok(Whole::Now(sent)),
            // A server died while it removed the files: the archive was complete by then.
            (Err(ProviderError::NotFound(_)), Ok(sent)) if sent.bytes == 0 && self.has_archive(sandbox).await? => {
                Ok(Whole::Before)
            }
            (Err(error), Ok(_)) => Err(error.into()),
        };
        match whole {
            Ok(Whole::Now(sent)) => {
                writer.shutdown().await.map_err(|error| refused(sandbox, error))?;
                self.bring_to_disk(sandbox).await?;
                self.check_kept(sandbox, sent).await?;
            }
            Ok(Whole::Before) => {}
            Err(error) => {
                // Parts of a large upload would stay and cost money. The first error is the one to report.
                let _ = writer.abort().await;
                return Err(error);
            }
        }
        provider.destroy(&handle).await?;
        Ok(())
    }

    /// A file in the folder is complete when it has its name, but reaches the disk some time later. The sandbox's files
    /// are deleted next, so this syncs: a power cut must not lose both.
    async fn bring_to_disk(&self, sandbox: &Sandbox) -> Result<(), Error> {
        if self.config().archive.url.is_some() {
            return Ok(());
        }
        let path = self.config().data.join("archive").join(key(sandbox).as_ref());
        let synced = tokio::task::spawn_blocking(move || {
            let file = std::fs::File::open(&path)?;
            file.sync_all()?;
            // It is read back next: from the disk, not from memory, where the kernel does as it is asked.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
            std::fs::File::open(path.parent().unwrap_or(&path))?.sync_all()
        });
        let synced = synced.await.map_err(|error| Error::internal(format!("sync an archive: {error}")))?;
        synced.map_err(|error| refused(sandbox, error))
    }

    /// The files go next: what was sent must be what is there. An archive that is something else does not stay.
    async fn check_kept(&self, sandbox: &Sandbox, sent: Sum) -> Result<(), Error> {
        let reason = match proof::prove(self.objects().as_ref(), &key(sandbox), sent).await {
            Ok(()) => return Ok(()),
            Err(Unproven::Store(error)) => return Err(trouble(sandbox, "written", &error)),
            Err(Unproven::Differs(reason)) => reason,
        };
        // The first error is the one to report; the next archive replaces what stays.
        let _ = self.forget_archive(sandbox).await;
        Err(Error::Archive { id: sandbox.id.to_string(), verb: "written", reason })
    }

    pub(crate) async fn has_archive(&self, sandbox: &Sandbox) -> Result<bool, Error> {
        match self.objects().head(&key(sandbox)).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(trouble(sandbox, "read", &error)),
        }
    }

    /// Restores files from the object store.
    pub(crate) async fn import(&self, sandbox: &Sandbox) -> Result<Handle, Error> {
        let found = self.objects().get(&key(sandbox)).await.map_err(|error| trouble(sandbox, "read", &error))?;
        let mut reader = StreamReader::new(found.into_stream().map_err(std::io::Error::from));
        let provider = self.provider(&sandbox.provider)?;
        Ok(provider.import(&sandbox.order()?, &mut reader).await?)
    }

    pub(crate) async fn forget_archive(&self, sandbox: &Sandbox) -> Result<(), Error> {
        match self.objects().delete(&key(sandbox)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(trouble(sandbox, "removed", &error)),
        }
    }
}
