//! Which provider a new sandbox goes to, what it starts from, and how providers do.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use cove_control::clock::Clock;
use cove_control::config::{Config, Route, Section};
use cove_control::provider::fake::Fake;
use cove_control::provider::{Ability, Provider, ProviderError, Supply};
use cove_control::sandbox::NewSandbox;
use cove_control::store::Store;
use cove_control::{App, Caller, Error};
use serde_json::{Value, json};

use crate::api::ask;
use crate::harness::TestApp;
use crate::templates::Workbench;

fn labelled(pairs: &[(&str, &str)]) -> NewSandbox {
    let labels: BTreeMap<String, String> = pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
    NewSandbox { labels, ..NewSandbox::default() }
}

fn route(labels: &str, template: &str, providers: &str) -> Route {
    Route { labels: labels.into(), template: template.into(), providers: providers.into() }
}

struct World {
    app: App,
    caller: Caller,
    clock: Clock,
    fakes: Vec<Arc<Fake>>,
}

/// A server with these providers, of which the first is the default, and these rules.
async fn serve(data: &Path, names: &[&str], routes: Vec<Route>) -> World {
    let fakes: Vec<Arc<Fake>> = names.iter().map(|name| Arc::new(Fake::named(name))).collect();
    let section = |fake: &Arc<Fake>| {
        (fake.name().to_owned(), Section { kind: fake.kind().name.to_owned(), keys: Default::default() })
    };
    let config = Config {
        data: data.to_owned(),
        provider: names[0].to_owned(),
        providers: fakes.iter().map(section).collect(),
        routes,
        ..Config::default()
    };
    let store = Store::sqlite(&data.join("cove.db")).await.unwrap();
    let providers = fakes.iter().map(|fake| Arc::clone(fake) as Arc<dyn Provider>).collect();
    let clock = Clock::standing_at("2026-01-01T00:00:00Z".parse().unwrap());
    let app = App::open(config, store, providers, clock.clone()).await.unwrap();
    let caller = app.authenticate(&app.first_key().unwrap()).await.unwrap();
    World { app, caller, clock, fakes }
}

impl World {
    async fn made_at(&self, new: NewSandbox) -> String {
        self.app.create_sandbox(&self.caller, new).await.unwrap().provider
    }
}

#[tokio::test]
async fn rules_by_labels_and_templates_decide_and_a_named_provider_wins() {
    let data = tempfile::tempdir().unwrap();
    let routes = vec![route("tier=paid", "", "strong"), route("", "code-*", "cells")];
    let w = serve(data.path(), &["usual", "strong", "cells"], routes).await;
    assert_eq!(w.made_at(NewSandbox::default()).await, "usual");
    assert_eq!(w.made_at(labelled(&[("tier", "paid"), ("a", "b")])).await, "strong");
    let template = Some("code-interpreter".to_owned());
    assert_eq!(w.made_at(NewSandbox { template, ..NewSandbox::default() }).await, "cells");
    let named = NewSandbox { provider: Some("usual".into()), ..labelled(&[("tier", "paid")]) };
    assert_eq!(w.made_at(named).await, "usual");
}

#[tokio::test]
async fn weights_share_the_work() {
    let data = tempfile::tempdir().unwrap();
    let w = serve(data.path(), &["a", "b"], vec![route("", "", "a=0, b=1")]).await;
    for _ in 0..5 {
        assert_eq!(w.made_at(NewSandbox::default()).await, "b");
    }
    assert!(w.fakes[0].ids().is_empty());
}

