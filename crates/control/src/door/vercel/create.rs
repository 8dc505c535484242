//! Making a sandbox, and copying one.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bytes::Bytes;
use cove_protocol::Request;
use futures::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;

use super::body::Strict;
use super::error::{Answer, Refusal};
use super::memory::Memory;
use super::view::{self, Origin, TIMEOUT};
use super::{By, files, network, person};
use crate::door::known::says_something;
use crate::door::note_of_copy;
use crate::git::{Cloning, Credentials, Git, GitError};
use crate::guest::Guest;
use crate::provider::Access;
use crate::sandbox::{Expiry, LimitsChange, NetworkPolicy, NewSandbox, Sandbox, TimersChange};
use crate::snapshot::NewFork;
use crate::volume::Mount;
use crate::{App, Caller, Error, random};

/// As the original has them.
const MOST_PORTS: usize = 15;
const MOST_TAGS: usize = 5;
const MEMORY_PER_PROCESSOR: u64 = 2048;

/// The longest archive that a sandbox is made from.
const TARBALL: usize = 1 << 30;

/// Every field that an SDK of version 2 or 3 sends.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Asked {
    #[serde(rename = "projectId")]
    _project: Option<String>,
    pub name: Option<String>,
    pub ports: Option<Vec<u16>>,
    source: Option<Source>,
    /// Milliseconds.
    pub timeout: Option<u64>,
    pub resources: Option<Resources>,
    runtime: Option<String>,
    image: Option<String>,
    pub persistent: Option<bool>,
    pub network_policy: Option<network::Asked>,
    network_id: Option<Value>,
    env: Option<BTreeMap<String, String>>,
    pub tags: Option<BTreeMap<String, String>>,
    snapshot_expiration: Option<Value>,
    keep_last_snapshots: Option<Value>,
    pub mounts: Option<BTreeMap<String, Mounted>>,
    /// There is one: any is taken.
    #[serde(rename = "region")]
    _region: Option<String>,
    failover_regions: Option<Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", deny_unknown_fields)]
