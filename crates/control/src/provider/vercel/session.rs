//! What runs in a sandbox of Vercel: commands whose output comes line by line as JSON, files as archives.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Bytes, BytesMut};
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use reqwest::{Method, Response};
use serde_json::{Value, json};

use super::Vercel;
use crate::provider::remote::client::Again;
use crate::provider::remote::service::Piece;
use crate::provider::remote::{Client, Input, Run, Running, Trouble};

/// The user of commands that name none.
const OWN: &str = "vercel-sandbox";
const ROOT: &str = "root";

/// The longest line of a stream.
const LINE: usize = 8 << 20;

impl Vercel {
    pub(super) async fn run_in_session(&self, name: &str, run: &Run) -> Result<Running, Trouble> {
        let path = format!("/v2/sandboxes/sessions/{}/cmd", self.session(name).await?);
        let body = command(run).ok_or_else(|| Trouble::Garbled("a command needs a program".into()))?;
        let response = self.client.send(Again::IfUndone, || self.request(Method::POST, &path).json(&body)).await?;
        let mut lines = Lines { response, buffer: BytesMut::new(), done: false };
        let first = lines.next().await?.ok_or_else(|| Trouble::Away("a command of vercel did not begin".into()))?;
        let process = first.pointer("/command/id").and_then(Value::as_str);
        let process = process.ok_or_else(|| Trouble::Garbled("a command of vercel has no id".into()))?.to_owned();
        if !run.input {
            return Ok(Running { process, pieces: pieces(lines) });
        }
        // One that is spoken to was not waited for: its output comes by another call, and its end by a third.
        let command = format!("{path}/{process}");
        let logs = format!("{command}/logs");
        let response = self.client.send(Again::Always, || self.request(Method::GET, &logs)).await?;
        let lines = Lines { response, buffer: BytesMut::new(), done: false };
        let end = self.with_team(&format!("{command}?wait=true"));
        Ok(Running { process, pieces: spoken_to(lines, self.client.clone(), end) })
    }

    pub(super) async fn say(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble> {
        let body = match input {
            Input::Bytes(bytes) => json!({"data": BASE64_STANDARD.encode(&bytes)}),
            Input::End => json!({"close": true}),
        };
        self.act(name, &format!("cmd/{process}/stdin"), &body).await
    }

    pub(super) async fn download(
        &self,
        name: &str,
        path: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        let url = format!("/v2/sandboxes/sessions/{}/fs/read", self.session(name).await?);
        let body = json!({"path": path});
        let response = self.client.send(Again::Always, || self.request(Method::POST, &url).json(&body)).await?;
        let cut = |error: reqwest::Error| Trouble::Away(format!("a file was cut off: {}", error.without_url()));
        Ok(response.bytes_stream().map(move |piece| piece.map_err(cut)).boxed())
    }

    pub(super) async fn upload(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble> {
        let url = format!("/v2/sandboxes/sessions/{}/fs/write", self.session(name).await?);
        let path = path.to_owned();
        // Compressing takes long enough for a thread of its own.
        let packed = tokio::task::spawn_blocking(move || packed(&path, &content)).await;
        let packed: Bytes = match packed {
            Ok(Ok(packed)) => packed.into(),
            Ok(Err(error)) => return Err(Trouble::Garbled(format!("pack a file for vercel: {error}"))),
            Err(error) => return Err(Trouble::Garbled(format!("pack a file for vercel: {error}"))),
        };
        let make = || {
            let request = self.request(Method::POST, &url).header("content-type", "application/gzip");
            request.header("x-cwd", "/").body(packed.clone())
        };
        self.client.done(Again::Always, make).await
    }
}

/// A command as Vercel takes it; as root where that is asked for, and as others by way of root.
fn command(run: &Run) -> Option<Value> {
    let mut words = run.words.clone();
    let sudo = match run.user.as_deref() {
        None | Some(OWN) => false,
        Some(ROOT) => true,
        Some(user) => {
            let before = ["sudo", "-n", "-H", "-u", user, "--"].map(str::to_owned).into_iter();
            let env = run.env.iter().map(|(name, value)| format!("{name}={value}"));
            words.splice(0..0, before.chain(["env".to_owned()]).chain(env));
            true
        }
    };
    let (program, arguments) = words.split_first()?;
    let mut command = json!({"command": program, "args": arguments, "env": run.env, "sudo": sudo});
    if !run.input {
        command["wait"] = json!(true);
        command["logs"] = json!(true);
    }
    if let Some(cwd) = &run.cwd {
        command["cwd"] = json!(cwd);
    }
    Some(command)
}

/// One file, as a compressed archive.
fn packed(path: &str, content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_mtime(0);
    archive.append_data(&mut header, path.trim_start_matches('/'), content)?;
    archive.into_inner()?.finish()
}

/// Lines of an answer, as they come.
struct Lines {
    response: Response,
    buffer: BytesMut,
    done: bool,
}

impl Lines {
    async fn next(&mut self) -> Result<Option<Value>, Trouble> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1);
                if line.trim_ascii().is_empty() {
                    continue;
                }
                let wrong = |error| Trouble::Garbled(format!("vercel sent a line that is no JSON: {error}"));
                return serde_json::from_slice(&line).map(Some).map_err(wrong);
            }
            if self.buffer.len() > LINE {
                return Err(Trouble::Garbled("vercel sent a line of more than 8 MiB".into()));
            }
            let cut = |error: reqwest::Error| Trouble::Away(format!("vercel was cut off: {}", error.without_url()));
            match self.response.chunk().await.map_err(cut)? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.trim_ascii().is_empty() => return Ok(None),
                // An answer that is no stream ends without a line end.
                None => self.buffer.extend_from_slice(b"\n"),
            }
        }
    }
}

