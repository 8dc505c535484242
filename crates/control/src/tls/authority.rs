//! The local certificate authority: a key that never leaves the data directory, a certificate that clients trust, and
//! the server certificates ("leaves") that it signs.
//!
//! Leaves are in memory and made again at each start; only the authority is kept, so a client has to trust it only
//! once. It is limited to the server's domain and loopback (name constraints, RFC 5280 4.2.1.10) and to two years: a
//! stolen key cannot sign for another site. An older authority without constraints stays valid; the log says how to
//! renew it.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use cove_sys::replacement::replace;
use jiff::{Span, Timestamp, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, CidrSubnet, DnType, ExtendedKeyUsagePurpose, GeneralSubtree, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, NameConstraints,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::certificate::Certificate;
use super::{TlsError, certified_domain};

const NAME: &str = "Cove local authority";

pub const CERTIFICATE: &str = "authority.pem";
pub const KEY: &str = "authority-key.pem";
pub const BUNDLE: &str = "bundle.pem";

/// Where systems keep their trusted authorities; the first file that exists goes into the bundle.
pub(crate) const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Clients refuse leaves that are valid for longer than this.
const LEAF_DAYS: i64 = 397;

/// How long the authority is valid.
const DAYS: i64 = 730;
/// The server warns this many days before the authority expires.
const WARN_DAYS: i64 = 60;

#[derive(Debug)]
pub struct Authority {
    folder: PathBuf,
    key: String,
    certificate: String,
}

/// What a renewal replaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renewal {
    /// Its dates: clients that trust the old certificate still trust the server until that one expires.
    SameKey,
    /// Key and certificate: every client must trust the new one.
    NewKey,
}

/// A warning about the authority that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Remark {
    #[error(
        "the local authority's certificate is from before name constraints: who trusts it trusts it for every site"
    )]
    Unconstrained,
    #[error("the local authority may not sign for this domain")]
    OtherDomain,
    #[error("the local authority's certificate ends in {days} days")]
    EndsSoon { days: i64 },
}

impl Authority {
    /// The authority in the folder, for this domain; made if there is none. One that may not sign for the domain gets
    /// another certificate for the same key.
    pub fn open(folder: &Path, domain: &str, now: Timestamp) -> Result<Authority, TlsError> {
        let _alone = alone(folder)?;
        let (key, certificate) = (read(&folder.join(KEY))?, read(&folder.join(CERTIFICATE))?);
        let authority = match (key, certificate) {
            (Some(key), Some(certificate)) => {
                let pair = key_of(folder, &key)?;
                let there = Authority { folder: folder.to_owned(), key, certificate };
                match there.look(domain, now) {
                    Some(Remark::OtherDomain) => {
                        let new = Authority::make(folder, pair, domain, now)?;
                        tracing::warn!(
                            "the local authority was for another domain than {domain}: its certificate is new; clients \
                             that trust a copy need {}",
                            new.certificate_file().display()
                        );
                        new
                    }
                    Some(remark) => {
                        tracing::warn!("{remark}; `cove tls renew` makes another for the same key");
                        there
                    }
                    None => there,
                }
            }
            (None, None) => Authority::make(folder, KeyPair::generate().map_err(sign_error)?, domain, now)?,
            // Only half of an authority is there. Making another would leave clients with one that signs no more.
            (key, _) => {
                let missing = folder.join(if key.is_none() { KEY } else { CERTIFICATE });
                return Err(TlsError::Half { missing, folder: folder.to_owned() });
            }
        };
        authority.write_bundle()?;
        Ok(authority)
    }

    /// Renews the authority's certificate. A running server signs with the new one at once.
    pub fn renew(folder: &Path, domain: &str, renewal: Renewal, now: Timestamp) -> Result<Authority, TlsError> {
        let _alone = alone(folder)?;
        let old = match renewal {
            Renewal::SameKey => read(&folder.join(KEY))?,
            Renewal::NewKey => None,
        };
        let key = match old {
            Some(key) => key_of(folder, &key)?,
            None => KeyPair::generate().map_err(sign_error)?,
        };
        let authority = Authority::make(folder, key, domain, now)?;
        authority.write_bundle()?;
        Ok(authority)
    }

