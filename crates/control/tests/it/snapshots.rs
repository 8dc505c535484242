//! Snapshots, forks, rollbacks and volumes.

use std::time::Duration;

use cove_control::build::Origin;
use cove_control::event::EventFilter;
use cove_control::key::Scope;
use cove_control::provider::{Ability, Access, ProviderError};
use cove_control::sandbox::{NewSandbox, State};
use cove_control::snapshot::{Forks, NewFork, NewSnapshot, Rule};
use cove_control::store::builds::Unfinished;
use cove_control::volume::{Mount, NewVolume, Owner, VolumeFilter, WriteFile};
use cove_control::{Caller, Error};

use crate::templates::Workbench;

fn named(name: &str) -> NewSnapshot {
    NewSnapshot { name: Some(name.into()), ..NewSnapshot::default() }
}

fn stranger() -> Caller {
    Caller { organisation: "stranger".into(), key: "k".into(), scopes: vec![Scope::Admin] }
}

#[tokio::test]
async fn two_that_take_the_same_name_at_once_share_it() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let (one, two) = (w.sandbox("base").await, w.sandbox("base").await);
    let (one, two) = tokio::join!(
        app.create_snapshot(caller, one.id.as_str(), named("same")),
        app.create_snapshot(caller, two.id.as_str(), named("same"))
    );
    let ((first, one), (second, two)) = (one.unwrap(), two.unwrap());
    assert_eq!((&first.id, &one.template, &two.template), (&second.id, &first.id, &first.id));
    assert_eq!(app.store().count_builds(&first.id).await.unwrap(), 2);
}

#[tokio::test]
async fn a_snapshot_has_no_built_in_name_and_a_tag_that_is_not_there_deletes_nothing() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let made = w.sandbox("base").await;
    for name in ["base", "Default", "base:v1", "code-interpreter", "code-interpreter-v1"] {
        let refused = app.create_snapshot(caller, made.id.as_str(), named(name)).await;
        assert!(matches!(refused, Err(Error::Conflict(_))), "{name}: {refused:?}");
    }
    app.create_snapshot(caller, made.id.as_str(), named("line:a")).await.unwrap();
    w.t.clock.advance(Duration::from_secs(1));
    app.create_snapshot(caller, made.id.as_str(), named("line:b")).await.unwrap();
    assert!(matches!(app.delete_snapshot(caller, "line:c").await, Err(Error::NotFound { .. })));
    assert_eq!(app.template_tags(caller, "line").await.unwrap().1.len(), 2);
}

