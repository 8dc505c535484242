//! Targets as people write them: `1.2.3.4`, `10.0.0.0/8`, `10.0.0.0/8:443`, `[2001:db8::]/32`, `[2001:db8::1]:443`.
//!
//! An IPv6 address needs brackets before a port, as in a URL; alone it may go without.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::egress::Target;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no egress target: {problem} (write an address, a network or either with a port: 1.2.3.4, 10.0.0.0/8, 10.0.0.5:5432, [2001:db8::]/32:443)"
)]
pub struct InvalidTarget {
    text: String,
    problem: String,
}

impl FromStr for Target {
    type Err = InvalidTarget;

    fn from_str(text: &str) -> Result<Self, InvalidTarget> {
        parse(text).map_err(|problem| InvalidTarget { text: text.to_owned(), problem })
    }
}

fn parse(text: &str) -> Result<Target, String> {
    let (address, rest) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, rest) = bracketed.split_once(']').ok_or("the bracket is not closed")?;
            let address: Ipv6Addr = address.parse().map_err(|_| format!("`{address}` is no IPv6 address"))?;
            (IpAddr::V6(address), rest)
        }
        None => {
            let bare_ipv6 = text.matches(':').count() > 1;
            let end = text.find(|c| c == '/' || (c == ':' && !bare_ipv6)).unwrap_or(text.len());
            let (address, rest) = text.split_at(end);
            (address.parse().map_err(|_| format!("`{address}` is no IP address"))?, rest)
        }
    };
    let (prefix, port) = match rest.split_once(':') {
        Some((prefix, port)) => (prefix, Some(port)),
        None => (rest, None),
    };
    let prefix = match prefix.strip_prefix('/') {
        None if prefix.is_empty() => None,
        None => return Err(format!("`{prefix}` follows the address")),
        Some(bits) => Some(bits.parse::<u8>().map_err(|_| format!("`{bits}` is no prefix length"))?),
    };
    let port = match port.map(|port| port.parse::<u16>().map_err(|_| port)) {
        None => None,
        Some(Ok(port)) if port > 0 => Some(port),
        Some(Ok(_)) => return Err("0 is no port".to_owned()),
        Some(Err(port)) => return Err(format!("`{port}` is no port")),
    };
    let target = Target { address, prefix: prefix.unwrap_or(width(address)), port };
    check(&target)?;
    Ok(target)
}

/// The rules for every target: `Target` is also read from JSON.
pub(crate) fn check(target: &Target) -> Result<(), String> {
    if target.prefix > width(target.address) {
        return Err(format!("a prefix of {} is longer than the address", target.prefix));
    }
    let network = masked(target.address, target.prefix);
    if network != target.address {
        return Err(format!(
            "{} has bits beyond its prefix; {network}/{} is that network",
            target.address, target.prefix
        ));
    }
    Ok(())
}

/// How many bits an address of this family has.
pub(crate) fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address with everything beyond the prefix cleared.
pub(crate) fn masked(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.min(128))).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            IpAddr::V4(address) => write!(f, "{address}")?,
            IpAddr::V6(address) => write!(f, "[{address}]")?,
        }
        if self.prefix != width(self.address) {
            write!(f, "/{}", self.prefix)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: &str, prefix: u8, port: Option<u16>) -> Target {
        Target { address: address.parse().unwrap(), prefix, port }
    }

    #[test]
    fn every_form_is_understood_and_printed_back() {
        for (text, expected) in [
            ("1.2.3.4", target("1.2.3.4", 32, None)),
            ("1.2.3.4:443", target("1.2.3.4", 32, Some(443))),
            ("10.0.0.0/8", target("10.0.0.0", 8, None)),
            ("10.0.0.0/8:443", target("10.0.0.0", 8, Some(443))),
            ("0.0.0.0/0", target("0.0.0.0", 0, None)),
            ("[2001:db8::]/32", target("2001:db8::", 32, None)),
            ("[2001:db8::]/32:443", target("2001:db8::", 32, Some(443))),
            ("[2001:db8::1]:443", target("2001:db8::1", 128, Some(443))),
            ("[::]/0", target("::", 0, None)),
        ] {
            assert_eq!(text.parse::<Target>().as_ref(), Ok(&expected), "{text}");
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn an_ipv6_address_alone_needs_no_brackets() {
        assert_eq!("2001:db8::/32".parse(), Ok(target("2001:db8::", 32, None)));
        assert_eq!("::1".parse(), Ok(target("::1", 128, None)));
        assert_eq!("1.2.3.4/32".parse(), Ok(target("1.2.3.4", 32, None)));
    }

    #[test]
    fn nonsense_is_refused_and_named() {
        for (text, problem) in [
            ("", "`` is no IP address"),
            ("example.com", "`example.com` is no IP address"),
            ("1.2.3", "is no IP address"),
            ("1.2.3.4/33", "longer than the address"),
            ("1.2.3.4/", "`` is no prefix length"),
            ("1.2.3.4/-1", "`-1` is no prefix length"),
            ("1.2.3.4:", "`` is no port"),
            ("1.2.3.4:0", "0 is no port"),
            ("1.2.3.4:65536", "`65536` is no port"),
            ("10.1.2.3/8", "10.0.0.0/8 is that network"),
            ("[::1", "the bracket is not closed"),
            ("[1.2.3.4]", "is no IPv6 address"),
            ("[::1]x", "`x` follows the address"),
            ("[::]/129", "longer than the address"),
        ] {
            let error = text.parse::<Target>().expect_err(text).to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
