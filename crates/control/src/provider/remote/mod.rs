//! Sandboxes of services elsewhere.
//!
//! Every such service makes, lists and removes sandboxes, runs commands in them and moves files; most also lead to a port
//! inside. [`Service`] is that much of one, by its own calls, and is all that the file of a service has to write. The rest
//! is the same for all and is here:
//!
//! ```text
//!   Provider ── Remote ──┬── Service: create · list · stop · run · read · write …       the service's own HTTP
//!                        ├── keep: time given again and again, ends that nobody asked for
//!                        └── Link, one for each sandbox ── Connect
//!                              ├── tunnel: our guest inside, through a port of the sandbox   everything works
//!                              └── deputy: the guest's protocol, answered here by the        commands and files
//!                                          service's own calls
//! ```
//!
//! The doors speak the guest's protocol and nothing else, so what differs between services ends at [`Link`]. The tunnel is
//! the normal way: the static guest is uploaded and started by the service's own calls. Where a service has no way to a port,
//! or the guest cannot run, a deputy answers: what has no counterpart there is refused with a sentence. See ADR 20.
//!
//! * [`service`]: what a service must be able to do; [`client`]: its HTTP, with retries and limits
//! * [`link`]: how one sandbox is reached; [`tunnel`], [`deputy`]: the two ways; [`install`]: brings the guest in
//! * [`keep`]: what must be done while nobody asks; [`provide`]: the provider

pub mod client;
mod deputy;
mod install;
mod keep;
mod link;
mod provide;
pub mod service;
mod tunnel;
pub mod words;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

pub use self::client::{Client, Trouble};
use self::keep::Keep;
use self::link::Link;
pub use self::link::PORT;
pub use self::service::{Found, Input, Output, Piece, Run, Running, Service, Way};
pub use self::tunnel::websocket;
use super::{Handle, ProviderError, SandboxId};
use crate::config::key::{Kind as Value, SectionKey};

/// The label by which a service's sandbox is known to be one of ours, with our id for it as its value.
pub const LABEL: &str = "cove-sandbox";

/// Keys that every service's section has.
pub const GUEST: SectionKey = SectionKey::new("guest", Value::Switch);
pub const LEASE: SectionKey = SectionKey::new("lease_seconds", Value::Integer);

/// How long a service keeps a sandbox running after the last word of this server.
pub const LEASE_DEFAULT: u64 = 3600;

/// Abilities that no service gives to its callers.
pub const NO_ARCHIVE: &str = "its files stay at the service; `cove migrate` copies them elsewhere";
pub const NO_LAYERS: &str = "the service keeps files in a form of its own, which is not to be had as layers";
pub const NO_VOLUMES: &str = "volumes of this server are on its own disks; copy files with `cove cp`";
pub const NO_MANIFEST: &str = "only who has the disk can vouch for what is on it";
pub const NO_RESIZE: &str = "the service gives a sandbox its size once, when it is made";

/// Whether our guest is to be brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bringing {
    Wanted,
    /// The operator wants the service's own calls alone.
    Unwanted,
}

/// A provider whose sandboxes are a service's.
pub struct Remote {
    name: String,
    service: Arc<dyn Service>,
    bringing: Bringing,
    /// What tokens of tunnels are made of: whoever has it can open the sandboxes anyway.
    secret: String,
    links: Mutex<HashMap<String, Arc<Link>>>,
    keep: Keep,
}

impl Remote {
    /// `secret` is the key of the service.
    pub fn new(name: &str, service: Arc<dyn Service>, bringing: Bringing, secret: String) -> Remote {
        let keep = Keep::new(service.lease());
        Remote { name: name.to_owned(), service, bringing, secret, links: Mutex::default(), keep }
    }

    /// How a sandbox of the service is reached.
    fn link(&self, name: &str) -> Arc<Link> {
        let mut links = self.links.lock().expect("no panic while held");
        let make = || {
            let token = words::proof(&self.secret, name);
            Arc::new(Link::new(Arc::clone(&self.service), name.to_owned(), token, self.bringing))
        };
        Arc::clone(links.entry(name.to_owned()).or_insert_with(make))
    }

    fn forget(&self, name: &str) {
        self.links.lock().expect("no panic while held").remove(name);
    }

    /// The handle of a sandbox of the service.
    fn handle(&self, name: &str) -> Handle {
        Handle::new(format!("{}:{name}", self.service.kind().name))
    }

    /// The service's name for a sandbox. By its handle, or, where that was never noted, by the label with our id: a service
    /// may give names that look like our ids, so a handle says which of the two it is.
    async fn name_of(&self, handle: &Handle) -> Result<Option<String>, ProviderError> {
        let prefix = self.service.kind().name;
        if let Some(name) = handle.as_str().strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':')) {
            return Ok(Some(name.to_owned()));
        }
        let Ok(id) = handle.as_str().parse::<SandboxId>() else { return Ok(None) };
        let found = self.service.list(Some(&id)).await?;
        Ok(found.into_iter().find(|found| found.id == id).map(|found| found.name))
    }

    async fn known(&self, handle: &Handle) -> Result<String, ProviderError> {
        self.name_of(handle).await?.ok_or_else(|| ProviderError::NotFound(handle.clone()))
    }
}
