//! Whether the object store has what it was given. A sandbox's files are deleted next: an archive counts only when it has
//! been read back, byte for byte, with a digest that was made on the way in.
//!
//! Nothing is kept in memory but one piece at a time.

use futures::TryStreamExt as _;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt as _};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// What is digested at one time: a fraction of a millisecond.
const PIECE: usize = 64 << 10;

/// How many bytes, and their digest.
#[derive(Default)]
pub(super) struct Sum {
    pub(super) bytes: u64,
    digest: Sha256,
}

impl Sum {
    fn add(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        self.digest.update(piece);
    }
}

/// Why an archive does not count.
#[derive(Debug)]
pub(super) enum Unproven {
    Store(object_store::Error),
    /// A sentence.
    Differs(String),
}

impl From<object_store::Error> for Unproven {
    fn from(error: object_store::Error) -> Self {
        Unproven::Store(error)
    }
}

/// Copies everything. Returns the sum of it.
pub(super) async fn carry(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> std::io::Result<Sum> {
    let mut sum = Sum::default();
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(sum);
        }
        sum.add(&piece[..count]);
        to.write_all(&piece[..count]).await?;
    }
}

/// Reads the object back and compares it with what was sent.
pub(super) async fn prove(objects: &dyn ObjectStore, key: &Key, sent: Sum) -> Result<(), Unproven> {
    let found = objects.get(key).await?;
    if found.meta.size != sent.bytes {
        let reason = format!("the object store has {} of its {} bytes", found.meta.size, sent.bytes);
        return Err(Unproven::Differs(reason));
    }
    let mut kept = Sum::default();
    let mut pieces = found.into_stream();
    while let Some(piece) = pieces.try_next().await? {
        for part in piece.chunks(PIECE) {
            kept.add(part);
            // A piece of a store of its own choosing can be large: others have their turn.
            tokio::task::coop::consume_budget().await;
        }
    }
    if kept.bytes != sent.bytes || kept.digest.finalize() != sent.digest.finalize() {
        return Err(Unproven::Differs("the object store gives back other bytes than it was given".to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn only_the_very_bytes_that_were_sent_are_a_proof() {
        let sent: Vec<u8> = (0..300_000_u32).map(|number| number as u8).collect();
        let (objects, key) = (InMemory::new(), Key::from("sandboxes/x.tar.zst"));
        let sum = async || carry(&mut sent.as_slice(), &mut tokio::io::sink()).await.unwrap();
        assert!(matches!(prove(&objects, &key, sum().await).await, Err(Unproven::Store(_))));

        objects.put(&key, sent.clone().into()).await.unwrap();
        prove(&objects, &key, sum().await).await.unwrap();

        let mut other = sent.clone();
        other[200_000] ^= 1;
        objects.put(&key, other.into()).await.unwrap();
        let differs = prove(&objects, &key, sum().await).await;
        assert!(matches!(differs, Err(Unproven::Differs(why)) if why.contains("other bytes")));

        objects.put(&key, sent[1..].to_vec().into()).await.unwrap();
        let shorter = prove(&objects, &key, sum().await).await;
        assert!(matches!(shorter, Err(Unproven::Differs(why)) if why.contains("299999 of its 300000 bytes")));
    }

    #[tokio::test]
    async fn what_is_carried_arrives() {
        let mut arrived = Vec::new();
        let sum = carry(&mut vec![7_u8; 200_000].as_slice(), &mut arrived).await.unwrap();
        assert_eq!((sum.bytes, arrived), (200_000, vec![7_u8; 200_000]));
    }
}
