//! The other servers of the same store.
//!
//! Only the server on its machine can act on a sandbox of the local engine; the sandbox's row has that server's id.
//! Every server writes a sign of life with its address. A request that reaches another server is sent on by the door
//! (`door/peer.rs`). Any server can answer from the store. What sandboxes start from comes to the server that starts
//! them ([`layers`]).

mod layers;
pub(crate) mod line;
pub(crate) mod proof;
pub(crate) mod trust;

use std::time::Duration;

use crate::clock::Timestamp;
use crate::sandbox::Sandbox;
use crate::store::Dialect;
use crate::{App, Error};

/// How often a server writes its sign of life.
pub(crate) const EVERY: Duration = Duration::from_secs(5);
/// A server without a sign of life for this long is down.
const SILENT_MS: i64 = 20_000;
/// What a server was making is given up by whoever waits for it, when the server was not heard of for this long.
const GIVEN_UP_MS: i64 = 60_000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub id: String,
    /// Where other servers reach it, if it has published that.
    pub url: Option<String>,
    pub seen_at: Timestamp,
}

impl App {
    /// Whether other servers may use the store too.
    pub(crate) fn shares_its_store(&self) -> bool {
        self.store().dialect() == Dialect::Postgres
    }

    pub(crate) async fn say_alive(&self) -> Result<(), Error> {
        self.store().note_server(self.server(), self.peer_url(), self.now().as_millisecond()).await
    }

    /// Takes jobs of dead servers that any server can do, without waiting for the lease.
    pub(crate) async fn take_over(&self) -> Result<(), Error> {
        if !self.shares_its_store() {
            return Ok(());
        }
        let now = self.now().as_millisecond();
        let jobs = self.store().release_jobs_of_the_dead(now - SILENT_MS, now).await?;
        if jobs > 0 {
            tracing::info!(jobs, "taken over from servers that are down");
        }
        Ok(())
    }

    /// Whether this server can act on a sandbox.
    pub(crate) fn is_here(&self, sandbox: &Sandbox) -> bool {
        sandbox.server == self.server() || !self.is_bound_to_host(&sandbox.provider)
    }

    /// The server that has the sandbox, if that is another one and it is alive.
    pub(crate) async fn owner_elsewhere(&self, sandbox: &Sandbox) -> Result<Option<Peer>, Error> {
        if self.is_here(sandbox) {
            return Ok(None);
        }
        let peer = self.store().peer(&sandbox.server).await?;
        Ok(peer.filter(|peer| self.is_alive(peer)))
    }

    pub(crate) fn is_alive(&self, peer: &Peer) -> bool {
        self.now().as_millisecond() - peer.seen_at.as_millisecond() < SILENT_MS
    }

    /// Servers with a sign of life since then are there.
    pub(crate) fn alive_since(&self) -> i64 {
        self.now().as_millisecond() - SILENT_MS
    }

    /// Whether work ([`Work`](crate::image::work::Work)) was another server's that does not come back soon.
    pub(crate) async fn is_work_of_the_dead(&self, work: &str) -> Result<bool, Error> {
        let Some((server, _)) = work.rsplit_once('/') else { return Ok(false) };
        if server == self.server() || !self.shares_its_store() {
            return Ok(false);
        }
        let peer = self.store().peer(server).await?;
        let silent = |peer: Peer| self.now().as_millisecond() - peer.seen_at.as_millisecond();
        Ok(peer.is_none_or(|peer| silent(peer) > GIVEN_UP_MS))
    }

    /// Refuses what only another server can do, and names that server.
    pub(crate) async fn check_here(&self, sandbox: &Sandbox) -> Result<(), Error> {
        if self.is_here(sandbox) {
            return Ok(());
        }
        let (id, server) = (sandbox.id.to_string(), sandbox.server.clone());
        let advice = match self.store().peer(&server).await? {
            // Its address in the servers' network is not for callers.
            Some(peer) if self.is_alive(&peer) => match peer.url {
                Some(_) => "ask there".into(),
                None => "ask there; its address is unknown: start it with --peer-url".into(),
            },
            Some(peer) => {
                let message = format!(
                    "sandbox {id} is on server {server}, which was last heard of at {}; start it again",
                    peer.seen_at
                );
                return Err(Error::exhausted(message));
            }
            None => "which was never heard of".into(),
        };
        Err(Error::Elsewhere { id, server, advice })
    }
}
