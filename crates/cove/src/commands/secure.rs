//! TLS of `cove serve`: where it listens, whose certificate it shows, and what its clients must trust.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use cove_control::clock::Timestamp;
use cove_control::tls::{self, Authority, TlsError};
use tokio::net::TcpListener;

use crate::complaint::Complaint;
use crate::render::print;

/// Part of `cove serve`'s own flags.
#[derive(Debug, Args)]
pub struct Flags {
    /// Listen with TLS here too; with a local authority made on first use, unless there is a certificate of yours
    #[arg(long, value_name = "ADDRESS", env = "COVE_TLS")]
    tls: Option<String>,
    /// A certificate for DOMAIN and *.DOMAIN, with its chain, in PEM
    #[arg(long, value_name = "FILE", env = "COVE_TLS_CERTIFICATE", requires = "tls_key", requires = "tls")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", env = "COVE_TLS_KEY", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
}

type Secure = (TcpListener, Arc<tls::ServerConfig>);

impl Flags {
    /// The socket and what it shows; `None` where nobody asked for TLS.
    pub async fn open(&self, data: &Path, domain: &str) -> Result<Option<Secure>, Complaint> {
        let Some(address) = &self.tls else { return Ok(None) };
        let complain = |error: TlsError| Complaint::failed(error.to_string());
        let listener = TcpListener::bind(address)
            .await
            .map_err(|error| Complaint::failed(format!("listen with TLS on {address}: {error}")))?;
        let port = listener.local_addr()?.port();
        let config = match (&self.tls_certificate, &self.tls_key) {
            (Some(certificate), Some(key)) => tls::from_files(certificate, key).map_err(complain)?,
            _ => {
                let authority = Authority::open(&data.join("tls"), Timestamp::now()).map_err(complain)?;
                let config = authority.certify(domain, Timestamp::now()).map_err(complain)?;
                let name = tls::certified_domain(domain);
                print(&format!("and with TLS at https://api.{name}:{port}; clients trust it with"))?;
                print(&format!("  export E2B_DOMAIN={name}:{port}"))?;
                print(&format!("  export SSL_CERT_FILE={}", authority.bundle_file().display()))?;
                print(&format!("  export NODE_EXTRA_CA_CERTS={}", authority.certificate_file().display()))?;
                config
            }
        };
        Ok(Some((listener, config)))
    }
}
