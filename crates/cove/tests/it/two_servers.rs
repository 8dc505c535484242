//! Two servers, each with sandboxes of its own, on one PostgreSQL: either answers for both, and they do not fight.

use std::collections::BTreeMap;
use std::net::TcpStream;

use cove_testkit::TestServer;
use cove_testkit::guests::guests;
use cove_testkit::http;
use cove_testkit::postgres::Postgres;
use cove_testkit::receiver::Receiver;
use cove_testkit::server::KEY;
use cove_testkit::wait::{LIMIT, until, until_some};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};

/// The servers go before their database.
struct Pair {
    one: TestServer,
    two: TestServer,
    _database: Postgres,
}

/// `None` where the test is skipped.
fn pair() -> Option<Pair> {
    let database = Postgres::start()?;
    let start = || TestServer::start_in(&[], &[("DATABASE_URL", database.url())]);
    Some(Pair { one: start(), two: start(), _database: database })
}

fn make(server: &TestServer, body: Value) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
    made["id"].as_str().unwrap().to_owned()
}

fn say(server: &TestServer, id: &str, line: &str) -> Value {
    let url = format!("/api/sandboxes/{id}/exec");
    server.request("POST", &url, Some(&json!({"shell": line}))).expect_status(200).json()["stdout"].clone()
}

#[test]
fn either_server_answers_for_the_sandboxes_of_both() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    let id = make(one, json!({"name": "box", "public": true}));
    assert_eq!((guests(&one.data()).len(), guests(&two.data()).len()), (1, 0), "it runs on the first");

    // HTTP: by id, by name, bytes both ways.
    assert_eq!(say(two, &id, "echo by id"), "by id\n");
    assert_eq!(say(two, "box", "echo by name"), "by name\n");
    let large = cove_testkit::Random::new(7).bytes(3 << 20);
    let file = format!("/api/sandboxes/{id}/files/content?path=/home/user/large");
    two.api().send("PUT", &file, &[], Some(&large)).unwrap().expect_status(200);
    assert!(two.request("GET", &file, None).expect_status(200).body == large, "the same bytes come back");
    assert!(one.request("GET", &file, None).expect_status(200).body == large, "and from the first");

    // A browser's WebSocket shows its key in the query, and may use the sandbox's name.
    let url = format!("ws://{}/api/sandboxes/box/exec/stream?api_key={KEY}", two.address());
    let stream = TcpStream::connect(two.address()).unwrap();
    tungstenite::client(url.into_client_request().unwrap(), stream).expect("a browser's WebSocket by name");

    // A WebSocket.
    let url = format!("ws://{}/api/sandboxes/{id}/exec/stream", two.address());
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let stream = TcpStream::connect(two.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut socket, _) = tungstenite::client(request, stream).expect("a WebSocket through the other server");
    socket.send(Message::text(json!({"start": {"shell": "tr a-z A-Z"}}).to_string())).unwrap();
    socket.send(Message::binary(&b"hello"[..])).unwrap();
    socket.send(Message::text(json!({"type": "end_input"}).to_string())).unwrap();
    let mut heard = Vec::new();
    let exit = loop {
        match socket.read().unwrap() {
            Message::Binary(bytes) => heard.extend_from_slice(&bytes[1..]),
            Message::Text(text) => {
                let told: Value = serde_json::from_str(&text).unwrap();
                if told["type"] == "exited" {
                    break told["exit"]["status"].clone();
                }
            }
            _ => {}
        }
    };
    assert_eq!((heard.as_slice(), exit), (&b"HELLO"[..], json!(0)));

    // A session, named by the body alone.
    let session = one.request("POST", "/api/sessions", Some(&json!({"sandbox_id": id}))).expect_status(201).json();
    let code = json!({"session_id": session["session_id"], "language": "bash", "code": "echo in a session"});
    assert_eq!(two.request("POST", "/api/execute", Some(&code)).expect_status(200).json()["stdout"], "in a session\n");

    // A preview, by its host name.
    let line = json!({"shell": "python3 -m http.server 8000", "background": true});
    one.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&line)).expect_status(200);
    let host = format!("8000-{id}.localhost");
    until("the preview through the other server", LIMIT, || {
        preview(two.address(), &host).is_some_and(|answer| answer.contains(" 200 OK") && answer.contains("large"))
    });

    // The life of it.
    for (verb, state) in [("pause", "paused"), ("resume", "running"), ("stop", "stopped"), ("start", "running")] {
        let changed = two.request("POST", &format!("/api/sandboxes/{id}/{verb}"), None).expect_status(200).json();
        assert_eq!(changed["state"], state);
    }
    assert_eq!(guests(&one.data())[&id].len(), 1, "it runs once");
    two.request("DELETE", &format!("/api/sandboxes/{id}"), None).expect_status(204);
    one.request("GET", &format!("/api/sandboxes/{id}"), None).expect_status(404);
}

