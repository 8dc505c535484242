//! Layers and volumes of the fake provider: layers are maps of files, volumes are directories of the machine.
//!
//! A layer has everything that a sandbox on it sees, so of a stack the top one is enough.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;

use super::files::Files;
use super::guest::FakeGuest;
use super::{Entry, Fake, handle_of};
use crate::image::turn::Turns;
use crate::provider::images::{Fill, LayerInfo, Layers, Removed, VolumeUsage, Volumes};
use crate::provider::stop::Stop;
use crate::provider::{Handle, LayerId, Order, ProviderError, Root, Seen, VolumeId};
use crate::random;

#[derive(Default)]
pub struct Kept {
    layers: Arc<Mutex<HashMap<LayerId, Files>>>,
    /// Who makes or removes which layer.
    turns: Turns,
    volumes: Mutex<HashMap<VolumeId, u64>>,
    folder: Mutex<Option<PathBuf>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(folder) = self.folder.lock().expect("no panic while held").take() {
            let _gone = std::fs::remove_dir_all(folder);
        }
    }
}

impl Kept {
    /// The files of a new sandbox on this root.
    pub fn files_of(&self, root: &Root) -> Result<Files, ProviderError> {
        let layers = self.layers.lock().expect("no panic while held");
        if let Some(missing) = root.over.iter().find(|layer| !layers.contains_key(layer)) {
            return Err(ProviderError::Refused(format!("layer {missing} is not there")));
        }
        Ok(root.over.first().and_then(|top| layers.get(top)).cloned().unwrap_or_else(Files::fresh))
    }

    fn folder(&self) -> io::Result<PathBuf> {
        let mut folder = self.folder.lock().expect("no panic while held");
        if let Some(folder) = &*folder {
            return Ok(folder.clone());
        }
        let made = std::env::temp_dir().join(format!("cove-fake-{}", random::hex(8)));
        std::fs::create_dir(&made)?;
        Ok(folder.insert(made).clone())
    }

    fn volume(&self, volume: &VolumeId) -> Result<PathBuf, ProviderError> {
        if !self.volumes.lock().expect("no panic while held").contains_key(volume) {
            return Err(ProviderError::Refused(format!("volume {volume} is not there")));
        }
        Ok(self.folder().map_err(failed)?.join(volume.as_str()))
    }
}

fn failed(error: io::Error) -> ProviderError {
    ProviderError::Failed(error.to_string())
}

fn info(id: LayerId, files: &Files) -> LayerInfo {
    LayerInfo { id, bytes: files.bytes(), files: files.count() as u64 }
}

impl Fake {
    /// How often a sandbox was held still to be copied.
    pub fn instants(&self) -> usize {
        self.instants.load(Ordering::Relaxed)
    }

    /// Every layer it has, for leak checks.
    pub fn layer_ids(&self) -> Vec<LayerId> {
        self.kept.layers.lock().expect("no panic while held").keys().copied().collect()
    }

    /// A file of a layer.
    pub fn layer_file(&self, layer: LayerId, path: &str) -> Option<Vec<u8>> {
        self.kept.layers.lock().expect("no panic while held").get(&layer)?.read(path).ok()
    }

    /// Whether any file of any layer has these bytes in it.
    pub fn is_in_a_layer(&self, bytes: &[u8]) -> bool {
        let layers = self.kept.layers.lock().expect("no panic while held");
        let holds = |content: &[u8]| content.windows(bytes.len()).any(|window| window == bytes);
        layers.values().any(|files| files.all_below("/").iter().any(|(_, content)| holds(content)))
    }
}

#[async_trait]
impl Layers for Fake {
    async fn capture(&self, from: &Handle, layer: LayerId) -> Result<LayerInfo, ProviderError> {
        self.trouble("capture")?;
        let files = self.with(from, |entry| entry.guest.copy_of_files())?;
        let made = info(layer, self.kept.layers.lock().expect("no panic while held").entry(layer).or_insert(files));
        self.pass("capture").await;
        Ok(made)
    }

    async fn forks(&self, from: &Handle, orders: &[Order]) -> Vec<Result<Handle, ProviderError>> {
        let instant = self.with(from, |entry| entry.guest.copy_of_files());
        self.instants.fetch_add(1, Ordering::Relaxed);
        let mut made = Vec::new();
        for order in orders {
            let files = match (self.trouble("fork"), &instant) {
                (Err(error), _) => Err(error),
                (Ok(()), Err(error)) => Err(error.clone()),
                (Ok(()), Ok(files)) => Ok(files.clone()),
            };
            made.push(files.map(|files| {
                let guest = FakeGuest::new(order, files);
                let entry = Entry { state: Seen::Running, guest, limits: order.limits, aside: None, processor_ns: 0 };
                self.sandboxes.lock().expect("no panic while held").entry(order.id.clone()).or_insert(entry);
                handle_of(&order.id)
            }));
        }
        self.pass("fork").await;
        made
    }

    async fn rollback(&self, of: &Handle, to: LayerId, kept: LayerId) -> Result<LayerInfo, ProviderError> {
        self.trouble("rollback")?;
        let mut layers = self.kept.layers.lock().expect("no panic while held");
        if let Some(done) = layers.get(&kept) {
            return Ok(info(kept, done));
        }
        let Some(wanted) = layers.get(&to).cloned() else {
            return Err(ProviderError::Refused(format!("layer {to} is not there")));
        };
        let replaced = self.with(of, |entry| {
            if entry.state != Seen::Stopped {
                return Err(ProviderError::Refused("a sandbox that runs cannot be rolled back".into()));
            }
            Ok(entry.guest.exchange_files(wanted))
        })??;
        Ok(info(kept, layers.entry(kept).or_insert(replaced)))
    }

