//! A wrong command line, reported like all errors: one sentence that names the thing, then hints.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::complaint::Complaint;

/// Words of other tools, and what they are called here; the first one that the verb has.
const OTHER_WORDS: [(&str, &[&str]); 35] = [
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
    ("inspect", &["show"]),
    ("status", &["ls"]),
    ("why", &["explain"]),
    ("unpause", &["resume"]),
    ("preview", &["link"]),
    ("tag", &["label"]),
];

/// Words of other tools for what is part of a verb here.
const PARTS: [(&str, &str); 12] = [
    ("image", "template ls"),
    ("images", "template ls"),
    ("build", "template build"),
    ("pull", "template build NAME --image REF"),
    ("rmi", "template rm"),
    ("recipes", "template recipes"),
    ("commit", "snapshot create"),
    ("checkpoint", "snapshot checkpoints"),
    ("checkpoints", "snapshot checkpoints"),
    ("import", "snapshot import"),
    ("load", "snapshot import"),
    ("export", "template export"),
];

/// Never suggested for a mistyped verb: it removes everything.
const NEVER_OFFERED: &str = "reset";

/// Suggests a verb.
fn meant(word: &str, within: &clap::Command, similar: &[String]) -> Option<String> {
    let has = |name: &str| within.find_subcommand(name).is_some();
    let part = PARTS.iter().find(|(other, ours)| *other == word && has(ours.split(' ').next().unwrap_or(ours)));
    if let Some((_, ours)) = part {
        return Some((*ours).to_owned());
    }
    let known = OTHER_WORDS.iter().find(|(other, _)| *other == word);
    let translated = known.and_then(|(_, ours)| ours.iter().find(|name| has(name)));
    // `template` for `templates`, `keys` for `key`.
    let number = || {
        let others = [word.trim_end_matches('s').to_owned(), format!("{word}s")];
        others.into_iter().find(|name| name != word && has(name))
    };
    // `run` for `rnu`.
    let letters = |word: &str| {
        let mut letters: Vec<char> = word.chars().collect();
        letters.sort_unstable();
        letters
    };
    let swapped = || {
        let names = within.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name);
        let mut names = names.filter(|name| *name != NEVER_OFFERED);
        names
            .find(|name| *name != word && name.chars().next() == word.chars().next() && letters(name) == letters(word))
            .map(str::to_owned)
    };
    // The most similar is the last.
    let similar = || similar.last().filter(|name| *name != NEVER_OFFERED && *name != word).cloned();
    translated.map(|name| (*name).to_owned()).or_else(number).or_else(swapped).or_else(similar)
}

/// The verb that a command line is about, and its part; `cove help VERB PART` is about that verb.
pub fn about(all: &clap::Command, words: impl Iterator<Item = String>) -> (Option<&clap::Command>, Option<String>) {
    let mut words = words.skip_while(|word| word == "help");
    let verb = words.next().and_then(|word| all.find_subcommand(word));
    (verb, words.next())
}

/// Clap's error in our words. `verb` is the one whose help to read, or the help of its `part`.
pub fn complaint(
    error: &clap::Error,
    all: &clap::Command,
    verb: Option<&clap::Command>,
    part: Option<&str>,
) -> Complaint {
    let flag = text(error, ContextKind::InvalidArg).map(|flag| without_placeholder(&flag)).unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue).unwrap_or_default();
    let help = match verb {
        Some(verb) => match part.and_then(|part| verb.find_subcommand(part)) {
            Some(part) => format!("`cove help {} {}` lists what it takes", verb.get_name(), part.get_name()),
            None => format!("`cove help {}` lists what it takes", verb.get_name()),
        },
        None => "`cove --help` lists the verbs".to_owned(),
    };
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = error.source().map(ToString::to_string).unwrap_or_default();
            // Our parsers write what is wrong, and after a semicolon how to write it.
            let why = in_our_words(&why);
            let (why, remedy) = why.split_once("; ").unwrap_or((why, ""));
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
        // `--timeout -1s`: clap takes the value for a flag.
        ErrorKind::UnknownArgument if flag.as_bytes().get(1).is_some_and(u8::is_ascii_digit) => {
            Complaint::usage(format!("`{flag}` is neither a flag nor a value: nothing here can be negative")).hint(help)
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
                Some(verb) => Complaint::usage(format!("there is no `{word}` of `cove {}`", verb.get_name())),
                None => Complaint::usage(format!("there is no verb `{word}`")),
            };
            if word == "version" {
                return complaint.hint("cove --version");
            }
            match meant(&word, verb.unwrap_or(all), &texts(error, ContextKind::SuggestedSubcommand)) {
                Some(meant) => complaint.hint(format!("did you mean `{meant}`?")),
                None => complaint.hint(help),
            }
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = texts(error, ContextKind::InvalidArg);
            let are = if missing.len() == 1 { "is" } else { "are" };
            Complaint::usage(format!("{} {are} missing", missing.join(" and "))).hint(help)
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

