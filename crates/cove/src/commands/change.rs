//! Shared by verbs that change sandboxes: the state of each named one, or a setting of one.

use clap::Args;
use jiff::Timestamp;
use reqwest::Method;
use serde_json::{Map, Value};

use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::{Complaint, code};
use crate::progress::waiting;
use crate::render::{print, print_json, say};

#[derive(Debug, Args)]
pub struct Targets {
    /// Names or ids
    #[arg(value_name = "SANDBOX", required = true, add = crate::complete::sandboxes())]
    pub sandboxes: Vec<String>,
    /// Print JSON, one object on each line
    #[arg(long)]
    pub json: bool,
}

/// One sandbox, and the form of the answer.
#[derive(Debug, Args)]
pub struct Target {
    /// Its name or id
    #[arg(value_name = "SANDBOX", add = crate::complete::sandboxes())]
    pub sandbox: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl Target {
    /// Changes one setting and shows the changed sandbox.
    pub fn set(
        &self,
        method: Method,
        setting: &str,
        body: &Value,
        line: impl FnOnce(&Sandbox) -> String,
    ) -> Result<u8, Complaint> {
        let client = Client::from_environment()?;
        let changed = block_on(client.set(&self.sandbox, method, setting, body))?;
        match self.json {
            true => print_json(&changed)?,
            false => print(&line(&Sandbox::parse(changed)?))?,
        }
        Ok(0)
    }
}

/// The fields that were given; `None` where none was.
pub fn object_of<const N: usize>(fields: [(&str, Option<Value>); N]) -> Option<Value> {
    let fields: Map<_, _> = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

/// The last part of the API's path, which is the verb's name.
pub struct Change {
    pub verb: &'static str,
}

/// Whether a pause or a stop writes a manifest of the files.
#[derive(Debug, Args)]
pub struct Durability {
    /// Write out all files and a manifest of them, which `cove fsck` compares them with later
    #[arg(long, conflicts_with = "not_durable")]
    durable: bool,
    /// Write none, whatever the server's default is
    #[arg(long)]
    not_durable: bool,
}

impl Durability {
    /// What the call is told; nothing where the server's default is fine.
    pub fn asked(&self) -> Value {
        object_of([("durable", (self.durable || self.not_durable).then_some(Value::Bool(self.durable)))])
            .unwrap_or_else(|| Value::Object(Map::new()))
    }
}

/// Prints each name that was changed. Continues after a refusal; the exit code reports it at the end.
pub fn run(targets: &Targets, change: Change) -> Result<u8, Complaint> {
    run_with(targets, change, &Value::Object(Map::new()))
}

/// The same, with what the call is told.
pub fn run_with(targets: &Targets, change: Change, how: &Value) -> Result<u8, Complaint> {
    each(&targets.sandboxes, async |client, sandbox| {
        let waits = format!("{} {sandbox}", change.verb);
        let changed = waiting(&waits, client.change(sandbox, change.verb, how)).await?;
        if targets.json {
            return print(&changed.to_string());
        }
        let changed = Sandbox::parse(changed)?;
        print(&format!("{} {}", changed.called(), changed.state))?;
        if let Some(told) = lifetime_over(&changed, Timestamp::now()) {
            say(&told);
        }
        Ok(())
    })
}

/// What runs again after its lifetime was over is put away again at once.
fn lifetime_over(sandbox: &Sandbox, now: Timestamp) -> Option<String> {
    sandbox.timers.deadline.filter(|at| sandbox.state == "running" && *at <= now)?;
    let act = match sandbox.timers.at_deadline.as_str() {
        "pause" => "paused",
        "stop" => "stopped",
        _ => "destroyed",
    };
    let name = sandbox.called();
    Some(format!("cove: its lifetime is over, so it is {act} again at once\nhint: cove extend {name} TIME, or never"))
}

/// Runs `work` for each. With a single sandbox, its complaint is the verb's.
pub fn each(sandboxes: &[String], work: impl AsyncFn(&Client, &str) -> Result<(), Complaint>) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(each_of(&client, sandboxes, work))
}

/// The same for other things that are named, for verbs that have a client.
pub async fn each_of(
    client: &Client,
    names: &[String],
    work: impl AsyncFn(&Client, &str) -> Result<(), Complaint>,
) -> Result<u8, Complaint> {
    if let [name] = names {
        return work(client, name).await.map(|()| 0);
    }
    let mut code = 0;
    for name in names {
        if let Err(complaint) = work(client, name).await {
            if complaint.is_silent() {
                return Err(complaint);
            }
            say(&complaint.to_string());
            code = code::FAILED;
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_lifetime_that_is_over_is_told() {
        let told = |state: &str, deadline: Value| {
            let sandbox = json!({
                "id": "x", "name": "box", "state": state, "created_at": "2026-01-01T00:00:00Z",
                "timers": { "deadline": deadline, "at_deadline": "pause" },
            });
            lifetime_over(&Sandbox::parse(sandbox).unwrap(), "2026-01-01T01:00:00Z".parse().unwrap())
        };
        let said = told("running", json!("2026-01-01T00:30:00Z")).unwrap();
        assert!(said.contains("paused again") && said.ends_with("hint: cove extend box TIME, or never"), "{said}");
        assert_eq!(told("running", json!("2026-01-01T02:00:00Z")), None);
        assert_eq!(told("running", Value::Null), None);
        assert_eq!(told("paused", json!("2026-01-01T00:30:00Z")), None);
    }
}
