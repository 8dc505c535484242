//! TLS of our own, for clients that speak nothing else: a certificate of the operator's, or a local authority that is
//! made on first use and that the operator's clients are told to trust.
//!
//! * [`authority`]: the local authority and the certificates it signs
//!
//! A wildcard must have two labels after it or clients refuse it, so where the domain is a single word (`localhost`)
//! names are below `cove.` of it.

pub mod authority;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

pub use authority::Authority;

/// In a request's extensions: it came through TLS of ours.
#[derive(Debug, Clone, Copy)]
pub struct Secure;

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("{step} {}: {source}", path.display())]
    File { step: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{} holds no usable {what}: {reason}", path.display())]
    Pem { path: PathBuf, what: &'static str, reason: String },
    #[error("sign a certificate for {domain}: {reason}")]
    Sign { domain: String, reason: String },
    #[error("use the certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// The domain as certificates can bear it: without a port, and of two words at least.
pub fn certified_domain(domain: &str) -> String {
    let name = domain.split(':').next().unwrap_or_default();
    if name.contains('.') { name.to_owned() } else { format!("cove.{name}") }
}

/// What the server shows with a certificate of the operator's: PEM files, the chain with the leaf first.
pub fn from_files(chain: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let pem = |path: &Path, what, error: rustls::pki_types::pem::Error| TlsError::Pem {
        path: path.to_owned(),
        what,
        reason: error.to_string(),
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| pem(chain, "certificate", error))?;
    let key_bytes = PrivateKeyDer::from_pem_file(key).map_err(|error| pem(key, "private key", error))?;
    configure(certificates, key_bytes)
}

fn configure(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}
