//! The start and ready commands of a template, in a sandbox that has just started.
//!
//! A sandbox has files of its template and no processes, so the start command runs again in each. The caller is answered
//! when the ready command says that it has done its work, and after a few seconds in any case: what it is not ready for
//! then, a request finds out.

use std::time::Duration;

use cove_protocol::process::{Command, Spec};

use super::Template;
use crate::App;
use crate::guest::Guest;
use crate::provider::Handle;
use crate::sandbox::exec::{run_to_end, start_in_background};
use crate::sandbox::{Sandbox, State};

/// How long a creation waits for a template to be ready.
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_LOOK: Duration = Duration::from_millis(20);
const LAST_LOOK: Duration = Duration::from_secs(1);
/// By this the command is found in the sandbox.
pub const START_TAG: &str = "template.start";

impl App {
    /// Starts what the template starts, and waits until that is ready.
    pub(crate) async fn boot(&self, sandbox: &Sandbox, template: &Template) {
        let Some(start) = &template.start else { return };
        let Ok(provider) = self.provider(&sandbox.provider) else { return };
        if sandbox.state != State::Running {
            return;
        }
        let guest = provider.guest(&sandbox.handle());
        if let Err(error) = start_in_background(&guest, command(sandbox, start.clone()), None).await {
            tracing::warn!(sandbox = %sandbox.id, %error, "the template's start command");
            return;
        }
        if let Some(ready) = template.ready.as_deref().filter(|ready| !is_a_guess(ready))
            && tokio::time::timeout(PATIENCE, become_ready(&guest, sandbox, ready)).await.is_err()
        {
            tracing::info!(sandbox = %sandbox.id, "the template was not ready after {} s", PATIENCE.as_secs());
        }
    }
}

impl App {
    /// A sandbox that was stopped and runs again: its template's start command too, while the caller is answered.
    pub(crate) fn boot_again(&self, sandbox: &Sandbox, handle: &Handle) {
        let Some(build) = sandbox.build.clone() else { return };
        let (app, sandbox, handle) = (self.clone(), sandbox.clone(), handle.clone());
        self.tasks().spawn(async move {
            let start = match app.store().build(&build).await {
                Ok(build) => build.and_then(|build| build.defaults.start),
                Err(error) => {
                    tracing::warn!(sandbox = %sandbox.id, %error, "look for the template's start command");
                    None
                }
            };
            let (Some(start), Ok(provider)) = (start, app.provider(&sandbox.provider)) else { return };
            let started = start_in_background(&provider.guest(&handle), command(&sandbox, start), None).await;
            if let Err(error) = started {
                tracing::warn!(sandbox = %sandbox.id, %error, "the template's start command");
            }
        });
    }
}

fn command(sandbox: &Sandbox, start: String) -> Spec {
    Spec {
        user: Some(sandbox.user.clone()),
        cwd: sandbox.cwd.clone(),
        tag: Some(START_TAG.to_owned()),
        ..Spec::new(Command::Shell(start))
    }
}

/// Whether it only waits: at the build it was waited for, and the files are the same.
fn is_a_guess(ready: &str) -> bool {
    let words: Vec<&str> = ready.split_whitespace().collect();
    matches!(words.as_slice(), ["sleep", seconds] if seconds.parse::<f64>().is_ok()) || words == ["true"]
}

async fn become_ready(guest: &Guest, sandbox: &Sandbox, ready: &str) {
    let mut pause = FIRST_LOOK;
    loop {
        let spec = Spec {
            user: Some(sandbox.user.clone()),
            cwd: sandbox.cwd.clone(),
            timeout_ms: Some(PATIENCE.as_millis() as u64),
            ..Spec::new(Command::Shell(ready.to_owned()))
        };
        match run_to_end(guest, spec, None).await {
            Ok(output) if output.exit.status() == 0 => return,
            Ok(_) => {}
            // It ended meanwhile: whoever asks for it is told.
            Err(_) => return,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_command_that_only_waits_is_not_waited_for_again() {
        assert!(is_a_guess("sleep 20") && is_a_guess(" sleep  0.5 ") && is_a_guess("true"));
        assert!(!is_a_guess("sleep 1; curl localhost") && !is_a_guess("[ -f /tmp/ready ]"));
    }
}
