//! `--allow` as people write it: an address, a network, or a name.
//!
//! A sandbox's network policy consists of addresses. A name stands for the addresses that it has now, on this machine.
//! It is written into `/etc/hosts` inside, so that it resolves without a question leaving the sandbox. A name's owner
//! chooses its addresses, so a name never opens a private address.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use cove_engine::network::ranges::special;
use cove_engine::spec::Target;

use crate::complaint::Complaint;

/// The result of `--allow`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Reachable {
    pub targets: Vec<Target>,
    /// Names and their addresses.
    hosts: Vec<(String, Ipv4Addr)>,
}

impl Reachable {
    pub fn read(entries: &[String]) -> Result<Reachable, Complaint> {
        let mut all = Reachable::default();
        for entry in entries {
            match entry.parse::<Target>() {
                Ok(target) => all.targets.push(target),
                Err(error) => match name_of(entry) {
                    Some((name, port)) => all.add(entry, name, port)?,
                    None => {
                        // The message names the entry, and the hint says how to write one.
                        let why = error.to_string();
                        let why = why.split_once(" (write ").map_or(why.as_str(), |(why, _)| why);
                        let why = why.split_once("target: ").map_or(why, |(_, why)| why);
                        return Err(Complaint::usage(format!("--allow {entry}: {why}")).hint(EXAMPLE));
                    }
                },
            }
        }
        Ok(all)
    }

    fn add(&mut self, entry: &str, name: &str, port: Option<u16>) -> Result<(), Complaint> {
        let wrong = |why: &str| Complaint::usage(format!("--allow {entry}: {why}"));
        let found = (name, port.unwrap_or(0))
            .to_socket_addrs()
            .map_err(|_| wrong("this machine finds no address for the name").hint(EXAMPLE))?;
        let mut addresses: Vec<Ipv4Addr> = found
            .filter_map(|address| match address.ip() {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            })
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(wrong("the name has no IPv4 address, and a sandbox reaches only IPv4"));
        }
        if let Some(private) = addresses.iter().find(|&&address| special(address.into()).is_some()) {
            return Err(wrong(&format!("the name resolves to {private}, which is not a public address"))
                .hint(format!("if you want that, write: --allow {private}")));
        }
        self.targets.extend(addresses.iter().map(|&address| Target { address: address.into(), prefix: 32, port }));
        self.hosts.extend(addresses.into_iter().map(|address| (name.to_owned(), address)));
        Ok(())
    }

    /// In the API's form.
    pub fn texts(&self) -> Vec<String> {
        self.targets.iter().map(ToString::to_string).collect()
    }

    /// Lines for `/etc/hosts`; empty where no name was given.
    pub fn hosts(&self) -> Option<String> {
        let lines: String = self.hosts.iter().map(|(name, address)| format!("{address}\t{name}\n")).collect();
        (!lines.is_empty()).then_some(lines)
    }
}

const EXAMPLE: &str = "write an address with its prefix and port, for example 10.0.0.0/8 or 10.1.2.3:5432";

/// `example.com`, `example.com:443`; `None` for what can only be a mistyped address.
fn name_of(text: &str) -> Option<(&str, Option<u16>)> {
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok().filter(|&port| port > 0)?)),
        None => (text, None),
    };
    let label = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !part.starts_with('-')
    };
    let fits = name.len() <= 253 && name.bytes().any(|b| b.is_ascii_alphabetic()) && name.split('.').all(label);
    fits.then_some((name, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(entries: &[&str]) -> Result<Reachable, String> {
        let entries: Vec<String> = entries.iter().map(|&entry| entry.to_owned()).collect();
        Reachable::read(&entries).map_err(|complaint| complaint.to_string())
    }

    #[test]
    fn addresses_and_networks_stay_what_they_are() {
        let all = read(&["10.0.0.0/8", "1.2.3.4:443"]).unwrap();
        assert_eq!((all.texts(), all.hosts()), (vec!["10.0.0.0/8".to_owned(), "1.2.3.4:443".to_owned()], None));
    }

    #[test]
    fn a_name_never_opens_a_private_network() {
        let refused = read(&["localhost:80"]).unwrap_err();
        assert!(
            refused.contains("the name resolves to 127.0.0.1") && refused.contains("--allow 127.0.0.1"),
            "{refused}"
        );
        let refused = read(&["no-such-name.invalid"]).unwrap_err();
        assert!(refused.contains("finds no address"), "{refused}");
    }

    #[test]
    fn what_is_neither_is_refused_with_an_example() {
        for text in ["10.0.0.0/99", "1.2.3", "example.com:http", "a b", "", "-x", "https://example.com"] {
            let refused = read(&[text]).unwrap_err();
            assert!(refused.contains("\nhint: "), "{text}: {refused}");
        }
    }
}
