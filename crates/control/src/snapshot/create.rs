//! Making, listing and deleting snapshots.

use cove_protocol::SandboxId;

use crate::build::{Build, Defaults, Kind as BuildKind, Origin, State as BuildState};
use crate::event::Kind as EventKind;
use crate::image::LayerKind;
use crate::image::work::{Made, Work};
use crate::provider::{Ability, Root};
use crate::sandbox::{Listed, Sandbox, State};
use crate::store::Written;
use crate::store::builds::Unfinished;
use crate::store::templates::{Beside, TemplateFilter};
use crate::template::name::{Chosen, Reference};
use crate::template::{DEFAULT_TAG, Kind, Overview, Record, Visibility};
use crate::{App, Caller, Error, Scope, random};

/// A snapshot to be taken.
#[derive(Debug, Clone, Default)]
pub struct NewSnapshot {
    /// `name` or `name:tag`. One that has the name gets another build; without a name it is found by its id.
    pub name: Option<String>,
    /// A word about it.
    pub note: Option<String>,
    /// What a door remembers of its own.
    pub door: serde_json::Value,
}

impl App {
    /// A snapshot of a sandbox that runs, is paused, or is stopped. One that runs is frozen for a moment.
    pub async fn create_snapshot(
        &self,
        caller: &Caller,
        id_or_name: &str,
        new: NewSnapshot,
    ) -> Result<(Record, Build), Error> {
        caller.require(Scope::Write)?;
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let (name, tag) = match new.name.as_deref().map(Reference::parse).transpose()? {
            None => (None, DEFAULT_TAG.to_owned()),
            Some(Reference { organisation: Some(other), .. }) if other != caller.organisation => {
                return Err(Error::Forbidden("a snapshot is made in one's own organisation".into()));
            }
            Some(Reference { name, chosen: Chosen::Default, .. }) => (Some(name), DEFAULT_TAG.to_owned()),
            Some(Reference { name, chosen: Chosen::Tag(tag), .. }) => (Some(name), tag),
            Some(Reference { chosen: Chosen::Build(_), .. }) => {
                return Err(Error::invalid("name", "a tag, not a build, follows the colon"));
            }
        };
        if let Some(name) = &name {
            self.check_not_built_in(name, None)?;
        }
        let (record, standing) = self.snapshot_record(&sandbox, name, new.door).await?;
        let capture = Capture {
            record,
            standing,
            tags: vec![tag],
            origin: Origin::Asked,
            note: new.note,
            audit: Some(self.audit_entry(caller, "snapshot.create", sandbox.id.as_str())),
        };
        let (app, id) = (self.clone(), sandbox.id);
        self.detached(async move {
            let _lock = app.locks().lock(&id).await;
            app.capture_locked(&id, capture).await
        })
        .await
    }

    /// The one that has the name, or a new one, which is written with its first capture.
    async fn snapshot_record(
        &self,
        sandbox: &Sandbox,
        name: Option<String>,
        door: serde_json::Value,
    ) -> Result<(Record, Standing), Error> {
        if let Some(name) = &name
            && let Some(record) = self.snapshot_named(&sandbox.organisation, name).await?
        {
            return Ok((record, Standing::There));
        }
        self.check_template_count(&sandbox.organisation).await?;
        Ok((self.new_snapshot_record(sandbox, Kind::Snapshot, name, door), Standing::New))
    }

    async fn snapshot_named(&self, organisation: &str, name: &str) -> Result<Option<Record>, Error> {
        match self.store().template_by_name(organisation, name).await? {
            Some(record) if record.kind != Kind::Snapshot => {
                Err(Error::Conflict(format!("{name:?} is the name of a template; choose another")))
            }
            found => Ok(found),
        }
    }

    /// Writes the row of a capture, together with the record that it is the first of: a crash leaves none without the other.
    async fn begin_capture(&self, capture: &mut Capture, build: &mut Build) -> Result<(), Error> {
        let beside = Beside { audit: capture.audit.as_ref(), event: None };
        if capture.standing == Standing::New {
            if self.store().insert_template(&capture.record, Some(&*build), beside).await? {
                return Ok(());
            }
            // Somebody else was quicker with the name.
            let name = capture.record.title().to_owned();
            let gone = || Error::Conflict(format!("a snapshot named {name:?} was just deleted; try again"));
            let found = self.snapshot_named(&capture.record.organisation, &name).await?;
            capture.record = found.ok_or_else(gone)?;
            build.template.clone_from(&capture.record.id);
        }
        self.store().insert_build(build, beside).await
    }

