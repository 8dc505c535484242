//! How many sandboxes an organisation has, and how large their disks are together, against its maxima. Counted in memory,
//! so that a creation does not count rows; read from the store now and then, because other servers create sandboxes too.
//! With several servers the store decides (`store/room.rs`); the count here then only refuses early and cheaply.
//!
//! Of a disk counts its limit, as of a volume: what a sandbox may fill at any moment must have its room. One that is in
//! the archive has no disk.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::key::Quota;
use crate::sandbox::{Sandbox, State};
use crate::{App, Error};

/// How often the store is counted again when something changes meanwhile.
const TRIES: usize = 3;
/// No disk counts for more, so that the sum of very many is a number that the store has.
const LARGEST: u64 = 1 << 44;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub running: u64,
    pub all: u64,
    /// Bytes that the disks may hold together.
    pub disk: u64,
}

/// Rows of one organisation in one state, as the store counts them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub organisation: String,
    pub state: String,
    pub many: u64,
    /// Bytes that their disks may hold together.
    pub disk: u64,
}

#[derive(Default)]
pub struct Ledger {
    accounts: Mutex<HashMap<String, Account>>,
}

/// What an organisation uses: rows of the store, and places held for rows that are not written yet.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    counted: Counts,
    held: Counts,
    /// Rows that were written while the store was counted: the count may not include them.
    gained: Counts,
    /// Whether anything changed while the store was counted.
    moved: bool,
}

impl Account {
    fn in_use(&self) -> Counts {
        self.counted.plus(self.held)
    }

    fn change(&mut self, before: Counts, after: Counts) {
        self.counted = self.counted.plus(after).minus(before);
        self.gained = self.gained.plus(after.minus(before));
        self.moved = true;
    }
}

impl Counts {
    pub(crate) fn plus(self, more: Counts) -> Counts {
        let disk = self.disk.saturating_add(more.disk);
        Counts { running: self.running + more.running, all: self.all + more.all, disk }
    }

    fn minus(self, less: Counts) -> Counts {
        Counts {
            running: self.running.saturating_sub(less.running),
            all: self.all.saturating_sub(less.all),
            disk: self.disk.saturating_sub(less.disk),
        }
    }

    /// So many in one state, with disks of so many bytes together.
    pub(crate) fn of(state: State, many: u64, disk: u64) -> Counts {
        let one = counts_as(state, disk);
        Counts { running: one.running * many, all: one.all * many, disk: one.disk }
    }
}

/// A place held while a sandbox is being written; dropping it gives the place back. A count of the store does not
/// include it and does not change it.
pub struct Claim<'a> {
    ledger: &'a Ledger,
    organisation: String,
    held: Counts,
}

impl Claim<'_> {
    /// The new sandbox has its row, which is counted from now on.
    pub fn is_written(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.ledger.with(&self.organisation, |account| {
            account.held = account.held.minus(held);
            account.change(Counts::default(), held);
        });
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.ledger.with(&self.organisation, |account| account.held = account.held.minus(self.held));
    }
}

/// What one sandbox counts for, whose disk holds so many bytes.
pub(crate) fn counts_as(state: State, disk: u64) -> Counts {
    match state {
        State::Destroyed | State::Destroying => Counts::default(),
        State::Archived => Counts { running: 0, all: 1, disk: 0 },
        state => Counts { running: state.takes_room().into(), all: 1, disk },
    }
}

/// Bytes that a sandbox's disk may hold; none where it has no limit of its own.
pub(crate) fn disk_of(sandbox: &Sandbox) -> u64 {
    counted_disk(sandbox.limits.disk)
}

pub(crate) fn counted_disk(limit: Option<u64>) -> u64 {
    limit.unwrap_or(0).min(LARGEST)
}

impl Ledger {
    fn with<T>(&self, organisation: &str, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().expect("no panic while held");
        act(accounts.entry(organisation.to_owned()).or_default())
    }

