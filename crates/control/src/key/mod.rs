//! Who may do what: organisations, API keys, and the caller that a key identifies.
//!
//! A key's secret is shown once; the store keeps its SHA-256. A secret is 160 random bits, so a plain hash is enough.

mod belongings;
pub mod cache;
mod configured;
pub mod manage;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::clock::Timestamp;
use crate::provider::Limits;
use crate::{App, Error, right};

/// What a key may do; each scope includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read.
    Read,
    /// Make, use and destroy sandboxes.
    Write,
    /// Keys, webhooks, pools and the audit log of the organisation.
    Admin,
    /// The whole installation: organisations, quotas, prices.
    Operator,
}

/// An API key, without its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub id: String,
    pub organisation: String,
    pub name: String,
    pub scope: Scope,
    /// The first letters of the secret, so that people can distinguish keys.
    pub prefix: String,
    pub created_at: Timestamp,
    pub expires_at: Option<Timestamp>,
    #[serde(default)]
    pub revoked_at: Option<Timestamp>,
    #[serde(default)]
    pub last_used_at: Option<Timestamp>,
    /// The servers whose configuration names this key; none for a key that was made through the API.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configured_by: Vec<String>,
    /// Revoked because a configuration names another key now, not by a request.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Organisation {
    pub id: String,
    pub name: String,
    pub created_at: Timestamp,
    pub quota: Quota,
}

/// Maxima of an organisation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Processors of one sandbox.
    #[schema(minimum = 0.01)]
    pub cpus_per_sandbox: f64,
    /// Bytes of one sandbox.
    pub memory_per_sandbox: u64,
    /// Bytes of one sandbox.
    pub disk_per_sandbox: u64,
    /// Bytes that the disks of all sandboxes may hold together; of each counts its limit, and one that is archived counts
    /// nothing. No maximum where absent.
    pub disk_bytes: Option<u64>,
    /// Bytes of journals and artifacts of all sessions together.
    pub session_bytes: u64,
    /// Bytes of templates, snapshots and volumes together; of a volume counts what it may hold.
    pub storage_bytes: u64,
    /// Processes and threads of one sandbox.
    #[schema(minimum = 4, maximum = 32768)]
    pub pids_per_sandbox: u32,
    /// Sandboxes with processes at one time.
    pub running_sandboxes: u64,
    /// Sandboxes in all, archived ones too.
    pub sandboxes: u64,
    /// Requests a second that a key may make on average; bursts may be ten times that.
    #[schema(minimum = 1, maximum = 1000000)]
    pub requests_per_second: u32,
    /// Requests a second of all the organisation's keys together; four times a key's where absent.
    #[schema(minimum = 1, maximum = 1000000)]
    pub organisation_requests_per_second: Option<u32>,
}

impl Quota {
    /// Refuses numbers that cannot be enforced.
    pub fn check(&self) -> Result<(), Error> {
        if !(self.cpus_per_sandbox.is_finite() && self.cpus_per_sandbox >= 0.01) {
            return Err(Error::invalid("cpus_per_sandbox", "at least 0.01"));
        }
        if !(4..=crate::sandbox::create::MOST_PIDS).contains(&self.pids_per_sandbox) {
            return Err(Error::invalid("pids_per_sandbox", format!("4 to {}", crate::sandbox::create::MOST_PIDS)));
        }
        let rates = [
            ("requests_per_second", Some(self.requests_per_second)),
            ("organisation_requests_per_second", self.organisation_requests_per_second),
        ];
        let wrong = |rate: Option<u32>| rate.is_some_and(|rate| !(1..=1_000_000).contains(&rate));
        if let Some((field, _)) = rates.into_iter().find(|(_, rate)| wrong(*rate)) {
            return Err(Error::invalid(field, "1 to 1000000"));
        }
        let counts = [
            ("memory_per_sandbox", self.memory_per_sandbox),
            ("disk_per_sandbox", self.disk_per_sandbox),
            ("disk_bytes", self.disk_bytes.unwrap_or(0)),
            ("session_bytes", self.session_bytes),
            ("storage_bytes", self.storage_bytes),
            ("running_sandboxes", self.running_sandboxes),
            ("sandboxes", self.sandboxes),
        ];
        match counts.into_iter().find(|(_, count)| i64::try_from(*count).is_err()) {
            Some((field, _)) => Err(Error::invalid(field, format!("at most {}", i64::MAX))),
            None => Ok(()),
        }
    }

    /// Requests a second of all keys together.
    pub fn organisation_rate(&self) -> u32 {
        self.organisation_requests_per_second.unwrap_or(self.requests_per_second.saturating_mul(4))
    }

