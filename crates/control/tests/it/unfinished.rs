//! A database that fails in the middle of a change: the sandbox does not stay there. Every change goes through it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cove_control::Error;
use cove_control::build::State as BuildState;
use cove_control::check::Of;
use cove_control::job::{JobState, Line, NewJob};
use cove_control::provider::{Ended, Provider as _, ProviderError, Seen};
use cove_control::sandbox::cause::Code;
use cove_control::sandbox::{NewSandbox, Sandbox, State};
use cove_control::snapshot::NewSnapshot;
use cove_control::store::Written;
use cove_control::store::builds::Unfinished;
use cove_control::store::templates::Beside;

use crate::faults::{SmallDisk, use_up};
use crate::harness::{TestApp, eventually};
use crate::templates::{Workbench, run, steps};

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

/// The disk is full for as long as everybody needs to notice. `look` says what holds meanwhile.
async fn while_it_is_full<F: Future<Output = ()>>(mut look: impl FnMut() -> F) {
    let over = Instant::now() + Duration::from_secs(2);
    while Instant::now() < over {
        look().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A sandbox that ends by itself while nothing can be written.
async fn one_that_ended_on_a_full_disk(t: &TestApp, disk: &SmallDisk) -> Sandbox {
    let made = ask(t, "create", "x").await.unwrap();
    t.app.begin();
    disk.fill();
    use_up(t.app.store()).await;
    t.fake.kill(&made.id, Ended::Killed { signal: 9 });
    made
}

async fn is_stopped(t: &TestApp) -> bool {
    t.app.sandbox(&t.caller, "x").await.unwrap().state == State::Stopped
}

#[tokio::test]
async fn an_end_that_could_not_be_noted_is_noted_later() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    one_that_ended_on_a_full_disk(&t, &disk).await;
    while_it_is_full(|| async {
        t.app.finish_changes().await.unwrap();
        assert!(!is_stopped(&t).await, "what cannot be written is not told");
    })
    .await;
    disk.make_room();
    eventually("the end is noted", || is_stopped(&t)).await;
    let noted = t.app.sandbox(&t.caller, "x").await.unwrap();
    assert_eq!(noted.cause.code, Code::Killed, "{:?}", noted.cause);
    t.app.shutdown().await;
}

#[tokio::test]
async fn a_look_that_nobody_waits_for_forgets_no_end() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    one_that_ended_on_a_full_disk(&t, &disk).await;
    // Each goes away at its first pause.
    while_it_is_full(|| async {
        let _broken_off = tokio::time::timeout(Duration::ZERO, t.app.finish_changes()).await;
    })
    .await;
    disk.make_room();
    eventually("the end is noted", || is_stopped(&t)).await;
    t.app.shutdown().await;
}

#[tokio::test]
async fn whoever_starts_a_sandbox_whose_end_is_not_noted_yet_has_it_running() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    let made = one_that_ended_on_a_full_disk(&t, &disk).await;
    while_it_is_full(|| async { assert!(!is_stopped(&t).await) }).await;
    disk.make_room();
    assert_eq!(ask(&t, "start", "x").await.unwrap().state, State::Running);
    let seen = t.fake.sightings().await.unwrap().into_iter().find(|sighting| sighting.id == made.id).unwrap();
    assert_eq!(seen.state, Seen::Running, "it was told to run, and it does");
    // Whatever waited to be noted has had its turn.
    t.app.finish_changes().await.unwrap();
    assert_eq!(ask(&t, "pause", "x").await.unwrap().state, State::Paused);
    t.app.shutdown().await;
}

#[tokio::test]
async fn late_word_of_an_end_does_not_end_the_next_life() {
    let t = TestApp::new().await;
    let (x, y) = (ask(&t, "create", "x").await.unwrap(), ask(&t, "create", "y").await.unwrap());
    // Nobody listens yet.
    t.fake.kill(&x.id, Ended::Killed { signal: 9 });
    ask(&t, "stop", "x").await.unwrap();
    ask(&t, "start", "x").await.unwrap();
    t.fake.kill(&y.id, Ended::Killed { signal: 9 });
    t.app.begin();
    eventually("the second word was heard", || async {
        t.app.sandbox(&t.caller, "y").await.unwrap().state == State::Stopped
    })
    .await;
    // The first was heard before, so whoever comes now comes after it.
    assert_eq!(ask(&t, "pause", "x").await.unwrap().state, State::Paused);
    t.app.shutdown().await;
}

