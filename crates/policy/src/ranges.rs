//! Addresses that are not the open internet, each with the reason why a sandbox is kept from it.
//!
//! From the IANA registries of special-purpose addresses. Documentation ranges are left out: nobody is there.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::target::masked;

/// Why an address is refused without anybody having said so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// An address of the machine that Cove runs on.
    Host,
    /// Would reach services that trust their neighbours.
    Loopback,
    Private,
    /// Carrier-grade NAT; some clouds put their own services and some VPNs their members here.
    Shared,
    /// Cloud metadata services hand out credentials at 169.254.169.254.
    LinkLocal,
    Multicast,
    /// "This network", protocol assignments, benchmarks, future use, broadcast.
    Reserved,
    /// Wraps an IPv4 address in a way that leaves the wrapped one unclear.
    Transition,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Host => "an address of the host itself",
            Class::Loopback => "a loopback address",
            Class::Private => "a private address",
            Class::Shared => "a shared address behind carrier-grade NAT",
            Class::LinkLocal => "a link-local address, where metadata services live",
            Class::Multicast => "a multicast address",
            Class::Reserved => "a reserved address",
            Class::Transition => "an address of a transition mechanism",
        })
    }
}

const V4: [(Ipv4Addr, u8, Class); 12] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, Class::Reserved),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Class::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Class::Shared),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Class::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Class::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Class::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Class::Reserved),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Class::Transition),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Class::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Class::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Class::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Class::Reserved),
];

const V6: [(Ipv6Addr, u8, Class); 11] = [
    (Ipv6Addr::LOCALHOST, 128, Class::Loopback),
    // Unspecified, and the long abandoned IPv4-compatible addresses.
    (Ipv6Addr::UNSPECIFIED, 96, Class::Reserved),
    // NAT64 of a network's own; the well-known one is unwrapped.
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, Class::Transition),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, Class::Reserved),
    // Teredo.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, Class::Transition),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, Class::Reserved),
    // Unique local; fd00:ec2::254 is a cloud's metadata service.
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Class::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Class::LinkLocal),
    // Site-local: deprecated, still routed in places.
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Class::Private),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Class::Multicast),
    (Ipv6Addr::new(0x2001, 0x10, 0, 0, 0, 0, 0, 0), 28, Class::Reserved),
];

/// The special range of an address, with its network; `None` for a public address.
pub fn special(address: IpAddr) -> Option<(IpAddr, u8, Class)> {
    match address {
        IpAddr::V4(_) => {
            V4.iter().map(|&(network, prefix, class)| (IpAddr::V4(network), prefix, class)).find(holds(address))
        }
        IpAddr::V6(_) => {
            V6.iter().map(|&(network, prefix, class)| (IpAddr::V6(network), prefix, class)).find(holds(address))
        }
    }
}

fn holds(address: IpAddr) -> impl Fn(&(IpAddr, u8, Class)) -> bool {
    move |&(network, prefix, _)| masked(address, prefix) == network
}

/// The address that is really meant: an IPv4 address in IPv6 clothes is undressed, so that no clothes change a verdict.
pub fn meant(address: IpAddr) -> IpAddr {
    let IpAddr::V6(dressed) = address else { return address };
    let octets = dressed.octets();
    let v4 = |at: usize| IpAddr::V4(Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3]));
    match dressed.segments() {
        // Mapped (::ffff:a.b.c.d), translated (::ffff:0:a.b.c.d) and NAT64's well-known prefix.
        [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => v4(12),
        // 6to4.
        [0x2002, ..] => v4(2),
        _ => address,
    }
}
