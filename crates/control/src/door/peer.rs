//! Requests that another server of the same store must answer are sent on to it, with the caller's own credentials:
//! HTTP, streams and WebSockets of every door.
//!
//! ```text
//!   client ──▶ this server ── whose sandbox is it? ── ours, nobody's, its server is down ──▶ the doors
//!                                   └── another's ──▶ that server ── answers as if it had been asked itself
//! ```
//!
//! A request that was sent on is never sent on again: a header says so and proves it (`peer/proof.rs`), and the second
//! server answers with an error. A server that does not answer is asked whether it lives; where it does not say so, the
//! caller is told instead of being kept waiting.

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use cove_protocol::SandboxId;
use hyper_util::rt::TokioIo;

use super::native::auth;
use super::native::error::ApiError;
use super::size;
use crate::door::entrance::SentOn;
use crate::peer::line::{self, Client};
use crate::peer::proof::SentOn as SentOnProof;
use crate::peer::{Peer, proof};
use crate::sandbox::Sandbox;
use crate::secret::same;
use crate::{App, Caller, Error, border, heavy};

/// How long a server may take to answer, or to say that it lives; and how often it may fail to.
const ASK_AGAIN: std::time::Duration = std::time::Duration::from_secs(2);
const MISSES: u32 = 2;
/// The largest body that is read to learn which session it names; the doors take no larger one.
const BODY_MAX: usize = border::CONTENT;

#[derive(Clone)]
pub struct Director {
    app: App,
    client: Client,
}

impl Director {
    pub fn new(app: App) -> Self {
        let client = line::client(&app);
        Director { app, client }
    }

    /// Ends when a server that was asked something does not say that it lives either. An answer may take hours; a word on
    /// whether the server is there may not.
    async fn falls_silent(&self, url: &str) {
        let health = format!("{}/healthz", url.trim_end_matches('/'));
        let mut misses = 0;
        while misses < MISSES {
            tokio::time::sleep(ASK_AGAIN).await;
            let Ok(request) = axum::http::Request::get(&health).body(Body::empty()) else { return };
            let answer = tokio::time::timeout(ASK_AGAIN, self.client.request(request)).await;
            misses = if matches!(answer, Ok(Ok(_))) { 0 } else { misses + 1 };
        }
    }
}

/// What a request is about, as the door that it is for says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    Sandbox(SandboxId),
    /// By a name, which is its organisation's own.
    Named(String),
    Session(String),
    /// A session or a sandbox that the body names.
    InBody,
    Nothing,
}

impl Subject {
    /// By a word that is an id, or nothing of anybody's.
    pub fn by_id(word: &str) -> Subject {
        word.parse().map_or(Subject::Nothing, Subject::Sandbox)
    }

    /// By a word of a path that is an id or a name.
    pub fn by_name(word: &str) -> Subject {
        let word = percent_encoding::percent_decode_str(word).decode_utf8_lossy();
        word.parse().map_or_else(|_| Subject::Named(word.into_owned()), Subject::Sandbox)
    }
}

/// To be laid around all doors.
pub async fn direct(State(director): State<Director>, request: Request, next: Next) -> Response {
    let app = &director.app;
    if !app.shares_its_store() || request.extensions().get::<SentOn>().is_some() {
        return next.run(request).await;
    }
    let subject = super::subject(app, request.method(), request.uri(), request.headers());
    let (subject, request) = match subject {
        Subject::Nothing => return next.run(request).await,
        // Held in memory: for those alone who have a key. To others the doors say no.
        Subject::InBody if caller(app, request.uri(), request.headers()).await.is_err() => {
            return next.run(request).await;
        }
        Subject::InBody => match read_named(request).await {
            Ok(read) => read,
            Err(response) => return response,
        },
        subject => (subject, request),
    };
    let sandbox = match find(app, &subject, request.uri(), request.headers()).await {
        Ok(Some(sandbox)) => sandbox,
        // The doors know how to say no, each in its own words.
        Ok(None) | Err(_) => return next.run(request).await,
    };
    match app.owner_elsewhere(&sandbox).await {
        Ok(Some(Peer { id, url: Some(url), .. })) => {
            let (uri, headers) = (request.uri().clone(), request.headers().clone());
            let sent = tokio::select! {
                sent = send_on(&director, &url, request) => sent,
                () = director.falls_silent(&url) => Err("does not answer".to_owned()),
            };
            match sent {
                Ok(answer) => answer,
                Err(reason) => {
                    // Where it is, in the network of the servers, is not for callers.
                    tracing::warn!(sandbox = %sandbox.id, server = id, url, reason, "send a request on");
                    let caller = caller(app, &uri, &headers).await.ok();
                    ApiError(unanswered(&sandbox, caller.as_ref(), &headers, &id, &reason)).into_response()
                }
            }
        }
        Ok(_) | Err(_) => next.run(request).await,
    }
}

/// What is said when the sandbox's server gives no answer. That server has not judged the caller's right, so it is judged
/// here: to those without one the sandbox does not exist, and the server's name is for its organisation alone.
fn unanswered(sandbox: &Sandbox, caller: Option<&Caller>, headers: &HeaderMap, server: &str, reason: &str) -> Error {
    let id = &sandbox.id;
    let tokens = [&sandbox.access_token, &sandbox.traffic_token];
    let shows_a_token = || headers.values().any(|value| tokens.iter().any(|token| same(value.as_bytes(), token)));
    match caller {
        Some(caller) if caller.organisation == sandbox.organisation => {
            Error::exhausted(format!("sandbox {id} is on server {server}, which {reason}; try again later"))
        }
        _ if sandbox.public || shows_a_token() => {
            Error::exhausted(format!("the server of sandbox {id} does not answer; try again later"))
        }
        _ => Error::not_found("sandbox", id.to_string()),
    }
}

