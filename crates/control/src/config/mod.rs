//! What an operator can set. Every value has a default that works.
//!
//! The environment overrides the file, and flags override the environment ([`load`]). Variables of other products set only
//! what all of these leave open. The server refuses to start with a wrong key, or with values that contradict each other
//! ([`rules`]), and says where each one is.

mod check;
pub mod key;
pub mod load;
mod rules;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use check::{Problem, check};
use cove_policy::Target;
pub use key::misspelt;
pub use load::{Flag, Layers, Loaded, Origin};
use serde::{Deserialize, Serialize};

use crate::key::Quota;
use crate::provider::Kind;
use crate::sandbox::IdleMeasure;
use crate::sandbox::timers::IDLE_DEFAULT;
use crate::usage::Prices;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listen: String,
    pub data: PathBuf,
    /// `sqlite://…` or `postgres://…`; a file in the data directory where absent.
    pub database_url: Option<String>,
    /// The provider of sandboxes that name none: the name of a section, or a kind that needs none.
    pub provider: String,
    /// Where sandboxes can run, by name.
    pub providers: BTreeMap<String, Section>,
    /// Which of them takes a sandbox that names none; the first rule that is about it decides, and `provider` where none is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// The first key; made and kept in the data directory where absent.
    pub api_key: Option<String>,
    /// How clients reach this server; taken from each request's Host where absent.
    pub public_url: Option<String>,
    /// How other servers of the same database reach this one; the address it listens on where absent.
    pub peer_url: Option<String>,
    /// A PEM file with the authorities that sign other servers' certificates (`peer_url` with https). The local
    /// authority and the system's where absent.
    pub peer_authority: Option<PathBuf>,
    /// Previews are at `{port}-{id}.{domain}`.
    pub domain: String,
    /// Pauses and stops write a manifest of the sandbox's files, unless a request says otherwise.
    pub durable: bool,
    pub tls: Tls,
    pub e2b: E2b,
    /// Maxima of an organisation that has none of its own.
    pub quota: Quota,
    pub capacity: Capacity,
    pub connections: Connections,
    /// Of sandboxes that name none of their own.
    pub timers: Timers,
    pub metrics: Metrics,
    pub orphans: Orphans,
    pub retention: Retention,
    pub builds: Builds,
    pub images: Images,
    pub prices: Prices,
    pub archive: Archive,
    pub log: Log,
    pub telemetry: Telemetry,
    /// Private addresses and networks that tenants may reach, separated by commas (`10.1.0.0/16, 10.1.2.3:5432`); other
    /// private addresses are open to operators alone.
    #[serde(with = "targets")]
    pub private_targets: Vec<Target>,
}

/// Targets as people write them.
mod targets {
    use cove_policy::Target;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(targets: &[Target], to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&targets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Target>, D::Error> {
        let text = String::deserialize(from)?;
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries.map(|entry| entry.parse().map_err(serde::de::Error::custom)).collect()
    }
}

/// A provider: `[providers.NAME]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Section {
    /// What it is; its other keys depend on this.
    pub kind: String,
    #[serde(flatten)]
    pub keys: toml::Table,
}

impl Section {
    fn of(kind: &str) -> Section {
        Section { kind: kind.to_owned(), keys: toml::Table::new() }
    }

    /// A key that is an integer and not negative, which was checked when it was read.
    pub fn integer(&self, key: &str) -> Option<u64> {
        self.keys.get(key)?.as_integer().and_then(|number| number.try_into().ok())
    }

    /// A key that is on or off.
    pub fn switch(&self, key: &str) -> Option<bool> {
        self.keys.get(key)?.as_bool()
    }

    /// A key that is a text, and not an empty one.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.keys.get(key)?.as_str().filter(|text| !text.is_empty())
    }
}