fn preview(address: &str, host: &str) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    write!(stream, "GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

#[test]
fn nobody_gets_round_by_asking_the_other_server() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    let id = make(one, json!({}));
    let url = format!("/api/sandboxes/{id}");
    for server in [one, two] {
        let wrong = [("authorization", "Bearer e2b_ffffffffffffffffffffffffffffffffffffffff")];
        assert_eq!(http::request(server.address(), "GET", &url, &wrong, None).unwrap().status, 401);
        assert_eq!(http::request(server.address(), "GET", &url, &[], None).unwrap().status, 401);
    }
    let theirs = json!({"id": "other", "name": "other"});
    two.request("POST", "/api/organisations", Some(&theirs)).expect_status(201);
    let key = json!({"name": "k", "organisation": "other", "scope": "write"});
    let key = two.request("POST", "/api/keys", Some(&key)).expect_status(201).json();
    let foreign = format!("Bearer {}", key["secret"].as_str().unwrap());
    for server in [one, two] {
        let answer = http::request(server.address(), "GET", &url, &[("authorization", &foreign)], None).unwrap();
        assert_eq!(answer.status, 404, "another organisation's: {}", answer.text());
    }
    // A forged header of another server is ignored: the request is sent on like any other.
    let bearer = format!("Bearer {KEY}");
    for forged in ["server_x", "server_x 1 00", &format!("server_x {} {}", i64::MAX, "0".repeat(64))] {
        let headers = [("authorization", bearer.as_str()), ("cove-sent-on-by", forged)];
        let found =
            http::request(two.address(), "POST", &format!("{url}/exec"), &headers, Some(br#"{"shell":"true"}"#));
        let found = found.unwrap();
        assert_eq!(found.status, 200, "{forged}: {}", found.text());
    }
}

#[test]
fn a_name_is_got_or_made_once_whichever_server_is_asked() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    let body = json!({"name": "box", "if_exists": "ensure_running"});
    let first = one.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
    let same = |server: &TestServer| {
        let found = server.request("POST", "/api/sandboxes", Some(&body)).expect_status(201).json();
        assert_eq!((&found["id"], &found["state"]), (&first["id"], &json!("running")), "{found}");
    };
    same(two);
    // Asleep on the other server: woken there.
    one.request("POST", "/api/sandboxes/box/stop", None).expect_status(200);
    same(two);
    let session = json!({"sandbox": {"name": "box", "if_exists": "ensure_running"}});
    one.request("POST", "/api/sandboxes/box/stop", None).expect_status(200);
    let session = two.request("POST", "/api/sessions", Some(&session)).expect_status(201).json();
    assert_eq!(session["sandbox_id"], first["id"]);
    // At the same moment on both: one makes it, the other gets it.
    for round in 0..5 {
        let body = json!({"name": format!("race{round}"), "if_exists": "ensure_running"});
        let ids: Vec<Value> = std::thread::scope(|scope| {
            let ask = |server: &TestServer| {
                let api = server.api();
                let body = body.clone();
                scope.spawn(move || {
                    let made = api.json("POST", "/api/sandboxes", &[], Some(&body)).unwrap();
                    made.expect_status(201).json()["id"].clone()
                })
            };
            [ask(one), ask(two)].map(|asked| asked.join().unwrap()).into()
        });
        assert_eq!(ids[0], ids[1]);
    }
}

#[test]
fn an_organisations_maximum_is_one_number_for_all_servers() {
    let Some(database) = Postgres::start() else { return };
    let start = || TestServer::start_in(&[], &[("DATABASE_URL", database.url()), ("COVE_QUOTA_SANDBOXES", "7")]);
    let (one, two) = (start(), start());
    let made: usize = std::thread::scope(|scope| {
        let ask = |server: &TestServer| {
            let api = server.api();
            scope.spawn(move || {
                let status = api.json("POST", "/api/sandboxes", &[], Some(&json!({}))).unwrap().status;
                assert!([201, 429].contains(&status), "{status}");
                usize::from(status == 201)
            })
        };
        let asked: Vec<_> = (0..12).flat_map(|_| [ask(&one), ask(&two)]).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).sum()
    });
    assert_eq!(made, 7, "of 24 that were asked for at once");
}

