//! The rules inside a sandbox's network namespace, as nftables takes them: one netlink batch, no `nft` program.
//!
//! ```text
//! table ip cove {
//!   chain local { type filter hook output priority -300; policy accept
//!     ip saddr 127.0.0.0/8 ip daddr 127.0.0.0/8 notrack   # the kernel keeps no account of what a sandbox says to
//!     ip saddr 10.200.0.2 ip daddr 10.200.0.2 notrack     # itself: faster, and no memory to fill
//!   }
//!   chain redirect { type nat hook output priority -100; policy accept
//!     ip daddr 127.0.0.0/8 accept              # the sandbox's own servers
//!     ip daddr 10.200.0.2 accept               # and by its own address
//!     meta l4proto tcp dnat to 127.200.0.1:1   # the proxy's listener
//!     udp dport 53 dnat to 127.200.0.1:1       # the proxy's resolver
//!   }
//!   chain guard { type filter hook output priority 0; policy drop
//!     ip daddr 127.0.0.0/8 accept              # sees what the first chain made of a packet
//!     ip daddr 10.200.0.2 accept
//!   }
//! }
//! table ip6 cove {
//!   chain guard { type filter hook output priority 0; policy drop
//!     ip6 daddr ::1 accept
//!   }
//! }
//! ```
//!
//! What the guard drops on its way out is answered with EPERM at the call that sent it: other UDP and ICMP fail at
//! once instead of hanging. Even without these rules nothing would leave: the namespace has no device but loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use super::netlink::{ACKNOWLEDGE, APPEND, Attributes, Batch, CREATE};

const TABLE: &str = "cove";
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Whether this kernel speaks IPv6 at all (`ipv6.disable=1` removes its hooks).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    Present,
    Absent,
}

/// The whole rule set for a sandbox that has `own` as its address and whose traffic goes to `proxy`.
pub fn redirect_everything(own: Ipv4Addr, proxy: SocketAddrV4, ipv6: Ipv6) -> Batch {
    use Expression::{Accept, DestinationIs, DestinationPortIs, ProtocolIs, SourceIs, TranslateTo, Untracked};
    let own = own.octets();
    let mut rules = Rules::begin();

    rules.table(Family::V4);
    rules.chain(Family::V4, "local", Chain::EARLY);
    rules.rule(Family::V4, "local", &[SourceIs(&[127]), DestinationIs(&[127]), Untracked]);
    rules.rule(Family::V4, "local", &[SourceIs(&own), DestinationIs(&own), Untracked]);
    rules.chain(Family::V4, "redirect", Chain::TRANSLATE);
    rules.rule(Family::V4, "redirect", &[DestinationIs(&[127]), Accept]);
    rules.rule(Family::V4, "redirect", &[DestinationIs(&own), Accept]);
    rules.rule(Family::V4, "redirect", &[ProtocolIs(TCP), TranslateTo(proxy)]);
    rules.rule(Family::V4, "redirect", &[ProtocolIs(UDP), DestinationPortIs(53), TranslateTo(proxy)]);
    rules.chain(Family::V4, "guard", Chain::GUARD);
    rules.rule(Family::V4, "guard", &[DestinationIs(&[127]), Accept]);
    rules.rule(Family::V4, "guard", &[DestinationIs(&own), Accept]);

    if ipv6 == Ipv6::Present {
        rules.table(Family::V6);
        rules.chain(Family::V6, "guard", Chain::GUARD);
        rules.rule(Family::V6, "guard", &[DestinationIs(&Ipv6Addr::LOCALHOST.octets()), Accept]);
    }
    rules.end()
}

