//! What a build is asked to do.
//!
//! A [`Request`] is stored with the build, so that another life of the server can go on with it. What must not be stored
//! is in [`Confidential`]: it is kept in memory until the build ends.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::border::field::Characters;
use crate::border::shape;

/// Steps of one build.
pub const STEPS_MAX: usize = 1000;
/// Bytes of a Dockerfile, and of one step.
pub const TEXT_MAX: usize = 1 << 20;
/// Archives of one build.
pub const CONTEXTS_MAX: usize = 128;
const SECRETS_MAX: usize = 64;
const SECRET_MAX: usize = 64 << 10;
/// Bytes of all secrets of one build: every line that it says is looked through for them.
const ALL_SECRETS_MAX: usize = 256 << 10;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub recipe: Recipe,
    /// A command that runs from the start of every sandbox on.
    #[serde(default)]
    pub start: Option<String>,
    /// Succeeds once the start command has done its work.
    #[serde(default)]
    pub ready: Option<String>,
    /// Do every step anew, and remember it.
    #[serde(default)]
    pub force: bool,
    #[serde(default)]
    pub habits: Habits,
    /// It came with something that is not stored: it cannot go on after a restart.
    #[serde(default)]
    pub is_confidential: bool,
    /// Private addresses that its commands may reach, beside the internet: a package index of one's own.
    #[serde(default)]
    pub allow: Vec<String>,
}

/// Whose defaults a template has where nobody says anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Habits {
    /// The image's: its user, its directory, its command.
    #[default]
    OfTheImage,
    /// E2B's: the user `user` with `/home/user`, made where the image has none; the image's own user, directory and
    /// command count for nothing.
    OfE2b,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Recipe {
    /// An image as it is.
    Image {
        reference: String,
    },
    /// An archive that was sent: an image as `docker save` and OCI layouts have it, or the tar of a tree.
    Archive {
        hash: String,
        name: Option<String>,
    },
    Steps {
        base: Base,
        steps: Vec<NewStep>,
    },
    Dockerfile {
        text: String,
        /// Archives whose union is the context.
        contexts: Vec<String>,
        /// The stage that is wanted; the last where absent.
        target: Option<String>,
        arguments: BTreeMap<String, String>,
    },
}

/// What steps begin with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// By its name in a registry.
    Image(String),
    /// By name, tag or id.
    Template(String),
    /// Another stage of the same build.
    Stage(usize),
    Nothing,
}

/// A step as a caller wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewStep {
    #[serde(flatten)]
    pub act: Act,
    /// Do it anew although it was done before.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum Act {
    Run {
        command: String,
        /// The user that is set where absent.
        #[serde(default)]
        user: Option<String>,
        /// Secrets of the build that the command may read.
        #[serde(default)]
        secrets: Vec<SecretMount>,
    },
    Copy {
        /// The archive that was sent for it.
        hash: String,
        source: String,
        destination: String,
        /// `user`, `user:group` or numbers.
        #[serde(default)]
        owner: Option<String>,
        #[serde(default)]
        mode: Option<u32>,
    },
    /// One file, with its text in the request itself.
    File {
        path: String,
        content: String,
        /// `user`, `user:group` or numbers.
        #[serde(default)]
        owner: Option<String>,
        #[serde(default)]
        mode: Option<u32>,
    },
    Env {
        values: Vec<(String, String)>,
    },
    /// Variables of the commands that follow, which no sandbox has.
    Arg {
        values: Vec<(String, String)>,
    },
    Workdir {
        path: String,
    },
    User {
        name: String,
        /// May use sudo without a password.
        #[serde(default)]
        sudo: bool,
    },
}

/// A secret that a command may read, and that is in no layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretMount {
    pub name: String,
    /// Where the command finds it; `/run/secrets/NAME` where absent and no variable has it.
    #[serde(default)]
    pub path: Option<String>,
    /// The variable that has it.
    #[serde(default)]
    pub variable: Option<String>,
    /// Without it the step fails.
    #[serde(default)]
    pub required: bool,
}

impl SecretMount {
    fn check(&self) -> Result<(), Error> {
        check_line("secrets", &self.name)?;
        if let Some(path) = &self.path {
            check_line("secrets", path)?;
            if !path.starts_with('/') || path.split('/').any(|part| part == "..") {
                return Err(Error::invalid("secrets", "the path of a secret is absolute, without '..'"));
            }
        }
        self.variable.as_deref().map_or(Ok(()), |variable| check_line("secrets", variable))
    }
}

