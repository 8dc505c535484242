//! Whether the out-of-memory killer ended a process.
//!
//! The kernel does not say so to a parent: it is a SIGKILL like any other. But it counts such kills for each control
//! group, and counts before it sends the signal. The host leaves that count of this sandbox's group open for us: when
//! it rose during the life of a process that ended by a SIGKILL which no request caused, the guest reports that.
//! Without a group (an ordinary user's host) it reports nothing.

use std::os::fd::OwnedFd;

use cove_protocol::process::Exit;

/// `memory.oom_control` of control groups v1, `memory.events` of v2.
pub struct Kills(Option<OwnedFd>);

impl Kills {
    pub fn new(file: Option<OwnedFd>) -> Kills {
        Kills(file)
    }

    /// How many processes of this sandbox the kernel has killed so far, where that is known.
    pub fn count(&self) -> Option<u64> {
        let mut text = [0; 1024];
        let length = rustix::io::pread(self.0.as_ref()?, &mut text, 0).ok()?;
        count(&String::from_utf8_lossy(&text[..length]))
    }
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill "))?.trim().parse().ok()
}

/// Whether the end looks like a SIGKILL, of the process or of what a shell ran in it.
pub fn is_suspicious(exit: &Exit) -> bool {
    exit.status() == 128 + 9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_read_where_it_is_there() {
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 17\n"), Some(17));
        assert_eq!(count("low 0\nmax 4\noom 2\noom_kill 3\noom_group_kill 9\n"), Some(3));
        assert_eq!(count("oom_kill_disable 0\n"), None);
        assert_eq!(Kills::new(None).count(), None);
    }
}