#[tokio::test]
async fn a_snapshot_is_started_from_outlives_its_sandbox_and_is_deleted_once() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let first = w.sandbox("base").await;
    w.output(&first, "echo one > /home/user/f").await;
    let (record, build) = app.create_snapshot(caller, first.id.as_str(), named("Snap")).await.unwrap();
    assert_eq!((record.title(), build.source_sandbox.as_deref()), ("snap", Some(first.id.as_str())));
    w.output(&first, "echo two > /home/user/f").await;
    let second = w.sandbox("snap").await;
    assert_eq!(w.output(&second, "cat /home/user/f").await, "one\n");
    assert_eq!(app.parent_of(caller, second.id.as_str()).await.unwrap().unwrap().id, first.id);

    // The same name is another build of it; one without a name is found by its id.
    w.t.clock.advance(Duration::from_secs(1));
    let (again, newer) = app.create_snapshot(caller, first.id.as_str(), named("snap")).await.unwrap();
    assert_eq!((again.id.as_str(), newer.id == build.id), (record.id.as_str(), false));
    assert_eq!(w.output(&w.sandbox("snap").await, "cat /home/user/f").await, "two\n");
    assert_eq!(w.output(&w.sandbox(&format!("snap:{}", build.id)).await, "cat /home/user/f").await, "one\n");
    let (nameless, _) = app.create_snapshot(caller, first.id.as_str(), NewSnapshot::default()).await.unwrap();
    assert!(nameless.names.is_empty());
    assert_eq!(w.output(&w.sandbox(&nameless.id).await, "cat /home/user/f").await, "two\n");
    let of_it = app.list_snapshots(caller, Some(first.id.as_str()), None, (None, 10)).await.unwrap().items;
    assert_eq!(of_it.len(), 2);
    assert!(app.list_snapshots(&stranger(), None, None, (None, 10)).await.unwrap().items.is_empty());
    assert!(matches!(app.delete_snapshot(&stranger(), &nameless.id).await, Err(Error::NotFound { .. })));

    app.destroy(caller, first.id.as_str()).await.unwrap();
    let third = w.sandbox("snap").await;
    assert_eq!(w.output(&third, "cat /home/user/f").await, "two\n", "it outlives its sandbox");
    app.delete_snapshot(caller, "snap").await.unwrap();
    assert!(matches!(app.delete_snapshot(caller, "snap").await, Err(Error::NotFound { .. })));
    w.t.clock.advance(Duration::from_secs(3600));
    app.sweep_layers().await.unwrap();
    assert_eq!(w.output(&third, "cat /home/user/f").await, "two\n", "who started from it keeps its files");
    let told = EventFilter { kind: Some("snapshot.created".into()), ..EventFilter::default() };
    assert_eq!(app.store().events(&told, 0, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_stopped_and_a_paused_sandbox_are_captured_too_and_what_cannot_be_says_why() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let made = w.sandbox("base").await;
    let id = made.id.as_str();
    w.output(&made, "echo 1 > /f").await;
    app.pause(caller, id).await.unwrap();
    app.create_snapshot(caller, id, named("paused")).await.unwrap();
    app.start(caller, id).await.unwrap();
    app.stop(caller, id).await.unwrap();
    app.create_snapshot(caller, id, named("stopped")).await.unwrap();
    assert_eq!(app.sandbox(caller, id).await.unwrap().state, State::Stopped, "it stays what it was");
    assert_eq!(w.output(&w.sandbox("paused").await, "cat /f").await, "1\n");
    app.archive(caller, id).await.unwrap();
    assert!(matches!(app.create_snapshot(caller, id, named("archived")).await, Err(Error::Conflict(_))));
    app.start(caller, id).await.unwrap();
    w.t.fake.fail_next("capture", ProviderError::Exhausted("it does not hold still".into()));
    let refused = app.create_snapshot(caller, id, named("busy")).await;
    assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
    assert!(app.template_record(caller, "busy").await.is_err(), "nothing of it is left");
    w.t.fake.lack(Ability::Snapshot, "tests say so");
    let refused = app.create_snapshot(caller, id, named("never")).await;
    assert!(matches!(refused, Err(Error::Unsupported(_))), "{refused:?}");
}

#[tokio::test]
async fn copies_run_at_once_each_for_itself() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let door = serde_json::json!({"door": {"key": "opens the source"}});
    let new = NewSandbox { id_variable: Some("MY_ID".into()), door, ..NewSandbox::default() };
    let source = app.create_sandbox(caller, new).await.unwrap();
    w.output(&source, "echo shared > /f").await;
    w.t.fake.fail_next("fork", ProviderError::Exhausted("no room".into()));
    let forks = app.fork_sandbox(caller, source.id.as_str(), NewFork { count: 4, ..NewFork::default() }).await.unwrap();
    let (made, failed): (Vec<_>, Vec<_>) = forks.into_iter().partition(Result::is_ok);
    assert_eq!((made.len(), failed.len()), (3, 1), "one fails alone");
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    for fork in &made {
        assert_eq!((fork.state, fork.parent.as_ref()), (State::Running, Some(&source.id)));
        assert_ne!((&fork.access_token, &fork.traffic_token), (&source.access_token, &source.traffic_token));
        assert_eq!((fork.env["MY_ID"].as_str(), &fork.door), (fork.id.as_str(), &serde_json::Value::Null));
        assert_eq!(w.output(fork, "cat /f").await, "shared\n");
    }
    w.output(&made[0], "echo mine > /f").await;
    assert_eq!(w.output(&source, "cat /f").await, "shared\n");
    assert_eq!(app.forks_of(caller, source.id.as_str(), Forks::Existing).await.unwrap().len(), 3);
    app.destroy(caller, made[0].id.as_str()).await.unwrap();
    assert_eq!(app.forks_of(caller, source.id.as_str(), Forks::Existing).await.unwrap().len(), 2);
    assert_eq!(app.forks_of(caller, source.id.as_str(), Forks::WithDestroyed).await.unwrap().len(), 4);
    // A copy of a copy: nearest first.
    let named = NewFork { names: vec!["grandchild".into()], ..NewFork::default() };
    let grandchild = app.fork_sandbox(caller, made[1].id.as_str(), named.clone()).await.unwrap().remove(0).unwrap();
    let line = app.ancestors_of(caller, "grandchild").await.unwrap();
    assert_eq!(line.iter().map(|one| &one.id).collect::<Vec<_>>(), [&made[1].id, &source.id]);
    let twin = app.fork_sandbox(caller, made[1].id.as_str(), named).await.unwrap().remove(0);
    assert!(matches!(twin, Err(Error::Conflict(_))), "{twin:?}");
    // It starts again with its own files.
    app.stop(caller, "grandchild").await.unwrap();
    let again = app.start(caller, "grandchild").await.unwrap();
    assert_eq!(w.output(&again, "cat /f").await, "shared\n");
    assert_eq!(again.id, grandchild.id);
    for wrong in [0, 101] {
        let refused =
            app.fork_sandbox(caller, source.id.as_str(), NewFork { count: wrong, ..NewFork::default() }).await;
        assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
    }
    let refused = app.fork_sandbox(&stranger(), source.id.as_str(), NewFork::default()).await;
    assert!(matches!(refused, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn many_copies_are_of_one_instant_and_each_has_its_name_and_its_fate() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let source = w.sandbox("base").await;
    w.output(&source, "echo shared > /f").await;
    let new = |count, names: &[&str]| NewFork {
        count,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..NewFork::default()
    };
    let before = w.t.fake.instants();
    let made = app.fork_sandbox(caller, source.id.as_str(), new(50, &["left", "right"])).await.unwrap();
    assert_eq!(w.t.fake.instants() - before, 1, "the source is held still once");
    let made: Vec<_> = made.into_iter().map(Result::unwrap).collect();
    let names: Vec<Option<&str>> = made.iter().map(|fork| fork.name.as_deref()).collect();
    assert_eq!((made.len(), &names[..3]), (50, &[Some("left"), Some("right"), None][..]), "in order");
    let ids: std::collections::BTreeSet<_> = made.iter().map(|fork| fork.id.clone()).collect();
    let tokens: std::collections::BTreeSet<_> = made.iter().map(|fork| fork.access_token.clone()).collect();
    assert_eq!((ids.len(), tokens.len()), (50, 50));
    assert_eq!(w.output(&made[49], "cat /f").await, "shared\n");
    let told = EventFilter { kind: Some("sandbox.forked".into()), ..EventFilter::default() };
    assert_eq!(app.store().events(&told, 0, 100).await.unwrap().len(), 50);
    let asked = app.store().audit("default", None, 1000).await.unwrap();
    assert_eq!(asked.iter().filter(|entry| entry.action == "sandbox.fork").count(), 50);

    // A name that is taken keeps nobody else from being made, and is one's own reason.
    let mixed = app.fork_sandbox(caller, source.id.as_str(), new(3, &["left", "new"])).await.unwrap();
    assert!(matches!(&mixed[0], Err(Error::Conflict(message)) if message.contains("\"left\"")), "{mixed:?}");
    assert_eq!(mixed[1].as_ref().unwrap().name.as_deref(), Some("new"));
    assert!(mixed[2].is_ok());
    let twice = app.fork_sandbox(caller, source.id.as_str(), new(2, &["twin", "twin"])).await.unwrap();
    assert!(twice[0].is_ok() && matches!(twice[1], Err(Error::Conflict(_))), "{twice:?}");
    for wrong in [new(1, &["a", "b"]), new(1, &["../x"]), new(1, &[source.id.as_str()])] {
        let refused = app.fork_sandbox(caller, source.id.as_str(), wrong).await;
        assert!(matches!(refused, Err(Error::Invalid { .. } | Error::Conflict(_))), "{refused:?}");
    }
}

#[tokio::test]
async fn copies_that_fail_leave_nothing() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let source = w.sandbox("base").await;
    let (_, build) = app.create_snapshot(caller, source.id.as_str(), named("below")).await.unwrap();
    let source = w.sandbox("below").await;
    let layer = build.image.root.over[0];
    let uses = app.store().count_uses(layer).await.unwrap();
    let room = app.quota("default").await.unwrap().sandboxes;
    let all = w.t.fake.ids().len();
    let three = || NewFork { count: 3, ..NewFork::default() };
    for error in [ProviderError::Failed("tests say so".into()), ProviderError::Full("no room".into())] {
        w.t.fake.fail_next("fork", error);
        let made = app.fork_sandbox(caller, source.id.as_str(), three()).await.unwrap();
        assert!(made[0].is_err() && made[1].is_ok() && made[2].is_ok(), "{made:?}");
        for fork in made.into_iter().flatten() {
            app.destroy(caller, fork.id.as_str()).await.unwrap();
        }
        app.finish_changes().await.unwrap();
    }
    // No file, no use of a layer, no place of the organisation's.
    assert_eq!(w.t.fake.ids().len(), all);
    assert_eq!(app.store().count_uses(layer).await.unwrap(), uses);
    assert!(app.forks_of(caller, source.id.as_str(), Forks::Existing).await.unwrap().is_empty());
    let mut quota = app.quota("default").await.unwrap();
    assert_eq!(quota.sandboxes, room);
    quota.sandboxes = 5;
    app.set_quota(caller, "default", quota).await.unwrap();
    let made = app.fork_sandbox(caller, source.id.as_str(), three()).await.unwrap();
    assert!(made.iter().all(Result::is_ok), "two are there, and three fit: {made:?}");
    // A source that is gone is refused as a whole.
    app.destroy(caller, source.id.as_str()).await.unwrap();
    assert!(matches!(app.fork_sandbox(caller, source.id.as_str(), three()).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn a_server_that_dies_while_it_copies_leaves_no_copy_that_nobody_knows() {
    let w = Workbench::new().await;
    let source = w.sandbox("base").await;
    let mut hold = w.t.fake.hold_next("fork");
    let forking = tokio::spawn({
        let (app, caller, id) = (w.t.app.clone(), w.t.caller.clone(), source.id.clone());
        async move { app.fork_sandbox(&caller, id.as_str(), NewFork { count: 4, ..NewFork::default() }).await }
    });
    hold.reached().await;
    forking.abort();
    let Workbench { t, .. } = w;
    let t = t.killed_and_restarted().await;
    // The provider had made all four: each is a sandbox like any other, or gone, and none is forgotten.
    let forks = t.app.forks_of(&t.caller, source.id.as_str(), Forks::Existing).await.unwrap();
    assert_eq!(t.fake.ids().len(), 1 + forks.len());
    assert!(forks.iter().all(|fork| fork.state == State::Running), "{forks:?}");
    for fork in forks {
        t.app.destroy(&t.caller, fork.id.as_str()).await.unwrap();
    }
    assert_eq!(t.fake.ids(), [source.id]);
}

#[tokio::test]
async fn sixty_generations_stand_on_few_layers_and_lose_nothing() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let mut template = "base".to_owned();
    for generation in 0..60 {
        w.t.clock.advance(Duration::from_secs(1));
        let made = w.sandbox(&template).await;
        w.output(&made, &format!("echo {generation} > /g{generation}")).await;
        // A snapshot of a fork of a sandbox of a snapshot.
        let fork = app.fork_sandbox(caller, made.id.as_str(), NewFork::default()).await.unwrap().remove(0).unwrap();
        let name = format!("g{generation}");
        let (_, build) = app.create_snapshot(caller, fork.id.as_str(), named(&name)).await.unwrap();
        assert!(build.image.root.over.len() <= 8, "generation {generation}: {} layers", build.image.root.over.len());
        app.destroy(caller, made.id.as_str()).await.unwrap();
        app.destroy(caller, fork.id.as_str()).await.unwrap();
        template = name;
    }
    // All but the last, and one of the middle, go: nothing that they brought is missing.
    let kept = w.sandbox("g30").await;
    for generation in 0..59 {
        app.delete_snapshot(caller, &format!("g{generation}")).await.unwrap();
    }
    w.t.clock.advance(Duration::from_secs(3600));
    app.sweep_layers().await.unwrap();
    let last = w.sandbox("g59").await;
    for generation in 0..60 {
        assert_eq!(w.output(&last, &format!("cat /g{generation}")).await, format!("{generation}\n"));
    }
    assert_eq!(w.output(&kept, "cat /g30").await, "30\n");
    let left = w.t.fake.layer_ids().len();
    assert!(left <= 2 * 9, "{left} layers for two that are left");
    app.delete_snapshot(caller, "g59").await.unwrap();
    for sandbox in [&kept, &last] {
        app.destroy(caller, sandbox.id.as_str()).await.unwrap();
    }
    w.t.clock.advance(Duration::from_secs(3600));
    app.sweep_layers().await.unwrap();
    assert!(w.t.fake.layer_ids().is_empty(), "{:?}", w.t.fake.layer_ids());
}

#[tokio::test]
async fn a_server_that_dies_at_a_snapshot_leaves_no_row_of_it() {
    let w = Workbench::new().await;
    let made = w.sandbox("base").await;
    let mut hold = w.t.fake.hold_next("capture");
    let taking = tokio::spawn({
        let (app, caller, id) = (w.t.app.clone(), w.t.caller.clone(), made.id.clone());
        async move { app.create_snapshot(&caller, id.as_str(), named("half")).await }
    });
    hold.reached().await;
    taking.abort();
    let Workbench { t, .. } = w;
    let t = t.killed_and_restarted().await;
    let unfinished = t.app.store().unfinished_builds(Unfinished::OfServer(t.app.server())).await.unwrap();
    assert!(unfinished.is_empty(), "{unfinished:?}");
    assert!(t.app.template_record(&t.caller, "half").await.is_err());
    assert!(t.fake.layer_ids().is_empty(), "what was captured is gone");
    t.app.create_snapshot(&t.caller, made.id.as_str(), named("half")).await.unwrap();
}

#[tokio::test]
async fn copies_count_against_the_organisations_maximum() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let source = w.sandbox("base").await;
    let mut quota = app.quota("default").await.unwrap();
    quota.running_sandboxes = 3;
    app.set_quota(caller, "default", quota).await.unwrap();
    let forks = app.fork_sandbox(caller, source.id.as_str(), NewFork { count: 5, ..NewFork::default() }).await.unwrap();
    let made = forks.iter().filter(|fork| fork.is_ok()).count();
    assert_eq!(made, 2);
    assert!(forks.iter().filter_map(|fork| fork.as_ref().err()).all(|error| matches!(error, Error::Quota { .. })));
    assert_eq!(w.t.fake.ids().len(), 3);
}

#[tokio::test]
async fn a_sandbox_goes_back_and_back_again() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let made = w.sandbox("base").await;
    let id = made.id.as_str();
    w.output(&made, "echo good > /f").await;
    let good = app.checkpoint(caller, id, Some("before the mess".into())).await.unwrap();
    w.output(&made, "echo bad > /f").await;
    let (back, replaced) = app.rollback_sandbox(caller, id, None).await.unwrap();
    assert_eq!((back.state, replaced.origin), (State::Running, Origin::Undo));
    assert_eq!(w.output(&back, "cat /f").await, "good\n");
    let (undone, _) = app.rollback_sandbox(caller, id, Some(&replaced.id)).await.unwrap();
    assert_eq!(w.output(&undone, "cat /f").await, "bad\n");
    app.stop(caller, id).await.unwrap();
    let (back, _) = app.rollback_sandbox(caller, id, Some(&good.id)).await.unwrap();
    assert_eq!(back.state, State::Stopped, "one that was stopped stays so");
    app.start(caller, id).await.unwrap();
    assert_eq!(w.output(&back, "cat /f").await, "good\n");
    // One that ends with its processes otherwise is kept for it.
    let ephemeral = app.fork_sandbox(caller, id, NewFork::default()).await.unwrap().remove(0).unwrap();
    let refused = app.rollback_sandbox(caller, ephemeral.id.as_str(), Some(&good.id)).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "another's checkpoint: {refused:?}");
    let refused = app.rollback_sandbox(caller, ephemeral.id.as_str(), None).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "it has none: {refused:?}");
    // Where the exchange does not work it runs with what it had.
    w.t.fake.fail_next("rollback", ProviderError::Failed("tests say so".into()));
    assert!(app.rollback_sandbox(caller, id, Some(&good.id)).await.is_err());
    assert_eq!(app.sandbox(caller, id).await.unwrap().state, State::Running);
    // Checkpoints are in no list of snapshots and go with their sandbox.
    assert!(app.list_snapshots(caller, None, None, (None, 10)).await.unwrap().items.is_empty());
    app.destroy(caller, id).await.unwrap();
    app.destroy(caller, ephemeral.id.as_str()).await.unwrap();
    w.t.clock.advance(Duration::from_secs(3600));
    app.keep_house().await.unwrap();
    app.sweep_layers().await.unwrap();
    assert!(w.t.fake.layer_ids().is_empty());
}

