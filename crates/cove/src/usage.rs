//! A wrong command line, told as everything else that goes wrong: one sentence that names the thing, then hints.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::complaint::Complaint;

/// What clap found, in our words. `verb` is where to read on.
pub fn complaint(error: &clap::Error, verb: Option<&str>) -> Complaint {
    let flag = text(error, ContextKind::InvalidArg).map(|flag| without_placeholder(&flag)).unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let help = match verb {
        Some(verb) => format!("`cove {verb} --help` tells what can be said here"),
        None => "`cove --help` lists the verbs".to_owned(),
    };
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            // Our parsers say what is wrong, then after a semicolon how to write it.
            let (why, remedy) = why.split_once("; ").unwrap_or((&why, ""));
            if let Some((_, (least, most))) =
                why.split_once(" is not in ").and_then(|(n, r)| Some((n, r.split_once("..=")?)))
            {
                return Complaint::usage(format!("{flag} {value}: it goes from {least} to {most}")).hint(help);
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
            let complaint = Complaint::usage(format!("there is no verb `{word}`"));
            match texts(error, ContextKind::SuggestedSubcommand).first() {
                Some(similar) => complaint.hint(format!("did you mean `{similar}`?")),
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
            Complaint::usage(format!("{flag} and {other} cannot be said together")).hint(help)
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
