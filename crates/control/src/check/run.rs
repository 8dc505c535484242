//! The job of a check: every thing of one server, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cove_protocol::SandboxId;

use super::{Item, ItemKind, Part, Progress, Reach, Report, Verdict, Which};
use crate::image::LayerKind;
use crate::job::Job;
use crate::provider::manifest::{Against, Checked, How, Problem, ProblemKind, Pulse, Thing};
use crate::provider::{Ability, LayerId, Provider, ProviderError, VolumeId};
use crate::sandbox::{Filter, Page, Sandbox, State};
use crate::store::Lasting;
use crate::volume::State as VolumeState;
use crate::{App, Error};

/// How often it says how far it is.
const TELLS: Duration = Duration::from_secs(1);
/// Names of what nobody owns that are told, of each kind.
const STRAYS: usize = 20;

/// How far a job is.
#[derive(Default)]
struct Live {
    pulse: Arc<Pulse>,
    things: AtomicU64,
    done: AtomicU64,
}

impl Live {
    fn progress(&self) -> Progress {
        let (files, bytes) = self.pulse.so_far();
        Progress { things: self.things.load(Ordering::Relaxed), done: self.done.load(Ordering::Relaxed), files, bytes }
    }
}

/// Layers that are to be checked, each with the manifests that it is said to have.
type Layers = BTreeMap<(String, LayerId), BTreeSet<String>>;

impl App {
    pub(crate) async fn run_check(&self, job: &Job) -> Result<(), Error> {
        let mut part = Part::read(job)?;
        let live = Live::default();
        let (of, reach) = (part.of.clone(), part.reach);
        let work = self.verify(&job.organisation, &of, reach, &live);
        let mut work = std::pin::pin!(work);
        let mut told = false;
        let report = loop {
            tokio::select! {
                report = &mut work => break report?,
                () = self.ending().cancelled(), if !told => {
                    live.pulse.stop();
                    told = true;
                }
                () = tokio::time::sleep(TELLS) => {
                    part.progress = live.progress();
                    self.say_how_far(job, &part).await?;
                }
            }
        };
        part.progress = live.progress();
        part.report = Some(report);
        let payload = part.to_json()?;
        // A report may be an hour's work: it waits for a disk that is full, and is not made again.
        let note = || self.store().note_job(&job.id, job.attempts, &payload, Lasting::Synced);
        self.insist("note of a check's report", note).await
    }

    /// Nobody waits for it; the end is written for certain.
    async fn say_how_far(&self, job: &Job, part: &Part) -> Result<(), Error> {
        let payload = part.to_json()?;
        if let Err(error) = self.store().note_job(&job.id, job.attempts, &payload, Lasting::Soon).await {
            tracing::warn!(check = %job.id, %error, detail = error.detail(), "note how far a check is");
        }
        Ok(())
    }

    async fn verify(&self, organisation: &str, of: &Which, reach: Reach, live: &Live) -> Result<Report, Error> {
        let (mut report, mut layers, mut volumes) = (Report::default(), Layers::new(), BTreeMap::new());
        let ids = match of {
            Which::Sandboxes(ids) => ids.clone(),
            Which::All => {
                for (layer, provider) in self.store().layers_of(organisation, self.server()).await? {
                    let provider = provider.unwrap_or_else(|| self.default_provider().to_owned());
                    layers.entry((provider, layer)).or_default();
                }
                for volume in self.store().volumes(organisation, false).await? {
                    if volume.server == self.server() && volume.state == VolumeState::Ready {
                        volumes.insert(volume.id, volume.provider);
                    }
                }
                self.sandboxes_here(organisation).await?
            }
        };
        live.things.store((ids.len() + layers.len() + volumes.len()) as u64, Ordering::Relaxed);
        for id in &ids {
            self.go_on()?;
            let found = self.store().sandbox_by_id(id).await?;
            let found = found.filter(|sandbox| sandbox.organisation == organisation);
            let item = match found {
                Some(sandbox) => {
                    for layer in &sandbox.image.root.over {
                        layers.entry((sandbox.provider.clone(), *layer)).or_default();
                    }
                    volumes
                        .extend(sandbox.volumes.iter().map(|mount| (mount.volume.clone(), sandbox.provider.clone())));
                    self.check_sandbox(sandbox, &mut layers, live).await?
                }
                None => Item::new(ItemKind::Sandbox, id, None, Verdict::NotChecked, "it is gone by now"),
            };
            report.add(item);
            live.done.fetch_add(1, Ordering::Relaxed);
            live.things.store((ids.len() + layers.len() + volumes.len()) as u64, Ordering::Relaxed);
        }
        for ((provider, layer), digests) in layers {
            self.go_on()?;
            report.add(self.check_layer(&provider, layer, digests, live).await?);
            live.done.fetch_add(1, Ordering::Relaxed);
        }
        for (volume, provider) in volumes {
            self.go_on()?;
            report.add(self.check_volume(organisation, &provider, volume, live).await?);
            live.done.fetch_add(1, Ordering::Relaxed);
        }
        if *of == Which::All && reach == Reach::Server {
            report.add(self.find_strays().await?);
        }
        self.go_on()?;
        Ok(report)
    }

