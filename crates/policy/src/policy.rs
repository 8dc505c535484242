//! May this sandbox talk to that address? A pure answer, with its reason.
//!
//! In this order: an entry of `allow` that names the destination; an entry of `deny`; the built-in refusals; what the
//! policy says of everything else. `allow` wins over the built-in refusals only where it *means* them: an entry that
//! lies within a private range opens that much of it, while `0.0.0.0/0` opens the internet and no metadata service.
//! An address of the host itself is opened only by an entry for that very address.

use std::fmt;
use std::net::IpAddr;

use crate::egress::{Egress, Target, Verdict};
use crate::ranges::{self, Class};
use crate::rules::Rules;
use crate::target::{self, masked, width};

/// Where a sandbox wants to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    pub address: IpAddr,
    pub port: u16,
    pub place: Place,
    /// The name that the sandbox was last told this address for. Rules by name will look here; no rule does yet.
    pub name: Option<String>,
}

/// Whose address it is, by the host's routing table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Elsewhere,
    ThisHost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    Allowed(Ground),
    Refused(Ground),
}

/// Why it was decided so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ground {
    Rule(Target),
    BuiltIn(Class),
    /// No rule named it.
    Otherwise,
}

impl Decision {
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allowed(_))
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Allowed(Ground::Rule(target)) => write!(f, "allowed by {target}"),
            Decision::Allowed(_) => f.write_str("allowed: no rule forbids it"),
            Decision::Refused(Ground::Rule(target)) => write!(f, "refused by {target}"),
            Decision::Refused(Ground::BuiltIn(class)) => write!(f, "refused: {class}, and no `allow` entry names it"),
            Decision::Refused(Ground::Otherwise) => f.write_str("refused: no `allow` entry names it"),
        }
    }
}

/// The answer of a policy that is asked once. Whoever asks more often keeps the [`Rules`].
pub fn decide(policy: &Egress, destination: &Destination) -> Decision {
    Rules::of(policy).decide(destination)
}

/// The built-in refusal that this entry of `allow` lifts; nothing for one that opens no more than the internet.
pub fn opens(entry: &Target, place: Place) -> Option<Class> {
    let address = ranges::meant(entry.address);
    if place == Place::ThisHost && entry.prefix == width(entry.address) {
        return Some(Class::Host);
    }
    // 6to4 and the like may wrap a private address at any prefix: what is wrapped is refused by `check`.
    let (_, prefix, class) = ranges::special(address)?;
    (entry.prefix >= prefix || address != entry.address).then_some(class)
}

/// Whether all that `entry` names is named by `other` too.
pub fn lies_within(entry: &Target, other: &Target) -> bool {
    width(entry.address) == width(other.address)
        && entry.prefix >= other.prefix
        && masked(entry.address, other.prefix) == masked(other.address, other.prefix)
        && other.port.is_none_or(|only| entry.port == Some(only))
}

/// Whether names are answered at all. A policy that refuses what it does not name, and names no resolver, is closed:
/// questions to a resolver would carry data out as well as any connection.
pub fn resolves_names(policy: &Egress) -> bool {
    let everything = |target: &Target| target.address.is_ipv4() && target.prefix == 0;
    let denies_resolvers = |target: &Target| everything(target) && target.port.is_none_or(|port| port == 53);
    let closed = policy.otherwise == Verdict::Deny || policy.deny.iter().any(denies_resolvers);
    !closed || !policy.resolvers.is_empty()
}

/// Entries of `allow`, and of `deny`.
pub const MOST_ENTRIES: usize = 1024;
/// Resolvers of one policy. A C library asks three.
pub const MOST_RESOLVERS: usize = 8;

/// Refuses a policy with an entry that could never match, or not as meant, and one that is too long.
pub fn check(policy: &Egress) -> Result<(), String> {
    for (list, length, most) in [
        ("allow", policy.allow.len(), MOST_ENTRIES),
        ("deny", policy.deny.len(), MOST_ENTRIES),
        ("resolvers", policy.resolvers.len(), MOST_RESOLVERS),
    ] {
        if length > most {
            return Err(format!("`{list}` has {length} entries, at most {most} are allowed"));
        }
    }
    for entry in policy.allow.iter().chain(&policy.deny) {
        target::check(entry)?;
        if ranges::meant(entry.address) != entry.address {
            return Err(format!("{entry} wraps an IPv4 address; write {}", ranges::meant(entry.address)));
        }
    }
    let rules = Rules::of(policy);
    for &resolver in &policy.resolvers {
        if let Decision::Refused(Ground::BuiltIn(class)) = rules.may_resolve_at(resolver, Place::Elsewhere) {
            return Err(format!("the resolver {resolver} is {class}; add {resolver}:53 to `allow` to use it"));
        }
    }
    Ok(())
}