#[tokio::test]
async fn a_checkpoint_is_made_before_each_command_and_the_rule_keeps_few() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let made = w.sandbox("base").await;
    let id = made.id.as_str();
    assert!(app.set_checkpoints(caller, id, Some(Rule { keep: 0, keep_seconds: None })).await.is_err());
    app.set_checkpoints(caller, id, Some(Rule { keep: 2, keep_seconds: None })).await.unwrap();
    for number in 1..=4 {
        w.t.clock.advance(Duration::from_secs(1));
        w.output(&made, &format!("echo {number} > /n")).await;
    }
    let kept = app.list_checkpoints(caller, id, 100).await.unwrap();
    let notes: Vec<&str> = kept.iter().map(|build| build.note.as_deref().unwrap()).collect();
    assert_eq!(notes, ["echo 4 > /n", "echo 3 > /n"]);
    let (back, _) = app.rollback_sandbox(caller, id, Some(&kept[1].id)).await.unwrap();
    app.set_checkpoints(caller, id, None).await.unwrap();
    assert_eq!(w.output(&back, "cat /n").await, "2\n", "as it was before the third command");
    // A command whose checkpoint cannot be made is not run.
    app.set_checkpoints(caller, id, Some(Rule { keep: 2, keep_seconds: None })).await.unwrap();
    w.t.fake.fail_next("capture", ProviderError::Exhausted("it does not hold still".into()));
    let (_, guest) = app.reach(caller, id).await.unwrap();
    let spec = cove_protocol::process::Spec::new(cove_protocol::process::Command::Shell("echo 9 > /n".into()));
    assert!(cove_control::sandbox::exec::run_to_end(&guest, spec, None).await.is_err());
    app.set_checkpoints(caller, id, None).await.unwrap();
    assert_eq!(w.output(&back, "cat /n").await, "2\n");
}

