//! `cove orgs`: organisations and their maxima.

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use super::change::object_of;
use crate::client::{Client, block_on, segment};
use crate::complaint::Complaint;
use crate::quantity::{parse_cpus, parse_size, show_size};
use crate::render::{List, Rows, Tone, moment, number, print, print_json, say, word};

/// Make organisations, see what they have, and set their quotas
///
/// Everything belongs to one organisation, and its keys do not see what others have. Operators make organisations and
/// set quotas.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove orgs create acme --name 'Acme Ltd.'
  cove keys create ci --organisation acme
  cove orgs quota acme --running 50 --memory 4G
  cove orgs ls")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List the organisations that your key may see
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Make an organisation
    Create {
        /// Its id: a short word, which cannot be changed later
        id: String,
        /// Its name, for people
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show or change an organisation's quota
    Quota(Box<Quota>),
}

#[derive(Debug, Args)]
struct Quota {
    /// The organisation; `cove whoami` shows yours
    id: String,
    /// Sandboxes that run at one time
    #[arg(long, value_name = "N")]
    running: Option<u64>,
    /// Sandboxes in all, stopped ones too
    #[arg(long, value_name = "N")]
    sandboxes: Option<u64>,
    /// Processors of one sandbox
    #[arg(long, value_name = "N", value_parser = parse_cpus)]
    cpus: Option<f64>,
    /// Memory of one sandbox
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Disk of one sandbox
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disk: Option<u64>,
    /// Disks of all sandboxes together, by their limits
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    disks: Option<u64>,
    /// Templates, snapshots and volumes together
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    storage: Option<u64>,
    /// Processes and threads of one sandbox
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Journals and artifacts of all sessions together
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    sessions: Option<u64>,
    /// Requests a second with one key
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
    /// Requests a second with all its keys together
    #[arg(long, value_name = "N")]
    all_requests: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Quota {
    fn named(&self) -> Option<Value> {
        object_of([
            ("running_sandboxes", self.running.map(|n| json!(n))),
            ("sandboxes", self.sandboxes.map(|n| json!(n))),
            ("cpus_per_sandbox", self.cpus.map(|n| json!(n))),
            ("memory_per_sandbox", self.memory.map(|n| json!(n))),
            ("disk_per_sandbox", self.disk.map(|n| json!(n))),
            ("disk_bytes", self.disks.map(|n| json!(n))),
            ("storage_bytes", self.storage.map(|n| json!(n))),
            ("pids_per_sandbox", self.pids.map(|n| json!(n))),
            ("session_bytes", self.sessions.map(|n| json!(n))),
            ("requests_per_second", self.requests.map(|n| json!(n))),
            ("organisation_requests_per_second", self.all_requests.map(|n| json!(n))),
        ])
    }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Ls { json } => {
                let all: Vec<Value> = client.get("/organisations").await?;
                let headings = ["id", "name", "running", "of", "sandboxes", "of", "created"];
                List { headings, empty: "no organisations" }.show(&all, *json, |one| {
                    let quota = &one["quota"];
                    [
                        (word(one, "id").to_owned(), Tone::Plain),
                        (word(one, "name").to_owned(), Tone::Plain),
                        (number(one, "running_sandboxes"), Tone::Plain),
                        (number(quota, "running_sandboxes"), Tone::Faint),
                        (number(one, "sandboxes"), Tone::Plain),
                        (number(quota, "sandboxes"), Tone::Faint),
                        (moment(one, "created_at"), Tone::Plain),
                    ]
                })
            }
            Act::Create { id, name, json } => {
                let made: Value = client.post("/organisations", &json!({ "id": id, "name": name })).await?;
                match json {
                    true => print_json(&made)?,
                    false => print(word(&made, "id"))?,
                }
                say(&format!("hint: cove keys create NAME --organisation {id}"));
                Ok(0)
            }
            Act::Quota(quota) => change_quota(&client, quota).await,
        }
    })
}

/// The API replaces the whole quota: values that are not given keep their current number.
async fn change_quota(client: &Client, quota: &Quota) -> Result<u8, Complaint> {
    let path = format!("/organisations/{}", segment(&quota.id));
    let mut one: Value = client.get(&path).await?;
    if let Some(Value::Object(named)) = quota.named() {
        if let Value::Object(counts) = &mut one["quota"] {
            counts.extend(named);
        }
        let request = client.request(Method::PUT, &format!("{path}/quota")).json(&one["quota"]);
        let _: Value = client.read(client.send(request).await?).await?;
        one = client.get(&path).await?;
    }
    let counts = &one["quota"];
    if quota.json {
        print_json(counts)?;
        return Ok(0);
    }
    let size = |name: &str| counts[name].as_u64().map_or("-".to_owned(), show_size);
    let mut rows = Rows::new(&["what", "maximum", "has"]);
    let mut row = |what: &str, most: String, has: String| {
        rows.add(&[(what, Tone::Plain), (&most, Tone::Plain), (&has, Tone::Faint)]);
    };
    row("running sandboxes", number(counts, "running_sandboxes"), number(&one, "running_sandboxes"));
    row("sandboxes", number(counts, "sandboxes"), number(&one, "sandboxes"));
    row("cpus of one sandbox", number(counts, "cpus_per_sandbox"), String::new());
    row("memory of one sandbox", size("memory_per_sandbox"), String::new());
    row("disk of one sandbox", size("disk_per_sandbox"), String::new());
    row("disks of all sandboxes", size("disk_bytes"), one["disk_bytes"].as_u64().map_or(String::new(), show_size));
    row("templates, snapshots and volumes", size("storage_bytes"), String::new());
    row("processes of one sandbox", number(counts, "pids_per_sandbox"), String::new());
    row("journals and artifacts of sessions", size("session_bytes"), String::new());
    row("requests a second with one key", number(counts, "requests_per_second"), String::new());
    row("requests a second with all keys", number(counts, "organisation_requests_per_second"), String::new());
    rows.print()?;
    Ok(0)
}