    /// Warnings about the authority's certificate.
    pub fn look(&self, domain: &str, now: Timestamp) -> Option<Remark> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(self.certificate.as_bytes()).ok()?;
        let certificate = pem.parse_x509().ok()?;
        let Ok(Some(constraints)) = certificate.name_constraints() else { return Some(Remark::Unconstrained) };
        let name = certified_domain(domain);
        let covers = |subtree: &x509_parser::extensions::GeneralSubtree<'_>| matches!(&subtree.base, x509_parser::extensions::GeneralName::DNSName(known) if *known == name);
        if !constraints.value.permitted_subtrees.as_ref().is_some_and(|permitted| permitted.iter().any(covers)) {
            return Some(Remark::OtherDomain);
        }
        let left = certificate.validity().not_after.timestamp() - now.as_second();
        (left < WARN_DAYS * 24 * 3600).then_some(Remark::EndsSoon { days: (left / (24 * 3600)).max(0) })
    }

    fn make(folder: &Path, key: KeyPair, domain: &str, now: Timestamp) -> Result<Authority, TlsError> {
        let certificate = parameters(domain, now).self_signed(&key).map_err(sign_error)?.pem();
        let key = key.serialize_pem();
        write(&folder.join(KEY), &key, 0o600)?;
        write(&folder.join(CERTIFICATE), &certificate, 0o644)?;
        Ok(Authority { folder: folder.to_owned(), key, certificate })
    }

    /// The system's authorities change too, so the bundle is written again whenever the authority is opened.
    fn write_bundle(&self) -> Result<(), TlsError> {
        let others = SYSTEM_BUNDLES.iter().find_map(|path| fs::read_to_string(path).ok()).unwrap_or_default();
        let wanted = format!("{others}\n{}", self.certificate);
        let path = self.folder.join(BUNDLE);
        if read(&path)?.is_some_and(|there| there == wanted) { Ok(()) } else { write(&path, &wanted, 0o644) }
    }

    /// For clients that add it to their trusted authorities: `NODE_EXTRA_CA_CERTS`.
    pub fn certificate_file(&self) -> PathBuf {
        self.folder.join(CERTIFICATE)
    }

    /// This authority and the system's own, for clients that trust one file alone: `SSL_CERT_FILE`.
    pub fn bundle_file(&self) -> PathBuf {
        self.folder.join(BUNDLE)
    }

    /// A fresh certificate for the domain, everything below it, and loopback.
    pub fn certify(&self, domain: &str, now: Timestamp) -> Result<Certificate, TlsError> {
        let name = certified_domain(domain);
        let sign = |error: rcgen::Error| TlsError::Sign { domain: name.clone(), reason: error.to_string() };
        let names = [name.clone(), format!("*.{name}"), "localhost".into(), "127.0.0.1".into(), "::1".into()];
        let mut leaf = CertificateParams::new(names.to_vec()).map_err(sign)?;
        leaf.distinguished_name.push(DnType::CommonName, name.clone());
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        leaf.use_authority_key_identifier_extension = true;
        (leaf.not_before, leaf.not_after) = (day(now, (-1).days()), day(now, (LEAF_DAYS - 1).days()));
        let issuer = Issuer::new(parameters(domain, now), KeyPair::from_pem(&self.key).map_err(sign)?);
        let key = KeyPair::generate().map_err(sign)?;
        let certificate = leaf.signed_by(&key, &issuer).map_err(sign)?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Certificate::new(vec![certificate.der().clone()], &key)
    }

    /// The authority's certificate, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }
}

fn sign_error(error: rcgen::Error) -> TlsError {
    TlsError::Sign { domain: NAME.into(), reason: error.to_string() }
}

fn key_of(folder: &Path, text: &str) -> Result<KeyPair, TlsError> {
    KeyPair::from_pem(text).map_err(|error| TlsError::Pem {
        path: folder.join(KEY),
        what: "private key",
        reason: error.to_string(),
    })
}

/// Keeps the server and `cove tls` from both making one. The kernel releases the lock when the file is closed.
fn alone(folder: &Path) -> Result<fs::File, TlsError> {
    fs::create_dir_all(folder).map_err(|source| file_error("make", folder, source))?;
    let path = folder.join("lock");
    let lock = fs::File::create(&path).map_err(|source| file_error("open", &path, source))?;
    lock.lock().map_err(|source| file_error("lock", &path, source))?;
    Ok(lock)
}

/// The same at every start except for the dates, which matter only when the authority is made.
fn parameters(domain: &str, now: Timestamp) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, NAME);
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    (parameters.not_before, parameters.not_after) = (day(now, (-1).days()), day(now, DAYS.days()));
    parameters.name_constraints = Some(NameConstraints {
        permitted_subtrees: vec![
            GeneralSubtree::DnsName(certified_domain(domain)),
            GeneralSubtree::DnsName("localhost".into()),
            GeneralSubtree::IpAddress(CidrSubnet::V4([127, 0, 0, 0], [255, 0, 0, 0])),
            GeneralSubtree::IpAddress(CidrSubnet::V6(Ipv6Addr::LOCALHOST.octets(), [255; 16])),
        ],
        excluded_subtrees: Vec::new(),
    });
    parameters
}

