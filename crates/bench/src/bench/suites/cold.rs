//! From nothing to the first output of a command, and from there to nothing again.

use std::sync::Arc;

use super::super::Bench;
use super::super::contest::Contest;
use super::super::engine::EngineProcess;
use super::super::ours::{over_http, set_pool, until_pool_is_full};
use super::super::peers::{Ground, Pace, Timed, run_timed};
use crate::measure::report::Suite;

const WORDS: [&str; 3] = ["/bin/sh", "-c", "echo ready"];
const POOL: u32 = 1;

pub async fn measure(bench: &Bench) -> Vec<Suite> {
    let mut contest: Contest<'_, Timed> = Contest::new();
    let rounds = bench.effort.rounds;
    let line = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };

    let bare = line(&WORDS);
    contest.add_blocking("no walls", rounds, move || run_timed(&bare, Ground::Plain));
    let run = bench.cove_run(&WORDS);
    contest.add_blocking("cove run", rounds, move || run_timed(&run, Ground::Plain));
    let engine = EngineProcess::start(&bench.program, &bench.home.path().join("engine"));
    let mut trouble = Vec::new();
    match engine {
        Ok(engine) => {
            let engine = Arc::new(engine);
            contest.add_blocking("cove engine, in process", rounds, move || engine.once(&WORDS));
        }
        Err(why) => trouble.push(("cove engine, in process", why)),
    }
    if let Some(server) = &bench.server {
        let (cold, warm) = (&server.api, &server.api);
        contest.add("cove over HTTP", rounds, move || async move {
            // A pool would be asked first.
            over_http(cold, &WORDS).await.map_err(|trouble| trouble.to_string())
        });
        contest.add("cove over HTTP, pool", rounds, move || async move { from_pool(warm).await });
    }
    for peer in &bench.peers {
        let line = peer.command(&WORDS);
        let rounds = if peer.pace == Pace::Slow { bench.effort.slow_rounds } else { rounds };
        // Each run of an OCI runtime needs an id of its own.
        contest.add_blocking(peer.name, rounds, move || {
            run_timed(&if peer.name == "bubblewrap" { line.clone() } else { peer.command(&WORDS) }, peer.ground)
        });
    }
    contest.hold(&bench.bar, "cold starts").await;

    let mut first = Suite::new(
        "cold",
        "From nothing to the first output",
        "`sh -c 'echo ready'` in a fresh sandbox, timed from the call to the first byte of its output. Everybody sees this machine's /usr \
         read-only with namespaces of its own and no network; crun, runc, podman and docker have limits of memory and processes as \
         ours have, bubblewrap has none. One sample of each in turn. \"no walls\" is the command itself, by fork and exec.",
    );
    contest.tell(&mut first, "Milliseconds to the first output, every sample", |timed| timed.first);
    first.compare_to(&["bubblewrap", "no walls"]);
    bench.note_absent(&mut first);
    for (who, why) in trouble {
        first.absent(who, why);
    }
    let mut last = Suite::new(
        "teardown",
        "From the first output to nothing left",
        "The same runs, from the first byte until the program has ended, the sandbox is destroyed or the DELETE is answered.",
    );
    contest.tell(&mut last, "Milliseconds from the first output to the end, every sample", |timed| {
        timed.whole - timed.first
    });
    last.compare_to(&["bubblewrap", "no walls"]);
    last.absent.clear();
    vec![first, last]
}

/// The pool is full when the clock starts, and gone when it is somebody else's turn: a cold start must be one.
async fn from_pool(api: &crate::measure::api::Api) -> Result<Timed, String> {
    let told = |trouble: crate::measure::api::Trouble| trouble.to_string();
    set_pool(api, POOL).await.map_err(told)?;
    until_pool_is_full(api).await.map_err(told)?;
    let timed = over_http(api, &WORDS).await;
    set_pool(api, 0).await.map_err(told)?;
    until_pool_is_empty(api).await.map_err(told)?;
    timed.map_err(told)
}

pub async fn until_pool_is_empty(api: &crate::measure::api::Api) -> Result<(), crate::measure::api::Trouble> {
    use std::time::{Duration, Instant};
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let pools = api.call(reqwest::Method::GET, "/api/pools", None).await?;
        if pools.as_array().is_none_or(Vec::is_empty) {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Err(crate::measure::api::Trouble::Wrong("the pool does not empty".into()))
}

impl Bench {
    /// `cove run` with its own data below ours.
    pub fn cove_run(&self, words: &[&str]) -> Vec<String> {
        let data = self.run_data().display().to_string();
        let own = [self.program.display().to_string(), "run".into(), "--data".into(), data, "--".into()];
        own.into_iter().chain(words.iter().map(|&word| word.to_owned())).collect()
    }
}
