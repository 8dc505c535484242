//! The life of a sandbox as a pure machine: no clock, no lock, no I/O.
//!
//! ```text
//!             Launched             Pause            Paused
//!  (new) Creating ───▶ Running ───────────▶ Pausing ─────▶ Paused
//!                       ▲  │  ▲ ◀───────── Resuming ◀─────── │ │
//!              Launched │  │  └───────────────── Resume ──────┘ │ Stop
//!                       │  │ Stop, Departed                     ▼
//!     Start ┌─ Starting ◀──┼──────────────▶ Stopping ─────▶ Stopped ◀┐
//!           │              ▼                                  │      │ Missing (never)
//!           └───────── Stopped ── Archive ▶ Archiving ▶ Archived ── Start ▶ Restoring ▶ Starting
//!
//!  any ── Destroy ▶ Destroying ▶ Destroyed          a start that fails ▶ Failed ── Start, Recover ▶ Starting
//!                                                   a first launch that fails ▶ Destroying
//! ```
//!
//! The caller writes the new state to the store, then carries out the effect, then applies the effect's outcome. A
//! crash in between leaves a state in transition; [`Event::Seen`] and [`Event::Missing`], which reconcile makes of what
//! the provider tells, lead out of every one of them. Effects are idempotent, so doing one again is always right.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::provider::Seen;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Being made for the first time.
    Creating,
    /// Its processes are being started on files that were there.
    Starting,
    Running,
    Pausing,
    /// Frozen in memory.
    Paused,
    Resuming,
    Stopping,
    /// Files are there, processes are not.
    Stopped,
    Archiving,
    /// Files are in the object store alone.
    Archived,
    /// Files come back from the object store.
    Restoring,
    Destroying,
    /// Nothing remains; kept for the record.
    Destroyed,
    /// A start went wrong; files are as they were.
    Failed,
}

impl State {
    pub const ALL: [State; 14] = [
        State::Creating,
        State::Starting,
        State::Running,
        State::Pausing,
        State::Paused,
        State::Resuming,
        State::Stopping,
        State::Stopped,
        State::Archiving,
        State::Archived,
        State::Restoring,
        State::Destroying,
        State::Destroyed,
        State::Failed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            State::Creating => "creating",
            State::Starting => "starting",
            State::Running => "running",
            State::Pausing => "pausing",
            State::Paused => "paused",
            State::Resuming => "resuming",
            State::Stopping => "stopping",
            State::Stopped => "stopped",
            State::Archiving => "archiving",
            State::Archived => "archived",
            State::Restoring => "restoring",
            State::Destroying => "destroying",
            State::Destroyed => "destroyed",
            State::Failed => "failed",
        }
    }

    pub fn parse(text: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.as_str() == text)
    }

    /// On the way from one lasting state to another: somebody is at work on it, or died at it.
    pub fn is_in_transition(self) -> bool {
        matches!(
            self,
            State::Creating
                | State::Starting
                | State::Pausing
                | State::Resuming
                | State::Stopping
                | State::Archiving
                | State::Restoring
                | State::Destroying
        )
    }

    /// Whether it counts among those that run: it has processes, or is about to.
    pub fn takes_room(self) -> bool {
        !matches!(
            self,
            State::Stopped | State::Failed | State::Archived | State::Archiving | State::Destroying | State::Destroyed
        )
    }

    /// Its processes exist, frozen or not.
    pub fn has_processes(self) -> bool {
        matches!(self, State::Running | State::Pausing | State::Paused | State::Resuming | State::Stopping)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    // Asked for, by a person, a program or a timer.
    Start,
    Stop,
    /// A stop that gives processes no time to end by themselves.
    Kill,
    /// A stop that keeps the files whatever kind of sandbox it is, for a change of them.
    Halt,
    Pause,
    Resume,
    Archive,
    Recover,
    Destroy,
    // What became of an effect.
    Launched,
    LaunchFailed,
    Stopped,
    Paused,
    Resumed,
    Exported,
    Imported,
    Destroyed,
    /// A pause, stop, archive or restore that did not work: the sandbox is where it was.
    Undone,
    // What happened by itself.
    /// Its processes ended unasked.
    Departed,
    // What reconcile found.
    Seen(Seen),
    /// The provider does not know it.
    Missing,
    /// The provider does not know it, and the object store has an archive of it.
    MissingButArchived,
}