/// Given to the build and kept nowhere but in memory.
#[derive(Clone, Default)]
pub struct Confidential {
    pub registry: Option<Credentials>,
    /// For `RUN --mount=type=secret`.
    pub secrets: BTreeMap<String, Vec<u8>>,
}

/// Who may pull.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub username: String,
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?})", self.username)
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Confidential({:?}, {} secrets)", self.registry, self.secrets.len())
    }
}

impl Confidential {
    pub fn is_empty(&self) -> bool {
        self.registry.is_none() && self.secrets.is_empty()
    }

    pub fn check(&self) -> Result<(), Error> {
        if self.secrets.len() > SECRETS_MAX {
            return Err(Error::invalid("secrets", format!("at most {SECRETS_MAX}")));
        }
        for (name, value) in &self.secrets {
            let fits = !name.is_empty()
                && name.len() <= 128
                && !name.starts_with('.')
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
            if !fits {
                return Err(Error::invalid("secrets", "a name has 1 to 128 letters, digits, '-', '_' and '.'"));
            }
            if value.len() > SECRET_MAX {
                return Err(Error::invalid(format!("secrets.{name}"), format!("at most {} KiB", SECRET_MAX >> 10)));
            }
        }
        if self.secrets.values().map(Vec::len).sum::<usize>() > ALL_SECRETS_MAX {
            return Err(Error::invalid("secrets", format!("at most {} KiB in all", ALL_SECRETS_MAX >> 10)));
        }
        Ok(())
    }
}

impl Request {
    pub fn check(&self) -> Result<(), Error> {
        for (field, command) in [("start", &self.start), ("ready", &self.ready)] {
            if let Some(command) = command {
                check_text(field, command)?;
            }
        }
        match &self.recipe {
            Recipe::Image { reference } => check_line("image", reference),
            Recipe::Archive { hash, name } => {
                check_hash(hash)?;
                name.as_deref().map_or(Ok(()), |name| check_line("name", name))
            }
            Recipe::Steps { base, steps } => {
                if let Base::Image(name) | Base::Template(name) = base {
                    check_line("from", name)?;
                }
                if steps.len() > STEPS_MAX {
                    return Err(Error::invalid("steps", format!("at most {STEPS_MAX}")));
                }
                steps.iter().try_for_each(|step| step.act.check())
            }
            Recipe::Dockerfile { text, contexts, arguments, .. } => {
                check_text("dockerfile", text)?;
                if contexts.len() > CONTEXTS_MAX {
                    return Err(Error::invalid("contexts", format!("at most {CONTEXTS_MAX}")));
                }
                contexts.iter().try_for_each(|hash| check_hash(hash))?;
                crate::sandbox::create::check_env(arguments)
            }
        }
    }

    /// About how many bytes there are to be read.
    pub fn size(&self) -> usize {
        match &self.recipe {
            Recipe::Dockerfile { text, .. } => text.len(),
            Recipe::Image { .. } | Recipe::Archive { .. } | Recipe::Steps { .. } => 0,
        }
    }

    /// Every archive that it needs.
    pub fn files(&self) -> Vec<&str> {
        match &self.recipe {
            Recipe::Image { .. } => Vec::new(),
            Recipe::Archive { hash, .. } => vec![hash],
            Recipe::Dockerfile { contexts, .. } => contexts.iter().map(String::as_str).collect(),
            Recipe::Steps { steps, .. } => steps
                .iter()
                .filter_map(|step| match &step.act {
                    Act::Copy { hash, .. } => Some(hash.as_str()),
                    _ => None,
                })
                .collect(),
        }
    }
}

impl Act {
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self {
            Act::Run { command, user, secrets } => {
                check_text("run", command)?;
                secrets.iter().try_for_each(SecretMount::check)?;
                user.as_deref().map_or(Ok(()), check_user)
            }
            Act::Copy { hash, source, destination, owner, mode } => {
                check_hash(hash)?;
                check_line("copy", source)?;
                check_line("copy", destination)?;
                if let Some(owner) = owner {
                    owner.splitn(2, ':').try_for_each(check_user)?;
                }
                check_mode(*mode)
            }
            Act::File { path, content, owner, mode } => {
                check_line("path", path)?;
                // The name is matched like every source of a copy.
                if !path.starts_with('/') || path.ends_with('/') || path.contains(['*', '?', '[', '\\']) {
                    return Err(Error::invalid("path", "an absolute path of a file, without '*', '?', '[' and '\\'"));
                }
                check_text("content", content)?;
                if let Some(owner) = owner {
                    owner.splitn(2, ':').try_for_each(check_user)?;
                }
                check_mode(*mode)
            }
            Act::Env { values } | Act::Arg { values } => {
                crate::sandbox::create::check_env(&values.iter().cloned().collect())
            }
            Act::Workdir { path } => check_line("workdir", path),
            Act::User { name, .. } => check_user(name),
        }
    }
}

