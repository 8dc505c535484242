//! Failures, in the protocol's terms.
//!
//! Every failure names the step and the thing (`write /etc/motd: permission denied`), and its kind is what doors turn
//! into a status code. The mapping from the kernel's numbers is in one place.

use std::fmt::Display;
use std::io;

use cove_protocol::{Failure, FailureKind};
use rustix::io::Errno;

pub type Result<T> = std::result::Result<T, Failure>;

/// Turns the kernel's error into a failure that says what was tried.
pub trait During<T> {
    fn during(self, step: impl Display) -> Result<T>;
}

impl<T> During<T> for std::result::Result<T, Errno> {
    fn during(self, step: impl Display) -> Result<T> {
        self.map_err(|errno| from_errno(errno, step))
    }
}

impl<T> During<T> for io::Result<T> {
    fn during(self, step: impl Display) -> Result<T> {
        self.map_err(|error| match Errno::from_io_error(&error) {
            Some(errno) => from_errno(errno, step),
            None => Failure::new(FailureKind::Internal, format!("{step}: {error}")),
        })
    }
}

pub fn from_errno(errno: Errno, step: impl Display) -> Failure {
    Failure::new(kind_of(errno), format!("{step}: {}", describe(errno)))
}

/// An invalid request.
pub fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(FailureKind::InvalidArgument, message)
}

fn kind_of(errno: Errno) -> FailureKind {
    match errno {
        Errno::NOENT | Errno::SRCH | Errno::NXIO | Errno::NODEV => FailureKind::NotFound,
        Errno::EXIST => FailureKind::AlreadyExists,
        Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY => FailureKind::PermissionDenied,
        Errno::NOTDIR => FailureKind::NotADirectory,
        Errno::ISDIR => FailureKind::IsADirectory,
        Errno::NOTEMPTY => FailureKind::NotEmpty,
        Errno::NOSPC
        | Errno::DQUOT
        | Errno::FBIG
        | Errno::MFILE
        | Errno::NFILE
        | Errno::AGAIN
        | Errno::NOMEM
        | Errno::MLINK
        | Errno::NOBUFS
        | Errno::USERS
        | Errno::TOOBIG => FailureKind::Exhausted,
        Errno::INVAL
        | Errno::NAMETOOLONG
        | Errno::LOOP
        | Errno::XDEV
        | Errno::NOEXEC
        | Errno::ILSEQ
        | Errno::SPIPE
        | Errno::OVERFLOW
        | Errno::RANGE => FailureKind::InvalidArgument,
        Errno::PIPE | Errno::BADF | Errno::BUSY => FailureKind::WrongState,
        Errno::CONNREFUSED => FailureKind::Refused,
        Errno::NOSYS | Errno::NOTSUP => FailureKind::Unsupported,
        _ => FailureKind::Internal,
    }
}

/// The kernel's message without Rust's "(os error 2)", in lower case.
fn describe(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => format!("error {}", errno.raw_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_step_and_the_reason_in_lower_case() {
        let failure = from_errno(Errno::ACCESS, "read /etc/shadow");
        assert_eq!(failure, Failure::new(FailureKind::PermissionDenied, "read /etc/shadow: permission denied"));
    }

    #[test]
    fn want_of_anything_is_exhaustion() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::AGAIN, Errno::NOMEM] {
            assert_eq!(from_errno(errno, "x").kind, FailureKind::Exhausted, "{errno:?}");
        }
    }
}