/// What must be done now that the state is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effect {
    Launch,
    Stop,
    Kill,
    Pause,
    Resume,
    /// Files to the object store, then off the provider.
    Export,
    /// Files back from the object store.
    Import,
    Destroy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    pub state: State,
    pub effect: Option<Effect>,
}

/// No, and why: the sentence that the user reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Denied {
    pub state: State,
    pub event: Event,
}

impl Denied {
    fn sentence(&self) -> String {
        let verb = match self.event {
            Event::Start => "be started",
            Event::Stop | Event::Kill | Event::Halt => "be stopped",
            Event::Pause => "be paused",
            Event::Resume => "be resumed",
            Event::Archive => "be archived",
            Event::Recover => "be recovered",
            Event::Destroy => "be destroyed",
            Event::Launched | Event::LaunchFailed | Event::Imported => "finish a start",
            Event::Stopped => "finish a stop",
            Event::Paused | Event::Resumed => "finish a pause",
            Event::Exported => "finish an archive",
            Event::Destroyed => "finish a destroy",
            Event::Seen(_) => "be used",
            Event::Undone | Event::Departed | Event::Missing | Event::MissingButArchived => "change",
        };
        let remedy = match (self.state, self.event) {
            (State::Running, Event::Archive) => "; stop it first",
            (State::Stopped | State::Archived, Event::Pause) => "; start it first",
            (State::Stopped | State::Archived, Event::Resume) => "; start it",
            (State::Stopped | State::Archived, Event::Seen(_)) => "; start it first",
            (State::Paused, Event::Seen(_)) => "; resume it first",
            (State::Failed, Event::Seen(_)) => "; recover or destroy it",
            (state, _) if state.is_in_transition() => "; try again shortly",
            _ => "",
        };
        format!("sandbox is {} and cannot {verb}{remedy}", self.state)
    }
}

fn to(state: State) -> Step {
    Step { state, effect: None }
}

fn doing(state: State, effect: Effect) -> Step {
    Step { state, effect: Some(effect) }
}