#[test]
fn an_idempotency_key_with_another_request_is_refused_on_either_server() {
    let Some(pair) = pair() else { return };
    let ask = |server: &TestServer, body: Value| {
        server.api().json("POST", "/api/sandboxes", &[("idempotency-key", "k")], Some(&body)).unwrap()
    };
    let first = ask(&pair.one, json!({"labels": {"a": "1"}})).expect_status(201).json();
    for server in [&pair.one, &pair.two] {
        assert_eq!(ask(server, json!({"labels": {"a": "1"}})).expect_status(201).json()["id"], first["id"]);
        let refused = ask(server, json!({"labels": {"a": "2"}})).expect_status(409);
        assert!(refused.text().contains("was used for another request"), "{}", refused.text());
    }
}

#[test]
fn a_server_that_is_frozen_keeps_nobody_waiting() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    let id = make(one, json!({}));
    let name = std::fs::read_to_string(one.data().join("server-id")).unwrap();
    let pid = rustix::process::Pid::from_raw(one.pid() as i32).unwrap();
    let signal = |signal| rustix::process::kill_process(pid, signal).unwrap();
    two.request("POST", "/api/organisations", Some(&json!({"id": "other"}))).expect_status(201);
    let key = json!({"name": "k", "organisation": "other", "scope": "write"});
    let key = two.request("POST", "/api/keys", Some(&key)).expect_status(201).json();
    let foreign = format!("Bearer {}", key["secret"].as_str().unwrap());
    signal(rustix::process::Signal::STOP);
    let begun = std::time::Instant::now();
    let url = format!("/api/sandboxes/{id}/exec");
    let address = two.address();
    let (refused, strangers) = std::thread::scope(|scope| {
        let strangers = [vec![("authorization", foreign.as_str())], vec![]].map(|headers| {
            let url = url.as_str();
            scope.spawn(move || http::request(address, "POST", url, &headers, Some(br#"{"shell":"true"}"#)))
        });
        let refused = two.api().json("POST", &url, &[], Some(&json!({"shell": "true"})));
        (refused, strangers.map(|asked| asked.join().unwrap()))
    });
    let took = begun.elapsed();
    signal(rustix::process::Signal::CONT);
    for stranger in strangers {
        let stranger = stranger.unwrap();
        assert_eq!(stranger.status, 404, "to strangers it does not exist: {}", stranger.text());
        assert!(!stranger.text().contains(name.trim()), "nor its server: {}", stranger.text());
    }
    let refused = refused.unwrap().expect_status(503);
    assert!(took < std::time::Duration::from_secs(40), "it took {took:?}");
    assert!(refused.header("retry-after").is_some() && refused.text().contains(name.trim()), "{}", refused.text());
    assert!(!refused.text().contains(one.address()), "where it is, is not for callers: {}", refused.text());
    // What only takes long is waited for.
    assert_eq!(say(two, &id, "sleep 9; echo at last"), "at last\n");
}

#[test]
fn timers_and_webhooks_go_off_once() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    let receiver = Receiver::start();
    let hook = json!({"url": receiver.url(), "kinds": ["sandbox.created", "sandbox.stopped"]});
    one.request("POST", "/api/webhooks", Some(&hook)).expect_status(201);
    let timers = json!({"timers": {"lifetime_seconds": 2, "at_deadline": "stop"}});
    let ids: Vec<String> = (0..3).flat_map(|_| [make(one, timers.clone()), make(two, timers.clone())]).collect();
    let deliveries = || {
        let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
        for event in receiver.taken() {
            let name = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            *counts.entry((name("sandbox"), name("kind"))).or_default() += 1;
        }
        counts
    };
    until("every sandbox to be stopped and told of", LIMIT, || deliveries().len() >= 2 * ids.len());
    for id in &ids {
        let found = two.request("GET", &format!("/api/sandboxes/{id}"), None).expect_status(200).json();
        assert_eq!((&found["state"], &found["cause"]["code"]), (&json!("stopped"), &json!("lifetime")), "{found}");
        let told = two.request("GET", &format!("/api/events?sandbox={id}"), None).expect_status(200).json();
        let stops = told.to_string().matches("\"sandbox.stopped\"").count();
        assert_eq!(stops, 1, "{told}");
    }
    let jobs = one.request("GET", "/api/jobs?limit=1000", None).expect_status(200).json();
    for job in jobs.as_array().unwrap() {
        assert_eq!(job["attempts"], 1, "done once: {job}");
    }
    assert!(deliveries().values().all(|count| *count == 1), "{:?}", deliveries());
}

fn snapshot(server: &TestServer, sandbox: &str, name: &str) {
    let body = json!({ "name": name });
    server.request("POST", &format!("/api/sandboxes/{sandbox}/snapshots"), Some(&body)).expect_status(201);
}

#[test]
fn what_one_server_has_captured_or_built_any_server_starts_from() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    make(one, json!({"name": "source"}));
    let line = "set -e; head -c 5000000 /dev/urandom > ~/data; sha256sum ~/data > ~/sum; sudo -n rm -f /etc/services; \
                sudo -n cp /usr/bin/id /usr/local/bin/rootid; sudo -n chmod 4755 /usr/local/bin/rootid; echo done";
    assert_eq!(say(one, "source", line), "done\n");
    snapshot(one, "source", "moved");
    let listed = two.request("GET", "/api/snapshots", None).expect_status(200).json();
    assert_eq!(listed["items"][0]["name"], "moved");

    // Asked of the second, it runs there, with the files of the first. The next one finds them there.
    let look = "sha256sum --check --quiet ~/sum && rootid -u; test -e /etc/services || echo gone";
    for name in ["first", "second"] {
        make(two, json!({"name": name, "template": "moved"}));
        assert_eq!(say(one, name, look), "0\ngone\n", "{name}");
    }
    assert_eq!((guests(&one.data()).len(), guests(&two.data()).len()), (1, 2), "each where it was asked for");
    assert_eq!(two.log().matches("fetched a layer").count(), 1, "a layer comes once");

    // A lineage that goes back and forth: what was captured there comes back with what lies below it.
    say(two, "first", "echo more > ~/more");
    snapshot(two, "first", "back");
    make(one, json!({"name": "third", "template": "back"}));
    assert_eq!(say(two, "third", &format!("cat ~/more; {look}")), "more\n0\ngone\n");
    assert_eq!(guests(&one.data()).len(), 2);

    // Many at once want the same: it comes once, and all of them run.
    snapshot(one, "third", "wanted");
    std::thread::scope(|scope| {
        let ask = |_| {
            let api = two.api();
            scope.spawn(move || {
                let body = json!({"template": "wanted"});
                api.json("POST", "/api/sandboxes", &[], Some(&body)).unwrap().expect_status(201);
            })
        };
        (0..4).map(ask).collect::<Vec<_>>().into_iter().for_each(|asked| asked.join().unwrap());
    });
    assert_eq!(two.log().matches("fetched a layer").count(), 2, "{}", two.log());

    // A build there stands on a template from here.
    let build = ["template", "build", "grown", "--from", "moved", "--run", "cp /home/user/sum /opt/sum"];
    two.cove(build).finish().expect_success();
    make(one, json!({"name": "fourth", "template": "grown"}));
    assert_eq!(say(one, "fourth", "cmp ~/sum /opt/sum && echo same"), "same\n");
}

