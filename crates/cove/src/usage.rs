//! A wrong command line, reported like all errors: one sentence that names the thing, then hints.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::complaint::Complaint;

/// Words of other tools, and what they are called here; the first one that the verb has.
const OTHER_WORDS: [(&str, &[&str]); 34] = [
    ("delete", &["rm", "revoke"]),
    ("remove", &["rm", "revoke"]),
    ("del", &["rm", "revoke"]),
    ("destroy", &["rm"]),
    ("kill", &["rm"]),
    ("revoke", &["rm"]),
    ("rm", &["revoke"]),
    ("list", &["ls"]),
    ("ps", &["ls", "top"]),
    ("new", &["create"]),
    ("make", &["create"]),
    ("add", &["create", "set"]),
    ("spawn", &["create"]),
    ("copy", &["cp"]),
    ("upload", &["cp"]),
    ("download", &["cp"]),
    ("ssh", &["shell"]),
    ("attach", &["shell"]),
    ("connect", &["shell"]),
    ("sh", &["shell"]),
    ("bash", &["shell"]),
    ("execute", &["exec", "run"]),
    ("server", &["serve"]),
    ("up", &["serve"]),
    ("daemon", &["serve"]),
    ("get", &["inspect", "show", "ls"]),
    ("info", &["inspect", "show"]),
    ("describe", &["inspect", "show"]),
    ("show", &["inspect", "ls"]),
    ("status", &["ls"]),
    ("why", &["explain"]),
    ("unpause", &["resume"]),
    ("preview", &["link"]),
    ("tag", &["label"]),
];

/// Never suggested for a mistyped verb: it removes everything.
const NEVER_OFFERED: &str = "reset";

/// Suggests a verb.
fn meant(word: &str, within: &clap::Command, similar: &[String]) -> Option<String> {
    let has = |name: &str| within.find_subcommand(name).is_some();
    let known = OTHER_WORDS.iter().find(|(other, _)| *other == word);
    let translated = known.and_then(|(_, ours)| ours.iter().find(|name| has(name)));
    // `template` for `templates`, `keys` for `key`.
    let number = || [word.trim_end_matches('s').to_owned(), format!("{word}s")].into_iter().find(|name| has(name));
    // The most similar is the last.
    let similar = || similar.last().filter(|name| *name != NEVER_OFFERED).cloned();
    translated.map(|name| (*name).to_owned()).or_else(number).or_else(similar)
}

/// Clap's error in our words. `verb` is the one whose help to read.
pub fn complaint(error: &clap::Error, all: &clap::Command, verb: Option<&clap::Command>) -> Complaint {
    let flag = text(error, ContextKind::InvalidArg).map(|flag| without_placeholder(&flag)).unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let help = match verb {
        Some(verb) => format!("`cove help {}` lists what it takes", verb.get_name()),
        None => "`cove --help` lists the verbs".to_owned(),
    };
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            // Our parsers write what is wrong, and after a semicolon how to write it.
            let (why, remedy) = why.split_once("; ").unwrap_or((&why, ""));
            if let Some((_, (least, most))) =
                why.split_once(" is not in ").and_then(|(n, r)| Some((n, r.split_once("..=")?)))
            {
                return Complaint::usage(format!("{flag} {value}: it must be from {least} to {most}")).hint(help);
            }
            let complaint = Complaint::usage(format!("{flag} {value}: {why}"));
            if remedy.is_empty() { complaint } else { complaint.hint(remedy) }
        }
        ErrorKind::InvalidValue if value.is_empty() => Complaint::usage(format!("{flag} needs a value")).hint(help),
        ErrorKind::InvalidValue => {
            let known = texts(error, ContextKind::ValidValue).join(", ");
            let complaint = Complaint::usage(format!("{flag} cannot be `{value}`"));
            if known.is_empty() { complaint.hint(help) } else { complaint.hint(format!("{flag} is one of: {known}")) }
        }
        ErrorKind::UnknownArgument => {
            let complaint = Complaint::usage(format!("there is no `{flag}` here"));
            match texts(error, ContextKind::SuggestedArg).first() {
                Some(similar) => complaint.hint(format!("did you mean `{similar}`?")),
                None => complaint.hint(help),
            }
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let complaint = match verb {
                Some(verb) if verb.get_name() != "help" => {
                    Complaint::usage(format!("there is no `{word}` of `cove {}`", verb.get_name()))
                }
                _ => Complaint::usage(format!("there is no verb `{word}`")),
            };
            let within = verb.filter(|verb| verb.get_name() != "help").unwrap_or(all);
            match meant(&word, within, &texts(error, ContextKind::SuggestedSubcommand)) {
                Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
                None => complaint.hint(help),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = texts(error, ContextKind::InvalidArg).join(" and ");
            Complaint::usage(format!("{missing} is missing")).hint(help)
        }
        ErrorKind::ArgumentConflict => {
            let others = texts(error, ContextKind::PriorArg);
            let other = others.first().map(|other| without_placeholder(other)).unwrap_or_default();
            Complaint::usage(format!("{flag} and {other} cannot be used together")).hint(help)
        }
        _ => {
            let rendered = error.render().to_string();
            let first = rendered.lines().next().unwrap_or_default();
            Complaint::usage(first.strip_prefix("error: ").unwrap_or(first)).hint(help)
        }
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<String> {
    texts(error, kind).into_iter().next()
}

fn texts(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    }
}

/// `--memory <SIZE>` is `--memory`; `<COMMAND>...` stays what it is.
fn without_placeholder(flag: &str) -> String {
    if flag.starts_with('-') { flag.split([' ', '=']).next().unwrap_or(flag).to_owned() } else { flag.to_owned() }
}
