use std::time::Duration;

use cove_control::job::JobState;
use cove_control::provider::{Ended, Order, Provider as _, ProviderError};
use cove_control::sandbox::cause::Code;
use cove_control::sandbox::{
    Expiry, IdleMeasure, IfExists, LimitsChange, NetworkPolicy, NewSandbox, State, TimersChange,
};
use cove_control::session::NewSession;
use cove_control::store::Store;
use cove_control::{App, Error};

use crate::harness::{TestApp, eventually};

fn named(name: &str) -> NewSandbox {
    NewSandbox { name: Some(name.into()), ..NewSandbox::default() }
}

#[tokio::test]
async fn a_sandbox_lives_stops_and_starts_again() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    assert_eq!(made.state, State::Running);
    assert_eq!(t.app.stop(&t.caller, "x").await.unwrap().state, State::Stopped);
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().state, State::Running);
    assert_eq!(t.app.pause(&t.caller, "x").await.unwrap().state, State::Paused);
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().state, State::Running);
    t.app.destroy(&t.caller, "x").await.unwrap();
    assert!(matches!(t.app.sandbox(&t.caller, "x").await, Err(Error::NotFound { .. })));
    assert!(t.fake.ids().is_empty());
}

#[tokio::test]
async fn an_archived_sandbox_leaves_the_machine_and_comes_back_on_start() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.app.stop(&t.caller, "x").await.unwrap();
    assert_eq!(t.app.archive(&t.caller, "x").await.unwrap().state, State::Archived);
    assert!(t.fake.ids().is_empty());
    let back = t.app.start(&t.caller, "x").await.unwrap();
    assert_eq!((back.id, back.state), (made.id, State::Running));
}

/// As after a database was restored that is older than the archive: started without its files, it would later be archived
/// over the only copy of them.
#[tokio::test]
async fn a_sandbox_whose_files_are_gone_comes_back_from_its_archive() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let bare = t.app.create_sandbox(&t.caller, named("y")).await.unwrap();
    t.app.stop(&t.caller, "x").await.unwrap();
    t.app.archive(&t.caller, "x").await.unwrap();
    // The database says that both run, and nothing of them is there.
    t.app.start(&t.caller, "x").await.unwrap();
    for id in [&made.id, &bare.id] {
        t.fake.destroy(&id.into()).await.unwrap();
    }
    t.app.reconcile().await.unwrap();
    let found = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!((found.state, found.cause.code), (State::Archived, Code::Vanished), "{}", found.cause.message);
    assert_eq!(found.handle, None, "the provider has nothing of it to name");
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().state, State::Running);
    assert_eq!(t.app.sandbox(&t.caller, "y").await.unwrap().state, State::Failed);
}

#[tokio::test]
async fn a_name_is_taken_until_its_bearer_is_gone() {
    let t = TestApp::new().await;
    let first = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    assert!(matches!(t.app.create_sandbox(&t.caller, named("x")).await, Err(Error::Conflict(_))));
    let same = NewSandbox { if_exists: IfExists::Return, ..named("x") };
    assert_eq!(t.app.create_sandbox(&t.caller, same).await.unwrap().id, first.id);
    t.app.destroy(&t.caller, "x").await.unwrap();
    assert_ne!(t.app.create_sandbox(&t.caller, named("x")).await.unwrap().id, first.id);
}

#[tokio::test]
async fn the_same_idempotency_key_gives_the_same_sandbox() {
    let t = TestApp::new().await;
    let new = NewSandbox { idempotency_key: Some("once".into()), ..NewSandbox::default() };
    let first = t.app.create_sandbox(&t.caller, new.clone()).await.unwrap();
    let second = t.app.create_sandbox(&t.caller, new).await.unwrap();
    assert_eq!(first.id, second.id);
    assert_eq!(t.fake.ids().len(), 1);
}

