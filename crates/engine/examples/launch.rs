//! Measures launches: `launch [count] [parallel] [pool]`, as root or as an ordinary user.
//!
//! Prints, in microseconds, how long a launch takes until its guest answered and how long its destruction takes, and
//! how many of both a second the engine does with so many callers.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cove_engine::spec::{Durability, Limits, Network, Root, Storage};
use cove_engine::{Config, Engine, SandboxId, Spawning, Spec};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().nth(1).is_some_and(|word| word == cove_engine::spawner::ARGUMENT) {
        cove_engine::spawner_main();
    }
    let argument = |place: usize, otherwise: usize| {
        std::env::args().nth(place).and_then(|word| word.parse().ok()).unwrap_or(otherwise)
    };
    let (count, parallel, pool) = (argument(1, 200), argument(2, 1), argument(3, 64));
    let data: std::path::PathBuf =
        std::env::var_os("COVE_DATA").map_or_else(|| std::env::temp_dir().join("cove-measure"), Into::into);
    cove_engine::privilege::enter(Some(&data))?;
    let program = std::env::current_exe()?;
    let workers = NonZeroUsize::new(parallel.min(2)).unwrap_or(NonZeroUsize::MIN);
    let spawning = Spawning::Processes { count: workers, program };
    let engine = Engine::open(Config { data, spawning, pool, layers: None, waived: cove_engine::Limit::ALL.to_vec() })?;
    if std::env::var_os("WARM").is_some() {
        // Lets the pool fill, to measure launches alone.
        std::thread::sleep(std::time::Duration::from_millis(pool as u64 * 4));
    }

    let next = AtomicUsize::new(0);
    let began = Instant::now();
    let timings: Vec<(u128, u128)> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..parallel)
            .map(|_| {
                scope.spawn(|| {
                    let mut timings = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return timings;
                        }
                        timings.push(once(&engine, number).expect("launch and destroy"));
                    }
                })
            })
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a worker")).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut launches: Vec<u128> = timings.iter().map(|timing| timing.0).collect();
    let mut destructions: Vec<u128> = timings.iter().map(|timing| timing.1).collect();
    println!("launch  {}", percentiles(&mut launches));
    println!("destroy {}", percentiles(&mut destructions));
    println!("rate    {:.0}/s with {parallel} callers", count as f64 / seconds);
    Ok(())
}

fn once(engine: &Engine, number: usize) -> Result<(u128, u128), cove_engine::Error> {
    let id: SandboxId = format!("m{:09}{number:010}", std::process::id()).parse().expect("an id");
    let spec = Spec {
        id: id.clone(),
        root: Root::base(),
        storage: Storage::Memory,
        durability: Durability::default(),
        limits: Limits { memory: 256 << 20, disk: Some(64 << 20), ..Limits::default() },
        network: Network::None,
        mounts: Vec::new(),
        hostname: "measure".into(),
        env: Default::default(),
        default_user: "user".into(),
        default_cwd: None,
    };
    let began = Instant::now();
    engine.launch(&spec)?;
    let launched = began.elapsed().as_micros();
    let began = Instant::now();
    engine.destroy(&id)?;
    Ok((launched, began.elapsed().as_micros()))
}

fn percentiles(values: &mut [u128]) -> String {
    values.sort_unstable();
    let at = |share: usize| values.get((values.len() * share / 100).min(values.len() - 1)).copied().unwrap_or(0);
    format!("p50 {} p90 {} p99 {} us", at(50), at(90), at(99))
}
