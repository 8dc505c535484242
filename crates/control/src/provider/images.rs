//! Files as a provider keeps them: layers that roots are made of, and volumes that outlive sandboxes.
//!
//! Not every provider has them. [`Provider::layers`](super::Provider::layers) and
//! [`Provider::volumes`](super::Provider::volumes) lead to [`Nowhere`] unless it says otherwise, and every call of that
//! is refused with a sentence. All calls are idempotent, as those of [`Provider`](super::Provider) are: the caller
//! chooses the names, so calling again after a crash finds what the first call made.

use std::io;
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use super::stop::Stop;
use super::{Handle, LayerId, Order, ProviderError, Root, VolumeId};

/// A layer that is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerInfo {
    pub id: LayerId,
    /// Bytes of its files.
    pub bytes: u64,
    pub files: u64,
}

/// What became of a removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    /// It is gone, or was not there.
    Gone,
    /// A sandbox stands on it.
    InUse,
}

/// Writes a layer's files into the directory that it is given; blocking. Files that it leaves half-written are removed
/// where it fails. [`io::ErrorKind::InvalidData`] is the fault of what was to be written: whoever sent that reads the
/// sentence. Where the stop is asked for, it may fail early.
pub type Fill = Box<dyn FnOnce(OwnedFd, &Stop) -> io::Result<()> + Send>;

/// Calls that make or remove the same layer take turns, also where the caller of the first has gone: a removal that
/// returns has removed what an earlier call was still making.
#[async_trait]
pub trait Layers: Send + Sync {
    /// All that a sandbox has written becomes a layer. One that runs is frozen for a moment; one that does not hold still
    /// is [`ProviderError::Exhausted`]. The layer is there already: nothing to do.
    async fn capture(&self, from: &Handle, layer: LayerId) -> Result<LayerInfo, ProviderError>;

    /// As launches, of sandboxes that begin with all that another has written at one instant: one that runs is frozen once for
    /// all of them. The orders' roots are the other's. Each succeeds or fails for itself, in the order of the orders, and one that
    /// fails leaves nothing. One that is there already is started.
    async fn forks(&self, from: &Handle, orders: &[Order]) -> Vec<Result<Handle, ProviderError>>;

    /// A single one of [`Layers::forks`].
    async fn fork(&self, from: &Handle, order: &Order) -> Result<Handle, ProviderError> {
        let mut made = self.forks(from, std::slice::from_ref(order)).await;
        made.pop().unwrap_or_else(|| Err(ProviderError::Failed("a fork that came to nothing".into())))
    }

    /// A stopped sandbox has again what it had when the layer was captured of it, and what it has now becomes the layer
    /// `kept`, so that this can be undone. Done already: nothing to do.
    async fn rollback(&self, of: &Handle, to: LayerId, kept: LayerId) -> Result<LayerInfo, ProviderError>;

    /// Makes a layer of at most `limit` bytes. It appears as a whole or not at all. The layer is there already: nothing
    /// to do.
    async fn make_layer(&self, layer: LayerId, limit: u64, fill: Fill) -> Result<LayerInfo, ProviderError>;

    /// Makes one layer of several (top first) that shows the same over `beneath` as they do.
    async fn merge(&self, layers: &[LayerId], beneath: &Root, into: LayerId) -> Result<LayerInfo, ProviderError>;

    /// A layer's directory, to read from. It stays for as long as the descriptor is open.
    async fn open_layer(&self, layer: LayerId) -> Result<OwnedFd, ProviderError>;

    /// Writes a layer for [`Layers::receive`] on another machine, with a digest of it at the end. What is written before a
    /// failure is not taken for a layer there.
    async fn send(&self, layer: LayerId, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let _nowhere = (layer, to);
        no_layers()
    }

    /// The reverse, of at most `limit` bytes. It appears as a whole or not at all: what was cut off or changed on its way is
    /// [`ProviderError::Refused`]. The layer is there already: nothing to do, and nothing is read.
    async fn receive(
        &self,
        layer: LayerId,
        limit: u64,
        from: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<LayerInfo, ProviderError> {
        let _nothing = (layer, limit, from);
        no_layers()
    }

    /// `None` where it is not there, or not whole.
    async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError>;

    /// All that are whole.
    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError>;

    async fn remove_layer(&self, layer: LayerId) -> Result<Removed, ProviderError>;
}

/// How full a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VolumeUsage {
    pub bytes: u64,
    pub limit: u64,
}

#[async_trait]
pub trait Volumes: Send + Sync {
    /// Of at most `limit` bytes. There already: nothing to do.
    async fn make_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError>;
    async fn resize_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError>;
    /// Gone already: nothing to do.
    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError>;
    async fn volume_usage(&self, volume: &VolumeId) -> Result<VolumeUsage, ProviderError>;
    async fn volumes(&self) -> Result<Vec<VolumeId>, ProviderError>;
    /// Its directory. Owners of files are numbers as the sandboxes see them.
    async fn open_volume(&self, volume: &VolumeId) -> Result<OwnedFd, ProviderError>;
}

/// Where there are no layers and no volumes.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

fn no_layers<T>() -> Result<T, ProviderError> {
    Err(ProviderError::Unsupported("this provider has no images, snapshots or forks".into()))
}

fn no_volumes<T>() -> Result<T, ProviderError> {
    Err(ProviderError::Unsupported("this provider has no volumes".into()))
}

#[async_trait]
impl Layers for Nowhere {
    async fn capture(&self, _from: &Handle, _layer: LayerId) -> Result<LayerInfo, ProviderError> {
        no_layers()
    }

    async fn forks(&self, _from: &Handle, orders: &[Order]) -> Vec<Result<Handle, ProviderError>> {
        orders.iter().map(|_| no_layers()).collect()
    }

    async fn rollback(&self, _of: &Handle, _to: LayerId, _kept: LayerId) -> Result<LayerInfo, ProviderError> {
        no_layers()
    }

    async fn make_layer(&self, _layer: LayerId, _limit: u64, _fill: Fill) -> Result<LayerInfo, ProviderError> {
        no_layers()
    }

    async fn merge(&self, _layers: &[LayerId], _beneath: &Root, _into: LayerId) -> Result<LayerInfo, ProviderError> {
        no_layers()
    }

    async fn open_layer(&self, _layer: LayerId) -> Result<OwnedFd, ProviderError> {
        no_layers()
    }

    async fn layer(&self, _layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        no_layers()
    }

    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError> {
        Ok(Vec::new())
    }

    async fn remove_layer(&self, _layer: LayerId) -> Result<Removed, ProviderError> {
        no_layers()
    }
}

#[async_trait]
impl Volumes for Nowhere {
    async fn make_volume(&self, _volume: &VolumeId, _limit: u64) -> Result<(), ProviderError> {
        no_volumes()
    }

    async fn resize_volume(&self, _volume: &VolumeId, _limit: u64) -> Result<(), ProviderError> {
        no_volumes()
    }

    async fn remove_volume(&self, _volume: &VolumeId) -> Result<(), ProviderError> {
        no_volumes()
    }

    async fn volume_usage(&self, _volume: &VolumeId) -> Result<VolumeUsage, ProviderError> {
        no_volumes()
    }

    async fn volumes(&self) -> Result<Vec<VolumeId>, ProviderError> {
        Ok(Vec::new())
    }

    async fn open_volume(&self, _volume: &VolumeId) -> Result<OwnedFd, ProviderError> {
        no_volumes()
    }
}
