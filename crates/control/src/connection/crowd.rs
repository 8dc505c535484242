//! Who is connected, and who gives way when there are too many.
//!
//! A client proves who it is only with a request, so a full server cannot refuse new connections: it would refuse its
//! owner too. Instead it closes idle connections: first those without any request yet, the oldest first, then those
//! that wait after an answer. A client that sends a request at once is answered.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::line::End;
use crate::right::budget::Budget;

/// A new connection has this long to send a request before it may be closed.
const MOMENT: Duration = Duration::from_millis(250);
/// How many are closed at once when the kernel has no descriptor left.
const SOME: usize = 16;

pub struct Crowd {
    budget: Budget,
    there: Mutex<There>,
}

#[derive(Default)]
struct There {
    lines: usize,
    next: u64,
    /// Connections that have asked for nothing yet, and those that wait after an answer; the oldest first.
    fresh: BTreeMap<u64, (Instant, End)>,
    idle: BTreeMap<u64, End>,
    addresses: HashMap<IpAddr, usize>,
}

/// One connection's place.
pub struct Place {
    crowd: Arc<Crowd>,
    address: Option<IpAddr>,
    end: End,
    at: Mutex<At>,
}

/// Its number in the list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Fresh(u64),
    Idle(u64),
    /// How many requests are under way.
    Busy(usize),
}

/// A request under way: its connection is not closed for others.
pub struct Busy(Arc<Place>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Crowd {
    pub fn new(budget: Budget) -> Arc<Crowd> {
        Arc::new(Crowd { budget, there: Mutex::default() })
    }

    /// A place for a new connection; `None` where no connection can be closed, or where its address has its maximum.
    pub fn enter(self: &Arc<Self>, address: IpAddr, end: End) -> Option<Arc<Place>> {
        let address = self.budget.counted_for(address);
        let now = Instant::now();
        let mut there = lock(&self.there);
        if let Some(address) = address
            && there.addresses.get(&address).is_some_and(|count| *count >= self.budget.per_address)
        {
            return None;
        }
        let waits_long = |there: &There| there.fresh.values().next().is_some_and(|(since, _)| now - *since > MOMENT);
        if there.lines >= self.budget.lines {
            there.one_gives_way().then_some(())?;
        } else if there.fresh.len() >= self.budget.fresh && waits_long(&there) {
            there.one_gives_way();
        }
        there.lines += 1;
        if let Some(address) = address {
            *there.addresses.entry(address).or_default() += 1;
        }
        let number = there.number();
        there.fresh.insert(number, (now, end.clone()));
        Some(Arc::new(Place { crowd: Arc::clone(self), address, end, at: Mutex::new(At::Fresh(number)) }))
    }

    /// Closes some connections at once, because the kernel has no descriptor left.
    pub fn make_room(&self) {
        let mut there = lock(&self.there);
        for _ in 0..SOME {
            if !there.one_gives_way() {
                return;
            }
        }
    }
}

impl There {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Ends the connection that is needed least. It leaves the count when its task has seen the end.
    fn one_gives_way(&mut self) -> bool {
        let least =
            self.fresh.pop_first().map(|(_, (_, end))| end).or_else(|| self.idle.pop_first().map(|(_, end)| end));
        match least {
            Some(end) => {
                end.now();
                true
            }
            None => false,
        }
    }

    fn leave(&mut self, at: At) {
        match at {
            At::Fresh(number) => drop(self.fresh.remove(&number)),
            At::Idle(number) => drop(self.idle.remove(&number)),
            At::Busy(_) => {}
        }
    }
}

impl Place {
    /// A request has come.
    pub fn begin(self: &Arc<Self>) -> Busy {
        let mut at = lock(&self.at);
        let under_way = match *at {
            At::Busy(under_way) => under_way,
            waiting => {
                lock(&self.crowd.there).leave(waiting);
                0
            }
        };
        *at = At::Busy(under_way + 1);
        Busy(Arc::clone(self))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut at = lock(&self.0.at);
        *at = match *at {
            At::Busy(under_way) if under_way > 1 => At::Busy(under_way - 1),
            _ => {
                let mut there = lock(&self.0.crowd.there);
                let number = there.number();
                there.idle.insert(number, self.0.end.clone());
                At::Idle(number)
            }
        };
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let at = *lock(&self.at);
        let mut there = lock(&self.crowd.there);
        there.leave(at);
        there.lines -= 1;
        if let Some(address) = self.address
            && let Some(count) = there.addresses.get_mut(&address)
        {
            *count -= 1;
            if *count == 0 {
                there.addresses.remove(&address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Connections;

    fn crowd(most: u64, per_address: u64) -> Arc<Crowd> {
        let config = Connections { most, per_address, proxies: Vec::new(), ..Connections::default() };
        Crowd::new(Budget::new(&config, 1024))
    }

    fn enter(crowd: &Arc<Crowd>) -> Option<Arc<Place>> {
        crowd.enter([192, 0, 2, 1].into(), End::of_nothing())
    }

    #[test]
    fn who_does_nothing_gives_way_and_who_is_served_does_not() {
        let crowd = crowd(4, 100);
        let places: Vec<_> = (0..4).map(|_| enter(&crowd).unwrap()).collect();
        let busy: Vec<_> = places[1..].iter().map(Place::begin).collect();
        assert_eq!(lock(&crowd.there).fresh.len(), 1);
        let newcomer = enter(&crowd).expect("the first gives way");
        let _served = newcomer.begin();
        assert!(enter(&crowd).is_none(), "everybody is served");
        drop(busy);
        assert!(enter(&crowd).is_some(), "who waits for nothing gives way");
        drop((places, newcomer));
    }

    #[test]
    fn an_address_has_its_share() {
        let crowd = crowd(100, 2);
        let places: Vec<_> = (0..2).map(|_| enter(&crowd).unwrap()).collect();
        assert!(enter(&crowd).is_none());
        assert!(crowd.enter([192, 0, 2, 2].into(), End::of_nothing()).is_some());
        drop(places);
        assert!(enter(&crowd).is_some());
        assert_eq!(lock(&crowd.there).lines, 0, "all have left");
    }
}
