//! What another tenant sees of it, and what it does to the server's memory.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::http;

/// A second tenant who asks again and again, and a look at the server's memory each time.
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

#[derive(Debug, Default)]
pub struct Seen {
    /// Bytes that the server had more than at the beginning, at most.
    pub growth: u64,
    pub answers: u32,
    pub slowest: Duration,
}

impl Watch {
    pub fn begin(server: &TestServer, key: String, soon: Duration) -> Watch {
        let over = Arc::new(AtomicBool::new(false));
        let (address, pid, ended) = (server.address().to_owned(), server.pid(), over.clone());
        let thread = thread::spawn(move || {
            let (before, mut seen) = (resident(pid), Seen::default());
            let bearer = format!("Bearer {key}");
            while !ended.load(Ordering::Relaxed) {
                let asked = Instant::now();
                let headers = [("authorization", bearer.as_str())];
                let answer = http::request(&address, "GET", "/api/sandboxes", &headers, None);
                let took = asked.elapsed();
                let answer = answer.unwrap_or_else(|error| panic!("a bystander was not answered: {error}"));
                assert_eq!(answer.status, 200, "a bystander was answered {}", answer.text());
                assert!(took < soon, "a bystander was answered after {took:?}");
                seen.slowest = seen.slowest.max(took);
                seen.answers += 1;
                seen.growth = seen.growth.max(resident(pid).saturating_sub(before));
                thread::sleep(Duration::from_millis(20));
            }
            seen
        });
        Watch { over, thread }
    }

    /// Fails with what the watch has seen go wrong.
    pub fn end(self) -> Seen {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// Bytes of memory that a process has.
fn resident(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the server runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory is told");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}
