//! The log of a build, or of a push, as it comes, to the end of what it is about.
//!
//! Lines go to stderr. A connection that breaks is made again, and the log goes on after its last line: builds are the
//! server's, and end without us.

use std::time::{Duration, Instant};

use futures::StreamExt;
use reqwest::Method;
use serde_json::Value;

use crate::client::{Client, Failure, segment};
use crate::complaint::Complaint;
use crate::interrupt::or_interrupted;
use crate::render::{print, say, word};

/// How long the server may be out of reach, or hang up without a line, before we leave the build to itself.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(500);
/// A connection that lasted so long was a good one.
const LASTED: Duration = Duration::from_secs(5);

/// How lines are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lines {
    /// For people, on stderr.
    Said,
    /// For people, on stdout.
    Printed,
    /// Objects, one on each line, on stdout.
    Json,
}

/// What the paths of pushes begin with.
const PUSHES: &str = "/pushes/";

/// The path of a build.
pub fn path(template: &str, build: &str) -> String {
    format!("/templates/{}/builds/{}", segment(template), segment(build))
}

/// Shows lines after the `after`th until the build ends. Returns the build.
pub async fn to_the_end(client: &Client, build: &str, after: u64, how: Lines) -> Result<Value, Complaint> {
    patiently(client, build, after, how, PATIENCE).await
}

