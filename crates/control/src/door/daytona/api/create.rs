//! Making a sandbox.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State as Shared;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::build::BuildInfo;
use super::pending;
use crate::door::daytona::Door;
use crate::door::daytona::admit::Authenticated;
use crate::door::daytona::body::Lenient;
use crate::door::daytona::marks;
use crate::door::daytona::naming;
use crate::door::daytona::origin::Origin;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::token::Memory;
use crate::door::daytona::view::{self, LONGEST_ARCHIVE_MINUTES};
use crate::door::known::says_something;
use crate::door::range;
use crate::provider::{Access as MountAccess, Under};
use crate::sandbox::network::{Access, NetworkPolicy};
use crate::sandbox::{Expiry, LimitsChange, NewSandbox, Sandbox, State, TimersChange};
use crate::template::Template;
use crate::volume::Mount;
use crate::{Caller, Error};

/// What the original does where nothing is said.
const ARCHIVE_DEFAULT_MINUTES: i64 = 7 * 24 * 60;

/// Every field that an SDK since 0.21 sends; what this server does not offer is refused by name as soon as it says something.
#[derive(Debug, Clone, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Body {
    pub name: Option<String>,
    snapshot: Option<String>,
    user: Option<String>,
    env: Option<BTreeMap<String, String>>,
    labels: Option<BTreeMap<String, String>>,
    public: Option<bool>,
    network_block_all: Option<bool>,
    network_allow_list: Option<String>,
    domain_allow_list: Option<String>,
    cpu: Option<f64>,
    gpu: Option<f64>,
    memory: Option<f64>,
    disk: Option<f64>,
    auto_stop_interval: Option<i64>,
    auto_pause_interval: Option<i64>,
    auto_archive_interval: Option<i64>,
    auto_delete_interval: Option<i64>,
    ttl_minutes: Option<i64>,
    volumes: Option<Vec<VolumeBody>>,
    secrets: Option<Value>,
    pub build_info: Option<BuildInfo>,
    /// A region. There is one, and old SDKs always name one of the original's: any is taken.
    #[serde(rename = "target")]
    _region: Option<String>,
    class: Option<Value>,
    gpu_type: Option<Value>,
    kvm: Option<Value>,
    spot: Option<Value>,
    queue_timeout: Option<Value>,
    linked_sandbox: Option<Value>,
    outbound_proxy_url: Option<Value>,
    otel_endpoint_override: Option<Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct VolumeBody {
    /// Or its name.
    volume_id: String,
    mount_path: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subpath: Option<String>,
}

fn bad(message: impl Into<String>) -> Problem {
    Problem::api(StatusCode::BAD_REQUEST, "BAD_REQUEST", message)
}

/// What a sandbox is made from.
enum Start {
    Template(Box<Template>),
    /// Something that is to be built first.
    Build(BuildInfo),
}

/// Answers when the sandbox runs, so that no client needs to wait by polling; one whose image is to be built first is
/// answered at once. It must be 200: the Python SDK takes 201 for nothing.
pub async fn create(
    Shared(door): Shared<Door>,
    Authenticated(caller): Authenticated,
    origin: Origin,
    Lenient(body): Lenient<Body>,
) -> Answer<Json<Value>> {
    let start = start(&door, &caller, &body).await?;
    refuse_what_is_not_offered(&body)?;
    match start {
        Start::Build(info) => pending::begin(&door, &caller, &origin, body, &info).await,
        Start::Template(template) => {
            let called = called(&door, &caller, &template).await?;
            let mut new = new_sandbox(&caller, body, &template, called.as_deref().unwrap_or(&template.name))?;
            new.door = Memory { snapshot: called, ..Memory::default() }.as_door()?;
            Ok(Json(view::sandbox(&launch(&door, &caller, new).await?, &origin)))
        }
    }
}

