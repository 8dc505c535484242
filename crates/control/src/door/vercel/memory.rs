//! What this door remembers of a sandbox beyond what the domain knows.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::sandbox::Sandbox;

const KEY: &str = "vercel";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Ports that have a route.
    pub ports: Vec<u16>,
    /// Of a session, in milliseconds, as it was asked for.
    pub timeout: Option<u64>,
    pub runtime: Option<String>,
    pub image: Option<String>,
    /// The snapshot that it was made from.
    pub snapshot: Option<String>,
}

impl Memory {
    /// A sandbox of another door has none.
    pub fn of(sandbox: &Sandbox) -> Memory {
        sandbox.door.get(KEY).and_then(|note| serde_json::from_value(note.clone()).ok()).unwrap_or_default()
    }

    /// Beside what other doors remember.
    pub fn into_note(self, door: &Value) -> Value {
        let mut door = door.as_object().cloned().unwrap_or_default();
        door.insert(KEY.into(), serde_json::json!(self));
        door.into()
    }
}
