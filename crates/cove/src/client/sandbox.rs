//! A sandbox as the server reports it: what the verbs show, and the whole object for `--json`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

use super::{Client, segment};
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

    /// Changes one setting; returns the changed sandbox.
    pub async fn set(&self, sandbox: &str, method: Method, setting: &str, body: &Value) -> Result<Value, Complaint> {
        let request = self.request(method, &format!("{}/{setting}", path(sandbox)?));
        self.read(self.send(request.json(body)).await?).await
    }

    /// Changes the state; returns the changed sandbox.
    pub async fn change(&self, sandbox: &str, change: &str) -> Result<Value, Complaint> {
        self.post(&format!("{}/{change}", path(sandbox)?), &serde_json::json!({})).await
    }
}