impl Config {
    /// The providers of this server: those with a section, and the default one. That needs no section where its name is
    /// the name of a kind, as all configurations were written before there were sections.
    pub fn sections(&self) -> BTreeMap<String, Section> {
        let mut sections = self.providers.clone();
        if Kind::named(&self.provider).is_some() {
            sections.entry(self.provider.clone()).or_insert_with(|| Section::of(&self.provider));
        }
        sections
    }
}

/// A rule about new sandboxes: `[[routes]]`. Lists are separated by commas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Route {
    /// Labels that a sandbox must have, as `NAME=VALUE`; any where empty.
    pub labels: String,
    /// The template, environment or image that it starts from, in which `*` stands for any letters; any where empty.
    pub template: String,
    /// Where it may go, as `NAME` or `NAME=WEIGHT`. One of weight 0 takes what the others cannot; one that is ill takes
    /// nothing while others are well.
    pub providers: String,
}

impl Route {
    /// Its keys, which are all texts.
    pub(crate) const KEYS: [&'static str; 3] = ["labels", "template", "providers"];
}

/// A second socket, with TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tls {
    /// No TLS where absent.
    pub listen: Option<String>,
    /// A PEM file with the certificate and its chain; the local authority signs one where absent.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// What the E2B door lets old clients do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct E2b {
    /// A sandbox of the first version's create whose `secure` is not set has a daemon without a token, as in the original:
    /// for clients from before tokens. Whoever knows the id of such a sandbox, which its previews show, may use it.
    pub tokens_optional: bool,
    /// Seconds that a sandbox lives whose creation says no time; zero is as in the original, which has 15 in its first
    /// version and 300 in its second.
    pub timeout_seconds: u64,
}

/// How much this server takes on. Zero is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capacity {
    /// Sandboxes with processes at one time.
    pub sandboxes: u64,
    /// Bytes of memory that running sandboxes may have together, by their limits.
    pub memory: u64,
    /// Bytes of memory that the machine must have free before another sandbox is started.
    pub free_memory: u64,
    /// Bytes that the disk of the data directory must have free before anything is added to it; of a small disk a
    /// twentieth at most.
    pub free_disk: u64,
    /// Sandboxes that start at the same time; others wait.
    pub launches: u32,
    /// How many may wait; the rest gets 503.
    pub waiting: u32,
    /// How long a request waits at most.
    pub patience_seconds: u64,
}

impl Default for Capacity {
    fn default() -> Self {
        Capacity {
            sandboxes: 0,
            memory: 0,
            free_memory: 128 << 20,
            free_disk: 2 << 30,
            launches: 64,
            waiting: 1000,
            patience_seconds: 30,
        }
    }
}

/// How many connections this server keeps open. A number of zero is a share of `most`, and `most` is a share of the
/// limit of open files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Connections {
    /// Connections in all; a quarter of the open files where zero.
    pub most: u64,
    /// Connections of one address, or of one /64 of IPv6; a quarter of `most` where zero.
    pub per_address: u64,
    /// Requests and streams under way of one organisation's keys; half of `most` where zero. Streams have three quarters of
    /// them, so that there is always room for a short request.
    pub per_organisation: u64,
    /// Requests and streams under way that came to one sandbox without a key; an eighth of `most` where zero.
    pub per_sandbox: u64,
    /// Bytes of incomplete WebSocket messages, of one organisation. Bodies that its requests hold in memory may have four
    /// times as many together.
    pub unfinished_bytes: u64,
    /// Addresses and networks of reverse proxies, separated by commas. A proxy connects for many people, so
    /// `per_address` does not apply to it.
    #[serde(with = "targets")]
    pub proxies: Vec<Target>,
}

impl Default for Connections {
    fn default() -> Self {
        let proxies = ["127.0.0.0/8", "::1"].map(|text| text.parse().expect("an address"));
        Connections {
            most: 0,
            per_address: 0,
            per_organisation: 0,
            per_sandbox: 0,
            unfinished_bytes: 64 << 20,
            proxies: proxies.into(),
        }
    }
}

