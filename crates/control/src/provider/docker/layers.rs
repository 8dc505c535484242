//! Layers as images of the daemon's: what a container has written is committed, and what is put together here is imported.
//!
//! The image of a layer has the files of all layers below as well, because it was made of a container that stood on them. So
//! a root is started from the image of its top layer alone, and a layer that goes takes nothing from those above: the daemon
//! keeps what they stand on.

use std::collections::HashMap;
use std::io::{self, BufWriter};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bollard::models::ContainerConfig;
use bollard::query_parameters::{
    CommitContainerOptionsBuilder, CreateImageOptionsBuilder, InspectContainerOptionsBuilder, ListImagesOptionsBuilder,
    RemoveImageOptions,
};
use cove_image::export::{self, Compression, Part};
use cove_protocol::SandboxId;
use futures::StreamExt as _;
use tracing::Instrument as _;

use super::client::{during, status};
use super::container::{FOLDER, Found, handle_of, id_of, name_of, next_name_of, without_token};
use super::life::OwnImage;
use super::transfer::OF_ONE;
use super::{Docker, Inner, body};
use crate::provider::images::{Fill, LayerInfo, Layers, Removed};
use crate::provider::stop::Stop;
use crate::provider::{Handle, LayerId, Order, ProviderError, Root, Seen};
use crate::trace::effect;

/// Copies that are started at one time.
const AT_ONCE: usize = 8;
/// Bytes between the thread that packs and the request.
const BUFFER: usize = 256 << 10;

#[async_trait]
impl Layers for Docker {
    async fn capture(&self, from: &Handle, layer: LayerId) -> Result<LayerInfo, ProviderError> {
        let span = effect!("capture", from);
        let id = id_of(from)?;
        self.on(layer, |inner| async move { inner.capture(&id, layer).await }).instrument(span).await
    }

    async fn forks(&self, from: &Handle, orders: &[Order]) -> Vec<Result<Handle, ProviderError>> {
        let span = effect!("fork", from);
        let forked = async {
            let id = id_of(from)?;
            self.inner.forks(&id, orders).await
        };
        forked.instrument(span).await.unwrap_or_else(|error| vec![Err(error); orders.len()])
    }

    async fn rollback(&self, of: &Handle, to: LayerId, kept: LayerId) -> Result<LayerInfo, ProviderError> {
        let span = effect!("rollback", of);
        let id = id_of(of)?;
        self.on(kept, |inner| async move { inner.rollback(&id, to, kept).await }).instrument(span).await
    }

    async fn make_layer(&self, layer: LayerId, limit: u64, fill: Fill) -> Result<LayerInfo, ProviderError> {
        let stop = Stop::default();
        let _waiting = stop.unless_waited_for();
        self.on(layer, |inner| async move {
            match inner.layer(layer).await? {
                Some(made) => Ok(made),
                None => inner.make_layer(layer, limit, fill, stop).await,
            }
        })
        .await
    }

    async fn merge(&self, _layers: &[LayerId], _beneath: &Root, _into: LayerId) -> Result<LayerInfo, ProviderError> {
        // The image of the top one has them all already.
        Err(ProviderError::Unsupported("layers of docker's are not merged".into()))
    }

    async fn open_layer(&self, layer: LayerId) -> Result<OwnedFd, ProviderError> {
        let image = self.inner.layer_image(layer);
        Err(ProviderError::Unsupported(format!(
            "the files of a layer lie within docker; `docker save {image}` on its machine writes them out"
        )))
    }

    async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        self.inner.layer(layer).await
    }

    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError> {
        self.inner.layers().await
    }

    async fn remove_layer(&self, layer: LayerId) -> Result<Removed, ProviderError> {
        self.on(layer, |inner| async move { inner.remove_layer(layer).await }).await
    }
}

