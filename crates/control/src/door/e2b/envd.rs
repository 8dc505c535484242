//! The daemon that E2B clients expect in every sandbox, spoken by the host on behalf of ours.
//!
//! An [`Envd`] is one sandbox seen by one request: the way to its guest, who asks, and what the sandbox was given at
//! birth. Services stand in files of their own; here is what they share: users, paths, and the table of routes. Calls that
//! belong to the cloud's own machinery (`/init`, `/freeze` …) are not there from outside.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::Path;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cove_protocol::{FailureKind, Reply, Request as Ask};
use http::{HeaderMap, Request, StatusCode, header};

use super::connect::{Code, Ending, RpcError, stream, unary};
use super::error::sandbox_not_found;
use super::traffic::Reached;
use super::watchers::Watchers;
use super::{figures, files, filesystem, marks, process};
use crate::door::table::{Needs, Table};
use crate::guest::{Guest, GuestError};

/// Where the original daemon listens; clients name it in their headers and host names.
pub const PORT: u16 = 49983;

/// The version whose behaviour is served: clients switch features on by it.
pub const VERSION: &str = "0.6.13";

/// The file calls act with these rights, as the original does: a client may write where its default user may not,
/// and what it makes belongs to that user. Inside its own sandbox everybody may become root anyway. By number: a sandbox
/// may have lost the name, or given it to somebody else.
pub const ROOT: &str = "0";

#[derive(Clone)]
pub struct Envd {
    pub id: String,
    pub guest: Guest,
    pub env: BTreeMap<String, String>,
    pub template: String,
    pub default_user: String,
    pub default_cwd: Option<String>,
    pub watchers: Arc<Watchers>,
}

/// What the host measured of the sandbox when the request came.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Figures {
    pub cpu_count: f64,
    pub cpu_used_percent: f64,
    pub memory_used: u64,
    pub memory_total: u64,
    pub memory_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// The daemon's routes and what each asks for. Each handler finds the [`Envd`] that the guard left.
pub fn table() -> Table<()> {
    Table::new()
        .get("/health", Needs::Life, alive)
        .on(&["GET", "HEAD", "POST"], "/files", Needs::AccessOrSignature, transfer)
        .post("/files/compose", Needs::Access, compose)
        .get("/metrics", Needs::Access, metrics)
        .get("/envs", Needs::Access, |Extension(envd): Extension<Envd>| async move { axum::Json(envd.env) })
        .post("/process.Process/{method}", Needs::Access, process)
        .post("/filesystem.Filesystem/{method}", Needs::Access, filesystem)
}

async fn alive() -> Response {
    (StatusCode::NO_CONTENT, [(header::CACHE_CONTROL, "no-store")]).into_response()
}

async fn transfer(Extension(envd): Extension<Envd>, request: Request<Body>) -> Response {
    let (parts, body) = request.into_parts();
    files::answer(&envd, &parts, body).await
}

async fn compose(Extension(envd): Extension<Envd>, body: Body) -> Response {
    files::compose::answer(&envd, body).await
}

async fn metrics(Extension(reached): Extension<Reached>) -> Response {
    let figures = figures::figures(&reached.app, &reached.sandbox).await.unwrap_or_default();
    figures.told()
}

async fn process(
    Extension(envd): Extension<Envd>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let user = basic_user(&headers);
    let id = envd.id.clone();
    let gone = || sandbox_not_found(&id);
    let headers = &headers;
    match method.as_str() {
        "Start" => stream::answer(headers, body, |q, out| process::start::start(envd, user, q, out)).await,
        "Connect" => stream::answer(headers, body, |q, out| process::start::connect(envd, q, out)).await,
        "List" => unary::answer(headers, body, gone, |q| process::list(&envd, q)).await,
        "Update" => unary::answer(headers, body, gone, |q| process::update(&envd, q)).await,
        "SendInput" => unary::answer(headers, body, gone, |q| process::input::send(&envd, q)).await,
        "StreamInput" => stream::collect(headers, body, |q| process::input::stream(&envd, q)).await,
        "CloseStdin" => unary::answer(headers, body, gone, |q| process::input::close(&envd, q)).await,
        "SendSignal" => unary::answer(headers, body, gone, |q| process::signal(&envd, q)).await,
        method => no_method(method),
    }
}

async fn filesystem(
    Extension(envd): Extension<Envd>,
    Path(method): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let user = basic_user(&headers);
    let id = envd.id.clone();
    let gone = || sandbox_not_found(&id);
    let (user, headers) = (user.as_deref(), &headers);
    match method.as_str() {
        "Stat" => unary::answer(headers, body, gone, |q| filesystem::stat(&envd, user, q)).await,
        "ListDir" => unary::answer(headers, body, gone, |q| filesystem::list(&envd, user, q)).await,
        "MakeDir" => unary::answer(headers, body, gone, |q| filesystem::make(&envd, user, q)).await,
        "Move" => unary::answer(headers, body, gone, |q| filesystem::rename(&envd, user, q)).await,
        "Remove" => unary::answer(headers, body, gone, |q| filesystem::remove(&envd, user, q)).await,
        "WatchDir" => {
            let user = user.map(ToOwned::to_owned);
            stream::answer(headers, body, |q, out| filesystem::watch::stream(envd, user, q, out)).await
        }
        "CreateWatcher" => unary::answer(headers, body, gone, |q| filesystem::watch::create(&envd, user, q)).await,
        "GetWatcherEvents" => unary::answer(headers, body, gone, |q| filesystem::watch::events(&envd, q)).await,
        "RemoveWatcher" => unary::answer(headers, body, gone, |q| filesystem::watch::remove(&envd, q)).await,
        method => no_method(method),
    }
}