#[tokio::test]
async fn a_checkpoint_goes_when_its_time_is_over_whether_or_not_a_command_follows() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let made = w.sandbox("base").await;
    let id = made.id.as_str();
    let asked = app.checkpoint(caller, id, Some("mine".into())).await.unwrap();
    app.set_checkpoints(caller, id, Some(Rule { keep: 100, keep_seconds: Some(60) })).await.unwrap();
    w.output(&made, "echo 1 > /n").await;
    w.t.clock.advance(Duration::from_secs(50));
    w.output(&made, "echo 2 > /n").await;
    let automatic = async || {
        let all = app.list_checkpoints(caller, id, 100).await.unwrap();
        all.into_iter().filter(|build| build.origin == Origin::Automatic).count()
    };
    assert_eq!(automatic().await, 2);
    w.t.clock.advance(Duration::from_secs(11));
    app.keep_house().await.unwrap();
    assert_eq!(automatic().await, 1, "the first is a minute old");
    w.t.clock.advance(Duration::from_secs(60));
    app.keep_house().await.unwrap();
    assert_eq!(automatic().await, 0);
    let left = app.list_checkpoints(caller, id, 100).await.unwrap();
    assert_eq!(left.iter().map(|build| &build.id).collect::<Vec<_>>(), [&asked.id], "the rule is for its own");
}

