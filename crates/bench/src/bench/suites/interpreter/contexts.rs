//! Many contexts in one sandbox, as E2B's clients make them.

use std::time::Instant;

use futures::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::super::Bench;
use super::super::super::contest::milliseconds;
use super::{execute, session};
use crate::measure::api::{Api, Trouble, lost, text_of};
use crate::measure::report::{Suite, Unit};

const COUNT: usize = 100;
const AT_ONCE: usize = 16;
const MIB: f64 = 1024.0 * 1024.0;

/// What a context has for itself: KiB of pages that no other process shares, as the kernel counts them.
const PRIVATE: &str =
    "print(sum(int(line.split()[1]) for line in open('/proc/self/smaps_rollup') if line.startswith('Private_')))";

pub async fn measure(bench: &Bench, api: &Api, template: &str) -> Suite {
    let mut suite = Suite::new(
        "contexts",
        "Many contexts at once",
        &format!(
            "{COUNT} Python contexts in one sandbox of `{template}` over E2B's dialect, {AT_ONCE} callers at a time: each context is created and runs its \
             first cell. Memory is what the sandbox's control group has more afterwards, divided by the contexts; and the pages of a context that \
             no other process shares."
        ),
    );
    bench.bar.set_message("contexts");
    match contexts(bench, api, template).await {
        Ok(Measured { each, all, memory, private }) => {
            suite.row("a context and its first cell", Unit::Milliseconds, &each);
            suite.row("all of them", Unit::Milliseconds, &[all]);
            suite.row("memory per context", Unit::Mebibytes, &[memory]);
            suite.row("private pages of a context", Unit::Mebibytes, &[private]);
        }
        Err(trouble) => suite.absent("cove", trouble.to_string()),
    }
    suite
}

struct Measured {
    each: Vec<f64>,
    all: f64,
    memory: f64,
    private: f64,
}

async fn contexts(bench: &Bench, api: &Api, template: &str) -> Result<Measured, Trouble> {
    let made =
        api.call(Method::POST, "/e2b/sandboxes", Some(json!({ "templateID": template, "timeout": 600 }))).await?;
    let inside = Inside { api, sandbox: text_of(&made, "sandboxID")?, token: text_of(&made, "envdAccessToken")? };
    let measured = inside.measure(bench).await;
    api.delete(&inside.sandbox).await?;
    let (each, all, memory) = measured?;
    let (session, _) = session(api, template).await?;
    let private = execute(api, &session, PRIVATE).await;
    api.call(Method::DELETE, &format!("/api/sessions/{session}"), None).await?;
    let private: f64 = private?.trim().parse().map_err(|_| Trouble::Wrong("no count of private pages".into()))?;
    Ok(Measured { each, all, memory, private: private / 1024.0 })
}

/// A sandbox's code interpreter as E2B's clients reach it.
struct Inside<'a> {
    api: &'a Api,
    sandbox: String,
    token: String,
}

impl Inside<'_> {
    async fn ask(&self, path: &str, body: Value) -> Result<String, Trouble> {
        let request = self.api.request(Method::POST, &format!("/e2b{path}")).json(&body);
        let request = request.header("E2b-Sandbox-Id", &self.sandbox).header("E2b-Sandbox-Port", "49999");
        let answer = self.api.send(request.header("X-Access-Token", &self.token)).await?;
        answer.text().await.map_err(lost)
    }

    async fn memory(&self) -> Result<f64, Trouble> {
        let used = self.api.call(Method::GET, &format!("/api/sandboxes/{}/metrics", self.sandbox), None).await?;
        let last = used.as_array().and_then(|all| all.last()?["memory"].as_f64());
        last.ok_or_else(|| Trouble::Wrong(format!("the metrics have no memory: {used}")))
    }

    async fn context(&self) -> Result<f64, Trouble> {
        let began = Instant::now();
        let made = self.ask("/contexts", json!({ "language": "python" })).await?;
        let made: Value = serde_json::from_str(&made).map_err(|error| Trouble::Wrong(error.to_string()))?;
        let said = self.ask("/execute", json!({ "context_id": text_of(&made, "id")?, "code": "6 * 7" })).await?;
        if said.contains("\"42\"") { Ok(milliseconds(began.elapsed())) } else { Err(Trouble::Wrong(said)) }
    }

    /// Milliseconds of each, of all, and MiB for each.
    async fn measure(&self, bench: &Bench) -> Result<(Vec<f64>, f64, f64), Trouble> {
        bench.bar.set_length(COUNT as u64);
        // The zygote is there before anything is counted.
        self.context().await?;
        let before = self.memory().await?;
        let began = Instant::now();
        let each = futures::stream::iter(0..COUNT).map(|number| async move {
            let took = self.context().await;
            bench.bar.set_position(number as u64);
            took
        });
        let each: Vec<_> = each.buffer_unordered(AT_ONCE).collect().await;
        let all = milliseconds(began.elapsed());
        let each: Vec<f64> = each.into_iter().collect::<Result<_, _>>()?;
        let more = self.memory().await? - before;
        Ok((each, all, more / COUNT as f64 / MIB))
    }
}