async fn caller(app: &App, uri: &Uri, headers: &HeaderMap) -> Result<Caller, Error> {
    match auth::shown(headers, uri.query()) {
        Some(secret) => app.authenticate(&secret).await,
        None => Err(Error::Unauthenticated(String::new())),
    }
}

async fn find(app: &App, subject: &Subject, uri: &Uri, headers: &HeaderMap) -> Result<Option<Sandbox>, Error> {
    let caller = async || caller(app, uri, headers).await;
    match subject {
        Subject::Sandbox(id) => app.store().sandbox_by_any_id(id).await,
        Subject::Named(name) => app.store().sandbox_by_name(&caller().await?.organisation, name).await,
        Subject::Session(id) => {
            let session = app.session(&caller().await?, id).await?;
            match session.sandbox.parse() {
                Ok(id) => app.store().sandbox_by_id(&id).await,
                Err(_) => Ok(None),
            }
        }
        Subject::InBody | Subject::Nothing => Ok(None),
    }
}

/// What a JSON body names, and the request as it was.
async fn read_named(request: Request) -> Result<(Subject, Request), Response> {
    let (parts, body) = request.into_parts();
    let bytes = size::whole(body, BODY_MAX).await.map_err(|error| ApiError(error).into_response())?;
    let text = bytes.clone();
    let named = heavy::run(text.len(), heavy::SMALL, move || named(&text)).await;
    Ok((named, Request::from_parts(parts, Body::from(bytes))))
}

/// A session, a sandbox, or a name that may be there already. What is no such body the handler refuses.
fn named(body: &[u8]) -> Subject {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Named {
        session_id: Option<String>,
        sandbox_id: Option<String>,
        name: Option<String>,
        if_exists: Option<String>,
        sandbox: Option<Box<Named>>,
    }
    let Ok(named) = serde_json::from_slice::<Named>(body) else { return Subject::Nothing };
    if let Some(id) = named.session_id {
        return Subject::Session(id);
    }
    if let Some(word) = named.sandbox_id {
        return word.parse().map_or_else(|_| Subject::Named(word), Subject::Sandbox);
    }
    // A session's sandbox stands one level deeper.
    let wanted = named.sandbox.map_or((named.name, named.if_exists), |sandbox| (sandbox.name, sandbox.if_exists));
    match wanted {
        (Some(name), Some(if_exists)) if if_exists != "refuse" => Subject::Named(name),
        _ => Subject::Nothing,
    }
}

/// What concerns one connection and must not travel on (RFC 9110, 7.6.1).
const ONE_HOP: [header::HeaderName; 5] =
    [header::CONNECTION, header::PROXY_AUTHORIZATION, header::TE, header::TRAILER, header::TRANSFER_ENCODING];

async fn send_on(director: &Director, url: &str, mut request: Request) -> Result<Response, String> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let method = request.method().as_str().to_owned();
    let uri: Uri = format!("{}{path}", url.trim_end_matches('/'))
        .parse()
        .map_err(|error| format!("has a wrong address: {error}"))?;
    if request.headers().get(header::HOST).is_none()
        && let Some(host) = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok())
    {
        request.headers_mut().insert(header::HOST, host);
    }
    let upgrade = upgrade_of(request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    *request.uri_mut() = uri;
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    for name in &ONE_HOP {
        headers.remove(name);
    }
    if let Some(protocol) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol);
    }
    let proof = SentOnProof {
        server: director.app.server(),
        method: &method,
        path: &path,
        host: &headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_ascii_lowercase(),
    };
    let secret = director.app.peer_secret().ok_or("shares no secret with this one")?;
    let proof = proof.prove(secret, director.app.now().as_millisecond());
    headers.insert(proof::HEADER, HeaderValue::from_str(&proof).map_err(|error| error.to_string())?);
    let asked = director.client.request(request).await;
    let mut answer = asked.map_err(|error| format!("could not be reached: {}", line::cause(&error)))?;
    if answer.status() == StatusCode::SWITCHING_PROTOCOLS
        && let Some(client) = client
    {
        let there = hyper::upgrade::on(&mut answer);
        tokio::spawn(async move {
            let (Ok(client), Ok(there)) = tokio::join!(client, there) else { return };
            // Either side may hang up at any time: that is how such a connection ends.
            let _ended = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(there)).await;
        });
        return Ok(answer.map(|_| Body::empty()).into_response());
    }
    let closes = connection_says(answer.headers(), "close");
    for name in &ONE_HOP {
        answer.headers_mut().remove(name);
    }
    // There the connection ended with the request's right: this one has to end with it too.
    if closes {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer.map(Body::new).into_response())
}

fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    if connection_says(headers, "upgrade") { headers.get(header::UPGRADE).cloned() } else { None }
}

fn connection_says(headers: &HeaderMap, word: &str) -> bool {
    let said = headers.get(header::CONNECTION).and_then(|said| said.to_str().ok()).unwrap_or_default();
    said.split(',').any(|one| one.trim().eq_ignore_ascii_case(word))
}
