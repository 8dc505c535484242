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

use std::io;

use cove_probe::{Finding, Outcome, Verdict};
use cove_sys::signal::Signals;
use serde_json::Value;

use self::house::House;
use self::wire::Answer;
use super::{Group, Told, interrupted};
use crate::complaint::{Complaint, doing};
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

/// The names, with what each would mean if it did not hold.
pub fn names() -> Vec<(String, String)> {
    families().into_iter().flat_map(|family| family.probes).map(|probe| (probe.name, probe.meaning)).collect()
}

/// What was found, and whether everything could be removed afterwards: the one does not depend on the other.
pub type Attacked = (Vec<Group>, Result<(), Complaint>);

/// Tries these probes, or all. The server and all that it held are removed, whatever happens.
pub fn attack(names: &[String], signals: &Signals) -> Result<Attacked, Complaint> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    let server = runtime.block_on(OwnServer::start(&crate::place::program()?))?;
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
            if signals.next().map_err(doing("take signals"))?.is_some() {
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
fn refused(what: &str, answer: io::Result<Answer>) -> Outcome {
    match answer {
        Ok(answer) if (400..500).contains(&answer.status) => held(format!("{what}: {}", answer.status)),
        Ok(answer) => lost(format!("{what}: {} {}", answer.status, answer.beginning())),
        Err(error) => hung_up(what, &error),
    }
}

/// A connection that is closed without a word is a no as well. One on which nothing comes in time is none: what was asked
/// for may have been done. And a server that is gone has refused nothing.
fn hung_up(what: &str, error: &io::Error) -> Outcome {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            lost(format!("{what}: no answer within {} s", wire::PATIENCE.as_secs()))
        }
        io::ErrorKind::ConnectionRefused => lost(format!("{what}: the server does not listen any more")),
        _ => held(format!("{what}: hung up ({error})")),
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

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// What becomes of one request to a server that does this with its connection.
    fn asked(server: impl FnOnce(std::net::TcpStream) + Send + 'static) -> Verdict {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = std::thread::spawn(move || server(listener.accept().unwrap().0));
        let verdict = refused("a request", wire::once(&address, b"GET / HTTP/1.1\r\n\r\n")).0;
        serving.join().unwrap();
        verdict
    }

    #[test]
    fn a_server_that_closes_has_refused_and_one_that_is_silent_or_gone_has_not() {
        let heard = |stream: &std::net::TcpStream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.read_line(&mut String::new()).unwrap() > 2 {}
        };
        assert_eq!(asked(move |stream| heard(&stream)), Verdict::Held);
        // Longer than anybody waits.
        let silent = |stream: std::net::TcpStream| while !has_left(&stream) {};
        assert_eq!(asked(silent), Verdict::NotHeld);
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(refused("a request", wire::once(&gone, b"GET / HTTP/1.1\r\n\r\n")).0, Verdict::NotHeld);
    }

    /// Waits until the client has closed its side.
    fn has_left(mut stream: &std::net::TcpStream) -> bool {
        matches!(std::io::Read::read(&mut stream, &mut [0; 1024]), Ok(0) | Err(_))
    }
}
