//! Freeze and thaw.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::super::Bench;
use super::super::contest::Contest;
use super::super::peers::{Pace, run_to_end};
use crate::measure::report::Suite;

#[derive(Clone, Copy)]
struct Nap {
    pause: Duration,
    resume: Duration,
    /// From the call to resume to the answer of a command.
    awake: Option<Duration>,
}

pub async fn measure(bench: &Bench) -> Suite {
    let mut suite = Suite::new(
        "pause",
        "Pause and resume",
        "A sandbox is frozen and thawed. \"awake\" is from the call that thaws it to the output of a command inside. One sample of each in turn.",
    );
    let mut contest: Contest<'_, Nap> = Contest::new();
    let mut ours = None;
    if let Some(server) = &bench.server {
        let api = &server.api;
        match api.create(json!({})).await {
            Ok(id) => {
                let id = Arc::new(id);
                ours = Some(Arc::clone(&id));
                contest.add("cove over HTTP", bench.effort.rounds, move || {
                    let id = Arc::clone(&id);
                    async move { nap(api, &id).await.map_err(|trouble| trouble.to_string()) }
                });
            }
            Err(trouble) => suite.absent("cove over HTTP", trouble.to_string()),
        }
    }
    for peer in &bench.peers {
        let rounds = if peer.pace == Pace::Slow { bench.effort.slow_rounds } else { bench.effort.rounds };
        match tokio::task::block_in_place(|| peer.keep_one()) {
            Ok(Some(live)) => {
                let live = Arc::new(live);
                contest.add_blocking(peer.name, rounds, move || {
                    let began = Instant::now();
                    run_to_end(&live.pause(), peer.ground)?;
                    let pause = began.elapsed();
                    let began = Instant::now();
                    run_to_end(&live.resume(), peer.ground)?;
                    Ok(Nap { pause, resume: began.elapsed(), awake: None })
                });
            }
            Ok(None) => suite.absent(peer.name, "has no pause"),
            Err(why) => suite.absent(peer.name, why),
        }
    }
    contest.hold(&bench.bar, "pause and resume").await;
    let mut plots = Vec::new();
    for contender in &contest.contenders {
        let mut row = |what: &str, values: Vec<f64>| {
            let who = format!("{}, {what}", contender.name);
            suite.row(&who, crate::measure::report::Unit::Milliseconds, &values);
            plots.push((who, values));
        };
        let of = |take: &dyn Fn(&Nap) -> Option<Duration>| -> Vec<f64> {
            contender.samples.iter().filter_map(take).map(super::super::contest::milliseconds).collect()
        };
        row("pause", of(&|nap| Some(nap.pause)));
        row("resume", of(&|nap| Some(nap.resume)));
        row("awake", of(&|nap| nap.awake));
    }
    for contender in &contest.contenders {
        if let Some(why) = &contender.failed {
            suite.absent(&contender.name, why.clone());
        }
    }
    suite.distribution("Milliseconds to pause and to resume, every sample", &plots);
    suite.compare_to(&["cove over HTTP, resume"]);
    drop(contest);
    if let (Some(id), Some(server)) = (ours, &bench.server) {
        // Also removed at the end, should this fail.
        drop(server.api.delete(&id).await);
    }
    suite
}

async fn nap(api: &crate::measure::api::Api, id: &str) -> Result<Nap, crate::measure::api::Trouble> {
    let began = Instant::now();
    api.call(Method::POST, &format!("/api/sandboxes/{id}/pause"), None).await?;
    let pause = began.elapsed();
    let began = Instant::now();
    api.call(Method::POST, &format!("/api/sandboxes/{id}/resume"), None).await?;
    let resume = began.elapsed();
    api.exec(id, &["/bin/true"]).await?;
    Ok(Nap { pause, resume, awake: Some(began.elapsed()) })
}