/// When a sandbox is put away that nobody uses, where its creation says nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timers {
    /// Seconds from its creation on after which a sandbox is destroyed, whatever it does; zero is never. E2B's sandboxes have
    /// `e2b.timeout_seconds`.
    pub lifetime_seconds: u64,
    /// Seconds without activity; zero is never. E2B's sandboxes have a lifetime instead.
    pub idle_seconds: u64,
    /// What counts as activity: `requests`, `requests_and_work` or `requests_and_processes`.
    pub idle_counts: IdleMeasure,
}

impl Default for Timers {
    fn default() -> Self {
        Timers { lifetime_seconds: 0, idle_seconds: IDLE_DEFAULT, idle_counts: IdleMeasure::default() }
    }
}

/// The history of what sandboxes used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// How long samples stay in the store.
    pub keep_seconds: u64,
    /// Seconds between two stored samples.
    pub store_every_seconds: u64,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics { keep_seconds: 7 * 24 * 3600, store_every_seconds: 60 }
    }
}

/// Files of sandboxes that the database does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Orphans {
    /// How long they are kept for somebody to adopt them; zero is for ever.
    pub keep_days: u64,
}

impl Default for Orphans {
    fn default() -> Self {
        Orphans { keep_days: 30 }
    }
}

/// How long rows stay in the database that nobody needs any more. Zero is for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retention {
    /// Sandboxes that were destroyed, with their labels, samples and idempotency keys; templates, snapshots and volumes
    /// that were deleted.
    pub destroyed_sandboxes_seconds: u64,
    /// Who changed what.
    pub audit_seconds: u64,
    /// What was used, which reports and bills are made of.
    pub usage_seconds: u64,
    /// What happened.
    pub events_seconds: u64,
    /// How long a request may be repeated under its `Idempotency-Key`.
    pub idempotency_keys_seconds: u64,
}

impl Default for Retention {
    fn default() -> Self {
        const DAY: u64 = 24 * 3600;
        Retention {
            destroyed_sandboxes_seconds: 30 * DAY,
            audit_seconds: 365 * DAY,
            usage_seconds: 400 * DAY,
            events_seconds: 30 * DAY,
            idempotency_keys_seconds: 7 * DAY,
        }
    }
}

/// How templates are built.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Builds {
    /// Builds that this server does at one time; others wait.
    pub at_once: u32,
    /// Of these, those of one organisation.
    pub per_organisation: u32,
    /// How long a build may take.
    pub timeout_seconds: u64,
    /// How long the unpacking of one image may take.
    pub unpack_seconds: u64,
    /// Processors of the sandbox that its steps run in.
    pub cpus: f64,
    /// Bytes of its memory.
    pub memory: u64,
    /// Bytes that its steps may write.
    pub disk: u64,
    /// Bytes of an image as it is fetched.
    pub image_bytes: u64,
    /// Bytes of an archive that is sent for a build.
    pub file_bytes: u64,
    /// Days that steps, images and archives are kept after their last use; zero is for ever.
    pub keep_days: u32,
    /// Seconds that a layer stays after its last use which no template, snapshot, step, image or sandbox needs any more.
    pub keep_unused_seconds: u64,
    /// The folder with recipes of your own; `recipes` in the data directory where absent.
    pub recipes: Option<PathBuf>,
}

impl Default for Builds {
    fn default() -> Self {
        Builds {
            at_once: 4,
            per_organisation: 2,
            timeout_seconds: 3600,
            unpack_seconds: 1800,
            cpus: 2.0,
            memory: 2 << 30,
            disk: 10 << 30,
            image_bytes: 20 << 30,
            file_bytes: 2 << 30,
            keep_days: 14,
            keep_unused_seconds: 600,
            recipes: None,
        }
    }
}

