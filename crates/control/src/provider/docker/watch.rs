//! Sandboxes that end without a request: what the daemon tells, as it happens.
//!
//! ```text
//!   connected ─▶ the daemon's time ─▶ list: who has died, who runs ─▶ events since that time ─▶ … ─▶ cut off ─┐
//!       ▲                                                                                                     │
//!       └──────────────────────────────────── after a pause ◀────────────────────────────────────────────────┘
//! ```
//! Whoever runs is noted ([`Alive`]) by the launch or the look that saw it run, and an end is told once to whoever removes
//! that note. A stop on request removes it first. So nothing is told twice, and nothing is lost while the daemon is away:
//! the list after the next connection finds it. What ended while no server was there is found by the mark of its launch,
//! which an end that is known removes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::models::{EventMessage, SystemInfo};
use bollard::query_parameters::EventsOptionsBuilder;
use cove_protocol::SandboxId;
use futures::TryStreamExt as _;
use tokio::sync::mpsc::UnboundedSender;

use super::Inner;
use super::client::during;
use super::container::{Found, INSTALLATION, SANDBOX, Way};
use super::usage::{boot_time, ended};
use crate::provider::{Departure, Ended, ProviderError, Seen};

/// Between two attempts to reach a daemon; it doubles.
const AGAIN: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// Who runs, as far as anybody was told.
#[derive(Default)]
pub struct Alive(Mutex<HashSet<SandboxId>>);

impl Alive {
    pub fn note(&self, id: &SandboxId) {
        self.0.lock().expect("no panic while held").insert(id.clone());
    }

    /// Whether it was noted.
    pub fn forget(&self, id: &SandboxId) -> bool {
        self.0.lock().expect("no panic while held").remove(id)
    }

    fn all(&self) -> Vec<SandboxId> {
        self.0.lock().expect("no panic while held").iter().cloned().collect()
    }
}