#[tokio::test]
async fn a_creation_that_one_provider_cannot_do_goes_on_to_the_next_and_leaves_nothing() {
    let data = tempfile::tempdir().unwrap();
    let w = serve(data.path(), &["first", "second"], vec![route("", "", "first=1, second=0")]).await;
    w.fakes[0].fail_next("launch", ProviderError::Failed("it is on fire".into()));
    let new = NewSandbox { name: Some("box".into()), idempotency_key: Some("k".into()), ..NewSandbox::default() };
    let made = w.app.create_sandbox(&w.caller, new.clone()).await.unwrap();
    assert_eq!((made.provider.as_str(), made.name.as_deref()), ("second", Some("box")));
    assert!(w.fakes[0].ids().is_empty());
    // The same request again gets the same sandbox, wherever it would go now.
    assert_eq!(w.app.create_sandbox(&w.caller, new).await.unwrap().id, made.id);
    assert_eq!(w.fakes[1].ids().len(), 1);
    // What the first cannot do at all is for the second as well.
    w.fakes[0].lack(Ability::NetworkPolicy, "it has no rules");
    assert_eq!(w.made_at(NewSandbox::default()).await, "second");
    // A wrong request is wrong everywhere.
    let wrong = NewSandbox { template: Some("no-such".into()), ..NewSandbox::default() };
    let refused = w.app.create_sandbox(&w.caller, wrong).await.unwrap_err();
    assert!(matches!(refused, Error::NotFound { kind: "template", .. }), "{refused}");
    // Who names a provider gets its answer.
    w.fakes[0].fail_next("launch", ProviderError::Exhausted("no room".into()));
    let named = NewSandbox {
        provider: Some("first".into()),
        network: cove_control::sandbox::NetworkPolicy::open(),
        ..NewSandbox::default()
    };
    assert_eq!(w.app.create_sandbox(&w.caller, named).await.unwrap_err().to_string(), "no room");
}

#[tokio::test]
async fn an_ill_provider_gets_nothing_until_it_has_rested_and_one_success_makes_it_well() {
    let data = tempfile::tempdir().unwrap();
    let w = serve(data.path(), &["first", "second"], vec![route("", "", "first=1, second=0")]).await;
    for _ in 0..3 {
        w.fakes[0].fail_next("launch", ProviderError::Failed("it is on fire".into()));
        assert_eq!(w.made_at(NewSandbox::default()).await, "second");
    }
    let health = w.app.provider_health("first");
    assert_eq!((health.state, health.why.as_deref()), ("ill", Some("the last 3 creations failed")));
    assert_eq!(health.last_error.as_deref(), Some("it is on fire"));
    // It would work now, and is not asked.
    assert_eq!(w.made_at(NewSandbox::default()).await, "second");
    w.clock.advance(Duration::from_secs(31));
    assert_eq!(w.made_at(NewSandbox::default()).await, "first");
    let health = w.app.provider_health("first");
    assert_eq!(health.state, "well");
    let create = health.acts.iter().find(|figures| figures.act.as_str() == "create").unwrap();
    assert_eq!((create.calls, create.errors, create.error_rate), (4, 3, 0.75));
}

#[tokio::test]
async fn one_that_does_not_answer_is_ill_and_where_all_are_ill_they_are_tried() {
    let data = tempfile::tempdir().unwrap();
    let w = serve(data.path(), &["first", "second"], vec![route("", "", "first=1, second=0")]).await;
    for _ in 0..2 {
        w.fakes[0].fail_next("answers", ProviderError::Failed("connection refused".into()));
        w.app.check_providers().await.unwrap();
    }
    assert!(!w.app.is_well("first") && w.app.is_well("second"));
    assert_eq!(w.made_at(NewSandbox::default()).await, "second");
    for _ in 0..2 {
        for fake in &w.fakes {
            fake.fail_next("answers", ProviderError::Failed("connection refused".into()));
        }
        w.app.check_providers().await.unwrap();
    }
    assert_eq!(w.made_at(NewSandbox::default()).await, "first");
    w.app.check_providers().await.unwrap();
    assert!(w.app.is_well("first") && w.app.is_well("second"));
}

#[tokio::test]
async fn the_api_and_the_metrics_show_how_providers_do() {
    let t = TestApp::new().await;
    ask(&t, "POST", "/api/sandboxes", json!({"name": "x"})).await;
    ask(&t, "POST", "/api/sandboxes/x/exec", json!({"shell": "true"})).await;
    t.app.check_providers().await.unwrap();
    let shown = ask(&t, "GET", "/api/providers", Value::Null).await.json();
    let health = &shown[0]["health"];
    assert_eq!((&health["state"], &health["why"]), (&json!("well"), &Value::Null));
    let acts: Vec<&str> = health["acts"].as_array().unwrap().iter().filter_map(|one| one["act"].as_str()).collect();
    assert_eq!(acts, ["create", "exec", "check"]);
    let metrics = ask(&t, "GET", "/metrics", Value::Null).await.text();
    for line in [
        "cove_provider_ok{provider=\"fake\"} 1",
        "cove_provider_calls_total{provider=\"fake\",act=\"create\"} 1",
        "cove_provider_errors_total{provider=\"fake\",act=\"exec\"} 0",
    ] {
        assert!(metrics.lines().any(|one| one == line), "no {line} in\n{metrics}");
    }
}

