//! One shot: makes a sandbox, runs the code in it, and removes everything.

use std::collections::BTreeMap;
use std::time::Duration;

use cove_protocol::Request;
use cove_protocol::file::WriteMode;
use cove_protocol::process::{Command, Spec};

use crate::guest::Guest;
use crate::interpreter::Language;
use crate::sandbox::exec::{Output, run_to_end};
use crate::sandbox::{NewSandbox, TimersChange};
use crate::{App, Caller, Error};

#[derive(Debug, Clone)]
pub struct OneShot {
    /// A label on the sandbox: who it is for.
    pub agent: String,
    pub code: String,
    pub language: Option<String>,
    pub template: Option<String>,
    pub provider: Option<String>,
    pub env: BTreeMap<String, String>,
    pub timeout: Duration,
}

impl App {
    pub async fn one_shot(&self, caller: &Caller, shot: OneShot) -> Result<Output, Error> {
        let language: Language = shot.language.as_deref().unwrap_or("python").parse()?;
        let (file, program) = match language {
            Language::Python => ("main.py", "python3"),
            Language::JavaScript => ("main.mjs", "node"),
            Language::Bash => ("main.sh", "bash"),
            Language::TypeScript | Language::Kernel(_) => {
                return Err(Error::invalid("language", "python, javascript or bash"));
            }
        };
        let new = NewSandbox {
            template: shot.template.clone(),
            provider: shot.provider.clone(),
            env: shot.env.clone(),
            labels: BTreeMap::from([("agent".to_owned(), shot.agent.clone())]),
            timers: TimersChange {
                // If the server dies meanwhile, this deadline ends the sandbox.
                lifetime_seconds: Some(Some(shot.timeout.as_secs() + 60)),
                ephemeral: Some(true),
                ..TimersChange::default()
            },
            ..NewSandbox::default()
        };
        let app = self.clone();
        let caller = caller.clone();
        self.detached(async move {
            let sandbox = app.create_sandbox(&caller, new).await?;
            let ran = app.run_shot(&caller, sandbox.id.as_str(), file, program, &shot).await;
            let cleaned = app.destroy(&caller, sandbox.id.as_str()).await;
            let output = ran?;
            cleaned?;
            Ok(output)
        })
        .await
    }

    async fn run_shot(
        &self,
        caller: &Caller,
        id: &str,
        file: &str,
        program: &str,
        shot: &OneShot,
    ) -> Result<Output, Error> {
        let (_, guest) = self.reach(caller, id).await?;
        upload(&guest, file, shot.code.as_bytes()).await?;
        let command = Command::Argv(vec![program.to_owned(), file.to_owned()]);
        let spec = Spec { timeout_ms: Some(shot.timeout.as_millis() as u64), ..Spec::new(command) };
        Ok(run_to_end(&guest, spec, None).await?)
    }
}

async fn upload(guest: &Guest, path: &str, bytes: &[u8]) -> Result<(), Error> {
    let write =
        Request::Write { path: path.to_owned(), user: None, how: WriteMode::Replace, mode: None, parents: true };
    let mut operation = guest.send(&write).await?;
    operation.to.data(bytes).await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(())
}
