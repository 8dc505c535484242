//! A command in a sandbox that lives: the first one, and all after it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::Bench;
use super::super::contest::Contest;
use super::super::engine::EngineProcess;
use super::super::peers::{Ground, Pace, run_timed};
use crate::measure::report::Suite;

const WORDS: [&str; 3] = ["/bin/sh", "-c", "echo ready"];

pub async fn measure(bench: &Bench) -> Vec<Suite> {
    let mut suite = Suite::new(
        "exec",
        "A command in a sandbox that lives",
        "`sh -c 'echo ready'` in a sandbox that was made before, from the call to the first byte of its output (over HTTP: to the whole \
         answer). The first command of a fresh sandbox is a row of its own. One sample of each in turn.",
    );
    let engine = EngineProcess::start(&bench.program, &bench.home.path().join("engine"));
    let mut contest: Contest<'_, Duration> = Contest::new();
    let rounds = bench.effort.rounds;
    let bare: Vec<String> = WORDS.iter().map(|&word| word.to_owned()).collect();
    contest.add_blocking("no walls", rounds, move || run_timed(&bare, Ground::Plain).map(|timed| timed.first));
    match &engine {
        Ok(engine) => contest.add_blocking("cove engine, in process", rounds, move || engine.again(&WORDS)),
        Err(why) => suite.absent("cove engine, in process", why.clone()),
    }
    let mut live = None;
    if let Some(server) = &bench.server {
        let api = &server.api;
        match api.create(json!({})).await {
            Ok(id) => {
                let id = Arc::new(id);
                live = Some(Arc::clone(&id));
                contest.add("cove over HTTP", rounds, move || {
                    let id = Arc::clone(&id);
                    async move {
                        let began = Instant::now();
                        api.exec(&id, &WORDS).await.map(|_| began.elapsed()).map_err(|trouble| trouble.to_string())
                    }
                });
            }
            Err(trouble) => suite.absent("cove over HTTP", trouble.to_string()),
        }
        contest.add("cove over HTTP, first", rounds, move || async move {
            let told = |trouble: crate::measure::api::Trouble| trouble.to_string();
            let id = api.create(json!({})).await.map_err(told)?;
            let began = Instant::now();
            let done = api.exec(&id, &WORDS).await;
            let took = began.elapsed();
            api.delete(&id).await.map_err(told)?;
            done.map(|_| took).map_err(told)
        });
    }
    for peer in &bench.peers {
        let rounds = if peer.pace == Pace::Slow { bench.effort.slow_rounds } else { rounds };
        match tokio::task::block_in_place(|| peer.keep_one()) {
            Ok(Some(live)) => {
                let live = Arc::new(live);
                contest.add_blocking(peer.name, rounds, move || {
                    run_timed(&live.exec(&WORDS), peer.ground).map(|timed| timed.first)
                });
            }
            Ok(None) => suite.absent(peer.name, "has no way to come back into a sandbox"),
            Err(why) => suite.absent(peer.name, why),
        }
    }
    contest.hold(&bench.bar, "commands in a living sandbox").await;
    contest.tell(&mut suite, "Milliseconds of a command in a living sandbox, every sample", |took| *took);
    suite.compare_to(&["no walls"]);
    drop(contest);
    if let (Some(id), Some(server)) = (live, &bench.server) {
        // Also removed at the end, should this fail.
        drop(server.api.delete(&id).await);
    }
    let peers: Vec<_> =
        bench.absent.iter().filter(|absent| !suite.absent.iter().any(|told| told.who == absent.who)).cloned().collect();
    suite.absent.extend(peers);
    vec![suite]
}
