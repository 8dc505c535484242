//! Which processors a sandbox may use.
//!
//! A cpuset alone enforces a limit of whole processors: `nproc` inside shows it, and no bandwidth quota is needed,
//! which would make the kernel walk every task group of the machine (`tg_set_bandwidth`, 5 % of all processor time at
//! 5,000 sandboxes). A limit with a fraction has a cpuset of the next whole number and a quota for the rest. A limit of
//! the whole machine has neither. Without a cpuset controller the quota does everything, and `nproc` shows the machine.
//!
//! The price: a sandbox stays on the processors it was given, so it is seated where the fewest others were promised
//! processor time.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Each is a descriptor in the launch's packet, which also carries the layers.
const MOST_CHOICES: usize = 64;

/// Thousandths of a processor promised, by position in `numbers`.
#[derive(Debug)]
pub(super) struct Processors {
    numbers: Vec<u32>,
    promised: Mutex<Vec<u64>>,
}

/// A place on some processors; given back when dropped.
#[derive(Debug)]
pub(super) struct Seat {
    processors: Arc<Processors>,
    positions: Range<usize>,
    share: u64,
}

/// A place that a launch may take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// As the kernel writes it.
    pub(super) list: String,
    pub(super) numbers: Vec<u32>,
    positions: Range<usize>,
}

impl Processors {
    /// From a kernel list such as `0-3,8`.
    pub(super) fn from_list(list: &str) -> Arc<Processors> {
        let numbers = parse_list(list);
        let promised = Mutex::new(vec![0; numbers.len()]);
        Arc::new(Processors { numbers, promised })
    }

    pub(super) fn count(&self) -> usize {
        self.numbers.len()
    }

    /// All of them, as the kernel writes it.
    pub(super) fn all(&self) -> String {
        self.list(&(0..self.count()))
    }

    /// A seat for `cpus` processors, or `None` where that is the whole machine.
    pub(super) fn seat(self: &Arc<Self>, cpus: f64) -> Option<Seat> {
        let width = whole(cpus);
        if width >= self.count() {
            return None;
        }
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |start: usize| promised[start..start + width].iter().sum::<u64>();
        let start = self.starts(width).min_by_key(|start| load(*start)).unwrap_or(0);
        let positions = start..start + width;
        let share = share_of(cpus, width);
        promised[positions.clone()].iter_mut().for_each(|load| *load += share);
        Some(Seat { processors: Arc::clone(self), positions, share })
    }

    /// Where seats of a width begin.
    fn starts(&self, width: usize) -> impl Iterator<Item = usize> {
        let last = self.count() - width;
        (0..=last).step_by(width).chain((!last.is_multiple_of(width)).then_some(last))
    }

    fn list(&self, positions: &Range<usize>) -> String {
        let mut parts: Vec<(u32, u32)> = Vec::new();
        for number in &self.numbers[positions.clone()] {
            match parts.last_mut() {
                Some((_, last)) if *last + 1 == *number => *last = *number,
                _ => parts.push((*number, *number)),
            }
        }
        let part =
            |(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
        parts.iter().map(part).collect::<Vec<_>>().join(",")
    }

    /// The seat of a sandbox that an earlier server started, from the kernel's list.
    pub(super) fn seat_at(self: &Arc<Self>, list: &str, cpus: f64) -> Option<Seat> {
        let wanted = parse_list(list);
        let start = self.numbers.iter().position(|number| Some(number) == wanted.first())?;
        let positions = start..start + wanted.len();
        if wanted.len() >= self.count() || self.numbers.get(positions.clone()) != Some(&wanted[..]) {
            return None;
        }
        let share = share_of(cpus, wanted.len());
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised[positions.clone()].iter_mut().for_each(|load| *load += share);
        Some(Seat { processors: Arc::clone(self), positions, share })
    }
}

impl Seat {
    /// As the kernel writes it.
    pub(super) fn list(&self) -> String {
        self.processors.list(&self.positions)
    }

    /// This place, then those where no more was promised to others: a process that takes the one it already runs on
    /// does not move; on a busy machine a move means queueing again (measured: 3 ms).
    pub(super) fn choices(&self) -> Vec<Choice> {
        let promised = self.processors.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let load = |start: usize| promised[start..start + self.width()].iter().sum::<u64>();
        let own = self.positions.start;
        let as_good = self.processors.starts(self.width()).filter(|start| *start != own && load(*start) <= load(own));
        let choice = |start: usize| {
            let positions = start..start + self.width();
            let (list, numbers) =
                (self.processors.list(&positions), self.processors.numbers[positions.clone()].to_vec());
            Choice { list, numbers, positions }
        };
        std::iter::once(own).chain(as_good).take(MOST_CHOICES).map(choice).collect()
    }

