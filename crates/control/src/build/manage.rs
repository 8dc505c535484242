//! Starting, cancelling and following builds.

use std::time::Duration;

use super::log::{Level, LogEntry};
use super::request::{Confidential, Recipe, Request};
use super::{Build, Failure, Kind, State};
use crate::event::Kind as EventKind;
use crate::job::NewJob;
use crate::sandbox::{Listed, NetworkPolicy};
use crate::store::Written;
use crate::store::builds::Unfinished;
use crate::store::templates::Beside;
use crate::template::Record;
use crate::{App, Caller, Error, Scope};

/// The kind of job that does builds.
pub const BUILD_JOB: &str = "build.run";
/// Lines of one page.
const PAGE: u32 = 1000;
/// A build that was made and never started is given up after this.
const FORGOTTEN_MS: i64 = 3600 * 1000;
/// Finished builds of one organisation whose logs are kept: each may have megabytes.
const BUILDS_KEPT: u32 = 200;

pub const SUPERSEDED: &str = "The build was canceled because it was superseded by a newer one.";

/// A build with what it said.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub build: Build,
    pub lines: Vec<LogEntry>,
}

impl App {
    /// Forgets the steps of the organisation's builds: the next builds do them anew, and what no template needs of them goes.
    /// Returns how many there were.
    pub async fn forget_steps(&self, caller: &Caller) -> Result<u64, Error> {
        caller.require(Scope::Write)?;
        self.audit(caller, "build.forget_steps", &caller.organisation).await?;
        // What is done from now on is remembered.
        let before = self.now().as_millisecond().saturating_add(1);
        let mut forgotten = 0;
        loop {
            match self.store().remove_old_steps(Some(&caller.organisation), before).await? {
                0 => return Ok(forgotten),
                some => forgotten += some,
            }
        }
    }

    /// One build of a template of the caller's own. Others may start sandboxes from a public one; how it was made, and
    /// what was said meanwhile, is its owner's. Operators own what is everybody's.
    pub async fn build(&self, caller: &Caller, template: &str, id: &str) -> Result<(Record, Build), Error> {
        let record = self.changeable_template(caller, template).await?;
        let build = self.store().build(&id.to_lowercase()).await?;
        let build = build.filter(|build| build.template == record.id);
        Ok((record, build.ok_or_else(|| Error::not_found("build", id))?))
    }

