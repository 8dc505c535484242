//! The local authority: a key that never leaves the data directory, a certificate to trust, and leaves signed by it.
//!
//! Leaves live in memory and are made anew at each start; only the authority is kept, so clients trust once.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::{Span, Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::{TlsError, certified_domain, configure};

const NAME: &str = "Cove local authority";

/// Where systems keep the authorities that everybody trusts; the first that is there goes into the bundle.
const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Clients refuse leaves that live longer than this.
const LEAF_DAYS: i64 = 397;

#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    key: String,
    certificate: String,
}

impl Authority {
    /// The authority in the folder; made where there is none.
    pub fn open(folder: &Path, now: Timestamp) -> Result<Authority, TlsError> {
        let (key_path, certificate_path) = (folder.join("authority-key.pem"), folder.join("authority.pem"));
        if let (Ok(key), Ok(certificate)) = (fs::read_to_string(&key_path), fs::read_to_string(&certificate_path)) {
            KeyPair::from_pem(&key).map_err(|error| TlsError::Pem {
                path: key_path,
                what: "private key",
                reason: error.to_string(),
            })?;
            return Ok(Authority { folder: folder.to_owned(), key, certificate });
        }
        let sign = |error: rcgen::Error| TlsError::Sign { domain: NAME.into(), reason: error.to_string() };
        let key = KeyPair::generate().map_err(sign)?;
        let certificate = parameters(now).self_signed(&key).map_err(sign)?.pem();
        let key = key.serialize_pem();
        let file = |step, path: &Path| {
            let path = path.to_owned();
            move |source| TlsError::File { step, path, source }
        };
        fs::create_dir_all(folder).map_err(file("make", folder))?;
        write_private(&key_path, &key).map_err(file("write", &key_path))?;
        fs::write(&certificate_path, &certificate).map_err(file("write", &certificate_path))?;
        let bundle = folder.join("bundle.pem");
        let others = SYSTEM_BUNDLES.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        fs::write(&bundle, format!("{others}\n{certificate}")).map_err(file("write", &bundle))?;
        Ok(Authority { folder: folder.to_owned(), key, certificate })
    }

    /// What a client adds to those it trusts: `NODE_EXTRA_CA_CERTS`.
    pub fn certificate_file(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// This authority and the system's own, for clients that trust one file alone: `SSL_CERT_FILE`.
    pub fn bundle_file(&self) -> PathBuf {
        self.folder.join("bundle.pem")
    }

    /// A fresh certificate for the domain, everything below it, and loopback.
    pub fn certify(&self, domain: &str, now: Timestamp) -> Result<Arc<ServerConfig>, TlsError> {
        let name = certified_domain(domain);
        let sign = |error: rcgen::Error| TlsError::Sign { domain: name.clone(), reason: error.to_string() };
        let names = [name.clone(), format!("*.{name}"), "localhost".into(), "127.0.0.1".into(), "::1".into()];
        let mut leaf = CertificateParams::new(names.to_vec()).map_err(sign)?;
        leaf.distinguished_name.push(DnType::CommonName, name.clone());
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.use_authority_key_identifier_extension = true;
        (leaf.not_before, leaf.not_after) = (day(now, (-1).days()), day(now, (LEAF_DAYS - 1).days()));
        let issuer = Issuer::new(parameters(now), KeyPair::from_pem(&self.key).map_err(sign)?);
        let key = KeyPair::generate().map_err(sign)?;
        let certificate = leaf.signed_by(&key, &issuer).map_err(sign)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        configure(chain, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())))
    }

    /// The authority's certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

/// The same at every start but for the dates, which only count when the authority is made.
fn parameters(now: Timestamp) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, NAME);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (parameters.not_before, parameters.not_after) = (day(now, (-1).days()), day(now, 3650.days()));
    parameters
}

fn day(now: Timestamp, away: Span) -> time::OffsetDateTime {
    let date = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = date.checked_add(away).unwrap_or(date);
    rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::pki_types::ServerName;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};

    use super::*;

    /// Whether a client that trusts the authority alone accepts the server under a name.
    fn accepts(authority: &Authority, server: &Arc<ServerConfig>, name: &str) -> bool {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut server = ServerConnection::new(server.clone()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut wire = Vec::new();
            client.write_tls(&mut wire).unwrap();
            server.read_tls(&mut wire.as_slice()).unwrap();
            if server.process_new_packets().is_err() {
                return false;
            }
            let mut wire = Vec::new();
            server.write_tls(&mut wire).unwrap();
            client.read_tls(&mut wire.as_slice()).unwrap();
            if client.process_new_packets().is_err() {
                return false;
            }
        }
        true
    }

    #[test]
    fn a_client_that_trusts_the_authority_accepts_every_sandbox_of_the_domain_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), Timestamp::now()).unwrap();
        let server = authority.certify("sbx.example.com:8443", Timestamp::now()).unwrap();
        for name in ["api.sbx.example.com", "49983-abcdefghij0123456789.sbx.example.com", "localhost", "127.0.0.1"] {
            assert!(accepts(&authority, &server, name), "{name}");
        }
        for name in ["api.example.com", "a.b.sbx.example.com", "evil.example"] {
            assert!(!accepts(&authority, &server, name), "{name}");
        }
    }

    #[test]
    fn the_authority_stays_the_same_and_its_key_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let first = Authority::open(folder.path(), Timestamp::now()).unwrap();
        let again = Authority::open(folder.path(), Timestamp::now()).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        let server = again.certify("localhost", Timestamp::now()).unwrap();
        assert!(accepts(&first, &server, "api.cove.localhost"));
        let mode = fs::metadata(folder.path().join("authority-key.pem")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(fs::read_to_string(first.bundle_file()).unwrap().contains(first.certificate()));
    }

    #[test]
    fn another_authority_is_not_trusted() {
        let (mine, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mine = Authority::open(mine.path(), Timestamp::now()).unwrap();
        let theirs = Authority::open(theirs.path(), Timestamp::now()).unwrap();
        let server = theirs.certify("sbx.example.com", Timestamp::now()).unwrap();
        assert!(!accepts(&mine, &server, "api.sbx.example.com"));
    }
}
