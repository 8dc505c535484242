//! The doors of a server, tried from outside.
//!
//! A server of its own is started with two organisations, in a directory and on a port that are gone afterwards. Whoever
//! attacks knows ids, holds a key of another organisation, one that may only look, one that is revoked, or none, and
//! writes requests byte by byte. A probe holds where all of it is refused, at once, and nothing that sleeps wakes.
//!
//! # Layout
//! * [`house`]: what there is to attack · [`wire`]: requests as they are written
//! * [`routes`]: every route, from the server's own tables · [`tenants`]: another's things, scopes, streams
//! * [`links`]: what opens one file or port, and what of ours reaches a program inside · [`requests`]: malformed and
//!   oversized ones

mod house;
mod links;
mod requests;
mod routes;
mod tenants;
mod wire;

use cove_probe::{Finding, Outcome, Verdict};
use cove_sys::signal::Signals;
use serde_json::Value;

use self::house::House;
use self::wire::Answer;
use super::{Group, Told, interrupted};
use crate::complaint::Complaint;
use crate::measure::own_server::OwnServer;

/// One attempt.
struct Probe {
    name: String,
    /// What it would mean if it did not hold.
    meaning: String,
    run: Box<dyn Fn(&House) -> Outcome>,
}

impl Probe {
    fn new(name: &str, meaning: &str, run: impl Fn(&House) -> Outcome + 'static) -> Probe {
        Probe { name: name.to_owned(), meaning: meaning.to_owned(), run: Box::new(run) }
    }
}

/// Probes of one kind.
struct Family {
    title: &'static str,
    remedy: &'static str,
    probes: Vec<Probe>,
}

fn families() -> Vec<Family> {
    vec![
        Family {
            title: "routes: every route of every door, in every spelling",
            remedy: "look at what the route asks for in its door's table (`crates/control/src/door`), and at what stands before the \
                     server: a proxy must pass paths on as they are",
            probes: routes::probes(),
        },
        Family {
            title: "tenants: another organisation's things, scopes, streams",
            remedy: "rotate the keys of both organisations (`cove keys rotate`) and look at `cove audit` for what was done with them",
            probes: tenants::probes(),
        },
        Family {
            title: "links: signed links, cookies, and what of ours reaches a program inside",
            remedy: "rotate the tokens of the sandboxes concerned (POST /api/sandboxes/ID/tokens), and do not make ports public until \
                     it holds",
            probes: links::probes(),
        },
        Family {
            title: "requests: malformed, smuggled and oversized",
            remedy: "let nobody reach the server whom you do not trust until it holds; a strict proxy before it helps",
            probes: requests::probes(),
        },
    ]
}

pub fn has(name: &str) -> bool {
    families().iter().any(|family| family.probes.iter().any(|probe| probe.name == name))
}

/// What was found, and whether everything could be removed afterwards: the one does not depend on the other.
pub type Attacked = (Vec<Group>, Result<(), Complaint>);

/// Tries these probes, or all. The server and all that it held are removed, whatever happens.
pub fn attack(names: &[String], signals: &Signals) -> Result<Attacked, Complaint> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    let server = runtime.block_on(OwnServer::start(&std::env::current_exe()?))?;
    let told = attack_server(&server, names, signals);
    let removed = runtime.block_on(server.finish());
    match (told, removed) {
        (Ok(groups), removed) => Ok((groups, removed)),
        (Err(complaint), Ok(())) => Err(complaint),
        (Err(complaint), Err(left)) => Err(complaint.hint(format!("and afterwards: {left}"))),
    }
}

fn attack_server(server: &OwnServer, names: &[String], signals: &Signals) -> Result<Vec<Group>, Complaint> {
    let house = House::furnish(server)?;
    let told = try_all(&house, names, signals);
    clear(&house);
    told
}

/// Removes what the other organisation has: a probe that did not hold may have made a sandbox, and the owner's key does
/// not list it.
fn clear(house: &House) {
    let listed = house.ask(Some(&house.stranger), "GET", "/api/sandboxes", &Value::Null);
    let listed = listed.map(|answer| answer.json()).unwrap_or_default();
    for sandbox in listed["items"].as_array().into_iter().flatten() {
        let path = format!("/api/sandboxes/{}", house::text(sandbox, "id"));
        // The server that cannot remove it says so when it is ended.
        let _gone = house.ask(Some(&house.stranger), "DELETE", &path, &Value::Null);
    }
}

fn try_all(house: &House, names: &[String], signals: &Signals) -> Result<Vec<Group>, Complaint> {
    let mut groups = Vec::new();
    for Family { title, remedy, probes } in families() {
        let mut told = Vec::new();
        for probe in probes.into_iter().filter(|probe| names.is_empty() || names.contains(&probe.name)) {
            if signals.next()?.is_some() {
                return Err(interrupted());
            }
            let (verdict, detail) = (probe.run)(house);
            told.push(Told { meaning: probe.meaning, finding: Finding { name: probe.name, verdict, detail } });
        }
        groups.push(Group { part: "doors", title, remedy, told });
    }
    Ok(groups)
}

fn held(detail: impl Into<String>) -> Outcome {
    (Verdict::Held, detail.into())
}

fn lost(detail: impl Into<String>) -> Outcome {
    (Verdict::NotHeld, detail.into())
}

/// Held when the server said no, or hung up without a word.
fn refused(what: &str, answer: std::io::Result<Answer>) -> Outcome {
    match answer {
        Ok(answer) if (400..500).contains(&answer.status) => held(format!("{what}: {}", answer.status)),
        Ok(answer) => lost(format!("{what}: {} {}", answer.status, answer.beginning())),
        Err(error) => held(format!("{what}: hung up ({error})")),
    }
}

/// The first of several attempts that did not hold, or all of them held.
fn each(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
    let (mut count, mut last) = (0, String::new());
    for (verdict, detail) in outcomes {
        match verdict {
            Verdict::NotHeld => return (verdict, detail),
            Verdict::NotApplicable => return (verdict, detail),
            Verdict::Held => (count, last) = (count + 1, detail),
        }
    }
    match count {
        0 => (Verdict::NotApplicable, "nothing of the kind to try".into()),
        1 => held(last),
        _ => held(format!("{count} attempts refused, the last: {last}")),
    }
}
