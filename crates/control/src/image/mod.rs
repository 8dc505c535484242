//! Files that templates are made of: layers, and images that they come from.
//!
//! An image of a registry becomes one flat tree, a layer named by what is in it, so that two references to the same
//! content share it. What a sandbox writes becomes a layer by a capture. The store counts who needs which layer
//! ([`layer`]); what nobody needs is removed ([`sweep`]).
//!
//! * [`pull`]: from a name to a layer, once however many ask
//! * [`source`]: registries and archives, as far as the domain knows them; [`registries`]: by our own client
//! * [`export`]: templates as images for others; [`outlet`]: their way to a reader, however slow; `push`: to a registry
//! * [`work`]: layers that something under way needs; [`turn`]: who is at a layer's files

pub mod export;
mod layer;
mod make;
pub(crate) mod outlet;
pub mod pull;
pub mod registries;
pub mod source;
pub mod sweep;
pub(crate) mod turn;
pub mod work;

use serde::{Deserialize, Serialize};

pub use self::layer::{Layer, LayerKind, LayerState, NewLayer, User};
pub use self::source::{Config, Source, SourceError};
use crate::clock::Timestamp;
use crate::provider::LayerId;

/// An image that was pulled, or taken from an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pulled {
    /// Of its manifest.
    pub digest: String,
    /// Its whole tree.
    pub layer: LayerId,
    pub config: Config,
    /// Bytes of the tree.
    pub bytes: u64,
    pub pulled_at: Timestamp,
}
