//! Contexts: processes of the sandbox, known by their tags.

use std::collections::BTreeMap;
use std::fmt;

use cove_protocol::process::{Info, Selector};
use cove_protocol::{FailureKind, Reply, Request};
use serde::{Deserialize, Serialize};

use super::InterpreterError;
use crate::guest::{Guest, GuestError};

/// The prefix of a context's tag; the name of a default context or the JSON of another [`Context`] follows.
pub const TAG: &str = "cove.context ";

/// The prefix of the names of default contexts; the language follows.
const DEFAULT: &str = "default-";

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct ContextId(pub String);

impl ContextId {
    /// The name of a language's default context.
    pub fn default_of(language: &Language) -> Self {
        ContextId(format!("{DEFAULT}{language}"))
    }

    pub fn is_default(&self) -> bool {
        self.0.starts_with(DEFAULT)
    }
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Language {
    Python,
    JavaScript,
    TypeScript,
    Bash,
    /// A Jupyter kernel of this name, if the template has it.
    Kernel(String),
}

impl fmt::Display for Language {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Language::Python => "python",
            Language::JavaScript => "javascript",
            Language::TypeScript => "typescript",
            Language::Bash => "bash",
            Language::Kernel(name) => name,
        })
    }
}

impl std::str::FromStr for Language {
    type Err = InterpreterError;

    fn from_str(name: &str) -> Result<Self, InterpreterError> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "" | "python" | "python3" | "py" => Language::Python,
            "javascript" | "js" | "node" => Language::JavaScript,
            "typescript" | "ts" => Language::TypeScript,
            "bash" | "sh" | "shell" => Language::Bash,
            other => {
                let fits =
                    other.len() <= 40 && other.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+".contains(&b));
                if !fits {
                    return Err(InterpreterError::UnknownLanguage(name.chars().take(60).collect()));
                }
                Language::Kernel(other.to_owned())
            }
        })
    }
}

impl TryFrom<String> for Language {
    type Error = InterpreterError;

    fn try_from(name: String) -> Result<Self, InterpreterError> {
        name.parse()
    }
}

impl From<Language> for String {
    fn from(language: Language) -> String {
        language.to_string()
    }
}

/// The settings of a new context.
#[derive(Debug, Clone, Default)]
pub struct NewContext {
    pub language: Option<Language>,
    /// The user's home where absent.
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    /// Who runs the code; the sandbox's default user where absent.
    pub user: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Context {
    pub id: ContextId,
    pub language: Language,
    #[serde(default)]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub created_at_ms: i64,
}

impl Context {
    pub fn new(new: NewContext) -> Self {
        let bytes: [u8; 16] = rand::random();
        Context {
            id: ContextId(hex::encode(bytes)),
            language: new.language.unwrap_or(Language::Python),
            cwd: new.cwd,
            env: new.env,
            user: new.user,
            created_at_ms: jiff::Timestamp::now().as_millisecond(),
        }
    }

    pub fn default_of(language: &Language) -> Self {
        Context {
            id: ContextId::default_of(language),
            ..Context::new(NewContext { language: Some(language.clone()), ..NewContext::default() })
        }
    }

    /// The tag of the context's process. For a default context it is known without listing processes.
    pub fn tag(&self) -> String {
        if self.id.is_default() {
            return format!("{TAG}{}", self.id);
        }
        format!("{TAG}{}", serde_json::to_string(self).expect("a context always serialises"))
    }
}

/// A context and its process.
#[derive(Debug, Clone)]
pub struct Found {
    pub context: Context,
    pub pid: u32,
}

fn found(process: &Info) -> Option<Found> {
    let name = process.tag.as_ref()?.strip_prefix(TAG)?;
    let context = match name.strip_prefix(DEFAULT) {
        Some(language) => Context {
            id: ContextId(name.to_owned()),
            language: language.parse().ok()?,
            cwd: process.cwd.clone(),
            env: process.env.clone(),
            user: process.user.clone(),
            created_at_ms: i64::try_from(process.started_at_ms).ok()?,
        },
        None => serde_json::from_str(name).ok()?,
    };
    process.exit.is_none().then_some(Found { context, pid: process.pid })
}

/// Every context with a live process, oldest first.
pub async fn living(guest: &Guest) -> Result<Vec<Found>, GuestError> {
    match guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => {
            let mut all: Vec<Found> = processes.iter().filter_map(found).collect();
            all.sort_by_key(|found| found.context.created_at_ms);
            Ok(all)
        }
        other => Err(GuestError::Protocol(format!("processes answered {other:?}"))),
    }
}

pub async fn lookup(guest: &Guest, id: &ContextId) -> Result<Option<Found>, GuestError> {
    Ok(living(guest).await?.into_iter().find(|found| found.context.id == *id))
}

pub async fn find(guest: &Guest, id: &ContextId) -> Result<Found, InterpreterError> {
    lookup(guest, id).await?.ok_or_else(|| InterpreterError::NoSuchContext(id.0.chars().take(80).collect()))
}

/// Whether the context is there, or was deleted.
pub async fn was_there(guest: &Guest, context: &Context) -> Result<bool, GuestError> {
    let tag = context.tag();
    match guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => Ok(processes.iter().any(|process| process.tag.as_ref() == Some(&tag))),
        other => Err(GuestError::Protocol(format!("processes answered {other:?}"))),
    }
}

/// Whether the guest goes on to tell of a context that was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record {
    Kept,
    Forgotten,
}

/// Kills the process with its children and waits until it is gone.
pub async fn end(guest: &Guest, pid: u32, record: Record) -> Result<(), GuestError> {
    const SIGKILL: i32 = 9;
    let process = Selector::Pid(pid);
    let mut requests = vec![
        Request::Signal { process: process.clone(), signal: SIGKILL, group: true },
        Request::Wait { process: process.clone() },
    ];
    if record == Record::Forgotten {
        requests.push(Request::Forget { process });
    }
    for request in requests {
        match guest.call(&request).await {
            Ok(_) => {}
            Err(GuestError::Failed(failure))
                if matches!(failure.kind, FailureKind::NotFound | FailureKind::WrongState) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_is_read_back_from_its_tag() {
        let context = Context::new(NewContext { cwd: Some("/tmp".into()), ..NewContext::default() });
        let read: Context = serde_json::from_str(context.tag().strip_prefix(TAG).unwrap()).unwrap();
        assert_eq!(read, context);
    }

    #[test]
    fn a_language_with_odd_characters_is_refused() {
        assert!("python; rm -rf /".parse::<Language>().is_err());
        assert_eq!("ts".parse::<Language>().unwrap(), Language::TypeScript);
        assert_eq!("r".parse::<Language>().unwrap(), Language::Kernel("r".into()));
    }
}
