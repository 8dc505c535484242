//! HTTP to a service: one address, one key, and calls that are made again where that is safe.
//!
//! A service says when it has had enough (`429`, `503`, `Retry-After`); then all calls to it wait, not only the one that
//! was told. What a call could have done before it failed decides whether it is made again ([`Again`]).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Method, RequestBuilder, Response};
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::super::ProviderError;
use super::super::kind::Opening;
use crate::Error;

/// How long a service may take to begin its answer. Making a sandbox may take it a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// How long a connection may take to come about.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

/// Attempts at one call.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// A service that asks for more is told to the caller instead.
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Calls under way to one service at a time. Streams count until they begin.
const AT_ONCE: usize = 64;

/// The most of an answer that is read where an object is expected.
const ANSWER: usize = 16 << 20;

/// The most of a refusal that is shown.
const SENTENCE: usize = 300;

/// The server that calls. One that gets a call of its own refuses it: its sandboxes would be its own sandboxes', for ever.
pub const FROM: HeaderName = HeaderName::from_static("cove-from");

/// Why a call came to nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Trouble {
    /// It answered with an error of its own.
    #[error("{message}")]
    Refused { status: StatusCode, message: String },
    /// It did not answer, or was cut off.
    #[error("{0}")]
    Away(String),
    /// Its answer was not what it should be.
    #[error("{0}")]
    Garbled(String),
    /// It has no such call.
    #[error("{0}")]
    Unsupported(String),
}

impl Trouble {
    pub fn is(&self, wanted: StatusCode) -> bool {
        matches!(self, Trouble::Refused { status, .. } if *status == wanted)
    }

    pub fn is_gone(&self) -> bool {
        self.is(StatusCode::NOT_FOUND) || self.is(StatusCode::GONE)
    }
}

impl From<Trouble> for ProviderError {
    fn from(trouble: Trouble) -> ProviderError {
        let sentence = trouble.to_string();
        match trouble {
            Trouble::Refused { status, .. } => match status {
                // Until somebody changes the key, the plan, the account or the address.
                StatusCode::UNAUTHORIZED
                | StatusCode::FORBIDDEN
                | StatusCode::PAYMENT_REQUIRED
                | StatusCode::LOOP_DETECTED => ProviderError::Unfit(sentence),
                StatusCode::TOO_MANY_REQUESTS | StatusCode::CONFLICT | StatusCode::LOCKED => {
                    ProviderError::Exhausted(sentence)
                }
                StatusCode::NOT_IMPLEMENTED => ProviderError::Unsupported(sentence),
                StatusCode::INSUFFICIENT_STORAGE => ProviderError::Exhausted(sentence),
                status if status.is_server_error() => ProviderError::Exhausted(sentence),
                _ => ProviderError::Refused(sentence),
            },
            Trouble::Away(_) => ProviderError::Exhausted(sentence),
            Trouble::Garbled(_) => ProviderError::Failed(sentence),
            Trouble::Unsupported(_) => ProviderError::Unsupported(sentence),
        }
    }
}

/// When a call that failed may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Twice is as good as once.
    Always,
    /// Only where it certainly did nothing: the service refused to begin, or was not reached.
    IfUndone,
    Never,
}

/// A service as its clients see it.
#[derive(Clone)]
pub struct Client(Arc<Parts>);

struct Parts {
    /// For sentences.
    service: String,
    base: String,
    http: reqwest::Client,
    /// With every call: they hold the key, and are never shown.
    headers: HeaderMap,
    places: Semaphore,
    /// The service wants no calls before this.
    not_before: Mutex<Option<Instant>>,
}

impl Client {
    /// Of a server's provider.
    pub fn open(opening: &Opening<'_>, base: &str, mut headers: HeaderMap) -> Result<Client, Error> {
        let server = crate::identity::of_server(&opening.config.data)?;
        let server =
            HeaderValue::from_str(&server).map_err(|_| Error::internal("the name of this server is no word"))?;
        headers.insert(FROM, server);
        Client::new(&opening.section.kind, base, headers)
    }

    pub fn new(service: &str, base: &str, headers: HeaderMap) -> Result<Client, Error> {
        Ok(Client(Arc::new(Parts {
            service: service.to_owned(),
            base: base.trim_end_matches('/').to_owned(),
            http: http()?,
            headers,
            places: Semaphore::new(AT_ONCE),
            not_before: Mutex::default(),
        })))
    }

    pub fn http(&self) -> &reqwest::Client {
        &self.0.http
    }

    pub fn service(&self) -> &str {
        &self.0.service
    }

    pub fn base(&self) -> &str {
        &self.0.base
    }

