//! A database in trouble: what was acknowledged is there, what was not is said to have failed, and when the trouble is
//! over all is as before. Every kind of write goes through it, on both databases.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cove_control::Error;
use cove_control::audit::Entry;
use cove_control::clock::from_millisecond;
use cove_control::event::{EventFilter, Kind, NewEvent};
use cove_control::job::{JobState, Line, NewJob};
use cove_control::key::{Key, Organisation, Quota, Scope};
use cove_control::pool::PoolSize;
use cove_control::sandbox::{Sandbox, State};
use cove_control::session::{Artifact, JournalEntry, Message, Session, Stream};
use cove_control::store::retention::Aging;
use cove_control::store::sandboxes::{Along, Idempotency, Inserted, Taken};
use cove_control::store::{Store, Written};
use cove_control::webhook::Webhook;
use cove_testkit::need;
use cove_testkit::postgres::Postgres;

use crate::contract::sandbox;

/// Every way to write that the store has, but for what tidies up behind others.
const KINDS: &[&str] = &[
    "insert_sandbox",
    "update_sandbox",
    "update_labels",
    "rename_sandbox",
    "take_pooled",
    "note_activity",
    "release_idempotency_key",
    "insert_key",
    "revoke_key",
    "note_key_use",
    "insert_organisation",
    "update_organisation",
    "add_audit",
    "add_event",
    "add_job",
    "claim_jobs",
    "finish_job",
    "retry_job",
    "fail_job",
    "insert_session",
    "close_session",
    "add_journal",
    "put_artifact",
    "set_pool",
    "delete_pool",
    "insert_webhook",
    "delete_webhook",
    "set_cursor",
    "note_server",
];

fn named(n: &str) -> Sandbox {
    sandbox(Some(n), 1)
}

fn entry(n: &str) -> Entry {
    let at = from_millisecond(1);
    Entry { seq: 0, organisation: n.into(), key: "k".into(), action: "a".into(), subject: n.into(), at }
}

fn event(n: &str, bytes: usize) -> NewEvent {
    let data = serde_json::json!("e".repeat(bytes));
    NewEvent { organisation: n.into(), sandbox: None, kind: Kind::Updated, at: from_millisecond(1), data }
}

fn session(n: &str) -> Session {
    Session {
        id: n.into(),
        organisation: "o".into(),
        sandbox: "s".into(),
        provider: "fake".into(),
        template: "base".into(),
        created_at: from_millisecond(1),
        closed_at: None,
        owns_sandbox: false,
    }
}

fn job(n: &str) -> NewJob {
    NewJob {
        kind: "test".into(),
        subject: n.into(),
        organisation: "o".into(),
        server: Some(n.into()),
        unique_key: Some(n.into()),
        run_at: from_millisecond(1),
        payload: serde_json::json!({}),
    }
}

fn key(n: &str) -> Key {
    Key {
        id: n.into(),
        organisation: n.into(),
        name: n.into(),
        scope: Scope::Write,
        prefix: "p".into(),
        created_at: from_millisecond(1),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
        configured_by: Vec::new(),
        replaced: false,
    }
}

fn organisation(n: &str, name: &str) -> Organisation {
    Organisation { id: n.into(), name: name.into(), created_at: from_millisecond(1), quota: Quota::default() }
}

fn webhook(n: &str) -> Webhook {
    Webhook {
        id: n.into(),
        organisation: n.into(),
        url: "http://127.0.0.1:1/".into(),
        kinds: Vec::new(),
        secret: "s".into(),
        created_at: from_millisecond(1),
        reach: Default::default(),
    }
}

fn pool(n: &str) -> PoolSize {
    PoolSize { organisation: n.into(), template: "base".into(), size: 1 }
}

async fn read(store: &Store, n: &str) -> Result<Sandbox, Error> {
    Ok(store.sandbox_by_name("o", n).await?.expect("prepared"))
}

