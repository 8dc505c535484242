//! Which name led a sandbox to which address, so that a decision about an address can know what was asked for.
//!
//! Bounded: the sandbox chooses how many names it asks for. The entries used longest ago go first.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

const CAPACITY: usize = 1024;

#[derive(Debug, Default)]
pub struct Names {
    known: HashMap<IpAddr, Known>,
    /// Every remembering in its order; an entry whose stamp is no longer the address's own is out of date.
    order: VecDeque<(IpAddr, u64)>,
    stamp: u64,
}

#[derive(Debug)]
struct Known {
    name: String,
    stamp: u64,
}

impl Names {
    pub fn remember(&mut self, address: IpAddr, name: &str) {
        self.stamp += 1;
        self.known.insert(address, Known { name: name.to_owned(), stamp: self.stamp });
        self.order.push_back((address, self.stamp));
        while self.known.len() > CAPACITY || self.order.len() > 2 * CAPACITY {
            let Some((oldest, stamp)) = self.order.pop_front() else { break };
            if self.known.get(&oldest).is_some_and(|known| known.stamp == stamp) {
                self.known.remove(&oldest);
            }
        }
    }

    pub fn of(&self, address: IpAddr) -> Option<&str> {
        self.known.get(&address).map(|known| known.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(number: u32) -> IpAddr {
        IpAddr::V4(number.into())
    }

    #[test]
    fn the_last_name_counts() {
        let mut names = Names::default();
        names.remember(address(1), "old.example");
        names.remember(address(1), "new.example");
        assert_eq!(names.of(address(1)), Some("new.example"));
        assert_eq!(names.of(address(2)), None);
    }

    #[test]
    fn a_flood_of_names_is_bounded_and_keeps_the_latest() {
        let mut names = Names::default();
        for number in 0..10_000 {
            names.remember(address(number), "flood.example");
            names.remember(address(20_000), "kept.example");
        }
        assert!(names.known.len() <= CAPACITY && names.order.len() <= 2 * CAPACITY);
        assert_eq!(names.of(address(20_000)), Some("kept.example"));
        assert_eq!(names.of(address(9_999)), Some("flood.example"));
        assert_eq!(names.of(address(0)), None);
    }
}