#[test]
fn layers_are_for_servers_of_the_same_store_alone() {
    let Some(pair) = pair() else { return };
    let (one, two) = (&pair.one, &pair.two);
    make(one, json!({"name": "source"}));
    snapshot(one, "source", "secret");
    let layers = one.data().join("pool/layers");
    let layers = if layers.is_dir() { layers } else { one.data().join("storage/layers") };
    let mut names = std::fs::read_dir(layers).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let layer = names.find(|name| name.len() == 64).unwrap();
    let path = format!("/peer/layers/{layer}?provider=local");
    let bearer = format!("Bearer {KEY}");
    let forged = format!("server_x {} {}", i64::MAX, "0".repeat(64));
    for server in [one, two] {
        for headers in [
            vec![],
            vec![("authorization", bearer.as_str())],
            vec![("cove-sent-on-by", "server_x 1 00")],
            vec![("authorization", bearer.as_str()), ("cove-sent-on-by", forged.as_str())],
        ] {
            let answer = http::request(server.address(), "GET", &path, &headers, None).unwrap();
            assert_eq!(answer.status, 404, "{headers:?}: {}", answer.text());
        }
    }
    // Another organisation does not start from it, on either server.
    two.request("POST", "/api/organisations", Some(&json!({"id": "other"}))).expect_status(201);
    let key = json!({"name": "k", "organisation": "other", "scope": "write"});
    let key = two.request("POST", "/api/keys", Some(&key)).expect_status(201).json();
    let foreign = format!("Bearer {}", key["secret"].as_str().unwrap());
    for server in [one, two] {
        let headers = [("authorization", foreign.as_str()), ("content-type", "application/json")];
        let body = br#"{"template": "secret"}"#;
        let answer = http::request(server.address(), "POST", "/api/sandboxes", &headers, Some(body)).unwrap();
        assert_eq!(answer.status, 404, "{}", answer.text());
    }
}

