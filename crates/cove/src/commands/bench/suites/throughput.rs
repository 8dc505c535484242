//! How many sandboxes a second, with one, two, four and eight callers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::super::Bench;
use super::super::ours::{InProcess, over_http};
use super::super::peers::{Ground, Pace, run_to_end};
use crate::measure::report::{Series, Suite, Unit};

const AT_ONCE: [usize; 4] = [1, 2, 4, 8];
const WORDS: [&str; 1] = ["/bin/true"];

pub async fn measure(bench: &Bench) -> Suite {
    let mut suite = Suite::new(
        "throughput",
        "Sandboxes a second",
        "Made, `true` run inside (the engine in process: made and answered), and removed again, by so many callers at once for some seconds. \
         The number after the name is the number of callers.",
    );
    let engine = InProcess::open(&bench.program, &bench.home.path().join("engine"));
    if let Err(why) = &engine {
        suite.absent("cove engine", why.clone());
    }
    let mut lines: Vec<Series> = Vec::new();
    let mut note = |suite: &mut Suite, who: &str, callers: usize, outcome: Result<f64, String>| match outcome {
        Ok(rate) => {
            suite.row(&format!("{who}, {callers}"), Unit::PerSecond, &[rate]);
            let known = lines.iter().position(|line| line.name == who);
            let at = known.unwrap_or_else(|| {
                lines.push(Series { name: who.to_owned(), points: Vec::new() });
                lines.len() - 1
            });
            lines[at].points.push((callers as f64, rate));
        }
        Err(why) if callers == 1 => suite.absent(who, why),
        Err(why) => suite.absent(&format!("{who}, {callers}"), why),
    };
    bench.bar.set_message("sandboxes a second");
    bench.bar.set_length((AT_ONCE.len() * (4 + bench.peers.len())) as u64);
    bench.bar.set_position(0);
    for callers in AT_ONCE {
        let time = Duration::from_secs_f64(bench.effort.seconds);
        let blocking =
            |act: &(dyn Fn() -> Result<(), String> + Sync)| tokio::task::block_in_place(|| rate(callers, time, act));
        let run = bench.cove_run(&WORDS);
        note(&mut suite, "cove run", callers, blocking(&|| run_to_end(&run, Ground::Plain)));
        bench.bar.inc(1);
        tokio::task::yield_now().await;
        if let Ok(engine) = &engine {
            let once = || engine.launch().and_then(|id| engine.destroy(&id));
            note(&mut suite, "cove engine", callers, blocking(&once));
            bench.bar.inc(1);
            tokio::task::yield_now().await;
        }
        if let Some(server) = &bench.server {
            note(&mut suite, "cove over HTTP", callers, rate_over_http(server, callers, time).await);
            bench.bar.inc(1);
        }
        for peer in &bench.peers {
            let time = if peer.pace == Pace::Slow { time.mul_f64(1.5) } else { time };
            let blocking = |act: &(dyn Fn() -> Result<(), String> + Sync)| {
                tokio::task::block_in_place(|| rate(callers, time, act))
            };
            note(&mut suite, peer.name, callers, blocking(&|| run_to_end(&peer.command(&WORDS), peer.ground)));
            bench.bar.inc(1);
            tokio::task::yield_now().await;
        }
    }
    suite.compare_to(&["bubblewrap, 1", "cove run, 1"]);
    suite.lines("Sandboxes a second against callers at once", "callers at once", "per second", lines);
    bench.note_absent(&mut suite);
    suite
}

/// Completed in the time, over the time it took until the last was done.
fn rate(callers: usize, time: Duration, act: &(dyn Fn() -> Result<(), String> + Sync)) -> Result<f64, String> {
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
