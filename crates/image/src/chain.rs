//! What a tree of unpacked layers is called.
//!
//! The chain id (OCI image specification, `config.md`) names a stack of layers by the digests of their uncompressed tars:
//! two images with the same lower layers share the chain ids of those. The name of a tree on disk has the unpacker's
//! version mixed in: another unpacker makes other files out of the same layers.

use sha2::{Digest as _, Sha256};

use crate::digest::Digest;

/// Rises with every change of what the unpacker writes.
pub const UNPACKER: u32 = 1;

/// The chain ids of a stack, from the lowest layer up: one per layer.
pub fn ids(diff_ids: &[Digest]) -> Vec<Digest> {
    let mut all: Vec<Digest> = Vec::with_capacity(diff_ids.len());
    for layer in diff_ids {
        let next = match all.last() {
            None => *layer,
            Some(below) => Digest::of(format!("{below} {layer}").as_bytes()),
        };
        all.push(next);
    }
    all
}

/// The chain id of a whole stack. `None` for an image without layers.
pub fn id(diff_ids: &[Digest]) -> Option<Digest> {
    ids(diff_ids).pop()
}

/// The name of the tree that [`crate::unpack`] makes of the chain: what the layer store calls it.
pub fn layer_id(chain: &Digest) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"cove image tree\0");
    hash.update(UNPACKER.to_le_bytes());
    hash.update(chain.as_bytes());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_depends_on_every_layer_and_their_order() {
        let [a, b, c] = [b"a", b"b", b"c"].map(|bytes| Digest::of(bytes));
        let chain = ids(&[a, b, c]);
        assert_eq!(chain[0], a);
        assert_eq!(chain[1], Digest::of(format!("{a} {b}").as_bytes()));
        assert_eq!(chain[2], Digest::of(format!("{} {c}", chain[1]).as_bytes()));
        assert_eq!(ids(&[a, b])[..], chain[..2], "images share what is below");
        assert_ne!(id(&[b, a]), id(&[a, b]));
        assert_eq!(id(&[]), None);
    }

    #[test]
    fn a_tree_is_not_named_by_its_chain_alone() {
        let chain = Digest::of(b"a");
        assert_ne!(&layer_id(&chain), chain.as_bytes());
        assert_ne!(layer_id(&chain), layer_id(&Digest::of(b"b")));
    }
}
