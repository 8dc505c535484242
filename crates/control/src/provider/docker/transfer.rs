//! A sandbox's files out of the daemon and into it: archives.
//!
//! What goes out is everything that the container shows, as one tar in a zstd frame with a checksum. What comes in becomes
//! an image of that sandbox alone, and a container on it: so what had been deleted stays deleted, whatever it once started
//! from.

use std::io::{self, BufWriter, Write as _};

use bollard::models::CreateImageInfo;
use bollard::query_parameters::{CreateImageOptions, CreateImageOptionsBuilder};
use bytes::Bytes;
use cove_protocol::SandboxId;
use futures::{Stream, TryStreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::io::SyncIoBridge;

use super::client::during;
use super::container::{handle_of, name_of};
use super::life::OwnImage;
use super::{Inner, body};
use crate::provider::{Handle, Order, ProviderError, Seen};

/// The level of zstd: its default.
const LEVEL: i32 = 3;
/// Between what is read and what is unpacked.
const BUFFER: usize = 256 << 10;

/// The label of images that belong to single sandboxes, with the installation that made them.
pub const OF_ONE: &str = "cove.private";

impl Inner {
    pub async fn export(&self, id: &SandboxId, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let found = self.wanted(id).await?;
        if found.state != Seen::Stopped {
            return Err(ProviderError::Refused(format!("sandbox {id} runs; stop it first")));
        }
        found.check_whole("an archive")?;
        let docker = self.client.docker().await?;
        let kept = |error: io::Error| ProviderError::Failed(format!("keep the archive of sandbox {id}: {error}"));
        let mut packed = zstd::Encoder::new(Vec::new(), LEVEL).map_err(kept)?;
        packed.include_checksum(true).map_err(kept)?;
        let mut files = std::pin::pin!(docker.export_container(&name_of(id)));
        // A piece takes less than a millisecond to compress.
        while let Some(piece) = files.try_next().await.map_err(during(format!("pack sandbox {id}")))? {
            packed.write_all(&piece).map_err(kept)?;
            let ready = std::mem::take(packed.get_mut());
            to.write_all(&ready).await.map_err(kept)?;
        }
        let rest = packed.finish().map_err(kept)?;
        to.write_all(&rest).await.map_err(kept)
    }

    pub async fn import(
        &self,
        order: &Order,
        from: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<Handle, ProviderError> {
        let (writer, body) = body::channel();
        let (near, mut far) = tokio::io::duplex(BUFFER);
        let near = SyncIoBridge::new(near);
        let unpacking = tokio::task::spawn_blocking(move || -> io::Result<()> {
            let mut packed = zstd::Decoder::new(near)?;
            let mut writer = BufWriter::with_capacity(BUFFER, writer);
            // To the very end: the checksum is there, and an incomplete archive fails.
            io::copy(&mut packed, &mut writer)?;
            writer.into_inner().map_err(io::IntoInnerError::into_error)?.finish()
        });
        let carrying = async move {
            let carried = tokio::io::copy(from, &mut far).await;
            carried.and(far.shutdown().await)
        };
        let options = CreateImageOptionsBuilder::new().from_src("-").changes(vec![self.of_one()]).build();
        let (made, unpacked, carried) = tokio::join!(self.make_image(options, body), unpacking, carrying);
        match unpacked {
            // Else the daemon hung up, and says why.
            Ok(Err(error)) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(ProviderError::Refused(format!("unpack the archive of sandbox {}: {error}", order.id)));
            }
            Err(error) => return Err(ProviderError::Failed(format!("unpack an archive: {error}"))),
            Ok(_) => {}
        }
        let image = made?;
        carried
            .map_err(|error| ProviderError::Failed(format!("fetch the archive of sandbox {}: {error}", order.id)))?;
        // What an earlier attempt has left, and nothing else: its files are in the archive alone.
        self.destroy(&order.id).await?;
        if let Err(error) = self.create(order, &image, OwnImage::Yes).await {
            self.drop_own_image(&image).await?;
            return Err(error);
        }
        Ok(handle_of(&order.id))
    }

    /// The change to an image that marks it as one sandbox's.
    fn of_one(&self) -> String {
        format!("LABEL {OF_ONE}={}", self.installation)
    }

    /// An image of a tar. Returns its id.
    pub async fn make_image(
        &self,
        options: CreateImageOptions,
        body: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<String, ProviderError> {
        let docker = self.client.docker().await?;
        let body = bollard::body_try_stream(body);
        let told: Result<Vec<CreateImageInfo>, _> =
            docker.create_image(Some(options), Some(body), None).try_collect().await;
        let told = told.map_err(during("make an image"))?;
        // The last word is the image's id.
        let id = told.into_iter().rev().find_map(|info| info.status.filter(|status| status.starts_with("sha256:")));
        id.ok_or_else(|| ProviderError::Failed("docker made an image and did not say which".into()))
    }
}