    /// Of a template of the caller's own.
    pub async fn template_builds(
        &self,
        caller: &Caller,
        template: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Build>, Error> {
        let record = self.changeable_template(caller, template).await?;
        self.store().builds_of_template(&record.id, cursor, limit.min(PAGE)).await
    }

    /// A build with lines of its log: of at least a level, from the `skip`th on.
    pub async fn build_status(
        &self,
        caller: &Caller,
        template: &str,
        id: &str,
        lines: (Level, i64, u32),
    ) -> Result<Status, Error> {
        let (_, build) = self.build(caller, template, id).await?;
        let (least, skip, limit) = lines;
        let lines = self.store().build_logs(&build.id, least, skip, limit.min(PAGE)).await?;
        Ok(Status { build, lines })
    }

    /// Lines of a build after the `skip`th; waits for the first of them, or for the end of the build, or for a while.
    /// Whoever calls has made sure that the build is the caller's.
    pub async fn follow_build(&self, id: &str, skip: i64, patience: Duration) -> Result<Status, Error> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let news = self.builds().find(id).map(|under_way| under_way.news.subscribe());
            let build = self.store().build(id).await?.ok_or_else(|| Error::not_found("build", id))?;
            let lines = self.store().build_logs(id, Level::Debug, skip, PAGE).await?;
            if !lines.is_empty() || build.state.is_final() || tokio::time::Instant::now() >= deadline {
                return Ok(Status { build, lines });
            }
            // Of a build that another server does nobody here is told.
            let wait = Duration::from_millis(500).min(deadline.saturating_duration_since(tokio::time::Instant::now()));
            match news {
                Some(mut news) => {
                    let _changed_or_over = tokio::time::timeout(wait, news.changed()).await;
                }
                None => tokio::time::sleep(wait).await,
            }
        }
    }

    /// Starts a build that waits. It goes on in the background; a newer one of the same template and tag ends it.
    pub async fn start_build(
        &self,
        caller: &Caller,
        template: &str,
        id: &str,
        mut request: Request,
        confidential: Confidential,
    ) -> Result<Build, Error> {
        caller.require(Scope::Write)?;
        request.check()?;
        confidential.check()?;
        request.is_confidential = !confidential.is_empty();
        if !request.allow.is_empty() {
            let network = NetworkPolicy { allow: request.allow.clone(), ..NetworkPolicy::open() };
            self.check_network(caller, &network).await?;
        }
        let record = self.changeable_template(caller, template).await?;
        let found = self.store().build(&id.to_lowercase()).await?;
        let found = found.filter(|build| build.template == record.id);
        let mut build = found.ok_or_else(|| Error::not_found("build", id))?;
        if build.state != State::Waiting {
            return Err(Error::invalid("build", "build is not in waiting state"));
        }
        for hash in request.files() {
            if self.store().build_file(&caller.organisation, hash).await?.is_none() {
                return Err(Error::invalid("steps", format!("the files {hash} were never sent")));
            }
        }
        self.check_storage(&caller.organisation, 0).await?;
        self.check_disk(&build.provider)?;
        build.state = State::Building;
        build.kind = kind_of(&request.recipe);
        build.server = self.server().to_owned();
        build.started_at = Some(self.now());
        let place = self.builds().place(&build.id);
        *place.confidential.lock().expect("no panic while held") = Some(confidential);
        let asked = self.audit_entry(caller, "template.build", &record.id);
        let started = self.store().start_build(&mut build, &request, Beside { audit: Some(&asked), event: None }).await;
        if !matches!(started, Ok(Written::Done)) {
            self.builds().remove(&build.id);
            let _other_state = started?;
            return Err(Error::invalid("build", "build is not in waiting state"));
        }
        self.supersede(&build).await?;
        self.queue_build(&build).await?;
        // The loop would find it a quarter of a second later.
        let app = self.clone();
        self.tasks().spawn(async move {
            if let Err(error) = app.work().await {
                tracing::debug!(%error, "look for jobs");
            }
        });
        Ok(build)
    }

    async fn queue_build(&self, build: &Build) -> Result<(), Error> {
        self.queue(NewJob {
            kind: BUILD_JOB.into(),
            subject: build.id.clone(),
            organisation: build.organisation.clone(),
            server: Some(self.server().to_owned()),
            unique_key: Some(format!("build/{}", build.id)),
            run_at: self.now(),
            payload: serde_json::Value::Null,
        })
        .await
    }

    /// Builds that were begun and have no job, because the server died before it was queued, or could not write it.
    pub(crate) async fn take_up_builds(&self) -> Result<(), Error> {
        for build in self.store().unfinished_builds(Unfinished::OfServer(self.server())).await? {
            // What captures a sandbox has no request, and ends with its server.
            if build.state == State::Building && self.store().build_request(&build.id).await?.is_some() {
                self.queue_build(&build).await?;
            }
        }
        Ok(())
    }

    /// Ends builds that a newer one of the same tag makes useless.
    async fn supersede(&self, newer: &Build) -> Result<(), Error> {
        for older in self.store().unfinished_builds(Unfinished::OfTemplate(&newer.template)).await? {
            let same_tag = older.tags.iter().any(|tag| newer.tags.contains(tag));
            let earlier = (older.created_at, &older.id) < (newer.created_at, &newer.id);
            if older.id != newer.id && same_tag && earlier {
                self.end_build(&older.id, SUPERSEDED).await?;
            }
        }
        Ok(())
    }

    /// A build that is not finished ends; one that is stays as it is.
    pub async fn cancel_build(&self, caller: &Caller, template: &str, id: &str) -> Result<Build, Error> {
        caller.require(Scope::Write)?;
        let record = self.changeable_template(caller, template).await?;
        let found = self.store().build(&id.to_lowercase()).await?;
        let build = found.filter(|build| build.template == record.id).ok_or_else(|| Error::not_found("build", id))?;
        self.audit(caller, "build.cancel", &build.id).await?;
        self.end_build(&build.id, "the build was cancelled").await
    }

    /// Writes that a build ended without files, and stops whoever does it.
    pub(crate) async fn end_build(&self, id: &str, why: &str) -> Result<Build, Error> {
        let failure = Failure { step: None, message: why.to_owned() };
        let build = self.conclude_build(id, State::Cancelled, Some(failure)).await?;
        if let Some(under_way) = self.builds().find(id) {
            under_way.cancelled.cancel();
        }
        Ok(build)
    }

    /// The last state of a build that has no files. One that has its last state keeps it.
    pub(super) async fn conclude_build(
        &self,
        id: &str,
        state: State,
        failure: Option<Failure>,
    ) -> Result<Build, Error> {
        loop {
            let mut build = self.store().build(id).await?.ok_or_else(|| Error::not_found("build", id))?;
            if build.state.is_final() {
                return Ok(build);
            }
            build.state = state;
            build.failure = failure.clone();
            build.finished_at = Some(self.now());
            let record = self.store().template_by_id(&build.template).await?;
            let event = record.map(|record| self.template_event(&record, Some(&build), EventKind::TemplateFailed));
            let beside = Beside { audit: None, event: event.as_ref() };
            if self.store().update_build(&mut build, beside).await? == Written::Done {
                self.forget_files_of_build(&build.id).await;
                self.forget_old_builds(&build.organisation).await;
                return Ok(build);
            }
        }
    }

    /// Only of the newest builds of an organisation it is kept what they said, and those that failed. Of a template the newest
    /// stays in any case.
    pub(super) async fn forget_old_builds(&self, organisation: &str) {
        let forget = async {
            for build in self.store().old_builds(organisation, BUILDS_KEPT).await? {
                let newest = self.store().builds_of_template(&build.template, None, 1).await?.items;
                let is_newest = newest.first().is_some_and(|newest| newest.id == build.id);
                match build.state {
                    State::Error | State::Cancelled if !is_newest => self.store().remove_build(&build.id).await?,
                    _ => self.store().remove_build_logs(&build.id).await?,
                }
            }
            Ok::<(), Error>(())
        };
        // The next build that ends does it.
        if let Err(error) = forget.await {
            tracing::warn!(organisation, %error, detail = error.detail(), "forget old builds");
        }
    }

    /// Builds that wait although nobody will start them any more.
    pub(crate) async fn forget_waiting_builds(&self) -> Result<(), Error> {
        let before = self.now().as_millisecond() - FORGOTTEN_MS;
        for build in self.store().unfinished_builds(Unfinished::OfServer(self.server())).await? {
            if build.state == State::Waiting && build.created_at.as_millisecond() < before {
                self.end_build(&build.id, "the build was never started").await?;
            }
        }
        Ok(())
    }
}

fn kind_of(recipe: &Recipe) -> Kind {
    match recipe {
        Recipe::Image { .. } => Kind::Image,
        Recipe::Archive { .. } => Kind::Archive,
        Recipe::Steps { .. } => Kind::Steps,
        Recipe::Dockerfile { .. } => Kind::Dockerfile,
    }
}
