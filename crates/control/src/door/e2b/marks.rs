//! Files by which every program inside can see where it runs, under the names of the dialect; commands of clients have
//! the same in their environment.

use std::collections::BTreeMap;

use cove_protocol::Request as Ask;
use cove_protocol::file::WriteMode;

use super::envd::ROOT;
use crate::guest::{Guest, GuestError};
use crate::sandbox::Sandbox;

const FOLDER: &str = "/run/e2b";

/// Holds the sandbox's id.
pub const ID: &str = "E2B_SANDBOX_ID";

/// Name and value, in the environment and in files alike.
pub fn of(id: &str, template: &str) -> [(&'static str, String); 3] {
    [("E2B_SANDBOX", "true".into()), (ID, id.into()), ("E2B_TEMPLATE_ID", template.into())]
}

/// The caller's variables with ours, for every process whoever starts it: an interpreter, a terminal, a start command. The id
/// is added when it is known.
pub fn with(env: BTreeMap<String, String>, template: &str) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = of("", template)
        .into_iter()
        .filter(|(name, _)| *name != ID)
        .map(|(name, value)| (name.into(), value))
        .collect();
    all.extend(env);
    all
}

/// Writes the files, all at once.
pub async fn leave(guest: &Guest, sandbox: &Sandbox) -> Result<(), GuestError> {
    let marks = of(sandbox.id.as_str(), &sandbox.template);
    futures::future::try_join_all(marks.map(|(name, value)| write(guest, name, value))).await?;
    Ok(())
}

async fn write(guest: &Guest, name: &str, value: String) -> Result<(), GuestError> {
    let ask = Ask::Write {
        path: format!("{FOLDER}/.{name}"),
        user: Some(ROOT.into()),
        how: WriteMode::InPlace,
        mode: None,
        parents: true,
    };
    let mut operation = guest.send(&ask).await?;
    operation.to.data(value.as_bytes()).await?;
    operation.to.end().await?;
    operation.reply().await?;
    Ok(())
}
