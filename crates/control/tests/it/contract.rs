//! What a store must do, written once and run on both databases.

use std::collections::BTreeMap;

use cove_control::clock::from_millisecond;
use cove_control::event::{EventFilter, Kind, NewEvent};
use cove_control::job::{DELIVERY, Job, Line, NewJob, SHARE};
use cove_control::sandbox::cause::{Cause, Code};
use cove_control::sandbox::{Filter, NetworkPolicy, Order, Page, Sandbox, State, Timers};
use cove_control::session::{JournalEntry, Message, Session, Stream};
use cove_control::store::sandboxes::{Along, Inserted, Taken};
use cove_control::store::usage::{Rate, Span};
use cove_control::store::{Store, Written};
use cove_testkit::postgres::Postgres;

pub fn sandbox(name: Option<&str>, created: i64) -> Sandbox {
    let at = from_millisecond(created);
    Sandbox {
        id: cove_control::random::sandbox_id(),
        organisation: "o".into(),
        name: name.map(Into::into),
        template: "base".into(),
        image: Default::default(),
        build: None,
        parent: None,
        clone_of: None,
        provider: "fake".into(),
        handle: None,
        server: "s".into(),
        labels: BTreeMap::new(),
        env: BTreeMap::new(),
        limits: Default::default(),
        network: NetworkPolicy::default(),
        volumes: Vec::new(),
        checkpoints: None,
        timers: Timers { idle_seconds: None, ..Timers::default() },
        owner: None,
        user: "user".into(),
        cwd: None,
        public: false,
        state: State::Running,
        cause: Cause::new(Code::Requested, "told", at),
        state_since: at,
        created_at: at,
        started_at: None,
        last_activity_at: at,
        updated_at: None,
        metered_from: at,
        access_token: "a".into(),
        traffic_token: "t".into(),
        has_archive: false,
        manifest: None,
        sealing: false,
        door: serde_json::Value::Null,
        pool: None,
        generation: 0,
    }
}

fn event(sandbox: &Sandbox) -> NewEvent {
    NewEvent {
        organisation: sandbox.organisation.clone(),
        sandbox: Some(sandbox.id.to_string()),
        kind: Kind::Updated,
        at: sandbox.created_at,
        data: serde_json::json!({"n": 1}),
    }
}

async fn a_name_belongs_to_one(store: &Store) {
    let first = sandbox(Some("twin"), 1);
    assert_eq!(store.insert_sandbox(&first, None).await.unwrap(), Inserted::New);
    assert_eq!(store.insert_sandbox(&sandbox(Some("twin"), 2), None).await.unwrap(), Inserted::NameTaken);
    let mut gone = first.clone();
    gone.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut gone, None).await.unwrap(), Written::Done);
    assert_eq!(store.insert_sandbox(&sandbox(Some("twin"), 3), None).await.unwrap(), Inserted::New);
}

async fn who_writes_with_an_old_generation_is_told(store: &Store) {
    let made = sandbox(None, 10);
    store.insert_sandbox(&made, None).await.unwrap();
    let (mut one, mut two) = (made.clone(), made.clone());
    one.state = State::Stopped;
    two.state = State::Paused;
    assert_eq!(store.update_sandbox(&mut one, Some(&event(&made))).await.unwrap(), Written::Done);
    assert_eq!(store.update_sandbox(&mut two, Some(&event(&made))).await.unwrap(), Written::Overtaken);
    let read = store.sandbox_by_id(&made.id).await.unwrap().unwrap();
    assert_eq!((read.state, read.generation, two.generation), (State::Stopped, 1, 0));
    one.state = State::Paused;
    assert_eq!(store.update_sandbox(&mut one, None).await.unwrap(), Written::Done, "who wrote last writes on");
    let read = store.sandbox_by_id(&made.id).await.unwrap().unwrap();
    assert_eq!((read.state, read.generation, one.generation), (State::Paused, 2, 2));
}