#[tokio::test]
async fn the_id_of_a_sandbox_is_no_name_for_another() {
    let t = TestApp::new().await;
    let first = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let other = t.app.create_sandbox(&t.caller, named("y")).await.unwrap();
    let id = first.id.to_string();
    let is_refused = |done: Result<_, Error>| matches!(done, Err(Error::Conflict(_)));
    assert!(is_refused(t.app.create_sandbox(&t.caller, named(&id)).await));
    assert!(is_refused(t.app.rename(&t.caller, "y", Some(id.clone())).await));
    // Also of one that is gone: its record is still found by it.
    t.app.destroy(&t.caller, "x").await.unwrap();
    assert!(is_refused(t.app.create_sandbox(&t.caller, named(&id)).await));
    assert_eq!(t.app.sandbox(&t.caller, "y").await.unwrap().id, other.id);
    t.app.create_sandbox(&t.caller, named("abcdefghijklmnopqrst")).await.expect("the form alone is no reason");
}

#[tokio::test]
async fn a_creation_that_fails_leaves_nothing() {
    let t = TestApp::new().await;
    t.fake.fail_next("launch", ProviderError::Exhausted("no memory left on the host".into()));
    let error = t.app.create_sandbox(&t.caller, named("x")).await.unwrap_err();
    assert!(error.retry_after().is_some());
    assert!(t.fake.ids().is_empty());
    assert!(t.app.create_sandbox(&t.caller, named("x")).await.is_ok());
}

#[tokio::test]
async fn a_machine_that_cannot_run_sandboxes_is_no_internal_error() {
    let t = TestApp::new().await;
    t.fake.fail_next("launch", ProviderError::Unfit("this machine has no id-mapped mounts".into()));
    let error = t.app.create_sandbox(&t.caller, named("x")).await.unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("no_capacity", "this machine has no id-mapped mounts"));
    assert_eq!(error.retry_after(), Some(Duration::from_secs(60)));
    assert!(t.fake.ids().is_empty());
}

#[tokio::test]
async fn a_start_that_fails_can_be_tried_again_and_says_why() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.app.stop(&t.caller, "x").await.unwrap();
    t.fake.fail_next("launch", ProviderError::Failed("mount proc: EPERM".into()));
    t.app.start(&t.caller, "x").await.unwrap_err();
    let failed = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!(failed.state, State::Failed);
    assert_eq!(failed.cause.message, "the start failed: provider: mount proc: EPERM");
    assert_eq!(t.app.recover(&t.caller, "x").await.unwrap().state, State::Running);
}

#[tokio::test]
async fn running_out_of_memory_is_told_in_words() {
    let t = TestApp::new().await;
    t.app.begin();
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.fake.kill(&made.id, Ended::OutOfMemory { limit: 1 << 30, peak: 1 << 30, largest: None });
    eventually("the sandbox is stopped", || async {
        t.app.sandbox(&t.caller, "x").await.unwrap().state == State::Stopped
    })
    .await;
    let cause = t.app.sandbox(&t.caller, "x").await.unwrap().cause;
    assert_eq!((cause.code, cause.message.as_str()), (Code::OutOfMemory, "out of memory: 1.0 GiB of 1.0 GiB"));
}

#[tokio::test]
async fn a_lifetime_ends_a_sandbox_and_reading_it_does_not_prolong_it() {
    let t = TestApp::new().await;
    t.app.begin();
    let timers = TimersChange { lifetime_seconds: Some(Some(60)), ..TimersChange::default() };
    let made = t.app.create_sandbox(&t.caller, NewSandbox { timers, ..named("x") }).await.unwrap();
    t.clock.advance(Duration::from_secs(59));
    t.app.reach(&t.caller, "x").await.unwrap();
    assert_eq!(t.app.sandbox(&t.caller, "x").await.unwrap().timers.deadline, made.timers.deadline);
    t.clock.advance(Duration::from_secs(2));
    eventually("the sandbox is gone", || async { t.app.sandbox(&t.caller, "x").await.is_err() }).await;
}

