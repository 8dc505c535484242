//! The client of the verbs: the server's native API over HTTP.
//!
//! `COVE_URL` is the server's address, `COVE_API_KEY` the key; without the first, `SANDBOX_HOST` and `SANDBOX_PORT` name the
//! address, as they do for the server. On the server's machine none is needed: the client reads both from the data
//! directory, and without an address there it tries the default. `SANDBOX_SERVER_URL` and `SANDBOX_API_KEY` are of the
//! service that a server's provider uses, and are not read here.

pub mod conversation;
mod refusal;
pub mod sandbox;
pub mod transcript;
mod unreachable;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use self::refusal::{Key, Refusal};
use crate::complaint::Complaint;
use crate::place::Place;

pub const DEFAULT_URL: &str = "http://127.0.0.1:7070";

/// Characters that need no escape in a path (RFC 3986, unreserved).
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

pub struct Client {
    http: reqwest::Client,
    url: String,
    key: Option<String>,
    /// Where the key came from, if there is one.
    key_from: Key,
}

/// Why a request came to nothing.
#[derive(Debug)]
pub enum Failure {
    /// There was no answer, or the server could not serve it now.
    Passing(Complaint),
    /// The server's answer is no.
    Lasting(Complaint),
}

impl Client {
    #[cfg(test)]
    pub fn of(url: &str) -> Client {
        prepare_tls();
        let http = reqwest::Client::builder().no_proxy().build().expect("a client for plain HTTP");
        Client { http, url: url.to_owned(), key: None, key_from: Key::None }
    }

    /// A server of this machine, or another that was named with its key.
    pub fn at(url: &str, key: &str) -> Result<Client, Complaint> {
        prepare_tls();
        let mut http = reqwest::Client::builder().user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")));
        if let Some(host) = host_of(url).filter(|host| is_this_machine(host)) {
            http = http.no_proxy().resolve_to_addrs(&host, &LOOPBACK.map(|address| SocketAddr::new(address, 0)));
        }
        let http = http.build().map_err(|error| Complaint::failed(cove_control::tls::no_client(&error)))?;
        let url = url.trim_end_matches('/');
        let url = url.strip_suffix("/api").unwrap_or(url).to_owned();
        Ok(Client { http, url, key: Some(key.to_owned()), key_from: Key::OfTheEnvironment })
    }

    pub fn from_environment() -> Result<Client, Complaint> {
        let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let named = set("COVE_URL").or_else(|| address_of(set("SANDBOX_HOST"), set("SANDBOX_PORT")));
        let noted = Place::new(None).server();
        let is_own = named.is_none();
        let url = named.or(noted).unwrap_or_else(|| DEFAULT_URL.to_owned());
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Complaint::usage(format!("COVE_URL is `{url}`, which is not the address of a server"))
                .hint(format!("write it like {DEFAULT_URL}")));
        }
        let url = url.trim_end_matches('/');
        // As the documentation of the API writes it.
        let url = url.strip_suffix("/api").unwrap_or(url).to_owned();
        let host = host_of(&url).filter(|host| is_own || is_this_machine(host));
        let named = set("COVE_API_KEY");
        let key_from = if named.is_some() { Key::OfTheEnvironment } else { Key::OfTheDataDirectory };
        let key = named.or_else(|| host.as_ref().and_then(|_| key_of_this_machine()));
        prepare_tls();
        let mut http = reqwest::Client::builder().user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")));
        if let Some(host) = host.filter(|host| is_this_machine(host)) {
            // No proxy leads to this machine, and not every resolver knows the names below `localhost` (RFC 6761, 6.3).
            http = http.no_proxy().resolve_to_addrs(&host, &LOOPBACK.map(|address| SocketAddr::new(address, 0)));
        }
        let http = http.build().map_err(|error| Complaint::failed(cove_control::tls::no_client(&error)))?;
        Ok(Client { http, url, key, key_from })
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
        self.attempt(request).await.map_err(|failure| match failure {
            Failure::Passing(complaint) | Failure::Lasting(complaint) => complaint,
        })
    }

    /// The same; says whether it can be worth another try.
    pub async fn attempt(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| Failure::Passing(self.unreachable(&error)))?;
        match response.status() {
            status if status.is_success() => Ok(response),
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(Failure::Passing(self.refused(response).await))
            }
            _ => Err(Failure::Lasting(self.refused(response).await)),
        }
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Complaint> {
        self.read(self.send(self.request(Method::GET, path)).await?).await
    }

    /// `None` where there is no such thing.
    pub async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Complaint> {
        let response = self.request(Method::GET, path).send().await.map_err(|error| self.unreachable(&error))?;
        match response.status() {
            StatusCode::NOT_FOUND => Ok(None),
            status if status.is_success() => self.read(response).await.map(Some),
            _ => Err(self.refused(response).await),
        }
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
        unreachable::complaint(&self.url, &cause.to_string())
    }

    async fn refused(&self, response: Response) -> Complaint {
        let key = if self.key.is_some() { self.key_from } else { Key::None };
        Refusal::read(response).await.complaint(key)
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

/// Where names below `localhost` lead.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// The server's URL out of a host and a port of which one is set. A server that listens on every address is reached on
/// this machine.
fn address_of(host: Option<String>, port: Option<String>) -> Option<String> {
    if host.is_none() && port.is_none() {
        return None;
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let host = match host.trim_matches(['[', ']']).parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => "127.0.0.1".to_owned(),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host,
    };
    let port = port.unwrap_or_else(|| "7070".to_owned());
    Some(format!("http://{host}:{port}"))
}

fn host_of(url: &str) -> Option<String> {
    reqwest::Url::parse(url).ok()?.host_str().map(str::to_owned)
}

/// Whether a host can only be this machine: a loopback address, or `localhost` and the names below it (RFC 6761).
pub fn is_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    is_local_name(host) || address.is_ok_and(|address| address.is_loopback())
}

fn is_local_name(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost")
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
        for url in [
            "http://127.0.0.1:7070",
            "http://localhost",
            "http://[::1]:9",
            "https://localhost/x",
            "https://cove.localhost:7443",
        ] {
            assert!(host_of(url).is_some_and(|host| is_this_machine(&host)), "{url}");
        }
        for url in [
            "http://127.0.0.1.example.com",
            "http://localhost.example.com:80",
            "http://notlocalhost",
            "http://localhost@example.com",
            "http://10.0.0.1",
            "http://[::1",
        ] {
            assert!(!host_of(url).is_some_and(|host| is_this_machine(&host)), "{url}");
        }
    }

    #[test]
    fn a_host_and_a_port_are_an_address() {
        let address = |host: Option<&str>, port: Option<&str>| address_of(host.map(Into::into), port.map(Into::into));
        assert_eq!(address(None, None), None);
        assert_eq!(address(Some("0.0.0.0"), Some("8090")).as_deref(), Some("http://127.0.0.1:8090"));
        assert_eq!(address(Some("::1"), None).as_deref(), Some("http://[::1]:7070"));
        assert_eq!(address(Some("box.example"), Some("80")).as_deref(), Some("http://box.example:80"));
        assert_eq!(address(None, Some("1")).as_deref(), Some("http://127.0.0.1:1"));
    }

    #[test]
    fn what_people_type_stays_one_segment() {
        assert_eq!(segment("my box/../x?y"), "my%20box%2F..%2Fx%3Fy");
    }
}