#[test]
fn a_template_whose_server_is_down_is_refused_by_name_until_its_files_came() {
    let Some(mut pair) = pair() else { return };
    let (one, two) = (&mut pair.one, &pair.two);
    make(one, json!({"name": "source"}));
    say(one, "source", "echo here > ~/file");
    for name in ["fetched", "left"] {
        snapshot(one, "source", name);
    }
    make(two, json!({"template": "fetched"}));
    let name = std::fs::read_to_string(one.data().join("server-id")).unwrap();
    one.kill();
    // Their layers are two captures: one of them is here.
    let id = make(two, json!({"template": "fetched"}));
    assert_eq!(say(two, &id, "cat ~/file"), "here\n", "it outlives the server that made it");
    let refused = two.request("POST", "/api/sandboxes", Some(&json!({"template": "left"}))).expect_status(503);
    assert!(refused.header("retry-after").is_some());
    assert!(refused.json()["message"].as_str().unwrap().contains(name.trim()), "{}", refused.text());
    assert!(!refused.text().contains(one.address()), "where it is, is not for callers: {}", refused.text());
    one.restart();
    let id = make(two, json!({"template": "left"}));
    assert_eq!(say(two, &id, "cat ~/file"), "here\n");
}

/// Somebody who takes a delivery and never answers, until the test has seen enough.
struct Silent {
    address: String,
    listener: std::net::TcpListener,
}

impl Silent {
    fn listen() -> Silent {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        Silent { address: listener.local_addr().unwrap().to_string(), listener }
    }

    fn somebody_calls(&self) -> TcpStream {
        until_some("a delivery", LIMIT, || self.listener.accept().ok()).0
    }
}

