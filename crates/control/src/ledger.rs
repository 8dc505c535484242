//! How much of its maxima an organisation has in use: counted in memory, so that a creation need not count rows; taken
//! from the store now and then, because other servers count too.

use std::collections::HashMap;
use std::sync::Mutex;

use crate::key::Quota;
use crate::sandbox::State;
use crate::{App, Error};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub running: u64,
    pub all: u64,
}

#[derive(Default)]
pub struct Ledger {
    counts: Mutex<HashMap<String, Counts>>,
}

/// A place that is held while a start is being written; given back when it is dropped.
pub struct Claim<'a> {
    ledger: &'a Ledger,
    organisation: String,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut counts = self.ledger.counts.lock().expect("no panic while held");
        if let Some(count) = counts.get_mut(&self.organisation) {
            count.running = count.running.saturating_sub(1);
        }
    }
}

fn counts_as(state: State) -> Counts {
    match state {
        State::Destroyed | State::Destroying => Counts { running: 0, all: 0 },
        state => Counts { running: state.takes_room().into(), all: 1 },
    }
}

impl Ledger {
    /// Takes a place for one more running sandbox, or says which maximum is reached.
    pub fn reserve(&self, organisation: &str, quota: &Quota) -> Result<(), Error> {
        let mut counts = self.counts.lock().expect("no panic while held");
        let count = counts.entry(organisation.to_owned()).or_default();
        if count.all >= quota.sandboxes {
            return Err(Error::Quota {
                message: format!("the organisation has its maximum of {} sandboxes; destroy some", quota.sandboxes),
            });
        }
        check_running(*count, quota)?;
        count.all += 1;
        count.running += 1;
        Ok(())
    }

    /// Takes a place for a sandbox that is to start, until its new state is written and counts by itself: of several that
    /// ask at once no more get one than there are.
    pub fn claim_start(&self, organisation: &str, quota: &Quota) -> Result<Claim<'_>, Error> {
        let mut counts = self.counts.lock().expect("no panic while held");
        let count = counts.entry(organisation.to_owned()).or_default();
        check_running(*count, quota)?;
        count.running += 1;
        Ok(Claim { ledger: self, organisation: organisation.to_owned() })
    }

    pub fn moved(&self, organisation: &str, from: State, to: State) {
        let (before, after) = (counts_as(from), counts_as(to));
        if before == after {
            return;
        }
        let mut counts = self.counts.lock().expect("no panic while held");
        let count = counts.entry(organisation.to_owned()).or_default();
        count.all = (count.all + after.all).saturating_sub(before.all);
        count.running = (count.running + after.running).saturating_sub(before.running);
    }

    fn set(&self, counted: Vec<(String, String, i64)>) {
        let mut fresh: HashMap<String, Counts> = HashMap::new();
        for (organisation, state, many) in counted {
            let Some(one) = State::parse(&state).map(counts_as) else { continue };
            let count = fresh.entry(organisation).or_default();
            count.all += one.all * many as u64;
            count.running += one.running * many as u64;
        }
        *self.counts.lock().expect("no panic while held") = fresh;
    }

    pub fn of(&self, organisation: &str) -> Counts {
        self.counts.lock().expect("no panic while held").get(organisation).copied().unwrap_or_default()
    }
}

fn check_running(count: Counts, quota: &Quota) -> Result<(), Error> {
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
    pub(crate) async fn recount(&self) -> Result<(), Error> {
        self.ledger().set(self.store().count_by_organisation().await?);
        Ok(())
    }
}
