//! How much of the server one address, one organisation, one sandbox and all callers without a key may use.
//!
//! ```text
//!   connections:  most ── a quarter at most without a word yet (the oldest give way) ── per address
//!   under way:    three quarters of most with a key ── per organisation ── streams have three quarters of that
//!                 a quarter of most without a key  ── per sandbox
//! ```
//! Callers without a key cannot use what is reserved for keys, and no organisation can use what others need. An
//! organisation with all its streams open still gets answers to short requests.

use std::net::{IpAddr, Ipv6Addr};

use cove_policy::Target;
use cove_policy::policy;

use crate::config::Connections;

/// Files that are always open: the store, the log, listeners, the engine's own.
const KEPT: u64 = 128;
/// Files for one connection: the socket, the connection into the sandbox, and what the sandbox needs.
const FILES_EACH: u64 = 4;
const FEWEST: u64 = 32;
const MOST: u64 = 65_536;

#[derive(Debug, Clone)]
pub struct Budget {
    /// Connections in all.
    pub lines: usize,
    /// Connections that have asked for nothing yet.
    pub fresh: usize,
    pub per_address: usize,
    proxies: Vec<Target>,
    /// Requests under way with any key.
    pub known: usize,
    pub per_organisation: usize,
    pub streams_per_organisation: usize,
    /// Requests under way that came to a sandbox without a key.
    pub keyless: usize,
    pub per_sandbox: usize,
    pub unfinished_bytes: u64,
    /// Bytes of bodies that the requests of one organisation hold in memory.
    pub held_bytes: u64,
}

impl Budget {
    /// The configured budget, for a process that may open this many files.
    pub fn new(wanted: &Connections, files: u64) -> Budget {
        let most = match wanted.most {
            0 => (files.saturating_sub(KEPT) / FILES_EACH).clamp(FEWEST, MOST),
            most => most,
        };
        let share = |wanted: u64, usual: u64| (if wanted == 0 { usual.max(1) } else { wanted }) as usize;
        let per_organisation = share(wanted.per_organisation, most / 2);
        Budget {
            lines: most as usize,
            fresh: share(0, most / 4),
            per_address: share(wanted.per_address, most / 4),
            proxies: wanted.proxies.clone(),
            known: share(0, most * 3 / 4),
            per_organisation,
            streams_per_organisation: (per_organisation * 3 / 4).max(1),
            keyless: share(0, most / 4),
            per_sandbox: share(wanted.per_sandbox, most / 8),
            unfinished_bytes: wanted.unfinished_bytes,
            held_bytes: wanted.unfinished_bytes.saturating_mul(4),
        }
    }

    /// The address that a connection is counted for; `None` where it comes from a proxy.
    pub fn counted_for(&self, address: IpAddr) -> Option<IpAddr> {
        let address = address.to_canonical();
        let one = Target { address, prefix: if address.is_ipv4() { 32 } else { 128 }, port: None };
        if self.proxies.iter().any(|proxy| policy::lies_within(&one, proxy)) {
            return None;
        }
        Some(match address {
            IpAddr::V4(_) => address,
            // A client with one IPv6 address has all 2^64 addresses of its /64.
            IpAddr::V6(six) => IpAddr::V6(Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX))),
        })
    }
}

impl Default for Budget {
    /// For a process with the usual limit of open files.
    fn default() -> Self {
        Budget::new(&Connections::default(), 1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_and_one_organisation_leave_room_for_others() {
        for files in [256, 512, 1024, 20_000, 1 << 20] {
            let budget = Budget::new(&Connections::default(), files);
            let worst = budget.fresh + 3 * (budget.keyless + budget.known);
            assert!((worst as u64) < files || files < 512, "{files}: {budget:?}");
            assert!(budget.streams_per_organisation < budget.per_organisation, "{budget:?}");
            assert!(budget.per_organisation + budget.keyless <= budget.lines, "{budget:?}");
        }
    }

    #[test]
    fn a_proxy_is_nobody_and_a_network_of_ipv6_is_one() {
        let budget = Budget::default();
        let ask = |text: &str| budget.counted_for(text.parse().unwrap());
        assert_eq!((ask("127.0.0.1"), ask("::1"), ask("::ffff:127.0.0.1")), (None, None, None));
        assert_eq!(ask("192.0.2.1"), Some("192.0.2.1".parse().unwrap()));
        assert_eq!(ask("2001:db8::1"), ask("2001:db8::ffff:1"));
        assert_ne!(ask("2001:db8::1"), ask("2001:db8:0:1::1"));
    }
}