/// A job on the sandbox, due now, of this server.
async fn queue(t: &TestApp, id: &str, kind: &str, sandbox: &Sandbox) {
    let job = NewJob {
        kind: kind.into(),
        subject: sandbox.id.to_string(),
        organisation: sandbox.organisation.clone(),
        server: Some(t.app.server().to_owned()),
        unique_key: None,
        run_at: t.clock.now(),
        payload: serde_json::Value::Null,
    };
    assert!(t.app.store().add_job(id, &job, t.clock.now().as_millisecond()).await.unwrap());
}

async fn state_of(t: &TestApp, job: &str) -> JobState {
    t.app.store().job(job).await.unwrap().unwrap().state
}

#[tokio::test]
async fn the_outcome_of_a_job_that_could_not_be_noted_is_noted_later() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    let made = ask(&t, "create", "x").await.unwrap();
    let mut hold = t.fake.hold_next("destroy");
    queue(&t, "job", "sandbox.destroy", &made).await;
    t.app.begin();
    hold.reached().await;
    disk.fill();
    use_up(t.app.store()).await;
    hold.let_through();
    while_it_is_full(|| async { assert_eq!(state_of(&t, "job").await, JobState::Running) }).await;
    disk.make_room();
    eventually("the outcome is noted", || async { state_of(&t, "job").await != JobState::Running }).await;
    // It had failed: it is done again after a pause.
    t.clock.advance(Duration::from_secs(3));
    eventually("the job is done", || async { state_of(&t, "job").await == JobState::Done }).await;
    assert!(t.fake.ids().is_empty());
    t.app.shutdown().await;
}

#[tokio::test]
async fn a_job_that_nobody_does_any_more_is_taken_up_again() {
    let t = TestApp::new().await;
    let made = ask(&t, "create", "x").await.unwrap();
    queue(&t, "job", "sandbox.timer", &made).await;
    // The row says that this server does it, as after a claim whose answer never came.
    let now = t.clock.now().as_millisecond();
    let claimed = t.app.store().claim_jobs(t.app.server(), Line::Upkeep, now, 60_000, 9).await.unwrap();
    assert_eq!(claimed.len(), 1);
    for _ in 0..5 {
        t.clock.advance(Duration::from_secs(15));
        t.app.renew_leases().await.unwrap();
    }
    t.app.work().await.unwrap();
    eventually("the job is done", || async { state_of(&t, "job").await == JobState::Done }).await;
}

#[tokio::test]
async fn a_job_that_goes_on_is_not_begun_twice_although_its_lease_has_run_out() {
    let t = TestApp::new().await;
    let made = ask(&t, "create", "x").await.unwrap();
    let mut hold = t.fake.hold_next("destroy");
    queue(&t, "job", "sandbox.destroy", &made).await;
    t.app.work().await.unwrap();
    hold.reached().await;
    // Nobody could renew it, as on a disk that is full.
    t.clock.advance(Duration::from_secs(120));
    t.app.work().await.unwrap();
    assert_eq!(t.app.store().job("job").await.unwrap().unwrap().attempts, 1);
    hold.let_through();
    eventually("the job is done", || async { state_of(&t, "job").await == JobState::Done }).await;
    assert_eq!(t.app.store().job("job").await.unwrap().unwrap().attempts, 1);
}

#[tokio::test]
async fn a_report_that_could_not_be_noted_is_noted_later_and_not_made_again() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    ask(&t, "create", "x").await.unwrap();
    ask(&t, "stop", "x").await.unwrap();
    t.app.begin();
    let mut hold = t.fake.hold_next("check");
    let check = t.app.begin_check(&t.caller, Of::Sandboxes(vec!["x".into()])).await.unwrap();
    hold.reached().await;
    disk.fill();
    use_up(t.app.store()).await;
    hold.let_through();
    while_it_is_full(|| async { assert_eq!(state_of(&t, &check.id).await, JobState::Running) }).await;
    disk.make_room();
    eventually("the check is done", || async { state_of(&t, &check.id).await == JobState::Done }).await;
    assert!(!t.app.check(&t.caller, &check.id).await.unwrap().items.is_empty());
    assert_eq!(t.app.store().job(&check.id).await.unwrap().unwrap().attempts, 1);
    t.app.shutdown().await;
}

