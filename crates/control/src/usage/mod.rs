//! What is used, metered to the millisecond and priced by the operator's table.
//!
//! A span is written when a sandbox's rate changes (it starts, pauses, stops, is resized); the one that still runs is
//! computed from the sandbox itself. So a sandbox costs no write while it lives.

pub mod report;

use cove_engine::spec::Limits;
pub use report::{Amount, Prices, Report};

use crate::App;
use crate::clock::Timestamp;
use crate::sandbox::{Sandbox, State};
use crate::store::usage::{Rate, Span};

/// What a sandbox holds: all of it with processes, memory and disk while frozen, its disk alone when stopped.
pub fn rate(state: State, limits: &Limits) -> Rate {
    let disk = limits.disk.unwrap_or(0);
    match state {
        State::Running | State::Pausing | State::Stopping => Rate { cpus: limits.cpus, memory: limits.memory, disk },
        State::Paused | State::Resuming => Rate { cpus: 0.0, memory: limits.memory, disk },
        State::Stopped | State::Starting | State::Archiving | State::Restoring | State::Failed => {
            Rate { cpus: 0.0, memory: 0, disk }
        }
        State::Creating | State::Archived | State::Destroying | State::Destroyed => Rate::default(),
    }
}

/// The span that the sandbox has been in up to now; none where it held nothing.
pub fn open_span(sandbox: &Sandbox, now: Timestamp) -> Option<Span> {
    let rate = rate(sandbox.state, &sandbox.limits);
    if rate == Rate::default() || sandbox.pool.is_some() || now <= sandbox.metered_from {
        return None;
    }
    Some(Span {
        organisation: sandbox.organisation.clone(),
        sandbox: sandbox.id.to_string(),
        owner: sandbox.owner.clone(),
        from: sandbox.metered_from,
        to: now,
        rate,
    })
}

/// What a change of state makes of the account.
#[derive(Debug, Clone, PartialEq)]
pub struct Metered {
    /// To be written.
    pub span: Option<Span>,
    pub metered_from: Timestamp,
}

impl App {
    pub(crate) fn meter(&self, sandbox: &Sandbox, to: State, now: Timestamp) -> Metered {
        if rate(sandbox.state, &sandbox.limits) == rate(to, &sandbox.limits) {
            return Metered { span: None, metered_from: sandbox.metered_from };
        }
        Metered { span: open_span(sandbox, now), metered_from: now }
    }
}