    pub(super) fn move_to(&mut self, choice: &Choice) {
        let mut promised = self.processors.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised[self.positions.clone()].iter_mut().for_each(|load| *load -= self.share);
        promised[choice.positions.clone()].iter_mut().for_each(|load| *load += self.share);
        self.positions = choice.positions.clone();
    }

    pub(super) fn width(&self) -> usize {
        self.positions.len()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut promised = self.processors.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised[self.positions.clone()].iter_mut().for_each(|load| *load -= self.share);
    }
}

/// How many processors `nproc` shows for a limit.
pub(super) fn whole(cpus: f64) -> usize {
    // Rounding noise of a sum such as 0.1 * 10 must not cost a processor.
    ((cpus - 1e-6).ceil().max(1.0)) as usize
}

/// Whether a seat of this many processors alone enforces the limit.
pub(super) fn held_by_seat(cpus: f64, width: usize) -> bool {
    (cpus - width as f64).abs() < 1e-6 || cpus > width as f64
}

fn share_of(cpus: f64, width: usize) -> u64 {
    (cpus * 1000.0 / width as f64).max(1.0) as u64
}

fn parse_list(list: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        match part.split_once('-') {
            Some((first, last)) => Some(first.parse().ok()?..=last.parse().ok()?),
            None => part.parse().ok().map(|number| number..=number),
        }
    };
    list.trim().split(',').filter_map(|part| range(part.trim())).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_are_spread_over_the_processors_and_seats_come_back() {
        let processors = Processors::from_list("0-3\n");
        let first = processors.seat(1.0).unwrap();
        let second = processors.seat(1.0).unwrap();
        assert_eq!((first.list().as_str(), second.list().as_str()), ("0", "1"));
        let pair = processors.seat(2.0).unwrap();
        assert_eq!(pair.list(), "2-3");
        drop(first);
        assert_eq!(processors.seat(0.5).unwrap().list(), "0");
    }

    #[test]
    fn a_launch_may_stay_where_it_runs_until_the_others_have_less() {
        let processors = Processors::from_list("0-1");
        let lists = |seat: &Seat| seat.choices().into_iter().map(|choice| choice.list).collect::<Vec<_>>();
        let first = processors.seat(1.0).unwrap();
        assert_eq!(lists(&first), ["0", "1"]);
        let mut second = processors.seat(1.0).unwrap();
        assert_eq!(lists(&second), ["1", "0"]);
        second.move_to(&second.choices()[1]);
        let third = processors.seat(1.0).unwrap();
        assert_eq!(lists(&third), ["1"], "two are on the other already");
        drop((first, second, third));
        assert_eq!(*processors.promised.lock().unwrap(), [0, 0]);
    }

    #[test]
    fn a_limit_of_the_whole_machine_needs_no_seat() {
        let processors = Processors::from_list("0-1");
        assert!(processors.seat(2.0).is_none());
        assert!(processors.seat(64.0).is_none());
        assert!(processors.seat(1.5).is_none(), "nproc would be 2 either way; the quota holds the rest");
    }

    #[test]
    fn an_uneven_machine_uses_its_last_processor_too() {
        let processors = Processors::from_list("0,2,4");
        let _first = processors.seat(2.0).unwrap();
        let second = processors.seat(2.0).unwrap();
        assert_eq!(second.list(), "2,4");
    }

    #[test]
    fn a_seat_of_an_earlier_life_is_taken_again() {
        let processors = Processors::from_list("0-3");
        let _kept = processors.seat_at("0-1", 2.0).unwrap();
        assert_eq!(processors.seat(2.0).unwrap().list(), "2-3");
        assert!(processors.seat_at("7", 1.0).is_none());
        assert!(processors.seat_at("0-3", 4.0).is_none());
    }

    #[test]
    fn fractions_round_up_and_noise_does_not() {
        assert_eq!(whole(0.1), 1);
        assert_eq!(whole(1.0000000001), 1);
        assert_eq!(whole(1.5), 2);
        assert!(held_by_seat(2.0, 2));
        assert!(!held_by_seat(1.5, 2));
    }
}
