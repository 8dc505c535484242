//! Progress of slow work: on stderr, on a terminal, and only if it takes time.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::render::one_line;

/// Faster work shows no progress.
const PATIENCE: Duration = Duration::from_millis(400);

/// Waits for work of unknown length.
pub async fn waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    let bar = ProgressBar::with_draw_target(None, target());
    bar.set_style(style("{spinner} {msg} ({elapsed})"));
    bar.set_message(one_line(what));
    bar.enable_steady_tick(Duration::from_millis(100));
    let done = work.await;
    bar.finish_and_clear();
    done
}

/// Work that says how far it is.
pub struct Far {
    bar: ProgressBar,
}

impl Far {
    pub fn new(what: &str) -> Far {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        bar.set_style(style("{spinner} {prefix} {msg} ({elapsed})"));
        bar.set_prefix(one_line(what));
        Far { bar }
    }

    pub fn tell(&self, text: &str) {
        self.bar.set_message(one_line(text));
        if self.bar.is_hidden() && self.bar.elapsed() >= PATIENCE {
            self.bar.set_draw_target(target());
        }
        self.bar.tick();
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes transferred; of how many, where that is known.
pub struct Bytes {
    bar: ProgressBar,
    count: Count,
}

/// How many bytes so far.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicU64>);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Bytes {
    pub fn new(what: &str, total: Option<u64>) -> Bytes {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        bar.set_style(style(match total {
            Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}",
            None => "{spinner} {msg} {bytes} {bytes_per_sec}",
        }));
        bar.set_message(one_line(what));
        Bytes { bar, count: Count::default() }
    }

    pub fn count(&self) -> Count {
        self.count.clone()
    }

    pub fn more(&self, bytes: usize) {
        self.count.0.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bar.inc(bytes as u64);
        if self.bar.is_hidden() && self.bar.elapsed() >= PATIENCE {
            self.bar.set_draw_target(target());
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn target() -> ProgressDrawTarget {
    if io::stderr().is_terminal() { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
