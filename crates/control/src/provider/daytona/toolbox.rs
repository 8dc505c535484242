//! The toolbox of a sandbox of Daytona: a session for each command, and files.
//!
//! A session is a shell that runs commands one after the other; one that runs a single command and is removed after it is
//! a process with an end that can be forced. What it prints comes over a WebSocket, both streams in one, with marks.

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::HeaderValue;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, Upgraded};
use serde::Deserialize;
use serde_json::json;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::Daytona;
use crate::provider::remote::client::Again;
use crate::provider::remote::service::Piece;
use crate::provider::remote::words::line;
use crate::provider::remote::{Input, Run, Running, Trouble, websocket};
use crate::random;

/// The version of SDKs whose answers we read: from 0.167 on both streams are told apart.
const VERSION: &str = "0.226.1";

/// Before a piece of standard output, and of standard error.
const OUT: &[u8] = &[1, 1, 1];
const ERR: &[u8] = &[2, 2, 2];

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Begun {
    cmd_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Command {
    #[serde(default)]
    exit_code: Option<i32>,
}

impl Daytona {
    pub(super) async fn run_in_session(&self, name: &str, run: &Run) -> Result<Running, Trouble> {
        let inside = self.inside(name).await?;
        let session = format!("cove-{}", random::hex(8));
        let sessions = format!("{}/process/session", inside.toolbox);
        let body = json!({"sessionId": session});
        let make = || self.toolbox_request(Method::POST, &sessions).json(&body);
        self.client.done(Again::IfUndone, make).await?;
        let body = json!({"command": command(run, &inside.user), "runAsync": true, "suppressInputEcho": true});
        let exec = format!("{sessions}/{session}/exec");
        let make = || {
            let request = self.toolbox_request(Method::POST, &exec).header("x-daytona-sdk-version", VERSION);
            request.json(&body)
        };
        let begun: Begun = self.client.json(Again::IfUndone, make).await?;
        let place = format!("{sessions}/{session}/command/{}", begun.cmd_id);
        let mut headers = self.headers.clone();
        headers.insert("x-daytona-sdk-version", HeaderValue::from_static(VERSION));
        let logs = websocket(self.client.http(), &format!("{place}/logs?follow=true"), &headers).await;
        let logs = logs.map_err(|reason| Trouble::Away(format!("the output of a command of daytona: {reason}")))?;
        let follow = Follow {
            service: self.client.clone(),
            headers,
            logs: Some(logs),
            marks: Marks::default(),
            place,
            session: format!("{sessions}/{session}"),
            ready: Vec::new(),
            done: false,
        };
        Ok(Running {
            process: format!("{session}/{}", begun.cmd_id),
            pieces: stream::unfold(follow, Follow::next).boxed(),
        })
    }

    /// A line of text is all that can be said.
    pub(super) async fn say(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble> {
        let Input::Bytes(bytes) = input else {
            return Err(Trouble::Unsupported("daytona cannot end what a command reads".into()));
        };
        let text = std::str::from_utf8(&bytes).ok().filter(|text| text.ends_with('\n'));
        let Some(text) = text else {
            return Err(Trouble::Unsupported("daytona gives a command whole lines of text, and nothing else".into()));
        };
        let (session, command) = process.split_once('/').unwrap_or((process, ""));
        let url = format!("{}/process/session/{session}/command/{command}/input", self.inside(name).await?.toolbox);
        let body = json!({"data": text});
        self.client.done(Again::IfUndone, || self.toolbox_request(Method::POST, &url).json(&body)).await
    }

    /// The session ends with all that it runs; that is all that can be done to it.
    pub(super) async fn end(&self, name: &str, process: &str, signal: i32) -> Result<(), Trouble> {
        if ![SIGKILL, SIGTERM].contains(&signal) {
            return Err(Trouble::Unsupported(format!("daytona can end a command, and cannot send it signal {signal}")));
        }
        let (session, _) = process.split_once('/').unwrap_or((process, ""));
        let url = format!("{}/process/session/{session}", self.inside(name).await?.toolbox);
        match self.client.done(Again::Always, || self.toolbox_request(Method::DELETE, &url)).await {
            Err(trouble) if trouble.is_gone() => Ok(()),
            done => done,
        }
    }

    pub(super) async fn download(
        &self,
        name: &str,
        path: &str,
    ) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
        let url = format!("{}/files/download?path={path}", self.inside(name).await?.toolbox);
        let response = self.client.send(Again::Always, || self.toolbox_request(Method::GET, &url)).await?;
        let cut = |error: reqwest::Error| Trouble::Away(format!("a file was cut off: {}", error.without_url()));
        Ok(response.bytes_stream().map(move |piece| piece.map_err(cut)).boxed())
    }

    pub(super) async fn upload(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble> {
        let url = format!("{}/files/bulk-upload", self.inside(name).await?.toolbox);
        let boundary = format!("cove-{}", random::hex(16));
        let body: Bytes = [
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"files[0].path\"\r\n\r\n{path}\r\n--{boundary}\r\n\
                 Content-Disposition: form-data; name=\"files[0].file\"; filename=\"upload\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
            .as_bytes(),
            &content,
            format!("\r\n--{boundary}--\r\n").as_bytes(),
        ]
        .concat()
        .into();
        let kind = format!("multipart/form-data; boundary={boundary}");
        let make = || {
            let request = self.toolbox_request(Method::POST, &url).header("content-type", &kind);
            request.body(body.clone())
        };
        self.client.done(Again::Always, make).await
    }
}

/// What a session's shell is given: in a shell of its own, so that it stays.
fn command(run: &Run, own: &str) -> String {
    let mut words = run.words.clone();
    let mut env = run.env.clone();
    if let Some(user) = run.user.as_deref().filter(|user| *user != own) {
        let mut sudo: Vec<String> = ["sudo", "-n", "-H", "-u", user, "--"].map(str::to_owned).to_vec();
        if !env.is_empty() {
            sudo.push("env".into());
            sudo.extend(env.iter().map(|(name, value)| format!("{name}={value}")));
            env.clear();
        }
        words.splice(0..0, sudo);
    }
    let nothing = if run.input { "" } else { " </dev/null" };
    format!("( {}{nothing} )", line(&words, &env, run.cwd.as_deref()))
}

/// Follows one command to its end.
struct Follow {
    service: crate::provider::remote::Client,
    headers: http::HeaderMap,
    /// Until they end.
    logs: Option<WebSocketStream<Upgraded>>,
    marks: Marks,
    /// The command.
    place: String,
    session: String,
    ready: Vec<Piece>,
    done: bool,
}

impl Follow {
    async fn next(mut self) -> Option<(Result<Piece, Trouble>, Follow)> {
        loop {
            if !self.ready.is_empty() {
                return Some((Ok(self.ready.remove(0)), self));
            }
            if self.done {
                return None;
            }
            let Some(logs) = &mut self.logs else {
                self.done = true;
                let ended = self.ended().await;
                return Some((ended, self));
            };
            match logs.next().await {
                Some(Ok(Message::Binary(bytes))) => self.ready = self.marks.take(&bytes),
                Some(Ok(Message::Text(text))) => self.ready = self.marks.take(text.as_bytes()),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => {
                    self.ready = self.marks.rest();
                    self.logs = None;
                }
                Some(Err(error)) => {
                    self.done = true;
                    return Some((Err(Trouble::Away(format!("daytona was cut off: {error}"))), self));
                }
            }
        }
    }

    /// How it ended. Its session goes: nobody asks for it again. (A socket cannot be shared between threads, and can be lent.)
    async fn ended(&mut self) -> Result<Piece, Trouble> {
        let request = |method: Method, url: &str| self.service.request_to(method, url).headers(self.headers.clone());
        let command: Result<Command, Trouble> =
            self.service.json(Again::Always, || request(Method::GET, &self.place)).await;
        let gone = self.service.done(Again::Always, || request(Method::DELETE, &self.session)).await;
        if let Err(trouble) = gone
            && !trouble.is_gone()
        {
            tracing::debug!(%trouble, "remove the session of a command");
        }
        match command {
            // A session that was removed took its command with it.
            Err(trouble) if trouble.is_gone() => Ok(Piece::Exited(-1)),
            Err(trouble) => Err(trouble),
            Ok(Command { exit_code }) => Ok(Piece::Exited(exit_code.unwrap_or(-1))),
        }
    }
}

/// Tells the two streams apart. A mark may be cut by the end of a frame.
#[derive(Default)]
struct Marks {
    kept: Vec<u8>,
    err: bool,
}

impl Marks {
    fn take(&mut self, bytes: &[u8]) -> Vec<Piece> {
        self.kept.extend_from_slice(bytes);
        let mut pieces = Vec::new();
        loop {
            let mark = self.kept.windows(3).position(|three| three == OUT || three == ERR);
            match mark {
                Some(place) => {
                    self.say(place, &mut pieces);
                    self.err = self.kept.starts_with(ERR);
                    self.kept.drain(..3);
                }
                None => {
                    // The beginning of a mark waits for the rest of it.
                    let tail = [2, 1].into_iter().find(|count| {
                        let from = self.kept.len().saturating_sub(*count);
                        let end = &self.kept[from..];
                        end.len() == *count && (OUT.starts_with(end) || ERR.starts_with(end))
                    });
                    self.say(self.kept.len() - tail.unwrap_or(0), &mut pieces);
                    return pieces;
                }
            }
        }
    }

    fn rest(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.say(self.kept.len(), &mut pieces);
        pieces
    }

    fn say(&mut self, count: usize, pieces: &mut Vec<Piece>) {
        if count > 0 {
            let bytes: Bytes = self.kept.drain(..count).collect::<Vec<u8>>().into();
            pieces.push(if self.err { Piece::Err(bytes) } else { Piece::Out(bytes) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_are_told_apart_wherever_frames_are_cut() {
        let log = b"\x01\x01\x01out one\n\x02\x02\x02err\n\x01\x01\x01out two\n\x01";
        for cut in 1..log.len() {
            let mut marks = Marks::default();
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let mut pieces = Vec::new();
            log.chunks(cut).for_each(|piece| pieces.extend(marks.take(piece)));
            pieces.extend(marks.rest());
            for piece in pieces {
                match piece {
                    Piece::Out(bytes) => out.extend_from_slice(&bytes),
                    Piece::Err(bytes) => err.extend_from_slice(&bytes),
                    Piece::Exited(_) => panic!("{piece:?}"),
                }
            }
            assert_eq!((out.as_slice(), err.as_slice()), (&b"out one\nout two\n\x01"[..], &b"err\n"[..]), "{cut}");
        }
    }

    #[test]
    fn a_command_of_another_user_goes_by_sudo() {
        let mut run = Run::script("echo $1", &["a b"]);
        assert_eq!(command(&run, "daytona"), "( exec sh -c 'echo $1' cove 'a b' </dev/null )");
        run.user = Some("root".into());
        run.env.insert("A".into(), "1".into());
        run.cwd = Some("/x".into());
        run.input = true;
        let wanted = "( cd /x && exec sudo -n -H -u root -- env A=1 sh -c 'echo $1' cove 'a b' )";
        assert_eq!(command(&run, "daytona"), wanted);
    }
}
