//! Addresses and ranges as the SDKs of other servers write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Every address there is.
pub const EVERYTHING: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// A range without the bits of a host in it: `10.1.2.3/8` is `10.0.0.0/8`. What is no range stays as it is, and whoever
/// reads it says why.
pub fn normalised(entry: &str) -> String {
    let cleared = || {
        let (address, prefix) = entry.split_once('/')?;
        let length: u32 = prefix.parse().ok()?;
        let network = match address.parse().ok()? {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32u32.checked_sub(length)?).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from(u32::from(address) & mask))
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128u32.checked_sub(length)?).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from(u128::from(address) & mask))
            }
        };
        Some(format!("{network}/{length}"))
    };
    cleared().unwrap_or_else(|| entry.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_loses_the_bits_of_a_host() {
        for (given, wanted) in [
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("192.0.2.77/32", "192.0.2.77/32"),
            ("1.2.3.4/0", "0.0.0.0/0"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1/99", "10.0.0.1/99"),
            ("example.com", "example.com"),
        ] {
            assert_eq!(normalised(given), wanted, "{given}");
        }
    }
}
