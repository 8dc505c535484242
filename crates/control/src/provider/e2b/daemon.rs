//! The daemon inside a sandbox of E2B: processes by Connect's JSON, files by HTTP.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::{Buf as _, Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};

use super::{E2b, KIND};
use crate::provider::remote::client::Again;
use crate::provider::remote::service::{Piece, finish};
use crate::provider::remote::{Client, Input, Run, Running, Trouble};

/// Where it listens.
const PORT: u16 = 49983;

/// The largest message of a stream.
const MESSAGE: usize = 8 << 20;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

pub struct Daemon<'a> {
    service: &'a E2b,
    name: String,
    url: String,
    headers: HeaderMap,
}

impl E2b {
    pub(super) async fn daemon(&self, name: &str) -> Result<Daemon<'_>, Trouble> {
        let opened = self.opened(name).await?;
        let (url, mut headers) = self.place(&opened, PORT);
        if let Some(token) = &opened.envd_access_token
            && let Ok(mut token) = HeaderValue::from_str(token)
        {
            token.set_sensitive(true);
            headers.insert(HeaderName::from_static("x-access-token"), token);
        }
        Ok(Daemon { service: self, name: name.to_owned(), url, headers })
    }
}

impl Daemon<'_> {
    fn client(&self) -> &Client {
        &self.service.client
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client().request_to(method, &format!("{}{path}", self.url)).headers(self.headers.clone())
    }

    async fn call(&self, method: &str, body: Value) -> Result<(), Trouble> {
        let path = format!("/process.Process/{method}");
        let make = || self.request(Method::POST, &path).header("connect-protocol-version", "1").json(&body);
        self.client().done(Again::IfUndone, make).await
    }

    pub async fn run(&self, run: &Run) -> Result<Running, Trouble> {
        let (program, arguments) =
            run.words.split_first().ok_or_else(|| Trouble::Garbled("a command needs a program".into()))?;
        let mut process = json!({"cmd": program, "args": arguments, "envs": run.env});
        if let Some(cwd) = &run.cwd {
            process["cwd"] = json!(cwd);
        }
        let body = sealed(&json!({"process": process, "stdin": run.input}));
        let make = || {
            let request = self
                .request(Method::POST, "/process.Process/Start")
                .header("content-type", "application/connect+json")
                .header("connect-protocol-version", "1")
                .body(body.clone());
            match &run.user {
                Some(user) => request.basic_auth(user, Some("")),
                None => request,
            }
        };
        let response = self.client().send(Again::IfUndone, make).await?;
        let mut events = Events { response, buffer: BytesMut::new() };
        let pid = loop {
            match events.next().await? {
                Some(event) => {
                    if let Some(pid) = event.pointer("/event/start/pid").and_then(Value::as_u64) {
                        break pid;
                    }
                }
                None => return Err(Trouble::Away("a command of e2b did not begin".into())),
            }
        };
        Ok(Running { process: pid.to_string(), pieces: pieces(events) })
    }

    pub async fn input(&self, process: &str, input: Input) -> Result<(), Trouble> {
        let process = selector(process);
        match input {
            Input::Bytes(bytes) => {
                let stdin = BASE64_STANDARD.encode(&bytes);
                self.call("SendInput", json!({"process": process, "input": {"stdin": stdin}})).await
            }
            Input::End => self.call("CloseStdin", json!({"process": process})).await,
        }
    }

    pub async fn signal(&self, process: &str, signal: i32) -> Result<(), Trouble> {
        let named = match signal {
            SIGKILL => "SIGNAL_SIGKILL",
            SIGTERM => "SIGNAL_SIGTERM",
            // It knows no others; a program inside does.
            other => {
                let kill = Run::script(r#"kill -"$1" "$2""#, &[&other.to_string(), process]).by(Some("root"));
                let output = finish(self.service, &self.name, &kill).await?;
                return match output.code {
                    0 => Ok(()),
                    _ => Err(Trouble::Refused { status: StatusCode::NOT_FOUND, message: output.complaint() }),
                };
            }
        };
        self.call("SendSignal", json!({"process": selector(process), "signal": named})).await
    }

    pub async fn read(&self, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        let path = format!("/files?username=root&path={}", utf8_percent_encode(path, NON_ALPHANUMERIC));
        let make = || self.request(Method::GET, &path).header("accept-encoding", "identity");
        let response = self.client().send(Again::Always, make).await?;
        let cut = |error: reqwest::Error| Trouble::Away(format!("a file was cut off: {}", error.without_url()));
        Ok(response.bytes_stream().map(move |piece| piece.map_err(cut)).boxed())
    }

    pub async fn write(&self, path: &str, content: Bytes) -> Result<(), Trouble> {
        let path = format!("/files?username=root&path={}", utf8_percent_encode(path, NON_ALPHANUMERIC));
        let make = || {
            let request = self.request(Method::POST, &path).header("content-type", "application/octet-stream");
            request.body(content.clone())
        };
        self.client().done(Again::Always, make).await
    }
}

fn selector(process: &str) -> Value {
    json!({"pid": process.parse::<u32>().unwrap_or_default()})
}

/// One message: a byte of flags, four of length, JSON.
fn sealed(message: &Value) -> Bytes {
    let text = message.to_string();
    let mut bytes = vec![0];
    bytes.extend((text.len() as u32).to_be_bytes());
    bytes.extend(text.as_bytes());
    bytes.into()
}

