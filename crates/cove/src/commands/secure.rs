//! TLS of `cove serve`: where it listens, which certificate it has, and what its clients must trust.

use std::sync::Arc;

use cove_control::clock::Timestamp;
use cove_control::config::Config;
use cove_control::tls::record::{Issuer, Record};
use cove_control::tls::{self, Keeper, Source, TlsError};
use tokio::net::TcpListener;

use crate::complaint::{Complaint, doing};
use crate::render::print;

type Secure = (TcpListener, Arc<Keeper>);

/// The socket and its certificate; `None` without TLS.
pub async fn open(config: &Config, as_json: bool) -> Result<Option<Secure>, Complaint> {
    let Some(address) = &config.tls.listen else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Complaint::failed(format!("listen with TLS on {address}: {error}"))
            .hint("write an address and a port, for example --tls 127.0.0.1:7443")
    })?;
    let (folder, domain) = (config.data.join("tls"), &config.domain);
    let (source, issuer) = match (&config.tls.certificate, &config.tls.key) {
        (Some(chain), Some(key)) => (Source::Files { chain: chain.clone(), key: key.clone() }, Issuer::Operator),
        _ => (Source::Authority { folder: folder.clone(), domain: domain.clone() }, Issuer::LocalAuthority),
    };
    let complain = |error: TlsError| Complaint::failed(error.to_string());
    let keeper = Keeper::open(source, Timestamp::now()).map_err(complain)?;
    let record = Record {
        address: listener.local_addr().map_err(doing("find the address of the socket"))?,
        domain: domain.clone(),
        issuer,
    };
    record.write(&folder).map_err(complain)?;
    warn_of_names(&keeper, domain);
    if as_json {
        return Ok(Some((listener, keeper)));
    }
    print(&format!("and with TLS at https://api.{}; its clients need", record.client_domain()))?;
    for line in super::tls::exports(&folder, &record) {
        print(&format!("  {line}"))?;
    }
    Ok(Some((listener, keeper)))
}

/// Warns that others can read keys and data, unless a proxy in front speaks TLS.
pub fn warn_of_plain_text(config: &Config, address: std::net::SocketAddr) {
    let behind_a_proxy = config.public_url.as_deref().is_some_and(|url| url.starts_with("https://"));
    if address.ip().is_loopback() || behind_a_proxy {
        return;
    }
    let remedy = match &config.tls.listen {
        Some(_) => "close it with --listen 127.0.0.1:7070; TLS has an address of its own",
        None => "use --tls ADDRESS, or put a proxy with TLS in front of it and name it with --public-url https://…",
    };
    tracing::warn!(
        "http://{address} can be reached from other machines without TLS: others can read API keys and data; {remedy}"
    );
}

/// A certificate for another name is no error: it may be all that the operator's clients need.
fn warn_of_names(keeper: &Keeper, domain: &str) {
    let facts = &keeper.shown().facts;
    let domain = tls::certified_domain(domain);
    if !facts.covers(&format!("api.{domain}")) {
        let names = facts.names.join(", ");
        tracing::warn!(
            "the certificate is for {names} and not for *.{domain}: E2B clients will refuse it; see --domain"
        );
    }
}