    /// A template's own limits, cut to what one sandbox may have.
    pub fn clamp(&self, limits: Limits) -> Limits {
        Limits {
            cpus: limits.cpus.min(self.cpus_per_sandbox),
            memory: limits.memory.min(self.memory_per_sandbox),
            disk: limits.disk.map(|disk| disk.min(self.disk_per_sandbox)),
            pids: limits.pids.min(self.pids_per_sandbox),
            ..limits
        }
    }
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            cpus_per_sandbox: 4.0,
            memory_per_sandbox: 8 << 30,
            disk_per_sandbox: 10 << 30,
            disk_bytes: None,
            session_bytes: 20 << 30,
            storage_bytes: 200 << 30,
            pids_per_sandbox: 4096,
            running_sandboxes: 10_000,
            sandboxes: 100_000,
            requests_per_second: 1000,
            organisation_requests_per_second: None,
        }
    }
}

/// Whoever made the request; the key was checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    pub organisation: String,
    /// The key's id.
    pub key: String,
    pub scopes: Vec<Scope>,
}

impl Caller {
    pub fn may(&self, scope: Scope) -> bool {
        self.scopes.iter().any(|held| *held >= scope)
    }

    pub fn require(&self, scope: Scope) -> Result<(), Error> {
        if self.may(scope) {
            return Ok(());
        }
        let word = serde_json::to_value(scope).ok().and_then(|value| value.as_str().map(ToOwned::to_owned));
        Err(Error::Forbidden(format!("this needs a key with scope {}", word.unwrap_or_default())))
    }
}

pub fn hash(secret: &str) -> String {
    hex::encode(Sha256::digest(secret.as_bytes()))
}

impl App {
    /// The caller behind a secret.
    pub async fn authenticate(&self, secret: &str) -> Result<Caller, Error> {
        let unknown = || Error::Unauthenticated("the API key is unknown, revoked or expired".into());
        if secret.is_empty() || secret.len() > 256 {
            return Err(unknown());
        }
        let hash = hash(secret);
        loop {
            let generation = self.key_cache().generation();
            let key = self.key_of(&hash, generation).await?.ok_or_else(unknown)?;
            if key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= self.now()) {
                return Err(unknown());
            }
            right::hold_key(&key.id, &key.organisation, key.expires_at)?;
            // A revocation first clears the cache and then ends rights that are held, so either this check or the
            // revocation sees the other.
            if self.key_cache().generation() == generation {
                return Ok(Caller { organisation: key.organisation, key: key.id, scopes: vec![key.scope] });
            }
        }
    }

    /// Whether a secret is, or was, a key of anybody's here. A store that does not answer makes it one.
    pub(crate) async fn is_a_key(&self, secret: &str) -> bool {
        if secret.is_empty() || secret.len() > 256 {
            return false;
        }
        let hash = hash(secret);
        let known = self.key_cache().get(&hash, self.now()).is_some();
        known || !matches!(self.store().key_by_hash(&hash).await, Ok(None))
    }

    async fn key_of(&self, hash: &str, generation: u64) -> Result<Option<Key>, Error> {
        let now = self.now();
        if let Some(key) = self.key_cache().get(hash, now) {
            return Ok(Some(key));
        }
        let Some(key) = self.store().key_by_hash(hash).await? else { return Ok(None) };
        self.key_cache().put(hash.to_owned(), key.clone(), generation, now);
        if key.revoked_at.is_none() {
            self.store().note_key_use(&key.id, now.as_millisecond()).await?;
        }
        Ok(Some(key))
    }

    /// The organisation's maxima.
    pub async fn quota(&self, organisation: &str) -> Result<Quota, Error> {
        if let Some(quota) = self.key_cache().quota(organisation, self.now()) {
            return Ok(quota);
        }
        let found = self.store().organisation(organisation).await?;
        let quota = found.map_or_else(|| self.config().quota, |found| found.quota);
        self.key_cache().put_quota(organisation, quota, self.now());
        Ok(quota)
    }

    /// Refuses what the organisation may not have, and names the maximum.
    pub(crate) async fn check_limits(&self, organisation: &str, limits: Limits) -> Result<(), Error> {
        crate::sandbox::create::check_smallest(limits)?;
        let quota = self.quota(organisation).await?;
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1u32 << 30));
        let over = |field: &str, asked: String, maximum: String| {
            Err(Error::invalid(
                format!("limits.{field}"),
                format!("{asked} asked for, the organisation's maximum for one sandbox is {maximum}"),
            ))
        };
        if limits.cpus > quota.cpus_per_sandbox {
            return over("cpus", limits.cpus.to_string(), quota.cpus_per_sandbox.to_string());
        }
        if limits.memory > quota.memory_per_sandbox {
            return over("memory", gib(limits.memory), gib(quota.memory_per_sandbox));
        }
        if limits.pids > quota.pids_per_sandbox {
            return over("pids", limits.pids.to_string(), quota.pids_per_sandbox.to_string());
        }
        match limits.disk {
            Some(disk) if disk > quota.disk_per_sandbox => over("disk", gib(disk), gib(quota.disk_per_sandbox)),
            _ => Ok(()),
        }
    }
}
