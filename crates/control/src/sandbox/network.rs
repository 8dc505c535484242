//! Who may be reached from inside, as callers write it: addresses, ranges and domain names as text.

use std::net::IpAddr;

use cove_policy::policy;
use cove_policy::{Egress, Network, Target, Verdict};
use serde::{Deserialize, Serialize};

use crate::Error;

/// A sandbox's way out; none unless one is asked for. Private, link-local and metadata addresses are refused unless
/// `allow` names them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// What becomes of a connection that no entry names; `closed` unless told otherwise.
    pub access: Access,
    /// Addresses (`1.2.3.4`), ranges (`10.0.0.0/8`), either with a port (`1.2.3.4:443`). Wins over `deny`.
    pub allow: Vec<String>,
    /// As `allow`.
    pub deny: Vec<String>,
    /// DNS servers to ask; the host's own where empty.
    #[schema(value_type = Vec<String>)]
    pub resolvers: Vec<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Everything but what is denied.
    Open,
    /// Nothing but what is allowed.
    #[default]
    Closed,
}

impl NetworkPolicy {
    /// No way out at all: the default.
    pub fn closed() -> Self {
        NetworkPolicy::default()
    }

    /// The internet. What E2B's and Daytona's clients have unless they say otherwise.
    pub fn open() -> Self {
        NetworkPolicy { access: Access::Open, ..NetworkPolicy::default() }
    }

    /// Refuses lists that are too long, before anything looks at their entries.
    pub fn check_length(&self) -> Result<(), Error> {
        for (field, length, most) in [
            ("network.allow", self.allow.len(), policy::MOST_ENTRIES),
            ("network.deny", self.deny.len(), policy::MOST_ENTRIES),
            ("network.resolvers", self.resolvers.len(), policy::MOST_RESOLVERS),
        ] {
            if length > most {
                return Err(Error::invalid(field, format!("{length} entries; at most {most}")));
            }
        }
        Ok(())
    }

    /// The form that is enforced; an entry that means nothing is refused by name.
    pub fn to_network(&self) -> Result<Network, Error> {
        self.check_length()?;
        if self.access == Access::Closed && self.allow.is_empty() {
            self.targets()?;
            return Ok(Network::None);
        }
        let (allow, deny) = self.targets()?;
        let otherwise = match self.access {
            Access::Open => Verdict::Allow,
            Access::Closed => Verdict::Deny,
        };
        let egress = Egress { allow, deny, otherwise, resolvers: self.resolvers.clone() };
        policy::check(&egress).map_err(|problem| Error::invalid("network", problem))?;
        Ok(Network::Full(egress))
    }

    fn targets(&self) -> Result<(Vec<Target>, Vec<Target>), Error> {
        let parse = |field: &str, entries: &[String]| {
            entries
                .iter()
                .map(|entry| {
                    let target = entry.parse::<Target>();
                    target.map_err(|invalid| Error::invalid(format!("network.{field}"), invalid.to_string()))
                })
                .collect::<Result<Vec<_>, _>>()
        };
        Ok((parse("allow", &self.allow)?, parse("deny", &self.deny)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_addresses_and_ports_are_understood() {
        let policy = NetworkPolicy {
            access: Access::Closed,
            allow: vec!["10.0.0.0/8".into(), "1.2.3.4:443".into(), "::1".into(), "10.1.0.0/16:53".into()],
            ..NetworkPolicy::default()
        };
        let Network::Full(egress) = policy.to_network().unwrap() else { panic!("not full") };
        assert_eq!(egress.allow.len(), 4);
        assert_eq!(egress.allow[1].port, Some(443));
        assert_eq!(egress.allow[3], Target { address: "10.1.0.0".parse().unwrap(), prefix: 16, port: Some(53) });
        assert_eq!(egress.otherwise, Verdict::Deny);
    }

    #[test]
    fn nobody_is_reached_unless_somebody_asks() {
        let read = |text: &str| serde_json::from_str::<NetworkPolicy>(text).unwrap().to_network().unwrap();
        assert_eq!(NetworkPolicy::default().to_network().unwrap(), Network::None);
        assert_eq!(read("{}"), Network::None);
        let Network::Full(egress) = read(r#"{"allow": ["1.2.3.4"]}"#) else { panic!("not full") };
        assert_eq!(egress.otherwise, Verdict::Deny);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let policy = NetworkPolicy { deny: vec!["10.0.0.0/99".into()], ..NetworkPolicy::open() };
        let error = policy.to_network().unwrap_err().to_string();
        assert!(error.starts_with("network.deny: `10.0.0.0/99` is no egress target"), "{error}");
        let policy = NetworkPolicy { resolvers: vec!["10.0.0.2".parse().unwrap()], ..NetworkPolicy::open() };
        let error = policy.to_network().unwrap_err().to_string();
        assert!(error.contains("add 10.0.0.2:53 to `allow`"), "{error}");
    }
}
