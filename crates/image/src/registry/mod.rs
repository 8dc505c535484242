//! A client for registries: the OCI distribution API, as much as pulling and pushing images needs.
//!
//! A tenant names the registry, so everything about it is hostile: where it sends us (redirects, token realms), what it
//! sends (endless bodies, wrong sizes, other content), how it answers (401 for ever, `Retry-After: 1 year`).
//!
//! * `dial.rs`: every address is judged by the caller before it is dialled: names after they are resolved, addresses in
//!   URLs as they are. Plain HTTP only to hosts that may.
//! * `send.rs`: one request: credentials, redirects without them, retries.
//! * `auth.rs`: what a 401 asks for.
//! * `image.rs`: from a reference to a manifest and config for a platform; `blob.rs`: layers into files, resumed where
//!   they broke off; `push.rs`: the other way.
//!
//! A [`Registry`] holds the credentials and tokens of one tenant. It is not shared between tenants.

mod auth;
mod blob;
mod dial;
mod image;
mod push;
mod send;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::digest::Digest;
use crate::reference::{Names, Reference};
use crate::{config, manifest};

pub use auth::Credentials;
pub use blob::{Progress, open_layer};
pub use dial::Judge;
pub use image::{Inspected, Layer};
pub use push::Pushed;

/// How a registry is talked to.
#[derive(Clone)]
pub struct Options {
    /// Where names lead: mirrors are tried in their order.
    pub names: Names,
    /// By host, as it is in references and mirrors.
    pub credentials: BTreeMap<String, Credentials>,
    /// Hosts (`host` or `host:port`) that may be talked to without TLS, beside loopback.
    pub insecure: Vec<String>,
    /// Asked before any address is dialled.
    pub judge: Arc<dyn Judge>,
    /// Makes clients: for certificates and the user agent. Redirects, proxies and name resolution are set here. The process
    /// needs a default crypto provider (`rustls::crypto::CryptoProvider::install_default`).
    pub builder: Arc<dyn Fn() -> reqwest::ClientBuilder + Send + Sync>,
    /// How many layers are transferred at a time.
    pub parallel: usize,
    /// The largest image, as it is transferred.
    pub largest: u64,
    /// How often a request is tried.
    pub attempts: u32,
    /// The first pause between attempts; it doubles.
    pub pause: Duration,
    /// The longest pause that a registry may ask for.
    pub longest_pause: Duration,
    /// How long a peer may say nothing. How long a whole pull may take is the caller's to bound.
    pub silence: Duration,
    /// Blobs larger than this are pushed in pieces of this size.
    pub piece: u64,
}

impl Options {
    pub fn new(names: Names, judge: Arc<dyn Judge>) -> Self {
        Options {
            names,
            credentials: BTreeMap::new(),
            insecure: Vec::new(),
            judge,
            builder: Arc::new(reqwest::Client::builder),
            parallel: 4,
            largest: 32 << 30,
            attempts: 5,
            pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(60),
            silence: Duration::from_secs(60),
            piece: 64 << 20,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The judge's sentence.
    #[error("{host} may not be reached: {why}")]
    Forbidden { host: String, why: String },
    #[error("{url} is not https, and {host} is not among the hosts that may be talked to without")]
    Insecure { url: String, host: String },
    #[error("{what}: {why}")]
    Unreachable { what: String, why: String },
    #[error("{what}: the registry asks for credentials, or for others: {why}")]
    Unauthorized { what: String, why: String },
    #[error("{what}: the registry has none")]
    NotFound { what: String },
    #[error("{what}: the registry is busy and asks to wait for {} seconds", wait.as_secs())]
    Busy { what: String, wait: Duration },
    #[error("{what}: the registry answers {status}: {message}")]
    Answer { what: String, status: u16, message: String },
    /// It is not what it is called.
    #[error("{what}: {why}")]
    Content { what: String, why: String },
    #[error("{what}: {why}")]
    TooLarge { what: String, why: String },
    #[error("{what}: {why}")]
    Manifest { what: String, why: manifest::Refused },
    #[error("{what}: {why}")]
    Config { what: String, why: config::Refused },
    #[error("store a layer: {0}")]
    Disk(#[from] std::io::Error),
}

impl Error {
    /// Whether another server, or the same one a little later, may do better.
    fn is_passing(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Busy { .. })
            || matches!(self, Error::Answer { status, .. } if *status >= 500 || *status == 408)
    }

    /// Whether it is about this machine, so that no mirror can help.
    fn is_ours(&self) -> bool {
        matches!(self, Error::Disk(_) | Error::TooLarge { .. })
    }
}

/// One tenant's view of registries.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    /// One client per host and port: the judge wants to know both.
    clients: Mutex<HashMap<(String, u16, dial::Patience), reqwest::Client>>,
    /// What a host was found to speak, where it may be either.
    schemes: tokio::sync::Mutex<HashMap<String, &'static str>>,
    keys: Mutex<auth::Keys>,
}

impl Registry {
    pub fn new(options: Options) -> Self {
        let shared = Shared {
            options,
            clients: Mutex::default(),
            schemes: tokio::sync::Mutex::default(),
            keys: Mutex::default(),
        };
        Registry { shared: Arc::new(shared) }
    }

    pub fn options(&self) -> &Options {
        &self.shared.options
    }

    /// Where an image may be, in the order to try.
    fn endpoints(&self, reference: &Reference) -> Vec<Endpoint> {
        let all = self.shared.options.names.endpoints(reference.registry());
        all.iter().map(|text| Endpoint::new(text, reference.name())).collect()
    }
}

/// One repository on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Endpoint {
    host: String,
    /// With a mirror's prefix.
    repository: String,
}

impl Endpoint {
    fn new(text: &str, name: &str) -> Self {
        match text.split_once('/') {
            None => Endpoint { host: text.to_owned(), repository: name.to_owned() },
            Some((host, prefix)) => {
                let repository = format!("{}/{name}", prefix.trim_matches('/'));
                Endpoint { host: host.to_owned(), repository }
            }
        }
    }

    fn what(&self, target: &str) -> String {
        let separator = if target.starts_with("sha256:") { '@' } else { ':' };
        format!("{}/{}{separator}{target}", self.host, self.repository)
    }

    fn blob(&self, digest: &Digest) -> String {
        self.what(&digest.to_string())
    }
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
