//! A sandbox as the server reports it: what the verbs show, and the whole object for `--json`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Client, Failure, segment};
use crate::complaint::Complaint;
use crate::render::Tone;

#[derive(Debug, Clone, Deserialize)]
pub struct Sandbox {
    pub id: String,
    pub name: Option<String>,
    #[serde(default)]
    pub template: String,
    pub state: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub created_at: Timestamp,
    pub state_since: Option<Timestamp>,
    pub last_activity_at: Option<Timestamp>,
    pub timers: Timers,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub cause: Cause,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Limits {
    pub cpus: f64,
    pub memory: u64,
    pub disk: Option<u64>,
    pub pids: u64,
}

/// Why it is in its state.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Cause {
    pub code: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Timers {
    pub deadline: Option<Timestamp>,
    pub at_deadline: String,
    pub idle_seconds: Option<u64>,
    pub at_idle: String,
    pub archive_after_seconds: Option<u64>,
    pub delete_after_seconds: Option<u64>,
}

impl Sandbox {
    pub fn parse(value: Value) -> Result<Sandbox, Complaint> {
        serde_json::from_value(value).map_err(|error| {
            Complaint::failed(format!("unexpected sandbox from the server: {error}"))
                .hint("does the server have the same version as this program?")
        })
    }

    /// Its name, or its id where it has none.
    pub fn called(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    pub fn tone(&self) -> Tone {
        match self.state.as_str() {
            "running" => Tone::Good,
            "failed" => Tone::Bad,
            "stopped" | "archived" | "destroyed" => Tone::Faint,
            _ => Tone::Warning,
        }
    }
}

/// Destroyed sandboxes, the newest that are looked through for a name.
const DESTROYED: &str = "/sandboxes?state=destroyed&limit=1000";

/// The path of a sandbox, by id or name.
pub fn path(sandbox: &str) -> Result<String, Complaint> {
    if matches!(sandbox, "" | "." | "..") {
        return Err(
            Complaint::usage(format!("`{sandbox}` is not the name of a sandbox")).hint("`cove ls` lists the sandboxes")
        );
    }
    Ok(format!("/sandboxes/{}", segment(sandbox)))
}

impl Client {
    pub async fn sandbox(&self, sandbox: &str) -> Result<Value, Complaint> {
        self.get(&path(sandbox)?).await
    }

    /// Asks `what` of a sandbox, also of one that is destroyed: by its id, or by the name that it had.
    pub async fn ask_also_destroyed<T: DeserializeOwned>(&self, sandbox: &str, what: &str) -> Result<T, Complaint> {
        let call = format!("{}{what}", path(sandbox)?);
        match self.attempt(self.request(Method::GET, &call)).await {
            Ok(response) => self.read(response).await,
            Err(Failure::Passing(complaint)) => Err(complaint),
            Err(Failure::Lasting(complaint)) => match self.destroyed(sandbox).await? {
                Some(id) => self.get(&format!("{}{what}", path(&id)?)).await,
                None => Err(complaint),
            },
        }
    }

    /// The id of a sandbox, also of one that is destroyed.
    pub async fn id_also_destroyed(&self, sandbox: &str) -> Result<String, Complaint> {
        match self.attempt(self.request(Method::GET, &path(sandbox)?)).await {
            Ok(response) => Ok(Sandbox::parse(self.read(response).await?)?.id),
            Err(Failure::Passing(complaint)) => Err(complaint),
            Err(Failure::Lasting(complaint)) => self.destroyed(sandbox).await?.ok_or(complaint),
        }
    }

    /// The id of the newest destroyed sandbox that had this name or has this id. Names are given again, so the server
    /// finds nobody by a name of the past.
    async fn destroyed(&self, sandbox: &str) -> Result<Option<String>, Complaint> {
        let page: Value = self.get(DESTROYED).await?;
        let is_meant = |item: &&Value| item["name"] == sandbox || item["id"] == sandbox;
        let found = page["items"].as_array().into_iter().flatten().find(is_meant);
        Ok(found.and_then(|item| item["id"].as_str()).map(str::to_owned))
    }

    /// Changes one setting; returns the changed sandbox.
    pub async fn set(&self, sandbox: &str, method: Method, setting: &str, body: &Value) -> Result<Value, Complaint> {
        let request = self.request(method, &format!("{}/{setting}", path(sandbox)?));
        self.read(self.send(request.json(body)).await?).await
    }

    /// Changes the state; returns the changed sandbox.
    pub async fn change(&self, sandbox: &str, change: &str, how: &Value) -> Result<Value, Complaint> {
        self.post(&format!("{}/{change}", path(sandbox)?), how).await
    }
}
