//! Traffic for one sandbox: its daemon, its interpreter, or a port of its own.
//!
//! The order is the point: who asks is checked against the sandbox's own tokens before anything wakes it, and a
//! sandbox that is asleep, dead, unknown or another's gives the same answer.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};

use super::code_interpreter::{self, CodeInterpreter};
use super::destination::{self, Reached};
use super::envd::{self, Envd};
use super::error::{ApiError, for_reader, plain, sandbox_not_found};
use super::facts::Facts;
use super::files::{self, signature, signature::Operation};
use super::query::Query;
use super::{Door, figures, preview};
use crate::Error;
use crate::sandbox::{Sandbox, State};
use crate::secret::same;

/// What is read of a request that is refused.
const HEARD_OUT: usize = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(1);

impl Door {
    pub async fn traffic(&self, id: &str, port: u16, reached: Reached, mut request: Request<Body>) -> Response {
        let sandbox = match self.app.sandbox_any(id).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                let answer = self.unreachable(id, &error, request.headers());
                return refuse(request, answer).await;
            }
        };
        if reached == Reached::ByHeader {
            strip_prefix(&mut request);
        }
        let mut response = match port {
            envd::PORT => self.daemon(sandbox, request).await,
            code_interpreter::PORT => self.interpreter(sandbox, request).await,
            port => self.port(sandbox, port, request).await,
        };
        if matches!(port, envd::PORT | code_interpreter::PORT) {
            open_to_browsers(response.headers_mut());
        }
        response
    }

    async fn daemon(&self, sandbox: Sandbox, request: Request<Body>) -> Response {
        let id = sandbox.id.to_string();
        let path = request.uri().path();
        // Asking whether it lives must not bring it to life.
        if path == "/health" && sandbox.state != State::Running {
            return sandbox_not_found(&id);
        }
        let facts = Facts::of(&sandbox);
        if facts.secure
            && let Err(reason) = self.may_ask(&sandbox, &request)
        {
            return refuse(request, plain(StatusCode::UNAUTHORIZED, reason)).await;
        }
        let (sandbox, guest) = match self.app.reach_into(sandbox).await {
            Ok(reached) => reached,
            Err(error) => {
                let answer = self.unreachable(&id, &error, request.headers());
                return refuse(request, answer).await;
            }
        };
        let figures = if path == "/metrics" {
            figures::figures(&self.app, &sandbox).await.unwrap_or_default()
        } else {
            Default::default()
        };
        let daemon = Envd {
            id,
            guest,
            env: sandbox.env.clone(),
            template: sandbox.template.clone(),
            default_user: sandbox.user.clone(),
            default_cwd: sandbox.cwd.clone(),
            figures,
            watchers: self.watchers.clone(),
        };
        daemon.answer(request).await
    }

    /// Cells run with the sandbox's token; that it is there, and its contexts, any holder of its traffic may ask.
    async fn interpreter(&self, sandbox: Sandbox, request: Request<Body>) -> Response {
        let id = sandbox.id.to_string();
        let headers = request.headers();
        let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        let secure = Facts::of(&sandbox).secure;
        if secure && request.uri().path() == "/execute" && !same(header("x-access-token"), &sandbox.access_token) {
            return refuse(request, plain(StatusCode::UNAUTHORIZED, envd::UNAUTHORISED)).await;
        }
        if !sandbox.public && !same(header("e2b-traffic-access-token"), &sandbox.traffic_token) {
            return refuse(request, plain(StatusCode::FORBIDDEN, "missing or invalid traffic access token")).await;
        }
        match self.app.reach_into(sandbox).await {
            Ok((sandbox, guest)) => {
                let interpreter = self.app.interpreter();
                CodeInterpreter { interpreter, sandbox: &sandbox, guest: &guest }.answer(request).await
            }
            Err(error) => {
                let answer = self.unreachable(&id, &error, request.headers());
                refuse(request, answer).await
            }
        }
    }

    async fn port(&self, sandbox: Sandbox, port: u16, request: Request<Body>) -> Response {
        let id = sandbox.id.to_string();
        if !sandbox.public {
            let shown =
                request.headers().get("e2b-traffic-access-token").map(HeaderValue::as_bytes).unwrap_or_default();
            if !same(shown, &sandbox.traffic_token) {
                return refuse(request, plain(StatusCode::FORBIDDEN, "missing or invalid traffic access token")).await;
            }
        }
        let facts = Facts::of(&sandbox);
        match self.app.reach_into(sandbox).await {
            Ok((_, guest)) => preview::forward(&guest, &id, port, facts.mask_request_host.as_deref(), request).await,
            Err(error) => {
                let answer = self.unreachable(&id, &error, request.headers());
                refuse(request, answer).await
            }
        }
    }

    /// Whether a request shows the sandbox's token, or a signature where that will do.
    fn may_ask(&self, sandbox: &Sandbox, request: &Request<Body>) -> Result<(), &'static str> {
        if request.method() == Method::OPTIONS {
            return Ok(());
        }
        match request.uri().path() {
            "/health" => Ok(()),
            "/files" => files::admits(&sandbox.access_token, request, self.app.now().as_second()),
            _ => {
                let shown = request.headers().get("x-access-token").map(HeaderValue::as_bytes).unwrap_or_default();
                if same(shown, &sandbox.access_token) { Ok(()) } else { Err(envd::UNAUTHORISED) }
            }
        }
    }

    /// `/files?signature=…` without a word on which sandbox: the one whose token made the signature.
    pub async fn signed_file(&self, request: Request<Body>) -> Response {
        let query = Query::of(request.uri());
        let operation = if request.method() == http::Method::POST { Operation::Write } else { Operation::Read };
        let now = self.app.now().as_second();
        let made = |token: &str| {
            let checked = signature::check(&query, operation, token, now);
            !matches!(checked, Err(signature::Invalid::Wrong | signature::Invalid::Missing))
        };
        let signer = match self.signers.find(&self.app, made).await {
            Ok(signer) => signer,
            Err(error) => return ApiError::from(error).into_response(),
        };
        match signer {
            Some(id) => self.traffic(&id, envd::PORT, Reached::ByHeader, request).await,
            None => plain(StatusCode::UNAUTHORIZED, signature::Invalid::Wrong.as_str()),
        }
    }

    fn unreachable(&self, id: &str, error: &Error, headers: &HeaderMap) -> Response {
        match error {
            Error::Internal { detail } => {
                tracing::error!(sandbox = id, detail, "sandbox traffic");
                plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
            }
            Error::Elsewhere { .. } => plain(StatusCode::MISDIRECTED_REQUEST, &error.to_string()),
            // Its server is down.
            Error::Exhausted { .. } => plain(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
            Error::Unavailable { .. } | Error::Full(_) => ApiError::again(error).into_response(),
            _ => {
                let advice = "It was ended, it sleeps, or it never was.";
                for_reader(headers, sandbox_not_found(id), "No such sandbox", advice)
            }
        }
    }
}

/// Hears the rest of a small request before it is refused: an answer to half a request resets its stream over HTTP/2 and
/// closes its connection over HTTP/1.1, and clients that use it again at that moment see no answer.
async fn refuse(request: Request<Body>, answer: Response) -> Response {
    let rest = Limited::new(request.into_body(), HEARD_OUT).collect();
    // One that is larger or slower is refused all the same.
    let _heard = tokio::time::timeout(PATIENCE, rest).await;
    answer
}

/// Below the prefix a daemon's paths are its own.
pub fn strip_prefix(request: &mut Request<Body>) {
    let Some(path) = destination::strip(request.uri().path()) else { return };
    let text = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = request.uri().clone().into_parts();
    if let Ok(stripped) = PathAndQuery::try_from(text) {
        parts.path_and_query = Some(stripped);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
}

/// Clients run in browsers too; the token is the right, not the origin.
pub fn open_to_browsers(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
}
