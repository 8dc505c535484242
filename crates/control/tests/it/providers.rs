//! Where sandboxes run: several providers at once, what each cannot do, the names they have for sandboxes, and rows of
//! servers from before all that.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use cove_control::clock::Clock;
use cove_control::config::{Config, Section};
use cove_control::provider::fake::Fake;
use cove_control::provider::images::Layers as _;
use cove_control::provider::{Ability, Handle, Image, Provider, ProviderError, Root, Under};
use cove_control::sandbox::{LimitsChange, NetworkPolicy, NewSandbox, State, TimersChange};
use cove_control::store::{Store, Written};
use cove_control::{App, Caller, Error};
use serde_json::{Value, json};
use sqlx::ConnectOptions as _;

use crate::api::ask;
use crate::harness::TestApp;

fn named(name: &str) -> NewSandbox {
    NewSandbox { name: Some(name.into()), ..NewSandbox::default() }
}

/// A server with these providers; the first is the default.
async fn serve(data: &Path, fakes: &[Arc<Fake>]) -> (App, Caller) {
    let section = |fake: &Arc<Fake>| {
        let section = Section { kind: fake.kind().name.to_owned(), keys: Default::default() };
        (fake.name().to_owned(), section)
    };
    let config = Config {
        data: data.to_owned(),
        provider: fakes[0].name().to_owned(),
        providers: fakes.iter().map(section).collect(),
        ..Config::default()
    };
    let store = Store::sqlite(&data.join("cove.db")).await.unwrap();
    let providers = fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Provider>).collect();
    let app = App::open(config, store, providers, Clock::system()).await.unwrap();
    let caller = app.authenticate(&app.first_key().unwrap()).await.unwrap();
    (app, caller)
}

#[tokio::test]
async fn several_providers_serve_side_by_side_and_find_their_own_again() {
    let data = tempfile::tempdir().unwrap();
    let fakes = ["here", "there"].map(|name| Arc::new(Fake::named(name)));
    let (app, caller) = serve(data.path(), &fakes).await;
    let first = app.create_sandbox(&caller, named("first")).await.unwrap();
    let second = NewSandbox { provider: Some("there".into()), ..named("second") };
    let second = app.create_sandbox(&caller, second).await.unwrap();
    assert_eq!((first.provider.as_str(), second.provider.as_str()), ("here", "there"));
    assert_eq!((fakes[0].ids(), fakes[1].ids()), (vec![first.id.clone()], vec![second.id.clone()]));
    let elsewhere = NewSandbox { provider: Some("nowhere".into()), ..named("third") };
    let refused = app.create_sandbox(&caller, elsewhere).await.unwrap_err().to_string();
    assert_eq!(refused, "provider: \"nowhere\" is not one of here, there");

    app.shutdown().await;
    let (app, caller) = serve(data.path(), &fakes).await;
    let done = app.reconcile().await.unwrap();
    assert_eq!((done.sandboxes, done.changed, done.orphans, done.aside), (2, 0, 0, 0));
    app.stop(&caller, "second").await.unwrap();
    assert_eq!(app.sandbox(&caller, "first").await.unwrap().state, State::Running);
    app.shutdown().await;

    // What a server no longer has is left as it is, and refused by name.
    let (app, caller) = serve(data.path(), &fakes[..1]).await;
    app.reconcile().await.unwrap();
    assert_eq!(app.sandbox(&caller, "second").await.unwrap().state, State::Stopped);
    let refused = app.start(&caller, "second").await.unwrap_err().to_string();
    assert_eq!(refused, "provider: \"there\" is not one of here");
    assert_eq!(fakes[1].ids(), [second.id]);
}

#[tokio::test]
async fn what_a_provider_cannot_do_is_refused_with_its_reason_before_it_is_asked() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let reason = "it was built in a hurry";
    for ability in [Ability::Pause, Ability::Resize, Ability::Persistent, Ability::Archive, Ability::NetworkPolicy] {
        t.fake.lack(ability, reason);
    }
    // A call that came through would say something else.
    for call in ["pause", "resize", "stop", "set_network", "export"] {
        t.fake.fail_next(call, ProviderError::Failed("it was asked".into()));
    }
    let sentence = |verb: &str| format!("provider fake cannot {verb}: {reason}");
    let refused = |error: Error| match error {
        Error::Unsupported(sentence) => sentence,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(t.app.pause(&t.caller, "x").await.unwrap_err()), sentence("pause"));
    let more = LimitsChange { memory: Some(2 << 30), ..LimitsChange::default() };
    assert_eq!(refused(t.app.resize(&t.caller, "x", more).await.unwrap_err()), sentence("resize a running sandbox"));
    assert_eq!(refused(t.app.stop(&t.caller, "x").await.unwrap_err()), sentence("keep files over a stop"));
    let policy = NetworkPolicy { allow: vec!["1.2.3.4".into()], ..NetworkPolicy::default() };
    let error = t.app.set_network(&t.caller, "x", policy).await.unwrap_err();
    assert_eq!(refused(error), sentence("hold a network policy"));
    // A sandbox without rules asks for nothing that it cannot do; one with a timer for its archive does.
    let open = NewSandbox { network: NetworkPolicy::open(), ..named("open") };
    t.app.create_sandbox(&t.caller, open.clone()).await.unwrap();
    assert_eq!(
        refused(t.app.create_sandbox(&t.caller, named("closed")).await.unwrap_err()),
        sentence("hold a network policy")
    );
    let timers = TimersChange { archive_after_seconds: Some(Some(60)), ..TimersChange::default() };
    let kept = NewSandbox { timers, name: Some("kept".into()), ..open };
    assert_eq!(refused(t.app.create_sandbox(&t.caller, kept).await.unwrap_err()), sentence("archive"));
    assert_eq!(t.fake.ids().len(), 2, "what is refused is not begun");
}

