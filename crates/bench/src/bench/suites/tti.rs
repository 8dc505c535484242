//! Time to interactive, in the form of the public ComputeSDK benchmark: create a sandbox, run `node -v`, until its output is there.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::Bench;
use super::super::contest::{Contest, milliseconds};
use super::super::peers::{Ground, Pace, run_timed};
use crate::measure::api::Api;
use crate::measure::report::{Suite, Unit};

const WORDS: [&str; 2] = ["node", "-v"];
const BARE: &str = "node -v, no walls";
const STAGGER: Duration = Duration::from_millis(200);

pub async fn measure(bench: &Bench) -> Suite {
    let mut suite = Suite::new(
        "tti",
        "Time to interactive",
        "As the ComputeSDK benchmark has it: from the call that creates a sandbox to the output of its first command, `node -v`. One after \
         another (one sample of each in turn), one every 200 ms, and all at once. Client and server share this machine: there is no network in these numbers, and \
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
    let mut contest: Contest<'_, Duration> = Contest::new();
    contest.add("cove, one after another", effort.sequential, move || once(api));
    let bare: Vec<String> = WORDS.iter().map(|&word| word.to_owned()).collect();
    contest.add_blocking(BARE, effort.sequential, move || run_timed(&bare, Ground::Plain).map(|timed| timed.first));
    for peer in &bench.peers {
        let rounds = if peer.pace == Pace::Slow { effort.slow_rounds } else { effort.sequential };
        contest.add_blocking(&format!("{}, one after another", peer.name), rounds, move || {
            run_timed(&peer.command(&WORDS), peer.ground).map(|timed| timed.first)
        });
    }
    contest.hold(&bench.bar, "time to interactive").await;
    contest.tell(&mut suite, "Milliseconds to interactive, every sample", |took| *took);
    let many = [
        ("cove, staggered", at_intervals(api, effort.sequential, STAGGER, bench).await),
        ("cove, burst", at_intervals(api, effort.burst, Duration::ZERO, bench).await),
    ];
    let mut plots = Vec::new();
    for (who, outcome) in many {
        match outcome {
            Ok(took) => {
                let samples: Vec<f64> = took.into_iter().map(milliseconds).collect();
                suite.row(who, Unit::Milliseconds, &samples);
                plots.push((who.to_owned(), samples));
            }
            Err(why) => suite.absent(who, why),
        }
    }
    suite.distribution("Milliseconds to interactive when many come, every sample", &plots);
    suite.compare_to(&[BARE]);
    bench.note_absent(&mut suite);
    suite
}

async fn once(api: &Api) -> Result<Duration, String> {
    let told = |trouble: crate::measure::api::Trouble| trouble.to_string();
    let began = Instant::now();
    let id = api.create(json!({})).await.map_err(told)?;
    let said = api.exec(&id, &WORDS).await;
    let took = began.elapsed();
    api.delete(&id).await.map_err(told)?;
    said.map(|_| took).map_err(told)
}

async fn at_intervals(api: &Api, count: usize, interval: Duration, bench: &Bench) -> Result<Vec<Duration>, String> {
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