impl Docker {
    /// What makes or removes a layer. It goes on, and keeps the layer's turn, where nobody waits for it any more.
    async fn on<T, F>(&self, layer: LayerId, act: impl FnOnce(Arc<Inner>) -> F + Send) -> Result<T, ProviderError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ProviderError>> + Send + 'static,
    {
        let turn = self.inner.turns.take(layer).await;
        let work = act(Arc::clone(&self.inner));
        let done = tokio::spawn(async move {
            let _turn = turn;
            work.await
        });
        done.await.map_err(|error| ProviderError::Failed(format!("work on a layer ended: {error}")))?
    }
}

/// What a commit is called.
enum Named {
    Layer(LayerId),
    /// One sandbox's or a few copies'; it goes with the last of them.
    OfOne,
}

impl Inner {
    async fn capture(&self, id: &SandboxId, layer: LayerId) -> Result<LayerInfo, ProviderError> {
        if let Some(made) = self.layer(layer).await? {
            return Ok(made);
        }
        let found = self.wanted(id).await?;
        found.check_whole("a snapshot")?;
        let info =
            LayerInfo { id: layer, bytes: self.measure(id).await?, files: self.changed_files(id).await?.len() as u64 };
        // First: what a crash leaves is a size without a layer, which nobody asks for.
        self.notes.note_layer(&info).await?;
        self.commit(id, Named::Layer(layer)).await?;
        Ok(info)
    }

    /// One that runs is frozen for the moment by the daemon. Returns the image's id.
    async fn commit(&self, id: &SandboxId, named: Named) -> Result<String, ProviderError> {
        let docker = self.client.docker().await?;
        let name = name_of(id);
        let options = CommitContainerOptionsBuilder::new().container(&name).pause(true);
        let (options, labels) = match named {
            Named::Layer(layer) => {
                let (repository, tag) = (self.repository(), layer.to_string());
                (options.repo(&repository).tag(&tag), HashMap::new())
            }
            Named::OfOne => (options, HashMap::from([(OF_ONE.to_owned(), self.installation.clone())])),
        };
        let config = ContainerConfig {
            // The container's own, which an image would pass on.
            env: Some(vec![without_token()]),
            labels: Some(labels),
            ..ContainerConfig::default()
        };
        let made = docker.commit_container(options.build(), config).await;
        Ok(made.map_err(during(format!("keep the files of sandbox {id}")))?.id)
    }

    async fn measure(&self, id: &SandboxId) -> Result<u64, ProviderError> {
        let docker = self.client.docker().await?;
        let options = InspectContainerOptionsBuilder::new().size(true).build();
        let told = docker.inspect_container(&name_of(id), Some(options)).await;
        let told = told.map_err(during(format!("measure the files of sandbox {id}")))?;
        Ok(Found::of(told).and_then(|found| found.written).unwrap_or(0))
    }

    /// Names that it has added, changed or removed, without those of our program.
    pub async fn changed_files(&self, id: &SandboxId) -> Result<Vec<String>, ProviderError> {
        let docker = self.client.docker().await?;
        let changes = docker.container_changes(&name_of(id)).await;
        let changes = changes.map_err(during(format!("look at the files of sandbox {id}")))?.unwrap_or_default();
        Ok(changes.into_iter().map(|change| change.path).filter(|path| !is_ours(path)).collect())
    }

    async fn forks(
        &self,
        from: &SandboxId,
        orders: &[Order],
    ) -> Result<Vec<Result<Handle, ProviderError>>, ProviderError> {
        let source = self.wanted(from).await?;
        source.check_whole("a fork")?;
        let image = self.commit(from, Named::OfOne).await?;
        let each: Vec<_> = orders.iter().map(|order| self.fork(order, &image)).collect();
        let forked: Vec<_> = futures::stream::iter(each).buffered(AT_ONCE).collect().await;
        // Nobody's, where all were there already or none came to be; else it stays with them.
        self.drop_own_image(&image).await?;
        Ok(forked)
    }

