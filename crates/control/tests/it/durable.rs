//! Durable pauses and stops, and the checks that prove them: on every way out of a change there is either the old truth or
//! the new one.

use axum::http::StatusCode;
use cove_control::config::Config;
use cove_control::event::EventFilter;
use cove_control::key::Scope;
use cove_control::key::manage::NewKey;
use cove_control::provider::{Ability, Provider as _, ProviderError};
use cove_control::sandbox::{Durable, NewSandbox, Sandbox, State};
use cove_control::{Error, random};
use serde_json::{Value, json};

use crate::api::{ask, call};
use crate::harness::{TestApp, eventually};

async fn make(t: &TestApp, name: &str) -> Sandbox {
    let made = t.app.create_sandbox(&t.caller, NewSandbox { name: Some(name.into()), ..NewSandbox::default() }).await;
    let made = made.unwrap();
    t.fake.tamper(&made.id, "/home/user/work", b"precious");
    made
}

async fn row(t: &TestApp, sandbox: &Sandbox) -> Sandbox {
    t.app.store().sandbox_by_id(&sandbox.id).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_durable_pause_is_proven_until_something_may_have_changed() {
    let t = TestApp::new().await;
    let made = make(&t, "box").await;
    let plain = ask(&t, "POST", "/api/sandboxes/box/pause", Value::Null).await.json();
    assert_eq!((&plain["state"], &plain["manifest"]), (&json!("paused"), &Value::Null));
    // Paused already: it gets the manifest that it has not.
    let paused = ask(&t, "POST", "/api/sandboxes/box/pause", json!({"durable": true})).await;
    assert_eq!(paused.status, StatusCode::OK, "{}", paused.text());
    let digest = paused.json()["manifest"]["digest"].as_str().unwrap().to_owned();
    assert_eq!((digest.len(), paused.json()["state"].clone()), (64, json!("paused")));
    let again = ask(&t, "POST", "/api/sandboxes/box/pause", json!({"durable": true})).await.json();
    assert_eq!(again["manifest"], paused.json()["manifest"], "nothing has moved: it still holds");
    assert_eq!(ask(&t, "GET", "/api/sandboxes/box", Value::Null).await.json()["manifest"]["digest"], digest);

    // It goes before a process moves, not after.
    let mut hold = t.fake.hold_next("resume");
    let (app, caller) = (t.app.clone(), t.caller.clone());
    let resumed = tokio::spawn(async move { app.resume(&caller, "box").await });
    hold.reached().await;
    let between = row(&t, &made).await;
    assert_eq!((between.state, between.manifest), (State::Resuming, None));
    hold.let_through();
    assert_eq!(resumed.await.unwrap().unwrap().manifest, None);

    let paused = t.app.pause_durably(&t.caller, "box", Durable::Yes).await.unwrap();
    assert_eq!(paused.manifest.unwrap().digest, digest, "the same files");
    let filter = EventFilter { sandbox: Some(made.id.to_string()), ..EventFilter::default() };
    let events = t.app.store().events(&filter, 0, 100).await.unwrap();
    let last = events.iter().rfind(|event| event.kind == "sandbox.paused").unwrap();
    assert_eq!(last.data["manifest"]["digest"], digest, "the event has it too");
    // A stop lets processes end by themselves: what they write is in the next manifest.
    let stopped = t.app.stop(&t.caller, "box").await.unwrap();
    assert_eq!((stopped.state, stopped.manifest), (State::Stopped, None));
    let stopped = t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap();
    assert_eq!((stopped.state, stopped.sealing), (State::Stopped, false));
    assert!(stopped.manifest.is_some());
    assert_eq!(t.app.archive(&t.caller, "box").await.unwrap().manifest, None, "its files are elsewhere");
}

#[tokio::test]
async fn the_server_can_be_set_to_it_and_a_request_can_say_otherwise() {
    let t = TestApp::with(Config { durable: true, ..Config::default() }).await;
    make(&t, "box").await;
    assert!(t.app.pause(&t.caller, "box").await.unwrap().manifest.is_some());
    t.app.resume(&t.caller, "box").await.unwrap();
    let plain = ask(&t, "POST", "/api/sandboxes/box/stop", json!({"durable": false})).await.json();
    assert_eq!((&plain["state"], &plain["manifest"]), (&json!("stopped"), &Value::Null));
    t.app.start(&t.caller, "box").await.unwrap();
    // Where the provider cannot, the default is no hindrance, and a wish is refused before anything happens.
    t.fake.lack(Ability::Manifest, "it has a bad memory");
    let refused = t.app.pause_durably(&t.caller, "box", Durable::Yes).await.unwrap_err();
    let sentence = "provider fake cannot keep a manifest of files: it has a bad memory";
    assert!(matches!(&refused, Error::Unsupported(why) if why == sentence), "{refused}");
    assert_eq!(t.app.sandbox(&t.caller, "box").await.unwrap().state, State::Running);
    assert_eq!(t.app.pause(&t.caller, "box").await.unwrap().manifest, None);
}

#[tokio::test]
async fn a_manifest_that_cannot_be_written_is_told_and_the_state_is_true() {
    let t = TestApp::new().await;
    let made = make(&t, "box").await;
    t.fake.fail_next("seal", ProviderError::Full("no room".into()));
    let refused = t.app.pause_durably(&t.caller, "box", Durable::Yes).await.unwrap_err();
    assert!(matches!(&refused, Error::Full(why) if why.starts_with("it is paused, without a manifest")), "{refused}");
    let found = row(&t, &made).await;
    assert_eq!((found.state, found.manifest, found.sealing), (State::Paused, None, false));
    t.fake.fail_next("seal", ProviderError::Refused("/a: it lies deeper than 256 folders".into()));
    let refused = t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap_err();
    assert!(matches!(&refused, Error::Conflict(why) if why.contains("deeper than 256 folders")), "{refused}");
    assert_eq!(row(&t, &made).await.state, State::Stopped);
    assert!(t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap().manifest.is_some());
}

/// The server dies after the manifest is written and before the row says so.
#[tokio::test]
async fn a_server_that_dies_in_the_middle_leaves_the_old_truth_or_the_new_one() {
    for (verb, left, to) in [("pause", State::Pausing, State::Paused), ("stop", State::Stopping, State::Stopped)] {
        let t = TestApp::new().await;
        let made = make(&t, "box").await;
        let mut hold = t.fake.hold_next("seal");
        let (app, caller) = (t.app.clone(), t.caller.clone());
        let asked = tokio::spawn(async move {
            match verb {
                "pause" => app.pause_durably(&caller, "box", Durable::Yes).await,
                _ => app.stop_durably(&caller, "box", Durable::Yes).await,
            }
        });
        hold.reached().await;
        let between = row(&t, &made).await;
        assert_eq!((between.state, &between.manifest, between.sealing), (left, &None, true), "the old truth");
        let t = t.killed_and_restarted().await;
        let found = row(&t, &made).await;
        assert_eq!((found.state, found.sealing), (to, false));
        let manifest = found.manifest.expect("what was begun is finished as it was asked for");
        // The dead server's last word comes late, and changes nothing.
        hold.let_through();
        let _of_a_dead_server = asked.await.unwrap();
        assert_eq!(row(&t, &made).await.manifest, Some(manifest));
    }
}

#[tokio::test]
async fn a_machine_that_dies_in_the_middle_leaves_no_manifest_and_one_that_dies_later_leaves_it() {
    let t = TestApp::new().await;
    let (half, whole) = (make(&t, "half").await, make(&t, "whole").await);
    let digest = t.app.pause_durably(&t.caller, "whole", Durable::Yes).await.unwrap().manifest.unwrap().digest;
    let mut hold = t.fake.hold_next("seal");
    let (app, caller) = (t.app.clone(), t.caller.clone());
    let asked = tokio::spawn(async move { app.pause_durably(&caller, "half", Durable::Yes).await });
    hold.reached().await;
    assert_eq!(row(&t, &half).await.state, State::Pausing);
    t.fake.reboot();
    let t = t.killed_and_restarted().await;
    let found = row(&t, &half).await;
    assert_eq!(
        (found.state, found.manifest, found.sealing),
        (State::Stopped, None, false),
        "nobody was told otherwise"
    );
    let found = row(&t, &whole).await;
    assert_eq!((found.state, found.manifest.unwrap().digest), (State::Stopped, digest), "its processes are gone");
    hold.let_through();
    let _of_a_dead_server = asked.await;
}

#[tokio::test]
async fn a_rollback_ends_a_manifest_and_a_fork_has_none() {
    let t = TestApp::new().await;
    make(&t, "box").await;
    t.app.checkpoint(&t.caller, "box", None).await.unwrap();
    assert!(t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap().manifest.is_some());
    let fork = cove_control::snapshot::NewFork::default();
    let forked = t.app.fork_sandbox(&t.caller, "box", fork).await.unwrap().remove(0).unwrap();
    assert_eq!((forked.manifest, forked.sealing), (None, false));
    let (back, _) = t.app.rollback_sandbox(&t.caller, "box", None).await.unwrap();
    assert_eq!((back.state, back.manifest), (State::Stopped, None), "these are other files");
}

/// Begins a check and waits for its end.
async fn checked(t: &TestApp, body: Value) -> Value {
    let begun = ask(t, "POST", "/api/checks", body).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    finished(t, begun.json()["id"].as_str().unwrap()).await
}

async fn finished(t: &TestApp, id: &str) -> Value {
    t.app.work().await.unwrap();
    let path = format!("/api/checks/{id}");
    eventually("the check is done", || async { ask(t, "GET", &path, Value::Null).await.json()["state"] == "done" })
        .await;
    ask(t, "GET", &path, Value::Null).await.json()
}

fn item<'a>(check: &'a Value, kind: &str, name: &str) -> &'a Value {
    let mut items = check["items"].as_array().unwrap().iter();
    let found = items.find(|item| item["kind"] == kind && (item["name"] == name || item["id"] == name));
    found.unwrap_or_else(|| panic!("no {kind} {name} in {check}"))
}

