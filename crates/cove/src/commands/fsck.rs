//! `cove fsck`: whether files are what was written down.

use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use crate::client::{Client, block_on, segment};
use crate::complaint::{Complaint, code};
use crate::progress::Far;
use crate::quantity::show_size;
use crate::render::{Rows, Tone, print, print_json, say, word};

/// How often it is asked how far the server is.
const LOOK: Duration = Duration::from_millis(250);

/// Check the files of sandboxes, their layers and volumes
///
/// Compares paused and stopped sandboxes with the manifest of their last durable pause or stop (`cove pause --durable`): what is
/// missing, added, changed or unreadable is named. What has no manifest is read. Of a running sandbox only the layers are
/// checked. Nothing is changed. The exit code is 0 when nothing is damaged, 1 when something is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove fsck box
  cove fsck --all --json")]
pub struct Arguments {
    /// Names or ids
    #[arg(value_name = "SANDBOX", required_unless_present = "all", conflicts_with = "all", add = crate::complete::sandboxes())]
    sandboxes: Vec<String>,
    /// All sandboxes, templates, snapshots and volumes of the organisation; with an operator's key also what is nobody's
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let body = match arguments.all {
        true => json!({ "all": true }),
        false => json!({ "sandboxes": arguments.sandboxes }),
    };
    let check = block_on(finished(&client, &body))?;
    if word(&check, "state") == "failed" {
        let why = check["error"].as_str().unwrap_or("the server does not say why");
        return Err(Complaint::failed(format!("the check did not come to its end: {why}")).hint("run it again"));
    }
    match arguments.json {
        true => print_json(&check)?,
        false => tell(&check)?,
    }
    Ok(if check["sound"] == true { 0 } else { code::FAILED })
}

async fn finished(client: &Client, body: &Value) -> Result<Value, Complaint> {
    let mut check: Value = client.post("/checks", body).await?;
    let path = format!("/checks/{}", segment(word(&check, "id")));
    let far = Far::new("fsck");
    while !matches!(word(&check, "state"), "done" | "failed") {
        tokio::time::sleep(LOOK).await;
        check = client.get(&path).await?;
        let number = |name: &str| check["progress"][name].as_u64().unwrap_or(0);
        let (done, things, files, bytes) = (number("done"), number("things"), number("files"), number("bytes"));
        far.tell(&format!("{done} of {things} checked, {files} files, {}", show_size(bytes)));
    }
    Ok(check)
}

fn tell(check: &Value) -> Result<(), Complaint> {
    let items: Vec<&Value> = check["items"].as_array().into_iter().flatten().collect();
    let mut rows = Rows::new(&["what", "name", "", "files", "read", "found"]);
    for item in &items {
        let (verdict, tone) = match word(item, "verdict") {
            "sound" => ("sound", Tone::Good),
            "not_checked" => ("not checked", Tone::Warning),
            _ => ("DAMAGED", Tone::Bad),
        };
        let files = item["files"].as_u64().unwrap_or(0).to_string();
        let read = show_size(item["bytes"].as_u64().unwrap_or(0));
        rows.add(&[
            (word(item, "kind"), Tone::Plain),
            (called(item), Tone::Plain),
            (verdict, tone),
            (&files, Tone::Plain),
            (&read, Tone::Plain),
            (word(item, "note"), Tone::Plain),
        ]);
    }
    if items.is_empty() {
        say("nothing to check");
    } else {
        rows.print()?;
    }
    for item in &items {
        let problems: Vec<&Value> = item["problems"].as_array().into_iter().flatten().collect();
        if problems.is_empty() {
            continue;
        }
        print(&format!("\n{} {}:", word(item, "kind"), called(item)))?;
        for problem in &problems {
            print(&format!("  {}", line(problem)))?;
        }
        let counted = ["missing", "added", "changed", "unreadable"].iter();
        let all: u64 = counted.map(|count| item[*count].as_u64().unwrap_or(0)).sum();
        if all > problems.len() as u64 {
            print(&format!("  and {} more", all - problems.len() as u64))?;
        }
    }
    if let Some(more) = check["left_out"].as_u64().filter(|more| *more > 0) {
        say(&format!("{more} more are not listed; none of them is damaged"));
    }
    let mut problems = items.iter().flat_map(|item| item["problems"].as_array().into_iter().flatten());
    if problems.any(|problem| word(problem, "kind") == "unreferenced") {
        say("hint: `cove orphans ls` shows sandboxes that nobody owns; adopt or remove them there");
    }
    Ok(())
}

/// Its name or its id; of a layer's, which is long, the beginning.
fn called(item: &Value) -> &str {
    let id = word(item, "id");
    let shown = if word(item, "kind") == "layer" { id.get(..20).unwrap_or(id) } else { id };
    item["name"].as_str().unwrap_or(shown)
}

/// `changed /home/user/x: content`.
fn line(problem: &Value) -> String {
    let (kind, path, detail) = (word(problem, "kind"), word(problem, "path"), word(problem, "detail"));
    match (path, detail) {
        ("", detail) => format!("{kind}: {detail}"),
        (path, "") => format!("{kind} {path}"),
        (path, detail) => format!("{kind} {path}: {detail}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_one_line() {
        let problem = |path: &str, detail: &str| json!({ "kind": "changed", "path": path, "detail": detail });
        assert_eq!(line(&problem("/a\\nb", "mode, content")), "changed /a\\nb: mode, content");
        assert_eq!(line(&problem("/a", "")), "changed /a");
        assert_eq!(line(&problem("", "the manifest is cut off")), "changed: the manifest is cut off");
    }

    #[test]
    fn a_layer_is_called_by_the_beginning_of_its_id() {
        assert_eq!(called(&json!({ "kind": "layer", "id": "ab".repeat(32) })), "ab".repeat(10));
        assert_eq!(called(&json!({ "kind": "layer", "id": "short" })), "short");
        assert_eq!(called(&json!({ "kind": "sandbox", "id": "x", "name": "box" })), "box");
        let server = "server_t9fr245s0td1dqm0";
        assert_eq!(called(&json!({ "kind": "server", "id": server })), server);
    }
}