async fn of_many_writers_exactly_one_wins(store: &Store) {
    let made = sandbox(None, 11);
    store.insert_sandbox(&made, None).await.unwrap();
    let writers = (0..16).map(|_| {
        let (store, mut copy) = (store.clone(), made.clone());
        tokio::spawn(async move { store.update_sandbox(&mut copy, None).await.unwrap() })
    });
    let outcomes = futures::future::join_all(writers).await;
    let won = outcomes.into_iter().filter(|outcome| *outcome.as_ref().unwrap() == Written::Done).count();
    assert_eq!(won, 1);
}

async fn the_same_idempotency_key_leads_to_the_first(store: &Store) {
    let first = sandbox(None, 20);
    assert_eq!(store.insert_sandbox(&first, Some("k")).await.unwrap(), Inserted::New);
    let repeated = store.insert_sandbox(&sandbox(None, 21), Some("k")).await.unwrap();
    assert_eq!(repeated, Inserted::Repeated(first.id.to_string()));
}

async fn lists_are_filtered_and_go_on_where_they_stopped(store: &Store) {
    for number in 0..5 {
        let mut made = sandbox(None, 1000 + number);
        made.organisation = "list".into();
        made.labels.insert("parity".into(), if number % 2 == 0 { "even" } else { "odd" }.into());
        store.insert_sandbox(&made, None).await.unwrap();
    }
    let filter = Filter { labels: BTreeMap::from([("parity".to_owned(), "even".to_owned())]), ..Filter::default() };
    let mut page = Page { limit: 2, cursor: None, order: Order::NewestFirst };
    let first = store.list_sandboxes("list", &filter, &page).await.unwrap();
    page.cursor = first.next.clone();
    let second = store.list_sandboxes("list", &filter, &page).await.unwrap();
    let times: Vec<i64> =
        first.items.iter().chain(&second.items).map(|sandbox| sandbox.created_at.as_millisecond()).collect();
    assert_eq!((times, second.next), (vec![1004, 1002, 1000], None));
    assert!(store.list_sandboxes("other", &filter, &Page::default()).await.unwrap().items.is_empty());
}

async fn many_labels_are_one_question(store: &Store) {
    let labels = |count: usize| (0..count).map(|n| (format!("k{n}"), "v".to_owned())).collect::<BTreeMap<_, _>>();
    for (created, count) in [(1, 63), (2, 64), (3, 64)] {
        let made = Sandbox { organisation: "labelled".into(), labels: labels(count), ..sandbox(None, created) };
        store.insert_sandbox(&made, None).await.unwrap();
    }
    let begun = std::time::Instant::now();
    let found = async |labels| {
        let filter = Filter { labels, ..Filter::default() };
        store.list_sandboxes("labelled", &filter, &Page::default()).await.unwrap().items.len()
    };
    assert_eq!(found(labels(64)).await, 2);
    assert_eq!(found(labels(63)).await, 3);
    assert_eq!(found([("k0".to_owned(), "other".to_owned())].into()).await, 0);
    // More than the doors let through.
    assert_eq!(found(labels(900)).await, 0);
    assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{:?}", begun.elapsed());
}

