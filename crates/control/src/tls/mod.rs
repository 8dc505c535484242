//! TLS for clients that need it: with the operator's certificate, or with a local authority that is made on first use
//! and that clients must be configured to trust.
//!
//! ```text
//!   source: files, or authority ─▶ certificate ─▶ keeper ─▶ handshake ─▶ host: is it ours? ─▶ the doors
//! ```
//!
//! * [`authority`]: the local authority and the certificates it signs
//! * [`certificate`]: reads certificates; [`look`]: which one a server presents
//! * [`keeper`]: the certificate in use, replaced while the server runs
//! * [`host`]: checks the host before any door; [`record`]: where the server listens, for `cove tls`
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

/// In a request's extensions: it came by TLS.
#[derive(Debug, Clone, Copy)]
pub struct Secure;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Pem { path: PathBuf, what: &'static str, reason: String },
    #[error("{} is missing; put it back, or remove {} for a new authority, which clients must trust", missing.display(), folder.display())]
    Half { missing: PathBuf, folder: PathBuf },
    #[error("sign a certificate for {domain}: {reason}")]
    Sign { domain: String, reason: String },
    #[error("read the certificate: {0}")]
    Read(String),
    #[error("use the certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// The domain as a certificate can name it: without a port, and with two labels at least.
pub fn certified_domain(domain: &str) -> String {
    let name = domain.split(':').next().unwrap_or_default();
    if name.contains('.') { name.to_owned() } else { format!("cove.{name}") }
}

/// Why a client for HTTP could not be made, in a sentence with its remedy: it needs the certificates of this system's
/// authorities, also where it will speak plain HTTP alone.
pub fn no_client(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let asked = ["SSL_CERT_FILE", "SSL_CERT_DIR"]
        .into_iter()
        .filter_map(|name| Some(format!("{name} is {:?}", std::env::var_os(name)?)))
        .collect::<Vec<_>>();
    let asked = if asked.is_empty() { String::new() } else { format!(" ({})", asked.join(", ")) };
    format!(
        "the certificates of this system's authorities cannot be read: {cause}{asked}; install the package \
         ca-certificates, or name a bundle in SSL_CERT_FILE"
    )
}