    /// One that fails leaves nothing. One that is there is started.
    async fn fork(&self, order: &Order, image: &str) -> Result<Handle, ProviderError> {
        if self.found(&order.id).await?.is_some() {
            return self.launch(order).await;
        }
        let made = async {
            self.create(order, image, OwnImage::Yes).await?;
            self.launch(order).await
        };
        match made.await {
            Ok(handle) => Ok(handle),
            Err(error) => {
                self.destroy(&order.id).await?;
                Err(error)
            }
        }
    }

    async fn rollback(&self, id: &SandboxId, to: LayerId, kept: LayerId) -> Result<LayerInfo, ProviderError> {
        let found = self.wanted(id).await?;
        if found.replaced.as_deref() == Some(kept.to_string().as_str())
            && let Some(done) = self.layer(kept).await?
        {
            return Ok(done);
        }
        if found.state != Seen::Stopped {
            return Err(ProviderError::Exhausted(format!("sandbox {id} runs; stop it first")));
        }
        let image = self.layer_image(to);
        if self.inspect_image(&image).await?.is_none() {
            return Err(ProviderError::Refused(format!("the files of layer {to} are not at provider {}", self.name)));
        }
        let Some(note) = self.notes.read(id).await? else { return Err(ProviderError::NotFound(handle_of(id))) };
        let replaced = self.capture(id, kept).await?;
        // What an attempt that was cut off has left.
        self.remove(&next_name_of(id)).await?;
        let next = next_name_of(id);
        self.create_as(&next, &note.order(id), &image, OwnImage::No, Some(kept.to_string())).await?;
        self.remove(&name_of(id)).await?;
        self.rename(&next, &name_of(id)).await?;
        self.lines.forget(id);
        if let Some(own) = &found.own_image {
            self.drop_own_image(own).await?;
        }
        Ok(replaced)
    }

