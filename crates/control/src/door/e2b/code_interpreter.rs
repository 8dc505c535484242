//! The code interpreter that E2B clients expect on a port of every sandbox: contexts, and cells as lines of JSON.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use futures::stream;
use http::{StatusCode, header};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::envd::ROOT;
use super::error::{ApiError, plain};
use super::traffic::Reached;
use crate::door::known::read;
use crate::door::size;
use crate::door::table::{Needs, Table};
use crate::interpreter::cell::{CHART, CellResult, DATA, SANDBOX_GONE};
use crate::interpreter::{Cell, CellEvent, Context, ContextId, Events, InterpreterError, Language, NewContext};
use crate::{Error, border, heavy};

/// Where the original listens; clients name it in their headers and host names.
pub const PORT: u16 = 49999;

/// The longest request: a cell's code.
const MAX_BODY: usize = 8 << 20;
/// A line is sent at least this often, so that proxies and clients see that the cell lives.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// What the original says of a context whose home was not given.
const HOME: &str = "/home/user";

/// The interpreter's routes and what each asks for. Each handler finds what the guard [`Reached`].
pub fn table() -> Table<()> {
    Table::new()
        .get("/health", Needs::Life, || async { Json("OK") })
        .post("/execute", Needs::Access, execute)
        .get("/contexts", Needs::AccessOrTraffic, list)
        .post("/contexts", Needs::AccessOrTraffic, create)
        .post("/contexts/{id}/restart", Needs::AccessOrTraffic, restart)
        .delete("/contexts/{id}", Needs::AccessOrTraffic, delete)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(deny_unknown_fields)]
struct ContextRequest {
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    language: Option<String>,
}

type Answer = Result<Response, Response>;

/// The body, whole.
async fn whole(body: Body) -> Result<Bytes, Response> {
    let message = "the code is longer than 8 MiB: write it to a file and run that";
    size::whole(body, MAX_BODY).await.map_err(|error| match error {
        Error::TooLarge { .. } => plain(StatusCode::PAYLOAD_TOO_LARGE, message),
        error @ Error::Exhausted { .. } => ApiError::from(error).into_response(),
        error => plain(StatusCode::BAD_REQUEST, &error.to_string()),
    })
}

async fn execute(Extension(Reached { app, sandbox, guest }): Extension<Reached>, body: Body) -> Answer {
    let body = whole(body).await?;
    let request: ExecuteRequest = parse(body).await?;
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
    let events = app.interpreter().execute(&sandbox, &guest, cell).await.map_err(refusal)?;
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(lines(events))).into_response())
}

async fn list(Extension(Reached { app, sandbox, guest }): Extension<Reached>) -> Answer {
    // The original starts these two with the sandbox; here they are started for whoever uses or lists them, so that all that
    // is listed is there. A template without the program has no such context.
    for language in [Language::Python, Language::JavaScript] {
        match app.interpreter().stand_by(&sandbox.id, &guest, &language).await {
            Ok(()) | Err(InterpreterError::NoProgram(_)) => {}
            Err(error) => return Err(refusal(error)),
        }
    }
    let mut contexts = app.interpreter().list(&guest).await.map_err(refusal)?;
    // They are the oldest in the original, whenever they were started here: the newest context is the last.
    contexts.sort_by_key(|context| !context.id.is_default());
    Ok(Json(contexts.iter().map(describe).collect::<Vec<_>>()).into_response())
}

async fn create(Extension(Reached { app, sandbox, guest }): Extension<Reached>, body: Body) -> Answer {
    let body = whole(body).await?;
    let request: ContextRequest = if body.is_empty() { ContextRequest::default() } else { parse(body).await? };
    let language = request.language.as_deref().unwrap_or("python").parse().map_err(refusal)?;
    let new = NewContext { language: Some(language), cwd: request.cwd, ..NewContext::default() };
    let context = match app.interpreter().create(&sandbox.id, &guest, new.clone()).await {
        // The original runs all code as root, to whom no directory is closed. Here only what needs that.
        Err(InterpreterError::ClosedDirectory(_)) => {
            let as_root = NewContext { user: Some(ROOT.into()), ..new };
            app.interpreter().create(&sandbox.id, &guest, as_root).await
        }
        made => made,
    };
    Ok(Json(describe(&context.map_err(refusal)?)).into_response())
}

async fn restart(
    Extension(Reached { app, sandbox, guest }): Extension<Reached>,
    Path(id): Path<String>,
    body: Body,
) -> Answer {
    whole(body).await?;
    app.interpreter().restart(&sandbox.id, &guest, &ContextId(id)).await.map_err(refusal)?;
    Ok(Json(Value::Null).into_response())
}

async fn delete(Extension(Reached { app, guest, .. }): Extension<Reached>, Path(id): Path<String>) -> Answer {
    app.interpreter().delete(&guest, &ContextId(id)).await.map_err(refusal)?;
    Ok(Json(Value::Null).into_response())
}

async fn parse<T: DeserializeOwned + Send + 'static>(body: Bytes) -> Result<T, Response> {
    let parsed = heavy::run(body.len(), heavy::SMALL, move || {
        border::shape::check(&body).map_err(|excess| excess.to_string())?;
        read(&body)
    });
    parsed.await.map_err(|error: String| plain(StatusCode::UNPROCESSABLE_ENTITY, &error))
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
