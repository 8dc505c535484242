//! Which certificates this server trusts when another server of the same store answers by https.
//!
//! The authorities are those of `peer_authority` alone where that is set; otherwise the bundle that `cove tls` makes
//! (the system's and the local one, which servers share by having the same `tls` folder); otherwise the system's.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::Error;
use crate::config::Config;
use crate::store::Dialect;
use crate::tls::authority::{BUNDLE, SYSTEM_BUNDLES};

/// The configuration of connections to other servers. A server without others trusts nobody.
pub fn client(config: &Config, dialect: Dialect) -> Result<Arc<ClientConfig>, Error> {
    let roots = match (dialect, &config.peer_authority) {
        (Dialect::Sqlite, _) => RootCertStore::empty(),
        (Dialect::Postgres, Some(path)) => read(path)?,
        (Dialect::Postgres, None) => {
            let bundle = config.data.join("tls").join(BUNDLE);
            let files = std::iter::once(bundle).chain(SYSTEM_BUNDLES.iter().map(PathBuf::from));
            // Without any, connections to a peer by https fail with that reason; http needs none.
            files.filter(|path| path.exists()).find_map(|path| read(&path).ok()).unwrap_or_else(RootCertStore::empty)
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| Error::internal(format!("trust other servers: {error}")))?;
    Ok(Arc::new(versions.with_root_certificates(roots).with_no_client_auth()))
}

fn read(path: &Path) -> Result<RootCertStore, Error> {
    let wrong = |reason: String| Error::invalid("peer_authority", format!("{}: {reason}", path.display()));
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    let (taken, _) = roots.add_parsable_certificates(certificates);
    if taken == 0 { Err(wrong("holds no certificate in PEM".into())) } else { Ok(roots) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_holds_no_authority_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("authority.pem");
        let ask = || {
            let config = Config { peer_authority: Some(path.clone()), ..Config::default() };
            client(&config, Dialect::Postgres).map(|_| ()).map_err(|error| error.to_string())
        };
        assert!(ask().unwrap_err().contains("authority.pem: "), "{:?}", ask());
        std::fs::write(&path, "no certificate\n").unwrap();
        assert!(ask().unwrap_err().ends_with("holds no certificate in PEM"), "{:?}", ask());
        crate::tls::Authority::open(folder.path(), "localhost", jiff::Timestamp::now()).map(|_| ()).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        crate::tls::Authority::open(folder.path(), "localhost", jiff::Timestamp::now()).unwrap();
        assert_eq!(ask(), Ok(()));
    }
}