    /// A request to the service, with its key. `path` begins with a slash.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.0.http.request(method, format!("{}{path}", self.0.base)).headers(self.0.headers.clone())
    }

    /// A request to another address of the service, without its key.
    pub fn request_to(&self, method: Method, url: &str) -> RequestBuilder {
        self.0.http.request(method, url)
    }

    /// Sends what `make` makes, again where that may be. An answer that is no success is an error.
    pub async fn send(&self, again: Again, make: impl Fn() -> RequestBuilder) -> Result<Response, Trouble> {
        let mut pause = FIRST_PAUSE;
        for attempt in 1.. {
            let outcome = self.once(make()).await;
            let trouble = match outcome {
                Ok(response) => return Ok(response),
                Err(trouble) => trouble,
            };
            let wait = trouble.wait.unwrap_or(pause);
            if attempt >= ATTEMPTS || wait > LONGEST_PAUSE || !trouble.may_be_repeated(again) {
                return Err(trouble.trouble);
            }
            tracing::debug!(service = %self.0.service, attempt, trouble = %trouble.trouble, "try a call again");
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("the last attempt returns")
    }

    /// The same, for an answer in JSON.
    pub async fn json<T: DeserializeOwned>(
        &self,
        again: Again,
        make: impl Fn() -> RequestBuilder,
    ) -> Result<T, Trouble> {
        let response = self.send(again, make).await?;
        let bytes = self.bytes(response).await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Trouble::Garbled(format!("{} answered what is not its API: {error}", self.0.service)))
    }

    /// The same, for an answer that says nothing.
    pub async fn done(&self, again: Again, make: impl Fn() -> RequestBuilder) -> Result<(), Trouble> {
        self.send(again, make).await.map(drop)
    }

    /// All of an answer, up to a limit.
    pub async fn bytes(&self, mut response: Response) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        let cut = |error: reqwest::Error| Trouble::Away(format!("{} was cut off: {}", self.0.service, told(&error)));
        while let Some(piece) = response.chunk().await.map_err(cut)? {
            if bytes.len() + piece.len() > ANSWER {
                return Err(Trouble::Garbled(format!("{} answered with more than 16 MiB", self.0.service)));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }

    async fn once(&self, request: RequestBuilder) -> Result<Response, Attempt> {
        let until = *self.0.not_before.lock().expect("no panic while held");
        if let Some(until) = until {
            tokio::time::sleep_until(until).await;
        }
        let _place = self.0.places.acquire().await.expect("nobody closes it");
        let service = &self.0.service;
        let answered = tokio::time::timeout(ANSWER_WITHIN, request.send()).await;
        let response = match answered {
            Err(_) => {
                let trouble = format!("{service} did not answer within {} s", ANSWER_WITHIN.as_secs());
                return Err(Attempt { trouble: Trouble::Away(trouble), wait: None, undone: false });
            }
            Ok(Err(error)) => {
                let trouble = Trouble::Away(format!("{service} cannot be reached: {}", told(&error)));
                return Err(Attempt { trouble, wait: None, undone: error.is_connect() });
            }
            Ok(Ok(response)) => response,
        };
        if response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let (status, wait) = (response.status(), retry_after(response.headers()));
        let undone = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        if let Some(wait) = wait.filter(|wait| undone && *wait <= LONGEST_PAUSE) {
            *self.0.not_before.lock().expect("no panic while held") = Some(Instant::now() + wait);
        }
        let said = self.bytes(response).await.unwrap_or_default();
        let message = format!("{service} refused: {}", sentence(status, &said));
        Err(Attempt { trouble: Trouble::Refused { status, message }, wait, undone })
    }
}

/// One attempt that failed.
struct Attempt {
    trouble: Trouble,
    /// How long the service wants to be left alone.
    wait: Option<Duration>,
    /// It certainly did nothing.
    undone: bool,
}

impl Attempt {
    fn may_be_repeated(&self, again: Again) -> bool {
        let passing = match &self.trouble {
            Trouble::Away(_) => true,
            Trouble::Refused { status, .. } => matches!(status.as_u16(), 429 | 502 | 503 | 504),
            Trouble::Garbled(_) | Trouble::Unsupported(_) => false,
        };
        match again {
            Again::Always => passing,
            Again::IfUndone => passing && self.undone,
            Again::Never => false,
        }
    }
}

/// Seconds, or a date that we do not wait for: services send seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    text.trim().parse::<f64>().ok().filter(|seconds| (0.0..1e6).contains(seconds)).map(Duration::from_secs_f64)
}

/// What a refusal says, wherever a service puts its sentence.
fn sentence(status: StatusCode, body: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let places = ["/error/message", "/message", "/error", "/errors/0/message", "/errors/0", "/detail"];
    let found = places.iter().find_map(|place| value.pointer(place)?.as_str()).map(str::to_owned);
    let text = found.unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    let text: String = text.chars().filter(|letter| !letter.is_control()).take(SENTENCE).collect();
    if text.is_empty() { status.to_string() } else { format!("{text} ({})", status.as_u16()) }
}