enum Source {
    Git {
        url: String,
        #[serde(default)]
        depth: Option<u32>,
        #[serde(default)]
        revision: Option<String>,
        #[serde(default)]
        username: Option<String>,
        #[serde(default)]
        password: Option<String>,
    },
    Tarball {
        url: String,
    },
    Snapshot {
        #[serde(rename = "snapshotId")]
        snapshot: String,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resources {
    vcpus: Option<f64>,
    /// Mebibytes.
    memory: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mounted {
    drive: String,
    #[serde(default)]
    mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    #[default]
    ReadWrite,
    ReadOnly,
    /// A copy that is written to and thrown away.
    Snapshot,
}

impl Asked {
    /// What would change who may do what, or how long something is kept, is refused rather than left out.
    pub fn refuse_what_is_not_offered(&self) -> Answer<()> {
        let told = [
            (&self.network_id, "networkId: private networks are not offered"),
            (&self.failover_regions, "failoverRegions: there is one region"),
            (&self.keep_last_snapshots, "keepLastSnapshots: snapshots are kept until they are deleted"),
            (&self.snapshot_expiration, "snapshotExpiration: snapshots are kept until they are deleted"),
        ];
        match told.into_iter().find(|(value, _)| says_something(value.as_ref())) {
            Some((_, sentence)) => Err(Refusal::bad(sentence)),
            None => Ok(()),
        }
    }

    /// What a change has in common with a creation.
    pub fn of_change(
        ports: Option<Vec<u16>>,
        timeout: Option<u64>,
        resources: Option<Resources>,
        tags: Option<BTreeMap<String, String>>,
    ) -> Asked {
        Asked { ports, timeout, resources, tags, ..Asked::default() }
    }

    /// And what neither offers.
    pub fn with_unserved(
        self,
        network_id: Option<Value>,
        snapshot_expiration: Option<Value>,
        keep_last_snapshots: Option<Value>,
        failover_regions: Option<Value>,
    ) -> Asked {
        Asked { network_id, snapshot_expiration, keep_last_snapshots, failover_regions, ..self }
    }

    pub fn limits(&self) -> Answer<LimitsChange> {
        let Resources { vcpus, memory } = self.resources.unwrap_or_default();
        if vcpus.is_some_and(|vcpus| !(vcpus.is_finite() && vcpus > 0.0)) {
            return Err(Refusal::bad("resources.vcpus: more than 0"));
        }
        let memory = memory.or_else(|| vcpus.map(|vcpus| (vcpus * MEMORY_PER_PROCESSOR as f64) as u64));
        Ok(LimitsChange { cpus: vcpus, memory: memory.map(|memory| memory << 20), ..LimitsChange::default() })
    }

    /// Seconds, of milliseconds.
    pub fn seconds(&self) -> Answer<Option<u64>> {
        match self.timeout {
            Some(0) => Err(Refusal::bad("timeout: more than 0 milliseconds")),
            timeout => Ok(timeout.map(|timeout| timeout.div_ceil(1000))),
        }
    }

    pub fn check_counts(&self) -> Answer<()> {
        let ports = self.ports.as_deref().unwrap_or_default();
        if ports.len() > MOST_PORTS || ports.contains(&0) {
            return Err(Refusal::bad(format!("ports: at most {MOST_PORTS}, each 1 to 65535")));
        }
        if self.tags.as_ref().is_some_and(|tags| tags.len() > MOST_TAGS) {
            return Err(Refusal::bad(format!("tags: at most {MOST_TAGS}")));
        }
        Ok(())
    }

    fn volumes(&self) -> Answer<Vec<Mount>> {
        let mount = |(path, mounted): (&String, &Mounted)| {
            let access = match mounted.mode {
                Mode::ReadWrite => Access::ReadWrite,
                Mode::ReadOnly => Access::ReadOnly,
                Mode::Snapshot => {
                    let message =
                        "mounts: a drive is mounted read-write or read-only; copies of drives are not offered";
                    return Err(Refusal::bad(message));
                }
            };
            Ok(Mount { volume: mounted.drive.clone(), path: path.clone(), subpath: None, access })
        };
        self.mounts.iter().flatten().map(mount).collect()
    }
}

/// The template of a runtime or an image. Names of the original's own images are templates of that name where there are any,
/// and else the host's programs; other images come from their registry.
async fn origin(app: &App, caller: &Caller, asked: &Asked, new: &mut NewSandbox) -> Answer<()> {
    if asked.runtime.is_some() && asked.image.is_some() {
        return Err(Refusal::bad("runtime and image exclude each other"));
    }
    if let Some(Source::Snapshot { snapshot }) = &asked.source {
        let found = app.template(caller, snapshot).await;
        let gone =
            |_| Refusal::new(StatusCode::GONE, "snapshot_not_found", format!("snapshot {snapshot} does not exist"));
        new.template = Some(found.map_err(gone).map(|_| snapshot.clone())?);
        return Ok(());
    }
    let Some(word) = asked.runtime.as_ref().or(asked.image.as_ref()) else { return Ok(()) };
    let plain = word.strip_prefix("vercel/sandbox/").unwrap_or(word);
    let managed = asked.runtime.is_some() || is_managed(plain);
    match app.template(caller, plain).await {
        Ok(_) => new.template = Some(plain.to_owned()),
        Err(Error::NotFound { .. } | Error::Invalid { .. }) if managed => {}
        Err(Error::NotFound { .. } | Error::Invalid { .. }) => new.image = Some(word.clone()),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Names of images that the original keeps.
fn is_managed(image: &str) -> bool {
    let name = image.split([':', '@']).next().unwrap_or_default();
    ["universal", "node", "python", "ubuntu", "arch"].contains(&name)
}

pub async fn create(
    State(app): State<App>,
    By(caller): By,
    origin_of_request: Origin,
    Strict(asked): Strict<Asked>,
) -> Answer<Json<Value>> {
    asked.refuse_what_is_not_offered()?;
    asked.check_counts()?;
    let seconds = asked.seconds()?.unwrap_or(TIMEOUT / 1000);
    let persistent = asked.persistent.unwrap_or(true);
    let ports = asked.ports.clone().unwrap_or_default();
    let remembered = Memory {
        ports: ports.clone(),
        timeout: asked.timeout,
        runtime: asked.runtime.clone(),
        image: asked.image.clone(),
        snapshot: match &asked.source {
            Some(Source::Snapshot { snapshot }) => Some(snapshot.clone()),
            _ => None,
        },
    };
    let mut new = NewSandbox {
        name: Some(asked.name.clone().unwrap_or_else(|| format!("sandbox-{}", random::hex(6)))),
        labels: asked.tags.clone().unwrap_or_default(),
        env: asked.env.clone().unwrap_or_default(),
        limits: asked.limits()?,
        // As the original: the internet, unless something else is said.
        network: match asked.network_policy.clone() {
            Some(policy) => policy.policy()?,
            None => NetworkPolicy::open(),
        },
        timers: timers(seconds, persistent),
        user: Some(person::USER.into()),
        cwd: Some(person::CWD.into()),
        // Routes are open to everybody who knows their names.
        public: !ports.is_empty(),
        volumes: asked.volumes()?,
        door: remembered.into_note(&Value::Null),
        ..NewSandbox::default()
    };
    origin(&app, &caller, &asked, &mut new).await?;
    let sandbox = app.create_sandbox(&caller, new).await?;
    if let Err(refusal) = furnish(&app, &sandbox, &asked).await {
        // Half made is not made: nobody was told of it.
        if let Err(error) = app.destroy(&caller, sandbox.id.as_str()).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "remove a sandbox whose source could not be had");
        }
        return Err(refusal);
    }
    Ok(Json(view::whole(&sandbox, &origin_of_request)))
}

/// The deadline ends the session; the files stay, unless nothing was to stay.
pub fn timers(seconds: u64, persistent: bool) -> TimersChange {
    TimersChange {
        lifetime_seconds: Some(Some(seconds)),
        at_deadline: Some(Expiry::Stop),
        // The dialect knows one clock.
        idle_seconds: Some(None),
        ephemeral: Some(!persistent),
        auto_resume: Some(false),
        ..TimersChange::default()
    }
}

/// The user, its directory, and what is in it.
async fn furnish(app: &App, sandbox: &Sandbox, asked: &Asked) -> Answer<()> {
    let (sandbox, guest) = app.reach_into(sandbox.clone()).await?;
    person::make(&guest).await?;
    match asked.source.clone() {
        None | Some(Source::Snapshot { .. }) => Ok(()),
        Some(Source::Git { url, depth, revision, username, password }) => {
            let of_git = |error: GitError| Refusal::from(Error::from(error));
            let credentials = Credentials::new(username, password).map_err(of_git)?;
            let is_commit = |revision: &String| {
                revision.len() >= 7 && revision.len() <= 64 && revision.bytes().all(|byte| byte.is_ascii_hexdigit())
            };
            let (commit, branch) = match revision {
                Some(revision) if is_commit(&revision) => (Some(revision), None),
                revision => (None, revision),
            };
            let cloning =
                Cloning { url, path: person::CWD.into(), branch, commit, depth, credentials, ..Cloning::default() };
            Git::new(guest, sandbox.cwd.clone()).clone_repository(cloning).await.map_err(of_git)
        }
        Some(Source::Tarball { url }) => {
            let archive = fetched(app, &url).await?;
            unpack(&guest, archive).await
        }
    }
}

/// By the client for tenants' requests: it reaches public addresses.
async fn fetched(app: &App, url: &str) -> Answer<Bytes> {
    let wrong = |reason: String| Refusal::bad(format!("source.url: {reason}"));
    let parsed = reqwest::Url::parse(url).map_err(|error| wrong(error.to_string()))?;
    crate::neighbourhood::check_url(&app.config().private_targets, &parsed).map_err(wrong)?;
    let response =
        app.guarded_http().get(parsed).send().await.map_err(|error| wrong(error.without_url().to_string()))?;
    if !response.status().is_success() {
        return Err(wrong(format!("answered with {}", response.status())));
    }
    let mut pieces = response.bytes_stream();
    let mut whole = Vec::new();
    while let Some(piece) = pieces.next().await {
        whole.extend_from_slice(&piece.map_err(|error| wrong(error.without_url().to_string()))?);
        if whole.len() > TARBALL {
            return Err(wrong("the archive has more than 1 GiB".into()));
        }
    }
    Ok(whole.into())
}

async fn unpack(guest: &Guest, archive: Bytes) -> Answer<()> {
    let request = Request::TarIn { path: person::CWD.into(), user: Some(person::USER.into()) };
    let pieces = futures::stream::iter([Ok::<Bytes, String>(archive)]);
    files::send_archive(guest, &request, pieces).await
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Fork {
    name: Option<String>,
    ports: Option<Vec<u16>>,
    timeout: Option<u64>,
    resources: Option<Resources>,
    image: Option<Value>,
    persistent: Option<bool>,
    network_policy: Option<network::Asked>,
    network_id: Option<Value>,
    env: Option<BTreeMap<String, String>>,
    tags: Option<BTreeMap<String, String>>,
    snapshot_expiration: Option<Value>,
    keep_last_snapshots: Option<Value>,
    #[serde(rename = "region")]
    _region: Option<String>,
    failover_regions: Option<Value>,
}

/// A copy with the files that the source has now, and with what else is asked for.
pub async fn fork(
    State(app): State<App>,
    By(caller): By,
    Path(source): Path<String>,
    origin: Origin,
    Strict(fork): Strict<Fork>,
) -> Answer<Json<Value>> {
    if says_something(fork.image.as_ref()) {
        return Err(Refusal::bad("image: a copy has the source's"));
    }
    if fork.env.as_ref().is_some_and(|env| !env.is_empty()) {
        return Err(Refusal::bad("env: a copy has the source's; set variables with each command"));
    }
    let asked = Asked {
        ports: fork.ports,
        timeout: fork.timeout,
        resources: fork.resources,
        network_policy: fork.network_policy,
        network_id: fork.network_id,
        tags: fork.tags,
        snapshot_expiration: fork.snapshot_expiration,
        keep_last_snapshots: fork.keep_last_snapshots,
        failover_regions: fork.failover_regions,
        ..Asked::default()
    };
    asked.refuse_what_is_not_offered()?;
    asked.check_counts()?;
    let found = app.sandbox(&caller, &source).await?;
    let mut remembered = Memory::of(&found);
    remembered.ports = asked.ports.clone().unwrap_or(remembered.ports);
    remembered.timeout = asked.timeout.or(remembered.timeout);
    let seconds = remembered.timeout.unwrap_or(TIMEOUT).div_ceil(1000).max(1);
    let persistent = fork.persistent.unwrap_or(!found.timers.ephemeral);
    let new = NewFork {
        names: vec![fork.name.unwrap_or_else(|| format!("sandbox-{}", random::hex(6)))],
        labels: asked.tags.clone(),
        timers: timers(seconds, persistent),
        door: remembered.into_note(&note_of_copy(&found)?),
        ..NewFork::default()
    };
    let made = app.fork_sandbox(&caller, found.id.as_str(), new).await?.pop();
    let made = made.ok_or_else(|| Error::internal("a fork that came to nothing"))??;
    let mut copy = made;
    if let Some(policy) = asked.network_policy.clone() {
        copy = app.set_network(&caller, copy.id.as_str(), policy.policy()?).await?;
    }
    let limits = asked.limits()?;
    if !limits.is_empty() {
        copy = app.resize(&caller, copy.id.as_str(), limits).await?;
    }
    Ok(Json(view::whole(&copy, &origin)))
}
