//! Sandboxes as containers of a Docker daemon, or of podman's compatible socket.
//!
//! The only folder that knows Docker. Any image runs as it is: our static guest is put into each container as its first
//! process, so that all doors, the interpreter, previews, git and watches work as on our own engine. A sandbox's handle is
//! its container's name, `cove-ID`; labels say whose it is, so that a server that lost everything else finds it again.
//!
//! ```text
//!   [providers.docker]
//!   host = "unix:///var/run/docker.sock"     or tcp://HOST:PORT; $DOCKER_HOST where it is not written
//!   image = "debian:stable-slim"             what `base` starts from
//!   network = ""                             of Docker's, for open networks where our proxy cannot serve
//!   runtime = ""                             such as runsc
//!   no_new_privileges = false
//! ```
//!
//! # Layout
//! * `client`: the connection; `facts`: what the daemon can do, and whether it is on this machine
//! * `container`: what a sandbox is to the daemon; `life`: launch, stop, pause, remove; `notes`: what we write down
//! * `program`, `line`, `process`, `people`: the guest, and the ways to it
//! * `image`, `layers`, `transfer`, `volumes`, `body`: files
//! * `egress`: its network; `usage`: what it uses; `watch`: ends that nobody asked for

mod body;
mod client;
mod container;
mod egress;
mod facts;
mod image;
mod layers;
mod life;
mod line;
mod notes;
mod people;
mod process;
mod program;
mod transfer;
mod usage;
mod volumes;
mod watch;

use std::collections::HashSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use async_trait::async_trait;
use cove_protocol::SandboxId;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, OnceCell, mpsc};
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument as _;

use self::client::{Client, Host};
use self::container::{House, Way, id_of};
use super::kind::{Count, Opening};
use super::{
    Aside, Can, Capabilities, Departure, Ended, Handle, Health, Isolation, Kind, Limits, Network, Order, Provider,
    ProviderError, Sighting, Space, Supply, Trouble, Unheld, Usage, images,
};
use crate::Error;
use crate::config::key::{Kind as Value, SectionKey};
use crate::guest::Guest;
use crate::image::registries;
use crate::image::turn::Turns;
use crate::trace::effect;

pub static KIND: Kind = Kind {
    name: "docker",
    keys: &[
        SectionKey::new(HOST, Value::Text).others(&["DOCKER_HOST"]),
        SectionKey::new(IMAGE, Value::Text),
        SectionKey::new(NETWORK, Value::Text),
        SectionKey::new(RUNTIME, Value::Text),
        SectionKey::new(NO_NEW_PRIVILEGES, Value::Switch),
    ],
    count: Count::Any,
    open: |opening| Ok(Docker::open(opening)?),
};

const HOST: &str = "host";
const HOST_DEFAULT: &str = "unix:///var/run/docker.sock";
const IMAGE: &str = "image";
const IMAGE_DEFAULT: &str = "debian:stable-slim";
const NETWORK: &str = "network";
const RUNTIME: &str = "runtime";
const NO_NEW_PRIVILEGES: &str = "no_new_privileges";

/// How long a daemon may take to say what it can do before a server serves. One that is away is asked again later.
const FIRST_WORD: Duration = Duration::from_secs(5);

const NO_MANIFEST: &str = "its files lie within docker, which writes none; a provider of kind local does";

pub struct Docker {
    inner: Arc<Inner>,
    departures: Mutex<mpsc::UnboundedReceiver<Departure>>,
    /// Goes to the watcher with the first who waits for departures.
    tell: mpsc::UnboundedSender<Departure>,
    watcher: OnceLock<AbortOnDropHandle<()>>,
}

