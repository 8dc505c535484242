//! Requests to a server whose answers are timed and whose refusals are counted.

use std::fmt;
use std::time::Duration;

use cove_terminal::complaint::Complaint;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::AUTHORIZATION;
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

/// Longer than any honest answer takes: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    pub url: String,
    pub key: String,
}

/// Why a request brought nothing.
#[derive(Debug, Clone)]
pub enum Trouble {
    /// The server has no room now, and said when to come again.
    Busy {
        status: u16,
        retry_after: Option<Duration>,
        message: String,
    },
    Refused {
        status: u16,
        code: String,
        message: String,
    },
    /// No answer within a minute.
    Hung,
    /// Nobody listens there.
    Unreachable(String),
    Lost(String),
    /// The answer was another than it had to be.
    Wrong(String),
}

impl Trouble {
    /// The same for all that are of one cause.
    pub fn kind(&self) -> String {
        match self {
            Trouble::Busy { status, .. } => format!("{status} no capacity"),
            Trouble::Refused { status, code, .. } => format!("{status} {code}"),
            Trouble::Hung => "no answer within 60 s".into(),
            Trouble::Unreachable(_) => "nobody answers".into(),
            Trouble::Lost(_) => "connection lost".into(),
            Trouble::Wrong(_) => "wrong answer".into(),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Busy { message, .. } | Trouble::Refused { message, .. } => {
                write!(f, "{}: {message}", self.kind())
            }
            Trouble::Hung => f.write_str(&self.kind()),
            Trouble::Unreachable(why) | Trouble::Lost(why) | Trouble::Wrong(why) => write!(f, "{}: {why}", self.kind()),
        }
    }
}

impl From<Trouble> for Complaint {
    fn from(trouble: Trouble) -> Self {
        Complaint::failed(trouble.to_string())
    }
}

impl Api {
    pub fn new(url: &str, key: &str) -> Result<Api, Complaint> {
        // The TLS library wants a choice of its primitives even for plain HTTP. Fails the second time: then it is done.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).build();
        let http = http.map_err(|error| Complaint::failed(format!("make an HTTP client: {error}")))?;
        Ok(Api { http, url: url.trim_end_matches('/').to_owned(), key: key.to_owned() })
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        request.header(AUTHORIZATION, format!("Bearer {}", self.key))
    }

    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Trouble> {
        let response = request.send().await.map_err(lost)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let body: Value = response.json().await.unwrap_or_default();
        let text = |name: &str| body[name].as_str().unwrap_or_default().to_owned();
        let (status, code, message) = (status, text("code"), text("message"));
        Err(match status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Trouble::Busy { status: status.as_u16(), retry_after, message }
            }
            _ => Trouble::Refused { status: status.as_u16(), code, message },
        })
    }

    pub async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, Trouble> {
        let request = self.request(method, path);
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        let bytes = self.send(request).await?.bytes().await.map_err(lost)?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|error| Trouble::Wrong(error.to_string()))
    }

    /// An answer that is no JSON.
    pub async fn call_text(&self, path: &str) -> Result<String, Trouble> {
        self.send(self.request(Method::GET, path)).await?.text().await.map_err(lost)
    }

    /// A sandbox that ends by itself should nobody come to end it.
    pub async fn create(&self, labels: Value) -> Result<String, Trouble> {
        let timers = json!({ "lifetime_seconds": 3600, "ephemeral": true });
        self.create_with(json!({ "timers": timers, "labels": labels })).await
    }

    /// A sandbox by all that the API takes.
    pub async fn create_with(&self, body: Value) -> Result<String, Trouble> {
        let made = self.call(Method::POST, "/api/sandboxes", Some(body)).await?;
        text_of(&made, "id")
    }

    /// The output of a command that must succeed.
    pub async fn exec(&self, id: &str, command: &[&str]) -> Result<String, Trouble> {
        let body = json!({ "command": command });
        let done = self.call(Method::POST, &format!("/api/sandboxes/{id}/exec"), Some(body)).await?;
        match done["exit"]["status"].as_i64() {
            Some(0) => text_of(&done, "stdout"),
            _ => Err(Trouble::Wrong(format!("{command:?} ended with {done}"))),
        }
    }

    pub async fn delete(&self, id: &str) -> Result<(), Trouble> {
        self.call(Method::DELETE, &format!("/api/sandboxes/{id}"), None).await.map(drop)
    }

    /// The ids of all sandboxes, page by page, whose state is `state` where one is named.
    pub async fn sandboxes(&self, query: &str, state: Option<&str>) -> Result<Vec<String>, Trouble> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.call(Method::GET, &format!("/api/sandboxes?limit=1000{query}{cursor}"), None).await?;
            let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            let wanted = items.iter().filter(|item| state.is_none() || item["state"].as_str() == state);
            ids.extend(wanted.filter_map(|item| item["id"].as_str().map(str::to_owned)));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={}", utf8_percent_encode(next, NON_ALPHANUMERIC)),
                None => return Ok(ids),
            }
        }
    }
}

pub fn text_of(value: &Value, field: &str) -> Result<String, Trouble> {
    let text = value[field].as_str().map(str::to_owned);
    text.ok_or_else(|| Trouble::Wrong(format!("the answer has no `{field}`: {value}")))
}

pub fn lost(error: reqwest::Error) -> Trouble {
    if error.is_timeout() {
        return Trouble::Hung;
    }
    let mut cause: &dyn std::error::Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if error.is_connect() { Trouble::Unreachable(cause.to_string()) } else { Trouble::Lost(cause.to_string()) }
}
