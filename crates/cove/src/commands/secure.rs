//! TLS of `cove serve`: where it listens, whose certificate it shows, and what its clients must trust.

use std::sync::Arc;

use cove_control::clock::Timestamp;
use cove_control::config::Config;
use cove_control::tls::{self, Authority, TlsError};
use tokio::net::TcpListener;

use crate::complaint::Complaint;
use crate::render::print;

type Secure = (TcpListener, Arc<tls::ServerConfig>);

/// The socket and what it shows; `None` where nobody asked for TLS.
pub async fn open(config: &Config) -> Result<Option<Secure>, Complaint> {
    let Some(address) = &config.tls.listen else { return Ok(None) };
    let complain = |error: TlsError| Complaint::failed(error.to_string());
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| Complaint::failed(format!("listen with TLS on {address}: {error}")))?;
    let port = listener.local_addr()?.port();
    let shown = match (&config.tls.certificate, &config.tls.key) {
        (Some(certificate), Some(key)) => tls::from_files(certificate, key).map_err(complain)?,
        _ => {
            let authority = Authority::open(&config.data.join("tls"), Timestamp::now()).map_err(complain)?;
            let shown = authority.certify(&config.domain, Timestamp::now()).map_err(complain)?;
            let name = tls::certified_domain(&config.domain);
            print(&format!("and with TLS at https://api.{name}:{port}; clients trust it with"))?;
            print(&format!("  export E2B_DOMAIN={name}:{port}"))?;
            print(&format!("  export SSL_CERT_FILE={}", authority.bundle_file().display()))?;
            print(&format!("  export NODE_EXTRA_CA_CERTS={}", authority.certificate_file().display()))?;
            shown
        }
    };
    Ok(Some((listener, shown)))
}