/// What the write needs, on a healthy database.
async fn prepare(store: &Store, kind: &str, n: &str) {
    match kind {
        "update_sandbox" | "update_labels" | "rename_sandbox" | "note_activity" => {
            store.insert_sandbox(&named(n), None).await.map(drop)
        }
        "release_idempotency_key" => store.insert_sandbox(&named(n), Some(n)).await.map(drop),
        "take_pooled" => store.insert_sandbox(&Sandbox { pool: Some(n.into()), ..named(n) }, None).await.map(drop),
        // A key without its organisation is not found.
        "insert_key" => store.insert_organisation(&organisation(n, n)).await.map(drop),
        "revoke_key" | "note_key_use" => {
            store.insert_organisation(&organisation(n, n)).await.unwrap();
            store.insert_key(&key(n), n).await
        }
        "update_organisation" => store.insert_organisation(&organisation(n, "old")).await.map(drop),
        "claim_jobs" => store.add_job(n, &job(n), 1).await.map(drop),
        "finish_job" | "retry_job" | "fail_job" => {
            store.add_job(n, &job(n), 1).await.unwrap();
            store.claim_jobs(n, Line::Upkeep, 2, 1000, 9).await.map(drop)
        }
        "close_session" | "add_journal" | "put_artifact" => store.insert_session(&session(n)).await,
        "delete_pool" => store.set_pool(&pool(n), 1).await,
        "delete_webhook" => store.insert_webhook(&webhook(n)).await,
        _ => Ok(()),
    }
    .unwrap();
}

async fn write(store: &Store, kind: &str, n: &str) -> Result<(), Error> {
    let along = event(n, 10);
    let along = Along { event: Some(&along), ..Along::default() };
    match kind {
        "insert_sandbox" => {
            let mut made = named(n);
            made.labels.insert("label".into(), n.into());
            let inserted = store
                .insert_sandbox_asked(&made, Some(Idempotency { key: n, fingerprint: n }), Some(&entry(n)), None)
                .await?;
            // Whose answer was lost is there.
            assert!(matches!(inserted, Inserted::New | Inserted::Repeated(_)), "{inserted:?}");
            Ok(())
        }
        "update_sandbox" => {
            let mut changed = Sandbox { state: State::Stopped, ..read(store, n).await? };
            assert_eq!(store.update_sandbox_along(&mut changed, along).await?, Written::Done);
            Ok(())
        }
        "update_labels" => {
            let mut changed = read(store, n).await?;
            changed.labels.insert("label".into(), n.into());
            assert_eq!(store.update_labels(&mut changed, along).await?, Written::Done);
            Ok(())
        }
        "rename_sandbox" => match store.sandbox_by_name("o", n).await? {
            Some(mut changed) => {
                changed.name = Some(format!("{n}-new"));
                assert_eq!(store.rename_sandbox(&mut changed, along).await?, Some(Written::Done));
                Ok(())
            }
            None => Ok(()),
        },
        "take_pooled" => {
            let mut taken = Sandbox { pool: None, ..read(store, n).await? };
            let taken = store.take_pooled(&mut taken, None, along).await?;
            assert!(matches!(taken, Taken::Done | Taken::Overtaken));
            Ok(())
        }
        "note_activity" => store.note_activity(&[(read(store, n).await?.id, 5000)]).await,
        "release_idempotency_key" => {
            let id = read(store, n).await?.id;
            store.release_idempotency_key("o", n, id.as_str()).await
        }
        "insert_key" => store.insert_key(&key(n), n).await,
        "revoke_key" => store.revoke_key(n, n, 2).await.map(drop),
        "note_key_use" => store.note_key_use(n, 2).await,
        "insert_organisation" => store.insert_organisation(&organisation(n, "new")).await.map(drop),
        "update_organisation" => store.update_organisation(&organisation(n, "new")).await,
        "add_audit" => store.add_audit(&entry(n)).await,
        "add_event" => store.add_event(&event(n, 10)).await,
        "add_job" => store.add_job(n, &job(n), 1).await.map(drop),
        "claim_jobs" => store.claim_jobs(n, Line::Upkeep, 2, 1000, 9).await.map(drop),
        "finish_job" => store.finish_job(n, 1, 2).await,
        "retry_job" => store.retry_job(n, 1, 2, "again").await,
        "fail_job" => store.fail_job(n, 1, 2, "no").await,
        "insert_session" => match store.session("o", n).await? {
            Some(_) => Ok(()),
            None => store.insert_session(&session(n)).await,
        },
        "close_session" => store.close_session(n, 2).await,
        "add_journal" => {
            let message = Message::Log { stream: Stream::Stdout, content: n.into() };
            let at = from_millisecond(1);
            let next = store.last_journal(n).await? + 1;
            let entries = [1, 2].map(|more| JournalEntry { seq: next + more, at, message: message.clone() });
            store.add_journal(n, &entries).await.map(drop)
        }
        "put_artifact" => {
            let artifact = Artifact { name: n.into(), size: 1, mime: "m".into(), created_at: from_millisecond(1) };
            store.put_artifact(n, &artifact).await
        }
        "set_pool" => store.set_pool(&pool(n), 1).await,
        "delete_pool" => store.delete_pool(n, "base").await.map(drop),
        "insert_webhook" => match store.webhook(n).await? {
            Some(_) => Ok(()),
            None => store.insert_webhook(&webhook(n)).await,
        },
        "delete_webhook" => store.delete_webhook(n, n).await.map(drop),
        "set_cursor" => store.set_cursor(n, 7).await,
        "note_server" => store.note_server(n, None, 9).await,
        other => panic!("{other} is not told"),
    }
}

