//! Who kept the processors at work: the machine as a whole, and this program of it.

use std::fs;
use std::time::{Duration, Instant};

/// What was done until now.
#[derive(Debug, Clone, Copy)]
pub struct Processors {
    at: Instant,
    /// In ticks of all processors together.
    busy: u64,
    all: u64,
    own: Duration,
}

/// Shares of what all processors together could do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Work {
    pub machine: f64,
    pub own: f64,
}

impl Processors {
    pub fn look() -> Option<Processors> {
        let text = fs::read_to_string("/proc/stat").ok()?;
        let (busy, all) = ticks(text.lines().next()?)?;
        let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let own = Duration::new(u64::try_from(used.tv_sec).ok()?, u32::try_from(used.tv_nsec).ok()?);
        Some(Processors { at: Instant::now(), busy, all, own })
    }

    pub fn since(&self, before: &Processors) -> Work {
        let count = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let share = |part: f64, whole: f64| if whole > 0.0 { (part / whole).clamp(0.0, 1.0) } else { 0.0 };
        let whole = (self.at - before.at).as_secs_f64() * count;
        Work {
            machine: share((self.busy - before.busy) as f64, (self.all - before.all) as f64),
            own: share((self.own.saturating_sub(before.own)).as_secs_f64(), whole),
        }
    }
}

/// Of the line `cpu user nice system idle iowait irq softirq steal …`: what was not idle, and all. A guest's time is in the user's already.
fn ticks(line: &str) -> Option<(u64, u64)> {
    let numbers: Vec<u64> =
        line.split_whitespace().skip(1).take(8).map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let idle = numbers.get(3)? + numbers.get(4)?;
    let all = numbers.iter().sum::<u64>();
    Some((all - idle, all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_not_work() {
        assert_eq!(ticks("cpu  10 0 20 60 5 1 2 2 0 0"), Some((35, 100)));
        assert_eq!(ticks("cpu  x"), None);
        let before = Processors::look().unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(60) {}
        let work = Processors::look().unwrap().since(&before);
        assert!(work.own > 0.0 && work.own <= 1.0, "{work:?}");
    }
}