/// The dialect's name of a template, where that is another than the template's.
async fn called(door: &Door, caller: &Caller, template: &Template) -> Result<Option<String>, Error> {
    if template.organisation.is_none() {
        return Ok(None);
    }
    let name = naming::name_of(&door.app.template_record(caller, &template.id).await?);
    Ok((name != template.name).then_some(name))
}

/// What a body asks for, of a template that was found and the snapshot's name.
pub fn new_sandbox(caller: &Caller, body: Body, template: &Template, snapshot: &str) -> Answer<NewSandbox> {
    let limits = limits(body.cpu, body.memory, body.disk)?;
    let network = network(body.network_block_all, body.network_allow_list, body.domain_allow_list)?;
    // As the original: the internet, unless something else is said.
    let network = network.unwrap_or_else(NetworkPolicy::open);
    // An image has users of its own.
    let is_over_host = template.organisation.is_none() && template.image.root.under == Under::Host;
    let own = is_over_host.then(|| marks::USER.to_owned());
    let user = body.user.filter(|user| !user.is_empty()).or(own);
    let by = user.as_deref().unwrap_or(&template.user);
    Ok(NewSandbox {
        timers: timers(&Intervals {
            stop: body.auto_stop_interval,
            pause: body.auto_pause_interval,
            archive: Some(body.auto_archive_interval.unwrap_or(ARCHIVE_DEFAULT_MINUTES)),
            delete: body.auto_delete_interval,
            lifetime: body.ttl_minutes,
        })?,
        name: body.name.filter(|name| !name.is_empty()),
        env: marks::with(body.env.unwrap_or_default(), snapshot, by, &caller.organisation),
        id_variable: Some(marks::ID.into()),
        // Of an organisation's own by its id: a name of the dialect may be another's.
        template: Some(if template.organisation.is_none() { template.name.clone() } else { chosen(template) }),
        labels: body.labels.unwrap_or_default(),
        limits,
        network,
        user,
        public: body.public.unwrap_or(false),
        volumes: body.volumes.unwrap_or_default().into_iter().map(Mount::from).collect(),
        ..NewSandbox::default()
    })
}

/// The template and the build that were found, whatever its tags mean a moment later.
fn chosen(template: &Template) -> String {
    match &template.build {
        Some(build) => format!("{}:{build}", template.id),
        None => template.id.clone(),
    }
}

impl From<VolumeBody> for Mount {
    fn from(body: VolumeBody) -> Mount {
        let subpath = body.subpath.filter(|path| !path.is_empty());
        Mount { volume: body.volume_id, path: body.mount_path, subpath, access: MountAccess::ReadWrite }
    }
}

/// Makes it, and gives its user this dialect's name.
pub async fn launch(door: &Door, caller: &Caller, new: NewSandbox) -> Answer<Sandbox> {
    let sandbox = door.app.create_sandbox(caller, new).await.map_err(in_body)?;
    if sandbox.user == marks::USER && sandbox.state == State::Running && door.app.is_here(&sandbox) {
        let (sandbox, guest) = door.app.reach_into(sandbox.clone()).await?;
        if let Err(error) = marks::name_user(&guest).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "give the sandbox's user this dialect's name");
        }
    }
    Ok(sandbox)
}

/// A volume that is not there is no call that is not there: the body is wrong.
pub fn in_body(error: Error) -> Problem {
    match error {
        Error::NotFound { kind: "volume", id } => bad(format!("volumes: volume {id} not found")),
        error => error.into(),
    }
}

/// A snapshot's name, the image of a Dockerfile that does nothing but name a template, or a build.
async fn start(door: &Door, caller: &Caller, body: &Body) -> Answer<Start> {
    let snapshot = body.snapshot.clone().filter(|name| !name.is_empty());
    let Some(info) = &body.build_info else {
        let name = snapshot.unwrap_or_else(|| "base".into());
        let template = template(door, caller, &name).await?;
        let unknown = || bad(format!("snapshot {name} not found; GET /snapshots lists those there are"));
        return Ok(Start::Template(Box::new(template.ok_or_else(unknown)?)));
    };
    if snapshot.is_some() {
        return Err(bad("a sandbox is made from a snapshot or from an image, not from both"));
    }
    if let Some(image) = info.plain_image()
        && let Some(template) = template(door, caller, image).await?
    {
        return Ok(Start::Template(Box::new(template)));
    }
    Ok(Start::Build(info.clone()))
}

