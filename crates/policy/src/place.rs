//! Whose address is it? The host's routing table knows; one socket asks for any number of addresses.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use cove_sys::netlink::{self, Answers, Subsystem};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, recv};

use crate::policy::Place;

/// Asks the routing table of the network namespace in which it was opened.
pub struct Places {
    socket: OwnedFd,
    /// Numbers the questions, so that an answer that comes late is not taken for another's.
    questions: Cell<u32>,
}

impl Places {
    pub fn open() -> io::Result<Places> {
        Ok(Places { socket: netlink::open(Subsystem::Route)?, questions: Cell::new(0) })
    }

    /// What cannot be determined counts as the host's own: refused.
    pub fn of(&self, address: IpAddr) -> Place {
        const UNICAST: u8 = 1;
        const LOCAL_TO_BROADCAST_AND_MULTICAST: std::ops::RangeInclusive<u8> = 2..=5;
        match self.route_type(address) {
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

    /// What the host would do with a packet to this address: the type of the route it would take.
    fn route_type(&self, destination: IpAddr) -> io::Result<u8> {
        let sequence = self.questions.get().wrapping_add(1);
        self.questions.set(sequence);
        netlink::send(&self.socket, &question(sequence, destination))?;
        let mut buffer = [0u8; 4096];
        loop {
            let (length, _) = recv(&self.socket, &mut buffer[..], RecvFlags::empty())?;
            let mut answers = Answers(&buffer[..length]);
            let Some(answer) = answers.find(|answer| answer.sequence == sequence) else { continue };
            if let Some(Err(errno)) = answer.outcome() {
                return Err(errno.into());
            }
            let short = || io::Error::new(io::ErrorKind::InvalidData, "short netlink answer");
            return answer.body.get(7).copied().ok_or_else(short);
        }
    }
}

/// rtnetlink(7): a header, a `rtmsg`, and the destination as its one attribute.
fn question(sequence: u32, destination: IpAddr) -> Vec<u8> {
    const GET_ROUTE: u16 = 26;
    const REQUEST: u16 = 1;
    const DESTINATION: u16 = 1;
    let (family, address) = match destination {
        IpAddr::V4(address) => (AddressFamily::INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AddressFamily::INET6, address.octets().to_vec()),
    };
    let route = [family.as_raw() as u8, address.len() as u8 * 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let length = 16 + route.len() + 4 + address.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend((length as u32).to_ne_bytes());
    bytes.extend(GET_ROUTE.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend(0u32.to_ne_bytes());
    bytes.extend(route);
    bytes.extend((4 + address.len() as u16).to_ne_bytes());
    bytes.extend(DESTINATION.to_ne_bytes());
    bytes.extend(address);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_knows_its_own_addresses_and_is_asked_again_and_again() {
        let places = Places::open().unwrap();
        for _ in 0..3 {
            assert_eq!(places.of("127.0.0.1".parse().unwrap()), Place::ThisHost);
            assert_eq!(places.of("127.1.2.3".parse().unwrap()), Place::ThisHost);
            assert_eq!(places.of("203.0.113.7".parse().unwrap()), Place::Elsewhere);
        }
    }
}