fn pieces(lines: Lines) -> BoxStream<'static, Result<Piece, Trouble>> {
    let next = |mut lines: Lines| async move {
        if lines.done {
            return None;
        }
        let told = loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    if let Some(told) = piece(&line) {
                        break told;
                    }
                }
                Ok(None) => break Err(Trouble::Away("vercel ended a stream in the middle".into())),
                Err(trouble) => break Err(trouble),
            }
        };
        lines.done = matches!(told, Err(_) | Ok(Piece::Exited(_)));
        Some((told, lines))
    };
    stream::unfold(lines, next).boxed()
}

/// The output of a command that is not waited for, and then its end.
fn spoken_to(lines: Lines, client: Client, end: String) -> BoxStream<'static, Result<Piece, Trouble>> {
    let next = |(mut lines, client, end): (Lines, Client, String)| async move {
        if lines.done {
            return None;
        }
        let told = loop {
            match lines.next().await {
                Ok(Some(line)) => {
                    if let Some(told) = piece(&line) {
                        break told;
                    }
                }
                Ok(None) => break ended(&client, &end).await,
                Err(trouble) => break Err(trouble),
            }
        };
        lines.done = matches!(told, Err(_) | Ok(Piece::Exited(_)));
        Some((told, (lines, client, end)))
    };
    stream::unfold((lines, client, end), next).boxed()
}

async fn ended(client: &Client, path: &str) -> Result<Piece, Trouble> {
    let command: Value = client.json(Again::Always, || client.request(Method::GET, path)).await?;
    piece(&command).unwrap_or_else(|| Err(Trouble::Garbled("a command of vercel has no end".into())))
}

/// What a line says of the command; nothing where it says nothing.
fn piece(line: &Value) -> Option<Result<Piece, Trouble>> {
    if let Some(code) = line.pointer("/command/exitCode").and_then(Value::as_i64) {
        return Some(Ok(Piece::Exited(i32::try_from(code).unwrap_or(-1))));
    }
    let text = |line: &Value| Bytes::from(line["data"].as_str().unwrap_or_default().to_owned());
    match line["stream"].as_str()? {
        "stdout" => Some(Ok(Piece::Out(text(line)))),
        "stderr" => Some(Ok(Piece::Err(text(line)))),
        "error" => {
            let said = line.pointer("/data/message").and_then(Value::as_str).unwrap_or("it said nothing");
            Some(Err(Trouble::Away(format!("vercel: {said}"))))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_root_s_or_another_s_by_way_of_root() {
        let mut run = Run::script("true", &[]);
        run.env.insert("A".into(), "1".into());
        assert_eq!(command(&run).unwrap()["sudo"], false);
        run.user = Some("root".into());
        assert_eq!(command(&run).unwrap()["sudo"], true);
        run.user = Some("ada".into());
        let asked = command(&run).unwrap();
        assert_eq!(asked["command"], "sudo");
        let arguments = &asked["args"].as_array().unwrap()[..7];
        assert_eq!(arguments, ["-n", "-H", "-u", "ada", "--", "env", "A=1"].map(Value::from));
        assert_eq!(command(&Run::default()), None);
    }

    #[test]
    fn lines_say_what_was_printed_and_how_it_ended() {
        let said = |line: Value| piece(&line).map(Result::unwrap);
        assert_eq!(said(json!({"stream": "stdout", "data": "a\n"})), Some(Piece::Out("a\n".into())));
        assert_eq!(said(json!({"command": {"id": "c", "exitCode": null}})), None);
        assert_eq!(said(json!({"command": {"id": "c", "exitCode": 3}})), Some(Piece::Exited(3)));
        assert!(piece(&json!({"stream": "error", "data": {"code": "x", "message": "y"}})).unwrap().is_err());
    }

    #[test]
    fn a_file_is_packed_where_it_belongs() {
        let packed = packed("/tmp/.cove/guest", b"hello").unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        let entry = archive.entries().unwrap().next().unwrap().unwrap();
        assert_eq!((entry.path().unwrap().to_str().unwrap(), entry.size()), ("tmp/.cove/guest", 5));
    }
}
