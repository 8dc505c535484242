//! The daemon in a machine of CodeSandbox. Its files and its output are text, so bytes travel as base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use super::CodeSandbox;
use crate::provider::remote::client::Again;
use crate::provider::remote::service::{Piece, finish};
use crate::provider::remote::words::line;
use crate::provider::remote::{Input, Run, Running, Trouble};

/// Whose commands they are.
const OWN: &str = "root";

/// The longest event of a stream.
const EVENT: usize = 8 << 20;

const SIGKILL: i32 = 9;

pub struct Agent<'a> {
    service: &'a CodeSandbox,
    name: String,
    url: String,
    token: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exec {
    id: String,
    #[serde(default)]
    status: String,
    #[serde(default)]
    pid: i64,
    #[serde(default)]
    exit_code: Option<i32>,
}

impl CodeSandbox {
    pub(super) async fn agent(&self, name: &str) -> Result<Agent<'_>, Trouble> {
        let machine = self.machine(name).await?;
        let (Some(url), Some(token)) = (machine.pint_url, machine.pint_token) else {
            let message = "this machine of codesandbox has no REST interface inside; use a template that has it";
            return Err(Trouble::Unsupported(message.into()));
        };
        Ok(Agent { service: self, name: name.to_owned(), url: url.trim_end_matches('/').to_owned(), token })
    }
}