    async fn make_layer(&self, layer: LayerId, limit: u64, fill: Fill) -> Result<LayerInfo, ProviderError> {
        self.trouble("make_layer")?;
        let turn = self.kept.turns.take(layer).await;
        if let Some(there) = self.kept.layers.lock().expect("no panic while held").get(&layer) {
            return Ok(info(layer, there));
        }
        let folder = self.kept.folder().map_err(failed)?.join(random::hex(8));
        let (layers, stop) = (Arc::clone(&self.kept.layers), Stop::default());
        let _waiting = stop.unless_waited_for();
        // The thread finishes what it is at, whether somebody waits for it or not, as the engine's does.
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let files = fill_folder(&folder, fill, &stop)?;
            if files.bytes() > limit {
                return Err(ProviderError::Refused(format!("the layer has more than {limit} bytes")));
            }
            Ok(info(layer, layers.lock().expect("no panic while held").entry(layer).or_insert(files)))
        });
        let made = made.await.map_err(|error| ProviderError::Failed(error.to_string()))??;
        self.pass("make_layer").await;
        Ok(made)
    }

    async fn merge(&self, layers: &[LayerId], beneath: &Root, into: LayerId) -> Result<LayerInfo, ProviderError> {
        self.trouble("merge")?;
        let files = self.kept.files_of(&Root { under: beneath.under, over: layers.to_vec() })?;
        let mut layers = self.kept.layers.lock().expect("no panic while held");
        Ok(info(into, layers.entry(into).or_insert(files)))
    }

    async fn open_layer(&self, _layer: LayerId) -> Result<OwnedFd, ProviderError> {
        Err(ProviderError::Unsupported("the fake provider has no directories".into()))
    }

    async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        let layers = self.kept.layers.lock().expect("no panic while held");
        Ok(layers.get(&layer).map(|files| info(layer, files)))
    }

    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError> {
        Ok(self.layer_ids())
    }

    async fn remove_layer(&self, layer: LayerId) -> Result<Removed, ProviderError> {
        self.trouble("remove_layer")?;
        let _turn = self.kept.turns.take(layer).await;
        self.kept.layers.lock().expect("no panic while held").remove(&layer);
        Ok(Removed::Gone)
    }
}

fn fill_folder(folder: &Path, fill: Fill, stop: &Stop) -> Result<Files, ProviderError> {
    std::fs::create_dir(folder).map_err(failed)?;
    let filled = std::fs::File::open(folder).and_then(|directory| fill(directory.into(), stop));
    let read = filled.and_then(|()| read_directory(folder));
    std::fs::remove_dir_all(folder).map_err(failed)?;
    read.map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => ProviderError::Refused(error.to_string()),
        _ => failed(error),
    })
}

fn read_directory(top: &Path) -> io::Result<Files> {
    let mut files = Files::fresh();
    let mut todo = vec![top.to_owned()];
    while let Some(directory) = todo.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            let inside = format!("/{}", path.strip_prefix(top).map_err(io::Error::other)?.display());
            if path.is_dir() {
                files.make_directory(&inside).map_err(|failure| io::Error::other(failure.message))?;
                todo.push(path);
            } else {
                let content = std::fs::read(&path)?;
                let written = files.write(&inside, content, Default::default(), None, true);
                written.map_err(|failure| io::Error::other(failure.message))?;
            }
        }
    }
    Ok(files)
}

#[async_trait]
impl Volumes for Fake {
    async fn make_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError> {
        self.trouble("make_volume")?;
        self.kept.volumes.lock().expect("no panic while held").entry(volume.clone()).or_insert(limit);
        let path = self.kept.volume(volume)?;
        std::fs::create_dir_all(path).map_err(failed)?;
        self.pass("make_volume").await;
        Ok(())
    }

    async fn resize_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError> {
        self.kept.volume(volume)?;
        self.kept.volumes.lock().expect("no panic while held").insert(volume.clone(), limit);
        Ok(())
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        self.trouble("remove_volume")?;
        if let Ok(path) = self.kept.volume(volume) {
            std::fs::remove_dir_all(path).map_err(failed)?;
        }
        self.kept.volumes.lock().expect("no panic while held").remove(volume);
        Ok(())
    }

    async fn volume_usage(&self, volume: &VolumeId) -> Result<VolumeUsage, ProviderError> {
        let files = read_directory(&self.kept.volume(volume)?).map_err(failed)?;
        let limit = self.kept.volumes.lock().expect("no panic while held").get(volume).copied().unwrap_or(0);
        Ok(VolumeUsage { bytes: files.bytes(), limit })
    }

    async fn volumes(&self) -> Result<Vec<VolumeId>, ProviderError> {
        Ok(self.kept.volumes.lock().expect("no panic while held").keys().cloned().collect())
    }

    async fn open_volume(&self, volume: &VolumeId) -> Result<OwnedFd, ProviderError> {
        Ok(std::fs::File::open(self.kept.volume(volume)?).map_err(failed)?.into())
    }
}
