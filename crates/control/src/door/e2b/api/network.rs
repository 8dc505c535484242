//! The network of a sandbox as the dialect writes it, and its replacement while the sandbox runs.
//!
//! In the domain an `allow` entry opens even what is closed to everybody (private ranges, the host). The dialect
//! promises that those stay closed whatever a client writes, so an entry that would open one is refused here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::extract::State;
use bytes::Bytes;
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;

use super::super::error::ApiError;
use super::super::facts::Facts;
use super::{By, Id, body, find};
use crate::App;
use crate::door::known::read;
use crate::door::range::{EVERYTHING, normalised};
use crate::sandbox::network::Access;
use crate::sandbox::{NetworkPolicy, Sandbox};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct Written {
    allow_public_traffic: Option<bool>,
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    dns_servers: Option<Vec<IpAddr>>,
    https_ports: Option<Vec<Value>>,
    egress_proxy: Option<Value>,
    mask_request_host: Option<String>,
    rules: Option<serde_json::Map<String, Value>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

/// What a client wants, translated.
pub struct Network {
    pub policy: NetworkPolicy,
    pub public: bool,
    pub mask_request_host: Option<String>,
    /// As it is told again.
    pub told: Option<Value>,
}

impl Network {
    pub fn read(network: Option<&Value>, allow_internet_access: Option<bool>) -> Result<Self, ApiError> {
        let written: Written = match network {
            None | Some(Value::Null) => Written::default(),
            Some(value) => {
                read(value.to_string().as_bytes()).map_err(|error| ApiError::bad(format!("network: {error}")))?
            }
        };
        if written.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null()) {
            return Err(ApiError::bad("network.egressProxy: proxies of the client's own are not served"));
        }
        if written.rules.as_ref().is_some_and(|rules| !rules.is_empty()) {
            return Err(ApiError::bad("network.rules: rules that change requests are not served"));
        }
        if written.https_ports.as_ref().is_some_and(|ports| !ports.is_empty()) {
            return Err(ApiError::bad("network.httpsPorts: TLS to a port inside is not served; speak HTTP there"));
        }
        if written.dns_servers.as_ref().is_some_and(Vec::is_empty) {
            let message = "network.dnsServers: an empty list, which is no DNS at all, is not served; leave it out";
            return Err(ApiError::bad(message));
        }
        let allowed = allow_internet_access.or(written.allow_internet_access);
        Ok(Network {
            policy: policy(&written, allowed)?,
            public: written.allow_public_traffic.unwrap_or(true),
            mask_request_host: written.mask_request_host,
            told: network.filter(|value| !value.is_null()).cloned(),
        })
    }
}

fn policy(written: &Written, allow_internet_access: Option<bool>) -> Result<NetworkPolicy, ApiError> {
    let everything = |entry: &String| EVERYTHING.contains(&entry.as_str());
    for entry in &written.deny_out {
        if range(entry).is_none() {
            return Err(ApiError::bad(format!("network.denyOut: '{entry}' is no address or range")));
        }
    }
    let denies_all = written.deny_out.iter().any(everything) || allow_internet_access == Some(false);
    for entry in &written.allow_out {
        match range(entry) {
            _ if everything(entry) => {}
            Some(range) if is_closed_to_all(range) => {
                let message = format!("network.allowOut: '{entry}' holds private addresses, which are always denied");
                return Err(ApiError::bad(message));
            }
            Some(_) => {}
            None if !denies_all => {
                let message = format!("network.allowOut: domain '{entry}' needs 0.0.0.0/0 in denyOut");
                return Err(ApiError::bad(message));
            }
            None => {}
        }
    }
    // Allow wins over deny: whoever allows everything has denied nothing.
    let allows_all = written.allow_out.iter().any(everything);
    let keep = |entries: &[String]| {
        entries.iter().filter(|entry| !everything(entry)).map(|entry| normalised(entry)).collect::<Vec<_>>()
    };
    let deny = match (allows_all, denies_all) {
        (true, _) => Vec::new(),
        // A policy that denies everything, not a sandbox without a network: that could not be opened while it runs.
        (false, true) => EVERYTHING.map(ToOwned::to_owned).to_vec(),
        (false, false) => keep(&written.deny_out),
    };
    Ok(NetworkPolicy {
        access: Access::Open,
        allow: if allows_all { Vec::new() } else { keep(&written.allow_out) },
        deny,
        resolvers: written.dns_servers.clone().unwrap_or_default(),
    })
}

