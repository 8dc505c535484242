//! `cove config`: the configuration that a server would use.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use cove_control::config::{Config, Layers, Loaded, Origin};
use serde_json::{Value, json};

use super::settings::{self, Flags, usual_file};
use crate::complaint::{Complaint, code};
use crate::render::{Rows, Tone, print, print_json, say};

/// Check or show the server's configuration
///
/// The environment overrides the file, flags override the environment.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove config show --changed
  cove config check ./cove.toml")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    /// List all mistakes in a file, with their lines
    Check {
        /// The file [default: the one that `cove serve` would read]
        file: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the effective values and where each came from; secrets are hidden
    Show {
        #[command(flatten)]
        flags: Box<Flags>,
        /// Only what differs from the defaults
        #[arg(long)]
        changed: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    match &arguments.act {
        Act::Check { file, json } => check(file.clone(), *json),
        Act::Show { flags, changed, json } => show(&flags.load()?, *changed, *json),
    }
}

fn check(file: Option<PathBuf>, as_json: bool) -> Result<u8, Complaint> {
    let Some(file) = file.or_else(usual_file) else {
        return Err(Complaint::usage("there is no configuration file")
            .hint("name one: cove config check FILE; a server without one uses its defaults"));
    };
    let layers = Layers { file: Some(&file), ..Layers::default() };
    let loaded = Loaded::new(Config::default(), layers);
    if let Ok(loaded) = &loaded {
        settings::check_filter(&loaded.config)?;
    }
    match loaded {
        Ok(_) if as_json => print_json(&json!({ "file": file, "problems": [] })).map(|()| 0),
        Ok(_) => {
            say(&format!("{} is right", file.display()));
            Ok(0)
        }
        Err(problems) if as_json => {
            let problems: Vec<_> =
                problems.iter().map(|one| json!({ "line": one.line, "message": one.to_string() })).collect();
            print_json(&json!({ "file": file, "problems": problems })).map(|()| code::USAGE)
        }
        Err(problems) => Err(settings::complaint(Some(&file), &problems)),
    }
}

fn show(loaded: &Loaded, changed: bool, as_json: bool) -> Result<u8, Complaint> {
    let values = loaded.effective().into_iter().filter(|value| !changed || value.origin != Origin::Default);
    if as_json {
        let values: Vec<Value> =
            values.map(|one| json!({ "key": one.key, "value": one.value, "from": one.origin.to_string() })).collect();
        print_json(&values)?;
        return Ok(0);
    }
    let mut rows = Rows::new(&["key", "value", "from"]);
    let mut count = 0;
    for one in values {
        let value = one.value.map_or_else(
            || "-".to_owned(),
            |value| match value {
                toml::Value::String(text) => text,
                value => value.to_string(),
            },
        );
        let tone = if one.origin == Origin::Default { Tone::Faint } else { Tone::Good };
        rows.add(&[(&one.key, Tone::Plain), (&value, Tone::Plain), (&one.origin.to_string(), tone)]);
        count += 1;
    }
    if count == 0 {
        print("nothing differs from the defaults")?;
    } else {
        rows.print()?;
    }
    Ok(0)
}
