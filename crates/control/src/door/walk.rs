//! Every route of every door as those ask for it who may not: without a key, with one that may only look, with another
//! organisation's, with one that is revoked; under its own path and under other spellings of it.
//!
//! The attempts are made of the tables that serve the routes ([`super::routes`]), so a route that is added is walked too.
//! Tests and `cove redteam` both make them; there is no second list.

use super::table::{Needs, Route};
use super::{At, routes};
use crate::Scope;

/// What belongs to somebody else, to be put into the paths.
#[derive(Debug, Clone, Copy)]
pub struct Things<'a> {
    /// A sandbox whose ports ask for a token.
    pub private: &'a str,
    /// One made through E2B's door: its ports are public, its daemons ask for its token.
    pub public: &'a str,
    pub session: &'a str,
    pub key: &'a str,
    pub webhook: &'a str,
}

/// Who tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    Nobody,
    /// A key of the organisation, for looking.
    Reader,
    /// A key of another organisation, for everything.
    Stranger,
    /// A key of the organisation that is revoked.
    Revoked,
}

/// How the path is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling {
    Own,
    Other,
}

#[derive(Debug, Clone)]
pub struct Attempt {
    pub at: At,
    pub who: Who,
    pub method: &'static str,
    pub path: String,
    pub spelling: Spelling,
    pub needs: Needs,
}

impl Attempt {
    /// The host that the request names.
    pub fn host(&self, things: Things<'_>) -> Option<String> {
        match self.at {
            At::Path(_) => None,
            At::Port(port) => Some(format!("{port}-{}.localhost", things.public)),
        }
    }

    /// Whether an answer is a no. A wrong request is refused too; what sleeps is not there to be asked how it is; and a
    /// browser's question before its request is answered the same for every sandbox.
    pub fn is_refused_by(&self, status: u16) -> bool {
        let life = self.needs == Needs::Life && status == 502;
        let preflight = self.method == "OPTIONS" && matches!(self.at, At::Port(_)) && status == 204;
        life || preflight || [400, 401, 403, 404, 405].contains(&status)
    }
}

/// All that must be refused.
pub fn attempts(things: Things<'_>) -> Vec<Attempt> {
    let mut all = Vec::new();
    let routes = routes();
    for (at, route) in &routes {
        // What tells nothing of anybody's is there for all; a socket asks for the key after it has opened.
        if !matches!(route.needs, Needs::Nothing | Needs::KeyOnSocket) {
            of_route(*at, route, things, &mut all);
        }
    }
    // Those who may look are let into a toolbox, so a spelling that is another route's, for looking, is theirs.
    all.retain(|attempt| {
        attempt.who != Who::Reader || attempt.spelling == Spelling::Own || !is_a_look_inside(attempt, &routes)
    });
    all
}

fn of_route(at: At, route: &Route, things: Things<'_>, all: &mut Vec<Attempt>) {
    let (path, names_it) = filled(at, route, things);
    let mut add = |who, method, path: &str, spelling| {
        all.push(Attempt { at, who, method, path: path.to_owned(), spelling, needs: route.needs });
    };
    for method in &route.methods {
        let others =
            if ["GET", "POST"].contains(method) || route.methods.len() == 1 { spellings(&path) } else { vec![] };
        let own = std::iter::once((path.clone(), Spelling::Own));
        for (path, spelling) in own.chain(others.into_iter().map(|path| (path, Spelling::Other))) {
            add(Who::Nobody, method, &path, spelling);
            add(Who::Revoked, method, &path, spelling);
            if is_more_than_a_look(route.needs) {
                add(Who::Reader, method, &path, spelling);
            }
            if names_it {
                add(Who::Stranger, method, &path, spelling);
            }
        }
    }
    for method in ["HEAD", "OPTIONS", "TRACE"] {
        add(Who::Nobody, method, &path, Spelling::Own);
        add(Who::Nobody, method, &format!("{path}/"), Spelling::Other);
    }
}

/// Whether the path leads to a toolbox's route for looking, and to none that asks for more.
fn is_a_look_inside(attempt: &Attempt, routes: &[(At, Route)]) -> bool {
    if !matches!(attempt.needs, Needs::Toolbox(_) | Needs::ToolboxFile(_)) {
        return false;
    }
    let At::Path(prefix) = attempt.at else { return false };
    let path = attempt.path.split('?').next().unwrap_or_default();
    let leads = |(at, route): &&(At, Route)| {
        *at == attempt.at && route.methods.contains(&attempt.method) && fits(&format!("{prefix}{}", route.path), path)
    };
    let mut led = routes.iter().filter(leads).peekable();
    led.peek().is_some() && led.all(|(_, route)| !is_more_than_a_look(route.needs))
}