#[tokio::test]
async fn a_check_finds_what_was_changed_behind_everybodys_back_and_changes_nothing() {
    let t = TestApp::new().await;
    let (kept, plain, runs) = (make(&t, "kept").await, make(&t, "plain").await, make(&t, "runs").await);
    t.app.pause_durably(&t.caller, "kept", Durable::Yes).await.unwrap();
    t.app.stop(&t.caller, "plain").await.unwrap();
    let check = checked(&t, json!({"sandboxes": ["kept", plain.id, "runs", "kept"]})).await;
    assert_eq!((&check["sound"], check["items"].as_array().unwrap().len()), (&json!(true), 3), "{check}");
    assert_eq!(item(&check, "sandbox", "kept")["checked_by"], "manifest");
    assert_eq!(item(&check, "sandbox", "plain")["checked_by"], "read");
    let runs = (item(&check, "sandbox", "runs"), runs.id);
    assert_eq!((&runs.0["verdict"], &runs.0["id"]), (&json!("not_checked"), &json!(runs.1)));
    assert!(runs.0["note"].as_str().unwrap().contains("only its layers"), "{check}");
    assert!(check["progress"]["done"] == 3 && check["progress"]["files"].as_u64().unwrap() > 0, "{check}");

    t.fake.tamper(&kept.id, "/home/user/work", b"prexious");
    t.fake.tamper(&kept.id, "/home/user/more", b"");
    let before = row(&t, &kept).await;
    let check = checked(&t, json!({"sandboxes": ["kept"]})).await;
    let kept_item = item(&check, "sandbox", "kept");
    assert_eq!((&check["sound"], &kept_item["verdict"]), (&json!(false), &json!("damaged")), "{check}");
    assert_eq!(
        (&kept_item["changed"], &kept_item["added"], &kept_item["note"]),
        (&json!(1), &json!(1), &json!("1 added, 1 changed"))
    );
    let paths: Vec<&str> =
        kept_item["problems"].as_array().unwrap().iter().map(|problem| problem["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/home/user/work", "/home/user/more"]);
    assert_eq!(row(&t, &kept).await, before, "a check changes nothing");
}