/// Follows the daemon until nobody listens.
pub async fn follow(inner: Arc<Inner>, tell: UnboundedSender<Departure>) {
    let mut pause = AGAIN;
    while !tell.is_closed() {
        match inner.follow_once(&tell).await {
            Ok(()) => pause = AGAIN,
            Err(error) => {
                tracing::warn!(provider = inner.name, %error, "follow docker; trying again");
                pause = (pause * 2).min(LONGEST);
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = tell.closed() => return,
        }
    }
}

impl Inner {
    /// From a connection to its end.
    async fn follow_once(&self, tell: &UnboundedSender<Departure>) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        let info = docker.info().await.map_err(during("ask docker for its time"))?;
        self.catch_up(tell).await?;
        let installation = format!("{INSTALLATION}={}", self.installation);
        let filters = HashMap::from([
            ("type", vec!["container"]),
            ("event", vec!["die", "oom"]),
            ("label", vec![installation.as_str()]),
        ]);
        let options = EventsOptionsBuilder::new().since(&moment(&info)).filters(&filters).build();
        let mut events = std::pin::pin!(docker.events(Some(options)));
        while let Some(event) = events.try_next().await.map_err(during("follow docker's events"))? {
            let Some((id, what)) = news(&event) else { continue };
            match what {
                News::OutOfMemory => self.accounts.note_kill(&id),
                News::Died => self.look_at_the_dead(&id, tell).await?,
            }
        }
        Ok(())
    }

    /// What happened while nobody followed; and the proxy serves again whoever it served before this server's start.
    async fn catch_up(&self, tell: &UnboundedSender<Departure>) -> Result<(), ProviderError> {
        let mut running = HashSet::new();
        for found in self.all().await? {
            if !self.is_whole(&found).await? {
                continue;
            }
            self.alive.note(&found.sandbox);
            if found.state != Seen::Stopped {
                running.insert(found.sandbox.clone());
                self.serve_again(&found).await;
            }
        }
        for id in self.alive.all().into_iter().filter(|id| !running.contains(id)) {
            self.look_at_the_dead(&id, tell).await?;
        }
        Ok(())
    }

    async fn serve_again(&self, found: &Found) {
        let serve = async {
            let (Way::Proxy, Some(process)) = (&self.house().await?.way, found.process()) else { return Ok(()) };
            if self.gate.counters(&found.sandbox).is_some() {
                return Ok(());
            }
            let Some(note) = self.notes.read(&found.sandbox).await? else { return Ok(()) };
            self.gate.set(&found.sandbox, process, note.network()).await
        };
        if let Err(error) = serve.await {
            // It stays without a way out.
            tracing::warn!(sandbox = %found.sandbox, %error, "attach the egress proxy again");
        }
    }

    /// It may be about an earlier life, or have been asked for.
    async fn look_at_the_dead(&self, id: &SandboxId, tell: &UnboundedSender<Departure>) -> Result<(), ProviderError> {
        if !self.alive.forget(id) {
            return Ok(());
        }
        let found = match self.found(id).await {
            Ok(found) => found,
            Err(error) => {
                // The next connection finds it.
                self.alive.note(id);
                return Err(error);
            }
        };
        let here = self.client.known_facts().is_some_and(|facts| facts.far.is_none());
        let ended = match found {
            Some(found) if found.state != Seen::Stopped => {
                self.alive.note(id);
                return Ok(());
            }
            Some(found) => ended(&found, if here { boot_time() } else { None }),
            None => Ended::Vanished,
        };
        self.lines.forget(id);
        self.gate.leave(id).await?;
        self.forget_life(id).await?;
        // Nobody listens: the server ends.
        let _unheard = tell.send(Departure { id: id.clone(), ended });
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    Died,
    OutOfMemory,
}

/// Whom an event is about; the labels of a container are among its attributes.
fn news(event: &EventMessage) -> Option<(SandboxId, News)> {
    let what = match event.action.as_deref()? {
        "die" => News::Died,
        "oom" => News::OutOfMemory,
        _ => return None,
    };
    let attributes = event.actor.as_ref()?.attributes.as_ref()?;
    Some((attributes.get(SANDBOX)?.parse().ok()?, what))
}

/// The daemon's own time, as it wants it: seconds and nanoseconds since 1970.
fn moment(info: &SystemInfo) -> String {
    let now = info.system_time.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let now = now.unwrap_or_else(jiff::Timestamp::now);
    format!("{}.{:09}", now.as_second(), now.subsec_nanosecond())
}

#[cfg(test)]
mod tests {
    use bollard::models::EventActor;

    use super::*;

    #[test]
    fn an_end_is_told_once() {
        let (alive, id) = (Alive::default(), "a".repeat(20).parse().unwrap());
        assert!(!alive.forget(&id), "nobody was told that it runs");
        alive.note(&id);
        alive.note(&id);
        assert!(alive.forget(&id));
        assert!(!alive.forget(&id));
    }

    #[test]
    fn an_event_names_the_sandbox_by_its_label() {
        let event = |action: &str, sandbox: &str| EventMessage {
            action: Some(action.into()),
            actor: Some(EventActor {
                attributes: Some(HashMap::from([(SANDBOX.to_owned(), sandbox.to_owned())])),
                ..EventActor::default()
            }),
            ..EventMessage::default()
        };
        let id = "b".repeat(20);
        assert_eq!(news(&event("die", &id)).unwrap(), (id.parse().unwrap(), News::Died));
        assert_eq!(news(&event("oom", &id)).unwrap().1, News::OutOfMemory);
        assert_eq!((news(&event("start", &id)), news(&event("die", "../x"))), (None, None));
        assert_eq!(news(&EventMessage::default()), None);
    }

    #[test]
    fn a_daemons_time_is_written_as_it_wants_it() {
        let info = SystemInfo { system_time: Some("1970-01-01T00:00:07.5+00:00".into()), ..SystemInfo::default() };
        assert_eq!(moment(&info), "7.500000000");
    }
}