/// Whether a row's path, as axum writes it, matches.
fn fits(row: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    for wanted in row.split('/') {
        let Some(part) = parts.next() else { return false };
        if wanted.starts_with("{*") {
            return true;
        }
        if !wanted.starts_with('{') && wanted != part {
            return false;
        }
    }
    parts.next().is_none()
}

/// What somebody who may only look is refused: all that asks for more.
fn is_more_than_a_look(needs: Needs) -> bool {
    match needs {
        Needs::Key(scope) | Needs::Toolbox(scope) | Needs::ToolboxFile(scope) => scope > Scope::Read,
        Needs::Nothing | Needs::KeyOnSocket => false,
        // A key opens none of these, or only one that may act.
        Needs::Life | Needs::Access | Needs::AccessOrSignature | Needs::AccessOrTraffic | Needs::Port => true,
        Needs::SignedUpload | Needs::VolumeToken | Needs::Peer => true,
    }
}

/// The row's path with somebody's things in it, and whether it is about one of them.
fn filled(at: At, route: &Route, things: Things<'_>) -> (String, bool) {
    let prefix = match at {
        At::Path(prefix) => prefix,
        At::Port(_) => "",
    };
    let whole = format!("{prefix}{}", route.path);
    let below = if prefix == "/api" { route.path.trim_start_matches("/e2b") } else { &route.path };
    let noun = below.trim_start_matches("/v2").split('/').nth(1).unwrap_or_default();
    let sandbox = if prefix == "/e2b" { things.public } else { things.private };
    let thing = match (prefix, noun) {
        ("/api", "sessions" | "files") => Some(things.session),
        ("/api", "keys") => Some(things.key),
        ("/api", "webhooks") => Some(things.webhook),
        ("/api" | "/e2b", "sandboxes") | ("/daytona/api", "sandbox") => Some(sandbox),
        ("/daytona/toolbox/{id}" | "/daytona/preview", _) => Some(sandbox),
        // Drives and snapshots of a stranger's own are nobody else's business.
        ("/vercel/api", _) if whole.contains("{sandbox}") || whole.contains("{session}") => Some(sandbox),
        _ => None,
    };
    let names_it = thing.is_some() && whole.contains('{') || matches!(at, At::Port(_));
    let id = thing.unwrap_or("x");
    let session = format!("sbx_{sandbox}1");
    let values = [
        ("{id}", id),
        ("{session_id}", id),
        ("{session}", if prefix == "/vercel/api" { session.as_str() } else { "x" }),
        ("{sandbox}", id),
        ("{port}", "80"),
        ("{process}", "1"),
        ("{minutes}", "1"),
        ("{is_public}", "true"),
        ("{*path}", "a/b"),
    ];
    let filled = values.iter().fold(whole, |path, (name, value)| path.replace(name, value));
    // What is left are names of nobody's.
    let parts: Vec<&str> = filled.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
    (parts.join("/"), names_it)
}

/// Other ways to write a path that a careless reader takes for the same.
fn spellings(path: &str) -> Vec<String> {
    let (before, last) = path.rsplit_once('/').unwrap_or(("", path));
    let first = last.chars().next().unwrap_or('x');
    let rest = last.get(first.len_utf8()..).unwrap_or_default();
    vec![
        format!("{path}/"),
        format!("{path}//"),
        format!("/{path}"),
        format!("{before}//{last}"),
        // What does not begin with a slash is no path, and no request can ask for it.
        if before.is_empty() { format!("/%2f{last}") } else { format!("{before}%2f{last}") },
        format!("{path}%2F"),
        format!("{before}/./{last}"),
        format!("{before}/%2e/{last}"),
        format!("{before}/x/../{last}"),
        format!("{before}/x/%2e%2e/{last}"),
        format!("{before}/..%2f{last}"),
        format!("{before}/%{:02x}{rest}", u32::from(first)),
        path.to_uppercase(),
        format!("{before}/{}", last.to_uppercase()),
        format!("{path};x=1"),
        format!("{path}%00"),
        format!("{path}%20"),
        format!("{path}?x=1"),
    ]
}
