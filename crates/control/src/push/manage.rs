//! Starting, cancelling and following pushes.

use std::time::Duration;

use super::{PUSH_JOB, Push, State};
use crate::build::{Credentials, Level, LogEntry};
use crate::image::export::check_exportable;
use crate::job::NewJob;
use crate::sandbox::Listed;
use crate::store::Written;
use crate::store::templates::Beside;
use crate::{App, Caller, Error, Scope, random};

/// Lines of one page.
const PAGE: u32 = 1000;
/// Pushes of one organisation that have not ended.
const UNDER_WAY_MAX: i64 = 16;
/// Pushes of one organisation that have ended and are kept.
const KEPT: u32 = 100;

/// What is pushed where, and by whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPush {
    /// A template or snapshot: id, name or alias, with `:tag` or `:BUILD`.
    pub name: String,
    /// The name in the registry.
    pub image: String,
    pub credentials: Option<Credentials>,
}

/// A push with what it said.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub push: Push,
    pub lines: Vec<LogEntry>,
}

impl App {
    /// Begins to push; it goes on in the background.
    pub async fn start_push(&self, caller: &Caller, new: NewPush) -> Result<Push, Error> {
        caller.require(Scope::Write)?;
        let image = self.builds().source().target(&new.image);
        let image = image.map_err(|error| Error::invalid("image", error.to_string()))?;
        let template = self.template(caller, &new.name).await?;
        check_exportable(&template)?;
        let Some(build) = template.build.clone() else {
            return Err(Error::Unsupported(format!("template {} has no files of its own to push", template.name)));
        };
        if self.store().count_pushes_under_way(&caller.organisation).await? >= UNDER_WAY_MAX {
            return Err(Error::Quota {
                message: format!("the organisation has {UNDER_WAY_MAX} pushes that are not finished; wait for some"),
            });
        }
        let push = Push {
            id: random::id("push"),
            organisation: caller.organisation.clone(),
            template: template.id,
            name: template.name,
            build,
            image,
            state: State::Pushing,
            server: self.server().to_owned(),
            is_confidential: new.credentials.is_some(),
            as_operator: caller.may(Scope::Operator),
            digest: None,
            failure: None,
            created_at: self.now(),
            finished_at: None,
        };
        let place = self.pushes().place(&push.id);
        *place.credentials.lock().expect("no panic while held") = new.credentials;
        let asked = self.audit_entry(caller, "template.push", &push.template);
        let written = self.store().insert_push(&push, Beside { audit: Some(&asked), event: None }).await;
        if let Err(error) = written {
            self.pushes().remove(&push.id);
            return Err(error);
        }
        self.queue_push(&push).await?;
        // The loop would find it a quarter of a second later.
        let app = self.clone();
        self.tasks().spawn(async move {
            if let Err(error) = app.work().await {
                tracing::debug!(%error, "look for jobs");
            }
        });
        Ok(push)
    }

    async fn queue_push(&self, push: &Push) -> Result<(), Error> {
        self.queue(NewJob {
            kind: PUSH_JOB.into(),
            subject: push.id.clone(),
            organisation: push.organisation.clone(),
            server: Some(self.server().to_owned()),
            unique_key: Some(format!("push/{}", push.id)),
            run_at: self.now(),
            payload: serde_json::Value::Null,
        })
        .await
    }

    /// Pushes that were begun and have no job, because the server died before it was queued, or could not write it.
    pub(crate) async fn take_up_pushes(&self) -> Result<(), Error> {
        for push in self.store().pushes_under_way(self.server()).await? {
            self.queue_push(&push).await?;
        }
        Ok(())
    }

    /// One of the caller's own organisation.
    pub async fn push(&self, caller: &Caller, id: &str) -> Result<Push, Error> {
        let push = self.store().push(id).await?;
        let push = push.filter(|push| push.organisation == caller.organisation);
        push.ok_or_else(|| Error::not_found("push", id))
    }

    /// Newest first.
    pub async fn list_pushes(&self, caller: &Caller, cursor: Option<&str>, limit: u32) -> Result<Listed<Push>, Error> {
        self.store().pushes(&caller.organisation, cursor, limit).await
    }

    /// One that has not ended ends; one that has stays as it is.
    pub async fn cancel_push(&self, caller: &Caller, id: &str) -> Result<Push, Error> {
        caller.require(Scope::Write)?;
        let push = self.push(caller, id).await?;
        self.audit(caller, "push.cancel", &push.id).await?;
        let ended = Push { state: State::Cancelled, failure: Some("the push was cancelled".into()), ..push };
        let ended = self.conclude_push(ended).await?;
        if let Some(under_way) = self.pushes().find(&ended.id) {
            under_way.cancelled.cancel();
        }
        Ok(ended)
    }

    /// Writes how a push ended. One that has ended keeps how.
    pub(super) async fn conclude_push(&self, mut push: Push) -> Result<Push, Error> {
        push.finished_at = Some(self.now());
        if self.store().end_push(&push).await? == Written::Overtaken {
            return self.store().push(&push.id).await?.ok_or_else(|| Error::not_found("push", &push.id));
        }
        self.forget_old_pushes(&push.organisation).await;
        Ok(push)
    }

    async fn forget_old_pushes(&self, organisation: &str) {
        let forget = async {
            for push in self.store().old_pushes(organisation, KEPT).await? {
                self.store().remove_push(&push.id).await?;
            }
            Ok::<(), Error>(())
        };
        // The next push that ends does it.
        if let Err(error) = forget.await {
            tracing::warn!(organisation, %error, detail = error.detail(), "forget old pushes");
        }
    }

    /// Lines of a push after the `skip`th; waits for the first of them, or for the end of the push, or for a while. Whoever
    /// calls has made sure that the push is the caller's.
    pub async fn follow_push(&self, id: &str, skip: i64, patience: Duration) -> Result<Status, Error> {
        let deadline = tokio::time::Instant::now() + patience;
        loop {
            let news = self.pushes().find(id).map(|under_way| under_way.news.subscribe());
            let push = self.store().push(id).await?.ok_or_else(|| Error::not_found("push", id))?;
            let lines = self.store().build_logs(id, Level::Debug, skip, PAGE).await?;
            if !lines.is_empty() || push.state.is_final() || tokio::time::Instant::now() >= deadline {
                return Ok(Status { push, lines });
            }
            // Of a push that another server does nobody here is told.
            let wait = Duration::from_millis(500).min(deadline.saturating_duration_since(tokio::time::Instant::now()));
            match news {
                Some(mut news) => {
                    let _changed_or_over = tokio::time::timeout(wait, news.changed()).await;
                }
                None => tokio::time::sleep(wait).await,
            }
        }
    }
}