#[tokio::test]
async fn the_bodies_of_the_first_documents_are_taken_as_they_stand() {
    let t = TestApp::new().await;
    let made = ask(&t, "POST", "/api/sessions", json!({"provider": "fake", "environment": "Python3"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    let session = made.json();
    assert_eq!(session["provider"], "fake");
    let read = ask(&t, "GET", &format!("/api/sessions/{}", session["session_id"].as_str().unwrap()), Value::Null).await;
    assert_eq!(read.json()["environment"], "code-interpreter");
    // A provider that fetches images itself gets the name of the image.
    t.fake.set_supply(Supply::Images);
    for (environment, reference) in [
        ("python:latest", "docker.io/library/python:latest"),
        ("Python3", "docker.io/library/python:3"),
        ("python-3.11", "docker.io/library/python:3.11"),
    ] {
        let made = ask(&t, "POST", "/api/sessions", json!({"provider": "fake", "environment": environment})).await;
        assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
        let id = made.json()["sandbox_id"].as_str().unwrap().to_owned();
        let sandbox = t.app.sandbox(&t.caller, &id).await.unwrap();
        assert_eq!(sandbox.image.reference.as_deref(), Some(reference), "{environment}");
    }
    // One with templates of its own gets their names, and no image.
    t.fake.set_supply(Supply::Templates);
    let made = ask(&t, "POST", "/api/sessions", json!({"environment": "my-own"})).await.json();
    let sandbox = t.app.sandbox(&t.caller, made["sandbox_id"].as_str().unwrap()).await.unwrap();
    assert_eq!(sandbox.image.reference.as_deref(), Some("my-own"));
    let refused = ask(&t, "POST", "/api/sandboxes", json!({"image": "debian:12"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("starts from templates of its own"), "{}", refused.text());
}

#[tokio::test]
async fn a_sandbox_starts_from_an_image_that_is_fetched_once() {
    let w = Workbench::new().await;
    let made = ask(&w.t, "POST", "/api/sandboxes", json!({"name": "a", "image": "debian:12"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    let first = w.t.app.sandbox(&w.t.caller, "a").await.unwrap();
    assert_eq!(first.image.root.over, [w.shelf.layer("debian:12")]);
    // By the name that people know, and at every call the same build.
    let made = ask(&w.t, "POST", "/api/sandboxes", json!({"name": "b", "template": "debian-12"})).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
    assert_eq!(w.t.app.sandbox(&w.t.caller, "b").await.unwrap().build, first.build);
    let refused = ask(&w.t, "POST", "/api/sandboxes", json!({"image": "no-such:1"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("image: no-such:1 could not be had: "), "{}", refused.text());
    let refused = ask(&w.t, "POST", "/api/sandboxes", json!({"image": "debian:12", "template": "base"})).await;
    assert!(refused.text().contains("image: a sandbox starts from one thing"), "{}", refused.text());
}

#[tokio::test]
async fn a_repository_that_cannot_be_cloned_leaves_no_sandbox() {
    let t = TestApp::new().await;
    let refused = ask(&t, "POST", "/api/sandboxes", json!({"git_url": "https://example.com/a.git"})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text().contains("git_url: the sandbox has no network"), "{}", refused.text());
    let lonely = ask(&t, "POST", "/api/sandboxes", json!({"git_branch": "main"})).await;
    assert!(lonely.text().contains("git_branch: is of a repository"), "{}", lonely.text());
    // The stand-in has no git.
    let failed = ask(&t, "POST", "/api/sandboxes", json!({"name": "x", "git_url": "file:///nowhere"})).await;
    assert!(failed.status.is_client_error() || failed.status.is_server_error(), "{}", failed.text());
    assert!(t.fake.ids().is_empty());
    assert_eq!(ask(&t, "GET", "/api/sandboxes/x", Value::Null).await.status, StatusCode::NOT_FOUND);
}