#[tokio::test]
async fn an_idle_sandbox_stops_and_a_busy_one_does_not() {
    let t = TestApp::new().await;
    for name in ["idle", "busy"] {
        t.app.create_sandbox(&t.caller, named(name)).await.unwrap();
    }
    t.clock.advance(Duration::from_secs(14 * 60));
    t.app.reach(&t.caller, "busy").await.unwrap();
    t.clock.advance(Duration::from_secs(2 * 60));
    t.app.begin();
    // That nothing works inside takes two looks, a second apart.
    eventually("the idle one is stopped", || async {
        t.clock.advance(Duration::from_millis(200));
        t.app.sandbox(&t.caller, "idle").await.unwrap().state == State::Stopped
    })
    .await;
    assert_eq!(t.app.sandbox(&t.caller, "idle").await.unwrap().cause.message, "idle for 15 min");
    assert_eq!(t.app.sandbox(&t.caller, "busy").await.unwrap().state, State::Running);
}

/// A job that finds a sandbox at work has noted it: its activity is of that moment.
async fn is_found_at_work(t: &TestApp, name: &str) {
    eventually("the work is noted", || async {
        t.app.sandbox(&t.caller, name).await.unwrap().last_activity_at == t.clock.now()
    })
    .await;
    assert_eq!(t.app.sandbox(&t.caller, name).await.unwrap().state, State::Running);
}

async fn is_stopped(t: &TestApp, name: &str) {
    eventually("it is stopped", || async { t.app.sandbox(&t.caller, name).await.unwrap().state == State::Stopped })
        .await;
}

#[tokio::test]
async fn work_in_the_background_keeps_a_sandbox_awake_and_waiting_does_not() {
    let t = TestApp::new().await;
    let work = t.app.create_sandbox(&t.caller, named("works")).await.unwrap();
    t.app.create_sandbox(&t.caller, named("waits")).await.unwrap();
    let requests = TimersChange { idle_measure: Some(IdleMeasure::Requests), ..TimersChange::default() };
    let alone =
        t.app.create_sandbox(&t.caller, NewSandbox { timers: requests, ..named("requests-alone") }).await.unwrap();
    t.app.begin();
    eventually("a first look was taken", || async {
        !t.app.store().samples(work.id.as_str(), None, None).await.unwrap().is_empty()
    })
    .await;
    for _ in 0..3 {
        // A little more than one per cent of a processor.
        t.fake.work(&work.id, Duration::from_secs(10));
        t.fake.work(&alone.id, Duration::from_secs(600));
        t.clock.advance(Duration::from_secs(16 * 60));
        is_found_at_work(&t, "works").await;
        is_stopped(&t, "waits").await;
        is_stopped(&t, alone.id.as_str()).await;
    }
    t.clock.advance(Duration::from_secs(16 * 60));
    is_stopped(&t, "works").await;
    assert_eq!(t.app.sandbox(&t.caller, "works").await.unwrap().cause.message, "idle for 15 min");
}

#[tokio::test]
async fn after_a_restart_work_is_looked_for_before_anybody_is_stopped() {
    let t = TestApp::new().await;
    let work = t.app.create_sandbox(&t.caller, named("works")).await.unwrap();
    t.app.create_sandbox(&t.caller, named("waits")).await.unwrap();
    let t = t.killed_and_restarted().await;
    t.clock.advance(Duration::from_secs(16 * 60));
    t.app.begin();
    // Nothing is known of the time before: it takes two looks, a second apart.
    eventually("the one that waits is stopped", || async {
        t.fake.work(&work.id, Duration::from_secs(1));
        t.clock.advance(Duration::from_millis(200));
        t.app.sandbox(&t.caller, "waits").await.unwrap().state == State::Stopped
    })
    .await;
    assert_eq!(t.app.sandbox(&t.caller, "works").await.unwrap().state, State::Running);
}

