//! What a person waits for who uses the E2B SDK for Python: create, run, kill.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::super::Bench;
use super::super::ours::{set_pool, until_pool_is_full};
use crate::measure::report::{Suite, Unit};

const SCRIPT: &str = include_str!("../../../../../bench/e2b_sdk.py");
const POOL: u32 = 8;

pub async fn measure(bench: &Bench) -> Suite {
    let mut suite = Suite::new(
        "sdk",
        "The E2B SDK for Python",
        "`Sandbox.create()`, `commands.run(\"echo hi\")` and `kill()` through the unmodified package `e2b`, each alone and all three; cold and \
         from a warm pool.",
    );
    let Some(server) = &bench.server else {
        bench.note_absent(&mut suite);
        return suite;
    };
    let Some(python) = find_python() else {
        suite.absent("e2b", "no python3 here has the package `e2b`");
        return suite;
    };
    let rounds = bench.effort.sequential;
    for label in ["cold", "pool"] {
        bench.bar.set_message(format!("E2B SDK, {label}"));
        if label == "pool" {
            let ready = async {
                set_pool(&server.api, POOL).await?;
                until_pool_is_full(&server.api).await
            };
            if let Err(trouble) = ready.await {
                suite.absent("pool", trouble.to_string());
                return suite;
            }
        }
        let (python, url, key) = (python.clone(), server.api.url.clone(), server.api.key.clone());
        let told = tokio::task::spawn_blocking(move || run(&python, &url, &key, rounds, label)).await;
        match told.map_err(|error| error.to_string()).and_then(|told| told) {
            Ok(told) => rows(&mut suite, label, &told),
            Err(why) => suite.absent(label, why),
        }
    }
    suite.compare_to(&["cove, whole, cold"]);
    // Also removed at the end, should this fail.
    drop(set_pool(&server.api, 0).await);
    suite
}

fn rows(suite: &mut Suite, label: &str, told: &Value) {
    for step in ["create", "run", "kill", "whole"] {
        let values: Vec<f64> = told[step].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        suite.row(&format!("cove, {step}, {label}"), Unit::Milliseconds, &values);
    }
}

fn run(python: &Path, url: &str, key: &str, rounds: usize, label: &str) -> Result<Value, String> {
    let mut command = Command::new(python);
    command.args(["-c", SCRIPT, &rounds.to_string(), label]).stdin(Stdio::null());
    command
        .env("E2B_API_URL", format!("{url}/e2b"))
        .env("E2B_SANDBOX_URL", format!("{url}/e2b"))
        .env("E2B_API_KEY", key);
    let done = command.output().map_err(|error| error.to_string())?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(said.lines().last().unwrap_or("it failed").to_owned());
    }
    serde_json::from_slice(&done.stdout).map_err(|error| error.to_string())
}

/// One that has the package: the tests' own, else the machine's.
fn find_python() -> Option<PathBuf> {
    let cache = std::env::var_os("COVE_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/cove")));
    let kept = cache.into_iter().filter_map(|cache| std::fs::read_dir(cache.join("e2b")).ok()).flatten().flatten();
    let mut candidates: Vec<PathBuf> = kept.map(|entry| entry.path().join("bin/python")).collect();
    candidates.sort();
    candidates.push("python3".into());
    candidates.into_iter().rev().find(|python| {
        let look = Command::new(python).args(["-c", "import e2b"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        look.is_ok_and(|status| status.success())
    })
}
