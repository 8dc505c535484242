//! What the policy decides, as tables.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::egress::{Egress, Target, Verdict};
use crate::policy::*;
use crate::ranges::Class;
use crate::rules::Rules;
use crate::target::{masked, width};

fn policy(allow: &[&str], deny: &[&str], otherwise: Verdict) -> Egress {
    let targets = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    Egress { allow: targets(allow), deny: targets(deny), otherwise, resolvers: Vec::new() }
}

fn destination(address: &str, port: u16) -> Destination {
    Destination { address: address.parse().unwrap(), port, place: Place::Elsewhere, name: None }
}

fn allowed(policy: &Egress, address: &str, port: u16) -> bool {
    decide(policy, &destination(address, port)).is_allowed()
}

#[test]
fn the_open_internet_is_open_by_default() {
    for address in
        ["1.1.1.1", "203.0.113.7", "172.15.255.255", "172.32.0.0", "100.63.0.1", "100.128.0.1", "2606:4700::1111"]
    {
        assert!(allowed(&Egress::default(), address, 443), "{address}");
    }
}

#[test]
fn cannot_reach_special_addresses_by_default() {
    for (address, class) in [
        ("0.0.0.0", Class::Reserved),
        ("0.1.2.3", Class::Reserved),
        ("10.0.0.5", Class::Private),
        ("100.64.0.1", Class::Shared),
        ("100.100.100.200", Class::Shared),
        ("127.0.0.1", Class::Loopback),
        ("127.200.0.1", Class::Loopback),
        ("169.254.169.254", Class::LinkLocal),
        ("172.16.0.1", Class::Private),
        ("172.31.255.255", Class::Private),
        ("192.0.0.192", Class::Reserved),
        ("192.168.1.1", Class::Private),
        ("198.19.0.1", Class::Reserved),
        ("224.0.0.1", Class::Multicast),
        ("239.255.255.250", Class::Multicast),
        ("240.0.0.1", Class::Reserved),
        ("255.255.255.255", Class::Reserved),
        ("::", Class::Reserved),
        ("::1", Class::Loopback),
        ("::7f00:1", Class::Reserved),
        ("fd00:ec2::254", Class::Private),
        ("fc00::1", Class::Private),
        ("fe80::1", Class::LinkLocal),
        ("fec0::1", Class::Private),
        ("ff02::1", Class::Multicast),
        ("64:ff9b:1::a00:5", Class::Transition),
        ("2001::1", Class::Transition),
        // The same in other clothes.
        ("::ffff:127.0.0.1", Class::Loopback),
        ("::ffff:169.254.169.254", Class::LinkLocal),
        ("::ffff:0:10.0.0.5", Class::Private),
        ("64:ff9b::a9fe:a9fe", Class::LinkLocal),
        ("2002:a9fe:a9fe::1", Class::LinkLocal),
        ("2002:7f00:1::", Class::Loopback),
    ] {
        let decision = decide(&Egress::default(), &destination(address, 80));
        assert_eq!(decision, Decision::Refused(Ground::BuiltIn(class)), "{address}");
    }
}

#[test]
fn cannot_open_private_addresses_by_allowing_everything() {
    let everything = policy(&["0.0.0.0/0", "[::]/0"], &[], Verdict::Allow);
    for address in ["10.0.0.5", "169.254.169.254", "127.0.0.1", "192.168.0.1", "fd00:ec2::254", "::ffff:10.0.0.5"] {
        assert!(!allowed(&everything, address, 80), "{address}");
    }
    let wide = policy(&["168.0.0.0/6"], &[], Verdict::Deny);
    assert!(allowed(&wide, "171.1.1.1", 80));
    assert!(!allowed(&wide, "169.254.169.254", 80));
}

#[test]
fn an_entry_within_a_private_range_opens_that_much() {
    let database = policy(&["10.0.0.5:5432", "192.168.0.0/16"], &[], Verdict::Allow);
    assert!(allowed(&database, "10.0.0.5", 5432));
    assert!(!allowed(&database, "10.0.0.5", 22));
    assert!(!allowed(&database, "10.0.0.6", 5432));
    assert!(allowed(&database, "192.168.7.7", 1));
    assert!(allowed(&database, "::ffff:10.0.0.5", 5432), "undressed before it is judged");
}

