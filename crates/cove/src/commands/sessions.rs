//! `cove sessions`: code that keeps its variables, by an id that any process can use.

use std::io::Read;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, block_on, query_string, segment};
use crate::complaint::{Complaint, code, doing};
use crate::interrupt::or_interrupted;
use crate::quantity::show_size;
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Run code that keeps its variables between calls
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  id=$(cove sessions create)
  cove sessions run $id 'x = 6'
  cove sessions run $id 'print(x * 7)'
  cove sessions rm $id")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List sessions
    Ls {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Start a session and print its id
    Create {
        /// What its sandbox starts from: a template, a name such as Python3 or python-3.11, or an image
        #[arg(long, visible_alias = "environment", value_name = "NAME")]
        template: Option<String>,
        /// Where its sandbox runs, if the server has several providers
        #[arg(long, value_name = "NAME")]
        provider: Option<String>,
        /// Use this sandbox, by name or id [default: a new one]
        #[arg(long, value_name = "SANDBOX", conflicts_with_all = ["template", "provider"])]
        sandbox: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a session
    Show {
        /// The session's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run code in a session and show its output; an error in the code ends with code 1
    Run {
        /// The session's id
        id: String,
        /// The code; `-` reads it from standard input
        code: String,
        /// python, javascript, typescript or bash
        #[arg(long, value_name = "NAME")]
        language: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Interrupt the code that a session runs; variables stay
    Interrupt {
        /// The session's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the files that a session's code left as results
    Artifacts {
        /// The session's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End a session, and its sandbox if it was made for the session
    Rm {
        /// The session's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Ls { json } => list(&all(&client).await?, *json),
            Act::Create { template, provider, sandbox, json } => {
                let mut body = serde_json::Map::new();
                body.extend(template.iter().map(|name| ("environment".to_owned(), json!(name))));
                body.extend(provider.iter().map(|name| ("provider".to_owned(), json!(name))));
                body.extend(sandbox.iter().map(|id| ("sandbox_id".to_owned(), json!(id))));
                let made: Value = client.post("/sessions", &body).await?;
                match json {
                    true => print_json(&made)?,
                    false => print(word(&made, "session_id"))?,
                }
                Ok(0)
            }
            Act::Show { id, json } => {
                let session: Value = client.get(&format!("/sessions/{}", segment(id))).await?;
                match json {
                    true => print_json(&session).map(|()| 0),
                    false => list(&[session], false),
                }
            }
            Act::Run { id, code, language, json } => {
                let done = or_interrupted(execute(&client, id, code, language.as_deref(), *json)).await;
                if done.as_ref().is_err_and(Complaint::is_silent) {
                    // A session's code runs to its end whether or not anybody listens.
                    interrupt(&client, id).await?;
                }
                done
            }
            Act::Interrupt { id, json } => {
                let done = interrupt(&client, id).await?;
                match json {
                    true => print_json(&done)?,
                    false if done["interrupted"] == 0 => say("cove: nothing runs in this session"),
                    false => print(id)?,
                }
                Ok(0)
            }
            Act::Artifacts { id, json } => {
                let files: Vec<Value> = client.get(&format!("/sessions/{}/artifacts", segment(id))).await?;
                let headings = ["name", "size", "type", "created"];
                List { headings, empty: "no artifacts" }.show(&files, *json, |file| {
                    [
                        (word(file, "name").to_owned(), Tone::Plain),
                        (file["size"].as_u64().map_or_else(|| "-".to_owned(), show_size), Tone::Plain),
                        (word(file, "mime").to_owned(), Tone::Faint),
                        (moment(file, "created_at"), Tone::Plain),
                    ]
                })
            }
            Act::Rm { id, json } => {
                client.delete(&format!("/sessions/{}", segment(id))).await?;
                match json {
                    true => print_json(&json!({ "session_id": id, "state": "closed" }))?,
                    false => print(id)?,
                }
                Ok(0)
            }
        }
    })
}

async fn all(client: &Client) -> Result<Vec<Value>, Complaint> {
    let (mut all, mut cursor) = (Vec::new(), Value::Null);
    loop {
        let pairs: Vec<_> = cursor.as_str().map(|cursor| ("cursor", cursor)).into_iter().collect();
        let mut page: Value = client.get(&format!("/sessions{}", query_string(&pairs))).await?;
        if let Value::Array(items) = page["items"].take() {
            all.extend(items);
        }
        cursor = page["next_cursor"].take();
        if cursor.is_null() {
            return Ok(all);
        }
    }
}

fn list(sessions: &[Value], as_json: bool) -> Result<u8, Complaint> {
    let headings = ["id", "sandbox", "template", "state", "created", "closed"];
    List { headings, empty: "no sessions\nhint: cove sessions create" }.show(sessions, as_json, |session| {
        [
            (word(session, "session_id").to_owned(), Tone::Plain),
            (word(session, "sandbox_id").to_owned(), Tone::Faint),
            (word(session, "environment").to_owned(), Tone::Plain),
            (word(session, "state").to_owned(), Tone::Plain),
            (moment(session, "created_at"), Tone::Plain),
            (moment(session, "closed_at"), Tone::Faint),
        ]
    })
}

async fn execute(
    client: &Client,
    id: &str,
    text: &str,
    language: Option<&str>,
    as_json: bool,
) -> Result<u8, Complaint> {
    let mut source = text.to_owned();
    if text == "-" {
        source.clear();
        std::io::stdin().lock().read_to_string(&mut source).map_err(doing("read the code from standard input"))?;
    }
    let mut body = json!({ "session_id": id, "code": source });
    if let Some(language) = language {
        body["language"] = json!(language);
    }
    let done: Value = match client.post("/execute", &body).await {
        Ok(done) => done,
        Err(complaint) if complaint.message().starts_with("sandbox is ") => {
            return Err(with_its_sandbox(client, id, &complaint).await?);
        }
        Err(complaint) => return Err(complaint),
    };
    if as_json {
        print_json(&done)?;
    } else {
        // The code's output, as `exec` shows a command's.
        write(std::io::stdout(), word(&done, "stdout"))?;
        write(std::io::stderr(), word(&done, "stderr"))?;
        for result in done["results"].as_array().into_iter().flatten() {
            match result["data"]["text/plain"].as_str().or_else(|| result["data"]["text"].as_str()) {
                Some(text) => print(text)?,
                None => {
                    let kinds: Vec<_> =
                        result["data"].as_object().into_iter().flatten().map(|(kind, _)| kind.as_str()).collect();
                    say(&format!("cove: a result of {}; --json shows it", kinds.join(", ")));
                }
            }
        }
        tell_error(&done["error"]);
    }
    let status = done["exit_code"].as_i64().and_then(|status| u8::try_from(status).ok()).unwrap_or(code::FAILED);
    Ok(status)
}

/// The person knows the session, and needs its sandbox to go on.
async fn with_its_sandbox(client: &Client, id: &str, complaint: &Complaint) -> Result<Complaint, Complaint> {
    let session: Value = client.get(&format!("/sessions/{}", segment(id))).await?;
    let sandbox = word(&session, "sandbox_id");
    let named = Complaint::failed(format!("session {id}: {sandbox}, its {}", complaint.message()));
    Ok(match complaint.message().contains("resume it") {
        true => named.hint(format!("cove resume {sandbox}")),
        false => named.hint(format!("cove start {sandbox}; the variables of a stopped session are gone")),
    })
}

async fn interrupt(client: &Client, id: &str) -> Result<Value, Complaint> {
    client.post(&format!("/sessions/{}/interrupt", segment(id)), &json!({})).await
}

/// Where the code itself failed there is a traceback; where its interpreter did, or there is none for the language, a
/// sentence.
fn tell_error(error: &Value) {
    match (word(error, "traceback").trim_end(), word(error, "name"), word(error, "value")) {
        ("", "", "") => {}
        ("", "", value) => say(&format!("error: {value}")),
        ("", name, value) => say(&format!("error: {name}: {value}")),
        (traceback, ..) => say(traceback),
    }
}

fn write(mut to: impl std::io::Write, text: &str) -> std::io::Result<()> {
    to.write_all(text.as_bytes())?;
    to.flush()
}
