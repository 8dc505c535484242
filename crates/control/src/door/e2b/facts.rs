//! What this door stores in a sandbox beyond what the domain knows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sandbox::Sandbox;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Its daemon asks for the access token.
    pub secure: bool,
    /// What programs inside see as the host that was asked for; `${PORT}` stands for the port.
    pub mask_request_host: Option<String>,
    /// The network as the client wrote it, to return it.
    pub network: Option<Value>,
    pub allow_internet_access: Option<bool>,
    /// The volumes as the client named them.
    pub volume_mounts: Vec<VolumeMount>,
}

/// A volume, and where it is in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeMount {
    pub name: String,
    pub path: String,
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            secure: true,
            mask_request_host: None,
            network: None,
            allow_internet_access: None,
            volume_mounts: Vec::new(),
        }
    }
}

impl Facts {
    /// A sandbox of another door has none: it is secure.
    pub fn of(sandbox: &Sandbox) -> Self {
        sandbox.door.get("e2b").and_then(|note| serde_json::from_value(note.clone()).ok()).unwrap_or_default()
    }

    /// Beside what other doors remember.
    pub fn into_note(self, door: &Value) -> Value {
        let mut door = door.as_object().cloned().unwrap_or_default();
        door.insert("e2b".into(), serde_json::json!(self));
        door.into()
    }
}
