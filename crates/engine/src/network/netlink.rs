//! Speaking netlink: messages as bytes, sent in one go, every answer awaited.
//!
//! The few messages that a sandbox's network needs are fixed, so they are written down here rather than through a
//! library that knows them all: a namespace is set up with a handful of system calls and no helper program.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use cove_sys::netlink::{self, Subsystem};
use rustix::net::AddressFamily;

pub const REQUEST: u16 = 1;
pub const ACKNOWLEDGE: u16 = 4;
pub const CREATE: u16 = 0x400;
pub const EXCLUSIVE: u16 = 0x200;
pub const APPEND: u16 = 0x800;

const NESTED: u16 = 0x8000;

/// Messages of one netlink protocol, back to back, as they are sent.
#[derive(Debug, Default)]
pub struct Batch {
    pub bytes: Vec<u8>,
    /// How many answers the kernel will give.
    pub answers: u32,
    sequence: u32,
}

impl Batch {
    /// Adds a message: its type, its flags, the fixed part that its type demands, then attributes.
    pub fn message(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.sequence += 1;
        if flags & ACKNOWLEDGE != 0 {
            self.answers += 1;
        }
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((REQUEST | flags).to_ne_bytes());
        self.bytes.extend(self.sequence.to_ne_bytes());
        self.bytes.extend(0u32.to_ne_bytes());
        self.bytes.extend(fixed);
        attributes(&mut Attributes { bytes: &mut self.bytes });
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
    }
}

/// The attributes of a message or of a nest, in the order they are put.
pub struct Attributes<'a> {
    bytes: &'a mut Vec<u8>,
}

impl Attributes<'_> {
    pub fn put(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = (4 + value.len()) as u16;
        self.bytes.extend(length.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    /// A number in network order, as nftables wants all of its own.
    pub fn big_endian(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_be_bytes())
    }

    pub fn native(&mut self, kind: u16, value: u32) -> &mut Self {
        self.put(kind, &value.to_ne_bytes())
    }

    /// Text with its closing zero.
    pub fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.put(kind, &bytes)
    }

    pub fn nest(&mut self, kind: u16, inside: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        let start = self.bytes.len();
        self.bytes.extend(0u16.to_ne_bytes());
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        inside(&mut Attributes { bytes: self.bytes });
        let length = (self.bytes.len() - start) as u16;
        self.bytes[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }
}

/// An open netlink socket of the namespace the thread was in when it was opened.
pub struct Socket(OwnedFd);

impl Socket {
    pub fn open(subsystem: Subsystem) -> io::Result<Socket> {
        Ok(Socket(netlink::open(subsystem)?))
    }

    /// Sends the batch and waits for every answer; the first refusal is the result.
    pub fn execute(&self, batch: &Batch) -> io::Result<()> {
        Ok(netlink::execute(&self.0, &batch.bytes, batch.answers)?)
    }
}

/// Brings up the loopback device, which is the first in every namespace.
pub fn loopback_up(batch: &mut Batch) {
    const SET_LINK: u16 = 19;
    const UP: u32 = 1;
    let mut fixed = [0u8; 16];
    fixed[4..8].copy_from_slice(&LOOPBACK.to_ne_bytes());
    fixed[8..12].copy_from_slice(&UP.to_ne_bytes());
    fixed[12..16].copy_from_slice(&UP.to_ne_bytes());
    batch.message(SET_LINK, ACKNOWLEDGE, &fixed, |_| {});
}

/// Gives the loopback device an address of its own besides 127.0.0.1.
pub fn loopback_address(batch: &mut Batch, address: Ipv4Addr) {
    const NEW_ADDRESS: u16 = 20;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let mut fixed = [AddressFamily::INET.as_raw() as u8, 32, 0, 0, 0, 0, 0, 0];
    fixed[4..8].copy_from_slice(&LOOPBACK.to_ne_bytes());
    batch.message(NEW_ADDRESS, ACKNOWLEDGE | CREATE | EXCLUSIVE, &fixed, |message| {
        message.put(LOCAL, &address.octets()).put(ADDRESS, &address.octets());
    });
}

/// Sends everything that has no better route to the loopback device, from the given address.
pub fn default_over_loopback(batch: &mut Batch, source: Ipv4Addr) {
    const NEW_ROUTE: u16 = 24;
    const OUTPUT_DEVICE: u16 = 4;
    const PREFERRED_SOURCE: u16 = 7;
    const TABLE_MAIN: u8 = 254;
    const PROTOCOL_BOOT: u8 = 3;
    const SCOPE_LINK: u8 = 253;
    const UNICAST: u8 = 1;
    let family = AddressFamily::INET.as_raw() as u8;
    let fixed = [family, 0, 0, 0, TABLE_MAIN, PROTOCOL_BOOT, SCOPE_LINK, UNICAST, 0, 0, 0, 0];
    batch.message(NEW_ROUTE, ACKNOWLEDGE | CREATE | EXCLUSIVE, &fixed, |message| {
        message.native(OUTPUT_DEVICE, LOOPBACK).put(PREFERRED_SOURCE, &source.octets());
    });
}

const LOOPBACK: u32 = 1;
