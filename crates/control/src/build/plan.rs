//! A request, taken apart into stages and steps that the executor can do one after another.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::dockerfile;
use super::request::{Act, Base, Habits, NewStep, Recipe, Request, SecretMount};
use crate::Error;

/// Who a step is done by, where, and with which environment; it grows from step to step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    pub env: BTreeMap<String, String>,
    /// `root` where empty.
    pub user: String,
    /// Commands are root's all the same, until a step sets the user.
    #[serde(default)]
    pub as_root: bool,
    /// Beside `env`, for commands alone: no sandbox has them.
    pub arguments: BTreeMap<String, String>,
    /// The user's home, or `/`, where absent.
    pub cwd: Option<String>,
    /// What runs a command; `/bin/bash -l -c`, or `/bin/sh -c`, where empty.
    pub shell: Vec<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    /// Steps of a Dockerfile that are done where another is built on it.
    pub on_build: Vec<String>,
}

impl Context {
    /// Who runs commands that name nobody.
    pub fn worker(&self) -> &str {
        if self.as_root { "root" } else { self.user() }
    }

    pub fn user(&self) -> &str {
        if self.user.is_empty() { "root" } else { &self.user }
    }

    /// The command of its sandboxes, as a line for a shell.
    pub fn start(&self) -> Option<String> {
        let words: Vec<&String> = self.entrypoint.iter().chain(&self.command).collect();
        if words.is_empty() {
            return None;
        }
        Some(words.into_iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
    }
}

/// A word for a shell, as it is.
pub fn quoted(word: &str) -> String {
    let plain = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@%+,".contains(&b));
    if plain { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Each needs only those before it.
    pub stages: Vec<Stage>,
    /// Which of them are to be done, in this order; the last is the result.
    pub needed: Vec<usize>,
    /// Images that the request itself names, in its order.
    pub images: Vec<String>,
    pub habits: Habits,
    pub force: bool,
    /// Where the steps are a Dockerfile's.
    pub dockerfile: Option<dockerfile::Recipe>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Stage {
    /// For the log: `builder` where it has no name.
    pub name: String,
    pub base: Base,
    pub steps: Vec<Planned>,
}

/// One step, with what the user calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// Its number from 1, over all stages.
    pub number: usize,
    /// As it was written, for the log.
    pub text: String,
    pub force: bool,
    pub deed: Deed,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Deed {
    Run(Run),
    Copy(Copy),
    Env(Vec<(String, String)>),
    Arg(Vec<(String, String)>),
    Workdir(String),
    User {
        name: String,
        sudo: bool,
        /// Made where the image does not have it.
        make: bool,
    },
    /// Understood when its turn has come.
    Dockerfile(Box<cove_image::dockerfile::Step>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    pub command: Command,
    pub user: Option<String>,
    /// The context's where absent.
    pub cwd: Option<String>,
    /// Beside the context's: arguments of a Dockerfile, which no sandbox has.
    pub env: BTreeMap<String, String>,
    pub secrets: Vec<SecretMount>,
    pub reach: Reach,
}

/// Where a command's connections lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    Internet,
    Nothing,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// For the context's shell.
    Shell(String),
    /// Words as they are.
    Exec(Vec<String>),
    /// A text that says itself what runs it.
    Script(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    pub from: From,
    pub sources: Vec<String>,
    pub destination: String,
    pub owner: Option<String>,
    pub mode: Option<u32>,
    /// Sources that are archives are unpacked, as ADD does.
    pub unpack: bool,
    pub patterns: Patterns,
    /// Patterns of what is left out.
    pub exclude: Vec<String>,
}

/// What `*`, `?` and `[…]` in a source mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patterns {
    /// Whatever matches is copied, a directory's contents without its name: Docker's rule.
    Match,
    /// What is before them is a tree that is copied as it is: E2B's SDKs have chosen the files already.
    CutOff,
}

#[derive(Debug, Clone, PartialEq)]
pub enum From {
    /// The union of archives that were sent.
    Files(Vec<String>),
    Stage(usize),
    Image(String),
    /// Text of the Dockerfile itself: one file for each name.
    Here(Vec<(String, Vec<u8>)>),
}

impl Plan {
    pub fn of(request: &Request) -> Result<Plan, Error> {
        match &request.recipe {
            Recipe::Image { reference } => {
                let stage = Stage { name: "builder".into(), base: Base::Image(reference.clone()), steps: Vec::new() };
                Ok(Plan::new(request, vec![stage]))
            }
            Recipe::Steps { base, steps } => {
                let stage = Stage {
                    name: "builder".into(),
                    base: expanded(base, steps)?,
                    steps: steps.iter().enumerate().map(|(place, step)| planned(place + 1, step)).collect(),
                };
                Ok(Plan::new(request, vec![stage]))
            }
            Recipe::Dockerfile { text, contexts, target, arguments } => {
                let (stages, needed, recipe) = dockerfile::read(text, contexts, target.as_deref(), arguments)?;
                let images = recipe.plan.images().into_iter().map(ToOwned::to_owned).collect();
                Ok(Plan { needed, images, dockerfile: Some(recipe), ..Plan::new(request, stages) })
            }
            // An archive is no plan: it is a layer as it comes.
            Recipe::Archive { .. } => Ok(Plan::new(request, Vec::new())),
        }
    }

    fn new(request: &Request, stages: Vec<Stage>) -> Plan {
        let needed = (0..stages.len()).collect();
        let image = |stage: &Stage| match &stage.base {
            Base::Image(name) => Some(name.clone()),
            _ => None,
        };
        let images = stages.iter().filter_map(image).collect();
        Plan { stages, needed, images, habits: request.habits, force: request.force, dockerfile: None }
    }

    /// Steps of all stages together.
    pub fn count(&self) -> usize {
        self.stages.iter().map(|stage| stage.steps.len()).sum()
    }
}

/// E2B's SDKs send `FROM python:${V}-slim` as it was written, and the value of `V` as a step after it.
fn expanded(base: &Base, steps: &[NewStep]) -> Result<Base, Error> {
    let Base::Image(name) = base else { return Ok(base.clone()) };
    if !name.contains('$') {
        return Ok(base.clone());
    }
    let mut values = BTreeMap::new();
    for step in steps {
        if let Act::Env { values: set } = &step.act {
            values.extend(set.iter().cloned());
        }
    }
    Ok(Base::Image(expand(name, &values)?))
}

fn planned(number: usize, step: &NewStep) -> Planned {
    let (text, deed) = match &step.act {
        Act::Run { command, user, secrets } => (
            format!("RUN {}", first_line(command)),
            Deed::Run(Run {
                command: Command::Shell(command.clone()),
                user: user.clone(),
                cwd: None,
                env: BTreeMap::new(),
                secrets: secrets.clone(),
                reach: Reach::Internet,
            }),
        ),
        Act::Copy { hash, source, destination, owner, mode } => (
            format!("COPY {source} {destination}"),
            Deed::Copy(Copy {
                from: From::Files(vec![hash.clone()]),
                sources: vec![source.clone()],
                destination: destination.clone(),
                owner: owner.clone(),
                mode: *mode,
                unpack: false,
                patterns: Patterns::CutOff,
                exclude: Vec::new(),
            }),
        ),
        Act::File { path, content, owner, mode } => {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let copy = Copy {
                from: From::Here(vec![(name.to_owned(), content.clone().into_bytes())]),
                sources: vec![name.to_owned()],
                destination: format!("{folder}/{name}"),
                owner: owner.clone(),
                mode: *mode,
                unpack: false,
                patterns: Patterns::Match,
                exclude: Vec::new(),
            };
            (format!("COPY {name} {path}"), Deed::Copy(copy))
        }
        Act::Env { values } => (format!("ENV {}", pairs(values)), Deed::Env(values.clone())),
        Act::Arg { values } => (format!("ARG {}", pairs(values)), Deed::Arg(values.clone())),
        Act::Workdir { path } => (format!("WORKDIR {path}"), Deed::Workdir(path.clone())),
        Act::User { name, sudo } => {
            (format!("USER {name}"), Deed::User { name: name.clone(), sudo: *sudo, make: true })
        }
    };
    Planned { number, text, force: step.force, deed }
}

fn pairs(values: &[(String, String)]) -> String {
    values.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// What people are shown of a command. Of a script that is its first line.
pub fn first_line(command: &str) -> String {
    let mut lines = command.trim().lines();
    let first = lines.next().unwrap_or_default().to_owned();
    if lines.next().is_some() { first + " …" } else { first }
}

/// Bytes that a text may have once its variables are replaced, and all variables of one step together: no process is given
/// more.
pub const EXPANDED_MAX: usize = 128 << 10;

/// `$NAME`, `${NAME}`, `${NAME:-otherwise}` and `${NAME:+instead}`; what is unknown is empty. `\$` is a dollar sign.
pub fn expand(text: &str, values: &BTreeMap<String, String>) -> Result<String, Error> {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        // Looked at while it grows: a short text can name a long value thousands of times.
        check_expanded(&expanded)?;
        expanded.push_str(&rest[..at]);
        let tail = &rest[at..];
        if let Some(after) = tail.strip_prefix("\\$") {
            expanded.push('$');
            rest = after;
        } else if let Some(after) = tail.strip_prefix('\\') {
            expanded.push('\\');
            rest = after;
        } else if let Some(inner) = tail.strip_prefix("${")
            && let Some(end) = inner.find('}')
        {
            let (name, rule) = match inner[..end].split_once(':') {
                Some((name, rule)) => (name, Some(rule)),
                None => (&inner[..end], None),
            };
            let value = values.get(name).map(String::as_str).unwrap_or_default();
            match rule.and_then(|rule| rule.chars().next()) {
                Some('-') if value.is_empty() => expanded.push_str(&rule.unwrap_or_default()[1..]),
                Some('+') if value.is_empty() => {}
                Some('+') => expanded.push_str(&rule.unwrap_or_default()[1..]),
                _ => expanded.push_str(value),
            }
            rest = &inner[end + 1..];
        } else {
            let tail = &tail[1..];
            let length = tail.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
            if length == 0 || tail.as_bytes()[0].is_ascii_digit() {
                expanded.push('$');
                rest = tail;
            } else {
                expanded.push_str(values.get(&tail[..length]).map(String::as_str).unwrap_or_default());
                rest = &tail[length..];
            }
        }
    }
    expanded.push_str(rest);
    check_expanded(&expanded)?;
    Ok(expanded)
}

fn check_expanded(text: &str) -> Result<(), Error> {
    match text.len() > EXPANDED_MAX {
        true => Err(Error::invalid("steps", format!("a text with variables becomes longer than {EXPANDED_MAX} bytes"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> BTreeMap<String, String> {
        [("V".to_owned(), "3.12".to_owned()), ("EMPTY".to_owned(), String::new())].into()
    }

    #[test]
    fn variables_are_expanded_and_commands_are_not() {
        for (text, expected) in [
            ("python:${V}-slim", "python:3.12-slim"),
            ("$V/$V", "3.12/3.12"),
            ("$UNKNOWN.", "."),
            ("${EMPTY:-x}${V:-x}${V:+y}${EMPTY:+y}", "x3.12y"),
            (r"\$V $ $1 $(id) `id` \n", "$V $ $1 $(id) `id` \\n"),
            ("${V", "${V"),
        ] {
            assert_eq!(expand(text, &values()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn a_text_that_names_a_long_value_often_is_refused_before_it_is_large() {
        let values = [("L".to_owned(), "x".repeat(100_000))].into();
        assert_eq!(expand("$L", &values).unwrap().len(), 100_000);
        // 10 GB, were it made.
        for text in ["$L".repeat(100_000), "${L:-}".repeat(100_000)] {
            assert!(expand(&text, &values).unwrap_err().to_string().contains("longer than"));
        }
    }

    #[test]
    fn e2bs_base_is_expanded_from_the_steps_that_follow() {
        let steps = vec![NewStep { act: Act::Env { values: vec![("V".into(), "3.11".into())] }, force: false }];
        let request = Request {
            recipe: Recipe::Steps { base: Base::Image("python:${V}-slim".into()), steps },
            start: None,
            ready: None,
            force: false,
            habits: Habits::OfE2b,
            is_confidential: false,
            allow: Vec::new(),
        };
        let plan = Plan::of(&request).unwrap();
        assert_eq!(plan.stages[0].base, Base::Image("python:3.11-slim".into()));
        assert_eq!((plan.count(), plan.stages[0].steps[0].text.as_str()), (1, "ENV V=3.11"));
    }

    #[test]
    fn a_script_is_shown_by_its_first_line_and_a_file_is_copied_from_the_request() {
        let run = Act::Run { command: "# Makes it\nset -e\n".into(), user: None, secrets: Vec::new() };
        assert_eq!(planned(1, &NewStep { act: run, force: false }).text, "RUN # Makes it …");
        assert_eq!(first_line(" one\n"), "one");
        let file = Act::File { path: "/opt/a/b".into(), content: "x".into(), owner: None, mode: Some(0o755) };
        let Deed::Copy(copy) = planned(2, &NewStep { act: file, force: false }).deed else { panic!("not copied") };
        assert_eq!((copy.destination.as_str(), copy.sources), ("/opt/a/b", vec!["b".to_owned()]));
        assert_eq!(copy.from, From::Here(vec![("b".into(), b"x".to_vec())]));
    }

    #[test]
    fn words_reach_a_shell_as_they_are() {
        let context = Context {
            entrypoint: vec!["/bin/sh".into(), "-c".into()],
            command: vec!["echo 'a b'; id".into()],
            ..Context::default()
        };
        assert_eq!(context.start().unwrap(), r"/bin/sh -c 'echo '\''a b'\''; id'");
        assert_eq!(Context::default().start(), None);
    }
}
