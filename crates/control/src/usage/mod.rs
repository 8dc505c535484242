//! What sandboxes use, metered to the millisecond and priced by the operator's table.
//!
//! A span is written when a sandbox's rate changes (it starts, pauses, stops, is resized). The current span is computed
//! from the sandbox itself, so a running sandbox causes no writes.

pub mod report;

pub use report::{Amount, Prices, Report};

use crate::App;
use crate::clock::Timestamp;
use crate::provider::Limits;
use crate::sandbox::{Sandbox, State};
use crate::store::usage::{Rate, Span};

/// What a sandbox uses: everything while it has processes, memory and disk while frozen, its disk alone when stopped.
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

/// The sandbox's current span; `None` where it uses nothing.
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

/// What a state change does to the account.
#[derive(Debug, Clone, PartialEq)]
pub struct Metered {
    /// The finished span, to be written.
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
