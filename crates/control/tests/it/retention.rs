//! Rows go when their time is over, and not before.

use std::time::Duration;

use cove_control::clock::from_millisecond;
use cove_control::config::{Config, Retention};
use cove_control::sandbox::NewSandbox;
use cove_control::snapshot::NewSnapshot;
use cove_control::template::NewTemplate;
use cove_control::volume::{NewVolume, VolumeFilter};

use crate::harness::TestApp;

#[tokio::test]
async fn what_is_kept_for_a_day_is_there_for_a_day() {
    const DAY: u64 = 24 * 3600;
    let retention = Retention {
        destroyed_sandboxes_seconds: DAY,
        audit_seconds: DAY,
        usage_seconds: DAY,
        events_seconds: DAY,
        idempotency_keys_seconds: DAY,
    };
    let t = TestApp::with(Config { retention, ..Config::default() }).await;
    let new = || NewSandbox { idempotency_key: Some("k".into()), ..NewSandbox::default() };
    let gone = t.app.create_sandbox(&t.caller, new()).await.unwrap();
    let kept = t.app.create_sandbox(&t.caller, NewSandbox::default()).await.unwrap();
    t.clock.advance(Duration::from_secs(60));
    t.app.destroy(&t.caller, gone.id.as_str()).await.unwrap();
    let used = async || {
        let (from, to) = (from_millisecond(0), t.clock.now());
        t.app.store().usage_spans(&t.caller.organisation, Some(gone.id.as_str()), from, to).await.unwrap().len()
    };

    t.clock.advance(Duration::from_secs(DAY - 120));
    t.app.forget_what_is_old().await.unwrap();
    t.app.sandbox_even_destroyed(&t.caller, gone.id.as_str()).await.unwrap();
    assert!(used().await > 0);
    let audited = t.app.store().audit(&t.caller.organisation, None, 100).await.unwrap().len();
    assert!(audited >= 3, "{audited}");

    t.clock.advance(Duration::from_secs(240));
    t.app.forget_what_is_old().await.unwrap();
    let error = t.app.sandbox_even_destroyed(&t.caller, gone.id.as_str()).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
    t.app.sandbox(&t.caller, kept.id.as_str()).await.expect("what lives is kept, however old it is");
    assert_eq!(used().await, 0);
    assert!(t.app.store().audit(&t.caller.organisation, None, 100).await.unwrap().is_empty());
    let again = t.app.create_sandbox(&t.caller, new()).await.unwrap();
    assert_ne!(again.id, gone.id, "the key's time is over");
}

#[tokio::test]
async fn templates_and_volumes_that_were_deleted_go_after_a_while_too() {
    const DAY: u64 = 24 * 3600;
    let retention = Retention { destroyed_sandboxes_seconds: DAY, ..Retention::default() };
    let t = TestApp::with(Config { retention, ..Config::default() }).await;
    let (app, caller) = (&t.app, &t.caller);
    let source = app.create_sandbox(caller, NewSandbox::default()).await.unwrap();
    let (template, build) = app.create_snapshot(caller, source.id.as_str(), NewSnapshot::default()).await.unwrap();
    let new = NewSandbox { template: Some(template.id.clone()), ..NewSandbox::default() };
    let started = app.create_sandbox(caller, new).await.unwrap();
    let unused = NewTemplate { name: "unused".into(), ..NewTemplate::default() };
    let (unused, _) = app.create_template(caller, unused).await.unwrap();
    let volume = NewVolume { name: "v".into(), size: Some(1 << 20), ..NewVolume::default() };
    app.create_volume(caller, volume).await.unwrap();
    for name in [&template.id, &unused.id] {
        app.delete_template(caller, name).await.unwrap();
    }
    app.delete_volume(caller, "v").await.unwrap();
    let left = async || {
        let store = app.store();
        let template = store.template_by_id(&template.id).await.unwrap().is_some();
        let build = store.build(&build.id).await.unwrap().is_some();
        let unused = store.template_by_id(&unused.id).await.unwrap().is_some();
        (template && build, unused, app.list_volumes(caller, VolumeFilter::WithDeleted).await.unwrap().len())
    };

    t.clock.advance(Duration::from_secs(DAY - 60));
    app.forget_what_is_old().await.unwrap();
    assert_eq!(left().await, (true, true, 1));
    t.clock.advance(Duration::from_secs(120));
    app.forget_what_is_old().await.unwrap();
    assert_eq!(left().await, (true, false, 0), "a sandbox was started from the first");
    app.destroy(caller, started.id.as_str()).await.unwrap();
    app.forget_what_is_old().await.unwrap();
    assert_eq!(left().await, (false, false, 0));
}

#[tokio::test]
async fn what_is_kept_for_ever_is_kept() {
    let t = TestApp::with(Config {
        retention: Retention { destroyed_sandboxes_seconds: 0, audit_seconds: 0, ..Retention::default() },
        ..Config::default()
    })
    .await;
    let gone = t.app.create_sandbox(&t.caller, NewSandbox::default()).await.unwrap();
    t.app.destroy(&t.caller, gone.id.as_str()).await.unwrap();
    t.clock.advance(Duration::from_secs(10 * 365 * 24 * 3600));
    t.app.forget_what_is_old().await.unwrap();
    t.app.sandbox_even_destroyed(&t.caller, gone.id.as_str()).await.unwrap();
    assert!(!t.app.store().audit(&t.caller.organisation, None, 100).await.unwrap().is_empty());
}
