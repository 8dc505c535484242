//! Time to interactive, in the form of the public ComputeSDK benchmark: create a sandbox, run `node -v`, until its output is there.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::Bench;
use super::super::contest::milliseconds;
use super::super::peers::{Ground, Pace, run_timed};
use crate::measure::api::Api;
use crate::measure::report::{Suite, Unit};

const WORDS: [&str; 2] = ["node", "-v"];
const STAGGER: Duration = Duration::from_millis(200);

pub async fn measure(bench: &Bench) -> Suite {
    let mut suite = Suite::new(
        "tti",
        "Time to interactive",
        "As the ComputeSDK benchmark has it: from the call that creates a sandbox to the output of its first command, `node -v`. One after \
         another, one every 200 ms, and all at once. Client and server share this machine: there is no network in these numbers, and \
         they are not like for like with those of a cloud.",
    );
    let Some(server) = &bench.server else {
        bench.note_absent(&mut suite);
        return suite;
    };
    if crate::measure::machine::version_of("node").is_none() || !std::path::Path::new("/usr/bin/node").exists() {
        suite.absent("cove", "there is no node in /usr, which is what sandboxes see");
        return suite;
    }
    let (api, effort) = (&server.api, bench.effort);
    let mut plots = Vec::new();
    let ours = [
        ("cove, one after another", sequential(bench, api, effort.sequential).await),
        ("cove, staggered", at_intervals(api, effort.sequential, STAGGER, bench).await),
        ("cove, burst", at_intervals(api, effort.burst, Duration::ZERO, bench).await),
    ];
    for (who, outcome) in ours {
        match outcome {
            Ok(samples) => {
                suite.row(who, Unit::Milliseconds, &samples);
                plots.push((who.to_owned(), samples));
            }
            Err(why) => suite.absent(who, why),
        }
    }
    let bare: Vec<String> = WORDS.iter().map(|&word| word.to_owned()).collect();
    let mut others = vec![("node -v, no walls".to_owned(), bare, Ground::Plain, effort.sequential)];
    for peer in &bench.peers {
        let rounds = if peer.pace == Pace::Slow { effort.slow_rounds } else { effort.sequential.min(30) };
        others.push((format!("{}, one after another", peer.name), Vec::new(), peer.ground, rounds));
    }
    for (at, (who, line, ground, rounds)) in others.into_iter().enumerate() {
        bench.bar.set_message(format!("time to interactive: {who}"));
        let mut samples = Vec::new();
        let mut failed = None;
        for _ in 0..rounds {
            let line = if at == 0 { line.clone() } else { bench.peers[at - 1].command(&WORDS) };
            match tokio::task::block_in_place(|| run_timed(&line, ground)) {
                Ok(timed) => samples.push(milliseconds(timed.first)),
                Err(why) => {
                    failed = Some(why);
                    break;
                }
            }
            tokio::task::yield_now().await;
        }
        suite.row(&who, Unit::Milliseconds, &samples);
        if let Some(why) = failed {
            suite.absent(&who, why);
        }
        plots.push((who, samples));
    }
    suite.compare_to(&["node -v, no walls"]);
    suite.distribution("Milliseconds to interactive, every sample", &plots);
    bench.note_absent(&mut suite);
    suite
}

async fn once(api: &Api) -> Result<f64, String> {
    let told = |trouble: crate::measure::api::Trouble| trouble.to_string();
    let began = Instant::now();
    let id = api.create(json!({})).await.map_err(told)?;
    let said = api.exec(&id, &WORDS).await;
    let took = milliseconds(began.elapsed());
    api.delete(&id).await.map_err(told)?;
    said.map(|_| took).map_err(told)
}

async fn sequential(bench: &Bench, api: &Api, count: usize) -> Result<Vec<f64>, String> {
    bench.bar.set_message("time to interactive: one after another");
    bench.bar.set_length(count as u64);
    let mut samples = Vec::new();
    for number in 0..count {
        samples.push(once(api).await?);
        bench.bar.set_position(number as u64);
    }
    Ok(samples)
}

async fn at_intervals(api: &Api, count: usize, interval: Duration, bench: &Bench) -> Result<Vec<f64>, String> {
    bench.bar.set_message(if interval.is_zero() {
        "time to interactive: burst"
    } else {
        "time to interactive: staggered"
    });
    let runs = (0..count).map(|number| async move {
        tokio::time::sleep(interval * u32::try_from(number).unwrap_or(0)).await;
        once(api).await
    });
    futures::future::try_join_all(runs).await
}
