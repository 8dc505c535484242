//! Another organisation's things by every noun, keys that would be more than they are, and streams whose right has ended.

use std::time::Duration;

use cove_probe::Outcome;
use serde_json::{Value, json};

use super::house::{House, PORT};
use super::wire::{Open, written};
use super::{Probe, each, held, hung_up, lost, refused};

/// A stream must end this soon after its right.
const SOON: Duration = Duration::from_secs(3);

fn stranger(house: &House, method: &str, path: &str, body: Value) -> Outcome {
    refused(&format!("{method} {path}"), house.ask(Some(&house.stranger), method, path, &body))
}

/// What is listed for a stranger names nothing of the owner's.
fn shows_nothing(house: &House, path: &str) -> Outcome {
    match house.ask(Some(&house.stranger), "GET", path, &Value::Null) {
        Ok(answer) => {
            let text = answer.text();
            let things =
                [&house.private, &house.public, &house.open, &house.session, &house.webhook, &house.revoked_id];
            match things.into_iter().find(|thing| text.contains(thing.as_str())) {
                Some(thing) => lost(format!("GET {path} shows {thing}")),
                None => held(format!("GET {path}: {} and nothing of another's", answer.status)),
            }
        }
        Err(error) => hung_up(&format!("GET {path}"), &error),
    }
}

pub fn probes() -> Vec<Probe> {
    let theirs = "one customer sees or changes another's";
    let more = "a key does more than it was made for";
    let goes_on = "whoever lost their right goes on listening";
    vec![
        Probe::new("cannot_use_anothers_sandbox", theirs, |house| {
            let id = &house.open;
            let name = "open";
            each([
                stranger(house, "GET", &format!("/api/sandboxes/{id}"), Value::Null),
                stranger(house, "GET", &format!("/api/sandboxes/{name}"), Value::Null),
                stranger(house, "POST", &format!("/api/sandboxes/{id}/exec"), json!({"shell": "id"})),
                stranger(house, "DELETE", &format!("/api/sandboxes/{id}"), Value::Null),
                stranger(house, "GET", &format!("/e2b/sandboxes/{id}"), Value::Null),
                stranger(house, "DELETE", &format!("/daytona/api/sandbox/{id}"), Value::Null),
                stranger(house, "POST", &format!("/daytona/toolbox/{id}/process/execute"), json!({"command": "id"})),
            ])
        }),
        Probe::new("cannot_have_anothers_tokens", theirs, |house| {
            each([
                stranger(house, "GET", &format!("/api/sandboxes/{}/tokens", house.open), Value::Null),
                stranger(house, "POST", &format!("/api/sandboxes/{}/tokens", house.open), Value::Null),
                stranger(house, "GET", &format!("/daytona/api/sandbox/{}/signing-key", house.open), Value::Null),
                stranger(house, "POST", &format!("/e2b/sandboxes/{}/connect", house.open), json!({"timeout": 1})),
            ])
        }),
        Probe::new("cannot_make_links_to_anothers_ports", theirs, |house| {
            let daytona = format!("/daytona/api/sandbox/{}/ports/{PORT}", house.open);
            each([
                stranger(house, "GET", &format!("/api/sandboxes/{}/ports/{PORT}/link", house.open), Value::Null),
                stranger(house, "GET", &format!("{daytona}/preview-url"), Value::Null),
                stranger(house, "GET", &format!("{daytona}/signed-preview-url"), Value::Null),
            ])
        }),
        Probe::new("cannot_use_anothers_session", theirs, |house| {
            let id = &house.session;
            each([
                stranger(house, "GET", &format!("/api/sessions/{id}"), Value::Null),
                stranger(house, "GET", &format!("/api/sessions/{id}/journal"), Value::Null),
                stranger(house, "POST", "/api/execute", json!({"session_id": id, "code": "1"})),
                stranger(house, "POST", "/api/files", json!({"session_id": id, "path": "x", "content": ""})),
                stranger(house, "DELETE", &format!("/api/sessions/{id}"), Value::Null),
            ])
        }),
        Probe::new("cannot_put_a_session_on_anothers_sandbox", theirs, |house| {
            stranger(house, "POST", "/api/sessions", json!({"sandbox_id": house.open}))
        }),
        Probe::new("cannot_revoke_anothers_key", theirs, |house| {
            stranger(house, "DELETE", &format!("/api/keys/{}", house.revoked_id), Value::Null)
        }),
        Probe::new("cannot_delete_anothers_webhook", theirs, |house| {
            stranger(house, "DELETE", &format!("/api/webhooks/{}", house.webhook), Value::Null)
        }),
        Probe::new("cannot_see_anothers_things_in_lists", theirs, |house| {
            let paths = ["/api/sandboxes", "/api/sessions", "/api/keys", "/api/webhooks", "/api/usage", "/api/audit"];
            let doors = ["/api/jobs", "/api/pools", "/e2b/v2/sandboxes", "/e2b/sandboxes", "/daytona/api/sandbox"];
            each(paths.into_iter().chain(doors).map(|path| shows_nothing(house, path)))
        }),
        Probe::new("cannot_hear_anothers_events", theirs, |house| {
            each([
                shows_nothing(house, "/api/events?after=0"),
                shows_nothing(house, &format!("/api/events/follow?sandbox={}&after=0&for_seconds=0", house.open)),
            ])
        }),
        Probe::new("cannot_measure_anothers_sandbox", theirs, |house| {
            each([
                stranger(house, "GET", &format!("/api/sandboxes/{}/metrics", house.open), Value::Null),
                shows_nothing(house, &format!("/e2b/sandboxes/metrics?sandbox_ids={}", house.open)),
            ])
        }),
        Probe::new("cannot_act_on_anothers_organisation", theirs, |house| {
            let quota = json!({"sandboxes": 1_000_000});
            each([
                stranger(house, "GET", "/api/organisations/default", Value::Null),
                stranger(house, "PUT", "/api/organisations/stranger/quota", quota),
                stranger(house, "DELETE", "/api/organisations/default", Value::Null),
                stranger(house, "POST", "/api/organisations", json!({"id": "third", "name": "third"})),
            ])
        }),
        Probe::new("cannot_make_a_key_that_may_more", more, |house| {
            let for_all = json!({"name": "k", "scope": "operator"});
            let for_others = json!({"name": "k", "scope": "read", "organisation": "default"});
            each([
                stranger(house, "POST", "/api/keys", for_all),
                stranger(house, "POST", "/api/keys", for_others),
                refused("a reader makes a key", {
                    house.ask(Some(&house.reader), "POST", "/api/keys", &json!({"name": "k", "scope": "read"}))
                }),
            ])
        }),
        Probe::new("cannot_reach_the_servers_neighbours_as_a_tenant", theirs, |house| {
            let network = |target: &str| json!({"network": {"access": "open", "allow": [target]}});
            each(
                ["169.254.169.254", "127.0.0.1:22", "10.0.0.0/8"]
                    .map(|target| stranger(house, "POST", "/api/sandboxes", network(target))),
            )
        }),
        Probe::new("cannot_make_the_server_call_its_neighbours", theirs, |house| {
            each(
                ["http://127.0.0.1:7070/", "http://169.254.169.254/latest", "http://[::1]/", "http://017700000001/"]
                    .map(|url| stranger(house, "POST", "/api/webhooks", json!({"url": url}))),
            )
        }),
        Probe::new("cannot_use_a_key_in_a_query", "keys end up in logs and histories", |house| {
            let path = format!("/api/sandboxes?api_key={}", house.key);
            refused("GET /api/sandboxes?api_key=", house.send("GET", &path, &[], ""))
        }),
        Probe::new("cannot_follow_events_with_a_revoked_key", goes_on, |house| {
            ends_with_its_key(house, "/api/events/follow?for_seconds=60", "")
        }),
        Probe::new("cannot_keep_a_terminal_with_a_revoked_key", goes_on, |house| {
            ends_with_its_key(house, &format!("/api/sandboxes/{}/exec/stream", house.open), "")
        }),
        Probe::new("cannot_keep_a_socket_of_events_with_a_revoked_key", goes_on, |house| {
            ends_with_its_key(house, "/daytona/api/socket.io/?EIO=4&transport=websocket", "40")
        }),
        Probe::new("cannot_keep_a_session_open_with_a_revoked_key", goes_on, |house| {
            ends_with_its_key(house, &format!("/api/sessions/{}/stream", house.session), "")
        }),
    ]
}

