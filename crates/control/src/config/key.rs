//! Every key: its kind, and the environment variable that sets it.

use crate::nearest::distance;

/// What a value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    /// Not negative.
    Integer,
    /// Not negative.
    Number,
    Switch,
}

impl Kind {
    pub(super) fn wanted(self) -> &'static str {
        match self {
            Kind::Text => "a text",
            Kind::Integer => "an integer",
            Kind::Number => "a number",
            Kind::Switch => "true or false",
        }
    }

    /// Parses a text from the environment or the command line.
    pub(super) fn parse(self, word: &str) -> Result<toml::Value, String> {
        let wrong = || format!("{} is wanted, not {word:?}", self.wanted());
        match self {
            Kind::Text => Ok(toml::Value::String(word.to_owned())),
            Kind::Integer => word.parse::<i64>().ok().filter(|number| *number >= 0).map(Into::into).ok_or_else(wrong),
            Kind::Number => {
                let number = word.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
                number.map(Into::into).ok_or_else(wrong)
            }
            Kind::Switch => word.parse::<bool>().map(Into::into).map_err(|_| wrong()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    Plainly,
    /// Never shown.
    Hidden,
    /// Shown as a URL without its password.
    WithoutPassword,
}

#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// As in the file: `table.key`.
    pub name: &'static str,
    pub kind: Kind,
    pub variable: &'static str,
    pub shown: Shown,
    /// A second variable, of the names that no product has alone. The first one wins.
    pub neutral: Option<&'static str>,
    /// Variables of other products, for what neither the file nor a variable above sets.
    pub others: &'static [&'static str],
}

/// A key of `[providers.NAME]`, which depends on the kind of the provider. Its variable is `COVE_PROVIDERS_NAME_KEY`.
#[derive(Debug, Clone, Copy)]
pub struct SectionKey {
    /// As in the section.
    pub name: &'static str,
    pub kind: Kind,
    pub shown: Shown,
    /// The variable that sets it for the default provider, whatever kind that has.
    pub neutral: Option<&'static str>,
    /// Variables of the service's own programs, of which the first that is set counts: for what neither the file nor a
    /// variable above sets.
    pub others: &'static [&'static str],
}

impl SectionKey {
    pub const fn new(name: &'static str, kind: Kind) -> SectionKey {
        SectionKey { name, kind, shown: Shown::Plainly, neutral: None, others: &[] }
    }

    /// A text that is never shown.
    pub const fn secret(name: &'static str) -> SectionKey {
        SectionKey { shown: Shown::Hidden, ..SectionKey::new(name, Kind::Text) }
    }

    /// An address that may hold a password.
    pub const fn address(name: &'static str) -> SectionKey {
        SectionKey { shown: Shown::WithoutPassword, ..SectionKey::new(name, Kind::Text) }
    }

    /// As [`NEUTRAL_KEY`] and its neighbours.
    pub const fn neutral(self, variable: &'static str) -> SectionKey {
        SectionKey { neutral: Some(variable), ..self }
    }

    pub const fn others(self, variables: &'static [&'static str]) -> SectionKey {
        SectionKey { others: variables, ..self }
    }
}

/// Names that no product has alone: of the default provider's section.
pub const NEUTRAL_KEY: &str = "SANDBOX_API_KEY";
pub const NEUTRAL_URL: &str = "SANDBOX_SERVER_URL";
pub const NEUTRAL_TARGET: &str = "SANDBOX_TARGET";
/// Of the address that the server listens on, each for itself.
pub const NEUTRAL_HOST: &str = "SANDBOX_HOST";
pub const NEUTRAL_PORT: &str = "SANDBOX_PORT";
/// Seconds that a sandbox lives which names no time.
pub const NEUTRAL_TIMEOUT: &str = "SANDBOX_TIMEOUT";

/// The key of a section that names the kind of its provider.
pub(super) const KIND: &str = "kind";

/// The variable that sets a key of a provider's section.
pub(super) fn section_variable(name: &str, key: &str) -> String {
    format!("COVE_PROVIDERS_{name}_{key}").replace('-', "_").to_uppercase()
}

const fn key(name: &'static str, kind: Kind, variable: &'static str) -> Key {
    Key { name, kind, variable, shown: Shown::Plainly, neutral: None, others: &[] }
}

const fn shown(key: Key, shown: Shown) -> Key {
    Key { shown, ..key }
}