/// What parsers of libraries say, for people; after the semicolon how to write it.
fn in_our_words(why: &str) -> &str {
    if why.contains("invalid digit found in string") {
        "not a whole number; write digits alone, for example 8000"
    } else if why.contains("number too large to fit") {
        "too large a number"
    } else if why.contains("invalid IP address") {
        "not an IP address; write for example 1.1.1.1"
    } else if why.contains("failed to parse") {
        "not a time; write it in UTC, for example 2026-01-31T18:00:00Z"
    } else {
        why
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

/// `--memory <SIZE>` is `--memory`, and `[LABEL]...` is `<LABEL>`: whether it may be left out is no matter where it was
/// written.
fn without_placeholder(flag: &str) -> String {
    if flag.starts_with('-') {
        return flag.split([' ', '=']).next().unwrap_or(flag).to_owned();
    }
    let name = flag.trim_end_matches("...");
    match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(name) => format!("<{name}>"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> String {
        let all = crate::cli::command();
        let words: Vec<&str> = line.split(' ').collect();
        let error = all.clone().try_get_matches_from(&words).unwrap_err();
        let (verb, part) = about(&all, words.iter().skip(1).map(|word| (*word).to_owned()));
        complaint(&error, &all, verb, part.as_deref()).to_string()
    }

    #[test]
    fn words_of_other_tools_lead_to_the_part_of_a_verb() {
        for (line, hint) in [
            ("cove images", "did you mean `template ls`?"),
            ("cove build", "did you mean `template build`?"),
            ("cove checkpoint", "did you mean `snapshot checkpoints`?"),
            ("cove export", "did you mean `template export`?"),
            ("cove template inspect x", "did you mean `show`?"),
        ] {
            assert!(told(line).contains(hint), "{line}: {}", told(line));
        }
        let help = told("cove help template inspect");
        assert!(!help.contains("did you mean `inspect`"), "{help}");
    }

    #[test]
    fn what_was_typed_is_named_without_brackets_of_the_help() {
        let label = told("cove label box nonsense");
        assert!(label.starts_with("error: <LABEL> nonsense: not a label"), "{label}");
        let kind = told("cove network box some");
        assert!(kind.starts_with("error: <KIND> cannot be `some`"), "{kind}");
        let both = told("cove rename box lab --none");
        assert!(both.starts_with("error: <NAME> and --none cannot"), "{both}");
        let two = told("cove snapshot import");
        assert!(two.starts_with("error: <FILE> and <NAME> are missing"), "{two}");
        let one = told("cove exec box");
        assert!(one.starts_with("error: <COMMAND>... is missing"), "{one}");
    }

    #[test]
    fn a_part_that_is_not_there_is_missed_in_its_verb() {
        let help = told("cove help template nonsense");
        assert!(help.starts_with("error: there is no `nonsense` of `cove template`"), "{help}");
        assert!(help.contains("`cove help template`"), "{help}");
        let verb = told("cove help nonsense");
        assert!(verb.starts_with("error: there is no verb `nonsense`"), "{verb}");
    }

    #[test]
    fn the_help_of_the_part_is_named() {
        let told = told("cove snapshot checkpoints box --nonsense-flag");
        assert!(told.contains("`cove help snapshot checkpoints`"), "{told}");
    }
}