fn day(now: Timestamp, away: Span) -> time::OffsetDateTime {
    let date = now.to_zoned(jiff::tz::TimeZone::UTC).date();
    let date = date.checked_add(away).unwrap_or(date);
    rcgen::date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs())
}

fn read(path: &Path) -> Result<Option<String>, TlsError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(file_error("read", path, source)),
    }
}

/// Replaces the file atomically: a reader sees the old text or the new one.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), TlsError> {
    replace(path, text.as_bytes(), mode).map_err(|source| file_error("write", path, source))
}

fn file_error(step: &'static str, path: &Path, source: std::io::Error) -> TlsError {
    TlsError::File { step, path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName};
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::*;
    use crate::tls::keeper::{Keeper, Source};

    const DOMAIN: &str = "sbx.example.com";

    /// A server with a certificate of the authority in the folder.
    fn server(folder: &Path, domain: &str) -> Arc<ServerConfig> {
        let source = Source::Authority { folder: folder.to_owned(), domain: domain.into() };
        Keeper::open(source, Timestamp::now()).unwrap().config().unwrap()
    }

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
        let authority = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        let server = server(folder.path(), "sbx.example.com:8443");
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
        let first = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        let again = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        assert_eq!(first.certificate(), again.certificate());
        assert!(accepts(&first, &server(folder.path(), DOMAIN), "api.sbx.example.com"));
        let mode = fs::metadata(folder.path().join(KEY)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(fs::read_to_string(first.bundle_file()).unwrap().contains(first.certificate()));
    }

    #[test]
    fn who_trusts_the_authority_trusts_it_for_its_domain_alone() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        // Somebody stole the key and signs for another site.
        let stolen = authority.certify("bank.example", Timestamp::now()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut resolver = rustls::server::ResolvesServerCertUsingSni::new();
        resolver.add("api.bank.example", (*stolen.key).clone()).unwrap();
        let shown = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        assert!(!accepts(&authority, &Arc::new(shown), "api.bank.example"));
    }

    #[test]
    fn an_authority_says_when_it_should_be_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        let on_day = |day: i64| Timestamp::now() + (day * 24).hours();
        assert_eq!(authority.look(DOMAIN, on_day(600)), None);
        assert!(matches!(authority.look(DOMAIN, on_day(700)), Some(Remark::EndsSoon { days: 1..=60 })));
        assert_eq!(authority.look("other.example", on_day(1)), Some(Remark::OtherDomain));
        // The same key, so both certificates verify what they may sign.
        let moved = Authority::open(folder.path(), "other.example", Timestamp::now()).unwrap();
        assert!(accepts(&moved, &server(folder.path(), "other.example"), "api.other.example"));
        assert_eq!(moved.look("other.example", on_day(1)), None);

        // An older authority: used as it is.
        let key = KeyPair::from_pem(&authority.key).unwrap();
        let mut old = parameters(DOMAIN, Timestamp::now());
        old.name_constraints = None;
        let old = old.self_signed(&key).unwrap().pem();
        fs::write(folder.path().join(CERTIFICATE), &old).unwrap();
        let opened = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        assert_eq!((opened.certificate(), opened.look(DOMAIN, on_day(1))), (old.as_str(), Some(Remark::Unconstrained)));
    }

    #[test]
    fn half_an_authority_is_named_and_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let whole = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        fs::remove_file(folder.path().join(KEY)).unwrap();
        let error = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap_err().to_string();
        assert!(error.contains("authority-key.pem is missing"), "{error}");
        assert_eq!(fs::read_to_string(whole.certificate_file()).unwrap(), whole.certificate());
    }

    #[test]
    fn who_trusted_the_old_certificate_trusts_the_renewed_one_unless_the_key_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let old = Authority::open(folder.path(), DOMAIN, Timestamp::now()).unwrap();
        let later = Timestamp::now() + 48.hours();
        let renewed = Authority::renew(folder.path(), DOMAIN, Renewal::SameKey, later).unwrap();
        assert_ne!(old.certificate(), renewed.certificate());
        let shown = server(folder.path(), "sbx.example.com");
        assert!(accepts(&old, &shown, "api.sbx.example.com"));
        Authority::renew(folder.path(), DOMAIN, Renewal::NewKey, later).unwrap();
        let shown = server(folder.path(), "sbx.example.com");
        assert!(!accepts(&old, &shown, "api.sbx.example.com"));
    }
}
