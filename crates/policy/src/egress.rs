//! A sandbox's way out, as data.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a sandbox has of a network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Loopback only.
    None,
    /// Through the egress proxy, as the policy allows.
    Full(Egress),
}

/// What may be reached from inside. Private, link-local and metadata addresses and the host itself are refused unless
/// an entry of `allow` names them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Egress {
    /// Wins over `deny` and over the built-in refusals.
    #[serde(default)]
    pub allow: Vec<Target>,
    #[serde(default)]
    pub deny: Vec<Target>,
    /// What happens to a connection that no entry names.
    #[serde(default)]
    pub otherwise: Verdict,
    /// Resolvers that names are asked of; the host's own where empty.
    #[serde(default)]
    pub resolvers: Vec<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    #[default]
    Allow,
    Deny,
}

/// Addresses and ports of an egress rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    pub address: IpAddr,
    pub prefix: u8,
    /// All ports where absent.
    #[serde(default)]
    pub port: Option<u16>,
}