    /// A check that is broken off begins again with the next server.
    fn go_on(&self) -> Result<(), Error> {
        if self.ending().is_cancelled() { Err(Error::exhausted("the server ends")) } else { Ok(()) }
    }

    async fn sandboxes_here(&self, organisation: &str) -> Result<Vec<SandboxId>, Error> {
        let (mut ids, mut page) = (Vec::new(), Page { limit: 1000, ..Page::default() });
        loop {
            let listed = self.store().list_sandboxes(organisation, &Filter::default(), &page).await?;
            let here = listed.items.into_iter().filter(|sandbox| sandbox.server == self.server());
            ids.extend(here.map(|sandbox| sandbox.id));
            match listed.next {
                Some(next) => page.cursor = Some(next),
                None => return Ok(ids),
            }
        }
    }

    async fn check_sandbox(&self, sandbox: Sandbox, layers: &mut Layers, live: &Live) -> Result<Item, Error> {
        let (id, name) = (sandbox.id.clone(), sandbox.name.clone());
        let not_checked = |why: String| Item::new(ItemKind::Sandbox, &id, name.clone(), Verdict::NotChecked, why);
        let absent = |why: &str| Item::absent(ItemKind::Sandbox, &id, name.clone(), why);
        match sandbox.state {
            State::Destroying | State::Destroyed => return Ok(not_checked("it is gone by now".into())),
            State::Archived => {
                return Ok(match self.has_archive(&sandbox).await {
                    Ok(true) => {
                        not_checked("its files are in the archive, which was read back when it was made".into())
                    }
                    Ok(false) => absent("the database says that it is archived, and its archive is not there"),
                    Err(error) => not_checked(error.to_string()),
                });
            }
            state if state.is_in_transition() => {
                return Ok(not_checked(format!("it is {state}; check again when it is done")));
            }
            _ => {}
        }
        let provider = match self.able(&sandbox.provider) {
            Ok(provider) => provider,
            Err(why) => return Ok(not_checked(why)),
        };
        if provider.sighting(&sandbox.handle()).await?.is_none() {
            return Ok(absent("the database has it, and its files are not there"));
        }
        if sandbox.state == State::Running {
            return Ok(not_checked("it runs, so its files change: only its layers are checked".into()));
        }
        let digest = sandbox.manifest.as_ref().map(|manifest| manifest.digest.clone());
        let thing = Thing::Sandbox { handle: sandbox.handle(), digest };
        let checked = provider.manifests().check(thing, Arc::clone(&live.pulse)).await;
        self.go_on()?;
        let now = self.store().sandbox_by_id(&sandbox.id).await?;
        if now.is_none_or(|now| (now.state, now.manifest) != (sandbox.state, sandbox.manifest.clone())) {
            return Ok(not_checked("it was started or changed while it was checked".into()));
        }
        let checked = match checked {
            Ok(checked) => checked,
            Err(error) => return Ok(unable(ItemKind::Sandbox, &id, name, error)),
        };
        for (layer, digest) in &checked.layers {
            layers.entry((sandbox.provider.clone(), *layer)).or_default().insert(digest.clone());
        }
        let sound = match &sandbox.manifest {
            Some(manifest) => format!("as in its manifest of {}", manifest.written_at),
            None => "it has no manifest: all of it can be read; a durable pause or stop writes one".into(),
        };
        Ok(Item::of(ItemKind::Sandbox, &id, name, checked, sound))
    }

    async fn check_layer(
        &self,
        provider: &str,
        layer: LayerId,
        digests: BTreeSet<String>,
        live: &Live,
    ) -> Result<Item, Error> {
        let able = match self.able(provider) {
            Ok(able) => able,
            Err(why) => return Ok(Item::new(ItemKind::Layer, layer, None, Verdict::NotChecked, why)),
        };
        if able.layers().layer(layer).await?.is_none() {
            let why = "templates, snapshots or sandboxes need it, and it is not there";
            return Ok(Item::absent(ItemKind::Layer, layer, None, why));
        }
        let mut against: Vec<Against> = digests.into_iter().map(Against::Manifest).collect();
        if against.is_empty() {
            let kind = self.store().layer(layer).await?.map(|layer| layer.kind);
            against.push(if kind == Some(LayerKind::Packages) { Against::Name } else { Against::Own });
        }
        let mut last = None;
        for against in against {
            let thing = Thing::Layer { layer, against };
            let checked = able.manifests().check(thing, Arc::clone(&live.pulse)).await;
            let item = match checked {
                Ok(checked) => {
                    let sound = sound_layer(&checked).to_owned();
                    Item::of(ItemKind::Layer, layer, None, checked, sound)
                }
                Err(error) => unable(ItemKind::Layer, layer, None, error),
            };
            if item.verdict == Verdict::Damaged {
                return Ok(item);
            }
            last = Some(item);
        }
        last.ok_or_else(|| Error::internal("a layer that was compared with nothing"))
    }