/// What all files of this folder share.
pub struct Inner {
    /// For what outlives a call.
    this: Weak<Inner>,
    /// Of the section.
    name: String,
    /// `SERVER/NAME`: whose containers, images and volumes are meant.
    installation: String,
    client: Client,
    /// What containers have in common; decided when the daemon has said what it can do.
    house: OnceCell<House>,
    /// What `base` starts from: a whole reference.
    image: String,
    /// A network of Docker's that the operator named.
    network: Option<String>,
    runtime: Option<String>,
    no_new_privileges: bool,
    notes: notes::Notes,
    gate: egress::Gate,
    lines: line::Lines,
    accounts: usage::Accounts,
    alive: watch::Alive,
    /// Who makes or removes which layer.
    turns: Turns,
    pulls: Mutex<()>,
}

impl Docker {
    fn open(opening: &Opening<'_>) -> Result<Arc<Docker>, Error> {
        let (name, section) = (opening.name, opening.section);
        let wrong = |key: &str, message: String| Error::invalid(format!("providers.{name}.{key}"), message);
        let host = Host::parse(section.text(HOST).unwrap_or(HOST_DEFAULT)).map_err(|why| wrong(HOST, why))?;
        let names = registries::names(&opening.config.images).map_err(|(key, message)| Error::invalid(key, message))?;
        let image = image::reference(section.text(IMAGE).unwrap_or(IMAGE_DEFAULT), &names);
        let runtime = section.text(RUNTIME).map(ToOwned::to_owned);
        let client = Client::new(host, isolation(runtime.as_deref()));
        let folder = opening.config.data.join("docker").join(name);
        let notes = notes::Notes::open(folder.clone());
        let notes = notes.map_err(|error| Error::internal(format!("make {}: {error}", folder.display())))?;
        let installation = format!("{}/{name}", crate::identity::of_server(&opening.config.data)?);
        let image = image.map_err(|why| wrong(IMAGE, why))?;
        let inner = Arc::new_cyclic(|this| Inner {
            this: this.clone(),
            name: name.to_owned(),
            installation,
            client,
            house: OnceCell::new(),
            image,
            network: section.text(NETWORK).map(ToOwned::to_owned),
            runtime,
            no_new_privileges: section.keys.get(NO_NEW_PRIVILEGES).and_then(toml::Value::as_bool).unwrap_or(false),
            notes,
            gate: egress::Gate::default(),
            lines: line::Lines::default(),
            accounts: usage::Accounts::default(),
            alive: watch::Alive::default(),
            turns: Turns::default(),
            pulls: Mutex::default(),
        });
        if let Err(why) = inner.client.ask_now(FIRST_WORD) {
            // Others of this server may be well; what is asked of this one fails with the reason until it is back.
            tracing::warn!(provider = name, why, "docker does not answer; start it, or change providers.{name}.host");
        }
        let (tell, departures) = mpsc::unbounded_channel();
        let departures = Mutex::new(departures);
        Ok(Arc::new(Docker { inner, departures, tell, watcher: OnceLock::new() }))
    }
}

/// By what the runtimes are called by those who make them.
fn isolation(runtime: Option<&str>) -> Isolation {
    match runtime {
        Some(name) if name.contains("runsc") => Isolation::Gvisor,
        Some(name) if name.contains("kata") => Isolation::Microvm,
        _ => Isolation::Namespaces,
    }
}

impl Inner {
    async fn house(&self) -> Result<&House, ProviderError> {
        let make = || async {
            let way = match (&self.client.facts().await?.far, &self.network) {
                (None, _) => Way::Proxy,
                (Some(_), Some(network)) => Way::Network(network.clone()),
                (Some(why), None) => Way::Nowhere(why.clone()),
            };
            Ok(House {
                installation: self.installation.clone(),
                runtime: self.runtime.clone(),
                no_new_privileges: self.no_new_privileges,
                way,
            })
        };
        self.house.get_or_try_init(make).await
    }

    fn guest(&self, sandbox: Option<SandboxId>) -> Guest {
        Guest::new(Arc::new(line::Line { provider: self.this.clone(), sandbox }))
    }

