//! The code interpreter that E2B clients expect on a port of every sandbox: contexts, and cells as lines of JSON.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::{Method, Request, StatusCode, header};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::envd::ROOT;
use super::error::plain;
use crate::guest::Guest;
use crate::interpreter::cell::{CHART, CellResult, DATA, SANDBOX_GONE};
use crate::interpreter::{
    Cell, CellEvent, Context, ContextId, Events, Interpreter, InterpreterError, Language, NewContext,
};
use crate::sandbox::Sandbox;

/// Where the original listens; clients name it in their headers and host names.
pub const PORT: u16 = 49999;

/// The longest request: a cell's code.
const MAX_BODY: usize = 8 << 20;
/// A line is sent at least this often, so that proxies and clients see that the cell lives.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What the original says of a context whose home was not given.
const HOME: &str = "/home/user";

/// One sandbox's interpreter, seen by one request.
pub struct CodeInterpreter<'a> {
    pub interpreter: &'a Interpreter,
    pub sandbox: &'a Sandbox,
    pub guest: &'a Guest,
}

#[derive(Deserialize)]
struct ExecuteRequest {
    code: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    env_vars: Option<BTreeMap<String, Value>>,
}

#[derive(Default, Deserialize)]
struct ContextRequest {
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    language: Option<String>,
}

