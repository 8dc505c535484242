//! Keeps the certificate that the server presents. The operator's certificate is read again when its files change. A
//! certificate of the local authority is replaced before it expires and when the authority is renewed. Open connections
//! are not affected. When a new certificate cannot be used, the log says so and the last good one stays.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_util::sync::CancellationToken;

use super::certificate::{Certificate, day};
use super::{Authority, TlsError};
use crate::clock::Clock;

/// How often the files are checked. A check costs two `stat` calls.
const EVERY: Duration = Duration::from_secs(1);

/// A certificate of the local authority is replaced when this much of its life is left.
const LEFT_HOURS: i64 = 30 * 24;

/// Where certificates come from.
#[derive(Debug, Clone)]
pub enum Source {
    Files { chain: PathBuf, key: PathBuf },
    Authority { folder: PathBuf, domain: String },
}

#[derive(Debug)]
pub struct Keeper {
    source: Source,
    shown: RwLock<Arc<Certificate>>,
    /// The state of the files at the last try, successful or not.
    tried: Mutex<Option<[Stamp; 2]>>,
}

/// Distinguishes one state of a file from the next; a replaced file has another inode.
type Stamp = (u64, u64, i64, i64);

#[derive(Debug, PartialEq, Eq)]
pub enum Refreshed {
    Same,
    Another,
}

impl Keeper {
    pub fn open(source: Source, now: Timestamp) -> Result<Arc<Keeper>, TlsError> {
        let certificate = source.certificate(now)?;
        let tried = Mutex::new(Some(source.stamps()?));
        Ok(Arc::new(Keeper { source, shown: RwLock::new(Arc::new(certificate)), tried }))
    }

    pub fn shown(&self) -> Arc<Certificate> {
        self.shown.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks whether another certificate is due, and presents it from now on.
    pub fn refresh(&self, now: Timestamp) -> Result<Refreshed, TlsError> {
        let stamps = self.source.stamps();
        let mut tried = self.tried.lock().unwrap_or_else(PoisonError::into_inner);
        let same = stamps.as_ref().ok() == tried.as_ref();
        if same && !self.is_due(now) {
            return Ok(Refreshed::Same);
        }
        *tried = stamps.as_ref().ok().copied();
        // Missing files are being replaced, or the operator must know.
        stamps?;
        let certificate = self.source.certificate(now)?;
        *self.shown.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certificate);
        Ok(Refreshed::Another)
    }

    fn is_due(&self, now: Timestamp) -> bool {
        let ours = matches!(self.source, Source::Authority { .. });
        ours && now.checked_add(LEFT_HOURS.hours()).is_ok_and(|later| later > self.shown().facts.good_until)
    }

    /// For the handshakes: HTTP/2 where the client can.
    pub fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Refreshes until the server ends.
    pub async fn keep(self: Arc<Self>, clock: Clock, ending: CancellationToken) {
        while ending.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            match self.refresh(clock.now()) {
                Ok(Refreshed::Same) => {}
                Ok(Refreshed::Another) => {
                    let facts = &self.shown().facts;
                    let until = day(facts.good_until);
                    tracing::info!(fingerprint = facts.fingerprint, "another certificate is shown, good until {until}");
                }
                Err(error) => tracing::warn!(%error, "the new certificate is of no use; the last one stays"),
            }
        }
    }
}

impl ResolvesServerCert for Keeper {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.shown().key.clone())
    }
}

impl Source {
    fn certificate(&self, now: Timestamp) -> Result<Certificate, TlsError> {
        match self {
            Source::Files { chain, key } => Certificate::from_files(chain, key, now),
            Source::Authority { folder, domain } => Authority::open(folder, domain, now)?.certify(domain, now),
        }
    }

    fn stamps(&self) -> Result<[Stamp; 2], TlsError> {
        match self {
            Source::Files { chain, key } => Ok([stamp(chain)?, stamp(key)?]),
            Source::Authority { folder, .. } => {
                Ok([stamp(&folder.join(super::authority::CERTIFICATE))?, stamp(&folder.join(super::authority::KEY))?])
            }
        }
    }
}