/// What the database says is under way: builds, and layers that are held for something.
async fn is_under_way(t: &TestApp, disk: &SmallDisk) -> bool {
    const HELD: &str = "SELECT COUNT(*) FROM layer_uses WHERE user_kind = 'work'";
    let url = format!("sqlite://{}", disk.path().join("cove.db").display());
    let other = sqlx::AnyPool::connect(&url).await.unwrap();
    let held: i64 = sqlx::query_scalar(HELD).fetch_one(&other).await.unwrap();
    other.close().await;
    let builds = t.app.store().unfinished_builds(Unfinished::OfServer(t.app.server())).await.unwrap();
    let jobs = t.app.store().jobs(None, Some(JobState::Running), 10).await.unwrap();
    held > 0 || !builds.is_empty() || !jobs.is_empty()
}

#[tokio::test]
async fn the_end_of_a_build_that_could_not_be_noted_is_noted_later_and_holds_nothing() {
    let Some(disk) = SmallDisk::new() else { return };
    let w = Workbench::on(TestApp::in_folder(disk.path()).await);
    let (t, app) = (&w.t, &w.t.app);
    app.begin();
    let (_, build) = w.template("tools").await;
    let mut hold = t.fake.hold_next("capture");
    w.start(&build, steps(vec![run("echo one > /one")])).await.unwrap();
    hold.reached().await;
    assert!(is_under_way(t, &disk).await);
    disk.fill();
    use_up(app.store()).await;
    hold.let_through();
    while_it_is_full(|| async {
        let found = app.store().build(&build.id).await.unwrap().unwrap();
        assert_eq!(found.state, BuildState::Building);
    })
    .await;
    disk.make_room();
    let ended = w.ended(&build).await;
    let why = ended.failure.map(|failure| failure.message).unwrap_or_default();
    assert!(ended.state == BuildState::Error && why.contains("full"), "{why}");
    eventually("nothing is held or under way", || async { !is_under_way(t, &disk).await }).await;
    eventually("the build's sandbox is gone", || async { t.fake.ids().is_empty() }).await;
    app.shutdown().await;
}

#[tokio::test]
async fn a_snapshot_that_could_not_be_noted_leaves_nothing() {
    let Some(disk) = SmallDisk::new() else { return };
    let t = on(disk.path()).await;
    ask(&t, "create", "x").await.unwrap();
    t.app.begin();
    let mut hold = t.fake.hold_next("capture");
    let new = NewSnapshot { name: Some("moment".into()), ..NewSnapshot::default() };
    let asked = tokio::spawn({
        let (t, new) = (Arc::clone(&t), new.clone());
        async move { t.app.create_snapshot(&t.caller, "x", new).await }
    });
    hold.reached().await;
    disk.fill();
    use_up(t.app.store()).await;
    hold.let_through();
    let refused = asked.await.unwrap();
    assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
    disk.make_room();
    eventually("nothing is held or under way", || async { !is_under_way(&t, &disk).await }).await;
    eventually("it is not there", || async {
        matches!(t.app.template(&t.caller, "moment").await, Err(Error::NotFound { .. }))
    })
    .await;
    let (_, taken) = t.app.create_snapshot(&t.caller, "x", new).await.unwrap();
    assert_eq!(taken.state, BuildState::Ready);
    t.app.shutdown().await;
}

#[tokio::test]
async fn a_build_that_was_begun_and_has_no_job_gets_one() {
    let w = Workbench::new().await;
    let app = &w.t.app;
    let (_, mut build) = w.template("tools").await;
    // As a start that could write the first and not the second.
    build.state = BuildState::Building;
    build.server = app.server().to_owned();
    let started = app.store().start_build(&mut build, &steps(vec![run("echo one > /one")]), Beside::default()).await;
    assert_eq!(started.unwrap(), Written::Done);
    app.keep_house().await.unwrap();
    app.work().await.unwrap();
    assert_eq!(w.ended(&build).await.state, BuildState::Ready);
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