    /// Takes a place for one more running sandbox with a disk of so many bytes until it is written, or reports which
    /// maximum is reached.
    pub fn reserve(&self, organisation: &str, quota: &Quota, disk: u64) -> Result<Claim<'_>, Error> {
        self.claim(organisation, counts_as(State::Creating, disk), |count| check_new(count, quota, disk))
    }

    /// As [`Ledger::reserve`], for several at once with disks of the same size: as many places as there are, and which maximum
    /// keeps the others from one.
    pub fn reserve_many(
        &self,
        organisation: &str,
        quota: &Quota,
        disk: u64,
        many: usize,
    ) -> (Vec<Claim<'_>>, Option<Error>) {
        let one = counts_as(State::Creating, disk);
        let (places, refused) = self.with(organisation, |account| {
            for place in 0..many {
                if let Err(refused) = check_new(account.in_use(), quota, disk) {
                    return (place, Some(refused));
                }
                account.held = account.held.plus(one);
            }
            (many, None)
        });
        let claim = |_| Claim { ledger: self, organisation: organisation.to_owned(), held: one };
        ((0..places).map(claim).collect(), refused)
    }

    /// Takes a place for a sandbox that is about to start, until its new state is written and counted. Of several
    /// requests at the same moment, no more get a place than there are places. `disk` is what it has no disk for yet.
    pub fn claim_start(&self, organisation: &str, quota: &Quota, disk: u64) -> Result<Claim<'_>, Error> {
        let check = |count: Counts| check_running(count, quota).and_then(|()| check_disk(count, quota, disk));
        self.claim(organisation, Counts { running: 1, all: 0, disk }, check)
    }

    /// Takes room for a disk that is about to grow by so many bytes, until that is written.
    pub fn claim_disk(&self, organisation: &str, quota: &Quota, more: u64) -> Result<Claim<'_>, Error> {
        let held = Counts { disk: more, ..Counts::default() };
        self.claim(organisation, held, |count| check_disk(count, quota, more))
    }

    fn claim(
        &self,
        organisation: &str,
        held: Counts,
        check: impl FnOnce(Counts) -> Result<(), Error>,
    ) -> Result<Claim<'_>, Error> {
        self.with(organisation, |account| -> Result<(), Error> {
            check(account.in_use())?;
            account.held = account.held.plus(held);
            Ok(())
        })?;
        Ok(Claim { ledger: self, organisation: organisation.to_owned(), held })
    }

    pub fn moved(&self, sandbox: &Sandbox, from: State, to: State) {
        let (organisation, disk) = (&sandbox.organisation, disk_of(sandbox));
        let (before, after) = (counts_as(from, disk), counts_as(to, disk));
        if before != after {
            self.with(organisation, |account| account.change(before, after));
        }
    }

    /// The store is about to be counted.
    fn begin_count(&self) {
        for account in self.accounts.lock().expect("no panic while held").values_mut() {
            account.gained = Counts::default();
            account.moved = false;
        }
    }

    /// Takes over the store's count. Held places stay, and rows written meanwhile are not lost, though they may be
    /// counted twice. Returns whether there were any.
    fn set(&self, counted: Vec<Group>) -> Counted {
        let mut fresh: HashMap<String, Counts> = HashMap::new();
        for Group { organisation, state, many, disk } in counted {
            let Some(state) = State::parse(&state) else { continue };
            let count = fresh.entry(organisation).or_default();
            *count = count.plus(Counts::of(state, many, disk));
        }
        let mut accounts = self.accounts.lock().expect("no panic while held");
        for (organisation, account) in accounts.iter_mut() {
            account.counted = fresh.remove(organisation).unwrap_or_default().plus(account.gained);
        }
        accounts.extend(fresh.into_iter().map(|(organisation, counted)| {
            let account = Account { counted, ..Account::default() };
            (organisation, account)
        }));
        let moved = accounts.values().any(|account| account.moved);
        accounts.retain(|_, account| account.in_use() != Counts::default());
        if moved { Counted::WhileMoving } else { Counted::AtRest }
    }

    pub fn of(&self, organisation: &str) -> Counts {
        let accounts = self.accounts.lock().expect("no panic while held");
        accounts.get(organisation).map(Account::in_use).unwrap_or_default()
    }
}

/// Whether the count of the store is exact.
#[derive(Debug, PartialEq, Eq)]
enum Counted {
    AtRest,
    WhileMoving,
}

/// Whether so many more may be made, with disks of so many bytes together.
pub(crate) fn check_new_ones(count: Counts, quota: &Quota, many: u64, disk: u64) -> Result<(), Error> {
    check_new(count.plus(Counts::of(State::Creating, many.saturating_sub(1), 0)), quota, disk)
}

/// Whether one more may be made.
fn check_new(count: Counts, quota: &Quota, disk: u64) -> Result<(), Error> {
    if count.all >= quota.sandboxes {
        return Err(Error::Quota {
            message: format!("the organisation has its maximum of {} sandboxes; destroy some", quota.sandboxes),
        });
    }
    check_running(count, quota)?;
    check_disk(count, quota, disk)
}

