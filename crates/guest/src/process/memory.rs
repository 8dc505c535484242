//! Whether a process was killed for want of memory.
//!
//! The kernel does not say so to a parent: it is a SIGKILL like any other. The machine's count of such kills is in
//! `/proc/vmstat`, also inside a sandbox; when it rose during the life of a process that ended by a SIGKILL which the
//! host did not send, that is told. The host knows better from its control groups; this is for those who ask only here.

use std::fs::File;
use std::io::Read;

use cove_protocol::process::Exit;

/// How many processes the kernel has killed so far, where it tells.
pub fn kills() -> Option<u64> {
    let mut text = Vec::with_capacity(8 << 10);
    File::open("/proc/vmstat").ok()?.take(64 << 10).read_to_end(&mut text).ok()?;
    count(&String::from_utf8_lossy(&text))
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
        assert_eq!(count("nr_free_pages 1\noom_kill 17\nnuma_hit 3\n"), Some(17));
        assert_eq!(count("nr_free_pages 1\n"), None);
    }
}
