//! Followers of events miss none, however the transactions that write them end: on a real PostgreSQL.

use std::time::{Duration, Instant};

use cove_control::clock::from_millisecond;
use cove_control::event::{EventFilter, Kind, NewEvent};
use cove_control::store::Store;
use cove_testkit::postgres::Postgres;
use sqlx::{AnyConnection, Connection as _};

/// What the test's own connection holds to keep a transaction from its commit.
const GATE: i64 = 42;

fn event(sandbox: &str) -> NewEvent {
    NewEvent {
        organisation: "o".into(),
        sandbox: Some(sandbox.into()),
        kind: Kind::Updated,
        at: from_millisecond(1),
        data: serde_json::Value::Null,
    }
}

/// Events of sandbox `slow` get their number and then wait at the gate, inside their commit.
async fn make_slow(connection: &mut AnyConnection) {
    let statements = [
        format!(
            "CREATE FUNCTION wait_at_the_gate() RETURNS trigger LANGUAGE plpgsql AS \
             'BEGIN PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END'"
        ),
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED FOR EACH ROW \
         WHEN (NEW.sandbox = 'slow') EXECUTE FUNCTION wait_at_the_gate()"
            .to_owned(),
        format!("SELECT 1 FROM pg_advisory_lock({GATE})"),
    ];
    for statement in statements {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *connection).await.unwrap();
    }
}

/// Until so many transactions wait for an advisory lock, or `or` is true.
async fn waiting(connection: &mut AnyConnection, many: i64, or: impl Fn() -> bool) {
    let begun = Instant::now();
    loop {
        let found: i64 =
            sqlx::query_scalar("SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
                .fetch_one(&mut *connection)
                .await
                .unwrap();
        if found >= many || or() {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{found} transactions wait, not {many}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_event_that_commits_late_is_not_overtaken() {
    let Some(postgres) = Postgres::start() else { return };
    let (one, two) = (Store::open(postgres.url()).await.unwrap(), Store::open(postgres.url()).await.unwrap());
    let mut connection = AnyConnection::connect(postgres.url()).await.unwrap();
    make_slow(&mut connection).await;

    let slow = tokio::spawn({
        let one = one.clone();
        async move { one.add_event(&event("slow")).await.unwrap() }
    });
    waiting(&mut connection, 1, || false).await;
    let fast = tokio::spawn({
        let two = two.clone();
        async move { two.add_event(&event("fast")).await.unwrap() }
    });
    waiting(&mut connection, 2, || fast.is_finished()).await;

    // A follower reads, goes on from the last number it saw, and reads again.
    let filter = EventFilter::default();
    let mut seen = one.events(&filter, 0, 100).await.unwrap();
    let after = one.last_event().await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("SELECT 1 FROM (SELECT pg_advisory_unlock({GATE})) AS done")))
        .execute(&mut connection)
        .await
        .unwrap();
    slow.await.unwrap();
    fast.await.unwrap();
    seen.extend(one.events(&filter, after, 100).await.unwrap());
    let told: Vec<&str> = seen.iter().filter_map(|event| event.sandbox.as_deref()).collect();
    assert_eq!(told, ["slow", "fast"], "in the order of their numbers, none missed");
    for store in [one, two] {
        store.close().await;
    }
}