fn stamp(path: &Path) -> Result<Stamp, TlsError> {
    let found =
        fs::metadata(path).map_err(|source| TlsError::File { step: "look at", path: path.to_owned(), source })?;
    Ok((found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp::now()
    }

    /// A pair of files as an operator has them.
    fn pair(folder: &Path, names: &[&str]) -> (PathBuf, PathBuf) {
        let made = rcgen::generate_simple_self_signed(names.iter().map(ToString::to_string).collect::<Vec<_>>());
        let made = made.unwrap();
        let (chain, key) = (folder.join("chain.pem"), folder.join("key.pem"));
        fs::write(&chain, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        (chain, key)
    }

    #[test]
    fn a_certificate_of_the_operators_is_read_again_when_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = pair(folder.path(), &["one.example.com"]);
        let keeper = Keeper::open(Source::Files { chain, key }, now()).unwrap();
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Same);
        assert!(keeper.shown().facts.covers("one.example.com"));
        pair(folder.path(), &["two.example.com"]);
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Another);
        assert!(keeper.shown().facts.covers("two.example.com"));
    }

    #[test]
    fn a_change_that_is_of_no_use_leaves_the_last_good_one() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = pair(folder.path(), &["one.example.com"]);
        let keeper = Keeper::open(Source::Files { chain: chain.clone(), key: key.clone() }, now()).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        let (other, _) = pair(elsewhere.path(), &["two.example.com"]);
        // The new certificate is there, its key is not yet.
        fs::copy(&other, &chain).unwrap();
        let error = keeper.refresh(now()).unwrap_err().to_string();
        assert!(error.contains("no usable certificate for this key"), "{error}");
        assert!(keeper.shown().facts.covers("one.example.com"));
        // It is logged once, not every second.
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Same);
        fs::copy(elsewhere.path().join("key.pem"), &key).unwrap();
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Another);
        assert!(keeper.shown().facts.covers("two.example.com"));
    }

    #[test]
    fn files_that_went_away_change_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = pair(folder.path(), &["one.example.com"]);
        let keeper = Keeper::open(Source::Files { chain: chain.clone(), key }, now()).unwrap();
        fs::remove_file(&chain).unwrap();
        assert!(keeper.refresh(now()).is_err());
        assert!(keeper.shown().facts.covers("one.example.com"));
    }

    #[test]
    fn an_ended_certificate_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = pair(folder.path(), &["one.example.com"]);
        // rcgen's own dates end in the year 4096.
        let late = "9000-01-01T00:00:00Z".parse().unwrap();
        let error = Keeper::open(Source::Files { chain, key }, late).unwrap_err().to_string();
        assert!(error.contains("it is good from 1975-01-01 until 4096-01-01"), "{error}");
    }

    #[test]
    fn what_the_local_authority_signed_is_made_anew_before_it_ends() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::Authority { folder: folder.path().to_owned(), domain: "sbx.example.com".into() };
        let keeper = Keeper::open(source, now()).unwrap();
        let first = keeper.shown().facts.clone();
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Same);
        let late = first.good_until - 24.hours();
        assert_eq!(keeper.refresh(late).unwrap(), Refreshed::Another);
        assert!(keeper.shown().facts.good_until > first.good_until);
    }

    #[test]
    fn a_renewed_authority_signs_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let source = Source::Authority { folder: folder.path().to_owned(), domain: "sbx.example.com".into() };
        let keeper = Keeper::open(source, now()).unwrap();
        let first = keeper.shown().facts.fingerprint.clone();
        Authority::renew(folder.path(), "sbx.example.com", super::super::authority::Renewal::NewKey, now()).unwrap();
        assert_eq!(keeper.refresh(now()).unwrap(), Refreshed::Another);
        assert_ne!(keeper.shown().facts.fingerprint, first);
    }
}
