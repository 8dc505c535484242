//! A container's first process, where it is a process of this machine.
//!
//! A number is no proof: it may be another machine's, or somebody else's by now. So whatever is opened of a process counts
//! only if the process is in the control group of its container afterwards, which has the container's id in its name. Opened
//! first and looked at after: a number that changes hands in between fails the look.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use tokio::net::UnixStream;

use super::container::{FOLDER, SOCKET_NAME};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    /// The container's whole id.
    pub container: String,
}

impl Process {
    fn proven<T>(&self, open: impl FnOnce(&str) -> io::Result<T>) -> io::Result<T> {
        let folder = format!("/proc/{}", self.pid);
        let opened = open(&folder)?;
        let groups = std::fs::read_to_string(format!("{folder}/cgroup"))?;
        if self.container.len() < 64 || !groups.contains(&self.container) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is no process of this machine"));
        }
        Ok(opened)
    }

    /// Its network namespace.
    pub fn network(&self) -> io::Result<OwnedFd> {
        self.proven(|folder| Ok(File::open(format!("{folder}/ns/net"))?.into()))
    }

    /// Connects to the guest's socket in its files. They are the sandbox's own: a link that leads elsewhere, or anything but
    /// a socket, is refused, or this server would speak to a socket of the sandbox's choice.
    pub async fn connect(&self) -> io::Result<UnixStream> {
        let socket = self.proven(|folder| {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let root = rustix::fs::open(format!("{folder}/root"), flags | OFlags::DIRECTORY, Mode::empty())?;
            let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
            let path = format!("{}/{SOCKET_NAME}", FOLDER.trim_start_matches('/'));
            let socket = rustix::fs::openat2(&root, path, flags | OFlags::NOFOLLOW, Mode::empty(), within)?;
            Ok(socket)
        })?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&socket)?.st_mode);
        if kind != FileType::Socket {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the guest's socket is something else"));
        }
        // The kernel follows this to what is open, whatever the name in the sandbox leads to by now.
        UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_not_the_containers_is_not_entered() {
        let other = Process { pid: std::process::id(), container: "ab".repeat(32) };
        assert_eq!(other.network().unwrap_err().kind(), io::ErrorKind::NotFound);
        let nameless = Process { pid: std::process::id(), container: String::new() };
        assert!(nameless.network().is_err(), "every text contains nothing");
    }
}
