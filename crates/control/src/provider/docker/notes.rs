//! What this server has written down of its containers, a file for each, in its data directory.
//!
//! The daemon keeps what a container is made of. It cannot keep what changes without a new container: the rules of its
//! network, which our proxy holds and must find again after a restart, and why its files are kept although nobody owns
//! them. A launch ends with the mark of that very start; a container that runs without it was left half-made.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use cove_protocol::SandboxId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::container::handle_of;
use crate::provider::images::LayerInfo;
use crate::provider::{Aside, Durability, Image, LayerId, Limits, Network, Order, ProviderError, VolumeMount};

/// An order as it is written.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Kept {
    image: Image,
    volatile: bool,
    limits: Limits,
    network: Network,
    #[serde(default)]
    volumes: Vec<VolumeMount>,
    hostname: String,
    env: BTreeMap<String, String>,
    user: String,
    cwd: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Note {
    order: Kept,
    /// The start that came to its end: [`super::container::Found::started`].
    #[serde(default)]
    pub whole: Option<String>,
    #[serde(default)]
    pub aside: Option<Aside>,
}

impl Note {
    pub fn new(order: &Order) -> Note {
        let Order { id: _, earlier: _, image, durability, limits, network, volumes, hostname, env, user, cwd } = order;
        let order = Kept {
            image: image.clone(),
            volatile: *durability == Durability::Volatile,
            limits: *limits,
            network: network.clone(),
            volumes: volumes.clone(),
            hostname: hostname.clone(),
            env: env.clone(),
            user: user.clone(),
            cwd: cwd.clone(),
        };
        Note { order, whole: None, aside: None }
    }

    pub fn order(&self, id: &SandboxId) -> Order {
        let Kept { image, volatile, limits, network, volumes, hostname, env, user, cwd } = self.order.clone();
        Order {
            id: id.clone(),
            earlier: Some(handle_of(id)),
            image,
            durability: if volatile { Durability::Volatile } else { Durability::Durable },
            limits,
            network,
            volumes,
            hostname,
            env,
            user,
            cwd,
        }
    }

    pub fn network(&self) -> &Network {
        &self.order.network
    }

    pub fn set_network(&mut self, network: &Network) {
        self.order.network = network.clone();
    }

    pub fn set_limits(&mut self, limits: &Limits) {
        self.order.limits = *limits;
    }
}

/// How large a layer is: a daemon tells the size of all that lies below as well.
#[derive(Debug, Serialize, Deserialize)]
struct Size {
    bytes: u64,
    files: u64,
}

#[derive(Debug, Clone)]
pub struct Notes {
    folder: PathBuf,
}

impl Notes {
    /// Makes the folders, closed to others: environments are in them. Blocking.
    pub fn open(folder: PathBuf) -> io::Result<Notes> {
        for part in [&folder, &folder.join("sandboxes"), &folder.join("layers"), &folder.join("drafts")] {
            crate::app::make_private_directory(part)?;
        }
        Ok(Notes { folder })
    }

    /// Where layers are put together.
    pub fn drafts(&self) -> PathBuf {
        self.folder.join("drafts")
    }

    fn of_sandbox(&self, id: &SandboxId) -> PathBuf {
        self.folder.join("sandboxes").join(format!("{id}.json"))
    }

    fn of_layer(&self, layer: &LayerId) -> PathBuf {
        self.folder.join("layers").join(format!("{layer}.json"))
    }

    pub async fn read(&self, id: &SandboxId) -> Result<Option<Note>, ProviderError> {
        read(self.of_sandbox(id)).await
    }

    pub async fn write(&self, id: &SandboxId, note: &Note) -> Result<(), ProviderError> {
        write(self.of_sandbox(id), note).await
    }

    /// Changes what is there; nothing to do where nothing is.
    pub async fn change(&self, id: &SandboxId, act: impl FnOnce(&mut Note)) -> Result<(), ProviderError> {
        let Some(mut note) = self.read(id).await? else { return Ok(()) };
        act(&mut note);
        self.write(id, &note).await
    }

    pub async fn forget(&self, id: &SandboxId) -> Result<(), ProviderError> {
        remove(self.of_sandbox(id)).await
    }

    pub async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        let size: Option<Size> = read(self.of_layer(&layer)).await?;
        Ok(size.map(|Size { bytes, files }| LayerInfo { id: layer, bytes, files }))
    }

    pub async fn note_layer(&self, layer: &LayerInfo) -> Result<(), ProviderError> {
        write(self.of_layer(&layer.id), &Size { bytes: layer.bytes, files: layer.files }).await
    }

    pub async fn forget_layer(&self, layer: LayerId) -> Result<(), ProviderError> {
        remove(self.of_layer(&layer)).await
    }
}

async fn read<T: DeserializeOwned + Send + 'static>(path: PathBuf) -> Result<Option<T>, ProviderError> {
    on_a_thread(path, |path| match std::fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    })
    .await
}

async fn write(path: PathBuf, value: &impl Serialize) -> Result<(), ProviderError> {
    let text = serde_json::to_vec(value).map_err(|error| ProviderError::Failed(format!("write a note: {error}")))?;
    on_a_thread(path, move |path| cove_sys::replacement::replace(path, &text, 0o600)).await
}

async fn remove(path: PathBuf) -> Result<(), ProviderError> {
    on_a_thread(path, |path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    })
    .await
}

async fn on_a_thread<T: Send + 'static>(
    path: PathBuf,
    act: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
) -> Result<T, ProviderError> {
    let name = path.display().to_string();
    let failed = |error: String| ProviderError::Failed(format!("{name}: {error}"));
    match tokio::task::spawn_blocking(move || act(&path)).await {
        Ok(done) => done.map_err(|error| failed(error.to_string())),
        Err(error) => Err(failed(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use cove_policy::Egress;

    use super::*;
    use crate::provider::Root;

    #[tokio::test]
    async fn an_order_is_read_as_it_was_written_and_gone_when_it_is_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path().join("docker")).unwrap();
        let id: SandboxId = "a".repeat(20).parse().unwrap();
        let order = Order {
            id: id.clone(),
            earlier: Some(handle_of(&id)),
            image: Image { root: Root::default(), reference: Some("debian:12".into()) },
            durability: Durability::Volatile,
            limits: Limits::default(),
            network: Network::Full(Egress::default()),
            volumes: Vec::new(),
            hostname: "box".into(),
            env: BTreeMap::from([("A".into(), "b".into())]),
            user: "user".into(),
            cwd: Some("/work".into()),
        };
        assert!(notes.read(&id).await.unwrap().is_none());
        notes.change(&id, |_| panic!("nothing is there")).await.unwrap();
        notes.write(&id, &Note::new(&order)).await.unwrap();
        notes.change(&id, |note| note.whole = Some("then".into())).await.unwrap();
        let read = notes.read(&id).await.unwrap().unwrap();
        assert_eq!((read.order(&id), read.whole.as_deref(), read.aside.clone()), (order, Some("then"), None));
        notes.forget(&id).await.unwrap();
        notes.forget(&id).await.unwrap();
        assert!(notes.read(&id).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_layers_size_is_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path().join("docker")).unwrap();
        let layer = LayerInfo { id: LayerId::new([3; 32]), bytes: 5, files: 2 };
        notes.note_layer(&layer).await.unwrap();
        assert_eq!(notes.layer(layer.id).await.unwrap(), Some(layer));
        notes.forget_layer(layer.id).await.unwrap();
        assert_eq!(notes.layer(layer.id).await.unwrap(), None);
    }
}