#[test]
fn what_a_dead_server_was_at_another_takes_over() {
    let Some(database) = Postgres::start() else { return };
    let start = || TestServer::start_in(&[], &[("DATABASE_URL", database.url())]);
    let mut one = start();
    let silent = Silent::listen();
    let hook = json!({"url": format!("http://{}/", silent.address), "kinds": ["sandbox.created"]});
    one.request("POST", "/api/webhooks", Some(&hook)).expect_status(201);
    let id = make(&one, json!({}));
    // The first server is in the middle of it, and the second there, when the first dies.
    let held = silent.somebody_calls();
    let two = start();
    let delivery = || {
        let jobs = two.request("GET", "/api/jobs", None).expect_status(200).json();
        jobs.as_array().unwrap().iter().find(|job| job["kind"] == "webhook.deliver").cloned().unwrap()
    };
    assert_eq!((&delivery()["state"], &delivery()["attempts"]), (&json!("running"), &json!(1)));
    one.kill();
    let address = silent.address.clone();
    drop((held, silent));
    let receiver = Receiver::at(&address);
    // Twenty seconds of silence make a server dead; until then its work is its own.
    until("the other server to deliver", 2 * LIMIT, || !receiver.taken().is_empty());
    until("the note of it", LIMIT, || delivery()["state"] == "done");
    assert_eq!(delivery()["attempts"], 2, "taken over once: {}", delivery());
    let taken = receiver.taken();
    assert_eq!((taken.len(), taken[0]["sandbox"].as_str()), (1, Some(id.as_str())));
    // No other server takes its sandbox, which is there when it comes back.
    one.restart();
    assert_eq!(say(&two, &id, "echo back"), "back\n");
}

#[test]
fn servers_may_speak_https_with_each_other() {
    let Some(database) = Postgres::start() else { return };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let url = format!("https://{free}");
    let shared = ("DATABASE_URL", database.url());
    let one = TestServer::start_in(&["--tls", &free, "--peer-url", &url], &[shared]);
    let authority = one.data().join("tls/authority.pem");
    let trusts = ("COVE_PEER_AUTHORITY", authority.to_str().unwrap());
    let mut two = TestServer::start_in(&[], &[shared, trusts]);
    let id = make(&one, json!({"name": "box"}));
    assert_eq!(say(&two, &id, "echo by https"), "by https\n");
    let large = cove_testkit::Random::new(8).bytes(1 << 20);
    let file = format!("/api/sandboxes/{id}/files/content?path=/home/user/large");
    two.api().send("PUT", &file, &[], Some(&large)).unwrap().expect_status(200);
    assert!(two.request("GET", &file, None).expect_status(200).body == large, "the same bytes come back");
    // The client's own way is kept: it came by http, so its links do.
    let link = two.request("GET", &format!("/api/sandboxes/{id}/ports/80/link"), None).expect_status(200).json();
    assert!(link["url"].as_str().unwrap().starts_with(&two.url()), "{link}");

    // A server with an untrusted certificate is refused.
    two.restart_in(&[shared]);
    let refused = two.request("POST", "/api/sandboxes/box/exec", Some(&json!({"shell": "true"}))).expect_status(503);
    let message = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("certificate") && !message.contains(&free), "{message}");
}

#[test]
fn a_server_that_is_down_is_named_and_its_sandboxes_are_left_alone() {
    let Some(mut pair) = pair() else { return };
    let (one, two) = (&mut pair.one, &pair.two);
    let id = make(one, json!({"name": "box"}));
    let mine = make(two, json!({}));
    let name = std::fs::read_to_string(one.data().join("server-id")).unwrap();
    one.kill();
    let found = two.request("GET", &format!("/api/sandboxes/{mine}"), None).expect_status(200).json();
    assert_eq!(found["state"], "running");
    let refused = two.request("POST", "/api/sandboxes/box/exec", Some(&json!({"shell": "true"}))).expect_status(503);
    assert!(refused.header("retry-after").is_some());
    assert!(refused.json()["message"].as_str().unwrap().contains(name.trim()), "{}", refused.text());
    assert_eq!(guests(&one.data())[&id].len(), 1, "nobody touched it");
    one.restart();
    assert_eq!(say(two, &id, "echo back"), "back\n");
    assert_eq!(guests(&one.data())[&id].len(), 1);
}
