//! Stateful Python: the first cell of a fresh sandbox, and the cells after it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::super::Bench;
use super::super::contest::{Contest, milliseconds};
use super::super::ours::{set_pool, until_pool_is_full};
use super::super::peers::{Ground, run_to_end};
use crate::measure::api::{Api, Trouble, text_of};
use crate::measure::report::{Suite, Unit};

/// What an ipykernel costs to start: until it has answered its first question.
const KERNEL: &str = "
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name='python3')
client.execute_interactive('1', timeout=60)
print('ready', flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
";
/// Cells of a plain `exec()`, one a line.
const PLAIN: &str = "
import sys
space = {}
for line in sys.stdin:
    exec(line, space)
    print('done', flush=True)
";
const PYTHON: &str = "/usr/bin/python3";

pub async fn measure(bench: &Bench) -> Vec<Suite> {
    let mut first = Suite::new(
        "interpreter",
        "The first Python cell of a fresh sandbox",
        "From the call that creates a session with a fresh sandbox to the answer of its first cell, `x = 6 * 7`; cold and with a sandbox from the \
         warm pool. Beside it, without any walls: `python3 -c pass`, and an ipykernel until it has answered its first cell, where one is \
         installed. One sample of each in turn.",
    );
    let Some(server) = &bench.server else {
        bench.note_absent(&mut first);
        return vec![first];
    };
    if !std::path::Path::new(PYTHON).exists() {
        first.absent("cove", "there is no python3 in /usr, which is what sandboxes see");
        return vec![first];
    }
    let (api, rounds) = (&server.api, bench.effort.sequential);
    let mut contest: Contest<'_, Duration> = Contest::new();
    contest.add("cove, cold", rounds, move || async move { cell(api).await.map_err(|trouble| trouble.to_string()) });
    contest.add(
        "cove, pool",
        rounds,
        move || async move { from_pool(api).await.map_err(|trouble| trouble.to_string()) },
    );
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let pass = words(&[PYTHON, "-c", "pass"]);
    contest.add_blocking("python3 -c pass", rounds, move || {
        let began = Instant::now();
        run_to_end(&pass, Ground::Plain).map(|()| began.elapsed())
    });
    match kernel_python() {
        Some(python) => {
            let line = words(&[&python, "-c", KERNEL]);
            contest.add_blocking("ipykernel", bench.effort.slow_rounds, move || {
                super::super::peers::run_timed(&line, Ground::Plain).map(|timed| timed.first)
            });
        }
        None => first.absent("ipykernel", "not installed"),
    }
    contest.hold(&bench.bar, "first cells").await;
    contest.tell(&mut first, "Milliseconds to the first cell's answer, every sample", |took| *took);
    first.compare_to(&["python3 -c pass"]);
    vec![first, later(bench, api).await]
}

async fn session(api: &Api) -> Result<(String, String), Trouble> {
    let sandbox = json!({ "timers": { "lifetime_seconds": 3600, "ephemeral": true } });
    let made = api.call(Method::POST, "/api/sessions", Some(json!({ "sandbox": sandbox }))).await?;
    Ok((text_of(&made, "session_id")?, text_of(&made, "sandbox_id")?))
}

async fn execute(api: &Api, session: &str, code: &str) -> Result<(), Trouble> {
    let body = json!({ "session_id": session, "code": code });
    let done = api.call(Method::POST, "/api/execute", Some(body)).await?;
    if done["exit_code"].as_i64() == Some(0) { Ok(()) } else { Err(Trouble::Wrong(done.to_string())) }
}

async fn cell(api: &Api) -> Result<Duration, Trouble> {
    let began = Instant::now();
    let (session, sandbox) = session(api).await?;
    let done = execute(api, &session, "x = 6 * 7").await;
    let took = began.elapsed();
    api.call(Method::DELETE, &format!("/api/sessions/{session}"), None).await?;
    match api.delete(&sandbox).await {
        // Gone with its session.
        Ok(()) | Err(Trouble::Refused { status: 404, .. }) => done.map(|()| took),
        Err(trouble) => Err(trouble),
    }
}

/// The pool is there for one turn only: the cold ones must be cold.
async fn from_pool(api: &Api) -> Result<Duration, Trouble> {
    set_pool(api, 1).await?;
    until_pool_is_full(api).await?;
    let took = cell(api).await;
    set_pool(api, 0).await?;
    super::cold::until_pool_is_empty(api).await?;
    took
}

/// Many cells of one context, beside a plain `exec()` in a process that is spoken to over a pipe.
async fn later(bench: &Bench, api: &Api) -> Suite {
    let count = if bench.effort.rounds >= 100 { 1000 } else { 200 };
    let mut suite = Suite::new(
        "cells",
        "The cells after it",
        &format!(
            "{count} cells `x += 1` in one context over HTTP, and as many through a plain `exec()` in a python3 over a pipe. The last tenth is a \
                  row of its own: cells must not become slower."
        ),
    );
    bench.bar.set_message("cells");
    bench.bar.set_length(count as u64);
    let ours = async {
        let (session, _) = session(api).await?;
        execute(api, &session, "x = 0").await?;
        let mut samples = Vec::new();
        for number in 0..count {
            let began = Instant::now();
            execute(api, &session, "x += 1").await?;
            samples.push(milliseconds(began.elapsed()));
            bench.bar.set_position(number as u64);
        }
        api.call(Method::DELETE, &format!("/api/sessions/{session}"), None).await?;
        Ok::<_, Trouble>(samples)
    };
    match ours.await {
        Ok(samples) => {
            suite.row("cove, all", Unit::Milliseconds, &samples);
            suite.row("cove, the last tenth", Unit::Milliseconds, &samples[samples.len() * 9 / 10..]);
        }
        Err(trouble) => suite.absent("cove", trouble.to_string()),
    }
    match tokio::task::block_in_place(|| plain(count)) {
        Ok(samples) => suite.row("plain exec()", Unit::Milliseconds, &samples),
        Err(error) => suite.absent("plain exec()", error.to_string()),
    }
    suite.compare_to(&["plain exec()"]);
    suite
}

fn plain(count: usize) -> std::io::Result<Vec<f64>> {
    let mut child = Command::new(PYTHON).args(["-c", PLAIN]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Ok(Vec::new()) };
    let (mut output, mut line, mut samples) = (BufReader::new(output), String::new(), Vec::new());
    input.write_all(b"x = 0\n")?;
    output.read_line(&mut line)?;
    for _ in 0..count {
        let began = Instant::now();
        input.write_all(b"x += 1\n")?;
        output.read_line(&mut line)?;
        samples.push(milliseconds(began.elapsed()));
    }
    drop(input);
    child.wait()?;
    Ok(samples)
}

/// A python3 that can start a kernel.
fn kernel_python() -> Option<String> {
    let able = |python: &&str| {
        let mut look = Command::new(python);
        look.args(["-c", "import ipykernel, jupyter_client"]).stdin(Stdio::null()).stderr(Stdio::null());
        look.status().is_ok_and(|status| status.success())
    };
    let named = std::env::var("COVE_BENCH_KERNEL_PYTHON").ok();
    let candidates = [named.as_deref().unwrap_or(PYTHON), PYTHON, "python3"];
    candidates.into_iter().find(able).map(str::to_owned)
}
