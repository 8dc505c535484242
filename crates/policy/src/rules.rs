//! A policy made ready to be asked for every connection.
//!
//! The proxy's threads serve many sandboxes, so one sandbox's long list must not make another's connection wait. Entries
//! are kept by the length of their prefix, in a hash table for each: a question costs one look for each length that
//! occurs (at most 33 for IPv4, 129 for IPv6), however many entries there are.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use crate::egress::{Egress, Target, Verdict};
use crate::policy::{Decision, Destination, Ground, Place, resolves_names};
use crate::ranges::{self, Class};
use crate::target::{masked, width};

/// The compiled form of an [`Egress`].
#[derive(Debug)]
pub struct Rules {
    allow: Table,
    deny: Table,
    otherwise: Verdict,
    /// As the policy names them.
    pub resolvers: Vec<IpAddr>,
    /// Whether names are answered at all.
    pub resolves_names: bool,
}

impl Rules {
    pub fn of(policy: &Egress) -> Rules {
        Rules {
            allow: Table::of(&policy.allow),
            deny: Table::of(&policy.deny),
            otherwise: policy.otherwise,
            resolvers: policy.resolvers.clone(),
            resolves_names: resolves_names(policy),
        }
    }

    pub fn decide(&self, destination: &Destination) -> Decision {
        self.judge(destination, &self.deny, self.otherwise)
    }

    /// Whether names may be asked of this resolver. A policy that names a resolver wants it asked, whatever it says of
    /// other traffic; but a resolver is no way around the built-in refusals.
    pub fn may_resolve_at(&self, resolver: IpAddr, place: Place) -> Decision {
        let destination = Destination { address: resolver, port: 53, place, name: None };
        self.judge(&destination, &Table::default(), Verdict::Allow)
    }

    fn judge(&self, destination: &Destination, deny: &Table, otherwise: Verdict) -> Decision {
        let address = ranges::meant(destination.address);
        let special = match destination.place {
            // Only the very address means the host: who allows a company's 10.0.0.0/8 did not mean this machine's services.
            Place::ThisHost => Some((width(address), Class::Host)),
            Place::Elsewhere => ranges::special(address).map(|(_, prefix, class)| (prefix, class)),
        };
        // An entry that names the address means a special range where it lies within it.
        let shortest = special.map_or(0, |(prefix, _)| prefix);
        if let Some(target) = self.allow.first(address, destination.port, shortest) {
            return Decision::Allowed(Ground::Rule(target.clone()));
        }
        if let Some(target) = deny.first(address, destination.port, 0) {
            return Decision::Refused(Ground::Rule(target.clone()));
        }
        match (special, otherwise) {
            (Some((_, class)), _) => Decision::Refused(Ground::BuiltIn(class)),
            (None, Verdict::Allow) => Decision::Allowed(Ground::Otherwise),
            (None, Verdict::Deny) => Decision::Refused(Ground::Otherwise),
        }
    }
}

/// Entries by family and length of their prefix.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<Target>,
    /// By the number of bits of the family and of the prefix; in each the networks of that length.
    by_prefix: BTreeMap<(u8, u8), HashMap<IpAddr, Ports>>,
}

/// Which entry comes first for a network, by its place in the list.
#[derive(Debug, Default)]
struct Ports {
    any: Option<usize>,
    only: HashMap<u16, usize>,
}

impl Table {
    fn of(targets: &[Target]) -> Table {
        let mut by_prefix: BTreeMap<_, HashMap<IpAddr, Ports>> = BTreeMap::new();
        for (place, target) in targets.iter().enumerate() {
            let networks = by_prefix.entry((width(target.address), target.prefix)).or_default();
            let ports = networks.entry(masked(target.address, target.prefix)).or_default();
            match target.port {
                None => drop(ports.any.get_or_insert(place)),
                Some(port) => drop(ports.only.entry(port).or_insert(place)),
            }
        }
        Table { entries: targets.to_vec(), by_prefix }
    }

    /// The first entry of the list that names this, with a prefix of at least so many bits.
    fn first(&self, address: IpAddr, port: u16, shortest: u8) -> Option<&Target> {
        let family = width(address);
        let lengths = self.by_prefix.range((family, shortest)..=(family, family));
        let named = lengths.filter_map(|(&(_, prefix), networks)| networks.get(&masked(address, prefix)));
        let places = named.flat_map(|ports| ports.any.into_iter().chain(ports.only.get(&port).copied()));
        self.entries.get(places.min()?)
    }
}