    /// Why rules about the network cannot be held.
    fn no_rules(&self) -> Option<String> {
        match self.client.known_facts() {
            None => Some(format!("docker at {} has not answered yet", self.client.host())),
            Some(facts) => facts.far.as_ref().map(|why| {
                format!(
                    "its rules are held by a proxy of this server's in the sandbox's own network, which cannot be entered \
                     from here: {why}; an open or a closed network can be had"
                )
            }),
        }
    }
}

#[async_trait]
impl Provider for Docker {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: self.inner.client.isolation(),
            pause: Can::Yes,
            resize: Can::Yes,
            persistent: Can::Yes,
            network_policy: self.inner.no_rules().map_or(Can::Yes, |why| Can::No(why.into())),
            archive: Can::Yes,
            snapshot: Can::Yes,
            fork: Can::Yes,
            volumes: Can::Yes,
            manifest: Can::not(NO_MANIFEST),
        }
    }

    /// A container belongs to the server that made it, wherever the daemon is: its notes are in that server's data directory.
    fn is_bound_to_host(&self) -> bool {
        true
    }

    /// A daemon of its own, which people stop and start.
    fn may_be_away(&self) -> bool {
        true
    }

    fn supply(&self) -> Supply {
        Supply::Images
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        let docker = self.inner.client.docker().await?;
        docker.ping().await.map(drop).map_err(client::during("ask docker whether it is there"))
    }

    fn layers(&self) -> &dyn images::Layers {
        self
    }

    fn volumes(&self) -> &dyn images::Volumes {
        self
    }

    fn closes_networks(&self) -> bool {
        true
    }

    fn unheld(&self) -> Vec<Unheld> {
        self.inner.client.known_facts().map(|facts| facts.unheld.clone()).unwrap_or_default()
    }

    fn unheld_volumes(&self) -> Option<Unheld> {
        Some(volumes::unheld())
    }

    async fn launch(&self, order: &Order) -> Result<Handle, ProviderError> {
        let span = effect!("launch", order.id);
        self.inner.launch(order).instrument(span).await
    }

    async fn stop(&self, handle: &Handle, grace: Duration) -> Result<(), ProviderError> {
        let span = effect!("stop", handle);
        self.inner.stop(&id_of(handle)?, grace).instrument(span).await
    }

    async fn pause(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("pause", handle);
        self.inner.pause(&id_of(handle)?).instrument(span).await
    }

    async fn resume(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("resume", handle);
        self.inner.resume(&id_of(handle)?).instrument(span).await
    }

    async fn end(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.inner.halt(&id_of(handle)?, Duration::ZERO).await
    }

    async fn destroy(&self, handle: &Handle) -> Result<(), ProviderError> {
        let span = effect!("destroy", handle);
        self.inner.destroy(&id_of(handle)?).instrument(span).await
    }

    async fn resize(&self, handle: &Handle, limits: &Limits) -> Result<(), ProviderError> {
        self.inner.resize(&id_of(handle)?, limits).await
    }

    async fn set_network(&self, handle: &Handle, network: &Network) -> Result<(), ProviderError> {
        self.inner.set_network(&id_of(handle)?, network).await
    }

    async fn usage(&self, handle: &Handle) -> Result<Usage, ProviderError> {
        self.inner.usage(&id_of(handle)?).await
    }

    async fn shortage(&self, handle: &Handle) -> Option<Ended> {
        let id = id_of(handle).ok()?;
        let found = self.inner.found(&id).await.ok()??;
        let short = found.out_of_memory || self.inner.accounts.kills(&id) > 0;
        let (limit, peak) = (found.memory_limit, found.memory_limit);
        short.then_some(Ended::OutOfMemory { limit, peak, largest: None })
    }

    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        let mut all = Vec::new();
        for found in self.inner.all().await? {
            all.push(self.inner.sighting(found).await?);
        }
        Ok(all)
    }

    async fn sighting(&self, handle: &Handle) -> Result<Option<Sighting>, ProviderError> {
        match self.inner.found(&id_of(handle)?).await? {
            // One of another server's on the same daemon is not this one's to speak of.
            Some(found) if found.installation == self.inner.installation => Ok(Some(self.inner.sighting(found).await?)),
            _ => Ok(None),
        }
    }

    async fn keep_aside(&self, handle: &Handle, aside: &Aside) -> Result<(), ProviderError> {
        self.inner.keep_aside(&id_of(handle)?, aside).await
    }

    async fn take_back(&self, handle: &Handle) -> Result<(), ProviderError> {
        self.inner.notes.change(&id_of(handle)?, |note| note.aside = None).await
    }

    async fn last_order(&self, handle: &Handle) -> Result<Option<Order>, ProviderError> {
        let id = id_of(handle)?;
        Ok(self.inner.notes.read(&id).await?.map(|note| note.order(&id)))
    }

    async fn is_blank(&self, handle: &Handle) -> Result<bool, ProviderError> {
        let id = id_of(handle)?;
        let found = self.inner.wanted(&id).await?;
        // One that was copied from another has what that one had.
        let changed = self.inner.changed_files(&id).await?;
        Ok(found.own_image.is_none() && changed.iter().all(|path| people::WRITTEN.contains(&path.as_str())))
    }

    fn storage(&self, kept: u64) -> Option<Health> {
        let root = self.inner.client.known_facts()?.root.as_ref()?;
        let told = rustix::fs::statvfs(root).ok()?;
        let disk = Space { free: told.f_bavail * told.f_frsize, total: told.f_blocks * told.f_frsize };
        let trouble = (disk.free < kept).then(|| {
            Trouble::Full(format!("docker's disk has {} MiB left, and {} MiB stay free", disk.free >> 20, kept >> 20))
        });
        Some(Health { disk, pool: None, trouble })
    }

    async fn sweep(&self, _keep: HashSet<SandboxId>) -> Result<usize, ProviderError> {
        // Containers that nobody knows were judged before, one by one. What is left are the halves of files.
        let drafts = self.inner.notes.drafts();
        let cleared = tokio::task::spawn_blocking(move || {
            layers::cleared(&drafts).and_then(|()| crate::app::make_private_directory(&drafts))
        });
        let failed = |error: String| ProviderError::Failed(format!("remove drafts of layers: {error}"));
        cleared.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        // A daemon that is away keeps nobody from being served; the next start of a server finds what is left.
        let swept = self.inner.sweep_images().await;
        Ok(swept.unwrap_or_else(|error| {
            tracing::warn!(provider = self.inner.name, %error, "images that nobody has were not looked for");
            0
        }))
    }

    async fn departure(&self) -> Departure {
        self.watcher.get_or_init(|| {
            let watch = watch::follow(Arc::clone(&self.inner), self.tell.clone());
            AbortOnDropHandle::new(tokio::spawn(watch))
        });
        match self.departures.lock().await.recv().await {
            Some(departure) => departure,
            None => std::future::pending().await,
        }
    }

    fn guest(&self, handle: &Handle) -> Guest {
        self.inner.guest(id_of(handle).ok())
    }

    async fn export(&self, handle: &Handle, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let span = effect!("export", handle);
        self.inner.export(&id_of(handle)?, to).instrument(span).await
    }

    async fn import(&self, order: &Order, from: &mut (dyn AsyncRead + Send + Unpin)) -> Result<Handle, ProviderError> {
        let span = effect!("import", order.id);
        self.inner.import(order, from).instrument(span).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isolation_is_what_the_runtime_gives() {
        assert_eq!(isolation(None), Isolation::Namespaces);
        assert_eq!(isolation(Some("crun")), Isolation::Namespaces);
        assert_eq!(isolation(Some("io.containerd.runsc.v1")), Isolation::Gvisor);
        assert_eq!(isolation(Some("kata-qemu")), Isolation::Microvm);
    }
}