#[test]
fn cannot_reach_the_host_unless_its_very_address_is_named() {
    let here = |address: &str| Destination { place: Place::ThisHost, ..destination(address, 8080) };
    let host = Decision::Refused(Ground::BuiltIn(Class::Host));
    assert_eq!(decide(&Egress::default(), &here("203.0.113.1")), host);
    assert_eq!(decide(&policy(&["203.0.113.0/24"], &[], Verdict::Allow), &here("203.0.113.1")), host);
    assert_eq!(decide(&policy(&["10.0.0.0/8"], &[], Verdict::Allow), &here("10.1.1.1")), host);
    assert!(decide(&policy(&["10.1.1.1:8080"], &[], Verdict::Allow), &here("10.1.1.1")).is_allowed());
}

#[test]
fn allow_wins_over_deny_and_deny_over_the_rest() {
    let mixed = policy(&["203.0.113.7:443"], &["203.0.113.0/24", "198.51.100.1:25"], Verdict::Allow);
    assert!(allowed(&mixed, "203.0.113.7", 443));
    assert!(!allowed(&mixed, "203.0.113.7", 80));
    assert!(!allowed(&mixed, "203.0.113.8", 443));
    assert!(!allowed(&mixed, "198.51.100.1", 25));
    assert!(allowed(&mixed, "198.51.100.1", 26));
    let decision = decide(&mixed, &destination("203.0.113.8", 443));
    assert_eq!(decision.to_string(), "refused by 203.0.113.0/24");
}

#[test]
fn a_closed_policy_opens_only_what_it_names() {
    let closed = policy(&["203.0.113.0/24:443"], &[], Verdict::Deny);
    assert!(allowed(&closed, "203.0.113.7", 443));
    assert!(!allowed(&closed, "203.0.113.7", 80));
    assert!(!allowed(&closed, "1.1.1.1", 443));
    assert!(!resolves_names(&closed), "and is no way out by questions to a resolver");
    assert!(resolves_names(&Egress { resolvers: vec!["1.1.1.1".parse().unwrap()], ..closed }));
    assert!(!resolves_names(&policy(&["203.0.113.7"], &["0.0.0.0/0"], Verdict::Allow)), "the same in other words");
    assert!(!resolves_names(&policy(&[], &["0.0.0.0/0:53"], Verdict::Allow)));
    assert!(resolves_names(&policy(&[], &["0.0.0.0/0:25", "[::]/0"], Verdict::Allow)));
}

#[test]
fn a_policy_that_cannot_be_meant_is_refused() {
    let resolver = |address: &str, allow: &[&str]| Egress {
        resolvers: vec![address.parse().unwrap()],
        ..policy(allow, &[], Verdict::Deny)
    };
    assert_eq!(check(&resolver("1.1.1.1", &[])), Ok(()));
    assert_eq!(check(&resolver("10.0.0.2", &["10.0.0.2:53"])), Ok(()));
    let error = check(&resolver("169.254.169.254", &[])).unwrap_err();
    assert!(error.contains("add 169.254.169.254:53 to `allow`"), "{error}");
    assert!(check(&policy(&["[::ffff:10.0.0.5]"], &[], Verdict::Allow)).unwrap_err().contains("write 10.0.0.5"));
    let mut long = policy(&["10.0.0.0/8"], &[], Verdict::Allow);
    long.allow[0].prefix = 64;
    assert!(check(&long).unwrap_err().contains("longer than the address"));
}

#[test]
fn an_entry_that_opens_what_is_refused_by_itself_is_known() {
    let opened = |text: &str| opens(&text.parse().unwrap(), Place::Elsewhere);
    assert_eq!(opened("169.254.169.254"), Some(Class::LinkLocal));
    assert_eq!(opened("10.0.0.0/8"), Some(Class::Private));
    assert_eq!(opened("10.1.0.0/16:443"), Some(Class::Private));
    assert_eq!(opened("fd00::/8"), Some(Class::Private));
    // These open the internet and none of what lies inside them.
    assert_eq!(opened("0.0.0.0/0"), None);
    assert_eq!(opened("8.0.0.0/5"), None);
    assert_eq!(opened("1.2.3.4"), None);
    assert_eq!(opens(&"1.2.3.4:22".parse().unwrap(), Place::ThisHost), Some(Class::Host));
}

#[test]
fn an_entry_lies_within_a_wider_one_with_its_port_or_any() {
    let within = |entry: &str, other: &str| lies_within(&entry.parse().unwrap(), &other.parse().unwrap());
    assert!(within("10.1.2.3:443", "10.1.0.0/16"));
    assert!(within("10.1.2.3:443", "10.1.0.0/16:443"));
    assert!(!within("10.1.2.3", "10.1.0.0/16:443"));
    assert!(!within("10.0.0.0/8", "10.1.0.0/16"));
    assert!(!within("10.2.0.1", "10.1.0.0/16"));
}

