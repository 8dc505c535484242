//! `cove ls`.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::quantity::show_duration;
use crate::render::{Rows, Tone, print_json, say};

/// List sandboxes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove ls
  cove ls --state running --label project=demo
  cove rm $(cove ls -q --label project=demo)")]
pub struct Arguments {
    /// Only sandboxes with this label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE")]
    label: Vec<String>,
    /// Only sandboxes in this state: running, paused, stopped, archived, failed …
    #[arg(short, long, value_name = "STATE")]
    state: Option<String>,
    /// Print ids alone, one on each line
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let listed = block_on(list(&client, arguments))?;
    if arguments.json {
        print_json(&listed)?;
        return Ok(0);
    }
    let sandboxes: Vec<Sandbox> = listed.into_iter().map(Sandbox::parse).collect::<Result<_, _>>()?;
    if arguments.quiet {
        for sandbox in &sandboxes {
            crate::render::print(&sandbox.id)?;
        }
        return Ok(0);
    }
    if sandboxes.is_empty() {
        let all = arguments.state.is_none() && arguments.label.is_empty();
        say(if all {
            "no sandboxes\nhint: cove create --name box"
        } else {
            "none of these\nhint: `cove ls` lists all"
        });
        return Ok(0);
    }
    let now = Timestamp::now();
    let mut rows = Rows::new(&["name", "id", "state", "template", "age", "ends", "labels"]);
    for sandbox in &sandboxes {
        let labels: Vec<_> = sandbox.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        rows.add(&[
            (sandbox.name.as_deref().unwrap_or("-"), Tone::Plain),
            (&sandbox.id, Tone::Faint),
            (&told_state(sandbox), sandbox.tone()),
            (&sandbox.template, Tone::Plain),
            (&between(sandbox.created_at, now), Tone::Plain),
            (&end(sandbox, now), Tone::Plain),
            (&labels.join(" "), Tone::Faint),
        ]);
    }
    rows.print()?;
    Ok(0)
}

async fn list(client: &Client, arguments: &Arguments) -> Result<Vec<Value>, Complaint> {
    let labels = arguments.label.join(",");
    let mut query: Vec<(&str, &str)> = Vec::new();
    query.extend((!labels.is_empty()).then_some(("label", labels.as_str())));
    query.extend(arguments.state.as_deref().map(|state| ("state", state)));
    fetch(client, &query).await
}

/// All pages of the list.
pub async fn fetch(client: &Client, query: &[(&str, &str)]) -> Result<Vec<Value>, Complaint> {
    #[derive(Deserialize)]
    struct Page {
        items: Vec<Value>,
        next_cursor: Option<String>,
    }
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut query = query.to_vec();
        query.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
        let page: Page = client.get(&format!("/sandboxes{}", query_string(&query))).await?;
        all.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

/// What sandboxes are called, by their ids; those without a name are not in it.
pub async fn names(client: &Client) -> Result<BTreeMap<String, String>, Complaint> {
    let all = fetch(client, &[("limit", "1000")]).await?;
    let called = |one: &Value| Some((one["id"].as_str()?.to_owned(), one["name"].as_str()?.to_owned()));
    Ok(all.iter().filter_map(called).collect())
}

/// The state, with its cause where people would ask for it.
fn told_state(sandbox: &Sandbox) -> String {
    let Sandbox { state, cause, .. } = sandbox;
    match cause.code.as_str() {
        "" | "requested" | "woken" | "pool" => state.clone(),
        _ if state == "running" => state.clone(),
        code => format!("{state} ({})", code.replace('_', " ")),
    }
}

/// Which timer ends its state, when, and why.
fn end(sandbox: &Sandbox, now: Timestamp) -> String {
    let timers = &sandbox.timers;
    let after = |from: Option<Timestamp>, seconds: Option<u64>| {
        let span = jiff::SignedDuration::from_secs(i64::try_from(seconds?).ok()?);
        from?.checked_add(span).ok()
    };
    let ends = match sandbox.state.as_str() {
        "running" => [
            timers.deadline.map(|at| (at, timers.at_deadline.as_str(), "lifetime")),
            after(sandbox.last_activity_at, timers.idle_seconds).map(|at| (at, timers.at_idle.as_str(), "if idle")),
        ],
        "stopped" | "archived" => [
            after(sandbox.state_since, timers.archive_after_seconds)
                .filter(|_| sandbox.state == "stopped")
                .map(|at| (at, "archive", "stopped")),
            after(sandbox.state_since, timers.delete_after_seconds).map(|at| (at, "destroy", sandbox.state.as_str())),
        ],
        "destroyed" => [None, None],
        _ => [timers.deadline.map(|at| (at, timers.at_deadline.as_str(), "lifetime")), None],
    };
    match ends.into_iter().flatten().min() {
        // The server looks again before it acts.
        Some((at, act, why)) if at <= now => format!("{act} now ({why})"),
        Some((at, act, why)) => format!("{act} in {} ({why})", between(now, at)),
        None => "never".to_owned(),
    }
}

/// `None` when the second is before the first.
fn between(from: Timestamp, to: Timestamp) -> String {
    match to.duration_since(from).try_into() {
        Ok(duration) => show_duration(duration),
        Err(_) => "now".to_owned(),
    }
}
