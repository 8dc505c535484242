//! Whose address is it? The host's routing table knows; one socket asks for any number of addresses.

use std::io;
use std::net::IpAddr;

use cove_sys::netlink::Subsystem;
use rustix::io::Errno;

use super::netlink;
use super::policy::Place;

/// Asks the routing table of the network namespace in which it was opened.
pub struct Places(netlink::Socket);

impl Places {
    pub fn open() -> io::Result<Places> {
        netlink::Socket::open(Subsystem::Route).map(Places)
    }

    /// What cannot be determined counts as the host's own: refused.
    pub fn of(&self, address: IpAddr) -> Place {
        const UNICAST: u8 = 1;
        const LOCAL_TO_BROADCAST_AND_MULTICAST: std::ops::RangeInclusive<u8> = 2..=5;
        match self.0.route_type(address) {
            Ok(UNICAST) => Place::Elsewhere,
            Ok(kind) if !LOCAL_TO_BROADCAST_AND_MULTICAST.contains(&kind) => Place::Elsewhere,
            Ok(_) => Place::ThisHost,
            // No route there: the dial will say so.
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL) => Place::Elsewhere,
                _ => Place::ThisHost,
            },
        }
    }
}
