//! Taking turns: one sample of each contender in every round, so that a busy moment hits all alike.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use indicatif::ProgressBar;

use crate::measure::report::{Suite, Unit};

/// The first rounds warm caches and do not count.
const UNCOUNTED: usize = 2;

type Turn<'a, T> = Box<dyn FnMut() -> Pin<Box<dyn Future<Output = Result<T, String>> + Send + 'a>> + Send + 'a>;

pub struct Contender<'a, T> {
    pub name: String,
    rounds: usize,
    turn: Turn<'a, T>,
    pub samples: Vec<T>,
    pub failed: Option<String>,
}

pub struct Contest<'a, T> {
    pub contenders: Vec<Contender<'a, T>>,
    uncounted: usize,
}

impl<'a, T: Send + 'a> Contest<'a, T> {
    pub fn new() -> Self {
        Contest { contenders: Vec::new(), uncounted: UNCOUNTED }
    }

    /// One round that does not count: for samples of which each needs something made before.
    pub fn warmed_once() -> Self {
        Contest { contenders: Vec::new(), uncounted: 1 }
    }

    /// Every round counts: for samples that take seconds each.
    pub fn without_warming() -> Self {
        Contest { contenders: Vec::new(), uncounted: 0 }
    }

    pub fn add<F>(&mut self, name: &str, rounds: usize, mut turn: impl FnMut() -> F + Send + 'a)
    where
        F: Future<Output = Result<T, String>> + Send + 'a,
    {
        let turn: Turn<'a, T> = Box::new(move || Box::pin(turn()));
        self.contenders.push(Contender { name: name.to_owned(), rounds, turn, samples: Vec::new(), failed: None });
    }

    /// One that works on this thread: programs that are started and waited for.
    pub fn add_blocking(
        &mut self,
        name: &str,
        rounds: usize,
        turn: impl Fn() -> Result<T, String> + Clone + Send + 'a,
    ) {
        self.add(name, rounds, move || {
            let turn = turn.clone();
            async move { tokio::task::block_in_place(turn) }
        });
    }

    /// All rounds. Whoever fails drops out and is reported with the reason.
    pub async fn hold(&mut self, bar: &ProgressBar, title: &str) {
        let rounds = self.contenders.iter().map(|contender| contender.rounds).max().unwrap_or(0);
        bar.set_length(rounds as u64);
        bar.set_position(0);
        bar.set_message(title.to_owned());
        for round in 0..rounds + self.uncounted {
            for contender in &mut self.contenders {
                let counted = round >= self.uncounted;
                // Those with few rounds have no patience for two that do not count.
                let skipped = !counted && round + 1 < self.uncounted && contender.rounds < rounds;
                if contender.failed.is_some() || skipped || contender.samples.len() >= contender.rounds {
                    continue;
                }
                match (contender.turn)().await {
                    Ok(sample) if counted => contender.samples.push(sample),
                    Ok(_) => {}
                    Err(why) => contender.failed = Some(why),
                }
                tokio::task::yield_now().await;
            }
            bar.set_position(round.saturating_sub(self.uncounted) as u64);
        }
    }
}

impl<T> Contest<'_, T> {
    /// Rows and a plot of what `value` takes from each sample.
    pub fn tell(&self, suite: &mut Suite, plot: &str, value: impl Fn(&T) -> Duration) {
        let mut all = Vec::new();
        for contender in &self.contenders {
            let samples: Vec<f64> = contender.samples.iter().map(|sample| milliseconds(value(sample))).collect();
            suite.row(&contender.name, Unit::Milliseconds, &samples);
            if let Some(why) = &contender.failed {
                suite.absent(&contender.name, why.clone());
            }
            all.push((contender.name.clone(), samples));
        }
        suite.distribution(plot, &all);
    }
}

pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