#[tokio::test]
async fn a_volume_is_mounted_in_many_and_not_deleted_under_them() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let new = |name: &str| NewVolume { name: name.into(), size: Some(1 << 20), provider: None };
    let volume = app.create_volume(caller, new("data")).await.unwrap();
    assert!(matches!(app.create_volume(caller, new("data")).await, Err(Error::Conflict(_))));
    assert!(app.create_volume(caller, new("../x")).await.is_err());
    let mount = |volume: &str, path: &str, access| Mount {
        volume: volume.into(),
        path: path.into(),
        subpath: Some("sub/dir".into()),
        access,
    };
    let with = |mounts: Vec<Mount>| NewSandbox { volumes: mounts, ..NewSandbox::default() };
    let one = app.create_sandbox(caller, with(vec![mount("data", "/mnt/a", Access::ReadWrite)])).await.unwrap();
    let two =
        app.create_sandbox(caller, with(vec![mount(volume.id.as_str(), "/mnt/b/", Access::ReadOnly)])).await.unwrap();
    assert_eq!((two.volumes[0].target.as_str(), two.volumes[0].subpath.as_deref()), ("/mnt/b", Some("sub/dir")));
    assert_eq!(two.volumes[0].access, Access::ReadOnly);
    for wrong in [
        vec![mount("none", "/mnt", Access::ReadWrite)],
        vec![mount("data", "/proc/x", Access::ReadWrite)],
        vec![mount("data", "/m", Access::ReadWrite), mount("data", "/m/n", Access::ReadWrite)],
    ] {
        assert!(app.create_sandbox(caller, with(wrong)).await.is_err());
    }
    let refused = app.create_sandbox(&stranger(), with(vec![mount("data", "/mnt", Access::ReadWrite)])).await;
    assert!(matches!(refused, Err(Error::NotFound { .. })), "{refused:?}");
    let refused = app.delete_volume(caller, "data").await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    app.stop(caller, one.id.as_str()).await.unwrap();
    app.destroy(caller, two.id.as_str()).await.unwrap();
    assert!(app.delete_volume(caller, "data").await.is_err(), "one that is stopped has it, too");
    // A copy has what its source has.
    app.start(caller, one.id.as_str()).await.unwrap();
    let fork = app.fork_sandbox(caller, one.id.as_str(), NewFork::default()).await.unwrap().remove(0).unwrap();
    app.destroy(caller, one.id.as_str()).await.unwrap();
    assert!(app.delete_volume(caller, "data").await.is_err());
    app.destroy(caller, fork.id.as_str()).await.unwrap();
    app.delete_volume(caller, "data").await.unwrap();
    assert!(matches!(app.volume(caller, "data").await, Err(Error::NotFound { .. })));
    assert!(app.list_volumes(caller, VolumeFilter::Existing).await.unwrap().is_empty());
    assert_eq!(app.list_volumes(caller, VolumeFilter::WithDeleted).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_volumes_files_are_reached_without_a_sandbox() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let new = NewVolume { name: "v".into(), size: Some(1 << 20), provider: None };
    let volume = app.create_volume(caller, new).await.unwrap();
    let files = app.volume_files(caller, "v", Scope::Write).await.unwrap();
    let owner = Owner {
        uid: Some(rustix::process::getuid().as_raw()),
        gid: Some(rustix::process::getgid().as_raw()),
        mode: None,
    };
    files.write("/a/b", WriteFile { owner, parents: true, only_new: false }, &b"12345"[..]).await.unwrap();
    assert_eq!(app.volume_usage(&volume).await.unwrap().bytes, 5);
    let reader = Caller { scopes: vec![Scope::Read], ..caller.clone() };
    assert!(matches!(app.volume_files(&reader, "v", Scope::Write).await, Err(Error::Forbidden(_))));
    assert_eq!(app.volume_files(&reader, "v", Scope::Read).await.unwrap().list("/", 9).await.unwrap().len(), 2);
    assert!(matches!(app.volume_files(&stranger(), "v", Scope::Read).await, Err(Error::NotFound { .. })));
    assert!(app.resize_volume(caller, "v", 1 << 30).await.unwrap().size_limit == 1 << 30);
    let mut quota = app.quota("default").await.unwrap();
    quota.storage_bytes = 2 << 30;
    app.set_quota(caller, "default", quota).await.unwrap();
    assert!(matches!(app.resize_volume(caller, "v", 3 << 30).await, Err(Error::Quota { .. })));
    let more = NewVolume { name: "more".into(), size: Some(2 << 30), provider: None };
    assert!(matches!(app.create_volume(caller, more).await, Err(Error::Quota { .. })));
}