impl Figures {
    fn told(self) -> Response {
        const MIB: u64 = 1 << 20;
        let figures = self;
        axum::Json(serde_json::json!({
            "ts": jiff::Timestamp::now().as_second(),
            "cpu_count": figures.cpu_count.ceil() as u64,
            "cpu_used_pct": figures.cpu_used_percent,
            "mem_total": figures.memory_total,
            "mem_used": figures.memory_used,
            "mem_cache": figures.memory_cache,
            "mem_total_mib": figures.memory_total / MIB,
            "mem_used_mib": figures.memory_used / MIB,
            "disk_used": figures.disk_used,
            "disk_total": figures.disk_total,
        }))
        .into_response()
    }
}

impl Envd {
    /// What every process can read off its environment: where it runs.
    pub fn birth_marks(&self) -> [(String, String); 3] {
        marks::of(&self.id, &self.template).map(|(name, value)| (name.to_owned(), value))
    }

    /// The home of the user who acts; an unknown user is an answer of its own.
    async fn home(&self, user: Option<&str>) -> Result<String, Ending> {
        let name = user.unwrap_or(&self.default_user);
        let ask = Ask::Stat { path: "~".into(), user: Some(name.to_owned()), follow: true };
        match self.guest.call(&ask).await {
            Ok(Reply::Entry { entry }) => Ok(entry.path),
            Ok(_) => Err(unexpected().into()),
            Err(GuestError::Failed(failure)) if failure.kind == FailureKind::UnknownUser => {
                Err(unknown_user(name).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a user that the sandbox does not have, in the same words whatever is asked in its name.
    pub async fn check_user(&self, user: Option<&str>) -> Result<(), Ending> {
        let Some(name) = user else { return Ok(()) };
        // Any path does: who acts is found before what is acted on.
        let ask = Ask::Stat { path: "/".into(), user: Some(name.to_owned()), follow: false };
        match self.guest.call(&ask).await {
            Ok(_) => Ok(()),
            Err(GuestError::Failed(failure)) if failure.kind == FailureKind::UnknownUser => {
                Err(unknown_user(name).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The absolute path that a client means. The user must be there also where the path does not depend on it.
    pub async fn resolve(&self, user: Option<&str>, path: &str) -> Result<String, Ending> {
        self.check_user(user).await?;
        if path.contains('\0') {
            return Err(RpcError::new(Code::InvalidArgument, "path holds a zero byte").into());
        }
        if path.starts_with('/') {
            return Ok(clean(path));
        }
        if path.is_empty()
            && let Some(cwd) = self.default_cwd.as_deref().filter(|cwd| cwd.starts_with('/'))
        {
            return Ok(clean(cwd));
        }
        let rest = match path.strip_prefix('~') {
            None => path,
            Some("") => "",
            Some(rest) if rest.starts_with('/') => &rest[1..],
            Some(_) => {
                let message = format!("cannot expand the home of another user in '{path}'");
                return Err(RpcError::new(Code::InvalidArgument, message).into());
            }
        };
        Ok(clean(&format!("{}/{rest}", self.home(user).await?)))
    }
}

pub const UNAUTHORISED: &str =
    "unauthorized access, please provide a valid access token or method signing if supported";

/// For a client that shows no token at all, because it is from before tokens: what an operator can do for it.
pub const NO_TOKEN: &str = "unauthorized access, please provide a valid access token or method signing if supported. \
     None came: a client from before tokens needs one that sends them, or the operator's switch e2b.tokens_optional";

fn no_method(method: &str) -> Response {
    unary::failed(&RpcError::new(Code::Unimplemented, format!("no method {method}")))
}

pub fn unexpected() -> RpcError {
    RpcError::new(Code::Internal, "the sandbox gave an answer of the wrong kind")
}

pub fn unknown_user(name: &str) -> RpcError {
    RpcError::new(Code::Unauthenticated, format!("invalid username: '{name}'"))
}

/// The user of `Authorization: Basic base64("name:")`; the password means nothing.
fn basic_user(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let pair = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let name = pair.split(':').next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}

/// An absolute path without `.`, `..` and double slashes.
pub fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The directory that holds a clean path; the root holds itself.
pub fn parent(path: &str) -> &str {
    match path.rfind('/') {
        Some(0) | None => "/",
        Some(at) => &path[..at],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_plain() {
        for (given, wanted) in [
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/../../x", "/x"),
            ("/home/user/", "/home/user"),
        ] {
            assert_eq!(clean(given), wanted, "{given}");
        }
        assert_eq!(parent("/a/b"), "/a");
        assert_eq!(parent("/a"), "/");
        assert_eq!(parent("/"), "/");
    }

    #[test]
    fn the_user_comes_from_the_basic_header() {
        let headers = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(basic_user(&headers("Basic cm9vdDo=")).as_deref(), Some("root"));
        assert_eq!(basic_user(&headers("basic cm9vdDo=")).as_deref(), Some("root"));
        assert_eq!(basic_user(&headers("Bearer cm9vdDo=")), None);
        assert_eq!(basic_user(&headers("Basic ???")), None);
        assert_eq!(basic_user(&HeaderMap::new()), None);
    }
}