async fn patiently(
    client: &Client,
    build: &str,
    mut after: u64,
    how: Lines,
    patience: Duration,
) -> Result<Value, Complaint> {
    let mut was_there = false;
    // Since when nothing has come.
    let mut trouble: Option<Instant> = None;
    loop {
        let (began, before, mut lasted) = (Instant::now(), after, false);
        let why = match once(client, build, &mut after, how).await {
            Ok(Some(ended)) => return Ok(ended),
            Ok(None) => {
                (was_there, lasted) = (true, began.elapsed() > LASTED);
                Complaint::failed(format!("the server ended the log before the {} was finished", noun(build)))
            }
            // What never worked is no connection that broke.
            Err(Broken::Refused(Failure::Passing(complaint))) if was_there => complaint,
            Err(Broken::Refused(Failure::Passing(complaint) | Failure::Lasting(complaint))) => return Err(complaint),
            Err(Broken::Here(complaint)) => return Err(complaint),
        };
        if after > before || lasted {
            trouble = None;
        } else if trouble.is_none() {
            trouble = Some(began);
            say(&format!("cove: {}; trying again", why.message()));
        }
        if trouble.is_some_and(|since| since.elapsed() > patience) {
            return Err(why.hint(format!("the {} goes on without you: {}", noun(build), shows(build))));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What the path is of.
fn noun(path: &str) -> &'static str {
    if path.starts_with(PUSHES) { "push" } else { "build" }
}

/// The command that shows it.
fn shows(path: &str) -> String {
    match path.starts_with(PUSHES) {
        true => "cove template pushes".to_owned(),
        false => format!("cove template logs {} --follow", named(path)),
    }
}

/// The command that cancels it.
fn cancels(path: &str) -> String {
    match path.strip_prefix(PUSHES) {
        Some(push) => format!("cove template pushes --cancel {push}"),
        None => format!("cove template cancel {}", named(path)),
    }
}

/// `TEMPLATE BUILD`, as `cove template logs` takes them, out of a build's path.
fn named(build: &str) -> String {
    let mut parts = build.split('/').skip(2).step_by(2);
    format!("{} {}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
}

/// As [`to_the_end`], of a build or push that this person started: an interruption cancels it.
pub async fn or_cancelled(client: &Client, build: &str) -> Result<Value, Complaint> {
    let ended = or_interrupted(to_the_end(client, build, 0, Lines::Said)).await;
    if ended.as_ref().is_err_and(|complaint| complaint.code() > 128) {
        // Who interrupts this as well does not wait for the server any longer.
        let cancelled = or_interrupted(client.post::<Value>(&format!("{build}/cancel"), &serde_json::json!({}))).await;
        match cancelled {
            Ok(cancelled) => say(&format!("cove: the {} is {}", noun(build), word(&cancelled, "state"))),
            Err(complaint) => {
                let why = if complaint.is_silent() { "interrupted" } else { complaint.message() };
                say(&format!("cove: the {} may go on: {why}", noun(build)));
                say(&format!("hint: {}", cancels(build)));
            }
        }
    }
    ended
}

/// Why a connection came to nothing.
enum Broken {
    Refused(Failure),
    /// Not the server's fault.
    Here(Complaint),
}

/// One connection. `None` where it ended before the build.
async fn once(client: &Client, build: &str, after: &mut u64, how: Lines) -> Result<Option<Value>, Broken> {
    let request = client.request(Method::GET, &format!("{build}/logs/follow?after={after}"));
    let request = request.header("accept", "text/event-stream");
    let mut stream = client.attempt(request).await.map_err(Broken::Refused)?.bytes_stream();
    let mut reader = Reader::default();
    while let Some(Ok(chunk)) = stream.next().await {
        for (event, data) in reader.read(&chunk) {
            let data: Value = serde_json::from_str(&data).map_err(|error| {
                Broken::Here(Complaint::failed(format!("a line of the build's log is not JSON: {error}")))
            })?;
            match event.as_str() {
                "end" => return Ok(Some(data)),
                _ => {
                    show(&data, how).map_err(Broken::Here)?;
                    *after = data["seq"].as_u64().unwrap_or(*after);
                }
            }
        }
    }
    Ok(None)
}

pub fn show(line: &Value, how: Lines) -> Result<(), Complaint> {
    let text = || format!("{:>8}  {}", word(line, "step"), word(line, "message"));
    match how {
        Lines::Said => {
            say(&text());
            Ok(())
        }
        Lines::Printed => print(&text()),
        Lines::Json => print(&line.to_string()),
    }
}

/// What a build that ended came to.
pub fn judge(build: &Value) -> Result<(), Complaint> {
    match word(build, "state") {
        "ready" => return Ok(()),
        "cancelled" => {
            let why = match word(&build["failure"], "message") {
                "" | "the build was cancelled" => String::new(),
                why if why.contains("superseded") => ": a newer build of the same tag took its place".to_owned(),
                why => format!(": {why}"),
            };
            return Err(Complaint::failed(format!("the build was cancelled{why}")));
        }
        _ => {}
    }
    let failure = &build["failure"];
    let step = match word(failure, "step") {
        "" => String::new(),
        step if step.parse::<u32>().is_ok() => format!(" at step {step}"),
        step => format!(" at {step}"),
    };
    let message = match word(failure, "message") {
        "" => word(build, "state"),
        message => message,
    };
    Err(Complaint::failed(format!("the build failed{step}: {message}")))
}

/// Server-sent events: lines of `name: value`, an empty line after each event.
#[derive(Default)]
struct Reader {
    pending: Vec<u8>,
    event: String,
    data: String,
}

impl Reader {
    fn read(&mut self, chunk: &[u8]) -> Vec<(String, String)> {
        self.pending.extend_from_slice(chunk);
        let mut events = Vec::new();
        while let Some(end) = self.pending.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() {
                let (event, data) = (std::mem::take(&mut self.event), std::mem::take(&mut self.data));
                if !data.is_empty() {
                    events.push((event, data));
                }
            } else if let Some(name) = line.strip_prefix("event:") {
                self.event = name.trim().to_owned();
            } else if let Some(text) = line.strip_prefix("data:") {
                self.data.push_str(text.strip_prefix(' ').unwrap_or(text));
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_however_they_are_cut() {
        let text = "id: 1\nevent: log\ndata: {\"message\":\"ř\"}\n\n: a comment\n\nevent: end\ndata: {}\n\n";
        let whole = Reader::default().read(text.as_bytes());
        assert_eq!(whole, [("log".into(), "{\"message\":\"ř\"}".into()), ("end".into(), "{}".to_owned())]);
        let mut reader = Reader::default();
        let pieces: Vec<_> = text.as_bytes().chunks(3).flat_map(|piece| reader.read(piece)).collect();
        assert_eq!(pieces, whole);
    }

    #[test]
    fn a_failed_build_names_its_step() {
        let build = serde_json::json!({ "state": "error", "failure": { "step": "3", "message": "no such file" } });
        assert_eq!(judge(&build).unwrap_err().to_string(), "error: the build failed at step 3: no such file");
        assert!(judge(&serde_json::json!({ "state": "ready" })).is_ok());
        let gone = serde_json::json!({ "state": "cancelled", "failure": null });
        assert_eq!(judge(&gone).unwrap_err().to_string(), "error: the build was cancelled");
        let by_another =
            serde_json::json!({ "state": "cancelled", "failure": { "message": "superseded by a newer one." } });
        let told = judge(&by_another).unwrap_err().to_string();
        assert_eq!(told, "error: the build was cancelled: a newer build of the same tag took its place");
    }

    /// A server that gives these answers, one for each connection; the last one again and again.
    async fn serves(answers: &[&str]) -> Client {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let answers: Vec<String> = answers.iter().map(|answer| (*answer).to_owned()).collect();
        tokio::spawn(async move {
            for number in 0_usize.. {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = Vec::new();
                while !asked.ends_with(b"\r\n\r\n") {
                    asked.push(stream.read_u8().await.unwrap());
                }
                let answer = &answers[number.min(answers.len() - 1)];
                let head = if answer.starts_with("event") {
                    "200 OK\r\ncontent-type: text/event-stream"
                } else if answer.contains("not_found") {
                    "404 Not Found"
                } else {
                    "503 Service Unavailable"
                };
                let whole = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{answer}");
                stream.write_all(whole.as_bytes()).await.unwrap();
                stream.shutdown().await.unwrap();
            }
        });
        Client::of(&url)
    }

    const LINE: &str = "event: log\ndata: {\"seq\": 1, \"step\": \"1\", \"message\": \"one\"}\n\n";
    const END: &str = "event: end\ndata: {\"state\": \"ready\"}\n\n";
    const BUSY: &str = r#"{"code": "unavailable", "message": "the database cannot be used now"}"#;
    const GONE: &str = r#"{"code": "not_found", "message": "template t does not exist"}"#;

    async fn followed(answers: &[&str], patience: Duration) -> Result<Value, String> {
        let client = serves(answers).await;
        let ended = patiently(&client, &path("t", "b"), 0, Lines::Said, patience).await;
        ended.map_err(|complaint| complaint.to_string())
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_made_again() {
        let long = Duration::from_secs(60);
        assert_eq!(followed(&[LINE, BUSY, END], long).await.unwrap()["state"], "ready");
        assert!(followed(&[BUSY], long).await.unwrap_err().contains("the database cannot be used now"), "at once");
        assert!(followed(&[LINE, GONE], long).await.unwrap_err().contains("template t does not exist"), "at once");
    }

    #[tokio::test]
    async fn a_server_that_errs_again_and_again_is_told_with_its_reason() {
        let told = followed(&[LINE, BUSY], Duration::from_secs(1)).await.unwrap_err();
        assert!(told.starts_with("error: the database cannot be used now\n"), "{told}");
        assert!(told.ends_with("hint: the build goes on without you: cove template logs t b --follow"), "{told}");
        let told = followed(&["event: nothing\n\n"], Duration::from_secs(1)).await.unwrap_err();
        assert!(told.contains("ended the log before the build was finished"), "{told}");
    }
}
