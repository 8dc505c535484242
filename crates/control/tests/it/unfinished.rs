//! A database that fails in the middle of a change: the sandbox does not stay there. Every change goes through it.

use std::path::Path;
use std::sync::Arc;

use cove_control::Error;
use cove_control::provider::{Ended, ProviderError};
use cove_control::sandbox::{NewSandbox, Sandbox, State};

use crate::faults::{SmallDisk, use_up};
use crate::harness::{TestApp, eventually};

/// A change, the provider's call in its middle, the state it begins in, and what may come of it.
struct Case {
    verb: &'static str,
    call: &'static str,
    from: State,
    left: State,
    to: &'static [State],
}

const CASES: [Case; 8] = [
    Case { verb: "stop", call: "stop", from: State::Running, left: State::Stopping, to: &[State::Stopped] },
    Case { verb: "pause", call: "pause", from: State::Running, left: State::Pausing, to: &[State::Paused] },
    Case { verb: "resume", call: "resume", from: State::Paused, left: State::Resuming, to: &[State::Running] },
    Case { verb: "start", call: "launch", from: State::Stopped, left: State::Starting, to: &[State::Running] },
    // The last step of an archive takes the files off the provider.
    Case { verb: "archive", call: "destroy", from: State::Stopped, left: State::Archiving, to: &[State::Archived] },
    Case { verb: "start", call: "import", from: State::Archived, left: State::Restoring, to: &[State::Running] },
    Case { verb: "destroy", call: "destroy", from: State::Running, left: State::Destroying, to: &[State::Destroyed] },
    Case { verb: "create", call: "launch", from: State::Creating, left: State::Creating, to: &[State::Destroyed] },
];

async fn ask(t: &TestApp, verb: &str, name: &str) -> Result<Sandbox, Error> {
    match verb {
        "create" => {
            t.app.create_sandbox(&t.caller, NewSandbox { name: Some(name.into()), ..NewSandbox::default() }).await
        }
        "start" => t.app.start(&t.caller, name).await,
        "stop" => t.app.stop(&t.caller, name).await,
        "pause" => t.app.pause(&t.caller, name).await,
        "resume" => t.app.resume(&t.caller, name).await,
        "archive" => t.app.archive(&t.caller, name).await,
        "destroy" => t.app.destroy(&t.caller, name).await,
        other => panic!("{other} is no change"),
    }
}

/// Makes a sandbox in the state that a case begins in.
async fn prepare(t: &TestApp, case: &Case, name: &str) {
    let verbs: &[&str] = match case.from {
        State::Creating => &[],
        State::Paused => &["create", "pause"],
        State::Stopped => &["create", "stop"],
        State::Archived => &["create", "stop", "archive"],
        _ => &["create"],
    };
    for verb in verbs {
        ask(t, verb, name).await.unwrap();
    }
}

/// The change is begun, the disk of the database fills up in its middle, and there is room again.
async fn break_off(t: &Arc<TestApp>, disk: &SmallDisk, case: &Case, name: &str) -> Sandbox {
    prepare(t, case, name).await;
    let mut hold = t.fake.hold_next(case.call);
    let asked = tokio::spawn({
        let (t, verb, name) = (Arc::clone(t), case.verb, name.to_owned());
        async move { ask(&t, verb, &name).await }
    });
    hold.reached().await;
    disk.fill();
    use_up(t.app.store()).await;
    hold.let_through();
    let refused = asked.await.unwrap();
    let left = t.app.store().sandboxes_in_transition(t.app.server()).await.unwrap();
    disk.make_room();
    while t.app.store().remove_aged(cove_control::store::retention::Aging::Events, i64::MAX).await.unwrap() > 0 {}
    // A destroy is told as begun.
    assert!(case.verb == "destroy" || matches!(refused, Err(Error::Full(_))), "{}: {refused:?}", case.verb);
    let left: Vec<Sandbox> = left.into_iter().filter(|sandbox| sandbox.name.as_deref() == Some(name)).collect();
    assert_eq!(left.len(), 1, "{} is left in the middle", case.verb);
    assert_eq!(left[0].state, case.left, "{}", case.verb);
    left.into_iter().next().unwrap()
}

async fn on(disk: &Path) -> Arc<TestApp> {
    Arc::new(TestApp::in_folder(disk).await)
}

#[tokio::test]
async fn every_change_that_the_database_broke_off_is_finished_when_it_answers_again() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    t.app.begin();
    for (number, case) in CASES.iter().enumerate() {
        let name = format!("box{number}");
        let left = break_off(&t, &disk, case, &name).await;
        eventually(&format!("{} of {} is finished", case.verb, case.from), || async {
            let found = t.app.store().sandbox_by_id(&left.id).await.unwrap().unwrap();
            case.to.contains(&found.state)
        })
        .await;
    }
    t.app.shutdown().await;
}

#[tokio::test]
async fn whoever_asks_next_finishes_what_the_database_broke_off_and_is_not_refused() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    // No loop runs: the request does it.
    for (number, case) in CASES.iter().enumerate().filter(|(_, case)| case.verb != "destroy" && case.verb != "create") {
        let name = format!("box{number}");
        break_off(&t, &disk, case, &name).await;
        let next = match case.to[0] {
            State::Running => ask(&t, "pause", &name).await.unwrap(),
            State::Paused => ask(&t, "resume", &name).await.unwrap(),
            _ => ask(&t, "start", &name).await.unwrap(),
        };
        assert!(!next.state.is_in_transition(), "{}: {}", case.verb, next.state);
        ask(&t, "destroy", &name).await.unwrap();
    }
    t.app.shutdown().await;
}

#[tokio::test]
async fn an_end_that_could_not_be_noted_is_noted_later() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    let made = ask(&t, "create", "x").await.unwrap();
    t.app.begin();
    disk.fill();
    use_up(t.app.store()).await;
    t.fake.kill(&made.id, Ended::Killed { signal: 9 });
    // As long as nothing can be written it is not told.
    tokio::time::timeout(std::time::Duration::from_secs(2), async {
        loop {
            t.app.finish_changes().await.unwrap();
            assert_eq!(t.app.sandbox(&t.caller, "x").await.unwrap().state, State::Running);
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap_err();
    disk.make_room();
    eventually("the end is noted", || async { t.app.sandbox(&t.caller, "x").await.unwrap().state == State::Stopped })
        .await;
    t.app.shutdown().await;
}

#[tokio::test]
async fn what_cannot_be_finished_is_tried_again_and_does_not_keep_the_others() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    let stop = &CASES[0];
    let (bad, good) = (break_off(&t, &disk, stop, "bad").await, break_off(&t, &disk, stop, "good").await);
    t.fake.fail_next("sightings", ProviderError::Failed("not now".into()));
    t.app.begin();
    for id in [&bad.id, &good.id] {
        eventually("it is stopped", || async {
            t.app.store().sandbox_by_id(id).await.unwrap().unwrap().state == State::Stopped
        })
        .await;
    }
    t.app.shutdown().await;
}