/// Whether disks of so many bytes may be added.
pub(crate) fn check_disk(count: Counts, quota: &Quota, more: u64) -> Result<(), Error> {
    let Some(most) = quota.disk_bytes.filter(|most| more > 0 && count.disk.saturating_add(more) > *most) else {
        return Ok(());
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
    Err(Error::Quota {
        message: format!(
            "the disks of the organisation's sandboxes hold up to {:.1} GiB, {:.1} GiB more are wanted, and {:.1} GiB \
             are its maximum; destroy or archive some, or ask for smaller disks",
            gib(count.disk),
            gib(more),
            gib(most)
        ),
    })
}

/// Whether one more may run.
pub(crate) fn check_running(count: Counts, quota: &Quota) -> Result<(), Error> {
    if count.running < quota.running_sandboxes {
        return Ok(());
    }
    Err(Error::Quota {
        message: format!(
            "the organisation has its maximum of {} running sandboxes; stop or destroy some",
            quota.running_sandboxes
        ),
    })
}

impl App {
    /// Counts again if something changed meanwhile, but not for ever.
    pub(crate) async fn recount(&self) -> Result<(), Error> {
        for _ in 0..TRIES {
            self.ledger().begin_count();
            if self.ledger().set(self.store().count_by_organisation().await?) == Counted::AtRest {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(sandboxes: u64) -> Quota {
        Quota { sandboxes, running_sandboxes: sandboxes, ..Quota::default() }
    }

    fn rows(state: State, many: u64) -> Vec<Group> {
        vec![Group { organisation: "acme".into(), state: state.as_str().into(), many, disk: 10 * many }]
    }

    fn counts(running: u64, all: u64) -> Counts {
        Counts { running, all, disk: 10 * all }
    }

    #[test]
    fn a_count_of_the_store_keeps_places_that_are_held() {
        let (ledger, quota) = (Ledger::default(), quota(3));
        let mut first = ledger.reserve("acme", &quota, 10).unwrap();
        let second = ledger.reserve("acme", &quota, 10).unwrap();
        ledger.begin_count();
        assert_eq!(ledger.set(Vec::new()), Counted::AtRest);
        assert_eq!(ledger.of("acme"), counts(2, 2));
        first.is_written();
        drop(first);
        drop(second);
        assert_eq!(ledger.of("acme"), counts(1, 1));
        let starting = ledger.claim_start("acme", &quota, 0).unwrap();
        ledger.begin_count();
        ledger.set(rows(State::Running, 1));
        drop(starting);
        assert_eq!(ledger.of("acme"), counts(1, 1));
    }

    #[test]
    fn several_places_are_taken_at_once_and_no_more_than_there_are() {
        let (ledger, quota) = (Ledger::default(), quota(3));
        let first = ledger.reserve("acme", &quota, 10).unwrap();
        let (mut places, refused) = ledger.reserve_many("acme", &quota, 10, 5);
        assert_eq!(places.len(), 2);
        assert!(matches!(refused, Some(Error::Quota { .. })), "{refused:?}");
        assert!(ledger.reserve("acme", &quota, 10).is_err());
        places[0].is_written();
        drop(places);
        drop(first);
        assert_eq!(ledger.of("acme"), counts(1, 1), "the one that was written");
        let (places, refused) = ledger.reserve_many("acme", &quota, 10, 2);
        assert!(places.len() == 2 && refused.is_none());
        for (many, fits) in [(1, true), (2, true), (3, false)] {
            assert_eq!(check_new_ones(counts(1, 1), &quota, many, 10 * many).is_ok(), fits, "{many} more of 3");
        }
    }

    #[test]
    fn what_is_written_while_the_store_is_counted_is_not_lost() {
        let (ledger, quota) = (Ledger::default(), quota(3));
        let mut place = ledger.reserve("acme", &quota, 10).unwrap();
        ledger.begin_count();
        place.is_written();
        // The count was taken before its row was there.
        assert_eq!(ledger.set(Vec::new()), Counted::WhileMoving);
        assert_eq!(ledger.of("acme"), counts(1, 1));
        ledger.begin_count();
        assert_eq!(ledger.set(rows(State::Stopped, 1)), Counted::AtRest);
        assert_eq!(ledger.of("acme"), counts(0, 1));
    }

    #[test]
    fn disks_have_a_maximum_together_and_the_archive_takes_none_of_it() {
        let (ledger, quota) = (Ledger::default(), Quota { disk_bytes: Some(30), ..Quota::default() });
        let (mut places, refused) = ledger.reserve_many("acme", &quota, 10, 4);
        assert_eq!(places.len(), 3);
        assert!(refused.unwrap().to_string().contains("destroy or archive some"));
        places.iter_mut().for_each(Claim::is_written);
        drop(places);
        assert!(ledger.claim_disk("acme", &quota, 1).is_err());
        drop(ledger.claim_start("acme", &quota, 0).expect("its disk is there already"));
        // One of them goes to the archive, and another takes its room.
        ledger.begin_count();
        ledger.set(rows(State::Stopped, 2).into_iter().chain(rows(State::Archived, 1)).collect());
        assert_eq!(ledger.of("acme"), Counts { running: 0, all: 3, disk: 20 });
        let mut grown = ledger.claim_disk("acme", &quota, 5).unwrap();
        grown.is_written();
        drop(grown);
        assert!(ledger.claim_start("acme", &quota, 10).is_err(), "there is no room for it to come back");
        drop(ledger.claim_start("acme", &quota, 5).unwrap());
        assert_eq!(ledger.of("acme").disk, 25);
        for (more, fits) in [(5, true), (6, false), (0, true)] {
            assert_eq!(check_new_ones(ledger.of("acme"), &quota, 2, more).is_ok(), fits, "{more} more of 30");
        }
    }
}
