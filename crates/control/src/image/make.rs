//! Layers that are made beside those that are pulled: of archives, of nothing, and of many layers one.

use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use super::source::Room;
use super::work::{Made, Work};
use super::{LayerKind, Pulled};
use crate::build::Build;
use crate::provider::{LayerId, Root, Under};
use crate::{App, Error, random};

/// A stack of more layers than this becomes one of fewer.
const DEEPEST: usize = 8;

impl App {
    /// The layer without files: what `FROM scratch` begins with.
    pub(crate) async fn empty_layer(&self, work: &Work, provider: &str) -> Result<LayerId, Error> {
        let layer = LayerId::new(*b"cove: the layer without any file");
        let layers = self.provider(provider)?.layers();
        let make = || async { Ok(layers.make_layer(layer, 1 << 20, Box::new(|_, _| Ok(()))).await?) };
        work.make(layer, LayerKind::Image, None, provider, make).await?;
        Ok(layer)
    }

    /// The image of an archive that was sent. It is the organisation's own, under a name that no other finds: what an archive
    /// says of its digests proves nothing, and whoever knows another's would have its files by them.
    pub(crate) async fn take_archive(
        &self,
        work: &Work,
        build: &Build,
        hash: &str,
        name: Option<&str>,
    ) -> Result<Pulled, Error> {
        let spool = self.spool(&build.organisation, hash).await?;
        let limit = self.image_limit(&build.organisation, 0).await?;
        let provider = self.provider(&build.provider)?;
        let room = Room { bytes: limit, check: self.disk_check(provider) };
        let (found, fill) = self.builds().source().open(&spool.path, name, room).await?;
        let layers = provider.layers();
        let layer = own_layer(&build.organisation, found.layer);
        let make = || async { layers.make_layer(layer, limit, fill).await.map_err(|error| self.no_room(error, limit)) };
        let own = Some(build.organisation.as_str());
        let bytes = match work.make(layer, LayerKind::Image, own, &build.provider, make).await? {
            Made::Now(info) => info.bytes,
            Made::Found => self.store().layer(layer).await?.map_or(0, |layer| layer.bytes),
        };
        Ok(Pulled { digest: found.digest, layer, config: found.config, bytes, pulled_at: self.now() })
    }

    /// A copy of an archive on this server's disk, for readers that go back and forth in it.
    async fn spool(&self, organisation: &str, hash: &str) -> Result<Spool, Error> {
        let folder = self.config().data.join("spool");
        let trouble = |error: std::io::Error| Error::internal(format!("{}: {error}", folder.display()));
        crate::app::make_private_directory(&folder).map_err(trouble)?;
        let spool = Spool { path: folder.join(random::hex(16)) };
        let mut from = self.read_build_file(organisation, hash).await?;
        let mut file = tokio::fs::File::create_new(&spool.path).await.map_err(trouble)?;
        tokio::io::copy(&mut from, &mut file).await.map_err(trouble)?;
        file.flush().await.map_err(trouble)?;
        Ok(spool)
    }

    /// Removes what a dead server has spooled.
    pub(crate) fn clear_spool(&self) {
        match std::fs::remove_dir_all(self.config().data.join("spool")) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(%error, "remove what was left of archives"),
        }
    }

    /// The same files with few layers. An image's own tree stays what it is: others share it.
    pub(crate) async fn merged(
        &self,
        work: &Work,
        organisation: &str,
        provider: &str,
        root: &Root,
    ) -> Result<Root, Error> {
        if root.over.len() <= DEEPEST {
            return Ok(root.clone());
        }
        let kept = usize::from(root.under == Under::Nothing);
        let (upper, lowest) = root.over.split_at(root.over.len() - kept);
        let layer = random::layer_id();
        let beneath = Root { under: root.under, over: lowest.to_vec() };
        let layers = self.provider(provider)?.layers();
        let make = || async { Ok(layers.merge(upper, &beneath, layer).await?) };
        match work.make(layer, LayerKind::Delta, Some(organisation), provider, make).await {
            Ok(_) => {
                let over = std::iter::once(layer).chain(lowest.iter().copied()).collect();
                Ok(Root { under: root.under, over })
            }
            // It works with many, too.
            Err(Error::Unsupported(_)) => Ok(root.clone()),
            Err(error) => Err(error),
        }
    }
}

/// The name of a tree that one organisation has.
fn own_layer(organisation: &str, tree: LayerId) -> LayerId {
    let mut hash = Sha256::new();
    hash.update(b"cove archive\0");
    hash.update((organisation.len() as u64).to_be_bytes());
    hash.update(organisation.as_bytes());
    hash.update(tree.as_bytes());
    LayerId::new(hash.finalize().into())
}

/// A file that goes when it is dropped.
struct Spool {
    path: std::path::PathBuf,
}

impl Drop for Spool {
    fn drop(&mut self) {
        let _gone_or_swept_later = std::fs::remove_file(&self.path);
    }
}