/// By the id or the name that this dialect has for it, or by any that the domain has.
pub async fn template(door: &Door, caller: &Caller, name: &str) -> Answer<Option<Template>> {
    let by_id = naming::template_id(name);
    for name in by_id.into_iter().chain([name.to_owned(), naming::template_name(name)]) {
        match door.app.template(caller, &name).await {
            Ok(template) => return Ok(Some(template)),
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let all = door.app.list_templates(caller).await?;
    let built_in = |template: &Template| template.organisation.is_none() && naming::is_snapshot_of(name, template);
    Ok(all.into_iter().find(built_in))
}

fn refuse_what_is_not_offered(body: &Body) -> Answer<()> {
    if body.gpu.is_some_and(|gpu| gpu > 0.0) {
        return Err(bad("gpu: GPUs are not offered by this server"));
    }
    let unserved = [
        ("secrets", &body.secrets, "secrets are not offered; pass env"),
        ("class", &body.class, "sizes have no names here; set cpu, memory and disk"),
        ("gpuType", &body.gpu_type, "GPUs are not offered"),
        ("kvm", &body.kvm, "sandboxes have no virtual machines inside"),
        ("spot", &body.spot, "no sandbox here is taken away for another"),
        ("queueTimeout", &body.queue_timeout, "how long a create waits its turn is the operator's to set"),
        ("linkedSandbox", &body.linked_sandbox, "sandboxes cannot be linked"),
        ("outboundProxyUrl", &body.outbound_proxy_url, "a proxy of your own for the way out is not offered"),
        ("otelEndpointOverride", &body.otel_endpoint_override, "where telemetry goes is the operator's to set"),
    ];
    for (name, value, reason) in unserved {
        if says_something(value.as_ref()) {
            return Err(bad(format!("{name} is not offered by this server: {reason}")));
        }
    }
    Ok(())
}

/// Whole gibibytes and processors, as this dialect counts.
pub fn limits(cpu: Option<f64>, memory: Option<f64>, disk: Option<f64>) -> Answer<LimitsChange> {
    const GIB: f64 = (1u64 << 30) as f64;
    for (name, value) in [("cpu", cpu), ("memory", memory), ("disk", disk)] {
        if value.is_some_and(|value| !(value.is_finite() && value >= 1.0)) {
            return Err(bad(format!("{name} must be at least 1")));
        }
    }
    let bytes = |gib: Option<f64>| gib.map(|gib| (gib * GIB) as u64);
    Ok(LimitsChange { cpus: cpu, memory: bytes(memory), disk: bytes(disk), pids: None })
}

/// `None` where nothing was said about the network.
pub fn network(block: Option<bool>, allow: Option<String>, domains: Option<String>) -> Answer<Option<NetworkPolicy>> {
    let list = |text: &Option<String>| -> Vec<String> {
        let entries = text.iter().flat_map(|text| text.split(','));
        entries.map(str::trim).filter(|entry| !entry.is_empty()).map(range::normalised).collect()
    };
    if !list(&domains).is_empty() {
        return Err(bad("domainAllowList is not offered by this server: name addresses in networkAllowList"));
    }
    let allowed = list(&allow);
    Ok(match (block, allowed.is_empty()) {
        (Some(true), _) => Some(blocked()),
        (_, false) => Some(NetworkPolicy { access: Access::Closed, allow: allowed, ..NetworkPolicy::default() }),
        (Some(false), true) => Some(NetworkPolicy::open()),
        (None, true) if allow.is_some() || domains.is_some() => Some(NetworkPolicy::open()),
        (None, true) => None,
    })
}

/// A policy that denies everything. Not a sandbox without a network: that could not be opened while it runs.
fn blocked() -> NetworkPolicy {
    NetworkPolicy { deny: range::EVERYTHING.map(ToOwned::to_owned).to_vec(), ..NetworkPolicy::open() }
}

/// Minutes, as this dialect has them.
#[derive(Default)]
pub struct Intervals {
    /// 0 is never.
    pub stop: Option<i64>,
    /// Instead of a stop; 0 is never.
    pub pause: Option<i64>,
    /// 0 is the longest there is.
    pub archive: Option<i64>,
    /// Negative is never; 0 deletes at the stop.
    pub delete: Option<i64>,
    /// 0 is none.
    pub lifetime: Option<i64>,
}

pub fn timers(intervals: &Intervals) -> Answer<TimersChange> {
    let minutes = |name: &str, value: i64| match u64::try_from(value) {
        Ok(value) => Ok(value.saturating_mul(60)),
        Err(_) => Err(bad(format!("{name} must not be negative"))),
    };
    let mut change = TimersChange::default();
    if let Some(stop) = intervals.stop {
        let seconds = minutes("autoStopInterval", stop)?;
        change.idle_seconds = Some((seconds > 0).then_some(seconds));
        change.at_idle = Some(Expiry::Stop);
    }
    if let Some(pause) = intervals.pause {
        let seconds = minutes("autoPauseInterval", pause)?;
        if seconds > 0 && intervals.stop.is_some_and(|stop| stop > 0) {
            return Err(bad("autoStopInterval and autoPauseInterval exclude each other"));
        }
        if seconds > 0 {
            change.idle_seconds = Some(Some(seconds));
            change.at_idle = Some(Expiry::Pause);
        }
    }
    if let Some(archive) = intervals.archive {
        let seconds = minutes("autoArchiveInterval", archive)?;
        let seconds = if seconds == 0 { LONGEST_ARCHIVE_MINUTES * 60 } else { seconds };
        change.archive_after_seconds = Some(Some(seconds));
    }
    if let Some(delete) = intervals.delete {
        change.ephemeral = Some(delete == 0);
        change.delete_after_seconds = Some((delete > 0).then(|| delete as u64 * 60));
    }
    if let Some(lifetime) = intervals.lifetime {
        let seconds = minutes("ttlMinutes", lifetime)?;
        change.lifetime_seconds = Some((seconds > 0).then_some(seconds));
        change.at_deadline = Some(Expiry::Destroy);
    }
    Ok(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_mean_what_the_dialect_says() {
        let change = timers(&Intervals { stop: Some(0), delete: Some(0), ..Intervals::default() }).unwrap();
        assert_eq!((change.idle_seconds, change.ephemeral), (Some(None), Some(true)));
        let change = timers(&Intervals { delete: Some(-1), archive: Some(0), ..Intervals::default() }).unwrap();
        assert_eq!((change.delete_after_seconds, change.ephemeral), (Some(None), Some(false)));
        assert_eq!(change.archive_after_seconds, Some(Some(LONGEST_ARCHIVE_MINUTES * 60)));
        assert!(timers(&Intervals { stop: Some(-5), ..Intervals::default() }).is_err());
    }

    #[test]
    fn a_list_of_addresses_closes_all_others() {
        let policy = network(None, Some("1.2.3.4/32, 10.1.2.3/8".into()), None).unwrap().unwrap();
        assert_eq!((policy.access, policy.allow), (Access::Closed, vec!["1.2.3.4/32".into(), "10.0.0.0/8".into()]));
        assert_eq!(network(None, None, None).unwrap(), None);
        assert!(network(None, None, Some("example.com".into())).is_err());
    }

    #[test]
    fn a_blocked_network_is_one_that_can_be_opened_again() {
        let policy = network(Some(true), None, None).unwrap().unwrap();
        assert!(matches!(policy.to_network().unwrap(), cove_policy::Network::Full(_)));
    }
}
