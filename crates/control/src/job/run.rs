//! The background loops.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::SandboxId;

use super::at_work::Doing;
use super::{DELIVERY, Job, Line, NewJob};
use crate::build::BUILD_JOB;
use crate::check::CHECK_JOB;
use crate::provider::Ability;
use crate::push::PUSH_JOB;
use crate::sandbox::cause::{Cause, Code};
use crate::sandbox::state::Event;
use crate::sandbox::timers::{self, Expiry, IdleMeasure, Timer};
use crate::sandbox::work::{self, Verdict};
use crate::sandbox::{Sandbox, State};
use crate::upkeep::UPKEEP_JOB;
use crate::{App, Error, random};

/// How often the loop checks timers and jobs when nothing wakes it.
const TICK: Duration = Duration::from_millis(250);
/// How often activity is written.
const FLUSH: Duration = Duration::from_secs(2);
const WEBHOOKS: Duration = Duration::from_millis(500);
const HOUSEKEEPING: Duration = Duration::from_secs(30);
/// How long a lease lasts. The worker renews it while it lives.
const LEASE_MS: i64 = 60_000;
const RENEW: Duration = Duration::from_secs(15);
/// A job that fails this often is given up. A destroy never is: the sandbox would stay for ever.
const ATTEMPTS: i64 = 12;
const DESTROY: &str = "sandbox.destroy";
/// How often storage is looked at for the log.
const STORAGE: Duration = Duration::from_secs(2);
/// Jobs taken at one time.
const AT_ONCE: usize = 32;
/// The most deliveries at one time: a receiver may keep each one waiting.
pub(crate) const DELIVERIES: usize = 256;

impl App {
    /// Starts the loops: timers, jobs, departures, activity. They end with [`App::shutdown`].
    pub fn begin(&self) {
        let providers: Vec<_> = self.providers().cloned().collect();
        for provider in providers {
            let app = self.clone();
            self.tasks().spawn(async move {
                let ending = app.ending().clone();
                loop {
                    tokio::select! {
                        () = ending.cancelled() => return,
                        // Each in its own task: a job that waits for its sandbox's lock does not delay the others.
                        departure = provider.departure() => {
                            let note = app.clone();
                            app.tasks().spawn(async move { note.departed(&departure.id, &departure.ended).await });
                        }
                    }
                }
            });
        }
        self.begin_to_follow_rights();
        self.tasks().spawn(self.clone().keep_pools());
        self.every(crate::peer::EVERY, |app| async move { app.say_alive().await });
        self.every(crate::peer::EVERY, |app| async move { app.take_over().await });
        self.every(RENEW, |app| async move { app.renew_leases().await });
        self.every(TICK, |app| async move { app.work().await });
        self.every(crate::sandbox::repair::EVERY, |app| async move { app.finish_changes().await });
        self.every(FLUSH, |app| async move { app.flush_activity().await });
        self.every(WEBHOOKS, |app| async move { app.queue_webhooks().await });
        self.every(crate::sandbox::metrics::EVERY, |app| async move { app.sample_all().await });
        self.every(crate::sandbox::orphan::EVERY, |app| async move { app.remove_old_orphans().await });
        self.every(STORAGE, |app| async move { app.watch_storage().await });
        self.every(crate::provider::health::EVERY, |app| async move { app.check_providers().await });
        self.every(HOUSEKEEPING, |app| async move { app.keep_house().await });
        self.every(self.sweep_every(), |app| async move { app.sweep_layers().await });
        self.every(HOUSEKEEPING, |app| async move { app.forget_what_is_old().await });
    }

