//! A step that the kernel refused, with its name: what a failed launch reports.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// `mount proc at /proc: Operation not permitted`. Crosses the socket between the engine and its spawners.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{step}: {}", self.reason())]
pub struct Refused {
    pub step: String,
    pub errno: i32,
    /// What would have to be another for it to succeed.
    #[serde(default)]
    pub fault: Fault,
}

/// Where a refusal comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Fault {
    #[default]
    Host,
    /// The files that the sandbox starts from: on another host it would be the same.
    Files,
}

/// What the kernel says of the things that lie at a path, and not of the host.
const SHAPES: [Errno; 7] =
    [Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::NOTEMPTY, Errno::EXIST, Errno::NOENT, Errno::NAMETOOLONG];

impl Refused {
    pub fn new(step: impl Into<String>, errno: Errno) -> Refused {
        Refused { step: step.into(), errno: errno.raw_os_error(), fault: Fault::Host }
    }

    /// Of a step among a sandbox's own files: what is there in the place of something else is their fault.
    pub fn among_files(self) -> Refused {
        let is_shape = SHAPES.iter().any(|errno| errno.raw_os_error() == self.errno);
        Refused { fault: if is_shape { Fault::Files } else { self.fault }, ..self }
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
