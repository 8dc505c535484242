//! Where a server of this data directory listens with TLS, and for which domain: written at its start, for `cove tls`.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use cove_sys::replacement::replace;
use serde::{Deserialize, Serialize};

use super::{TlsError, certified_domain};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    pub address: SocketAddr,
    /// As it was configured.
    pub domain: String,
    pub issuer: Issuer,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Issuer {
    LocalAuthority,
    Operator,
}

impl Record {
    /// The domain for clients: with the port, unless it is the default of https.
    pub fn client_domain(&self) -> String {
        let name = certified_domain(&self.domain);
        match self.address.port() {
            443 => name,
            port => format!("{name}:{port}"),
        }
    }

    pub fn write(&self, folder: &Path) -> Result<(), TlsError> {
        let path = folder.join("serving.json");
        let text = serde_json::to_string(self).map_err(|error| TlsError::Read(error.to_string()))?;
        let written = fs::create_dir_all(folder).and_then(|()| replace(&path, text.as_bytes(), 0o644));
        written.map_err(|source| TlsError::File { step: "write", path, source })
    }

    /// `None` where no server has listened with TLS yet, or an older server wrote another format.
    pub fn read(folder: &Path) -> Option<Record> {
        serde_json::from_slice(&fs::read(folder.join("serving.json")).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_said_unless_it_is_the_usual_one() {
        let record = |address: &str, domain: &str| Record {
            address: address.parse().unwrap(),
            domain: domain.into(),
            issuer: Issuer::LocalAuthority,
        };
        assert_eq!(record("127.0.0.1:7443", "localhost").client_domain(), "cove.localhost:7443");
        assert_eq!(record("0.0.0.0:443", "sbx.example.com").client_domain(), "sbx.example.com");
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Record::read(folder.path()), None);
        let written = record("[::]:443", "sbx.example.com");
        written.write(folder.path()).unwrap();
        assert_eq!(Record::read(folder.path()), Some(written));
    }
}
