//! Why a sandbox is in its state: cause, evidence, remedy.

use serde::Serialize;

use super::cause::{Cause, Code, bytes};
use super::{Expiry, IdleMeasure, Sandbox, State};
use crate::clock::{Timestamp, after};
use crate::event::{Event, EventFilter};
use crate::{App, Caller, Error};

/// Events that are shown.
const SHOWN: u32 = 20;

#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct Explanation {
    pub sandbox: String,
    pub state: State,
    pub cause: Cause,
    /// What was seen, a line each.
    pub evidence: Vec<String>,
    /// What to do, a line each; empty where nothing is wrong.
    pub remedy: Vec<String>,
    /// The latest events, oldest first.
    pub events: Vec<Event>,
}

impl App {
    pub async fn explain(&self, caller: &Caller, id_or_name: &str) -> Result<Explanation, Error> {
        let sandbox = self.sandbox_even_destroyed(caller, id_or_name).await?;
        let filter = EventFilter {
            organisation: Some(caller.organisation.clone()),
            sandbox: Some(sandbox.id.to_string()),
            ..EventFilter::default()
        };
        let events = self.store().newest_events(&filter, 0, SHOWN).await?;
        let mut evidence = vec![format!("{} since {}", sandbox.state, sandbox.state_since)];
        if sandbox.state == State::Running
            && let Ok(usage) = self.provider(&sandbox.provider)?.usage(&sandbox.handle()).await
        {
            // What runs uses some: nothing means that nobody counts it.
            if usage.memory > 0 {
                evidence.push(format!("memory: {} of {}", bytes(usage.memory), bytes(usage.memory_limit)));
            }
            if usage.memory_kills > 0 {
                let many = match usage.memory_kills {
                    1 => "1 process was".to_owned(),
                    many => format!("{many} processes were"),
                };
                evidence.push(format!("{many} killed for want of memory"));
            }
        }
        if let Err(error) = self.check_disk(&sandbox.provider) {
            evidence.push(error.to_string());
        }
        if let Some(deadline) = sandbox.timers.deadline {
            evidence.push(format!("lifetime ends {deadline}"));
        }
        evidence.push(format!("last activity {}", sandbox.last_activity_at));
        evidence.extend(idle_rule(&sandbox));
        Ok(Explanation {
            remedy: remedy(&sandbox, self.now()),
            sandbox: sandbox.id.to_string(),
            state: sandbox.state,
            cause: sandbox.cause,
            evidence,
            events,
        })
    }
}

/// When it is put away for want of activity, and what that is.
fn idle_rule(sandbox: &Sandbox) -> Option<String> {
    let timers = &sandbox.timers;
    let seconds = timers.idle_seconds.filter(|_| sandbox.state == State::Running)?;
    let act = match timers.at_idle {
        Expiry::Destroy => "is destroyed",
        Expiry::Pause => "is paused",
        Expiry::Stop => "is stopped",
    };
    let what = match timers.idle_measure {
        IdleMeasure::Requests => "requests",
        IdleMeasure::RequestsAndWork => "requests and work",
        IdleMeasure::RequestsAndProcesses => "requests and running processes",
    };
    let at = after(sandbox.last_activity_at, seconds);
    Some(format!("{act} at {at} if idle until then; {what} count as activity"))
}

fn remedy(sandbox: &Sandbox, now: Timestamp) -> Vec<String> {
    let name = sandbox.name.as_deref().unwrap_or(sandbox.id.as_str());
    let lifetime_is_over = sandbox.timers.deadline.is_some_and(|at| at <= now);
    let restart = match sandbox.state {
        State::Stopped | State::Archived => Some(format!("`cove start {name}`: its files are as they were")),
        State::Failed => Some(format!("`cove recover {name}`, or `cove rm {name}` to give it up")),
        State::Paused => Some(format!("`cove resume {name}`: its processes go on where they were")),
        _ => None,
    };
    let advice = match sandbox.cause.code {
        Code::OutOfMemory => {
            Some(format!("`cove resize {name} --memory SIZE` with more than {}", bytes(sandbox.limits.memory)))
        }
        Code::Lifetime if lifetime_is_over => {
            Some(format!("first `cove extend {name} TIME`, or `never`: its lifetime is over, and would end it again"))
        }
        Code::Lifetime => None,
        Code::Idle => Some(match sandbox.timers.idle_measure {
            IdleMeasure::Requests => format!(
                "`cove timers {name} --idle-counts work` lets work in the background count, `--idle TIME` sets a longer time or `never`"
            ),
            _ => format!("`cove timers {name} --idle TIME` with a longer time, or `never`"),
        }),
        Code::StartFailed => Some("the message names the step that failed; `cove doctor` checks the host".into()),
        Code::StorageFailed => {
            Some("look for what it wrote last: it may be missing. `cove doctor` tells how the disk is now".into())
        }
        Code::Vanished => Some("find out who ended its processes: the host was not restarted".into()),
        Code::Requested
        | Code::Woken
        | Code::Retention
        | Code::HostRestart
        | Code::Killed
        | Code::GuestExited
        | Code::ServerRestart
        | Code::ChangeFailed
        | Code::Pool => None,
    };
    let needed = !matches!(sandbox.state, State::Running | State::Destroyed);
    let advice = advice.filter(|_| needed || sandbox.cause.code == Code::OutOfMemory);
    // What must be done first comes first.
    let lines = if sandbox.cause.code == Code::Lifetime { [advice, restart] } else { [restart, advice] };
    lines.into_iter().flatten().collect()
}