async fn what_is_old_goes_a_few_at_a_time_and_the_rest_stays(store: &Store) {
    use cove_control::store::retention::Aging;
    let entry = |at: i64| cove_control::audit::Entry {
        seq: 0,
        organisation: "aged".into(),
        key: "k".into(),
        action: "a".into(),
        subject: "s".into(),
        at: from_millisecond(at),
    };
    // More than go at one time.
    for at in 0..300 {
        store.add_audit(&entry(5000 + at)).await.unwrap();
    }
    store.add_audit(&entry(9000)).await.unwrap();
    let removed = store.remove_aged(Aging::Audit, 9000).await.unwrap();
    assert!((1..300).contains(&removed), "{removed} at one time");
    while store.remove_aged(Aging::Audit, 9000).await.unwrap() > 0 {}
    assert_eq!(store.audit("aged", None, 1000).await.unwrap().len(), 1);

    let with_label = |created| {
        let mut made = Sandbox { organisation: "aged".into(), ..sandbox(None, created) };
        made.labels.insert("a".into(), "b".into());
        made
    };
    let (mut gone, mut just_gone, living) = (with_label(1), with_label(2), with_label(3));
    for (made, key) in [(&gone, "gone"), (&just_gone, "just"), (&living, "living")] {
        store.insert_sandbox(made, Some(key)).await.unwrap();
    }
    for (made, at) in [(&mut gone, 7000), (&mut just_gone, 8000)] {
        (made.state, made.state_since) = (State::Destroyed, from_millisecond(at));
        assert_eq!(store.update_sandbox(made, None).await.unwrap(), Written::Done);
    }
    // Those of the other parts of the contract are older than these.
    while store.remove_destroyed(7000).await.unwrap() > 0 {}
    assert!(store.sandbox_by_id(&gone.id).await.unwrap().is_some());
    assert_eq!(store.remove_destroyed(8000).await.unwrap(), 1);
    assert!(store.sandbox_by_id(&gone.id).await.unwrap().is_none());
    assert!(store.sandbox_by_id(&just_gone.id).await.unwrap().is_some());
    assert!(store.sandbox_by_id(&living.id).await.unwrap().is_some());
    // Its key is free again, the others' are not.
    let again = Sandbox { organisation: "aged".into(), ..sandbox(None, 4) };
    assert_eq!(store.insert_sandbox(&again, Some("gone")).await.unwrap(), Inserted::New);
    let repeated = store.insert_sandbox(&sandbox_of("aged", 5), Some("living")).await.unwrap();
    assert_eq!(repeated, Inserted::Repeated(living.id.to_string()));
    while store.remove_aged(Aging::IdempotencyKeys, 4).await.unwrap() > 0 {}
    let repeated = store.insert_sandbox(&sandbox_of("aged", 6), Some("living")).await.unwrap();
    assert_eq!(repeated, Inserted::New, "the key's time is over");
    for what in [Aging::Usage, Aging::Events, Aging::Samples, Aging::FinishedJobs] {
        store.remove_aged(what, i64::MIN).await.unwrap();
    }
}

fn sandbox_of(organisation: &str, created: i64) -> Sandbox {
    Sandbox { organisation: organisation.into(), ..sandbox(None, created) }
}

async fn a_pool_member_is_taken_once(store: &Store) {
    let mut member = sandbox(None, 30);
    member.pool = Some("base".into());
    store.insert_sandbox(&member, None).await.unwrap();
    assert!(store.sandbox("o", member.id.as_str()).await.unwrap().is_none());
    let mut mine = Sandbox { pool: None, ..member.clone() };
    let mut theirs = mine.clone();
    let told = event(&member);
    let along = Along { event: Some(&told), ..Along::default() };
    assert_eq!(store.take_pooled(&mut mine, None, along).await.unwrap(), Taken::Done);
    assert_eq!(store.take_pooled(&mut theirs, None, Along::default()).await.unwrap(), Taken::Overtaken);
    assert!(store.sandbox("o", member.id.as_str()).await.unwrap().is_some());
}