    pub(super) fn new_snapshot_record(
        &self,
        sandbox: &Sandbox,
        kind: Kind,
        name: Option<String>,
        door: serde_json::Value,
    ) -> Record {
        let now = self.now();
        Record {
            id: random::template_id(),
            organisation: sandbox.organisation.clone(),
            kind,
            names: name.into_iter().collect(),
            visibility: Visibility::Private,
            description: String::new(),
            source_sandbox: Some(sandbox.id.to_string()),
            inactive: false,
            door,
            created_at: now,
            updated_at: now,
            deleted_at: None,
        }
    }

    /// Captures a sandbox, for those who hold its lock.
    pub(super) async fn capture_locked(&self, id: &SandboxId, mut capture: Capture) -> Result<(Record, Build), Error> {
        let sandbox = match self.to_be_captured(id).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                self.forget_empty_record(&capture.record).await?;
                return Err(error);
            }
        };
        let mut build = self.capture_row(&sandbox, &capture).await?;
        match self.capture_into(&sandbox, &mut capture, &mut build).await {
            Ok(()) => Ok((capture.record, build)),
            Err(error) => {
                self.take_back_capture(&build, &capture.record).await;
                Err(error)
            }
        }
    }

    /// From the row of a capture to its end.
    async fn capture_into(&self, sandbox: &Sandbox, capture: &mut Capture, build: &mut Build) -> Result<(), Error> {
        let work = Work::begin(self);
        self.begin_capture(capture, build).await?;
        let (root, layer, bytes) = self.capture_files(&work, sandbox).await?;
        build.state = BuildState::Ready;
        build.image = root.into();
        build.delta = Some(layer);
        build.bytes = bytes;
        build.finished_at = Some(self.now());
        if !self.finish_capture(capture, build).await? {
            return Err(Error::Conflict("the snapshot was deleted while it was taken".into()));
        }
        // It is there from here on. What holds its layers besides goes when the database takes it.
        if let Err(error) = work.end().await {
            tracing::warn!(build = build.id, %error, detail = error.detail(), "end the hold on layers, will be tried again");
        }
        Ok(())
    }

    /// Removes the row of a capture whose maker is told that it failed. Where the database does not take that now, it is removed
    /// when it does.
    pub(super) async fn take_back_capture(&self, build: &Build, record: &Record) {
        let Err(error) = self.remove_capture(&build.id, record).await else { return };
        tracing::warn!(build = build.id, %error, detail = error.detail(), "remove a capture that failed, will be tried again");
        let (build, record) = (build.id.clone(), record.clone());
        self.insist_behind("remove a capture that failed", move |app| {
            let (build, record) = (build.clone(), record.clone());
            async move { app.remove_capture(&build, &record).await }
        });
    }

    async fn remove_capture(&self, build: &str, record: &Record) -> Result<(), Error> {
        self.store().remove_build(build).await?;
        self.forget_empty_record(record).await
    }

    /// `false` where somebody deleted it meanwhile.
    async fn finish_capture(&self, capture: &Capture, build: &mut Build) -> Result<bool, Error> {
        let record = self.store().template_by_id(&capture.record.id).await?;
        if record.is_none_or(|record| record.deleted_at.is_some()) {
            return Ok(false);
        }
        let event = self.template_event(&capture.record, Some(&*build), EventKind::SnapshotCreated);
        let told = (capture.origin == Origin::Asked).then_some(&event);
        let now = self.now().as_millisecond();
        let written = self.store().finish_build(build, now, Beside { audit: None, event: told }).await?;
        Ok(written == Some(Written::Done))
    }

    /// Captures of this server that were begun before a time and never came to an end: a server that died at them has left a row
    /// without files.
    pub(crate) async fn forget_captures(&self, before: i64) -> Result<(), Error> {
        for build in self.store().unfinished_builds(Unfinished::OfServer(self.server())).await? {
            if build.kind != BuildKind::Capture || build.created_at.as_millisecond() >= before {
                continue;
            }
            self.store().remove_build(&build.id).await?;
            if let Some(record) = self.store().template_by_id(&build.template).await? {
                self.forget_empty_record(&record).await?;
            }
        }
        Ok(())
    }

    /// The sandbox, where it is in a state that can be captured.
    async fn to_be_captured(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        let found = self.store().sandbox_by_id(id).await?;
        let mut sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
        self.check_here(&sandbox).await?;
        if sandbox.state.is_in_transition() {
            sandbox = self.finish_locked(id).await?;
        }
        match sandbox.state {
            State::Running | State::Paused | State::Stopped | State::Failed => {}
            State::Archived => {
                return Err(Error::Conflict("the sandbox's files are in the archive; start it first".into()));
            }
            _ => return Err(Error::not_found("sandbox", id.to_string())),
        }
        self.require(&sandbox.provider, Ability::Snapshot)?;
        self.check_storage(&sandbox.organisation, 0).await?;
        self.check_disk(&sandbox.provider)?;
        Ok(sandbox)
    }

    async fn capture_row(&self, sandbox: &Sandbox, capture: &Capture) -> Result<Build, Error> {
        let parent = match &sandbox.build {
            Some(id) => self.store().build(id).await?,
            None => None,
        };
        let inherited = parent.map(|parent| parent.defaults).unwrap_or_default();
        // A variable with the sandbox's id is another's in another sandbox.
        let env = sandbox.env.iter().filter(|(_, value)| *value != sandbox.id.as_str());
        let now = self.now();
        Ok(Build {
            id: random::uuid(),
            template: capture.record.id.clone(),
            organisation: sandbox.organisation.clone(),
            kind: BuildKind::Capture,
            state: BuildState::Building,
            server: self.server().to_owned(),
            provider: sandbox.provider.clone(),
            tags: capture.tags.clone(),
            image: sandbox.image.clone(),
            delta: None,
            defaults: Defaults {
                env: env.map(|(name, value)| (name.clone(), value.clone())).collect(),
                user: sandbox.user.clone(),
                cwd: sandbox.cwd.clone(),
                limits: Some(sandbox.limits),
                ..inherited
            },
            source_sandbox: Some(sandbox.id.to_string()),
            parent_build: sandbox.build.clone(),
            origin: capture.origin,
            note: capture.note.clone(),
            bytes: 0,
            failure: None,
            created_at: now,
            started_at: Some(now),
            finished_at: None,
            last_used_at: None,
            generation: 0,
        })
    }

    /// The root that has all that the sandbox has written, the layer with that, and its size.
    async fn capture_files(
        &self,
        work: &Work,
        sandbox: &Sandbox,
    ) -> Result<(Root, crate::provider::LayerId, u64), Error> {
        let layer = random::layer_id();
        let provider = self.provider(&sandbox.provider)?;
        let handle = sandbox.handle();
        let make = || async { Ok(provider.layers().capture(&handle, layer).await?) };
        let made = work.make(layer, LayerKind::Delta, Some(&sandbox.organisation), &sandbox.provider, make).await?;
        let bytes = match made {
            Made::Now(info) => info.bytes,
            Made::Found => 0,
        };
        let below = &sandbox.image.root;
        let root =
            Root { under: below.under, over: std::iter::once(layer).chain(below.over.iter().copied()).collect() };
        let root = self.merged(work, &sandbox.organisation, &sandbox.provider, &root).await?;
        Ok((root, layer, bytes))
    }

    /// A snapshot without a name that never came to be leaves nothing.
    async fn forget_empty_record(&self, record: &Record) -> Result<(), Error> {
        if record.kind == Kind::Snapshot && self.store().count_builds(&record.id).await? == 0 {
            let now = self.now().as_millisecond();
            let _or_by_another = self.store().delete_template(&record.id, now, Beside::default()).await?;
        }
        Ok(())
    }

    /// Snapshots of the organisation, newest first; of one sandbox where it is named.
    pub async fn list_snapshots(
        &self,
        caller: &Caller,
        sandbox: Option<&str>,
        name: Option<&str>,
        page: (Option<&str>, u32),
    ) -> Result<Listed<Overview>, Error> {
        let filter = TemplateFilter {
            kind: Kind::Snapshot,
            others: false,
            source_sandbox: sandbox.map(ToOwned::to_owned),
            name_prefix: name.map(ToOwned::to_owned),
        };
        self.catalogue(caller, &filter, page.0, page.1).await
    }

    /// By name, with a tag or a build, or by id. What was started from it keeps its files.
    pub async fn delete_snapshot(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        caller.require(Scope::Write)?;
        let reference = Reference::parse(name).map_err(|_| Error::not_found("snapshot", name))?;
        let record = self.own_template(caller, name).await.map_err(|error| match error {
            Error::NotFound { .. } => Error::not_found("snapshot", name),
            error => error,
        })?;
        if record.kind == Kind::Built {
            return Err(Error::not_found("snapshot", name));
        }
        let builds = self.store().builds_of_template(&record.id, None, 2).await?.items.len();
        let chosen = match reference.chosen {
            Chosen::Default => None,
            // One that is not there must not take the others with it.
            chosen => {
                let found = self.chosen_build(&record, &chosen).await?;
                Some(found.ok_or_else(|| Error::not_found("snapshot", name))?)
            }
        };
        match chosen {
            Some(build) if builds > 1 => {
                self.audit(caller, "snapshot.delete", &build.id).await?;
                self.store().remove_build(&build.id).await
            }
            _ => self.delete_record(caller, &record).await,
        }
    }
}

/// Whether a record is in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    There,
    /// Written with its first capture.
    New,
}

/// A capture that is about to be made.
pub(super) struct Capture {
    pub record: Record,
    pub standing: Standing,
    pub tags: Vec<String>,
    pub origin: Origin,
    pub note: Option<String>,
    pub audit: Option<crate::audit::Entry>,
}