#[tokio::test]
async fn the_api_shows_what_a_provider_cannot_do_and_why() {
    let t = TestApp::new().await;
    t.fake.lack(Ability::Pause, "it cannot hold still");
    t.fake.lack(Ability::Snapshot, "nor can it be drawn");
    let shown = ask(&t, "GET", "/api/providers", Value::Null).await;
    assert_eq!(shown.status, StatusCode::OK);
    let shown = &shown.json()[0];
    assert_eq!(
        [&shown["name"], &shown["kind"], &shown["default"], &shown["pause"], &shown["archive"], &shown["snapshot"]],
        [&json!("fake"), &json!("fake"), &json!(true), &json!(false), &json!(true), &json!(false)]
    );
    assert_eq!(shown["refusals"][0], json!({"ability": "pause", "reason": "it cannot hold still"}));
    ask(&t, "POST", "/api/sandboxes", json!({"name": "x"})).await;
    let refused = ask(&t, "POST", "/api/sandboxes/x/pause", Value::Null).await;
    assert!(refused.text().contains("provider fake cannot pause: it cannot hold still"), "{}", refused.text());
}

#[tokio::test]
async fn a_providers_name_for_a_sandbox_is_stored_with_it() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let handle = Handle::new(format!("fake-{}", made.id));
    assert_eq!(made.handle, Some(handle.clone()));
    let t = t.killed_and_restarted().await;
    let found = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!(found.handle, Some(handle.clone()));
    // With its files gone from the provider there is nothing to name; a restore names it again.
    t.app.stop(&t.caller, "x").await.unwrap();
    assert_eq!(t.app.archive(&t.caller, "x").await.unwrap().handle, None);
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().handle, Some(handle));
}

#[tokio::test]
async fn a_name_that_was_never_noted_is_learned_when_the_server_comes_back() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let mut unnoted = made.clone();
    unnoted.handle = None;
    unnoted.state = State::Creating;
    assert_eq!(t.app.store().update_sandbox(&mut unnoted, None).await.unwrap(), Written::Done);
    let t = t.killed_and_restarted().await;
    let found = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!((found.state, found.handle), (State::Running, made.handle));
    // Without one it is known by its id.
    let mut unnoted = t.app.sandbox(&t.caller, "x").await.unwrap();
    unnoted.handle = None;
    assert_eq!(t.app.store().update_sandbox(&mut unnoted, None).await.unwrap(), Written::Done);
    t.app.destroy(&t.caller, "x").await.unwrap();
    assert!(t.fake.ids().is_empty());
}

/// As the version with twelve migrations left it: one sandbox of `base`, stopped, and one of a built template that ran.
async fn data_of_an_earlier_version() -> tempfile::TempDir {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("cove.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path).create_if_missing(true);
    let mut database = options.connect().await.unwrap();
    sqlx::raw_sql(include_str!("old/version-0012.sql")).execute(&mut database).await.unwrap();
    sqlx::Connection::close(database).await.unwrap();
    std::fs::write(data.path().join("server-id"), "server_62cwcxrbpdugbj4x").unwrap();
    data
}

#[tokio::test]
async fn a_data_directory_of_an_earlier_version_is_taken_over() {
    let data = data_of_an_earlier_version().await;
    let fake = Arc::new(Fake::named("local"));
    // The files of the built template lie where that version put them.
    let layer = "ab".repeat(32).parse().unwrap();
    fake.make_layer(layer, 1 << 20, Box::new(|_, _| Ok(()))).await.unwrap();
    let (app, caller) = serve(data.path(), &[Arc::clone(&fake)]).await;
    assert!(app.store().layer(layer).await.unwrap().is_none(), "it knew no layers");

    let plain = app.sandbox(&caller, "plain").await.unwrap();
    assert_eq!((plain.state, &plain.image, &plain.handle), (State::Stopped, &Image::default(), &None));
    assert_eq!((plain.labels["a"].as_str(), plain.limits.memory), ("b", 1 << 30));
    let cells = app.sandbox(&caller, "cells").await.unwrap();
    let root = Root { under: Under::Host, over: vec![layer] };
    assert_eq!((cells.state, &cells.image), (State::Running, &Image::from(root)));
    assert_eq!(cells.env["A"], "b");

    // Both live on, and what is written of them from now on is read again.
    for sandbox in [&plain, &cells] {
        fake.launch(&sandbox.order().unwrap()).await.unwrap();
    }
    fake.stop(&plain.handle(), Duration::ZERO).await.unwrap();
    app.reconcile().await.unwrap();
    assert_eq!(app.store().count_uses(layer).await.unwrap(), 1, "what a sandbox stands on is counted from now on");
    app.start(&caller, "plain").await.unwrap();
    app.shutdown().await;
    let (app, caller) = serve(data.path(), &[fake]).await;
    for before in [plain, cells] {
        let now = app.sandbox(&caller, before.id.as_str()).await.unwrap();
        assert_eq!((now.state, now.image), (State::Running, before.image));
        assert_eq!(now.handle, Some(Handle::new(format!("fake-{}", before.id))));
    }
    assert_eq!(app.store().count_uses(layer).await.unwrap(), 1);
    app.destroy(&caller, "cells").await.unwrap();
    assert_eq!(app.store().count_uses(layer).await.unwrap(), 0, "and nobody needs it after that");
}
