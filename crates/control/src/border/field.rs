//! How long each field may be, by its name.
//!
//! A name means the same wherever it stands: in a body, in a query, in every dialect. So one table serves all doors and
//! the document. What is not named here has the budget of ordinary text.

use cove_policy::policy::{MOST_ENTRIES, MOST_RESOLVERS};

/// What a field may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Characters of a string: of the field itself, of each entry of a list, of each value of a map.
    pub length: usize,
    /// Entries of a list or of a map.
    pub items: usize,
    pub keys: Keys,
    pub characters: Characters,
}

/// Whose the keys of an object are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// Fields with names of ours, each with its own budget.
    Fields,
    /// A map whose keys the caller chooses, of at most so many characters.
    Chosen(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Characters {
    Any,
    /// All but NUL, which neither the kernel nor PostgreSQL takes.
    NoNul,
    /// Also no control characters but tab and line ends: lines of text.
    Text,
    /// No control characters at all: names.
    Line,
}

/// What has no budget of its own.
const ORDINARY: Budget = Budget { length: 8 << 10, items: 1000, keys: Keys::Fields, characters: Characters::NoNul };

const fn name(length: usize) -> Budget {
    Budget { length, characters: Characters::Line, ..ORDINARY }
}

const fn list(items: usize, length: usize) -> Budget {
    Budget { items, ..name(length) }
}

const fn map(items: usize, keys: usize, length: usize, characters: Characters) -> Budget {
    Budget { length, items, keys: Keys::Chosen(keys), characters }
}

/// The longest path that Linux knows.
const PATH: Budget = Budget { length: 4096, items: 10_000, ..ORDINARY };
/// The longest word that Linux gives to a program has 128 KiB; a shell reads longer ones from its input.
const PROGRAM: Budget = Budget { length: super::CONTENT, items: 4096, ..ORDINARY };
const CONTENT: Budget = Budget { length: super::CONTENT, characters: Characters::Any, ..ORDINARY };

/// Labels of one sandbox, and in one question.
pub const LABELS: usize = 64;
pub const LABEL_KEY: usize = 255;
pub const LABEL_VALUE: usize = 4096;
/// Whom a sandbox is billed to.
pub const OWNER: usize = 255;
/// Tags of one template, and in one request.
pub const TAGS: usize = 128;
/// Kinds of event that a webhook names.
pub const KINDS: usize = 64;
pub const KIND: usize = 64;

/// The budget of a field of a body.
pub fn of(field: &str) -> Budget {
    match field {
        "code" | "content" | "content_base64" | "data" | "input" | "pty" | "stdin" => CONTENT,
        "args" | "argv" | "cmd" | "command" | "shell" => PROGRAM,
        "dockerfile" | "dockerfileContent" | "message" | "newValue" | "replacement" => {
            Budget { length: super::MESSAGE, ..ORDINARY }
        }
        "cwd" | "destination" | "file" | "files" | "from" | "path" | "paths" | "pattern" | "source_paths"
        | "git_path" | "target" | "to" | "workDir" => PATH,
        "arg" | "arguments" | "env" | "envVars" | "env_vars" | "envs" | "set" => {
            map(1024, 1024, 128 << 10, Characters::NoNul)
        }
        // Base64 of at most 64 KiB each.
        "secrets" => map(64, 128, 96 << 10, Characters::NoNul),
        "labels" | "metadata" => map(LABELS, LABEL_KEY, LABEL_VALUE, Characters::Text),
        "allow" | "allowOut" | "deny" | "denyOut" => list(MOST_ENTRIES, 300),
        "dnsServers" | "resolvers" => list(MOST_RESOLVERS, 64),
        "domainAllowList" | "networkAllowList" => name(64 << 10),
        "kinds" => list(KINDS, KIND),
        "aliases" | "names" | "tags" => list(TAGS, 300),
        "archive_name" | "environment" | "image" | "subpath" | "workdir" => name(4096),
        "readyCmd" | "startCmd" => PROGRAM,
        "fromImage" | "fromTemplate" => name(4096),
        "filesHash" | "hash" => name(64),
        "git_url" | "url" => name(2048),
        "password" => Budget { length: 4096, ..ORDINARY },
        "owner" => name(OWNER),
        "author" | "branch" | "commit" | "context_id" | "email" | "git_branch" | "group" | "id" | "language"
        | "mode" | "name" | "organisation" | "provider" | "recipe" | "remote" | "sandbox_id" | "sessionId"
        | "session_id" | "snapshot" | "tag" | "template" | "templateID" | "user" | "username" | "variant" => name(255),
        _ => ORDINARY,
    }
}

/// The budget of a value in a query, where lists and maps are written as one text.
pub fn of_parameter(parameter: &str) -> Budget {
    match parameter {
        "envs" | "label" | "labels" | "metadata" => Budget { length: 16 << 10, ..ORDINARY },
        parameter => Budget { length: of(parameter).length.min(ORDINARY.length), ..of(parameter) },
    }
}
