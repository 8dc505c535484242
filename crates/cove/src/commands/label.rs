//! `cove label`.

use std::collections::BTreeMap;

use clap::Args;
use reqwest::Method;
use serde_json::json;

use super::change::Target;
use crate::client::sandbox::Sandbox;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::render::{print, print_json};

/// Show a sandbox's labels, or set and remove some
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove label box                            # show them
  cove label box project=demo owner=ann     # set two, keep the others
  cove label box owner-                     # remove one")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// NAME=VALUE sets a label, NAME- removes it
    #[arg(value_name = "LABEL", value_parser = parse_step)]
    steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Set(String, String),
    Remove(String),
}

fn parse_step(text: &str) -> Result<Step, String> {
    match (text.split_once('='), text.strip_suffix('-')) {
        (Some((name, value)), _) if !name.is_empty() => Ok(Step::Set(name.to_owned(), value.to_owned())),
        (None, Some(name)) if !name.is_empty() => Ok(Step::Remove(name.to_owned())),
        _ => Err("not a label; write NAME=VALUE to set one, NAME- to remove one".into()),
    }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let target = &arguments.target;
    let labels = block_on(async {
        let mut sandbox = client.sandbox(&target.sandbox).await?;
        if !arguments.steps.is_empty() {
            let mut labels = Sandbox::parse(sandbox)?.labels;
            for step in &arguments.steps {
                match step {
                    Step::Set(name, value) => labels.insert(name.clone(), value.clone()),
                    Step::Remove(name) => labels.remove(name),
                };
            }
            sandbox = client.set(&target.sandbox, Method::PUT, "labels", &json!({ "labels": labels })).await?;
        }
        Ok(Sandbox::parse(sandbox)?.labels)
    })?;
    tell(&labels, target.json)?;
    Ok(0)
}

fn tell(labels: &BTreeMap<String, String>, as_json: bool) -> Result<(), Complaint> {
    if as_json {
        return print_json(labels);
    }
    labels.iter().try_for_each(|(name, value)| print(&format!("{name}={value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_set_or_removed() {
        assert_eq!(parse_step("a=b=c"), Ok(Step::Set("a".into(), "b=c".into())));
        assert_eq!(parse_step("a=x-"), Ok(Step::Set("a".into(), "x-".into())));
        assert_eq!(parse_step("a-"), Ok(Step::Remove("a".into())));
        for text in ["", "-", "=x", "a"] {
            assert!(parse_step(text).is_err(), "{text}");
        }
    }
}
