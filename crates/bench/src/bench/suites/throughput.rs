//! How many sandboxes a second, with one, two, four and eight callers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::Bench;
use super::super::contest::{Contender, Contest};
use super::super::engine::EngineProcess;
use super::super::ours::over_http;
use super::super::peers::{Ground, run_to_end};
use crate::measure::report::{Series, Suite, Unit};
use crate::measure::summary::Summary;

const AT_ONCE: [usize; 4] = [1, 2, 4, 8];
const WORDS: [&str; 1] = ["/bin/true"];

pub async fn measure(bench: &Bench) -> Suite {
    let (samples, time) = (bench.effort.throughput_samples, bench.effort.throughput_time);
    let mut suite = Suite::new(
        "throughput",
        "Sandboxes a second",
        &format!(
            "Made, `true` run inside (the engine in process: made and answered), and removed again, by so many callers at once for {} s; {samples} \
             times, everybody in turn. The number after the name is the number of callers.",
            time.as_secs_f64()
        ),
    );
    let engine = EngineProcess::start(&bench.program, &bench.home.path().join("engine"));
    if let Err(why) = &engine {
        suite.absent("cove engine", why.clone());
    }
    let mut lines: Vec<Series> = Vec::new();
    for callers in AT_ONCE {
        let mut contest: Contest<'_, f64> = Contest::without_warming();
        let run = bench.cove_run(&WORDS);
        contest.add_blocking("cove run", samples, move || rate(callers, time, &|| run_to_end(&run, Ground::Plain)));
        if let Ok(engine) = &engine {
            contest.add_blocking("cove engine", samples, move || engine.rate(callers, time));
        }
        if let Some(server) = &bench.server {
            contest.add("cove over HTTP", samples, move || rate_over_http(server, callers, time));
        }
        for peer in &bench.peers {
            contest.add_blocking(peer.name, samples, move || {
                rate(callers, time, &|| run_to_end(&peer.command(&WORDS), peer.ground))
            });
        }
        contest.hold(&bench.bar, &format!("sandboxes a second, {callers} at once")).await;
        for contender in contest.contenders {
            note(&mut suite, &mut lines, &contender, callers);
        }
    }
    suite.compare_to(&["bubblewrap, 1", "cove run, 1"]);
    suite.lines("Sandboxes a second against callers at once", "callers at once", "per second", lines);
    bench.note_absent(&mut suite);
    suite
}

fn note(suite: &mut Suite, lines: &mut Vec<Series>, contender: &Contender<'_, f64>, callers: usize) {
    let name = &contender.name;
    if let Some(why) = &contender.failed {
        let who = if callers == 1 { name.clone() } else { format!("{name}, {callers}") };
        suite.absent(&who, why.clone());
    }
    let Some(summary) = Summary::of(&contender.samples) else { return };
    suite.row(&format!("{name}, {callers}"), Unit::PerSecond, &contender.samples);
    let point = (callers as f64, summary.p50);
    match lines.iter_mut().find(|line| line.name == *name) {
        Some(line) => line.points.push(point),
        None => lines.push(Series { name: name.clone(), points: vec![point] }),
    }
}

/// Completed in the time, over the time it took until the last was done.
pub fn rate(callers: usize, time: Duration, act: &(dyn Fn() -> Result<(), String> + Sync)) -> Result<f64, String> {
    let (done, began) = (AtomicU64::new(0), Instant::now());
    let failed: Vec<String> = std::thread::scope(|scope| {
        let work = || {
            while began.elapsed() < time {
                act()?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(work)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread ended early".into())));
        ended.filter_map(Result::err).collect()
    });
    match failed.into_iter().next() {
        Some(why) => Err(why),
        None => Ok(done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()),
    }
}

async fn rate_over_http(
    server: &crate::measure::own_server::OwnServer,
    callers: usize,
    time: Duration,
) -> Result<f64, String> {
    let began = Instant::now();
    let work = (0..callers).map(|_| async {
        let mut done = 0u64;
        while began.elapsed() < time {
            over_http(&server.api, &WORDS).await.map_err(|trouble| trouble.to_string())?;
            done += 1;
        }
        Ok::<u64, String>(done)
    });
    let done: u64 = futures::future::try_join_all(work).await?.into_iter().sum();
    Ok(done as f64 / began.elapsed().as_secs_f64())
}