#[tokio::test]
async fn what_the_database_names_must_be_there_and_an_operator_is_told_of_the_rest() {
    let t = TestApp::new().await;
    let (lost, archived) = (make(&t, "lost").await, make(&t, "archived").await);
    t.app.checkpoint(&t.caller, "lost", None).await.unwrap();
    t.app.stop_durably(&t.caller, "lost", Durable::Yes).await.unwrap();
    t.app.stop(&t.caller, "archived").await.unwrap();
    t.app.archive(&t.caller, "archived").await.unwrap();
    t.app
        .create_volume(&t.caller, cove_control::volume::NewVolume { name: "data".into(), ..Default::default() })
        .await
        .unwrap();
    let check = checked(&t, json!({"all": true})).await;
    assert_eq!(check["sound"], true, "{check}");
    assert_eq!(item(&check, "volume", "data")["checked_by"], "names");
    assert_eq!(item(&check, "sandbox", "archived")["verdict"], "not_checked", "{}", archived.id);
    assert_eq!(check["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "layer").count(), 1, "{check}");
    assert!(item(&check, "server", t.app.server())["note"].as_str().unwrap().starts_with("nothing lies here"));

    // Files of a sandbox, and a layer, are gone; and there is a sandbox of which nobody knows.
    t.fake.destroy(&lost.handle()).await.unwrap();
    let layer = t.fake.layer_ids()[0];
    t.fake.layers().remove_layer(layer).await.unwrap();
    let mut order = lost.order().unwrap();
    order.id = random::sandbox_id();
    t.fake.launch(&order).await.unwrap();
    let check = checked(&t, json!({"all": true})).await;
    assert_eq!(check["sound"], false);
    assert!(item(&check, "sandbox", "lost")["note"].as_str().unwrap().contains("its files are not there"), "{check}");
    assert_eq!(item(&check, "layer", &layer.to_string())["verdict"], "damaged");
    assert_eq!(check["items"][0]["verdict"], "damaged", "what must be read comes first");
    let server = item(&check, "server", t.app.server());
    assert_eq!(server["problems"][0]["kind"], "unreferenced");
    assert_eq!(server["problems"][0]["detail"], format!("sandbox {}", order.id));
    assert!(server["note"].as_str().unwrap().contains("cove orphans ls"), "{server}");
}

#[tokio::test]
async fn a_check_keeps_nobody_from_starting_and_does_not_judge_what_was_started() {
    let t = TestApp::new().await;
    make(&t, "box").await;
    t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap();
    let mut hold = t.fake.hold_next("check");
    let begun = ask(&t, "POST", "/api/checks", json!({"sandboxes": ["box"]})).await.json();
    t.app.work().await.unwrap();
    hold.reached().await;
    assert_eq!(t.app.start(&t.caller, "box").await.unwrap().state, State::Running);
    // One at a time: it reads all that there is.
    let second = ask(&t, "POST", "/api/checks", json!({"all": true})).await;
    assert_eq!(second.status, StatusCode::CONFLICT, "{}", second.text());
    hold.let_through();
    let check = finished(&t, begun["id"].as_str().unwrap()).await;
    assert_eq!((&check["sound"], &check["items"][0]["verdict"]), (&json!(true), &json!("not_checked")), "{check}");
    assert_eq!(checked(&t, json!({"all": true})).await["state"], "done", "the next one may begin");
}

#[tokio::test]
async fn a_check_of_a_server_that_died_is_begun_again() {
    let t = TestApp::new().await;
    make(&t, "box").await;
    t.app.stop_durably(&t.caller, "box", Durable::Yes).await.unwrap();
    let mut hold = t.fake.hold_next("check");
    let begun = ask(&t, "POST", "/api/checks", json!({"sandboxes": ["box"]})).await.json();
    t.app.work().await.unwrap();
    hold.reached().await;
    let t = t.killed_and_restarted().await;
    assert_eq!(t.app.take_up_jobs().await.unwrap(), 1);
    let check = finished(&t, begun["id"].as_str().unwrap()).await;
    assert_eq!((&check["sound"], &check["items"][0]["verdict"]), (&json!(true), &json!("sound")), "{check}");
    hold.let_through();
}

#[tokio::test]
async fn a_check_takes_a_writing_key_of_the_organisation_and_is_nobody_elses() {
    let t = TestApp::new().await;
    make(&t, "box").await;
    t.app.create_organisation(&t.caller, "other", "other").await.unwrap();
    let key = async |organisation: Option<&str>, scope: Scope| {
        let organisation = organisation.map(ToOwned::to_owned);
        let new = NewKey { name: "k".into(), scope, expires_in_seconds: None, organisation };
        t.app.create_key(&t.caller, new).await.unwrap().1
    };
    let (reader, writer) = (key(None, Scope::Read).await, key(None, Scope::Write).await);
    let stranger = key(Some("other"), Scope::Admin).await;
    let body = || json!({"sandboxes": ["box"]}).to_string();
    assert_eq!(call(&t, &reader, "POST", "/api/checks", body()).await.status, StatusCode::FORBIDDEN);
    assert_eq!(call(&t, &stranger, "POST", "/api/checks", body()).await.status, StatusCode::NOT_FOUND);
    for wrong in [json!({}), json!({"all": true, "sandboxes": ["box"]}), json!({"sandboxes": []})] {
        let refused = call(&t, &writer, "POST", "/api/checks", wrong.to_string()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
    let begun = call(&t, &writer, "POST", "/api/checks", json!({"all": true}).to_string()).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    let path = format!("/api/checks/{}", begun.json()["id"].as_str().unwrap());
    assert_eq!(call(&t, &stranger, "GET", &path, "").await.status, StatusCode::NOT_FOUND);
    assert_eq!(call(&t, &reader, "GET", &path, "").await.status, StatusCode::OK);
    let check = finished(&t, begun.json()["id"].as_str().unwrap()).await;
    let strays = check["items"].as_array().unwrap().iter().filter(|item| item["kind"] == "server");
    assert_eq!(strays.count(), 0, "what is nobody's is the operator's business");
    for id in ["check_nobodys", "x"] {
        let unknown = ask(&t, "GET", &format!("/api/checks/{id}"), Value::Null).await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    }
}