#[tokio::test]
async fn a_request_under_way_is_activity_until_it_ends() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let (_, guest) = t.app.reach(&t.caller, "x").await.unwrap();
    let command = cove_protocol::process::Command::Argv(vec!["sleep".into(), "1000".into()]);
    let start = cove_protocol::Request::Start(cove_protocol::process::Spec::new(command));
    let (_, waiting) = guest.open(&start).await.unwrap();
    t.app.begin();
    t.clock.advance(Duration::from_secs(16 * 60));
    is_found_at_work(&t, "x").await;
    t.clock.advance(Duration::from_secs(10 * 60));
    drop(waiting);
    t.clock.advance(Duration::from_secs(10 * 60));
    t.app.flush_activity().await.unwrap();
    let ended = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!((ended.state, t.clock.now().duration_since(ended.last_activity_at).as_secs()), (State::Running, 600));
    t.clock.advance(Duration::from_secs(6 * 60));
    is_stopped(&t, "x").await;
}

#[tokio::test]
async fn a_paused_sandbox_wakes_when_its_policy_says_so() {
    let t = TestApp::new().await;
    let timers = TimersChange { auto_resume: Some(true), at_deadline: Some(Expiry::Pause), ..TimersChange::default() };
    t.app.create_sandbox(&t.caller, NewSandbox { timers, ..named("x") }).await.unwrap();
    t.app.create_sandbox(&t.caller, named("sleeper")).await.unwrap();
    t.app.pause(&t.caller, "x").await.unwrap();
    t.app.pause(&t.caller, "sleeper").await.unwrap();
    assert_eq!(t.app.reach(&t.caller, "x").await.unwrap().0.state, State::Running);
    let error = t.app.reach(&t.caller, "sleeper").await.unwrap_err();
    assert_eq!(error.to_string(), "sandbox is paused and cannot be used; resume it first");
}

#[tokio::test]
async fn after_a_reboot_states_are_true_and_a_start_works() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.fake.reboot();
    let t = t.killed_and_restarted().await;
    let found = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!((found.state, found.cause.code), (State::Stopped, Code::Vanished));
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().id, made.id);
}

#[tokio::test]
async fn a_restart_finds_all_and_removes_what_nobody_owns() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let stray = cove_control::random::sandbox_id();
    let order = t.app.sandbox(&t.caller, "x").await.unwrap().order().unwrap();
    let order = Order { id: stray.clone(), ..order };
    cove_control::provider::Provider::launch(&*t.fake, &order).await.unwrap();
    let t = t.killed_and_restarted().await;
    assert_eq!(t.app.sandbox(&t.caller, "x").await.unwrap().state, State::Running);
    assert!(!t.fake.ids().contains(&stray));
}

#[tokio::test]
async fn a_server_that_lost_its_name_removes_nobodys_files() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    std::fs::remove_file(t.app.config().data.join("server-id")).unwrap();
    let t = t.killed_and_restarted().await;
    assert_ne!(t.app.server(), made.server);
    assert_eq!(t.fake.ids(), [made.id]);
}

#[tokio::test]
async fn a_data_directory_is_not_served_with_a_database_that_does_not_know_it() {
    let t = TestApp::new().await;
    let made = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let store = Store::sqlite(&elsewhere.path().join("empty.db")).await.unwrap();
    let opened = App::open(t.app.config().clone(), store, vec![t.fake.clone()], t.clock.clone()).await;
    let refused = opened.err().expect("it would take every sandbox for nobody's").to_string();
    assert!(refused.contains("was used with another database"), "{refused}");
    assert_eq!(t.fake.ids(), [made.id]);
}

#[tokio::test]
async fn a_start_that_cannot_be_noted_leaves_nothing_running() {
    let t = TestApp::new().await;
    let gate = t.fake.hold_launches();
    let (app, caller) = (t.app.clone(), t.caller.clone());
    let making = tokio::spawn(async move { app.create_sandbox(&caller, named("x")).await });
    eventually("it launches", || async { t.fake.launching() == 1 }).await;
    t.app.store().close().await;
    drop(gate);
    making.await.unwrap().unwrap_err();
    assert!(t.fake.ids().is_empty());
}

