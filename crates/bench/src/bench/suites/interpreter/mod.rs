//! Stateful Python: the first cell of a fresh sandbox, the cells after it, and many contexts in one sandbox.

mod cells;
mod contexts;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::super::Bench;
use super::super::contest::Contest;
use super::super::ours::{BASE, set_pool_of, until_pool_is_full};
use super::super::peers::{Ground, run_to_end};
use crate::measure::api::{Api, Trouble, text_of};
use crate::measure::report::Suite;

/// What an ipykernel costs to start: until it has answered its first cell, in milliseconds. What its client imports is not counted.
const KERNEL: &str = "
import time
from jupyter_client.manager import start_new_kernel
began = time.perf_counter()
manager, client = start_new_kernel(kernel_name='python3')
client.execute_interactive('x = 6 * 7', timeout=60, output_hook=lambda message: None)
print((time.perf_counter() - began) * 1000)
client.stop_channels()
manager.shutdown_kernel(now=True)
";
/// The template with IPython, numpy and pandas, where one is built.
const BUILT: &str = "code-interpreter";
const PYTHON: &str = "/usr/bin/python3";

pub async fn measure(bench: &Bench) -> Vec<Suite> {
    let mut first = Suite::new(
        "interpreter",
        "The first Python cell of a fresh sandbox",
        "From the call that creates a session with a fresh sandbox to the answer of its first cell, `x = 6 * 7`; cold and with a sandbox from the \
         warm pool. `code-interpreter` has IPython, and from the pool numpy, pandas and matplotlib imported; the others are of `base`. Beside it, without any \
         walls and on the same /usr: `python3 -c pass`, and an ipykernel until it has answered its first cell. One sample of each in turn.",
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
    let mut templates = vec![("cove", BASE)];
    match api.call(Method::GET, &format!("/api/templates/{BUILT}"), None).await {
        Ok(told) if told["note"].is_null() => templates.push((BUILT, BUILT)),
        Ok(told) => first.absent(BUILT, told["note"].as_str().unwrap_or("not built")),
        Err(trouble) => first.absent(BUILT, trouble.to_string()),
    }
    for (who, template) in templates.iter().copied() {
        contest.add(&format!("{who}, cold"), rounds, move || async move {
            first_cell(api, template).await.map_err(|trouble| trouble.to_string())
        });
        contest.add(&format!("{who}, pool"), rounds, move || async move {
            from_pool(api, template).await.map_err(|trouble| trouble.to_string())
        });
    }
    let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
    let pass = words(&[PYTHON, "-c", "pass"]);
    contest.add_blocking("python3 -c pass", rounds, move || {
        let began = Instant::now();
        run_to_end(&pass, Ground::Plain).map(|()| began.elapsed())
    });
    match kernel_python() {
        Some(python) => {
            contest.add_blocking("ipykernel", bench.effort.slow_rounds, move || kernel(&python));
        }
        None => first.absent("ipykernel", "not installed"),
    }
    contest.hold(&bench.bar, "first cells").await;
    contest.tell(&mut first, "Milliseconds to the first cell's answer, every sample", |took| *took);
    first.compare_to(&["python3 -c pass"]);
    let template = templates.last().map_or(BASE, |(_, template)| template);
    vec![first, cells::measure(bench, api, template).await, contexts::measure(bench, api, template).await]
}

async fn session(api: &Api, template: &str) -> Result<(String, String), Trouble> {
    let sandbox = json!({ "timers": { "lifetime_seconds": 3600, "ephemeral": true } });
    let made =
        api.call(Method::POST, "/api/sessions", Some(json!({ "environment": template, "sandbox": sandbox }))).await?;
    Ok((text_of(&made, "session_id")?, text_of(&made, "sandbox_id")?))
}

/// What the cell printed.
async fn execute(api: &Api, session: &str, code: &str) -> Result<String, Trouble> {
    let body = json!({ "session_id": session, "code": code });
    let done = api.call(Method::POST, "/api/execute", Some(body)).await?;
    if done["exit_code"].as_i64() == Some(0) { text_of(&done, "stdout") } else { Err(Trouble::Wrong(done.to_string())) }
}

async fn first_cell(api: &Api, template: &str) -> Result<Duration, Trouble> {
    let began = Instant::now();
    let (session, sandbox) = session(api, template).await?;
    let done = execute(api, &session, "x = 6 * 7").await;
    let took = began.elapsed();
    api.call(Method::DELETE, &format!("/api/sessions/{session}"), None).await?;
    match api.delete(&sandbox).await {
        // Gone with its session.
        Ok(()) | Err(Trouble::Refused { status: 404, .. }) => done.map(|_| took),
        Err(trouble) => Err(trouble),
    }
}

/// The pool is there for one turn only: the cold ones must be cold.
async fn from_pool(api: &Api, template: &str) -> Result<Duration, Trouble> {
    set_pool_of(api, template, 1).await?;
    until_pool_is_full(api).await?;
    let took = first_cell(api, template).await;
    set_pool_of(api, template, 0).await?;
    super::cold::until_pool_is_empty(api).await?;
    took
}

fn kernel(python: &str) -> Result<Duration, String> {
    let told =
        Command::new(python).args(["-c", KERNEL]).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&told.stdout);
    let took = text.trim().parse::<f64>().map_err(|_| String::from_utf8_lossy(&told.stderr).trim().to_owned())?;
    Ok(Duration::from_secs_f64(took / 1000.0))
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