#[tokio::test]
async fn a_volume_that_is_being_made_is_not_taken_for_one_that_was_left() {
    let w = Workbench::new().await;
    let (app, caller) = (&w.t.app, &w.t.caller);
    let mut hold = w.t.fake.hold_next("make_volume");
    let making = tokio::spawn({
        let (app, caller) = (app.clone(), caller.clone());
        async move { app.create_volume(&caller, NewVolume { name: "v".into(), size: None, provider: None }).await }
    });
    hold.reached().await;
    app.keep_house().await.unwrap();
    hold.let_through();
    making.await.unwrap().unwrap();
    let files = app.volume_files(caller, "v", Scope::Read).await.unwrap();
    assert!(files.list("/", 1).await.unwrap().is_empty(), "it is there, with nothing in it");
    app.keep_house().await.unwrap();
    assert_eq!(app.list_volumes(caller, VolumeFilter::Existing).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_server_that_dies_at_a_volume_finishes_it() {
    let w = Workbench::new().await;
    let new = |name: &str| NewVolume { name: name.into(), size: Some(1 << 20), provider: None };
    w.t.app.create_volume(&w.t.caller, new("goes")).await.unwrap();
    w.t.fake.fail_next("remove_volume", ProviderError::Failed("tests say so".into()));
    assert!(w.t.app.delete_volume(&w.t.caller, "goes").await.is_err());
    let mut hold = w.t.fake.hold_next("make_volume");
    let making = tokio::spawn({
        let (app, caller) = (w.t.app.clone(), w.t.caller.clone());
        async move { app.create_volume(&caller, NewVolume { name: "half".into(), size: None, provider: None }).await }
    });
    hold.reached().await;
    making.abort();
    let Workbench { t, .. } = w;
    let t = t.killed_and_restarted().await;
    t.app.keep_house().await.unwrap();
    assert!(t.app.list_volumes(&t.caller, VolumeFilter::Existing).await.unwrap().is_empty());
    use cove_control::provider::Provider as _;
    assert!(t.fake.volumes().volumes().await.unwrap().is_empty());
    t.app.create_volume(&t.caller, new("half")).await.unwrap();
}