async fn a_job_is_done_by_one_worker_and_found_again_when_it_dies(store: &Store) {
    let job = NewJob {
        kind: "k".into(),
        subject: "x".into(),
        organisation: "o".into(),
        server: None,
        unique_key: Some("only".into()),
        run_at: from_millisecond(100),
        payload: serde_json::json!({"a": 1}),
    };
    assert!(store.add_job("j1", &job, 1).await.unwrap());
    assert!(!store.add_job("j2", &job, 1).await.unwrap());
    assert!(store.claim_jobs("s1", Line::Upkeep, 99, 50, 10).await.unwrap().is_empty());
    let claimed = store.claim_jobs("s1", Line::Upkeep, 100, 50, 10).await.unwrap();
    assert_eq!((claimed.len(), claimed[0].payload["a"].clone()), (1, serde_json::json!(1)));
    assert!(store.claim_jobs("s2", Line::Upkeep, 120, 50, 10).await.unwrap().is_empty());
    let again = store.claim_jobs("s2", Line::Upkeep, 151, 50, 10).await.unwrap();
    assert_eq!(again[0].attempts, 2);
    // The first worker wakes up late: its result does not count.
    store.finish_job("j1", 1, 160).await.unwrap();
    assert_eq!(store.job("j1").await.unwrap().unwrap().state.as_str(), "running");
    store.finish_job("j1", 2, 160).await.unwrap();
    assert_eq!(store.job("j1").await.unwrap().unwrap().state.as_str(), "done");
    // A live worker keeps its job; one that comes back takes its own job at once.
    assert!(store.add_job("j3", &job, 1).await.unwrap());
    assert_eq!(store.claim_jobs("s1", Line::Upkeep, 200, 50, 10).await.unwrap().len(), 1);
    store.renew_leases("s1", &["j3".into()], 400).await.unwrap();
    // Neither another's word nor one about another job changes that.
    store.renew_leases("s2", &["j3".into()], 900).await.unwrap();
    store.renew_leases("s1", &["j1".into()], 900).await.unwrap();
    assert!(store.claim_jobs("s2", Line::Upkeep, 300, 50, 10).await.unwrap().is_empty());
    assert_eq!(store.release_jobs("s2", 300, "not its own").await.unwrap(), 0);
    assert_eq!(store.release_jobs("s1", 300, "it died").await.unwrap(), 1);
    let taken_up = store.claim_jobs("s1", Line::Upkeep, 300, 50, 10).await.unwrap();
    assert_eq!((taken_up[0].attempts, taken_up[0].error.as_deref()), (2, Some("it died")));
    store.finish_job("j3", 2, 310).await.unwrap();
}

async fn upkeep_does_not_wait_behind_deliveries(store: &Store) {
    let job = |kind: &str, run_at| NewJob {
        kind: kind.into(),
        subject: "x".into(),
        organisation: "o".into(),
        server: None,
        unique_key: None,
        run_at: from_millisecond(run_at),
        payload: serde_json::Value::Null,
    };
    for number in 0..20 {
        store.add_job(&format!("delivery{number}"), &job(DELIVERY, 1), 1).await.unwrap();
    }
    store.add_job("timer", &job("sandbox.timer", 2), 1).await.unwrap();
    let claimed = store.claim_jobs("s1", Line::Upkeep, 10, 50, 5).await.unwrap();
    assert_eq!(claimed.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["timer"]);
    let claimed = store.claim_jobs("s1", Line::Deliveries, 10, 50, 5).await.unwrap();
    assert!(claimed.len() == 5 && claimed.iter().all(|job| job.kind == DELIVERY));
    for job in store.jobs(None, None, 1000).await.unwrap() {
        store.finish_job(&job.id, job.attempts, 20).await.unwrap();
    }
}

