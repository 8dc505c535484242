//! `cove ls`.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::create::parse_pair;
use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::quantity::show_duration;
use crate::render::{Rows, Tone, print_json, say};

const STATES: [&str; 14] = [
    "running",
    "paused",
    "stopped",
    "archived",
    "failed",
    "creating",
    "starting",
    "pausing",
    "resuming",
    "stopping",
    "archiving",
    "restoring",
    "destroying",
    "destroyed",
];

/// List sandboxes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove ls
  cove ls --state running --label project=demo
  cove rm $(cove ls -q --label project=demo)")]
pub struct Arguments {
    /// Only sandboxes with this label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// Only sandboxes in this state: running, paused, stopped, archived, failed …; can be repeated
    #[arg(short, long, value_name = "STATE", value_delimiter = ',', hide_possible_values = true, value_parser = STATES)]
    state: Vec<String>,
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
        let all = arguments.state.is_empty() && arguments.label.is_empty();
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
    let labels: Vec<_> = arguments.label.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (labels, states) = (labels.join(","), arguments.state.join(","));
    let mut query: Vec<(&str, &str)> = Vec::new();
    query.extend((!labels.is_empty()).then_some(("label", labels.as_str())));
    query.extend((!states.is_empty()).then_some(("state", states.as_str())));
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
    let state = sandbox.state.as_str();
    if matches!(state, "destroying" | "destroyed") {
        return "never".to_owned();
    }
    let rests = matches!(state, "stopped" | "archived" | "failed");
    // A lifetime that pauses or stops does nothing to what is paused or stopped.
    let lifetime_acts = match timers.at_deadline.as_str() {
        "pause" => !rests && state != "paused",
        "stop" => !rests,
        _ => true,
    };
    let ends = [
        timers.deadline.filter(|_| lifetime_acts).map(|at| (at, timers.at_deadline.as_str(), "lifetime")),
        after(sandbox.last_activity_at, timers.idle_seconds)
            .filter(|_| state == "running")
            .map(|at| (at, timers.at_idle.as_str(), "if idle")),
        after(sandbox.state_since, timers.archive_after_seconds)
            .filter(|_| state == "stopped")
            .map(|at| (at, "archive", "stopped")),
        after(sandbox.state_since, timers.delete_after_seconds).filter(|_| rests).map(|at| (at, "destroy", state)),
    ];
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_ends_a_sandbox_is_told_as_the_server_does_it() {
        let told = |state: &str, timers: Value| {
            let sandbox = json!({
                "id": "x", "name": null, "state": state, "created_at": "2026-01-01T00:00:00Z",
                "state_since": "2026-01-01T00:00:00Z", "last_activity_at": "2026-01-01T00:00:00Z", "timers": timers,
            });
            end(&Sandbox::parse(sandbox).unwrap(), "2026-01-01T01:00:00Z".parse().unwrap())
        };
        let lifetime = |at: &str, act: &str| json!({ "deadline": at, "at_deadline": act });
        let (past, coming) = ("2026-01-01T00:30:00Z", "2026-01-01T02:00:00Z");
        // It has paused it, or stopped it: that was all.
        assert_eq!(told("paused", lifetime(past, "pause")), "never");
        assert_eq!(told("stopped", lifetime(past, "stop")), "never");
        assert_eq!(told("paused", lifetime(coming, "stop")), "stop in 1h (lifetime)");
        assert_eq!(told("running", lifetime(coming, "pause")), "pause in 1h (lifetime)");
        // Whatever state it is in.
        assert_eq!(told("stopped", lifetime(coming, "destroy")), "destroy in 1h (lifetime)");
        assert_eq!(told("failed", json!({ "delete_after_seconds": 7200 })), "destroy in 1h (failed)");
        assert_eq!(told("archived", json!({ "archive_after_seconds": 7200, "idle_seconds": 7200 })), "never");
        assert_eq!(told("destroyed", lifetime(coming, "destroy")), "never");
    }
}
