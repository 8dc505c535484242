//! Processor time of a sandbox without a control group: that of an ordinary user to whom none was delegated.
//!
//! Every process of a sandbox descends from its guest, because orphans of a pid namespace become its first process's
//! children. A process's own time and that of the children it has waited for are in its `stat`, so the sum over those that
//! live grows as the sandbox works. It falls where a parent leaves its children to the kernel (SIGCHLD ignored, sigaction(2)):
//! good enough to tell work from waiting, not to bill by.

use std::collections::VecDeque;
use std::fs;

/// Processes that are looked at: a sandbox may have very many, and a look must be cheap.
const MOST: usize = 1024;

/// The kernel counts in hundredths of a second to user space (USER_HZ), on every architecture that we run on.
const TICK_NS: u64 = 10_000_000;

/// Nanoseconds, of the process and all that descend from it.
pub fn of_tree(pid: u32) -> u64 {
    let mut total = 0u64;
    let mut ahead = VecDeque::from([pid]);
    for _ in 0..MOST {
        let Some(pid) = ahead.pop_front() else { break };
        total = total.saturating_add(of_one(pid).unwrap_or(0));
        ahead.extend(children(pid));
    }
    total
}

fn of_one(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // proc_pid_stat(5): the name in brackets may hold anything; fields 14 to 17 are user and system time, its own and its
    // children's, and the state after the bracket is field 3.
    let fields = stat.rsplit(')').next()?.split_whitespace().skip(11).take(4);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(ticks.saturating_mul(TICK_NS))
}

/// Of every thread: each may have started some.
fn children(pid: u32) -> Vec<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_work_of_children_and_of_those_that_have_ended_is_counted() {
        let spin = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{spin}'; sh -c '{spin}; read wait' & wait");
        let mut tree = Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        // One child has ended and one is at work below a shell that only waits.
        while of_tree(tree.id()) < 3 * TICK_NS {
            assert!(Instant::now() < deadline, "no work was seen");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(of_one(tree.id()).unwrap() <= of_tree(tree.id()));
        drop(tree.stdin.take());
        tree.wait().unwrap();
    }
}
