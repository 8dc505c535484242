//! The client of the verbs: the server's native API over HTTP.
//!
//! `COVE_URL` is the server's address, `COVE_API_KEY` the key. On the machine of a server with default settings neither
//! is needed: the client tries the default address and reads the first key from the data directory.

pub mod conversation;
pub mod sandbox;
pub mod transcript;

use std::future::Future;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::complaint::Complaint;
use crate::place::Place;

pub const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Characters that need no escape in a path (RFC 3986, unreserved).
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
}

/// The body of every refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    code: String,
    message: String,
}

impl Client {
    pub fn from_environment() -> Result<Client, Complaint> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let url = set("COVE_URL").unwrap_or_else(|| DEFAULT_URL.to_owned());
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Complaint::usage(format!("COVE_URL is `{url}`, which is not the address of a server"))
                .hint(format!("write it like {DEFAULT_URL}")));
        }
        let url = url.trim_end_matches('/').to_owned();
        let key = set("COVE_API_KEY").or_else(|| if is_loopback(&url) { key_of_this_machine() } else { None });
        prepare_tls();
        let http = reqwest::Client::builder()
            .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| Complaint::failed(cove_control::tls::no_client(&error)))?;
        Ok(Client { http, url, key })
    }

    /// A request to a path below the API's root, with the key.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/api{path}", self.url)).header(ACCEPT, "application/json");
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, format!("Bearer {key}")),
            None => request,
        }
    }

    /// Sends the request; everything but success becomes a complaint.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, Complaint> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.refused(response).await)
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Complaint> {
        self.read(self.send(self.request(Method::GET, path)).await?).await
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, Complaint> {
        self.read(self.send(self.request(Method::POST, path).json(body)).await?).await
    }

    pub async fn delete(&self, path: &str) -> Result<(), Complaint> {
        self.send(self.request(Method::DELETE, path)).await.map(drop)
    }

    pub async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, Complaint> {
        let body = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        // Some calls have an empty answer: it is read as `null`.
        let body = if body.is_empty() { b"null".as_slice() } else { &body };
        serde_json::from_slice(body).map_err(|error| {
            Complaint::failed(format!("unexpected answer from {}: {error}", self.url))
                .hint("is it a Cove server of the same version as this program?")
        })
    }

    fn unreachable(&self, error: &reqwest::Error) -> Complaint {
        let mut cause: &dyn std::error::Error = error;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        let complaint = Complaint::failed(format!("no server answers at {}: {cause}", self.url));
        if error.is_connect() {
            complaint.hint("start one with `cove serve`, or set COVE_URL to the address of yours")
        } else {
            complaint
        }
    }

    async fn refused(&self, response: Response) -> Complaint {
        let status = response.status();
        let retry_after =
            response.headers().get("retry-after").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let body = response.bytes().await.unwrap_or_default();
        let refusal: Refusal = serde_json::from_slice(&body).unwrap_or_default();
        let message =
            if refusal.message.is_empty() { format!("the server answered {status}") } else { refusal.message };
        if let Some(code) = conversation::program_code(&message) {
            return Complaint::engine(message).with_code(code);
        }
        let complaint = Complaint::failed(message);
        match status {
            StatusCode::UNAUTHORIZED if self.key.is_none() => {
                complaint.hint("set COVE_API_KEY; `cove serve` printed the first key when it started")
            }
            StatusCode::UNAUTHORIZED => complaint.hint("COVE_API_KEY is the key of another server, or was revoked"),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => match retry_after {
                Some(seconds) => complaint.hint(format!("try again in {seconds} s")),
                None => complaint,
            },
            StatusCode::NOT_FOUND if refusal.code == "not_found" => complaint.hint("`cove ls` lists the sandboxes"),
            _ => complaint,
        }
    }
}

/// The TLS library needs a choice of its primitives before the first HTTP client is made, even one for plain HTTP.
pub fn prepare_tls() {
    // Fails the second time: then it is already done.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// One segment of a path, whatever the person typed.
pub fn segment(text: &str) -> String {
    utf8_percent_encode(text, KEPT).to_string()
}

/// `?name=value&…`, or nothing.
pub fn query_string(pairs: &[(&str, &str)]) -> String {
    let encoded: Vec<_> = pairs.iter().map(|(name, value)| format!("{}={}", segment(name), segment(value))).collect();
    if encoded.is_empty() { String::new() } else { format!("?{}", encoded.join("&")) }
}

/// Runs a verb's requests. One thread: a verb waits for one answer at a time.
pub fn block_on<T>(work: impl Future<Output = Result<T, Complaint>>) -> Result<T, Complaint> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    let done = runtime.block_on(work);
    // A thread may still wait for the keyboard; it ends with the program.
    runtime.shutdown_background();
    done
}

fn is_loopback(url: &str) -> bool {
    let host = url.split("://").nth(1).unwrap_or_default();
    ["127.0.0.1", "localhost", "[::1]"]
        .into_iter()
        .any(|name| host.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/'])))
}

fn key_of_this_machine() -> Option<String> {
    let key = std::fs::read_to_string(Place::new(None).data().join("api-key")).ok()?;
    Some(key.trim().to_owned()).filter(|key| !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_key_goes_to_this_machine_only() {
        for url in ["http://127.0.0.1:7070", "http://localhost", "http://[::1]:9", "https://localhost/x"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://127.0.0.1.example.com", "http://localhost.example.com:80", "http://10.0.0.1", "http://[::1"]
        {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn what_people_type_stays_one_segment() {
        assert_eq!(segment("my box/../x?y"), "my%20box%2F..%2Fx%3Fy");
    }
}