/// Opens a stream with a key, revokes the key, and waits for the end. `hello` is what the client says first, before a key.
fn ends_with_its_key(house: &House, path: &str, hello: &str) -> Outcome {
    let Some((id, secret)) = house.fresh_key("write") else { return lost("a key could not be made") };
    let bearer = format!("Bearer {secret}");
    let mut headers = vec![("host", house.address.as_str()), ("authorization", bearer.as_str())];
    if !path.contains("/follow") {
        headers.extend([("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")]);
        headers.push(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="));
    }
    let opened = Open::new(&house.address, &written("GET", path, &headers, ""));
    let (mut stream, answer) = match opened {
        Ok(opened) => opened,
        Err(error) => return lost(format!("GET {path}: {error}")),
    };
    if ![101, 200].contains(&answer.status) {
        return lost(format!("GET {path}: {} for the owner", answer.status));
    }
    if !hello.is_empty() {
        let said = stream.say(&format!("{hello}{}", json!({ "token": secret })));
        if said.is_err() || !stream.hears(SOON) {
            return lost(format!("GET {path}: no answer to the key"));
        }
    }
    let gone = house.ask(Some(&house.key), "DELETE", &format!("/api/keys/{id}"), &Value::Null);
    if !gone.is_ok_and(|answer| answer.status < 300) {
        return lost("the key could not be revoked");
    }
    match stream.ends(SOON) {
        true => held(format!("GET {path}: closed after the key was revoked")),
        false => lost(format!("GET {path}: open {} s after the key was revoked", SOON.as_secs())),
    }
}