/// One step of a rule; a rule is left at the first that does not hold.
enum Expression<'a> {
    /// The source address starts with these bytes. For IPv4 only.
    SourceIs(&'a [u8]),
    /// The destination address starts with these bytes.
    DestinationIs(&'a [u8]),
    ProtocolIs(u8),
    DestinationPortIs(u16),
    TranslateTo(SocketAddrV4),
    /// Kept out of connection tracking.
    Untracked,
    Accept,
}

#[derive(Clone, Copy)]
#[repr(u8)]
enum Family {
    V4 = 2,
    V6 = 10,
}

/// What a chain does, at which hook, and its policy for packets that no rule decides.
struct Chain {
    kind: &'static str,
    priority: i32,
    policy: u32,
}

const DROP: u32 = 0;
const ACCEPT: u32 = 1;

impl Chain {
    /// Before connection tracking, which has -200.
    const EARLY: Chain = Chain { kind: "filter", priority: -300, policy: ACCEPT };
    const TRANSLATE: Chain = Chain { kind: "nat", priority: -100, policy: ACCEPT };
    const GUARD: Chain = Chain { kind: "filter", priority: 0, policy: DROP };
}

/// The encoding. Numbers are those of `linux/netfilter/nf_tables.h`; nftables takes them in network order.
struct Rules(Batch);

impl Rules {
    const SUBSYSTEM: u16 = 10;

    fn begin() -> Rules {
        let mut batch = Batch::default();
        batch.message(0x10, 0, &[0, 0, 0, Self::SUBSYSTEM as u8], |_| {});
        Rules(batch)
    }

    fn end(mut self) -> Batch {
        self.0.message(0x11, 0, &[0, 0, 0, Self::SUBSYSTEM as u8], |_| {});
        self.0
    }

    fn table(&mut self, family: Family) {
        self.0.message(Self::SUBSYSTEM << 8, ACKNOWLEDGE | CREATE, &[family as u8, 0, 0, 0], |message| {
            message.text(1, TABLE);
        });
    }

    fn chain(&mut self, family: Family, name: &str, chain: Chain) {
        const LOCAL_OUT: u32 = 3;
        self.0.message(Self::SUBSYSTEM << 8 | 3, ACKNOWLEDGE | CREATE, &[family as u8, 0, 0, 0], |message| {
            message.text(1, TABLE).text(3, name).nest(4, |hook| {
                hook.big_endian(1, LOCAL_OUT).put(2, &chain.priority.to_be_bytes());
            });
            message.big_endian(5, chain.policy).text(7, chain.kind);
        });
    }

    fn rule(&mut self, family: Family, chain: &str, expressions: &[Expression<'_>]) {
        let flags = ACKNOWLEDGE | CREATE | APPEND;
        self.0.message(Self::SUBSYSTEM << 8 | 6, flags, &[family as u8, 0, 0, 0], |message| {
            message.text(1, TABLE).text(2, chain).nest(4, |list| {
                for expression in expressions {
                    expression.encode(family, list);
                }
            });
        });
    }
}

const REGISTER_VERDICT: u32 = 0;
const REGISTER_1: u32 = 1;
const REGISTER_2: u32 = 2;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

impl Expression<'_> {
    fn encode(&self, family: Family, list: &mut Attributes<'_>) {
        match self {
            Expression::SourceIs(bytes) => {
                load(list, NETWORK_HEADER, 12, bytes.len());
                equals(list, bytes);
            }
            Expression::DestinationIs(bytes) => {
                let offset = match family {
                    Family::V4 => 16,
                    Family::V6 => 24,
                };
                load(list, NETWORK_HEADER, offset, bytes.len());
                equals(list, bytes);
            }
            Expression::ProtocolIs(protocol) => {
                const LAYER_4_PROTOCOL: u32 = 16;
                expression(list, "meta", |meta| {
                    meta.big_endian(1, REGISTER_1).big_endian(2, LAYER_4_PROTOCOL);
                });
                equals(list, &[*protocol]);
            }
            Expression::DestinationPortIs(port) => {
                load(list, TRANSPORT_HEADER, 2, 2);
                equals(list, &port.to_be_bytes());
            }
            Expression::TranslateTo(target) => {
                const DESTINATION: u32 = 1;
                immediate(list, REGISTER_1, &target.ip().octets());
                immediate(list, REGISTER_2, &target.port().to_be_bytes());
                expression(list, "nat", |nat| {
                    nat.big_endian(1, DESTINATION).big_endian(2, family as u32);
                    nat.big_endian(3, REGISTER_1).big_endian(5, REGISTER_2);
                });
            }
            Expression::Untracked => expression(list, "notrack", |_| {}),
            Expression::Accept => expression(list, "immediate", |immediate| {
                immediate.big_endian(1, REGISTER_VERDICT).nest(2, |data| {
                    data.nest(2, |verdict| {
                        verdict.big_endian(1, ACCEPT);
                    });
                });
            }),
        }
    }
}

fn expression(list: &mut Attributes<'_>, name: &str, data: impl FnOnce(&mut Attributes<'_>)) {
    list.nest(1, |element| {
        element.text(1, name).nest(2, data);
    });
}

/// Loads bytes of the packet into the first register.
fn load(list: &mut Attributes<'_>, base: u32, offset: u32, length: usize) {
    expression(list, "payload", |payload| {
        payload.big_endian(1, REGISTER_1).big_endian(2, base);
        payload.big_endian(3, offset).big_endian(4, length as u32);
    });
}

/// Goes on only when the first register holds these bytes.
fn equals(list: &mut Attributes<'_>, bytes: &[u8]) {
    const EQUAL: u32 = 0;
    expression(list, "cmp", |compare| {
        compare.big_endian(1, REGISTER_1).big_endian(2, EQUAL).nest(3, |data| {
            data.put(1, bytes);
        });
    });
}

fn immediate(list: &mut Attributes<'_>, register: u32, bytes: &[u8]) {
    expression(list, "immediate", |immediate| {
        immediate.big_endian(1, register).nest(2, |data| {
            data.put(1, bytes);
        });
    });
}
