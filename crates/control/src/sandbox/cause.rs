//! Why a sandbox is in its state, for people.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::provider::Ended;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Cause {
    pub code: Code,
    /// A sentence.
    pub message: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A request.
    Requested,
    /// Traffic woke it.
    Woken,
    /// Its lifetime expired.
    Lifetime,
    Idle,
    /// A timer after the stop: archive or delete.
    Retention,
    OutOfMemory,
    /// A signal from outside the sandbox ended it.
    Killed,
    /// The daemon inside ended by itself.
    GuestExited,
    /// The host was restarted.
    HostRestart,
    /// The filesystem that its files are on failed, and was begun anew.
    StorageFailed,
    /// Its processes were gone when the server came back, although the host was not restarted.
    Vanished,
    /// The server ended in the middle of a change.
    ServerRestart,
    /// A start failed.
    StartFailed,
    /// Another change failed; the sandbox is unchanged.
    ChangeFailed,
    /// Handed out from a warm pool.
    Pool,
}

impl Cause {
    pub fn new(code: Code, message: impl Into<String>, at: Timestamp) -> Self {
        Cause { code, message: message.into(), at }
    }

    pub fn requested(what: &str, at: Timestamp) -> Self {
        Cause::new(Code::Requested, format!("{what} was asked for"), at)
    }

    /// A provider's report of an end, as a sentence.
    pub fn ended(ended: &Ended, at: Timestamp) -> Self {
        match ended {
            Ended::Stopped => Cause::new(Code::Requested, "every process had gone", at),
            Ended::OutOfMemory { limit, peak, largest } => {
                let largest = largest
                    .as_ref()
                    .map(|process| format!(", largest process {} with {}", process.name, bytes(process.memory)))
                    .unwrap_or_default();
                let message = format!("out of memory: {} of {}{largest}", bytes(*peak), bytes(*limit));
                Cause::new(Code::OutOfMemory, message, at)
            }
            Ended::Killed { signal } => {
                Cause::new(Code::Killed, format!("killed from outside with signal {signal}"), at)
            }
            Ended::GuestExited { code } => {
                Cause::new(Code::GuestExited, format!("the daemon inside ended with code {code}"), at)
            }
            Ended::HostRestarted => {
                Cause::new(Code::HostRestart, "host restart: its processes ended with it, its files are kept", at)
            }
            Ended::StorageFailed => Cause::new(
                Code::StorageFailed,
                "the storage of this server failed and was begun anew: its processes were ended, its files are as they \
                 were last on the disk",
                at,
            ),
            Ended::Vanished => {
                Cause::new(Code::Vanished, "its processes were gone when the server looked: somebody ended them", at)
            }
        }
    }
}

/// Bytes as people read them.
pub fn bytes(count: u64) -> String {
    const STEPS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    for (size, unit) in STEPS {
        if count >= size {
            return format!("{:.1} {unit}", count as f64 / size as f64);
        }
    }
    format!("{count} B")
}