/// The definition, entry by entry, for comparison.
fn decide_one_by_one(policy: &Egress, destination: &Destination) -> Decision {
    let address = crate::ranges::meant(destination.address);
    let special = match destination.place {
        Place::ThisHost => Some((address, width(address), Class::Host)),
        Place::Elsewhere => crate::ranges::special(address),
    };
    let names = |target: &&Target| {
        width(target.address) == width(address)
            && masked(address, target.prefix) == masked(target.address, target.prefix)
            && target.port.is_none_or(|only| only == destination.port)
    };
    let means = |target: &&Target| match special {
        Some((network, prefix, _)) => target.prefix >= prefix && masked(target.address, prefix) == network,
        None => true,
    };
    if let Some(target) = policy.allow.iter().filter(names).find(means) {
        return Decision::Allowed(Ground::Rule(target.clone()));
    }
    if let Some(target) = policy.deny.iter().find(names) {
        return Decision::Refused(Ground::Rule(target.clone()));
    }
    match (special, policy.otherwise) {
        (Some((_, _, class)), _) => Decision::Refused(Ground::BuiltIn(class)),
        (None, Verdict::Allow) => Decision::Allowed(Ground::Otherwise),
        (None, Verdict::Deny) => Decision::Refused(Ground::Otherwise),
    }
}

fn few_addresses() -> impl Strategy<Value = IpAddr> {
    // Close to one another and to special ranges, so that entries meet.
    let v4 = (prop::sample::select(vec![10u8, 11, 127, 169, 203]), 0u8..3, 0u8..3, 0u8..3)
        .prop_map(|(a, b, c, d)| IpAddr::from([a, b, c, d]));
    let v6 = (prop::sample::select(vec![0xfd00u16, 0x2606, 0xfe80]), 0u16..3, 0u16..3)
        .prop_map(|(a, b, c)| IpAddr::from([a, b, 0, 0, 0, 0, 0, c]));
    prop_oneof![v4, v6]
}

fn few_targets() -> impl Strategy<Value = Vec<Target>> {
    let one = (few_addresses(), 0u8..=128, prop::option::of(prop::sample::select(vec![53u16, 80, 443])));
    let one = one.prop_map(|(address, prefix, port)| {
        let prefix = prefix.min(width(address));
        Target { address: masked(address, prefix), prefix, port }
    });
    prop::collection::vec(one, 0..24)
}

proptest! {
    #[test]
    fn rules_answer_as_the_list_would_entry_by_entry(
        allow in few_targets(),
        deny in few_targets(),
        otherwise in prop::sample::select(vec![Verdict::Allow, Verdict::Deny]),
        asked in prop::collection::vec((few_addresses(), prop::sample::select(vec![53u16, 80, 443]), any::<bool>()), 1..24),
    ) {
        let policy = Egress { allow, deny, otherwise, resolvers: Vec::new() };
        let rules = Rules::of(&policy);
        for (address, port, here) in asked {
            let place = if here { Place::ThisHost } else { Place::Elsewhere };
            let destination = Destination { address, port, place, name: None };
            prop_assert_eq!(rules.decide(&destination), decide_one_by_one(&policy, &destination));
        }
    }
}

#[test]
fn a_connection_does_not_wait_longer_for_a_longer_list() {
    let deny = (0..600_000u32).map(|number| Target {
        address: Ipv4Addr::from_bits(0x2000_0000 + number).into(),
        prefix: 32,
        port: None,
    });
    let rules = Rules::of(&Egress { deny: deny.collect(), ..Egress::default() });
    let begun = Instant::now();
    for number in 0..10_000u32 {
        let address = Ipv4Addr::from_bits(0x5000_0000 + number).into();
        assert!(rules.decide(&Destination { address, port: 443, place: Place::Elsewhere, name: None }).is_allowed());
    }
    // Looking at every entry is six billion comparisons.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[test]
fn a_policy_that_is_too_long_is_refused_at_once_and_by_name() {
    let begun = Instant::now();
    let resolvers = (0..500_000u32).map(|number| Ipv4Addr::from_bits(0x0800_0000 + number).into()).collect();
    let error = check(&Egress { resolvers, ..Egress::default() }).unwrap_err();
    assert_eq!(error, "`resolvers` has 500000 entries, at most 8 are allowed");
    let target = Target { address: Ipv4Addr::new(1, 2, 3, 4).into(), prefix: 32, port: None };
    let error = check(&Egress { allow: vec![target; MOST_ENTRIES + 1], ..Egress::default() }).unwrap_err();
    assert_eq!(error, "`allow` has 1025 entries, at most 1024 are allowed");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
