//! TLS of our own, for clients that speak nothing else: a certificate of the operator's, or a local authority that is
//! made on first use and that the operator's clients are told to trust.
//!
//! ```text
//!   source: files, or authority ─▶ certificate ─▶ keeper ─▶ handshake ─▶ host: is it ours? ─▶ the doors
//! ```
//!
//! * [`authority`]: the local authority and the certificates it signs
//! * [`certificate`]: what can be read off one; [`look`]: which one a server shows
//! * [`keeper`]: the one that is shown, changed while running
//! * [`host`]: who is meant, asked before any door; [`record`]: where the server listens, for `cove tls`
//!
//! A wildcard must have two labels after it or clients refuse it, so where the domain is a single word (`localhost`)
//! names are below `cove.` of it.

pub mod authority;
pub mod certificate;
pub mod host;
pub mod keeper;
pub mod look;
pub mod record;

use std::path::PathBuf;

pub use authority::Authority;
pub use keeper::{Keeper, Source};

/// In a request's extensions: it came through TLS of ours.
#[derive(Debug, Clone, Copy)]
pub struct Secure;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Pem { path: PathBuf, what: &'static str, reason: String },
    #[error("{} is missing; put it back, or remove {} for an authority that clients must trust anew", missing.display(), folder.display())]
    Half { missing: PathBuf, folder: PathBuf },
    #[error("sign a certificate for {domain}: {reason}")]
    Sign { domain: String, reason: String },
    #[error("read the certificate: {0}")]
    Read(String),
    #[error("use the certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// The domain as certificates can bear it: without a port, and of two words at least.
pub fn certified_domain(domain: &str) -> String {
    let name = domain.split(':').next().unwrap_or_default();
    if name.contains('.') { name.to_owned() } else { format!("cove.{name}") }
}
