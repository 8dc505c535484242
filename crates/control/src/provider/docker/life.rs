//! The life of a container: made, started, stopped, frozen, removed.
//!
//! ```text
//!   launch ─▶ there? ─ no ──▶ image ─▶ create ─┐
//!                │ stopped                      ├─▶ our program in ─▶ start ─▶ network ─▶ guest answers ─▶ configured
//!                └──────────▶ limits ───────────┘                                                   └─▶ marked as whole
//! ```
//! A server that dies on the way leaves a container without the mark: the next launch ends it and begins again. What a
//! launch starts and cannot finish is ended before it returns.

use std::time::Duration;

use bollard::models::{NetworkConnectRequest, NetworkDisconnectRequest};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, KillContainerOptions, ListContainersOptionsBuilder, LogsOptionsBuilder,
    RemoveContainerOptionsBuilder, RenameContainerOptionsBuilder, StartContainerOptions, StopContainerOptionsBuilder,
    UploadToContainerOptionsBuilder,
};
use cove_protocol::{Reply, Request, SandboxId, VERSION};
use futures::StreamExt as _;
use tokio::time::Instant;

use super::client::{during, status, unless_absent, unless_so};
use super::container::{
    self, Found, INSTALLATION, Making, NO_NETWORK, SANDBOX, Way, handle_of, name_of, next_name_of, volume_name,
};
use super::image::Ready;
use super::notes::Note;
use super::usage::{boot_time, ended};
use super::{Inner, people, program};
use crate::guest::{Guest, GuestError};
use crate::provider::{Aside, Handle, Limit, Limits, Network, Order, ProviderError, Seen, Sighting};
use crate::random;

/// How long a guest may take until it answers for the first time.
const BIRTH: Duration = Duration::from_secs(30);
/// Between two looks at a guest that does not answer yet; it doubles.
const LOOK: Duration = Duration::from_millis(2);
const LONGEST_LOOK: Duration = Duration::from_millis(200);
/// What a guest has beyond its grace to end what is left.
const AFTER_GRACE: Duration = Duration::from_secs(7);
/// How long a removal that somebody else has begun is waited for.
const REMOVAL: Duration = Duration::from_secs(60);
/// Characters of the guest's own words about a start that failed.
const LAST_WORDS: usize = 500;

impl Inner {
    /// The container of a sandbox; `None` where there is none.
    pub async fn found(&self, id: &SandboxId) -> Result<Option<Found>, ProviderError> {
        match self.inspect(&name_of(id)).await? {
            Some(found) => Ok(Some(found)),
            None => self.finish_exchange(id).await,
        }
    }

    pub async fn inspect(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        let docker = self.client.docker().await?;
        let told = unless_absent(docker.inspect_container(name, None).await);
        Ok(told.map_err(during(format!("look at container {name}")))?.and_then(Found::of))
    }

    pub async fn wanted(&self, id: &SandboxId) -> Result<Found, ProviderError> {
        self.found(id).await?.ok_or_else(|| ProviderError::NotFound(handle_of(id)))
    }

    /// A rollback that was cut off between the end of the old container and the name of the new one.
    async fn finish_exchange(&self, id: &SandboxId) -> Result<Option<Found>, ProviderError> {
        if self.inspect(&next_name_of(id)).await?.is_none() {
            return Ok(None);
        }
        self.rename(&next_name_of(id), &name_of(id)).await?;
        self.inspect(&name_of(id)).await
    }