    async fn check_volume(
        &self,
        organisation: &str,
        provider: &str,
        volume: VolumeId,
        live: &Live,
    ) -> Result<Item, Error> {
        let row = self.store().volume_by_id(&volume).await?.filter(|row| row.organisation == organisation);
        let name = row.map(|row| row.name);
        let able = match self.able(provider) {
            Ok(able) => able,
            Err(why) => return Ok(Item::new(ItemKind::Volume, &volume, name, Verdict::NotChecked, why)),
        };
        if !able.volumes().volumes().await?.contains(&volume) {
            let why = "the database has it, and its files are not there";
            return Ok(Item::absent(ItemKind::Volume, &volume, name, why));
        }
        let checked = able.manifests().check(Thing::Volume(volume.clone()), Arc::clone(&live.pulse)).await;
        Ok(match checked {
            Ok(checked) => {
                let sound = "every name can be looked at; sandboxes may write to it, so its data is not read";
                Item::of(ItemKind::Volume, &volume, name, checked, sound.to_owned())
            }
            Err(error) => unable(ItemKind::Volume, &volume, name, error),
        })
    }

    /// A provider that can compare, or the sentence why it cannot.
    fn able(&self, provider: &str) -> Result<&Arc<dyn Provider>, String> {
        self.require(provider, Ability::Manifest).map_err(|error| error.to_string())?;
        self.provider(provider).map_err(|error| error.to_string())
    }

    /// What lies on this server and in no row of the database.
    async fn find_strays(&self) -> Result<Item, Error> {
        let (mut sandboxes, mut layers, mut volumes) = (Vec::new(), Vec::new(), Vec::new());
        for provider in self.providers().filter(|provider| provider.is_exclusive()) {
            for sighting in provider.sightings().await? {
                let row = self.store().sandbox_by_id(&sighting.id).await?;
                if row.is_none_or(|row| row.state == State::Destroyed) {
                    sandboxes.push(sighting.id.to_string());
                }
            }
            for layer in provider.layers().layers().await? {
                if self.store().layer(layer).await?.is_none() {
                    layers.push(layer.to_string());
                }
            }
            for volume in provider.volumes().volumes().await? {
                let row = self.store().volume_by_id(&volume).await?;
                if row.is_none_or(|row| row.state == VolumeState::Deleted) {
                    volumes.push(volume.to_string());
                }
            }
        }
        let note = if sandboxes.is_empty() && layers.is_empty() && volumes.is_empty() {
            "nothing lies here that the database does not know".to_owned()
        } else {
            format!(
                "{} sandboxes, {} layers and {} volumes lie here that the database does not know; `cove orphans ls` \
                 shows the sandboxes",
                sandboxes.len(),
                layers.len(),
                volumes.len()
            )
        };
        let mut item = Item::new(ItemKind::Server, self.server(), None, Verdict::Sound, note);
        for (word, strays) in [("sandbox", sandboxes), ("layer", layers), ("volume", volumes)] {
            let problem = |id: String| Problem {
                kind: ProblemKind::Unreferenced,
                path: String::new(),
                detail: format!("{word} {id}"),
            };
            item.problems.extend(strays.into_iter().take(STRAYS).map(problem));
        }
        Ok(item)
    }
}

fn sound_layer(checked: &Checked) -> &'static str {
    match checked.how {
        How::Manifest => "as in its manifest",
        How::Name => "its files are those that it is named by",
        How::Read | How::Names => "it has no manifest: all of it can be read",
    }
}

/// What could not be compared is not sound, unless it only moved on meanwhile.
fn unable(kind: ItemKind, id: impl ToString, name: Option<String>, error: ProviderError) -> Item {
    match error {
        ProviderError::Exhausted(why) => Item::new(kind, id, name, Verdict::NotChecked, why),
        ProviderError::NotFound(_) => Item::absent(kind, id, name, "its files are not there"),
        error => {
            let why = format!("it could not be checked: {error}");
            let mut item = Item::new(kind, id, name, Verdict::Damaged, why.clone());
            item.unreadable = 1;
            item.problems.push(Problem { kind: ProblemKind::Unreadable, path: String::new(), detail: why });
            item
        }
    }
}
