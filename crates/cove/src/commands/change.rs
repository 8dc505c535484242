//! What `start`, `stop`, `pause` and `resume` share: one change of state for each sandbox that is named.

use clap::Args;

use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::{Complaint, code};
use crate::progress::waiting;
use crate::render::{print, say};

#[derive(Debug, Args)]
pub struct Targets {
    /// Names or ids
    #[arg(value_name = "SANDBOX", required = true)]
    pub sandboxes: Vec<String>,
    /// Print JSON, one object on each line
    #[arg(long)]
    pub json: bool,
}

/// The word of the API's path, which is the verb's own.
pub struct Change {
    pub verb: &'static str,
}

/// Prints each name that was changed; goes on after a refusal and tells it at the end by the exit code.
pub fn run(targets: &Targets, change: Change) -> Result<u8, Complaint> {
    each(&targets.sandboxes, async |client, sandbox| {
        let waits = format!("{} {sandbox}", change.verb);
        let changed = waiting(&waits, client.change(sandbox, change.verb)).await?;
        if targets.json {
            return print(&changed.to_string());
        }
        let changed = Sandbox::parse(changed)?;
        print(&format!("{} {}", changed.called(), changed.state))
    })
}

/// Carries out `work` for each. With one sandbox its complaint is the verb's own.
pub fn each(sandboxes: &[String], work: impl AsyncFn(&Client, &str) -> Result<(), Complaint>) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        if let [sandbox] = sandboxes {
            return work(&client, sandbox).await.map(|()| 0);
        }
        let mut code = 0;
        for sandbox in sandboxes {
            if let Err(complaint) = work(&client, sandbox).await {
                if complaint.is_silent() {
                    return Err(complaint);
                }
                say(&complaint.to_string());
                code = code::FAILED;
            }
        }
        Ok(code)
    })
}
