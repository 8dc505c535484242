//! Doing a push: pack, then send.

use std::time::Duration;

use super::under_way::UnderWay;
use super::{Push, State};
use crate::build::{Credentials, Level, Log};
use crate::image::SourceError;
use crate::image::source::{Outward, Progress, Tenths};
use crate::{App, Caller, Error, Scope};

/// The kind of job that pushes.
pub const PUSH_JOB: &str = "image.push";
/// A job that was begun this often and never came to an end is given up.
const LIVES: i64 = 5;
/// How often a push of another server's hand is looked at, for its end.
const LOOK: Duration = Duration::from_secs(5);

impl App {
    /// The job of a push, from the first time or after a crash.
    pub(crate) async fn run_push(&self, id: &str, life: i64) -> Result<(), Error> {
        let push = self.store().push(id).await?.filter(|push| push.state == State::Pushing);
        let Some(push) = push else {
            self.pushes().remove(id);
            return Ok(());
        };
        if life > LIVES {
            return self.fail_push(push, "the server ended in the middle of it, again and again").await;
        }
        let place = self.pushes().place(id);
        let _turn = tokio::select! {
            turn = self.pushes().turn(&push.organisation) => turn,
            () = place.cancelled.cancelled() => {
                self.pushes().remove(id);
                return Ok(());
            }
            () = self.ending().cancelled() => return Err(Error::exhausted("the server ends")),
        };
        let done = Box::pin(self.try_push(push, &place)).await;
        if !done.as_ref().is_err_and(is_passing) {
            self.pushes().remove(id);
        }
        done
    }

    async fn fail_push(&self, push: Push, why: &str) -> Result<(), Error> {
        let id = push.id.clone();
        self.conclude_push(Push { state: State::Error, failure: Some(why.to_owned()), ..push }).await?;
        self.pushes().remove(&id);
        Ok(())
    }

    async fn try_push(&self, push: Push, place: &UnderWay) -> Result<(), Error> {
        let credentials = place.credentials.lock().expect("no panic while held").clone();
        if push.is_confidential && credentials.is_none() {
            let why = "the server was started anew, and credentials are kept in memory alone: push again";
            return self.fail_push(push, why).await;
        }
        let secrets = credentials.iter().map(|who| who.password.clone().into_bytes());
        let log = Log::open(self.store().clone(), self.clock().clone(), &push.id, secrets, place.news.clone()).await?;
        let limit = Duration::from_secs(self.config().builds.timeout_seconds.max(1));
        let sending = tokio::time::timeout(limit, Box::pin(self.pack_and_send(&push, credentials.as_ref(), &log)));
        let outcome = tokio::select! {
            outcome = log.writing(sending) => match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(Error::invalid("push", format!("it took longer than {} s", limit.as_secs()))),
            },
            // The row says why.
            () = place.cancelled.cancelled() => return Ok(()),
            () = self.push_ended_elsewhere(&push.id) => return Ok(()),
            () = self.ending().cancelled() => return Err(Error::exhausted("the server ends")),
        };
        let ended = match outcome {
            Ok(digest) => {
                log.info(None, &format!("pushed {} as {digest}", push.image));
                Push { state: State::Done, digest: Some(digest), ..push }
            }
            // Begun again when the database answers.
            Err(error) if is_passing(&error) => return Err(error),
            Err(error) => {
                if let Some(detail) = error.detail() {
                    tracing::error!(push = push.id, detail, "a push failed by a fault of this server");
                }
                let message = log.cover(&sentence(&error));
                log.say(Level::Error, None, &message);
                Push { state: State::Error, failure: Some(message), ..push }
            }
        };
        log.flush().await?;
        self.conclude_push(ended).await?;
        Ok(())
    }

    /// Returns the digest of the manifest that the registry has then.
    async fn pack_and_send(&self, push: &Push, who: Option<&Credentials>, log: &Log) -> Result<String, Error> {
        let organisation = push.organisation.clone();
        let caller = Caller { organisation, key: "push".into(), scopes: vec![Scope::Read] };
        let template = self.template(&caller, &format!("{}:{}", push.template, push.build)).await?;
        log.info(None, &format!("pack {}", push.name));
        let packed = self.pack_template(&push.organisation, &template).await?;
        let bytes = packed.bytes();
        log.info(None, &format!("push {} ({:.1} MiB)", push.image, bytes as f64 / f64::from(1u32 << 20)));
        let tenths = Tenths::default();
        let tell = |progress: Progress| {
            if let Some(percent) = tenths.next(progress) {
                log.info(None, &format!("pushed {percent} %"));
            }
        };
        let to = Outward { target: &push.image, who, as_operator: push.as_operator };
        let sent = self.builds().source().push(&packed, to, &tell).await;
        sent.map_err(|error| refused(error, push))
    }

    /// Returns when somebody has written an end: another server, by a request that came to it.
    async fn push_ended_elsewhere(&self, id: &str) {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.store().push(id).await {
                Ok(Some(push)) if !push.state.is_final() => {}
                Ok(_) => return,
                Err(error) => tracing::debug!(push = id, %error, "look whether a push has ended"),
            }
        }
    }
}

/// Whether the push is begun again for it.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. })
}

/// What the user reads. A field's name in front of it says nothing here.
fn sentence(error: &Error) -> String {
    match error {
        Error::Invalid { message, .. } => message.clone(),
        error => error.to_string(),
    }
}

/// A registry that did not take it, with what can be done about it.
fn refused(error: SourceError, push: &Push) -> Error {
    match error {
        SourceError::Refused(message) if message.contains("credentials") && !push.is_confidential => {
            Error::invalid("image", format!("{message}; give a user and a password who may push there"))
        }
        SourceError::NotFound(_) => Error::invalid(
            "image",
            format!("{}: the registry does not take it; its repository may have to be made there first", push.image),
        ),
        error => error.into(),
    }
}