/// `PUT /sandboxes/{id}/network`: what is not written is cleared.
pub async fn replace(State(app): State<App>, By(caller): By, Id(id): Id, bytes: Bytes) -> Result<StatusCode, ApiError> {
    let written: Value = body(bytes).await?;
    for name in ["allowPublicTraffic", "maskRequestHost", "httpsPorts"] {
        if written.get(name).is_some_and(|value| !value.is_null()) {
            return Err(ApiError::bad(format!("network.{name}: set when the sandbox is created, not changed later")));
        }
    }
    let network = Network::read(Some(&written), None)?;
    find(&app, &caller, &id).await?;
    app.set_network(&caller, &id, network.policy).await?;
    let remember = |sandbox: &Sandbox| {
        let facts = Facts {
            allow_internet_access: written.get("allow_internet_access").and_then(Value::as_bool),
            network: network.told.clone(),
            ..Facts::of(sandbox)
        };
        Ok(facts.into_note(&sandbox.door))
    };
    app.change_door(&caller, &id, remember).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn range(entry: &str) -> Option<(IpAddr, u8)> {
    let (address, prefix) = match entry.split_once('/') {
        Some((address, prefix)) => (address.parse().ok()?, Some(prefix.parse::<u8>().ok()?)),
        None => (entry.parse().ok()?, None),
    };
    let longest = match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    let prefix = prefix.unwrap_or(longest);
    (prefix <= longest).then_some((address, prefix))
}

/// Whether a range holds an address that no client may open.
fn is_closed_to_all((address, prefix): (IpAddr, u8)) -> bool {
    const V4: [(Ipv4Addr, u8); 8] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8),
        (Ipv4Addr::new(10, 0, 0, 0), 8),
        (Ipv4Addr::new(100, 64, 0, 0), 10),
        (Ipv4Addr::new(127, 0, 0, 0), 8),
        (Ipv4Addr::new(169, 254, 0, 0), 16),
        (Ipv4Addr::new(172, 16, 0, 0), 12),
        (Ipv4Addr::new(192, 168, 0, 0), 16),
        (Ipv4Addr::new(224, 0, 0, 0), 3),
    ];
    const V6: [(Ipv6Addr, u8); 4] = [
        (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 0), 64),
        (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
        (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
        (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
    ];
    match address {
        IpAddr::V4(address) => V4.iter().any(|(other, length)| {
            let shared = prefix.min(*length);
            let mask = u32::MAX.checked_shl(32 - u32::from(shared)).unwrap_or(0);
            u32::from(address) & mask == u32::from(*other) & mask
        }),
        IpAddr::V6(address) => V6.iter().any(|(other, length)| {
            let shared = prefix.min(*length);
            let mask = u128::MAX.checked_shl(128 - u32::from(shared)).unwrap_or(0);
            u128::from(address) & mask == u128::from(*other) & mask
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> Result<NetworkPolicy, ApiError> {
        Network::read(Some(&json), None).map(|network| network.policy)
    }

    #[test]
    fn private_addresses_cannot_be_opened() {
        for entry in [
            "10.0.0.1",
            "192.168.0.0/16",
            "0.0.0.0/1",
            "169.254.169.254",
            "127.0.0.1",
            "128.0.0.0/1",
            "::1",
            "fe80::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(read(serde_json::json!({ "allowOut": [entry] })).is_err(), "{entry}");
        }
        for entry in ["1.1.1.1", "8.8.8.0/24", "2606:4700::/32"] {
            assert!(read(serde_json::json!({ "allowOut": [entry] })).is_ok(), "{entry}");
        }
    }

    #[test]
    fn denying_everything_leaves_what_is_allowed() {
        let policy = read(serde_json::json!({"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]})).ok().unwrap();
        assert_eq!(
            (policy.allow.as_slice(), policy.deny.as_slice()),
            (&["1.1.1.1".to_owned()][..], &EVERYTHING.map(ToOwned::to_owned)[..])
        );
        let closed = Network::read(None, Some(false)).ok().unwrap().policy;
        assert_eq!((closed.allow, closed.deny), (vec![], EVERYTHING.map(ToOwned::to_owned).to_vec()));
    }

    #[test]
    fn allowing_everything_opens_no_private_address() {
        let policy = read(serde_json::json!({"allowOut":["0.0.0.0/0"],"denyOut":["8.8.8.8"]})).ok().unwrap();
        assert_eq!((policy.access, policy.allow, policy.deny), (Access::Open, vec![], vec![]));
    }

    async fn refusal(json: &Value) -> String {
        use axum::response::IntoResponse as _;
        let refused = Network::read(Some(json), None).err().unwrap().into_response();
        let body = axum::body::to_bytes(refused.into_body(), 10_000).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    #[tokio::test]
    async fn what_is_not_served_is_refused_by_name() {
        for (json, name) in [
            (serde_json::json!({"httpsPorts": [3000]}), "network.httpsPorts"),
            (serde_json::json!({"dnsServers": []}), "network.dnsServers"),
            (serde_json::json!({"alowOut": ["1.1.1.1"]}), "did you mean `allowOut`?"),
        ] {
            let refused = refusal(&json).await;
            assert!(refused.contains(name), "{refused}");
        }
        assert!(read(serde_json::json!({"httpsPorts": [], "rules": {}, "fromTheFuture": null})).is_ok());
        let policy = read(serde_json::json!({"denyOut": ["8.8.8.8/8"]})).ok().unwrap();
        assert_eq!(policy.deny, ["8.0.0.0/8"]);
    }

    #[test]
    fn domains_need_a_denial_of_the_rest() {
        assert!(read(serde_json::json!({"allowOut":["example.com"]})).is_err());
        assert!(read(serde_json::json!({"allowOut":["example.com"],"denyOut":["0.0.0.0/0"]})).is_ok());
        assert!(read(serde_json::json!({"denyOut":["example.com"]})).is_err());
    }
}