/// As others call it too.
const fn known_as(key: Key, neutral: Option<&'static str>, others: &'static [&'static str]) -> Key {
    Key { neutral, others, ..key }
}

pub const KEYS: &[Key] = &[
    key("listen", Kind::Text, "COVE_LISTEN"),
    key("data", Kind::Text, "COVE_DATA"),
    shown(known_as(key("database_url", Kind::Text, "DATABASE_URL"), None, &["POSTGRES_URL"]), Shown::WithoutPassword),
    key("provider", Kind::Text, "SANDBOX_PROVIDER"),
    shown(key("api_key", Kind::Text, "COVE_API_KEY"), Shown::Hidden),
    key("public_url", Kind::Text, "COVE_PUBLIC_URL"),
    key("peer_url", Kind::Text, "COVE_PEER_URL"),
    key("peer_authority", Kind::Text, "COVE_PEER_AUTHORITY"),
    key("domain", Kind::Text, "COVE_DOMAIN"),
    key("durable", Kind::Switch, "COVE_DURABLE"),
    key("tls.listen", Kind::Text, "COVE_TLS"),
    key("tls.certificate", Kind::Text, "COVE_TLS_CERTIFICATE"),
    key("tls.key", Kind::Text, "COVE_TLS_KEY"),
    key("e2b.tokens_optional", Kind::Switch, "COVE_E2B_TOKENS_OPTIONAL"),
    known_as(
        key("e2b.timeout_seconds", Kind::Integer, "COVE_E2B_TIMEOUT_SECONDS"),
        Some(NEUTRAL_TIMEOUT),
        &["E2B_TIMEOUT"],
    ),
    key("quota.cpus_per_sandbox", Kind::Number, "COVE_QUOTA_CPUS_PER_SANDBOX"),
    key("quota.memory_per_sandbox", Kind::Integer, "COVE_QUOTA_MEMORY_PER_SANDBOX"),
    key("quota.session_bytes", Kind::Integer, "COVE_QUOTA_SESSION_BYTES"),
    key("quota.storage_bytes", Kind::Integer, "COVE_QUOTA_STORAGE_BYTES"),
    key("quota.disk_per_sandbox", Kind::Integer, "COVE_QUOTA_DISK_PER_SANDBOX"),
    key("quota.disk_bytes", Kind::Integer, "COVE_QUOTA_DISK_BYTES"),
    key("quota.pids_per_sandbox", Kind::Integer, "COVE_QUOTA_PIDS_PER_SANDBOX"),
    key("quota.running_sandboxes", Kind::Integer, "COVE_QUOTA_RUNNING_SANDBOXES"),
    key("quota.sandboxes", Kind::Integer, "COVE_QUOTA_SANDBOXES"),
    key("quota.requests_per_second", Kind::Integer, "COVE_QUOTA_REQUESTS_PER_SECOND"),
    key("quota.organisation_requests_per_second", Kind::Integer, "COVE_QUOTA_ORGANISATION_REQUESTS_PER_SECOND"),
    key("capacity.sandboxes", Kind::Integer, "COVE_CAPACITY_SANDBOXES"),
    key("capacity.memory", Kind::Integer, "COVE_CAPACITY_MEMORY"),
    key("capacity.free_memory", Kind::Integer, "COVE_CAPACITY_FREE_MEMORY"),
    key("capacity.free_disk", Kind::Integer, "COVE_CAPACITY_FREE_DISK"),
    key("capacity.launches", Kind::Integer, "COVE_CAPACITY_LAUNCHES"),
    key("capacity.waiting", Kind::Integer, "COVE_CAPACITY_WAITING"),
    key("capacity.patience_seconds", Kind::Integer, "COVE_CAPACITY_PATIENCE_SECONDS"),
    key("connections.most", Kind::Integer, "COVE_CONNECTIONS_MOST"),
    key("connections.per_address", Kind::Integer, "COVE_CONNECTIONS_PER_ADDRESS"),
    key("connections.per_organisation", Kind::Integer, "COVE_CONNECTIONS_PER_ORGANISATION"),
    key("connections.per_sandbox", Kind::Integer, "COVE_CONNECTIONS_PER_SANDBOX"),
    key("connections.unfinished_bytes", Kind::Integer, "COVE_CONNECTIONS_UNFINISHED_BYTES"),
    key("connections.proxies", Kind::Text, "COVE_CONNECTIONS_PROXIES"),
    known_as(key("timers.lifetime_seconds", Kind::Integer, "COVE_TIMERS_LIFETIME_SECONDS"), Some(NEUTRAL_TIMEOUT), &[]),
    key("timers.idle_seconds", Kind::Integer, "COVE_TIMERS_IDLE_SECONDS"),
    key("timers.idle_counts", Kind::Text, "COVE_TIMERS_IDLE_COUNTS"),
    key("orphans.keep_days", Kind::Integer, "COVE_ORPHANS_KEEP_DAYS"),
    key("metrics.keep_seconds", Kind::Integer, "COVE_METRICS_KEEP_SECONDS"),
    key("metrics.store_every_seconds", Kind::Integer, "COVE_METRICS_STORE_EVERY_SECONDS"),
    key("retention.destroyed_sandboxes_seconds", Kind::Integer, "COVE_RETENTION_DESTROYED_SANDBOXES_SECONDS"),
    key("retention.audit_seconds", Kind::Integer, "COVE_RETENTION_AUDIT_SECONDS"),
    key("retention.usage_seconds", Kind::Integer, "COVE_RETENTION_USAGE_SECONDS"),
    key("retention.events_seconds", Kind::Integer, "COVE_RETENTION_EVENTS_SECONDS"),
    key("retention.idempotency_keys_seconds", Kind::Integer, "COVE_RETENTION_IDEMPOTENCY_KEYS_SECONDS"),
    key("builds.at_once", Kind::Integer, "COVE_BUILDS_AT_ONCE"),
    key("builds.per_organisation", Kind::Integer, "COVE_BUILDS_PER_ORGANISATION"),
    key("builds.timeout_seconds", Kind::Integer, "COVE_BUILDS_TIMEOUT_SECONDS"),
    key("builds.unpack_seconds", Kind::Integer, "COVE_BUILDS_UNPACK_SECONDS"),
    key("builds.cpus", Kind::Number, "COVE_BUILDS_CPUS"),
    key("builds.memory", Kind::Integer, "COVE_BUILDS_MEMORY"),
    key("builds.disk", Kind::Integer, "COVE_BUILDS_DISK"),
    key("builds.image_bytes", Kind::Integer, "COVE_BUILDS_IMAGE_BYTES"),
    key("builds.file_bytes", Kind::Integer, "COVE_BUILDS_FILE_BYTES"),
    key("builds.keep_days", Kind::Integer, "COVE_BUILDS_KEEP_DAYS"),
    key("builds.keep_unused_seconds", Kind::Integer, "COVE_BUILDS_KEEP_UNUSED_SECONDS"),
    key("builds.recipes", Kind::Text, "COVE_BUILDS_RECIPES"),
    key("images.registry", Kind::Text, "COVE_IMAGES_REGISTRY"),
    key("images.mirrors", Kind::Text, "COVE_IMAGES_MIRRORS"),
    key("images.aliases", Kind::Text, "COVE_IMAGES_ALIASES"),
    key("images.insecure", Kind::Text, "COVE_IMAGES_INSECURE"),
    key("images.credentials", Kind::Text, "COVE_IMAGES_CREDENTIALS"),
    key("prices.cpu_hour", Kind::Number, "COVE_PRICES_CPU_HOUR"),
    key("prices.memory_gib_hour", Kind::Number, "COVE_PRICES_MEMORY_GIB_HOUR"),
    key("prices.disk_gib_hour", Kind::Number, "COVE_PRICES_DISK_GIB_HOUR"),
    key("archive.url", Kind::Text, "COVE_ARCHIVE_URL"),
    key("archive.endpoint", Kind::Text, "COVE_ARCHIVE_ENDPOINT"),
    key("archive.region", Kind::Text, "COVE_ARCHIVE_REGION"),
    key("private_targets", Kind::Text, "COVE_PRIVATE_TARGETS"),
    key("log.filter", Kind::Text, "COVE_LOG"),
    key("log.json", Kind::Switch, "COVE_LOG_JSON"),
    shown(key("telemetry.endpoint", Kind::Text, "OTEL_EXPORTER_OTLP_ENDPOINT"), Shown::WithoutPassword),
    key("telemetry.service", Kind::Text, "OTEL_SERVICE_NAME"),
];

/// Finds a key by its name in the file.
pub fn named(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

pub(super) fn is_table(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.split_once('.').is_some_and(|(table, _)| table == name))
}

/// The variable that was probably meant by one that sets nothing: at most two letters differ. `None` for others' variables.
pub fn misspelt(variable: &str) -> Option<&'static str> {
    // A short name is like many others.
    let is_ours = variable.starts_with("COVE_") && variable.len() >= 12;
    if !is_ours || KEYS.iter().any(|key| key.variable == variable) {
        return None;
    }
    let near = KEYS.iter().map(|key| (distance(variable, key.variable), key.variable)).min()?;
    (near.0 <= 2).then_some(near.1)
}

