//! A step that the kernel refused, with its name: what a failed launch reports.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// `mount proc at /proc: Operation not permitted`. Crosses the socket between the engine and its spawners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", self.reason())]
pub struct Refused {
    pub step: String,
    pub errno: i32,
}

impl Refused {
    pub fn new(step: impl Into<String>, errno: Errno) -> Refused {
        Refused { step: step.into(), errno: errno.raw_os_error() }
    }

    fn reason(&self) -> String {
        std::io::Error::from_raw_os_error(self.errno).to_string()
    }
}

/// Names the step that a result belongs to.
pub trait Step<T> {
    fn step(self, name: &str) -> Result<T, Refused>;
}

impl<T> Step<T> for rustix::io::Result<T> {
    fn step(self, name: &str) -> Result<T, Refused> {
        self.map_err(|errno| Refused::new(name, errno))
    }
}

impl<T> Step<T> for std::io::Result<T> {
    fn step(self, name: &str) -> Result<T, Refused> {
        self.map_err(|error| Refused::new(name, Errno::from_io_error(&error).unwrap_or(Errno::IO)))
    }
}
