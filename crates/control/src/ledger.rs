//! How many sandboxes an organisation has, against its maxima. Counted in memory, so that a creation does not count
//! rows; read from the store now and then, because other servers create sandboxes too. With several servers the store
//! decides (`store/room.rs`); the count here then only refuses early and cheaply.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::key::Quota;
use crate::sandbox::State;
use crate::{App, Error};

/// How often the store is counted again when something changes meanwhile.
const TRIES: usize = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub running: u64,
    pub all: u64,
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
        Counts { running: self.running + more.running, all: self.all + more.all }
    }

    fn minus(self, less: Counts) -> Counts {
        Counts { running: self.running.saturating_sub(less.running), all: self.all.saturating_sub(less.all) }
    }

    pub(crate) fn times(self, many: u64) -> Counts {
        Counts { running: self.running * many, all: self.all * many }
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

pub(crate) fn counts_as(state: State) -> Counts {
    match state {
        State::Destroyed | State::Destroying => Counts { running: 0, all: 0 },
        state => Counts { running: state.takes_room().into(), all: 1 },
    }
}

impl Ledger {
    fn with<T>(&self, organisation: &str, act: impl FnOnce(&mut Account) -> T) -> T {
        let mut accounts = self.accounts.lock().expect("no panic while held");
        act(accounts.entry(organisation.to_owned()).or_default())
    }

    /// Takes a place for one more running sandbox until it is written, or reports which maximum is reached.
    pub fn reserve(&self, organisation: &str, quota: &Quota) -> Result<Claim<'_>, Error> {
        self.claim(organisation, counts_as(State::Creating), |count| check_new(count, quota))
    }

    /// Takes a place for a sandbox that is about to start, until its new state is written and counted. Of several
    /// requests at the same moment, no more get a place than there are places.
    pub fn claim_start(&self, organisation: &str, quota: &Quota) -> Result<Claim<'_>, Error> {
        self.claim(organisation, Counts { running: 1, all: 0 }, |count| check_running(count, quota))
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

    pub fn moved(&self, organisation: &str, from: State, to: State) {
        let (before, after) = (counts_as(from), counts_as(to));
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
    fn set(&self, counted: Vec<(String, String, i64)>) -> Counted {
        let mut fresh: HashMap<String, Counts> = HashMap::new();
        for (organisation, state, many) in counted {
            let Some(one) = State::parse(&state).map(counts_as) else { continue };
            let count = fresh.entry(organisation).or_default();
            *count = count.plus(one.times(many.unsigned_abs()));
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

/// Whether one more may be made.
pub(crate) fn check_new(count: Counts, quota: &Quota) -> Result<(), Error> {
    if count.all >= quota.sandboxes {
        return Err(Error::Quota {
            message: format!("the organisation has its maximum of {} sandboxes; destroy some", quota.sandboxes),
        });
    }
    check_running(count, quota)
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

    fn rows(state: State, many: i64) -> Vec<(String, String, i64)> {
        vec![("acme".to_owned(), state.as_str().to_owned(), many)]
    }

    #[test]
    fn a_count_of_the_store_keeps_places_that_are_held() {
        let (ledger, quota) = (Ledger::default(), quota(3));
        let mut first = ledger.reserve("acme", &quota).unwrap();
        let second = ledger.reserve("acme", &quota).unwrap();
        ledger.begin_count();
        assert_eq!(ledger.set(Vec::new()), Counted::AtRest);
        assert_eq!(ledger.of("acme"), Counts { running: 2, all: 2 });
        first.is_written();
        drop(first);
        drop(second);
        assert_eq!(ledger.of("acme"), Counts { running: 1, all: 1 });
        let starting = ledger.claim_start("acme", &quota).unwrap();
        ledger.begin_count();
        ledger.set(rows(State::Running, 1));
        drop(starting);
        assert_eq!(ledger.of("acme"), Counts { running: 1, all: 1 });
    }

    #[test]
    fn what_is_written_while_the_store_is_counted_is_not_lost() {
        let (ledger, quota) = (Ledger::default(), quota(3));
        let mut place = ledger.reserve("acme", &quota).unwrap();
        ledger.begin_count();
        place.is_written();
        // The count was taken before its row was there.
        assert_eq!(ledger.set(Vec::new()), Counted::WhileMoving);
        assert_eq!(ledger.of("acme"), Counts { running: 1, all: 1 });
        ledger.begin_count();
        assert_eq!(ledger.set(rows(State::Stopped, 1)), Counted::AtRest);
        assert_eq!(ledger.of("acme"), Counts { running: 0, all: 1 });
    }
}
