//! Files whose sandbox the database does not know: kept for the operator, never removed because a server starts.

use std::time::Duration;

use cove_control::provider::{Health, Space, Trouble};
use cove_control::sandbox::orphan::Adoption;
use cove_control::sandbox::{NewSandbox, Sandbox, State};
use cove_control::{Caller, Error, Scope};
use cove_protocol::Request;
use cove_protocol::file::WriteMode;

use crate::harness::TestApp;

async fn make(t: &TestApp, name: &str) -> Sandbox {
    t.app.create_sandbox(&t.caller, NewSandbox { name: Some(name.into()), ..NewSandbox::default() }).await.unwrap()
}

async fn write(t: &TestApp, name: &str) -> Result<(), Error> {
    let (_, guest) = t.app.reach(&t.caller, name).await?;
    let path = "/home/user/precious".to_owned();
    let write = Request::Write { path, user: None, how: WriteMode::Replace, mode: None, parents: true };
    let mut operation = guest.send(&write).await?;
    operation.to.data(b"bytes").await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(())
}

#[tokio::test]
async fn files_that_the_database_does_not_know_are_kept_adopted_and_removed_by_the_operator() {
    let t = TestApp::new().await;
    let (kept, blank, gone) = (make(&t, "kept").await, make(&t, "blank").await, make(&t, "gone").await);
    write(&t, "kept").await.unwrap();
    write(&t, "gone").await.unwrap();
    // The machine's files meet a database that is older than they are.
    let t = t.with_another_database().await;
    let mut there = t.fake.ids();
    there.sort();
    let mut wanted = vec![kept.id.clone(), gone.id.clone()];
    wanted.sort();
    assert_eq!(there, wanted, "the blank one, {}, went", blank.id);
    let found = t.app.orphans(&t.caller).await.unwrap();
    assert_eq!(found.len(), 2);
    assert!(found[0].reason.contains("database does not know it") && found[0].removed_at.is_some(), "{found:?}");

    // Another start changes nothing, not even since when.
    assert_eq!(t.app.reconcile().await.unwrap().aside, 2);
    assert_eq!(t.app.orphans(&t.caller).await.unwrap()[0].since, found[0].since);

    let tenant = Caller { scopes: vec![Scope::Admin], ..t.caller.clone() };
    assert!(matches!(t.app.orphans(&tenant).await, Err(Error::Forbidden(_))));
    let adoption = Adoption { organisation: Some("nobody".into()), name: None };
    assert!(matches!(t.app.adopt_orphan(&t.caller, kept.id.as_str(), adoption).await, Err(Error::NotFound { .. })));
    let adoption = Adoption { organisation: None, name: Some("found".into()) };
    let adopted = t.app.adopt_orphan(&t.caller, kept.id.as_str(), adoption.clone()).await.unwrap();
    assert_eq!((adopted.state, adopted.id.clone()), (State::Stopped, kept.id.clone()));
    assert_eq!(t.app.start(&t.caller, "found").await.unwrap().state, State::Running);
    let again = t.app.adopt_orphan(&t.caller, kept.id.as_str(), adoption).await;
    assert!(matches!(again, Err(Error::NotFound { .. })), "it is nobody's no more");

    t.app.remove_orphan(&t.caller, gone.id.as_str()).await.unwrap();
    assert!(t.app.orphans(&t.caller).await.unwrap().is_empty());
    assert_eq!(t.fake.ids(), [kept.id]);
}

#[tokio::test]
async fn orphans_go_when_their_time_is_over_and_not_before() {
    let t = TestApp::new().await;
    make(&t, "kept").await;
    write(&t, "kept").await.unwrap();
    let t = t.with_another_database().await;
    t.clock.advance(Duration::from_secs(29 * 24 * 3600));
    t.app.remove_old_orphans().await.unwrap();
    assert_eq!(t.fake.ids().len(), 1);
    t.clock.advance(Duration::from_secs(2 * 24 * 3600));
    t.app.remove_old_orphans().await.unwrap();
    assert!(t.fake.ids().is_empty());
}

#[tokio::test]
async fn a_full_disk_is_met_by_those_who_would_fill_it() {
    let t = TestApp::new().await;
    make(&t, "x").await;
    make(&t, "stopped").await;
    t.app.stop(&t.caller, "stopped").await.unwrap();
    let health = |trouble| Health { disk: Space { free: 1 << 30, total: 100 << 30 }, pool: None, trouble };
    t.fake.set_storage(Some(health(Some(Trouble::Full("this server's disk is nearly full".into())))));
    let refused = t.app.create_sandbox(&t.caller, NewSandbox::default()).await.unwrap_err();
    assert!(matches!(&refused, Error::Full(sentence) if sentence.contains("nearly full")), "{refused}");
    assert!(refused.retry_after().is_some());
    assert!(matches!(t.app.start(&t.caller, "stopped").await, Err(Error::Full(_))));
    assert!(matches!(t.app.archive(&t.caller, "stopped").await, Err(Error::Full(_))));
    let refused = write(&t, "x").await.unwrap_err();
    assert!(refused.retry_after().is_some() && refused.to_string().contains("nearly full"), "{refused}");
    let checks = t.app.health().await;
    assert!(checks.iter().any(|check| check.name == "storage" && !check.ok), "{checks:?}");
    let why = t.app.explain(&t.caller, "x").await.unwrap();
    assert!(why.evidence.iter().any(|line| line.contains("nearly full")), "{why:?}");
    // What is there can be used and put away all the same.
    t.app.stop(&t.caller, "x").await.unwrap();

    t.fake.set_storage(Some(health(Some(Trouble::Failed("it is read-only".into())))));
    assert!(matches!(t.app.start(&t.caller, "x").await, Err(Error::Exhausted { .. })));
    t.fake.set_storage(Some(health(None)));
    assert!(t.app.health().await.iter().all(|check| check.ok));
    assert_eq!(t.app.start(&t.caller, "x").await.unwrap().state, State::Running);
    write(&t, "x").await.unwrap();
}