async fn no_organisation_waits_behind_the_deliveries_of_another(store: &Store) {
    let job = |organisation: &str, run_at| NewJob {
        kind: DELIVERY.into(),
        subject: "x".into(),
        organisation: organisation.into(),
        server: None,
        unique_key: None,
        run_at: from_millisecond(run_at),
        payload: serde_json::Value::Null,
    };
    for number in 0..200 {
        store.add_job(&format!("loud{number}"), &job("loud", 1000), 1).await.unwrap();
    }
    let of = |jobs: &[Job], organisation: &str| jobs.iter().filter(|job| job.organisation == organisation).count();
    store.add_job("quiet1", &job("quiet", 1002), 1).await.unwrap();
    store.add_job("later", &job("quiet", 9000), 1).await.unwrap();
    let claimed = store.claim_jobs("s3", Line::Deliveries, 1010, 500, 10).await.unwrap();
    assert_eq!(of(&claimed, "quiet"), 1, "{claimed:?}");
    assert!(of(&claimed, "loud") > 0);
    // However slow its receivers are, it has a share of the places and no more.
    let mut loud = of(&claimed, "loud");
    for _ in 0..10 {
        loud += of(&store.claim_jobs("s3", Line::Deliveries, 1020, 500, 32).await.unwrap(), "loud");
    }
    assert_eq!(loud, SHARE as usize);
    store.add_job("quiet2", &job("quiet", 1030), 1).await.unwrap();
    let claimed = store.claim_jobs("s3", Line::Deliveries, 1030, 500, 1).await.unwrap();
    assert_eq!(claimed.iter().map(|job| job.id.as_str()).collect::<Vec<_>>(), ["quiet2"]);
    // Those whose worker went away are taken up again.
    store.finish_job("quiet2", 1, 1040).await.unwrap();
    let again = store.claim_jobs("s4", Line::Deliveries, 1600, 500, 40).await.unwrap();
    assert!(again.iter().any(|job| job.id == "quiet1" && job.attempts == 2), "{again:?}");
}

async fn a_session_ends_with_its_sandbox_and_goes_with_all_that_it_said(store: &Store) {
    let mut sandbox = sandbox(None, 40);
    store.insert_sandbox(&sandbox, None).await.unwrap();
    let session = Session {
        id: "session_1".into(),
        organisation: "o".into(),
        sandbox: sandbox.id.to_string(),
        provider: "fake".into(),
        template: "base".into(),
        created_at: from_millisecond(40),
        closed_at: None,
        owns_sandbox: false,
    };
    store.insert_session(&session).await.unwrap();
    assert_eq!(store.count_sessions_of(sandbox.id.as_str()).await.unwrap(), 1);
    let said = |seq| JournalEntry {
        seq,
        at: from_millisecond(40),
        message: Message::Log { stream: Stream::Stdout, content: "ä".repeat(100) },
    };
    let entries: Vec<JournalEntry> = (1..=600).map(said).collect();
    let bytes = store.add_journal("session_1", &entries).await.unwrap();
    assert_eq!(store.journal_bytes("session_1").await.unwrap(), bytes);
    // The oldest entries give way, the newest stay.
    assert_eq!(store.shorten_journal("session_1", bytes / 2).await.unwrap(), bytes / 2);
    let left = store.journal("session_1", 0, 1000).await.unwrap();
    assert_eq!((left.len(), left[0].seq, left[299].seq), (300, 301, 600));
    assert_eq!(store.journal_bytes("session_1").await.unwrap(), bytes / 2);

    store.close_sessions_of_destroyed(50).await.unwrap();
    assert_eq!(store.session("o", "session_1").await.unwrap().unwrap().closed_at, None);
    sandbox.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut sandbox, None).await.unwrap(), Written::Done);
    store.close_sessions_of_destroyed(50).await.unwrap();
    store.close_sessions_of_destroyed(60).await.unwrap();
    let ended = store.session("o", "session_1").await.unwrap().unwrap();
    assert_eq!(ended.closed_at, Some(from_millisecond(50)));
    let oldest = store.oldest_closed_session_of(sandbox.id.as_str()).await.unwrap();
    assert_eq!(oldest.as_deref(), Some("session_1"));
    assert!(store.sessions_closed_before(50, 10).await.unwrap().is_empty());
    assert_eq!(store.sessions_closed_before(51, 10).await.unwrap(), ["session_1"]);
    store.remove_session("session_1").await.unwrap();
    assert!(store.session("o", "session_1").await.unwrap().is_none());
    // Entries that come after the end leave nothing.
    store.add_journal("session_1", &entries).await.unwrap_err();
    assert_eq!(store.last_journal("session_1").await.unwrap(), 0);
}

