//! Sizes and shapes that no program would send, to every route of every door: huge, deep, many, NUL, wrong, repeated.
//!
//! What must hold for each of them: an answer within a moment, no fault of the server's, no memory that stays, and another
//! tenant who is served all the while. Which of the many combinations a short run tries is decided by a seed, which it
//! prints (`COVE_SEED` repeats it); `COVE_LONG=1` tries all of them, on both stores.

mod routes;
mod shapes;
mod watch;

use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::http::{self, Answer};
use cove_testkit::postgres::Postgres;
use cove_testkit::random::Random;
use serde_json::{Value, json};

use self::routes::{Place, Route};
use self::shapes::Shape;
use self::watch::Watch;

/// How long one request may take, on a machine that does other things as well.
const SOON: Duration = Duration::from_secs(8);
/// What the server may grow by while it is fuzzed: some bodies of 16 MiB, and what is made of them.
const GROWTH: u64 = 384 << 20;
/// How long the short form tries.
const SHORT: Duration = Duration::from_secs(35);

/// One request that is wrong in one place.
struct Try<'a> {
    route: &'a Route,
    place: &'a Place,
    shape: Shape,
}

/// Who asks, and what there is to ask about.
struct Attacker {
    address: String,
    key: String,
    /// Also shown to the E2B door's daemon.
    access_token: String,
    words: Vec<(&'static str, String)>,
}

impl Attacker {
    fn new(server: &TestServer, name: &str) -> Attacker {
        let key = tenant(server, name);
        let ask = |method: &str, path: &str, body: Value| {
            let bearer = format!("Bearer {key}");
            let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
            http::request(server.address(), method, path, &headers, Some(body.to_string().as_bytes())).unwrap()
        };
        let made = ask("POST", "/api/sandboxes", json!({"name": "box"})).expect_status(201).json();
        let id = made["id"].as_str().unwrap().to_owned();
        let session = ask("POST", "/api/sessions", json!({"sandbox_id": id})).expect_status(201).json();
        let tokens = ask("GET", &format!("/api/sandboxes/{id}/tokens"), json!({})).expect_status(200).json();
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        Attacker {
            address: server.address().to_owned(),
            access_token: word(&tokens["access_token"]),
            words: vec![("{id}", id), ("{session}", word(&session["session_id"]))],
            key,
        }
    }

    /// Whether the sandbox and the session that everything is tried on are still there: requests to what is gone try
    /// nothing.
    fn is_in_place(&self) -> bool {
        let bearer = format!("Bearer {}", self.key);
        let ask = |path: String| {
            http::request(&self.address, "GET", &path, &[("authorization", bearer.as_str())], None).unwrap()
        };
        let sandbox = ask(format!("/api/sandboxes/{}", self.words[0].1));
        let session = ask(format!("/api/sessions/{}", self.words[1].1));
        sandbox.status == 200 && sandbox.json()["state"] == "running" && session.status == 200
    }

    /// Every sandbox of the attacker's goes, also one that a request made without naming it in its answer.
    fn leave(&self) {
        let bearer = format!("Bearer {}", self.key);
        let ask = |method: &str, path: &str| {
            http::request(&self.address, method, path, &[("authorization", bearer.as_str())], None).unwrap()
        };
        loop {
            let list = ask("GET", "/api/sandboxes?limit=100").expect_status(200).json();
            let ids: Vec<&str> =
                list["items"].as_array().unwrap().iter().filter_map(|item| item["id"].as_str()).collect();
            if ids.is_empty() {
                return;
            }
            for id in ids {
                ask("DELETE", &format!("/api/sandboxes/{id}"));
            }
        }
    }