fn check_mode(mode: Option<u32>) -> Result<(), Error> {
    match mode {
        Some(mode) if mode > 0o7777 => Err(Error::invalid("mode", "at most 7777, in octal digits")),
        _ => Ok(()),
    }
}

/// Users come into `/etc/passwd` by their name: it is one that every system takes.
pub fn check_user(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty()
        && name.len() <= 32
        && !name.starts_with('-')
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits { Ok(()) } else { Err(Error::invalid("user", "1 to 32 letters, digits, '-', '_' and '.'")) }
}

/// Whoever sends an archive names it by a hash of its choice: SHA-256 in E2B's SDKs, MD5 in Daytona's.
pub fn check_hash(hash: &str) -> Result<(), Error> {
    let digits = hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    if digits && matches!(hash.len(), 32 | 64) {
        return Ok(());
    }
    Err(Error::invalid("hash", "32 or 64 lower-case hexadecimal digits"))
}

fn check_line(field: &str, text: &str) -> Result<(), Error> {
    if text.is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    Ok(shape::judge_text(field, text, 4096, Characters::Line)?)
}

fn check_text(field: &str, text: &str) -> Result<(), Error> {
    Ok(shape::judge_text(field, text, TEXT_MAX, Characters::Text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_confidential_is_shown_nowhere() {
        let confidential = Confidential {
            registry: Some(Credentials { username: "ada".into(), password: "hunter2".into() }),
            secrets: [("token".to_owned(), b"s3cret".to_vec())].into(),
        };
        let shown = format!("{confidential:?}");
        assert!(!shown.contains("hunter2") && !shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn secrets_have_a_bound_each_and_together() {
        let of = |count: usize, bytes: usize| {
            let secrets = (0..count).map(|number| (format!("s{number}"), vec![7; bytes])).collect();
            Confidential { registry: None, secrets }.check().map_err(|error| error.to_string())
        };
        assert_eq!(of(4, 64 << 10), Ok(()));
        assert!(of(1, (64 << 10) + 1).unwrap_err().contains("at most 64 KiB"));
        assert!(of(5, 64 << 10).unwrap_err().contains("at most 256 KiB in all"));
        assert!(of(65, 1).unwrap_err().contains("at most 64"));
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let steps = vec![
            NewStep { act: Act::Run { command: "echo".into(), user: None, secrets: Vec::new() }, force: true },
            NewStep { act: Act::Env { values: vec![("A".into(), "b".into())] }, force: false },
            NewStep { act: Act::Arg { values: vec![("B".into(), "c".into())] }, force: false },
            NewStep { act: file("/etc/motd"), force: false },
        ];
        let request = Request {
            recipe: Recipe::Steps { base: Base::Image("debian:12".into()), steps },
            start: None,
            ready: Some("true".into()),
            force: false,
            habits: Habits::OfE2b,
            is_confidential: false,
            allow: vec!["10.0.0.1:443".into()],
        };
        request.check().unwrap();
        let text = serde_json::to_string(&request).unwrap();
        assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), request);
    }

    fn file(path: &str) -> Act {
        Act::File { path: path.into(), content: "hello\n".into(), owner: None, mode: Some(0o644) }
    }

    #[test]
    fn a_file_has_an_absolute_path_and_is_text() {
        for path in ["etc/motd", "/etc/", "", "/a\nb", "/etc/*"] {
            assert!(file(path).check().is_err(), "{path:?}");
        }
        let content = "x".repeat(TEXT_MAX + 1);
        assert!(Act::File { path: "/x".into(), content, owner: None, mode: None }.check().is_err());
    }

    #[test]
    fn names_that_would_get_out_of_their_line_are_refused() {
        for name in ["root:0:0", "a b", "-x", "", "a\nb", &"a".repeat(33)] {
            assert!(check_user(name).is_err(), "{name:?}");
        }
        for hash in ["", "xyz", &"a".repeat(63), &"A".repeat(64), "../../../../etc/passwd"] {
            assert!(check_hash(hash).is_err(), "{hash:?}");
        }
    }
}