/// Whether it was written, and all that goes with it.
async fn holds(store: &Store, kind: &str, n: &str) -> bool {
    let told = EventFilter { organisation: Some(n.into()), ..EventFilter::default() };
    let told = !store.events(&told, 0, 9).await.unwrap().is_empty();
    let found = store.sandbox_by_name("o", n).await.unwrap();
    let found_key = store.key_by_hash(n).await.unwrap();
    let job_is = async |state| store.job(n).await.unwrap().is_some_and(|job| job.state == state);
    match kind {
        "insert_sandbox" => found.is_some() && !store.audit(n, None, 9).await.unwrap().is_empty(),
        "update_sandbox" => told && found.unwrap().state == State::Stopped,
        "update_labels" => told && found.unwrap().labels.contains_key("label"),
        "rename_sandbox" => told && found.is_none(),
        "take_pooled" => told && found.unwrap().pool.is_none(),
        "note_activity" => found.unwrap().last_activity_at.as_millisecond() == 5000,
        "release_idempotency_key" => {
            let twin = sandbox(None, 1);
            store.insert_sandbox(&twin, Some(n)).await.unwrap() == Inserted::New
        }
        "insert_key" => found_key.is_some(),
        "revoke_key" => found_key.unwrap().revoked_at.is_some(),
        "note_key_use" => found_key.unwrap().last_used_at.is_some(),
        "insert_organisation" | "update_organisation" => {
            store.organisation(n).await.unwrap().is_some_and(|found| found.name == "new")
        }
        "add_audit" => !store.audit(n, None, 9).await.unwrap().is_empty(),
        "add_event" => told,
        "add_job" | "retry_job" => job_is(JobState::Queued).await,
        "claim_jobs" => job_is(JobState::Running).await,
        "finish_job" => job_is(JobState::Done).await,
        "fail_job" => job_is(JobState::Failed).await,
        "insert_session" => store.session("o", n).await.unwrap().is_some(),
        "close_session" => store.session("o", n).await.unwrap().unwrap().closed_at.is_some(),
        "add_journal" => store.journal(n, 0, 9).await.unwrap().len() >= 2,
        "put_artifact" => !store.artifacts(n).await.unwrap().is_empty(),
        "set_pool" => store.pools().await.unwrap().contains(&pool(n)),
        "delete_pool" => !store.pools().await.unwrap().contains(&pool(n)),
        "insert_webhook" => store.webhook(n).await.unwrap().is_some(),
        "delete_webhook" => store.webhook(n).await.unwrap().is_none(),
        "set_cursor" => store.cursor(n).await.unwrap() == Some(7),
        "note_server" => store.peer(n).await.unwrap().is_some(),
        other => panic!("{other} is not told"),
    }
}

/// Whether it failed, in the way that a database in trouble makes it fail.
async fn fails(store: &Store, kind: &str, n: &str) -> bool {
    match write(store, kind, n).await {
        Ok(()) => false,
        Err(Error::Full(_) | Error::Unavailable { .. }) => true,
        Err(error) => panic!("{kind}: {error}, {:?}", error.detail()),
    }
}

