//! A certificate with its key, and what it says: its names, its signer, its dates.

use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::GeneralName;

use super::TlsError;

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Certificate {
    pub facts: Facts,
    pub(super) key: Arc<CertifiedKey>,
}

/// The public content of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Host names, with `*` for one label, and addresses.
    pub names: Vec<String>,
    pub issuer: String,
    pub good_from: Timestamp,
    pub good_until: Timestamp,
    /// SHA-256, in hexadecimal.
    pub fingerprint: String,
}

impl Certificate {
    /// Reads the operator's certificate: PEM files, the chain with the leaf first. Refuses one that is not valid now.
    pub fn from_files(chain: &Path, key: &Path, now: Timestamp) -> Result<Certificate, TlsError> {
        let pem = |path: &Path, what, reason: String| TlsError::Pem { path: path.to_owned(), what, reason };
        let certificates = CertificateDer::pem_file_iter(chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| pem(chain, "certificate", error.to_string()))?;
        let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| pem(key, "private key", error.to_string()))?;
        let certificate = Certificate::new(certificates, &secret).map_err(|error| match error {
            TlsError::Use(reason) => pem(chain, "certificate for this key", reason.to_string()),
            TlsError::Read(reason) => pem(chain, "certificate", reason),
            other => other,
        })?;
        let facts = &certificate.facts;
        if now < facts.good_from || now >= facts.good_until {
            let reason = format!("it is good from {} until {}", day(facts.good_from), day(facts.good_until));
            return Err(pem(chain, "certificate", reason));
        }
        Ok(certificate)
    }

    pub(super) fn new(
        chain: Vec<CertificateDer<'static>>,
        key: &PrivateKeyDer<'static>,
    ) -> Result<Certificate, TlsError> {
        let leaf = chain.first().ok_or_else(|| TlsError::Read("the file has no certificate".into()))?;
        let facts = Facts::of(leaf)?;
        let key = CertifiedKey::new(chain, any_supported_type(key)?);
        key.keys_match()?;
        Ok(Certificate { facts, key: Arc::new(key) })
    }
}

impl Facts {
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Facts, TlsError> {
        let read = |reason: String| TlsError::Read(reason);
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| read(error.to_string()))?;
        let second = |time: x509_parser::time::ASN1Time| {
            Timestamp::from_second(time.timestamp()).map_err(|error| read(error.to_string()))
        };
        let names = parsed.subject_alternative_name().map_err(|error| read(error.to_string()))?;
        let names = names.map(|names| names.value.general_names.iter().filter_map(name).collect()).unwrap_or_default();
        Ok(Facts {
            names,
            issuer: parsed.issuer().to_string(),
            good_from: second(parsed.validity().not_before)?,
            good_until: second(parsed.validity().not_after)?,
            fingerprint: hex::encode(Sha256::digest(certificate)),
        })
    }

    /// The content of a PEM file's first certificate.
    pub fn of_file(path: &Path) -> Result<Facts, TlsError> {
        let certificate = CertificateDer::from_pem_file(path).map_err(|error| TlsError::Pem {
            path: path.to_owned(),
            what: "certificate",
            reason: error.to_string(),
        })?;
        Facts::of(&certificate)
    }

    /// Whether a client that asks for this host accepts the certificate; a wildcard matches one label (RFC 6125).
    pub fn covers(&self, host: &str) -> bool {
        let host = host.trim_matches(['[', ']']);
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(rest) => host.split_once('.').is_some_and(|(_, below)| below.eq_ignore_ascii_case(rest)),
            None => host.eq_ignore_ascii_case(name),
        })
    }
}

fn name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|octets| std::net::Ipv4Addr::from(octets).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|octets| std::net::Ipv6Addr::from(octets).to_string()),
            _ => None,
        },
        _ => None,
    }
}

/// The day alone, for people.
pub fn day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(names: &[&str]) -> Facts {
        Facts {
            names: names.iter().map(ToString::to_string).collect(),
            issuer: String::new(),
            good_from: Timestamp::MIN,
            good_until: Timestamp::MAX,
            fingerprint: String::new(),
        }
    }

    #[test]
    fn a_wildcard_stands_for_one_label() {
        let facts = facts(&["sbx.example.com", "*.sbx.example.com", "127.0.0.1", "::1"]);
        for host in ["sbx.example.com", "API.sbx.example.com", "3000-x.sbx.example.com", "127.0.0.1", "[::1]"] {
            assert!(facts.covers(host), "{host}");
        }
        for host in ["example.com", "a.b.sbx.example.com", "evilsbx.example.com", "127.0.0.2", "", "sbx.example.com."] {
            assert!(!facts.covers(host), "{host}");
        }
    }
}
