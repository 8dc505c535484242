//! The server's neighbourhood: private, link-local and metadata addresses, and the host itself.
//!
//! Tenants share the server, so they may not open its neighbourhood: neither a sandbox's `allow` list nor a webhook
//! reaches it, unless an operator asked for it or `private_targets` in the configuration names the target.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use cove_policy::place::Places;
use cove_policy::policy::{self, Decision, Destination, Ground, Place};
use cove_policy::ranges::Class;
use cove_policy::{Egress, Network, Target};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::sandbox::NetworkPolicy;
use crate::{App, Caller, Error, Scope};

/// Why a tenant may not reach an address; `None` for public addresses and for those in `open`.
pub(crate) fn refused(open: &[Target], address: IpAddr, port: u16) -> Option<Class> {
    let policy = Egress { allow: open.to_vec(), ..Egress::default() };
    // Without the routing table every address counts as the host's own.
    let place = Places::open().map_or(Place::ThisHost, |places| places.of(address));
    match policy::decide(&policy, &Destination { address, port, place, name: None }) {
        Decision::Refused(Ground::BuiltIn(class)) => Some(class),
        _ => None,
    }
}

impl App {
    /// Refuses entries of `allow` that open the neighbourhood, unless the caller or the configuration may.
    pub(crate) async fn check_network(&self, caller: &Caller, network: &NetworkPolicy) -> Result<Network, Error> {
        network.check_length()?;
        let (open, network) = (self.config().private_targets.clone(), network.clone());
        let whose = if caller.may(Scope::Operator) { Whose::Operators } else { Whose::Tenants };
        // A long list asks the kernel a thousand times.
        crate::heavy::run(network.allow.len() + network.deny.len(), 64, move || judge(&network, &open, whose)).await
    }
}

/// Who asks for a policy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Operators,
    Tenants,
}

fn judge(network: &NetworkPolicy, open: &[Target], whose: Whose) -> Result<Network, Error> {
    let wanted = network.to_network()?;
    let Network::Full(egress) = &wanted else { return Ok(wanted) };
    if whose == Whose::Operators {
        return Ok(wanted);
    }
    let places = Places::open().map_err(|error| Error::internal(format!("ask the routing table: {error}")))?;
    for entry in &egress.allow {
        if let Some(class) = policy::opens(entry, places.of(entry.address))
            && !open.iter().any(|target| policy::lies_within(entry, target))
        {
            return Err(Error::Forbidden(format!(
                "network.allow: {entry} is {class}; only an operator's key may open it, or the server's private_targets"
            )));
        }
    }
    Ok(wanted)
}

/// A client for requests that tenants cause. It resolves names itself and checks the answer before it uses it, so a
/// name cannot change its address in between; no proxy of the environment resolves it a second time.
pub(crate) fn guarded_client(open: Vec<Target>) -> Result<reqwest::Client, Error> {
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .dns_resolver(Arc::new(Guarded { open }));
    builder.build().map_err(|error| Error::internal(crate::tls::no_client(&error)))
}

/// Refuses a URL whose host is an address of the neighbourhood: the resolver never sees such a host.
pub(crate) fn check_url(open: &[Target], url: &reqwest::Url) -> Result<(), String> {
    let host = url.host_str().unwrap_or_default();
    let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else { return Ok(()) };
    let port = url.port_or_known_default().unwrap_or(0);
    match refused(open, address, port) {
        None => Ok(()),
        Some(class) => Err(format!("{address} is {class}")),
    }
}

struct Guarded {
    open: Vec<Target>,
}

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        let open: Vec<Target> = self.open.iter().filter(|target| target.port.is_none()).cloned().collect();
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let mut reachable = Vec::new();
            let mut reason = None;
            for address in found {
                match refused(&open, address.ip(), 0) {
                    None => reachable.push(address),
                    Some(class) => reason = Some(format!("{} is at {}, {class}", name.as_str(), address.ip())),
                }
            }
            match reason {
                Some(reason) if reachable.is_empty() => Err(reason.into()),
                _ => Ok(Box::new(reachable.into_iter()) as Addrs),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Result<(), String> {
        check_url(&[], &reqwest::Url::parse(text).unwrap())
    }

    #[test]
    fn a_url_of_the_neighbourhood_is_refused_however_the_address_is_written() {
        for text in [
            "http://127.0.0.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://[::1]/",
            "http://[::ffff:169.254.169.254]/latest",
            "http://169.254.169.254/latest",
            "http://10.1.2.3:8080/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0/",
        ] {
            assert!(url(text).is_err(), "{text}");
        }
        assert_eq!(url("https://93.184.216.34/"), Ok(()));
        assert_eq!(url("https://hooks.example/"), Ok(()));
    }

    #[test]
    fn what_the_operator_opened_is_open_and_no_more() {
        let open = ["10.1.0.0/16:443".parse().unwrap()];
        let ask = |text: &str| check_url(&open, &reqwest::Url::parse(text).unwrap());
        assert_eq!(ask("https://10.1.2.3/"), Ok(()));
        assert!(ask("http://10.1.2.3/").is_err());
        assert!(ask("https://10.2.2.3/").is_err());
    }

    #[tokio::test]
    async fn a_name_that_leads_home_is_refused() {
        let guarded = Guarded { open: Vec::new() };
        let error = guarded.resolve("localhost".parse().unwrap()).await.err().expect("refused").to_string();
        assert!(error.contains("a loopback address") || error.contains("the host itself"), "{error}");
    }
}