/// The reason of an error, without the address: that may hold a token.
fn told(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// A header that is never shown.
pub fn secret(text: &str) -> Result<HeaderValue, Error> {
    let wrong = |_| Error::invalid("api_key", "a key is letters, digits and signs without spaces or line ends");
    let mut value = HeaderValue::from_str(text).map_err(wrong)?;
    value.set_sensitive(true);
    Ok(value)
}

/// `Authorization: Bearer …`.
pub fn bearer(key: &str) -> Result<HeaderMap, Error> {
    Ok(HeaderMap::from_iter([(header::AUTHORIZATION, secret(&format!("Bearer {key}"))?)]))
}

fn http() -> Result<reqwest::Client, Error> {
    // If another provider is installed already, it is the same one.
    let _chosen = rustls::crypto::ring::default_provider().install_default();
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(CONNECT_WITHIN)
        .user_agent(concat!("cove/", env!("CARGO_PKG_VERSION")))
        .dns_resolver(Arc::new(Names));
    builder.build().map_err(|error| Error::internal(crate::tls::no_client(&error)))
}

/// The system's names, and those below `localhost`, which are this machine everywhere (RFC 6761, 6.3) and unknown to many
/// systems.
struct Names;

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = match name.as_str().trim_end_matches('.').ends_with(".localhost") {
                true => vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))],
                false => tokio::net::lookup_host((name.as_str(), 0)).await?.collect(),
            };
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::Router;
    use axum::response::IntoResponse as _;

    use super::*;

    /// A service that answers each call with the next of these.
    async fn service(answers: Vec<(u16, &'static str, &'static str)>) -> (Client, Arc<AtomicUsize>) {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let answer = move || {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            let (status, wait, body) = answers[number.min(answers.len() - 1)];
            let mut answer = (StatusCode::from_u16(status).unwrap(), body).into_response();
            if !wait.is_empty() {
                answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static(wait));
            }
            async move { answer }
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, router).await });
        (Client::new("moon", &base, bearer("top-secret").unwrap()).unwrap(), asked)
    }

    async fn ask(client: &Client, again: Again) -> Result<serde_json::Value, Trouble> {
        client.json(again, || client.request(Method::POST, "/x")).await
    }

    #[tokio::test]
    async fn a_service_that_asks_for_patience_gets_it() {
        let (client, asked) = service(vec![(429, "0.05", "{}"), (503, "0", "{}"), (200, "", "{\"a\": 1}")]).await;
        assert_eq!(ask(&client, Again::IfUndone).await.unwrap()["a"], 1);
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        // One that asks for an hour is told to whoever waits.
        let (client, asked) = service(vec![(429, "3600", "{\"message\": \"enough\"}")]).await;
        let refused = ask(&client, Again::Always).await.unwrap_err();
        assert_eq!(refused.to_string(), "moon refused: enough (429)");
        assert!(matches!(ProviderError::from(refused), ProviderError::Exhausted(_)));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn what_may_have_been_done_is_done_again_only_where_twice_is_as_good_as_once() {
        let (client, asked) = service(vec![(502, "0", "x"), (200, "", "{}")]).await;
        assert!(ask(&client, Again::IfUndone).await.unwrap_err().is(StatusCode::BAD_GATEWAY));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
        let (client, asked) = service(vec![(502, "0", "x"), (200, "", "{}")]).await;
        ask(&client, Again::Always).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn a_refusal_is_told_in_the_services_words_and_without_the_key() {
        for (body, sentence) in [
            ("{\"error\": {\"code\": \"bad\", \"message\": \"no such plan\"}}", "no such plan (400)"),
            ("{\"errors\": [\"too many\"]}", "too many (400)"),
            ("plain words", "plain words (400)"),
            ("", "400 Bad Request"),
        ] {
            let (client, _) = service(vec![(400, "", body)]).await;
            let refused = ask(&client, Again::Always).await.unwrap_err();
            assert_eq!(refused.to_string(), format!("moon refused: {sentence}"));
            assert!(matches!(ProviderError::from(refused), ProviderError::Refused(_)));
            assert!(!format!("{:?}", client.request(Method::GET, "/x")).contains("top-secret"));
        }
        let (client, _) = service(vec![(401, "", "{\"message\": \"who?\"}")]).await;
        let refused = ProviderError::from(ask(&client, Again::Always).await.unwrap_err());
        assert!(matches!(&refused, ProviderError::Unfit(sentence) if sentence == "moon refused: who? (401)"));
    }

    #[tokio::test]
    async fn names_below_localhost_lead_to_this_machine() {
        let (client, _) = service(vec![(200, "", "{}")]).await;
        let port = client.base().rsplit_once(':').unwrap().1;
        let url = format!("http://3000-abc.localhost:{port}/");
        client.done(Again::Never, || client.request_to(Method::GET, &url)).await.unwrap();
    }
}