/// The key, or table, that was probably meant: at most two letters differ, or the right name is in the wrong table.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let plain = name.to_lowercase().replace('-', "_");
    let tables = KEYS.iter().filter_map(|key| key.name.split_once('.').map(|(table, _)| table));
    let near = KEYS.iter().map(|key| key.name).chain(tables).map(|known| (distance(&plain, known), known)).min()?;
    if near.0 <= 2 {
        return Some(near.1);
    }
    let last = |name: &str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let word = last(&plain);
    KEYS.iter().map(|key| key.name).map(|known| (distance(&word, &last(known)), known)).min().and_then(|best| {
        let close = best.0 <= usize::from(word.len() > 4);
        close.then_some(best.1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_with_a_slip_is_recognised_and_those_of_others_are_left_alone() {
        assert_eq!(misspelt("COVE_QUOTA_SANDBOKSES"), Some("COVE_QUOTA_SANDBOXES"));
        for name in ["COVE_QUOTA_SANDBOXES", "COVE_URL", "COVE_QUIET", "COVE_BIN", "COVE_SEED", "COVE_LONG", "PATH"] {
            assert_eq!(misspelt(name), None, "{name}");
        }
    }

    #[test]
    fn the_key_that_was_meant_is_named() {
        for (wrong, meant) in [
            ("domian", Some("domain")),
            ("public-url", Some("public_url")),
            ("Quota", Some("quota")),
            ("sandboxs", Some("capacity.sandboxes")),
            ("quota.cpu_hour", Some("prices.cpu_hour")),
            ("tls.certificat", Some("tls.certificate")),
            ("nonsense", None),
        ] {
            assert_eq!(nearest(wrong), meant, "{wrong}");
        }
    }
}