/// A disk of a few MiB, which goes with it.
pub(crate) struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` where the test is skipped.
    pub(crate) fn new() -> Option<SmallDisk> {
        if !need::root() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(folder.path()).output();
        let mount = mount.unwrap();
        assert!(mount.status.success(), "{}", String::from_utf8_lossy(&mount.stderr));
        Some(SmallDisk { folder })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }

    pub(crate) fn fill(&self) {
        let mut file = fs::File::create(self.ballast()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    pub(crate) fn make_room(&self) {
        fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _gone = Command::new("umount").arg("--lazy").arg(self.folder.path()).status();
    }
}

/// Uses up what the log of the database still has, to the last page: a change of one page fails at the end.
pub(crate) async fn use_up(store: &Store) {
    for bytes in [100_000, 1000] {
        while store.add_event(&event("ballast", bytes)).await.is_ok() {}
    }
    let before = store.cursor("ballast").await.unwrap().unwrap_or(0);
    for number in 1..=10_000 {
        if store.set_cursor("ballast", before + number).await.is_err() {
            return;
        }
    }
    panic!("there is always room for one page more");
}

#[tokio::test]
async fn a_disk_that_fills_and_empties_loses_nothing_that_was_acknowledged() {
    let Some(disk) = SmallDisk::new() else { return };
    let path = disk.path().join("cove.db");
    let store = Store::sqlite(&path).await.unwrap();
    let mut failed = 0;
    for round in 0..3 {
        let name = |kind: &str| format!("{kind}-{round}");
        for kind in KINDS {
            prepare(&store, kind, &name(kind)).await;
        }
        disk.fill();
        let mut again = Vec::new();
        for kind in KINDS {
            use_up(&store).await;
            if fails(&store, kind, &name(kind)).await {
                again.push(kind);
            }
        }
        failed += again.len();
        disk.make_room();
        for kind in &again {
            write(&store, kind, &name(kind)).await.unwrap();
        }
        // As another who opens the file sees it: what is committed, and nothing else.
        let other = Store::sqlite(&path).await.unwrap();
        for kind in KINDS {
            assert!(
                holds(&other, kind, &name(kind)).await,
                "{kind} was acknowledged in round {round} and is not there"
            );
        }
        other.close().await;
        while store.remove_aged(Aging::Events, i64::MAX).await.unwrap() > 0 {}
    }
    assert!(failed > 2 * KINDS.len(), "only {failed} writes failed: the disk was not full");
    store.close().await;
}

#[tokio::test]
async fn a_postgresql_that_drops_its_connections_loses_nothing_that_was_acknowledged() {
    let Some(postgres) = Postgres::start() else { return };
    let store = Store::open(postgres.url()).await.unwrap();
    let killer = sqlx::AnyPool::connect(postgres.url()).await.unwrap();
    // Returns when they are gone.
    const KILL: &str = "SELECT COUNT(CASE WHEN pg_terminate_backend(pid, 5000) THEN 1 END) FROM pg_stat_activity \
         WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
    let mut failed = 0;
    // Each round kills at a later moment; a quarter of a second a write.
    let step = if std::env::var_os("COVE_LONG").is_some() { 1 } else { 6 };
    for round in (0..20).step_by(step) {
        for kind in KINDS {
            let n = format!("{kind}-{round}");
            prepare(&store, kind, &n).await;
            // At any moment of it: before, in its middle, or after.
            let (in_trouble, _) = tokio::join!(fails(&store, kind, &n), async {
                for _ in 0..round {
                    tokio::task::yield_now().await;
                }
                sqlx::query(KILL).execute(&killer).await.unwrap()
            });
            if in_trouble {
                failed += 1;
                write(&store, kind, &n).await.unwrap();
            }
            assert!(holds(&store, kind, &n).await, "{kind} was acknowledged in round {round} and is not there");
        }
    }
    assert!(failed > 0, "no write was hit");
    store.close().await;
    killer.close().await;
}

#[tokio::test]
async fn a_statement_that_takes_too_long_ends_in_postgresql_too() {
    let Some(postgres) = Postgres::start() else {
        eprintln!("skipped: PostgreSQL is not installed");
        return;
    };
    let store = Store::open(postgres.url()).await.unwrap();
    let other = sqlx::AnyPool::connect(postgres.url()).await.unwrap();
    let mut holding = other.begin().await.unwrap();
    sqlx::query("LOCK TABLE sandboxes IN ACCESS EXCLUSIVE MODE").execute(&mut *holding).await.unwrap();
    let error = store.sandbox_by_name("o", "anything").await.unwrap_err();
    assert!(matches!(error, cove_control::Error::Unavailable { .. }), "{error:?}");
    const WAITING: &str = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    let waiting: i64 = sqlx::query_scalar(WAITING).fetch_one(&mut *holding).await.unwrap();
    assert_eq!(waiting, 0, "nobody waits for its answer, and it goes on in the database");
    holding.rollback().await.unwrap();
    assert!(store.sandbox_by_name("o", "anything").await.unwrap().is_none());
    store.close().await;
    other.close().await;
}