#[tokio::test]
async fn what_the_provider_refuses_is_not_told_as_if_it_held() {
    let t = TestApp::new().await;
    let before = t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.fake.fail_next("set_network", ProviderError::Refused("stop it first".into()));
    t.app.set_network(&t.caller, "x", NetworkPolicy::open()).await.unwrap_err();
    t.fake.fail_next("resize", ProviderError::Refused("in use".into()));
    let smaller = LimitsChange { memory: Some(64 << 20), ..LimitsChange::default() };
    t.app.resize(&t.caller, "x", smaller).await.unwrap_err();
    let after = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!((after.network, after.limits), (before.network, before.limits));
    assert_eq!(t.app.resize(&t.caller, "x", smaller).await.unwrap().limits.memory, 64 << 20);
    assert_eq!(t.app.set_network(&t.caller, "x", NetworkPolicy::open()).await.unwrap().network, NetworkPolicy::open());
}

#[tokio::test]
async fn a_destroy_is_never_given_up() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.fake.fail_next("destroy", ProviderError::Failed("busy".into()));
    t.app.destroy(&t.caller, "x").await.unwrap();
    for attempt in 1..=13 {
        t.fake.fail_next("destroy", ProviderError::Failed("still busy".into()));
        t.clock.advance(Duration::from_secs(600));
        t.app.work().await.unwrap();
        eventually("it was tried", || async {
            let jobs = t.app.store().jobs(None, None, 10).await.unwrap();
            jobs[0].attempts == attempt && jobs[0].state == JobState::Queued
        })
        .await;
    }
    t.clock.advance(Duration::from_secs(600));
    t.app.work().await.unwrap();
    eventually("nothing remains", || async { t.fake.ids().is_empty() }).await;
}

#[tokio::test]
async fn an_ephemeral_sandbox_is_gone_when_it_stops() {
    let t = TestApp::new().await;
    let timers = TimersChange { ephemeral: Some(true), ..TimersChange::default() };
    t.app.create_sandbox(&t.caller, NewSandbox { timers, ..named("x") }).await.unwrap();
    assert_eq!(t.app.stop(&t.caller, "x").await.unwrap().state, State::Destroyed);
    assert!(t.fake.ids().is_empty());
}

#[tokio::test]
async fn a_destroy_that_fails_is_tried_again_until_nothing_remains() {
    let t = TestApp::new().await;
    t.app.create_sandbox(&t.caller, named("x")).await.unwrap();
    t.fake.fail_next("destroy", ProviderError::Failed("busy".into()));
    assert_eq!(t.app.destroy(&t.caller, "x").await.unwrap().state, State::Destroying);
    t.clock.advance(Duration::from_secs(5));
    t.app.begin();
    eventually("nothing remains", || async { t.fake.ids().is_empty() }).await;
}

#[tokio::test]
async fn sessions_are_not_kept_for_ever() {
    let t = TestApp::new().await;
    let sandbox = t.app.create_sandbox(&t.caller, NewSandbox::default()).await.unwrap();
    let on = || NewSession { existing: Some(sandbox.id.to_string()), ..NewSession::default() };
    let first = t.app.create_session(&t.caller, on()).await.unwrap();
    for _ in 1..64 {
        t.app.create_session(&t.caller, on()).await.unwrap();
    }
    let refused = t.app.create_session(&t.caller, on()).await.unwrap_err().to_string();
    assert_eq!(refused, "a sandbox has at most 64 sessions; end some");
    // One that ended gives way to a new one.
    t.app.delete_session(&t.caller, &first.id).await.unwrap();
    let last = t.app.create_session(&t.caller, on()).await.unwrap();
    t.app.session(&t.caller, &first.id).await.unwrap_err();

    // The others end with their sandbox, can be read for a while, and go.
    t.app.destroy(&t.caller, sandbox.id.as_str()).await.unwrap();
    t.app.begin();
    let ended = async || t.app.session(&t.caller, &last.id).await.unwrap().closed_at.is_some();
    eventually("a session ends with its sandbox", ended).await;
    t.clock.advance(Duration::from_secs(31 * 24 * 3600));
    let t = t.killed_and_restarted().await;
    t.app.begin();
    let gone = async || t.app.list_sessions(&t.caller, None, 10).await.unwrap().items.is_empty();
    eventually("sessions that ended long ago are removed", gone).await;
}