    pub async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        let Some(image) = self.inspect_image(&self.layer_image(layer)).await? else { return Ok(None) };
        let bytes = image.size.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        let noted = self.notes.layer(layer).await?;
        Ok(Some(noted.unwrap_or(LayerInfo { id: layer, bytes, files: 0 })))
    }

    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError> {
        let docker = self.client.docker().await?;
        let repository = self.repository();
        let filters = HashMap::from([("reference", vec![repository.as_str()])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let images = docker.list_images(Some(options)).await.map_err(during("list images"))?;
        let tag = |name: &String| name.strip_prefix(&format!("{repository}:"))?.parse().ok();
        Ok(images.iter().flat_map(|image| &image.repo_tags).filter_map(tag).collect())
    }

    async fn remove_layer(&self, layer: LayerId) -> Result<Removed, ProviderError> {
        let docker = self.client.docker().await?;
        let image = self.layer_image(layer);
        match docker.remove_image(&image, None::<RemoveImageOptions>, None).await {
            Ok(_) => {}
            Err(error) if status(&error) == Some(404) => {}
            Err(error) if status(&error) == Some(409) => return Ok(Removed::InUse),
            Err(error) => return Err(during(format!("remove layer {layer}"))(error)),
        }
        self.notes.forget_layer(layer).await?;
        Ok(Removed::Gone)
    }

    /// Filled in a folder of this server's, then sent to the daemon.
    async fn make_layer(&self, layer: LayerId, limit: u64, fill: Fill, stop: Stop) -> Result<LayerInfo, ProviderError> {
        let folder = self.notes.drafts().join(layer.to_string());
        let place = folder.clone();
        let filled = blocking(move || {
            let root = emptied(&place)?;
            fill(root.try_clone()?, &stop)?;
            Ok(root)
        });
        let made = match filled.await {
            Ok(root) => self.send_layer(layer, limit, root).await,
            Err(error) => Err(error),
        };
        let swept = blocking(move || cleared(&folder)).await;
        let made = made?;
        swept?;
        Ok(made)
    }

    async fn send_layer(&self, layer: LayerId, limit: u64, root: OwnedFd) -> Result<LayerInfo, ProviderError> {
        let (mut writer, body) = body::channel();
        let packing = tokio::task::spawn_blocking(move || -> Result<export::Written, String> {
            let limits = export::Limits { bytes: limit, ..export::Limits::default() };
            let packed = {
                let mut out = BufWriter::with_capacity(BUFFER, &mut writer);
                export::layer(&[Part::new(root)], &mut out, Compression::None, &limits)
                    .map_err(|error| error.to_string())?
            };
            writer.finish().map_err(|error| format!("write the layer: {error}"))?;
            Ok(packed)
        });
        let (repository, tag) = (self.repository(), layer.to_string());
        let options = CreateImageOptionsBuilder::new().from_src("-").repo(&repository).tag(&tag).build();
        let (made, packed) = tokio::join!(self.make_image(options, body), packing);
        let packed = packed.map_err(|error| ProviderError::Failed(format!("pack a layer: {error}")))?;
        // Where the daemon hung up, its own words are the cause.
        let packed = match (made, packed) {
            (Ok(_), Ok(packed)) => packed,
            (Err(error), Ok(_)) => return Err(error),
            (Ok(_), Err(why)) => return Err(ProviderError::Failed(format!("pack a layer: {why}"))),
            (Err(error), Err(why)) => {
                tracing::warn!(%layer, %error, why, "a layer was not made");
                return Err(error);
            }
        };
        let info = LayerInfo { id: layer, bytes: packed.descriptor.size, files: packed.entries };
        self.notes.note_layer(&info).await?;
        Ok(info)
    }

    /// Images of single sandboxes that no sandbox has: a server died before it made one of them.
    pub async fn sweep_images(&self) -> Result<usize, ProviderError> {
        let docker = self.client.docker().await?;
        let label = format!("{OF_ONE}={}", self.installation);
        let filters = HashMap::from([("dangling", vec!["true"]), ("label", vec![label.as_str()])]);
        let options = ListImagesOptionsBuilder::new().filters(&filters).build();
        let images = docker.list_images(Some(options)).await.map_err(during("list images"))?;
        let mut swept = 0;
        for image in images {
            // One that a container has is refused, and stays.
            match docker.remove_image(&image.id, None::<RemoveImageOptions>, None).await {
                Ok(_) => swept += 1,
                Err(error) if matches!(status(&error), Some(404 | 409)) => {}
                Err(error) => return Err(during(format!("remove image {}", image.id))(error)),
            }
        }
        Ok(swept)
    }
}

fn is_ours(path: &str) -> bool {
    path.strip_prefix(FOLDER).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An empty folder of that name, open.
fn emptied(folder: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::DirBuilderExt as _;
    cleared(folder)?;
    std::fs::DirBuilder::new().mode(0o755).create(folder)?;
    Ok(std::fs::File::open(folder)?.into())
}

pub fn cleared(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

async fn blocking<T: Send + 'static>(act: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, ProviderError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done.map_err(|error| match error.kind() {
            // The fault of what was to be written: whoever sent it reads this.
            io::ErrorKind::InvalidData => ProviderError::Refused(error.to_string()),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ProviderError::Full(error.to_string()),
            _ => ProviderError::Failed(format!("fill a layer: {error}")),
        }),
        Err(error) => Err(ProviderError::Failed(format!("fill a layer: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_program_is_no_file_of_the_sandboxs() {
        assert!(["/.cove", "/.cove/guest"].iter().all(|path| is_ours(path)));
        assert!(["/.covetous", "/home/.cove", "/"].iter().all(|path| !is_ours(path)));
    }

    #[test]
    fn a_folder_is_empty_whatever_was_left_in_it() {
        let room = tempfile::tempdir().unwrap();
        let folder = room.path().join("draft");
        emptied(&folder).unwrap();
        std::fs::write(folder.join("left"), "x").unwrap();
        emptied(&folder).unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
        cleared(&folder).unwrap();
        cleared(&folder).unwrap();
        assert!(!folder.exists());
    }
}