/// The messages of an answer, as they come.
struct Events {
    response: Response,
    buffer: BytesMut,
}

impl Events {
    /// `None` after the last; an error that the daemon ended with is one here.
    async fn next(&mut self) -> Result<Option<Value>, Trouble> {
        loop {
            if let Some((flags, message)) = take(&mut self.buffer)? {
                if flags & 2 == 0 {
                    return Ok(Some(message));
                }
                return match message.get("error") {
                    None => Ok(None),
                    Some(error) => Err(refusal(error)),
                };
            }
            let cut = |error: reqwest::Error| Trouble::Away(format!("e2b was cut off: {}", error.without_url()));
            match self.response.chunk().await.map_err(cut)? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None => return Err(Trouble::Away("e2b ended a stream in the middle".into())),
            }
        }
    }
}

fn take(buffer: &mut BytesMut) -> Result<Option<(u8, Value)>, Trouble> {
    let Some(header) = buffer.first_chunk::<5>() else { return Ok(None) };
    let (flags, length) = (header[0], u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize);
    if length > MESSAGE {
        return Err(Trouble::Garbled("e2b sent a message of more than 8 MiB".into()));
    }
    if buffer.len() < 5 + length {
        return Ok(None);
    }
    buffer.advance(5);
    let text = buffer.split_to(length);
    let message = serde_json::from_slice(&text);
    message
        .map(|message| Some((flags, message)))
        .map_err(|error| Trouble::Garbled(format!("e2b sent no JSON: {error}")))
}

/// The statuses that Connect has for its codes.
fn refusal(error: &Value) -> Trouble {
    let status = match error["code"].as_str().unwrap_or_default() {
        "invalid_argument" | "failed_precondition" | "out_of_range" => StatusCode::BAD_REQUEST,
        "unauthenticated" => StatusCode::UNAUTHORIZED,
        "permission_denied" => StatusCode::FORBIDDEN,
        "not_found" => StatusCode::NOT_FOUND,
        "already_exists" | "aborted" => StatusCode::CONFLICT,
        "resource_exhausted" => StatusCode::TOO_MANY_REQUESTS,
        "unimplemented" => StatusCode::NOT_IMPLEMENTED,
        "unavailable" => StatusCode::SERVICE_UNAVAILABLE,
        "deadline_exceeded" => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let said = error["message"].as_str().unwrap_or("it said nothing");
    Trouble::Refused { status, message: format!("{} refused: {said}", KIND.name) }
}

fn pieces(events: Events) -> BoxStream<'static, Result<Piece, Trouble>> {
    let next = |mut events: Events| async move {
        loop {
            let told = match events.next().await {
                Ok(Some(event)) => piece(&event),
                Ok(None) => return None,
                Err(trouble) => Some(Err(trouble)),
            };
            if let Some(told) = told {
                return Some((told, events));
            }
        }
    };
    // After an error nothing comes.
    stream::unfold(events, next)
        .scan(false, |failed, told| {
            let was = std::mem::replace(failed, told.is_err());
            futures::future::ready((!was).then_some(told))
        })
        .boxed()
}

/// What an event says of the process; nothing where it says nothing.
fn piece(event: &Value) -> Option<Result<Piece, Trouble>> {
    let bytes = |name: &str| {
        let text = event.pointer(&format!("/event/data/{name}"))?.as_str()?;
        Some(BASE64_STANDARD.decode(text).map(Bytes::from).map_err(|_| Trouble::Garbled("e2b sent no base64".into())))
    };
    if let Some(out) = bytes("stdout") {
        return Some(out.map(Piece::Out));
    }
    if let Some(err) = bytes("stderr") {
        return Some(err.map(Piece::Err));
    }
    let end = event.pointer("/event/end")?;
    // Left out where it is zero.
    let code = end.get("exitCode").and_then(Value::as_i64).unwrap_or(0);
    Some(Ok(Piece::Exited(i32::try_from(code).unwrap_or(-1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_put_together_and_those_that_are_too_long_refused() {
        let one = sealed(&json!({"event": {"start": {"pid": 7}}}));
        let mut buffer = BytesMut::new();
        for byte in &one[..one.len() - 1] {
            buffer.extend_from_slice(&[*byte]);
            assert!(take(&mut buffer).unwrap().is_none());
        }
        buffer.extend_from_slice(&one[one.len() - 1..]);
        assert_eq!(take(&mut buffer).unwrap().unwrap().1.pointer("/event/start/pid"), Some(&json!(7)));
        assert!(buffer.is_empty());
        buffer.extend_from_slice(&[0, 0xff, 0, 0, 0]);
        assert!(take(&mut buffer).is_err());
    }

    #[test]
    fn events_say_what_was_printed_and_how_it_ended() {
        let said = |event: Value| piece(&json!({ "event": event })).map(Result::unwrap);
        assert_eq!(said(json!({"data": {"stdout": "aGk="}})), Some(Piece::Out("hi".into())));
        assert_eq!(said(json!({"data": {"stderr": "aGk="}})), Some(Piece::Err("hi".into())));
        assert_eq!(said(json!({"keepalive": {}})), None);
        assert_eq!(said(json!({"end": {"exited": true, "status": "exit status 0"}})), Some(Piece::Exited(0)));
        assert_eq!(said(json!({"end": {"exitCode": -1, "status": "signal: killed"}})), Some(Piece::Exited(-1)));
    }
}