impl CodeInterpreter<'_> {
    pub async fn answer(&self, request: Request<Body>) -> Response {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().trim_end_matches('/');
        let Ok(body) = axum::body::to_bytes(body, MAX_BODY).await else {
            return plain(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the code is longer than 8 MiB: write it to a file and run that",
            );
        };
        let contexts: Vec<&str> =
            path.strip_prefix("/contexts").map(|rest| rest.split('/').skip(1).collect()).unwrap_or_default();
        let answered = match (&parts.method, path, contexts.as_slice()) {
            (&Method::OPTIONS, ..) => return StatusCode::NO_CONTENT.into_response(),
            (&Method::GET, "/health", _) => return Json("OK").into_response(),
            (&Method::POST, "/execute", _) => self.execute(&body).await,
            (&Method::GET, "/contexts", _) => self.list().await,
            (&Method::POST, "/contexts", _) => self.create(&body).await,
            (&Method::POST, _, [id, "restart"]) => self.restart(id).await,
            (&Method::DELETE, _, [id]) => self.delete(id).await,
            _ => return plain(StatusCode::NOT_FOUND, "the interpreter has no such route"),
        };
        answered.unwrap_or_else(|refused| refused)
    }

    async fn execute(&self, body: &Bytes) -> Result<Response, Response> {
        let request: ExecuteRequest = parse(body)?;
        if request.context_id.is_some() && request.language.is_some() {
            return Err(plain(StatusCode::BAD_REQUEST, "Only one of context_id or language can be provided"));
        }
        let language: Language = request.language.as_deref().unwrap_or("python").parse().map_err(refusal)?;
        let env = request.env_vars.unwrap_or_default();
        let cell = Cell {
            code: request.code,
            context: request.context_id.map(ContextId),
            language,
            env: env
                .into_iter()
                .map(|(name, value)| (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
                .collect(),
            timeout: None,
        };
        let events = self.interpreter.execute(&self.sandbox.id, self.guest, cell).await.map_err(refusal)?;
        let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")];
        Ok((headers, Body::from_stream(lines(events))).into_response())
    }

    async fn list(&self) -> Result<Response, Response> {
        // The original starts these two with the sandbox; here they are started for whoever uses or lists them, so that all that
        // is listed is there. A template without the program has no such context.
        for language in [Language::Python, Language::JavaScript] {
            match self.interpreter.stand_by(&self.sandbox.id, self.guest, &language).await {
                Ok(()) | Err(InterpreterError::NoProgram(_)) => {}
                Err(error) => return Err(refusal(error)),
            }
        }
        let contexts = self.interpreter.list(self.guest).await.map_err(refusal)?;
        Ok(Json(contexts.iter().map(describe).collect::<Vec<_>>()).into_response())
    }

    async fn create(&self, body: &Bytes) -> Result<Response, Response> {
        let request: ContextRequest = if body.is_empty() { ContextRequest::default() } else { parse(body)? };
        let language = request.language.as_deref().unwrap_or("python").parse().map_err(refusal)?;
        let new = NewContext { language: Some(language), cwd: request.cwd, ..NewContext::default() };
        let context = match self.interpreter.create(&self.sandbox.id, self.guest, new.clone()).await {
            // The original runs all code as root, to whom no directory is closed. Here only what needs that.
            Err(InterpreterError::ClosedDirectory(_)) => {
                let as_root = NewContext { user: Some(ROOT.into()), ..new };
                self.interpreter.create(&self.sandbox.id, self.guest, as_root).await
            }
            made => made,
        }
        .map_err(refusal)?;
        Ok(Json(describe(&context)).into_response())
    }

    async fn restart(&self, id: &str) -> Result<Response, Response> {
        self.interpreter.restart(&self.sandbox.id, self.guest, &ContextId(id.to_owned())).await.map_err(refusal)?;
        Ok(Json(Value::Null).into_response())
    }

    async fn delete(&self, id: &str) -> Result<Response, Response> {
        self.interpreter.delete(self.guest, &ContextId(id.to_owned())).await.map_err(refusal)?;
        Ok(Json(Value::Null).into_response())
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Response> {
    serde_json::from_slice(body).map_err(|error| plain(StatusCode::UNPROCESSABLE_ENTITY, &error.to_string()))
}

fn refusal(error: InterpreterError) -> Response {
    match &error {
        InterpreterError::NoSuchContext(id) => plain(StatusCode::NOT_FOUND, &format!("Context {id} not found")),
        InterpreterError::UnknownLanguage(_)
        | InterpreterError::NoProgram(_)
        | InterpreterError::NoDirectory(_)
        | InterpreterError::ClosedDirectory(_) => plain(StatusCode::BAD_REQUEST, &error.to_string()),
        InterpreterError::Guest(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn describe(context: &Context) -> Value {
    json!({"id": context.id, "language": context.language, "cwd": context.cwd.as_deref().unwrap_or(HOME)})
}

/// The events as lines, with a sign of life while the cell is silent. Dropping the stream interrupts the cell.
/// A sandbox that goes away breaks the stream, which is how clients tell it from a cell that failed.
fn lines(events: Events) -> impl futures::Stream<Item = io::Result<Bytes>> {
    stream::unfold(Some(events), |events| async move {
        let mut events = events?;
        let (line, rest) = match tokio::time::timeout(KEEP_ALIVE, events.recv()).await {
            Err(_) => (json!({"type": "keepalive"}), Some(events)),
            Ok(Some(CellEvent::Done) | None) => (json!({"type": "end_of_execution"}), None),
            Ok(Some(CellEvent::Error(error))) if error.name == SANDBOX_GONE => {
                return Some((Err(io::Error::other(error.value)), None));
            }
            Ok(Some(event)) => (translate(event), Some(events)),
        };
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        Some((Ok(Bytes::from(bytes)), rest))
    })
}

fn translate(event: CellEvent) -> Value {
    let now = || jiff::Timestamp::now().to_string();
    match event {
        CellEvent::Started { count } => json!({"type": "number_of_executions", "execution_count": count}),
        CellEvent::Stdout { text } => json!({"type": "stdout", "text": text, "timestamp": now()}),
        CellEvent::Stderr { text } => json!({"type": "stderr", "text": text, "timestamp": now()}),
        CellEvent::Error(error) => {
            json!({"type": "error", "name": error.name, "value": error.value, "traceback": error.traceback})
        }
        CellEvent::Result(result) => shown(result),
        CellEvent::Done => json!({"type": "end_of_execution"}),
    }
}

/// A result under the names that clients know; MIME types without one go to `extra`.
fn shown(result: CellResult) -> Value {
    let mut line = Map::from_iter([("type".into(), "result".into()), ("is_main_result".into(), result.main.into())]);
    let mut extra = Map::new();
    for (kind, value) in result.data {
        let name = match kind.as_str() {
            "text/plain" => {
                line.insert("text".into(), unquoted(value));
                continue;
            }
            "text/html" => "html",
            "text/markdown" => "markdown",
            "image/svg+xml" => "svg",
            "image/png" => "png",
            "image/jpeg" => "jpeg",
            "application/pdf" => "pdf",
            "text/latex" => "latex",
            "application/json" => "json",
            "application/javascript" => "javascript",
            DATA => "data",
            CHART => "chart",
            _ => {
                extra.insert(kind, value);
                continue;
            }
        };
        line.insert(name.into(), value);
    }
    if !extra.is_empty() {
        line.insert("extra".into(), extra.into());
    }
    line.into()
}

/// A string's own text rather than its quoted form, as the original gives it.
fn unquoted(value: Value) -> Value {
    match value.as_str() {
        Some(text)
            if text.len() >= 2
                && (text.starts_with('\'') && text.ends_with('\'') || text.starts_with('"') && text.ends_with('"')) =>
        {
            text[1..text.len() - 1].into()
        }
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_bears_the_names_that_clients_know() {
        let data = BTreeMap::from([
            ("text/plain".to_owned(), json!("'hi'")),
            ("image/png".to_owned(), json!("aGk=")),
            (CHART.to_owned(), json!({"type": "line"})),
            ("application/x-own".to_owned(), json!(1)),
        ]);
        let line = shown(CellResult { main: true, data });
        assert_eq!(
            line,
            json!({"type": "result", "is_main_result": true, "text": "hi", "png": "aGk=", "chart": {"type": "line"}, "extra": {"application/x-own": 1}})
        );
    }
}