impl Agent<'_> {
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.service.client.request_to(method, &format!("{}/api/v1{path}", self.url)).bearer_auth(&self.token)
    }

    pub async fn run(&self, run: &Run) -> Result<Running, Trouble> {
        let mut words = run.words.clone();
        if words.is_empty() {
            return Err(Trouble::Garbled("a command needs a program".into()));
        }
        if let Some(user) = run.user.as_deref().filter(|user| *user != OWN) {
            words.splice(0..0, ["sudo", "-n", "-E", "-H", "-u", user, "--"].map(str::to_owned));
        }
        let nothing = if run.input { "" } else { " </dev/null" };
        let script = format!("{}{nothing}", line(&words, &run.env, run.cwd.as_deref()));
        let body = json!({"command": "sh", "args": ["-c", script], "autorun": true, "interactive": false});
        let make = || self.request(Method::POST, "/execs").json(&body);
        let exec: Exec = self.service.client.json(Again::IfUndone, make).await?;
        let path = format!("/execs/{}/io?lastSequence=0", exec.id);
        let make = || self.request(Method::GET, &path).header("accept", "text/event-stream");
        let response = self.service.client.send(Again::Always, make).await?;
        let follow = Follow {
            response,
            buffer: BytesMut::new(),
            client: self.service.client.clone(),
            url: format!("{}/api/v1/execs/{}", self.url, exec.id),
            token: self.token.clone(),
            ready: Vec::new(),
            done: false,
        };
        Ok(Running { process: exec.id, pieces: stream::unfold(follow, Follow::next).boxed() })
    }

    pub async fn input(&self, process: &str, input: Input) -> Result<(), Trouble> {
        let Input::Bytes(bytes) = input else {
            return Err(Trouble::Unsupported("codesandbox cannot end what a command reads".into()));
        };
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| Trouble::Unsupported("codesandbox gives a command text, and nothing else".into()))?;
        let body = json!({"type": "stdin", "input": text});
        let path = format!("/execs/{process}/io");
        self.service.client.done(Again::IfUndone, || self.request(Method::POST, &path).json(&body)).await
    }

    pub async fn signal(&self, process: &str, signal: i32) -> Result<(), Trouble> {
        let path = format!("/execs/{process}");
        if signal == SIGKILL {
            return self.service.client.done(Again::Always, || self.request(Method::DELETE, &path)).await;
        }
        let exec: Exec = self.service.client.json(Again::Always, || self.request(Method::GET, &path)).await?;
        let kill = Run::script(r#"kill -"$1" "$2""#, &[&signal.to_string(), &exec.pid.to_string()]);
        finish(self.service, &self.name, &kill).await.map(drop)
    }

    pub async fn read(&self, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        let read = Run::script(r#"base64 -w 0 <"$1""#, &[path]);
        let output = finish(self.service, &self.name, &read).await?;
        if output.code != 0 {
            return Err(Trouble::Refused { status: http::StatusCode::NOT_FOUND, message: output.complaint() });
        }
        let bytes = BASE64_STANDARD
            .decode(output.out.trim_ascii())
            .map_err(|_| Trouble::Garbled("codesandbox sent no base64".into()))?;
        Ok(stream::iter([Ok(Bytes::from(bytes))]).boxed())
    }

    pub async fn write(&self, path: &str, content: Bytes) -> Result<(), Trouble> {
        let part = format!("{path}.base64");
        let place = format!("/files/{}", utf8_percent_encode(&part, NON_ALPHANUMERIC));
        let body = json!({"content": BASE64_STANDARD.encode(&content)});
        self.service.client.done(Again::Always, || self.request(Method::POST, &place).json(&body)).await?;
        let decode = Run::script(r#"base64 -d <"$1.base64" >"$1" && rm -f "$1.base64""#, &[path]);
        let output = finish(self.service, &self.name, &decode).await?;
        match output.code {
            0 => Ok(()),
            _ => Err(Trouble::Garbled(format!("a file did not arrive at codesandbox: {}", output.complaint()))),
        }
    }
}

/// Follows one command to its end.
struct Follow {
    response: Response,
    buffer: BytesMut,
    client: crate::provider::remote::Client,
    /// The command.
    url: String,
    token: String,
    ready: Vec<Piece>,
    done: bool,
}

impl Follow {
    async fn next(mut self) -> Option<(Result<Piece, Trouble>, Follow)> {
        loop {
            if !self.ready.is_empty() {
                let piece = self.ready.remove(0);
                self.done |= matches!(piece, Piece::Exited(_));
                return Some((Ok(piece), self));
            }
            if self.done {
                return None;
            }
            match self.event().await {
                Ok(Some(event)) => self.ready = pieces(&event),
                Ok(None) => {
                    let ended = self.ended().await;
                    self.done = true;
                    return Some((ended, self));
                }
                Err(trouble) => {
                    self.done = true;
                    return Some((Err(trouble), self));
                }
            }
        }
    }

    /// The next event; `None` at the end of the stream.
    async fn event(&mut self) -> Result<Option<Value>, Trouble> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                let Some(text) = line.strip_prefix(b"data:") else { continue };
                let wrong = |error| Trouble::Garbled(format!("codesandbox sent an event that is no JSON: {error}"));
                return serde_json::from_slice(text).map(Some).map_err(wrong);
            }
            if self.buffer.len() > EVENT {
                return Err(Trouble::Garbled("codesandbox sent an event of more than 8 MiB".into()));
            }
            let cut =
                |error: reqwest::Error| Trouble::Away(format!("codesandbox was cut off: {}", error.without_url()));
            match self.response.chunk().await.map_err(cut)? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }

    /// A stream that ends without a word on the end: the command is asked for.
    async fn ended(&self) -> Result<Piece, Trouble> {
        let make = || self.client.request_to(Method::GET, &self.url).bearer_auth(&self.token);
        match self.client.json::<Exec>(Again::Always, make).await {
            Ok(exec) if exec.status.eq_ignore_ascii_case("running") => {
                Err(Trouble::Away("codesandbox ended a stream in the middle".into()))
            }
            Ok(exec) => Ok(Piece::Exited(exec.exit_code.unwrap_or(-1))),
            // It was removed while it ran.
            Err(trouble) if trouble.is_gone() => Ok(Piece::Exited(-1)),
            Err(trouble) => Err(trouble),
        }
    }
}

/// What an event says: some output, and maybe that it was the last.
fn pieces(event: &Value) -> Vec<Piece> {
    let text = event["output"].as_str().unwrap_or_default();
    let mut pieces = Vec::new();
    if !text.is_empty() {
        let bytes = Bytes::from(text.to_owned());
        pieces.push(if event["type"] == "stderr" { Piece::Err(bytes) } else { Piece::Out(bytes) });
    }
    if let Some(code) = event.get("exitCode").and_then(Value::as_i64) {
        pieces.push(Piece::Exited(i32::try_from(code).unwrap_or(-1)));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_event_has_output_and_an_end() {
        let last = json!({"type": "stderr", "output": "no\n", "sequence": 2, "exitCode": 3});
        assert_eq!(pieces(&last), [Piece::Err("no\n".into()), Piece::Exited(3)]);
        assert_eq!(pieces(&json!({"type": "stdout", "output": "a", "sequence": 1})), [Piece::Out("a".into())]);
    }
}