    /// Sends a request that is wrong in the place that is tried.
    fn send(&self, attempt: &Try<'_>) -> std::io::Result<Answer> {
        let request = attempt.route.with(attempt.place, &attempt.shape, &self.words);
        let bearer = format!("Bearer {}", self.key);
        let mut headers = vec![
            ("authorization", bearer.as_str()),
            ("x-api-key", self.key.as_str()),
            ("x-access-token", self.access_token.as_str()),
        ];
        let own = |name: &str| request.headers.iter().any(|(known, _)| known == name);
        if request.body.is_some() && !own("content-type") {
            headers.push(("content-type", "application/json"));
        }
        headers.extend(request.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        http::request(&self.address, &request.method, &request.target, &headers, request.body.as_deref())
    }

    /// What a request has made goes again, or the machine is full of it.
    fn clear(&self, answer: &Answer) {
        let Ok(Value::Object(made)) = serde_json::from_slice(&answer.body) else { return };
        let ours = &self.words[0].1;
        for name in ["id", "sandbox_id", "sandboxID"] {
            let Some(id) = made.get(name).and_then(Value::as_str).filter(|id| id.len() == 20 && id != ours) else {
                continue;
            };
            let bearer = format!("Bearer {}", self.key);
            let path = format!("/api/sandboxes/{id}");
            // One that is gone already is gone.
            let _gone = http::request(&self.address, "DELETE", &path, &[("authorization", &bearer)], None);
        }
    }
}

fn tenant(server: &TestServer, name: &str) -> String {
    server.request("POST", "/api/organisations", Some(&json!({"id": name, "name": name}))).expect_status(201);
    let key = json!({"name": "k", "organisation": name, "scope": "admin"});
    let key = server.request("POST", "/api/keys", Some(&key)).expect_status(201).json();
    key["secret"].as_str().unwrap().to_owned()
}

/// Faults of the server's, but for what says that it is not offered, or not now, or that a repository far away is not
/// reached.
fn is_fault(route: &Route, answer: &Answer) -> bool {
    let far_away = route.path.contains("/git/") && matches!(answer.status, 502 | 504);
    answer.status >= 500 && !matches!(answer.status, 501 | 503) && !far_away
}

fn fuzz(server: &TestServer, seed: u64, within: Option<Duration>) {
    let mut attacker = Attacker::new(server, "attacker");
    let routes = routes::all(server);
    let mut tries: Vec<Try<'_>> = Vec::new();
    for route in &routes {
        for place in &route.places {
            tries.extend(shapes::all(place).into_iter().map(|shape| Try { route, place, shape }));
        }
    }
    assert!(routes.len() > 180 && tries.len() > 3000, "{} routes, {} tries", routes.len(), tries.len());
    // Those that froze a server come first, the others in an order that the seed decides.
    let mut random = Random::new(seed);
    let mut order: Vec<(bool, u64, usize)> = tries
        .iter()
        .enumerate()
        .map(|(number, attempt)| {
            (!shapes::is_known_to_hurt(attempt.route, attempt.place, &attempt.shape), random.number(), number)
        })
        .collect();
    order.sort_unstable();
    let bystander = tenant(server, "bystander");
    let watch = Watch::begin(server, bystander, SOON);
    let (begun, mut sent) = (Instant::now(), 0);
    let mut renewed = 0;
    for (known_to_be_harmless, _, number) in order {
        if known_to_be_harmless && within.is_some_and(|within| begun.elapsed() > within) {
            break;
        }
        if sent % 50 == 49 && !attacker.is_in_place() {
            renewed += 1;
            attacker.leave();
            attacker = Attacker::new(server, &format!("attacker-{renewed}"));
        }
        let attempt = &tries[number];
        let name = || {
            format!("{} {} with {:?} in {:?}", attempt.route.method, attempt.route.path, attempt.shape, attempt.place)
        };
        let asked = Instant::now();
        let answer = attacker.send(attempt);
        let took = asked.elapsed();
        assert!(took < SOON, "{} took {took:?}", name());
        match answer {
            Ok(answer) => {
                assert!(!is_fault(attempt.route, &answer), "{}: {} {}", name(), answer.status, answer.text());
                attacker.clear(&answer);
            }
            // What is no HTTP any more may be hung up on; a server that is gone is found by the watch.
            Err(error) if attempt.place.is_in_head() && attempt.shape.is_no_http() => drop(error),
            Err(error) => panic!("{}: {error}", name()),
        }
        sent += 1;
    }
    let seen = watch.end();
    attacker.leave();
    assert!(seen.growth < GROWTH, "the server grew by {} MiB", seen.growth >> 20);
    println!(
        "{sent} of {} requests to {} routes, {renewed} times to another sandbox; the server grew by {} MiB, \
         the bystander was answered {} times in {:?} at most",
        tries.len(),
        routes.len(),
        seen.growth >> 20,
        seen.answers,
        seen.slowest
    );
}

fn seed() -> u64 {
    let seed = Random::seed();
    println!("COVE_SEED={seed}");
    seed
}

fn is_long() -> bool {
    std::env::var_os("COVE_LONG").is_some()
}

#[test]
fn no_size_or_shape_hurts_the_server_or_another_tenant() {
    let seed = seed();
    let server = TestServer::start();
    fuzz(&server, seed, (!is_long()).then_some(SHORT));
}

#[test]
fn no_size_or_shape_hurts_a_server_on_postgresql() {
    let Some(postgres) = Postgres::start() else {
        eprintln!("skipped: PostgreSQL is not installed");
        return;
    };
    let seed = seed();
    let server = TestServer::start_in(&[], &[("DATABASE_URL", postgres.url())]);
    // What the doors refuse they refuse on any store: the short form tries what reaches it.
    fuzz(&server, seed, (!is_long()).then_some(SHORT / 4));
}
