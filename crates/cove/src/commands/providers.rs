//! `cove providers`.

use clap::Args;
use serde_json::Value;

use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{List, Tone, say, word};

/// List the providers, how each does, and what each can do
///
/// Health is measured on what is asked of them, and by a light call four times a minute. An ill one gets no sandboxes by
/// `[[routes]]` while another is well.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  cove providers")]
pub struct Arguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let providers: Vec<Value> = block_on(client.get("/providers"))?;
    let headings = [
        "name",
        "kind",
        "default",
        "health",
        "create",
        "exec",
        "errors",
        "isolation",
        "pause",
        "resize",
        "files stay",
        "network policy",
        "archive",
    ];
    List { headings, empty: "no providers" }.show(&providers, arguments.json, |provider| {
        let can = |name: &str| match provider[name].as_bool() {
            Some(true) => ("yes".to_owned(), Tone::Good),
            _ => ("no".to_owned(), Tone::Faint),
        };
        [
            (word(provider, "name").to_owned(), Tone::Plain),
            (word(provider, "kind").to_owned(), Tone::Plain),
            can("default"),
            state(provider),
            (middle(provider, "create"), Tone::Plain),
            (middle(provider, "exec"), Tone::Plain),
            (errors(provider), Tone::Plain),
            (word(provider, "isolation").to_owned(), Tone::Plain),
            can("pause"),
            can("resize"),
            can("persistent"),
            can("network_policy"),
            can("archive"),
        ]
    })?;
    if !arguments.json {
        for provider in &providers {
            if let Some(why) = provider["health"]["why"].as_str() {
                let last =
                    provider["health"]["last_error"].as_str().map_or_else(String::new, |last| format!(" ({last})"));
                say(&format!("hint: {} is ill: {why}{last}", word(provider, "name")));
            }
            for refusal in provider["refusals"].as_array().into_iter().flatten() {
                let (ability, reason) = (word(refusal, "ability").replace('_', " "), word(refusal, "reason"));
                say(&format!("hint: {} has no {ability}: {reason}", word(provider, "name")));
            }
        }
    }
    Ok(0)
}

fn state(provider: &Value) -> (String, Tone) {
    match word(&provider["health"], "state") {
        "ill" => ("ill".to_owned(), Tone::Bad),
        state => (state.to_owned(), Tone::Good),
    }
}

/// What was measured of one kind of call.
fn figures<'a>(provider: &'a Value, act: &str) -> Option<&'a Value> {
    provider["health"]["acts"].as_array()?.iter().find(|figures| figures["act"] == act)
}

/// Half of the calls took no longer.
fn middle(provider: &Value, act: &str) -> String {
    let time = figures(provider, act).and_then(|figures| figures["p50_ms"].as_f64());
    time.map_or_else(|| "-".to_owned(), |time| format!("{time:.1} ms"))
}

/// Calls that failed, of all of the last minutes.
fn errors(provider: &Value) -> String {
    let acts = provider["health"]["acts"].as_array();
    let sum = |name: &str| acts.into_iter().flatten().filter_map(|figures| figures[name].as_u64()).sum::<u64>();
    format!("{} of {}", sum("errors"), sum("calls"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_provider_that_was_never_asked_has_no_times() {
        let fresh = json!({ "health": { "state": "well", "acts": [] } });
        assert_eq!((middle(&fresh, "create"), errors(&fresh)), ("-".to_owned(), "0 of 0".to_owned()));
        let acts = json!([
            { "act": "create", "calls": 3, "errors": 1, "p50_ms": 12.34 },
            { "act": "check", "calls": 4, "errors": 0, "p50_ms": null },
        ]);
        let used = json!({ "health": { "state": "ill", "acts": acts } });
        assert_eq!((middle(&used, "create"), middle(&used, "check")), ("12.3 ms".to_owned(), "-".to_owned()));
        assert_eq!((errors(&used), state(&used).0), ("1 of 7".to_owned(), "ill".to_owned()));
    }
}