    fn every<F>(&self, pause: Duration, act: impl Fn(App) -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Error>> + Send,
    {
        let app = self.clone();
        self.tasks().spawn(async move {
            let ending = app.ending().clone();
            loop {
                if let Err(error) = act(app.clone()).await {
                    tracing::warn!(%error, detail = error.detail(), "background work");
                }
                tokio::select! {
                    () = ending.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        });
    }

    /// One round: turns due timers into jobs and does the due jobs.
    pub async fn work(&self) -> Result<(), Error> {
        self.queue_due_timers().await?;
        // Else what is done here would look as if its worker had gone.
        if self.at_work().is_overdue(self.now().as_millisecond(), LEASE_MS / 2) {
            self.renew_leases().await?;
        }
        for (doing, job) in self.claim(Line::Upkeep, AT_ONCE).await? {
            let app = self.clone();
            self.tasks().spawn(async move { app.run_job(job, doing).await });
        }
        let room = self.deliveries().available_permits().min(AT_ONCE);
        for (doing, job) in self.claim(Line::Deliveries, room).await? {
            let Ok(place) = Arc::clone(self.deliveries()).acquire_owned().await else { return Ok(()) };
            let app = self.clone();
            self.tasks().spawn(async move {
                app.run_job(job, doing).await;
                drop(place);
            });
        }
        Ok(())
    }

    async fn claim(&self, line: Line, most: usize) -> Result<Vec<(Doing, Job)>, Error> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let now = self.now().as_millisecond();
        let claimed = self.store().claim_jobs(self.server(), line, now, LEASE_MS, most as u32).await?;
        Ok(claimed.into_iter().filter_map(|job| Some((self.at_work().begin(&job.id)?, job))).collect())
    }

    /// Takes the jobs that this server was doing when it died. Nobody else does them, so it does not wait for the
    /// lease.
    pub async fn take_up_jobs(&self) -> Result<u64, Error> {
        let now = self.now().as_millisecond();
        self.store().release_jobs(self.server(), now, "the server ended in the middle of it").await
    }

    /// What this server does stays its own. What it does not do, whatever the rows say, is somebody else's to take up.
    pub async fn renew_leases(&self) -> Result<(), Error> {
        let now = self.now().as_millisecond();
        self.store().renew_leases(self.server(), &self.at_work().ids(), now + LEASE_MS).await?;
        self.at_work().is_renewed(now);
        Ok(())
    }

    pub async fn flush_activity(&self) -> Result<(), Error> {
        let _turn = self.activity().turn_to_write().await;
        let activity = self.activity().take();
        if activity.is_empty() {
            return Ok(());
        }
        let written = self.store().note_activity(&activity).await;
        if written.is_err() {
            self.activity().put_back(activity);
        }
        written
    }

    /// What is done now and then.
    pub async fn keep_house(&self) -> Result<(), Error> {
        self.recount().await?;
        self.forget_ended_sessions().await?;
        self.sweep_layers().await?;
        self.forget_waiting_builds().await?;
        // A start that could not queue its job.
        self.take_up_builds().await?;
        self.take_up_pushes().await?;
        self.forget_captures(self.now().as_millisecond() - crate::snapshot::NEVER_FINISHED_MS).await?;
        self.prune_old_checkpoints().await?;
        self.forget_checkpoints().await?;
        self.finish_volumes().await?;
        Ok(())
    }

    async fn queue_due_timers(&self) -> Result<(), Error> {
        let now = self.now();
        for mut sandbox in self.store().due_sandboxes(self.server(), now.as_millisecond(), 256).await? {
            if let Some(at) = self.activity().latest(&sandbox.id) {
                sandbox.last_activity_at = sandbox.last_activity_at.max(crate::clock::from_millisecond(at));
            }
            match timers::next(&sandbox) {
                Some((at, _)) if at <= now => {
                    self.queue(NewJob {
                        kind: "sandbox.timer".into(),
                        subject: sandbox.id.to_string(),
                        organisation: sandbox.organisation.clone(),
                        server: Some(self.server().to_owned()),
                        unique_key: Some(format!("timer/{}", sandbox.id)),
                        run_at: now,
                        payload: serde_json::Value::Null,
                    })
                    .await?;
                    // The job decides; until it has, the row is not checked again.
                    self.store().put_off(&sandbox.id, Some(now.as_millisecond() + 30_000)).await?;
                }
                next => self.store().put_off(&sandbox.id, next.map(|(at, _)| at.as_millisecond())).await?,
            }
        }
        Ok(())
    }

    pub(crate) async fn queue(&self, job: NewJob) -> Result<(), Error> {
        self.store().add_job(&random::id("job"), &job, self.now().as_millisecond()).await?;
        Ok(())
    }

    pub(crate) async fn retry_destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.queue(NewJob {
            kind: DESTROY.into(),
            subject: id.to_string(),
            organisation: String::new(),
            server: Some(self.server().to_owned()),
            unique_key: Some(format!("destroy/{id}")),
            run_at: crate::clock::after(self.now(), 1),
            payload: serde_json::Value::Null,
        })
        .await
    }

    async fn run_job(&self, job: Job, doing: Doing) {
        let (app, order) = (self.clone(), job.clone());
        // A job that panics has failed like any other.
        let outcome = self.detached(async move { app.do_job(&order).await }).await;
        if let Err(error) = self.note_outcome(&job, doing, outcome).await {
            tracing::warn!(job = %job.id, kind = %job.kind, %error, detail = error.detail(), "the outcome of a job is not noted; it is done again");
        }
    }

    /// Until its end is written the job stays this server's, and nobody does it again.
    async fn note_outcome(&self, job: &Job, doing: Doing, outcome: Result<(), Error>) -> Result<(), Error> {
        let (store, attempts) = (self.store(), job.attempts);
        let now = self.now().as_millisecond();
        let what = "note of a job's outcome";
        let Err(error) = outcome else {
            return self.insist(what, || store.finish_job(&job.id, attempts, now)).await;
        };
        // No text of the store has a NUL.
        let reason = error.detail().map(ToOwned::to_owned).unwrap_or_else(|| error.to_string()).replace('\0', "");
        if attempts >= ATTEMPTS && job.kind != DESTROY {
            tracing::error!(job = %job.id, kind = %job.kind, subject = %job.subject, reason, "job given up");
            self.insist(what, || store.fail_job(&job.id, attempts, now, &reason)).await
        } else {
            tracing::warn!(job = %job.id, kind = %job.kind, subject = %job.subject, attempts, reason, "job will be tried again");
            let again = crate::clock::after(self.now(), 1u64 << attempts.clamp(0, 9)).as_millisecond();
            // Before the row says so: whoever claims it in that moment does it.
            drop(doing);
            self.insist(what, || store.retry_job(&job.id, attempts, again, &reason)).await
        }
    }

    async fn do_job(&self, job: &Job) -> Result<(), Error> {
        let sandbox_id = || job.subject.parse::<SandboxId>().map_err(|_| Error::internal("job of no sandbox"));
        match job.kind.as_str() {
            "sandbox.timer" => self.timer_went_off(&sandbox_id()?).await,
            DESTROY => {
                let sandbox = self.store().sandbox_by_id(&sandbox_id()?).await?;
                let Some(sandbox) = sandbox else { return Ok(()) };
                let done = self.change_state(&sandbox.id, Event::Destroy, sandbox.cause.clone()).await?;
                match done.state {
                    State::Destroyed => Ok(()),
                    state => Err(Error::internal(format!("still {state}"))),
                }
            }
            DELIVERY => self.deliver_webhook(job).await,
            BUILD_JOB => Box::pin(self.run_build(&job.subject, job.attempts)).await,
            CHECK_JOB => Box::pin(self.run_check(job)).await,
            UPKEEP_JOB => Box::pin(self.run_upkeep(job)).await,
            PUSH_JOB => Box::pin(self.run_push(&job.subject, job.attempts)).await,
            other => Err(Error::internal(format!("no such job kind: {other}"))),
        }
    }

    /// Checks again while it holds the lock, then acts.
    async fn timer_went_off(&self, id: &SandboxId) -> Result<(), Error> {
        self.flush_activity().await?;
        let Some(sandbox) = self.store().sandbox_by_id(id).await? else { return Ok(()) };
        let now = self.now();
        let Some((at, timer)) = timers::next(&sandbox) else {
            return self.store().put_off(id, None).await;
        };
        if at > now {
            return self.store().put_off(id, Some(at.as_millisecond())).await;
        }
        if matches!(timer, Timer::Idle(_)) {
            match self.awake(&sandbox).await {
                Awake::Yes => {
                    self.touch(id);
                    return self.flush_activity().await;
                }
                Awake::LookAgain => {
                    return self.store().put_off(id, Some(now.as_millisecond() + work::SHORTEST_MS)).await;
                }
                Awake::No => {}
            }
        }
        let (event, cause) = verdict(&sandbox, timer, now);
        let pauses = self.is_able(&sandbox.provider, Ability::Pause);
        // Where the host cannot pause (as without root), the sandbox is stopped and its files are kept.
        let event = if event == Event::Pause && !pauses { Event::Stop } else { event };
        match self.change_state(id, event, cause).await {
            Ok(_) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether something goes on that nobody has noted: a request under way, or what the sandbox counts beside requests.
    async fn awake(&self, sandbox: &Sandbox) -> Awake {
        if self.activity().is_attended(&sandbox.id) {
            return Awake::Yes;
        }
        match sandbox.timers.idle_measure {
            IdleMeasure::Requests => Awake::No,
            IdleMeasure::RequestsAndProcesses if self.has_running_processes(sandbox).await => Awake::Yes,
            IdleMeasure::RequestsAndProcesses => Awake::No,
            // Every look before this one has noted what it saw. Without one, as after a restart or with a very short time,
            // it takes two.
            IdleMeasure::RequestsAndWork => match self.work_of(sandbox).await {
                Ok(Verdict::Works) => Awake::Yes,
                Ok(Verdict::TooSoon) => Awake::LookAgain,
                // One that cannot be looked at has nothing that goes on.
                Ok(Verdict::Waits) | Err(_) => Awake::No,
            },
        }
    }
}

/// What an idle timer finds.
enum Awake {
    Yes,
    No,
    /// It cannot be told yet.
    LookAgain,
}

fn verdict(sandbox: &Sandbox, timer: Timer, now: crate::clock::Timestamp) -> (Event, Cause) {
    let event = |expiry: Expiry| match expiry {
        Expiry::Destroy => Event::Destroy,
        Expiry::Pause => Event::Pause,
        Expiry::Stop => Event::Stop,
    };
    let minutes = |seconds: Option<u64>| match seconds.unwrap_or(0) {
        seconds if seconds >= 120 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    };
    match timer {
        Timer::Lifetime(expiry) => (event(expiry), Cause::new(Code::Lifetime, "its lifetime was over", now)),
        Timer::Idle(expiry) => {
            let message = format!("idle for {}", minutes(sandbox.timers.idle_seconds));
            (event(expiry), Cause::new(Code::Idle, message, now))
        }
        Timer::Archive => {
            let message = format!("stopped for {}", minutes(sandbox.timers.archive_after_seconds));
            (Event::Archive, Cause::new(Code::Retention, message, now))
        }
        Timer::Delete => {
            let message = format!("stopped for {}", minutes(sandbox.timers.delete_after_seconds));
            (Event::Destroy, Cause::new(Code::Retention, message, now))
        }
    }
}
