//! `cove upkeep`: one act on many sandboxes.

use std::io::{self, BufRead, IsTerminal, Write};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::create::parse_pair;
use crate::client::{Client, block_on, segment};
use crate::complaint::{Complaint, code, doing};
use crate::progress::Far;
use crate::render::{Rows, Tone, print, print_json, say, word};

/// How often it is asked how far the server is.
const LOOK: Duration = Duration::from_millis(250);

/// Stop, archive or remove many sandboxes, or find what nobody owns
///
/// First it is tried: what would be done is listed, and on a terminal you are asked. Without one, --yes does it. The work
/// goes on in the background, one at a time for an organisation, also when this command or the server ends.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove upkeep archive --idle-days 30 --dry-run
  cove upkeep archive --idle-days 30 --yes
  cove upkeep stop --label team=data --yes
  cove upkeep destroy --owner ada --yes
  cove upkeep orphans --dry-run
  cove upkeep show ID")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// End processes; files stay
    Stop(Work),
    /// Put files into the object store; stops what runs first
    Archive(Work),
    /// Remove sandboxes with their files
    Destroy(Work),
    /// Find what providers have and the database does not know; for operators
    Orphans(Work),
    /// Show upkeep that was begun before
    Show {
        /// Its id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
struct Work {
    /// Only those that were not used for so many days
    #[arg(long, value_name = "DAYS")]
    idle_days: Option<u32>,
    /// Only those that were made so many days ago, or longer
    #[arg(long, value_name = "DAYS")]
    age_days: Option<u32>,
    /// Only this owner's
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// Only those with this label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// Only those of this template
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Only those whose name begins with this
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,
    /// Only those at this provider
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Only those in this state; can be repeated
    #[arg(short, long, value_name = "STATE")]
    state: Vec<String>,
    /// All of the organisation
    #[arg(long)]
    all: bool,
    /// Only list what would be done
    #[arg(long, conflicts_with = "yes")]
    dry_run: bool,
    /// Do it without asking
    #[arg(long, short)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let (act, work) = match &arguments.act {
        Act::Stop(work) => ("stop", work),
        Act::Archive(work) => ("archive", work),
        Act::Destroy(work) => ("destroy", work),
        Act::Orphans(work) => ("orphans", work),
        Act::Show { id, json } => {
            let upkeep: Value = block_on(client.get(&format!("/upkeep/{}", segment(id))))?;
            return tell(&upkeep, *json);
        }
    };
    if work.yes {
        return tell(&block_on(ended(&client, &work.body(act, false)))?, work.json);
    }
    let tried = block_on(ended(&client, &work.body(act, true)))?;
    let found = tried["progress"]["found"].as_u64().unwrap_or(0);
    let asks = !work.dry_run && !work.json && found > 0 && io::stdin().is_terminal();
    let code = tell(&tried, work.json)?;
    if !asks {
        if !work.dry_run && found > 0 {
            say("hint: nothing was done; --yes does it");
        }
        return Ok(code);
    }
    confirm(act, found)?;
    tell(&block_on(ended(&client, &work.body(act, false)))?, work.json)
}

impl Work {
    fn body(&self, act: &str, dry_run: bool) -> Value {
        let mut body = Map::new();
        body.insert("act".into(), json!(act));
        body.insert("dry_run".into(), json!(dry_run));
        let numbers = [("idle_days", self.idle_days), ("age_days", self.age_days)];
        body.extend(numbers.into_iter().filter_map(|(name, days)| Some((name.to_owned(), json!(days?)))));
        let words =
            [("owner", &self.owner), ("template", &self.template), ("name", &self.name), ("provider", &self.provider)];
        body.extend(words.into_iter().filter_map(|(name, word)| Some((name.to_owned(), json!(word.as_ref()?)))));
        if !self.label.is_empty() {
            body.insert("labels".into(), self.label.iter().map(|(name, value)| (name.clone(), json!(value))).collect());
        }
        if !self.state.is_empty() {
            body.insert("states".into(), json!(self.state));
        }
        if self.all {
            body.insert("all".into(), json!(true));
        }
        Value::Object(body)
    }
}

async fn ended(client: &Client, body: &Value) -> Result<Value, Complaint> {
    let mut upkeep: Value = client.post("/upkeep", body).await?;
    let id = word(&upkeep, "id").to_owned();
    let path = format!("/upkeep/{}", segment(&id));
    let far = Far::new("upkeep");
    while !matches!(word(&upkeep, "state"), "done" | "failed") {
        tokio::time::sleep(LOOK).await;
        upkeep = client
            .get(&path)
            .await
            .map_err(|complaint| complaint.hint(format!("it goes on: cove upkeep show {id}")))?;
        let number = |name: &str| upkeep["progress"][name].as_u64().unwrap_or(0);
        far.tell(&format!(
            "{} looked at, {} found, {} done, {} failed",
            number("looked_at"),
            number("found"),
            number("done"),
            number("failed")
        ));
    }
    Ok(upkeep)
}

fn confirm(act: &str, found: u64) -> Result<(), Complaint> {
    let mut stderr = io::stderr().lock();
    write!(stderr, "{act} {found} of them? [y/N] ")?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(doing("read the answer"))?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Complaint::failed("nothing was done")),
    }
}

/// The report; code 1 where something failed.
fn tell(upkeep: &Value, as_json: bool) -> Result<u8, Complaint> {
    let failed = upkeep["progress"]["failed"].as_u64().unwrap_or(0);
    let result = if failed > 0 || word(upkeep, "state") == "failed" { code::FAILED } else { 0 };
    if as_json {
        print_json(upkeep)?;
        return Ok(result);
    }
    let items: Vec<&Value> = upkeep["items"].as_array().into_iter().flatten().collect();
    if !items.is_empty() {
        let mut rows = Rows::new(&["sandbox", "name", "provider", "", "why"]);
        for item in &items {
            let (outcome, tone) = match word(item, "outcome") {
                "failed" => ("FAILED", Tone::Bad),
                "left" => ("left", Tone::Warning),
                "would" => ("would", Tone::Plain),
                other => (other, Tone::Good),
            };
            rows.add(&[
                (word(item, "id"), Tone::Plain),
                (item["name"].as_str().unwrap_or("-"), Tone::Plain),
                (word(item, "provider"), Tone::Faint),
                (outcome, tone),
                (word(item, "note"), Tone::Faint),
            ]);
        }
        rows.print()?;
    }
    if let Some(more) = upkeep["left_out"].as_u64().filter(|more| *more > 0) {
        say(&format!("{more} more are not listed"));
    }
    let number = |name: &str| upkeep["progress"][name].as_u64().unwrap_or(0);
    let verb = word(upkeep, "act");
    print(&match upkeep["dry_run"] == true {
        true => format!("{verb}: {} of {} would be touched", number("found"), number("looked_at")),
        false => format!("{verb}: {} found, {} done, {failed} failed", number("found"), number("done")),
    })?;
    if let Some(why) = upkeep["error"].as_str() {
        say(&format!("hint: it did not come to its end: {why}"));
    }
    Ok(result)
}