    pub async fn rename(&self, from: &str, to: &str) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        let options = RenameContainerOptionsBuilder::new().name(to).build();
        docker.rename_container(from, options).await.map_err(during(format!("rename container {from}")))
    }

    pub async fn launch(&self, order: &Order) -> Result<Handle, ProviderError> {
        let found = self.found(&order.id).await?;
        if let Some(found) = &found
            && found.state != Seen::Stopped
        {
            if self.is_whole(found).await? {
                if found.state == Seen::Paused {
                    self.resume(&order.id).await?;
                }
                return Ok(handle_of(&order.id));
            }
            self.halt(&order.id, Duration::ZERO).await?;
        }
        let ready = match &found {
            None => {
                let ready = self.image(&order.image).await?;
                self.create(order, &ready.name, OwnImage::No).await?;
                ready
            }
            Some(found) => {
                self.fit(order, found).await?;
                // What its image says is still what its commands inherit.
                self.image_by_id(&found.image).await?
            }
        };
        self.start(order, &ready, found.is_none()).await?;
        Ok(handle_of(&order.id))
    }

    async fn image_by_id(&self, image: &str) -> Result<Ready, ProviderError> {
        let told = self.inspect_image(image).await?;
        Ok(told.map(|told| super::image::ready(image, told)).unwrap_or_default())
    }

    /// Whether the launch that started it came to its end.
    pub async fn is_whole(&self, found: &Found) -> Result<bool, ProviderError> {
        let note = self.notes.read(&found.sandbox).await?;
        Ok(note.is_some_and(|note| note.whole.as_deref() == Some(found.started.as_str())))
    }

    /// Makes the container; nothing runs in it.
    pub async fn create(&self, order: &Order, image: &str, own: OwnImage) -> Result<(), ProviderError> {
        self.create_as(&name_of(&order.id), order, image, own, None).await
    }

    pub async fn create_as(
        &self,
        name: &str,
        order: &Order,
        image: &str,
        own: OwnImage,
        replaced: Option<String>,
    ) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        self.check_volumes(order).await?;
        let making = Making {
            image: image.to_owned(),
            token: random::token(),
            own_image: own == OwnImage::Yes,
            replaced,
            unheld: self.unheld().await?,
        };
        let body = self.house().await?.body(order, &making)?;
        self.notes.write(&order.id, &Note::new(order)).await?;
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let made = docker.create_container(Some(options), body).await;
        made.map(drop).map_err(during(format!("make sandbox {}", order.id)))
    }

    async fn unheld(&self) -> Result<Vec<Limit>, ProviderError> {
        Ok(self.client.facts().await?.unheld.iter().map(|unheld| unheld.limit).collect())
    }

    /// A daemon makes volumes that it does not know, and older ones pass over what they cannot show.
    async fn check_volumes(&self, order: &Order) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        for volume in &order.volumes {
            if volume.subpath.as_ref().is_some_and(|path| !path.is_empty()) && !self.client.facts().await?.subpaths {
                return Err(ProviderError::Unsupported(
                    "this docker cannot show a directory of a volume (Docker 26 can); mount all of it".into(),
                ));
            }
            let name = volume_name(&volume.volume);
            let told = unless_absent(docker.inspect_volume(&name).await);
            if told.map_err(during(format!("look at volume {}", volume.volume)))?.is_none() {
                let gone = format!("volume {} is not at provider {}", volume.volume, self.name);
                return Err(ProviderError::Refused(gone));
            }
        }
        Ok(())
    }

    /// What a container that is there must get before it starts again.
    async fn fit(&self, order: &Order, found: &Found) -> Result<(), ProviderError> {
        self.set_bounds(&order.id, &order.limits, found).await?;
        let network = self.house().await?.way.network(&order.network)?.to_owned();
        self.join_network(found, &network).await?;
        self.notes.write(&order.id, &Note::new(order)).await
    }

    async fn start(&self, order: &Order, ready: &Ready, is_new: bool) -> Result<(), ProviderError> {
        let id = &order.id;
        self.lines.forget(id);
        self.accounts.begin(id);
        // Of an earlier life that ended by itself: its network is gone with it.
        self.gate.leave(id).await?;
        let started = self.start_checked(order, ready, is_new).await;
        if let Err(error) = started {
            let words = self.last_words(id).await;
            // The first error is the one to tell; what is left running is found without its mark.
            let _ended = self.halt(id, Duration::ZERO).await;
            return Err(match (error, words) {
                (ProviderError::Failed(text), Some(words)) => {
                    ProviderError::Failed(format!("{text}; it said: {words}"))
                }
                (error, _) => error,
            });
        }
        Ok(())
    }

    async fn start_checked(&self, order: &Order, ready: &Ready, is_new: bool) -> Result<(), ProviderError> {
        let (id, docker) = (&order.id, self.client.docker().await?);
        let name = name_of(id);
        let program = program::archive().map_err(|error| ProviderError::Failed(format!("pack the guest: {error}")))?;
        let options = UploadToContainerOptionsBuilder::new().path("/").build();
        let put = docker.upload_to_container(&name, Some(options), bollard::body_full(program)).await;
        put.map_err(during(format!("put the guest into sandbox {id}")))?;
        let begun = docker.start_container(&name, None::<StartContainerOptions>).await;
        begun.map_err(during(format!("start sandbox {id}")))?;
        // From now on its end is news.
        self.alive.note(id);
        let found = self.wanted(id).await?;
        if self.house().await?.way == Way::Proxy {
            let Some(process) = found.process() else {
                return Err(ProviderError::Failed(format!("sandbox {id} ended as soon as it had started")));
            };
            self.gate.adopt(id, process.clone()).await?;
            self.gate.set(id, process, &order.network).await?;
        }
        let guest = self.guest(Some(id.clone()));
        self.first_answer(&guest, id).await?;
        if is_new && order.user == people::USUAL {
            people::ensure_usual(&guest).await.map_err(|error| of_the_guest(id, &error))?;
        }
        let mut env = ready.env.clone();
        env.extend(order.env.clone());
        let configure = Request::Configure {
            env: Some(env),
            default_user: Some(order.user.clone()),
            default_cwd: order.cwd.clone().or_else(|| ready.cwd.clone().filter(|_| order.user != people::USUAL)),
        };
        guest.call(&configure).await.map_err(|error| of_the_guest(id, &error))?;
        self.notes.change(id, |note| note.whole = Some(found.started)).await
    }

    /// Waits for the guest. It listens as soon as its program runs, so most often it answers at once.
    async fn first_answer(&self, guest: &Guest, id: &SandboxId) -> Result<(), ProviderError> {
        let (deadline, mut pause) = (Instant::now() + BIRTH, LOOK);
        loop {
            let error = match guest.call(&Request::Ping).await {
                Ok(Reply::Pong { version, .. }) if version <= VERSION => return Ok(()),
                Ok(Reply::Pong { version, .. }) => {
                    return Err(ProviderError::Failed(format!(
                        "its guest speaks protocol {version}, we speak {VERSION}"
                    )));
                }
                Ok(other) => return Err(of_the_guest(id, &GuestError::Protocol(format!("a ping answered {other:?}")))),
                Err(error @ GuestError::Unreachable(_)) => error,
                Err(error) => return Err(of_the_guest(id, &error)),
            };
            if Instant::now() >= deadline || self.wanted(id).await?.state == Seen::Stopped {
                return Err(of_the_guest(id, &error));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_LOOK);
        }
    }

    /// What our program said before it ended.
    async fn last_words(&self, id: &SandboxId) -> Option<String> {
        let docker = self.client.docker().await.ok()?;
        let options = LogsOptionsBuilder::new().stderr(true).stdout(true).tail("5").build();
        let mut logs = docker.logs(&name_of(id), Some(options));
        let mut words = String::new();
        while let Some(Ok(piece)) = logs.next().await {
            words.push_str(&String::from_utf8_lossy(&piece.into_bytes()));
            if words.len() > LAST_WORDS {
                break;
            }
        }
        let words: String = words.trim().chars().take(LAST_WORDS).flat_map(char::escape_default).collect();
        Some(words).filter(|words| !words.is_empty())
    }

    /// Ends its processes: with a grace where there is one.
    pub async fn halt(&self, id: &SandboxId, grace: Duration) -> Result<(), ProviderError> {
        let Some(found) = self.found(id).await? else { return Ok(()) };
        // Its end is as asked from here on, and no news.
        self.alive.forget(id);
        if found.state == Seen::Stopped {
            return Ok(());
        }
        let (docker, name) = (self.client.docker().await?, name_of(id));
        if found.state == Seen::Paused {
            // What is frozen hears no signal, and a daemon refuses to send one.
            unless_so(docker.unpause_container(&name).await).map_err(during(format!("thaw sandbox {id}")))?;
        }
        let halted = if grace.is_zero() {
            docker.kill_container(&name, None::<KillContainerOptions>).await
        } else {
            let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
            // One that does not answer gets the daemon's signal, and then none that it could refuse.
            let _heard = self.guest(Some(id.clone())).call(&Request::Shutdown { grace_ms }).await;
            let seconds = i32::try_from((grace + AFTER_GRACE).as_secs()).unwrap_or(i32::MAX);
            let options = StopContainerOptionsBuilder::new().t(seconds).build();
            docker.stop_container(&name, Some(options)).await
        };
        if let Err(error) = unless_so(halted) {
            self.alive.note(id);
            return Err(during(format!("stop sandbox {id}"))(error));
        }
        self.lines.forget(id);
        self.gate.leave(id).await?;
        self.forget_life(id).await
    }

    /// Its end is known: nobody needs to be told of it. See [`super::watch`].
    pub async fn forget_life(&self, id: &SandboxId) -> Result<(), ProviderError> {
        self.notes.change(id, |note| note.whole = None).await
    }

    pub async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), ProviderError> {
        self.wanted(id).await?;
        self.halt(id, grace).await
    }

    pub async fn pause(&self, id: &SandboxId) -> Result<(), ProviderError> {
        match self.wanted(id).await?.state {
            Seen::Paused => Ok(()),
            Seen::Stopped => Err(ProviderError::Refused(format!("sandbox {id} does not run"))),
            Seen::Running => {
                let docker = self.client.docker().await?;
                docker.pause_container(&name_of(id)).await.map_err(during(format!("pause sandbox {id}")))
            }
        }
    }

    pub async fn resume(&self, id: &SandboxId) -> Result<(), ProviderError> {
        match self.wanted(id).await?.state {
            Seen::Running => Ok(()),
            Seen::Stopped => Err(ProviderError::Refused(format!("sandbox {id} does not run"))),
            Seen::Paused => {
                let docker = self.client.docker().await?;
                docker.unpause_container(&name_of(id)).await.map_err(during(format!("resume sandbox {id}")))
            }
        }
    }

    /// Everything of it: container, files, directories that Docker kept for it, its own image, our note.
    pub async fn destroy(&self, id: &SandboxId) -> Result<(), ProviderError> {
        self.alive.forget(id);
        for name in [next_name_of(id), name_of(id)] {
            let Some(found) = self.inspect(&name).await? else { continue };
            self.remove(&name).await?;
            if let Some(image) = &found.own_image {
                self.drop_own_image(image).await?;
            }
        }
        self.gate.leave(id).await?;
        self.lines.forget(id);
        self.accounts.forget(id);
        self.notes.forget(id).await
    }

    /// With force: also what runs, or is frozen.
    pub async fn remove(&self, name: &str) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        let deadline = Instant::now() + REMOVAL;
        loop {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            match unless_absent(docker.remove_container(name, Some(options)).await) {
                Ok(_) => return Ok(()),
                // Somebody else is at it.
                Err(error) if status(&error) == Some(409) && Instant::now() < deadline => {
                    tokio::time::sleep(LONGEST_LOOK).await;
                }
                Err(error) => return Err(during(format!("remove container {name}"))(error)),
            }
        }
    }

    pub async fn resize(&self, id: &SandboxId, limits: &Limits) -> Result<(), ProviderError> {
        let found = self.wanted(id).await?;
        self.set_bounds(id, limits, &found).await?;
        self.notes.change(id, |note| note.set_limits(limits)).await
    }

    async fn set_bounds(&self, id: &SandboxId, limits: &Limits, found: &Found) -> Result<(), ProviderError> {
        let unheld = self.unheld().await?;
        let wanted = container::disk(limits, &unheld).and_then(|mut options| options.remove("size"));
        if wanted != found.disk_limit && !unheld.contains(&Limit::Disk) {
            return Err(ProviderError::Unsupported(
                "docker sets what a container may write when it is made; make another sandbox from a snapshot".into(),
            ));
        }
        let docker = self.client.docker().await?;
        let body = container::bounds(limits, &unheld);
        docker.update_container(&name_of(id), body).await.map_err(during(format!("limit sandbox {id}")))
    }

    pub async fn set_network(&self, id: &SandboxId, network: &Network) -> Result<(), ProviderError> {
        let found = self.wanted(id).await?;
        let house = self.house().await?;
        let name = house.way.network(network)?.to_owned();
        // First: a server that dies here finds the new rules.
        self.notes.change(id, |note| note.set_network(network)).await?;
        match (&house.way, found.process()) {
            (Way::Proxy, Some(process)) => self.gate.set(id, process, network).await,
            (Way::Proxy, None) => Ok(()),
            (Way::Network(_) | Way::Nowhere(_), _) => self.join_network(&found, &name).await,
        }
    }

    /// In this network of Docker's, and in no other.
    async fn join_network(&self, found: &Found, wanted: &str) -> Result<(), ProviderError> {
        let (docker, name) = (self.client.docker().await?, name_of(&found.sandbox));
        let step = || during(format!("change the network of sandbox {}", found.sandbox));
        for network in found.networks.iter().filter(|network| *network != wanted) {
            let request = NetworkDisconnectRequest { container: name.clone(), force: Some(true) };
            unless_so(docker.disconnect_network(network, request).await).map_err(step())?;
        }
        let is_in = found.networks.iter().any(|network| network == wanted);
        // podman lists no network where there is none.
        if !(is_in || wanted == NO_NETWORK && found.networks.is_empty()) {
            let request = NetworkConnectRequest { container: name, endpoint_config: None };
            docker.connect_network(wanted, request).await.map_err(step())?;
        }
        Ok(())
    }

    pub async fn keep_aside(&self, id: &SandboxId, aside: &Aside) -> Result<(), ProviderError> {
        self.stop(id, Duration::ZERO).await?;
        self.notes.change(id, |note| note.aside = Some(aside.clone())).await
    }

    /// Every container that this provider has made.
    pub async fn all(&self) -> Result<Vec<Found>, ProviderError> {
        let docker = self.client.docker().await?;
        let label = format!("{INSTALLATION}={}", self.installation);
        let filters = std::collections::HashMap::from([("label", vec![label.as_str(), SANDBOX])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let listed = docker.list_containers(Some(options)).await.map_err(during("list containers"))?;
        let mut all = Vec::new();
        for container in listed {
            let Some(docker_id) = container.id else { continue };
            // One that goes in between is not there.
            let Some(found) = self.inspect(&docker_id).await? else { continue };
            // The half of an exchange: the other half is the sandbox, or it is found by its name.
            let names = container.names.unwrap_or_default();
            if names.iter().any(|name| name.trim_start_matches('/') == next_name_of(&found.sandbox))
                && self.found(&found.sandbox).await?.is_some_and(|whole| whole.container != found.container)
            {
                continue;
            }
            all.push(found);
        }
        Ok(all)
    }

    pub async fn sighting(&self, found: Found) -> Result<Sighting, ProviderError> {
        let note = self.notes.read(&found.sandbox).await?;
        let whole = note.as_ref().and_then(|note| note.whole.as_deref()) == Some(found.started.as_str());
        // What a launch has not finished is as good as stopped: a launch begins it again.
        let state = if whole { found.state } else { Seen::Stopped };
        let here = self.client.known_facts().is_some_and(|facts| facts.far.is_none());
        let booted = if here { boot_time() } else { None };
        let has_ended = found.state == Seen::Stopped && whole;
        if state != Seen::Stopped {
            // Whoever was told that it runs is told when it no longer does.
            self.alive.note(&found.sandbox);
        }
        Ok(Sighting {
            handle: handle_of(&found.sandbox),
            state,
            ended: has_ended.then(|| ended(&found, booted)),
            aside: note.and_then(|note| note.aside),
            id: found.sandbox,
        })
    }
}

/// Whether an image is one container's alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnImage {
    Yes,
    No,
}

fn of_the_guest(id: &SandboxId, error: &GuestError) -> ProviderError {
    ProviderError::Failed(format!("the guest of sandbox {id}: {error}"))
}
