//! Completions that the program asks a server for: names of sandboxes, templates, snapshots and volumes.
//!
//! The shell calls this program with `COMPLETE` set (clap_complete); when the server does not answer at once, there are
//! none.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};
use serde_json::Value;

use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;

/// How long a person waits for a TAB.
const PATIENCE: Duration = Duration::from_millis(800);

/// For an argument that names a sandbox.
pub fn sandboxes() -> ArgValueCompleter {
    ArgValueCompleter::new(named)
}

/// For an argument that names a template.
pub fn templates() -> ArgValueCompleter {
    of("/templates", None)
}

/// For an argument that names a recipe.
pub fn recipes() -> ArgValueCompleter {
    of("/recipes", None)
}

/// For an argument that names a snapshot.
pub fn snapshots() -> ArgValueCompleter {
    of("/snapshots", Some("items"))
}

/// For an argument that names a volume.
pub fn volumes() -> ArgValueCompleter {
    of("/volumes", None)
}

/// Names of a list, which is a field of the answer where one is named.
fn of(path: &'static str, field: Option<&'static str>) -> ArgValueCompleter {
    ArgValueCompleter::new(move |typed: &OsStr| {
        let listed = asked(async |client: &Client| client.get::<Value>(path).await).unwrap_or_default();
        let listed = field.map_or(&listed, |field| &listed[field]);
        let names = listed.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
        let typed = typed.to_string_lossy();
        names.filter(|name| name.starts_with(typed.as_ref())).map(CompletionCandidate::new).collect()
    })
}

/// What a server answers while a person waits for it.
fn asked<T>(question: impl AsyncFnOnce(&Client) -> Result<T, Complaint>) -> Result<T, Complaint> {
    block_on(async {
        let client = Client::from_environment()?;
        let answer = tokio::time::timeout(PATIENCE, question(&client)).await;
        answer.unwrap_or_else(|_| Err(Complaint::silent()))
    })
}

/// For an argument of `cove cp`: the sandbox before the colon, or a file here.
pub fn copied() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let inside = names().into_iter().map(|name| CompletionCandidate::new(format!("{name}:")));
        let typed_text = typed.to_string_lossy();
        let mut all: Vec<_> =
            inside.filter(|one| one.get_value().to_string_lossy().starts_with(typed_text.as_ref())).collect();
        all.extend(clap_complete::engine::ValueCompleter::complete(
            &clap_complete::engine::PathCompleter::any(),
            typed,
        ));
        all
    })
}

fn named(typed: &OsStr) -> Vec<CompletionCandidate> {
    let typed = typed.to_string_lossy();
    names().into_iter().filter(|name| name.starts_with(typed.as_ref())).map(CompletionCandidate::new).collect()
}

fn names() -> Vec<String> {
    let listed = asked(async |client: &Client| crate::commands::ls::fetch(client, &[]).await);
    // Without a server or a key there are no names: a completion reports no errors.
    let sandboxes = listed.unwrap_or_default().into_iter().filter_map(|one| Sandbox::parse(one).ok());
    sandboxes.map(|sandbox| sandbox.called().to_owned()).collect()
}