/// What an event makes of a state.
pub fn apply(state: State, event: Event) -> Result<Step, Denied> {
    use State::{
        Archived, Archiving, Creating, Destroyed, Destroying, Failed, Paused, Pausing, Restoring, Resuming, Running,
        Starting, Stopped, Stopping,
    };

    let step = match (state, event) {
        // Destroyed is the end: nothing leads out, and asking again is fine.
        (Destroyed, Event::Destroy | Event::Destroyed | Event::Missing | Event::Departed) => to(Destroyed),
        // A provider that still shows it has kept something back.
        (Destroyed, Event::Seen(_)) => doing(Destroying, Effect::Destroy),
        // Destroy is never refused, and nothing else gets in its way.
        (_, Event::Destroy) => doing(Destroying, Effect::Destroy),
        (Destroying, Event::Destroyed) => to(Destroyed),
        // What the provider has forgotten may still have an archive.
        (Destroying, Event::Seen(_) | Event::Missing) => doing(Destroying, Effect::Destroy),
        (Destroying, Event::Departed | Event::Undone) => to(Destroying),

        (Stopped | Failed, Event::Start) => doing(Starting, Effect::Launch),
        (Paused, Event::Start | Event::Resume) => doing(Resuming, Effect::Resume),
        (Archived, Event::Start) => doing(Restoring, Effect::Import),
        (Running, Event::Start | Event::Resume) => to(Running),
        (Failed, Event::Recover) => doing(Starting, Effect::Launch),
        (Running | Paused | Failed, Event::Stop) => doing(Stopping, Effect::Stop),
        (Running | Paused | Failed, Event::Kill | Event::Halt) => doing(Stopping, Effect::Kill),
        (Stopped, Event::Stop | Event::Kill | Event::Halt) => to(Stopped),
        (Archived, Event::Stop | Event::Kill) => to(Archived),
        (Running, Event::Pause) => doing(Pausing, Effect::Pause),
        (Paused, Event::Pause) => to(Paused),
        (Stopped, Event::Archive) => doing(Archiving, Effect::Export),
        (Archived, Event::Archive) => to(Archived),

        (Creating | Starting, Event::Launched) => to(Running),
        // Nobody was told of it: it leaves nothing.
        (Creating, Event::LaunchFailed) => doing(Destroying, Effect::Destroy),
        (Starting, Event::LaunchFailed) => to(Failed),
        (Stopping, Event::Stopped | Event::Departed) => to(Stopped),
        (Stopping, Event::Undone) => to(Running),
        (Pausing, Event::Paused) => to(Paused),
        (Pausing, Event::Undone) => to(Running),
        (Resuming, Event::Resumed) => to(Running),
        (Resuming, Event::Undone) => to(Paused),
        (Archiving, Event::Exported) => to(Archived),
        (Archiving, Event::Undone) => to(Stopped),
        (Restoring, Event::Imported) => doing(Starting, Effect::Launch),
        (Restoring, Event::Undone) => to(Archived),

        (Running | Paused | Pausing | Resuming, Event::Departed) => to(Stopped),
        // Word of an end that a newer life has overtaken, or that we knew already.
        (Creating | Starting | Stopped | Archiving | Archived | Restoring | Failed, Event::Departed) => to(state),

        // After a crash: what was under way is finished or begun again.
        (Creating | Starting | Running | Resuming, Event::Seen(Seen::Running)) => to(Running),
        (Creating | Starting, Event::Seen(Seen::Paused)) => doing(Resuming, Effect::Resume),
        (Creating, Event::Seen(Seen::Stopped)) => doing(Destroying, Effect::Destroy),
        (Starting, Event::Seen(Seen::Stopped)) => to(Stopped),
        (Running | Pausing | Paused | Resuming | Stopping, Event::Seen(Seen::Stopped)) => to(Stopped),
        (Running, Event::Seen(Seen::Paused)) => doing(Resuming, Effect::Resume),
        (Pausing, Event::Seen(Seen::Running)) => doing(Pausing, Effect::Pause),
        (Pausing | Paused, Event::Seen(Seen::Paused)) => to(Paused),
        (Paused, Event::Seen(Seen::Running)) => to(Running),
        (Resuming, Event::Seen(Seen::Paused)) => doing(Resuming, Effect::Resume),
        (Stopping, Event::Seen(Seen::Running | Seen::Paused)) => doing(Stopping, Effect::Stop),
        (Stopped | Failed | Archiving | Archived | Restoring, Event::Seen(Seen::Running | Seen::Paused)) => {
            doing(Stopping, Effect::Stop)
        }
        (Stopped, Event::Seen(Seen::Stopped)) => to(Stopped),
        (Failed, Event::Seen(Seen::Stopped)) => to(Failed),
        (Archiving, Event::Seen(Seen::Stopped)) => doing(Archiving, Effect::Export),
        (Archived, Event::Seen(Seen::Stopped)) => doing(Archiving, Effect::Export),
        (Restoring, Event::Seen(Seen::Stopped)) => doing(Restoring, Effect::Import),

        // Nobody was told of it yet, so nobody misses it.
        (Creating, Event::Missing) => to(Destroyed),
        (Archived, Event::Missing) => to(Archived),
        (Restoring, Event::Missing) => to(Archived),
        // The export's last step takes the files off the provider: the archive is whole.
        (Archiving, Event::Missing) => to(Archived),
        (Starting | Running | Pausing | Paused | Resuming | Stopping | Stopped | Failed, Event::Missing) => to(Failed),
        // A database from before it was archived. As a failed one it would be started without its files, and its next archive would
        // take the place of the only copy.
        (Starting | Running | Pausing | Paused | Resuming | Stopping | Stopped | Failed, Event::MissingButArchived) => {
            to(Archived)
        }

        (state, event) => return Err(Denied { state, event }),
    };
    Ok(step)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