/// Where images come from. Lists are separated by commas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Images {
    /// The registry of names without one, such as `ubuntu:22.04`.
    pub registry: String,
    /// Where a registry is reached, before its own name is tried: `REGISTRY=HOST[:PORT][/PREFIX]`, in the order to try them.
    pub mirrors: String,
    /// What stands for an image: `NAME=OTHER` for another image, `NAME=template:NAME` for a template. A name without a tag
    /// means all of its tags.
    pub aliases: String,
    /// Registries that may be talked to without TLS, beside those on this machine.
    pub insecure: String,
    /// A file as `docker login` writes it: who pulls, and pushes for operators, where a request names nobody.
    pub credentials: Option<PathBuf>,
}

impl Default for Images {
    fn default() -> Self {
        Images {
            registry: "docker.io".into(),
            mirrors: String::new(),
            aliases: String::new(),
            insecure: String::new(),
            credentials: None,
        }
    }
}

/// Where archives and artifacts go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Archive {
    /// `s3://bucket/prefix`; the folder `archive` of the data directory where absent. Credentials come from the usual
    /// `AWS_…` variables.
    pub url: Option<String>,
    /// The endpoint of an S3-compatible store that is not Amazon's.
    pub endpoint: Option<String>,
    pub region: Option<String>,
}

/// What the server writes to stderr.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// Such as `info` or `warn,cove_control=debug`.
    pub filter: String,
    /// One JSON object a line.
    pub json: bool,
}

impl Default for Log {
    fn default() -> Self {
        Log { filter: "info".into(), json: false }
    }
}

/// Traces for a collector. Off where no endpoint is set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Telemetry {
    /// The URL of an OTLP collector that speaks HTTP; `/v1/traces` is added.
    pub endpoint: Option<String>,
    pub service: String,
}

impl Default for Telemetry {
    fn default() -> Self {
        Telemetry { endpoint: None, service: "cove".into() }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: "127.0.0.1:7070".into(),
            data: PathBuf::from("/var/lib/cove"),
            database_url: None,
            provider: crate::provider::local::KIND.name.into(),
            providers: BTreeMap::new(),
            routes: Vec::new(),
            api_key: None,
            public_url: None,
            peer_url: None,
            peer_authority: None,
            domain: "localhost".into(),
            durable: false,
            tls: Tls::default(),
            e2b: E2b::default(),
            quota: Quota::default(),
            capacity: Capacity::default(),
            connections: Connections::default(),
            timers: Timers::default(),
            metrics: Metrics::default(),
            orphans: Orphans::default(),
            retention: Retention::default(),
            builds: Builds::default(),
            images: Images::default(),
            prices: Prices::default(),
            archive: Archive::default(),
            log: Log::default(),
            telemetry: Telemetry::default(),
            private_targets: Vec::new(),
        }
    }
}

#[cfg(test)]
impl Config {
    /// With every optional value set.
    fn full_for_tests() -> Config {
        let text = || Some("x".to_owned());
        Config {
            database_url: text(),
            api_key: text(),
            public_url: text(),
            peer_url: text(),
            peer_authority: Some("a".into()),
            quota: Quota { organisation_requests_per_second: Some(1), disk_bytes: Some(1), ..Quota::default() },
            tls: Tls { listen: text(), certificate: Some("c".into()), key: Some("k".into()) },
            builds: Builds { recipes: Some("r".into()), ..Builds::default() },
            images: Images { credentials: Some("c".into()), ..Images::default() },
            archive: Archive { url: text(), endpoint: text(), region: text() },
            telemetry: Telemetry { endpoint: text(), ..Telemetry::default() },
            ..Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_targets_are_read_as_people_write_them() {
        let config: Config = toml::from_str("private_targets = \"10.1.0.0/16, 10.2.3.4:5432\"").unwrap();
        assert_eq!(config.private_targets[1].port, Some(5432));
        assert_eq!(toml::from_str::<Config>(&toml::to_string(&config).unwrap()).unwrap().private_targets.len(), 2);
        let error = toml::from_str::<Config>("private_targets = \"10.1.0.0/99\"").unwrap_err().to_string();
        assert!(error.contains("`10.1.0.0/99` is no egress target"), "{error}");
    }
}