async fn events_come_in_order_and_from_any_number_on(store: &Store) {
    let made = sandbox(None, 40);
    let filter = EventFilter { sandbox: Some(made.id.to_string()), ..EventFilter::default() };
    for _ in 0..3 {
        store.add_event(&event(&made)).await.unwrap();
    }
    let all = store.events(&filter, 0, 10).await.unwrap();
    assert_eq!(all.len(), 3);
    assert_eq!(store.events(&filter, all[0].seq, 10).await.unwrap(), all[1..]);
    assert_eq!(store.last_event().await.unwrap(), all[2].seq);
}

async fn use_is_kept_in_spans(store: &Store) {
    let mut made = sandbox(None, 50);
    made.organisation = "billed".into();
    store.insert_sandbox(&made, None).await.unwrap();
    let span = Span {
        organisation: "billed".into(),
        sandbox: made.id.to_string(),
        owner: Some("ada".into()),
        from: from_millisecond(1000),
        to: from_millisecond(3000),
        rate: Rate { cpus: 0.5, memory: 1 << 30, disk: 0 },
    };
    assert_eq!(
        store.update_sandbox_along(&mut made, Along { span: Some(&span), ..Along::default() }).await.unwrap(),
        Written::Done
    );
    let spans = store.usage_spans("billed", None, from_millisecond(2000), from_millisecond(9000)).await.unwrap();
    assert_eq!(spans, [span]);
    assert!(
        store.usage_spans("billed", None, from_millisecond(3000), from_millisecond(9000)).await.unwrap().is_empty()
    );
}

async fn activity_never_goes_back(store: &Store) {
    let made = sandbox(None, 60);
    store.insert_sandbox(&made, None).await.unwrap();
    store.note_activity(&[(made.id.clone(), 500)]).await.unwrap();
    store.note_activity(&[(made.id.clone(), 400)]).await.unwrap();
    let read = store.sandbox_by_id(&made.id).await.unwrap().unwrap();
    assert_eq!(read.last_activity_at.as_millisecond(), 500);
}

async fn whole_contract(store: &Store) {
    a_name_belongs_to_one(store).await;
    who_writes_with_an_old_generation_is_told(store).await;
    of_many_writers_exactly_one_wins(store).await;
    the_same_idempotency_key_leads_to_the_first(store).await;
    lists_are_filtered_and_go_on_where_they_stopped(store).await;
    many_labels_are_one_question(store).await;
    what_is_old_goes_a_few_at_a_time_and_the_rest_stays(store).await;
    a_pool_member_is_taken_once(store).await;
    a_job_is_done_by_one_worker_and_found_again_when_it_dies(store).await;
    upkeep_does_not_wait_behind_deliveries(store).await;
    no_organisation_waits_behind_the_deliveries_of_another(store).await;
    a_session_ends_with_its_sandbox_and_goes_with_all_that_it_said(store).await;
    events_come_in_order_and_from_any_number_on(store).await;
    use_is_kept_in_spans(store).await;
    activity_never_goes_back(store).await;
    crate::contract_images::whole(store).await;
    crate::contract_checks::whole(store).await;
}

#[tokio::test]
async fn sqlite_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cove.db");
    whole_contract(&Store::sqlite(&path).await.unwrap()).await;
    // A second opening finds all migrations done.
    assert!(Store::sqlite(&path).await.unwrap().last_event().await.unwrap() > 0);
}

#[tokio::test]
async fn postgresql_keeps_the_contract() {
    let Some(postgres) = Postgres::start() else { return };
    // Two servers at once: one migrates, the other waits.
    let (one, two) = tokio::join!(Store::open(postgres.url()), Store::open(postgres.url()));
    let (one, two) = (one.unwrap(), two.unwrap());
    whole_contract(&one).await;
    assert!(two.last_event().await.unwrap() > 0);
    one.close().await;
    two.close().await;
}
