//! One step after the other: what each means, given what came before it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::expand;
use super::instruction::{Form, Instruction, Kind};
use super::lines::{self, Heredoc};
use super::mount::{self, Mount};
use super::plan::{Plan, Urls};
use super::words;
use super::{Problem, Step};
use crate::config::{Defaults, Port};

/// All variables, and all labels, together: a process can be given no more (execve(2)).
const MOST: usize = 1 << 20;
/// As many variables, arguments, labels, ports and steps to put off as an image may have, and words as a line of such may have.
pub(super) const MANY: usize = 1024;

/// Where a stage stands: begun with what the image below says, changed by each step.
#[derive(Debug, Clone)]
pub struct Context<'a> {
    plan: &'a Plan,
    stage: usize,
    defaults: Defaults,
    /// Of the `ARG`s of this stage.
    arguments: BTreeMap<String, String>,
    /// `CMD` was in this stage: an `ENTRYPOINT` leaves it alone.
    has_command: bool,
}

/// What a step asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Only the defaults changed.
    Noted,
    /// This directory must be there: root's, 0755.
    Workdir(String),
    Run(Run),
    Copy(Transfer),
}

/// A command in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub command: Command,
    /// Arguments of the build included.
    pub environment: Vec<(String, String)>,
    pub user: Option<String>,
    pub workdir: String,
    pub mounts: Vec<Mount>,
    pub network: Network,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Default,
    None,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A program and its arguments; a shell with its line is one too.
    Exec(Vec<String>),
    /// A program text that says itself what runs it (`#!`): to be written to a file and run.
    Script(String),
}

/// Where files come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    Context,
    Stage(usize),
    /// A reference, as the Dockerfile has it.
    Image(String),
}

/// A file whose content is in the Dockerfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inline {
    pub name: String,
    pub content: String,
}

/// Files into the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transfer {
    pub kind: Kind,
    pub source: Source,
    /// Relative to the source's top, without `..`; may be patterns ([`super::Pattern`], shallow).
    pub paths: Vec<String>,
    pub urls: Vec<String>,
    pub inline: Vec<Inline>,
    /// Absolute.
    pub destination: String,
    /// It is a directory, whether it is there or not.
    pub into_directory: bool,
    /// `user`, `user:group`, by name or number. Else root's.
    pub owner: Option<String>,
    pub mode: Option<u32>,
    /// Patterns of what is left out.
    pub exclude: Vec<String>,
}

impl Action {
    /// Everything that its result depends on, except for the files it reads: for [`super::key`]. A secret counts by its id.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        // Lists of any length: their count comes first.
        let list = |words: &mut Vec<String>, all: &mut dyn ExactSizeIterator<Item = String>| {
            words.push(all.len().to_string());
            words.extend(all);
        };
        match self {
            Action::Noted => {}
            Action::Workdir(path) => words.push(path.clone()),
            Action::Run(run) => {
                match &run.command {
                    Command::Exec(all) => list(&mut words, &mut all.iter().cloned()),
                    Command::Script(text) => words.extend(["script".to_owned(), text.clone()]),
                }
                list(&mut words, &mut run.environment.iter().map(|(name, value)| format!("{name}={value}")));
                list(&mut words, &mut run.mounts.iter().map(|mount| format!("{mount:?}")));
                words.extend([format!("{:?}", run.user), run.workdir.clone(), format!("{:?}", run.network)]);
            }
            Action::Copy(transfer) => {
                list(&mut words, &mut transfer.paths.iter().cloned());
                list(&mut words, &mut transfer.urls.iter().cloned());
                list(
                    &mut words,
                    &mut transfer.inline.iter().map(|inline| format!("{}={}", inline.name, inline.content)),
                );
                list(&mut words, &mut transfer.exclude.iter().cloned());
                words.extend([
                    format!("{:?}", transfer.kind),
                    format!("{:?}", transfer.source),
                    transfer.destination.clone(),
                ]);
                words
                    .extend([format!("{:?} {:?}", transfer.owner, transfer.mode), transfer.into_directory.to_string()]);
            }
        }
        words
    }
}

impl<'a> Context<'a> {
    /// At the beginning of a stage: with what the image, or the stage, below it says.
    pub fn new(plan: &'a Plan, stage: usize, below: Defaults) -> Self {
        Context { plan, stage, defaults: below, arguments: BTreeMap::new(), has_command: false }
    }

    /// What an image of this stage would say now.
    pub fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub fn into_defaults(self) -> Defaults {
        self.defaults
    }

    /// What a command sees: variables, and arguments of the build that no variable covers.
    pub fn environment(&self) -> Vec<(String, String)> {
        let mut all = self.defaults.env.clone();
        let is_covered = |name: &str| self.defaults.env.iter().any(|(there, _)| there == name);
        all.extend(
            self.arguments
                .iter()
                .filter(|(name, _)| !is_covered(name))
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        all
    }

    /// Takes a step of the stage (or a trigger) and says what is to be done for it.
    pub fn step(&mut self, step: &Step) -> Result<Action, Problem> {
        let line = step.lines.0;
        match &step.instruction {
            Instruction::From { .. } => return Err(Problem::new(line, "FROM begins a stage, it is no step of one")),
            Instruction::Arg(all) => {
                few(all.len(), "arguments", line)?;
                for (name, default) in all {
                    self.argument(name, default.as_deref(), line)?;
                }
            }
            Instruction::Env(pairs) => {
                // Each is looked for among all.
                few(pairs.len(), "variables", line)?;
                let pairs = self.pairs(pairs, line)?;
                for (name, value) in pairs {
                    match self.defaults.env.iter_mut().find(|(there, _)| *there == name) {
                        Some((_, there)) => *there = value,
                        None => self.defaults.env.push((name, value)),
                    }
                }
                let size = self.defaults.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
                within(size, "all variables together are", line)?;
                few(self.defaults.env.len(), "variables", line)?;
            }
            Instruction::Label(pairs) => {
                few(pairs.len(), "labels", line)?;
                let pairs = self.pairs(pairs, line)?;
                self.defaults.labels.extend(pairs);
                let size = self.defaults.labels.iter().map(|(name, value)| name.len() + value.len()).sum();
                within(size, "all labels together are", line)?;
                few(self.defaults.labels.len(), "labels", line)?;
            }
            Instruction::Run { form, heredocs, mounts, network } => {
                return self.run(form, heredocs, mounts, network.as_deref(), line).map(Action::Run);
            }
            Instruction::Copy { .. } => return self.copy(step).map(Action::Copy),
            Instruction::Workdir(path) => {
                let path = self.expand(path, line)?;
                if path.is_empty() {
                    return Err(Problem::new(line, "WORKDIR: the directory is empty"));
                }
                let path = below(&self.workdir(), &path);
                self.defaults.workdir = Some(path.clone());
                return Ok(Action::Workdir(path));
            }
            Instruction::User(user) => {
                let user = self.expand(user, line)?;
                if user.is_empty() || user.contains(char::is_whitespace) {
                    return Err(Problem::new(line, format!("USER: {user:?} is no user"))
                        .remedy("write USER NAME or USER NAME:GROUP"));
                }
                self.defaults.user = Some(user);
            }
            Instruction::Shell(words) => self.defaults.shell.clone_from(words),
            Instruction::Entrypoint(form) => {
                self.defaults.entrypoint = self.words(form);
                if !self.has_command {
                    self.defaults.command.clear();
                }
            }
            Instruction::Cmd(form) => {
                self.defaults.command = self.words(form);
                self.has_command = true;
            }
            Instruction::Expose(words) => {
                few(words.len(), "ports", line)?;
                for word in words {
                    let expanded = self.expand(word, line)?;
                    for text in expanded.split_whitespace() {
                        self.expose(text, line)?;
                    }
                }
            }
            Instruction::Volume(paths) => {
                few(paths.len(), "volumes", line)?;
                for path in paths {
                    let path = below("/", &self.expand(path, line)?);
                    if !self.defaults.volumes.contains(&path) {
                        self.defaults.volumes.push(path);
                    }
                    within(self.defaults.volumes.len() * (MOST / MANY), "the volumes are", line)?;
                }
            }
            Instruction::StopSignal(signal) => self.defaults.stop_signal = Some(self.expand(signal, line)?),
            Instruction::OnBuild(text) => {
                self.defaults.on_build.push(text.clone());
                within(self.defaults.on_build.len() * (MOST / MANY), "the steps to put off are", line)?;
            }
            Instruction::Healthcheck | Instruction::Maintainer => {}
        }
        Ok(Action::Noted)
    }

    fn workdir(&self) -> String {
        self.defaults.workdir.clone().unwrap_or_else(|| "/".to_owned())
    }

    fn lookup(&self, name: &str) -> Option<Cow<'_, str>> {
        let variable = self.defaults.env.iter().find(|(there, _)| there == name).map(|(_, value)| value);
        variable.or_else(|| self.arguments.get(name)).map(|value| Cow::Borrowed(value.as_str()))
    }

    fn expand(&self, text: &str, line: usize) -> Result<String, Problem> {
        expand::word(text, &|name| self.lookup(name), self.plan.escape).map_err(|why| Problem::new(line, why))
    }

    /// Words of a line that are kept together: their sum is looked at while they grow, since each may name a long value.
    fn expand_all(&self, words: &[String], line: usize) -> Result<Vec<String>, Problem> {
        let (mut found, mut size) = (Vec::new(), 0);
        for word in words {
            let word = self.expand(word, line)?;
            size += word.len();
            within(size, "the words of this line are", line)?;
            found.push(word);
        }
        Ok(found)
    }

    /// All with the variables as they were before the line.
    fn pairs(&self, pairs: &[(String, String)], line: usize) -> Result<Vec<(String, String)>, Problem> {
        let (mut found, mut size) = (Vec::new(), 0);
        for (name, value) in pairs {
            let name = self.expand(name, line)?;
            if name.is_empty() || name.contains('=') {
                return Err(Problem::new(line, format!("{name:?} is no name")));
            }
            let value = self.expand(value, line)?;
            size += name.len() + value.len();
            within(size, "the values of this line are", line)?;
            found.push((name, value));
        }
        Ok(found)
    }

    fn argument(&mut self, name: &str, default: Option<&str>, line: usize) -> Result<(), Problem> {
        let value = match (self.plan.order.arguments.get(name), default) {
            (Some(value), _) => Some(value.clone()),
            (None, Some(default)) => Some(self.expand(default, line)?),
            (None, None) => self.plan.globals.get(name).cloned().or_else(|| self.plan.platform_variable(name)),
        };
        self.arguments.extend(value.map(|value| (name.to_owned(), value)));
        few(self.arguments.len(), "arguments", line)?;
        let size = self.arguments.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
        within(size, "all arguments together are", line)
    }

    fn words(&self, form: &Form) -> Vec<String> {
        match form {
            Form::Exec(words) => words.clone(),
            Form::Shell(text) => self.shell(text.clone()),
        }
    }

    fn shell(&self, text: String) -> Vec<String> {
        let mut words = self.defaults.shell.clone();
        if words.is_empty() {
            words = vec!["/bin/sh".to_owned(), "-c".to_owned()];
        }
        words.push(text);
        words
    }

    fn run(
        &self,
        form: &Form,
        heredocs: &[Heredoc],
        mounts: &[String],
        network: Option<&str>,
        line: usize,
    ) -> Result<Run, Problem> {
        let command = match (form, heredocs) {
            (Form::Shell(text), [only]) if is_marker(text, self.plan.escape) => {
                let content = only.content();
                if content.starts_with("#!") { Command::Script(content) } else { Command::Exec(self.shell(content)) }
            }
            // The shell reads them itself.
            (Form::Shell(text), all) => {
                let mut text = text.clone();
                for heredoc in all {
                    text.push('\n');
                    text.push_str(&heredoc.raw);
                    text.push_str(&heredoc.name);
                }
                Command::Exec(self.shell(text))
            }
            (Form::Exec(words), _) => Command::Exec(words.clone()),
        };
        let mut parsed = Vec::new();
        for text in self.expand_all(mounts, line)? {
            parsed.push(mount::parse(&text, line)?);
        }
        let network = match network {
            None | Some("default") => Network::Default,
            Some("none") => Network::None,
            Some(other) => {
                let message = format!(
                    "RUN --network={}: a build has a network of its own",
                    other.chars().take(40).collect::<String>()
                );
                return Err(Problem::new(line, message).remedy("use none or default"));
            }
        };
        let (environment, user, workdir) = (self.environment(), self.defaults.user.clone(), self.workdir());
        Ok(Run { command, environment, user, workdir, mounts: parsed, network })
    }

    fn copy(&self, step: &Step) -> Result<Transfer, Problem> {
        let line = step.lines.0;
        let Instruction::Copy { kind, from, owner, mode, exclude, paths, heredocs } = &step.instruction else {
            return Err(Problem::new(line, "it copies nothing"));
        };
        let word = if *kind == Kind::Copy { "COPY" } else { "ADD" };
        let wrong = |why: String| Problem::new(line, format!("{word}: {why}"));
        let (last, sources) = paths.split_last().ok_or_else(|| wrong("it has no destination".into()))?;
        let mut transfer = Transfer {
            kind: *kind,
            source: from.as_ref().map_or(Ok(Source::Context), |from| self.plan.source(self.stage, from, line))?,
            paths: Vec::new(),
            urls: Vec::new(),
            inline: Vec::new(),
            destination: String::new(),
            into_directory: false,
            owner: owner.as_ref().map(|owner| self.expand(owner, line)).transpose()?,
            mode: None,
            exclude: self.expand_all(exclude, line)?,
        };
        if let Some(mode) = mode {
            let text = self.expand(mode, line)?;
            let number = u32::from_str_radix(&text, 8).ok().filter(|number| *number <= 0o7777);
            transfer.mode =
                Some(number.ok_or_else(|| {
                    wrong(format!("--chmod={text} is no mode")).remedy("write it in octal: --chmod=755")
                })?);
        }
        let mut heredocs = heredocs.iter();
        let mut size = 0;
        for source in sources {
            if is_marker(source, self.plan.escape)
                && let Some(heredoc) = heredocs.next()
            {
                let inline = self.inline(heredoc, line)?;
                size += inline.content.len();
                within(size, "its sources are", line)?;
                transfer.inline.push(inline);
                continue;
            }
            let path = self.expand(source, line)?;
            size += path.len();
            within(size, "its sources are", line)?;
            match location(&path) {
                Location::Path => transfer.paths.push(below("/", &path).trim_start_matches('/').to_owned()),
                Location::Url if *kind == Kind::Add && self.plan.order.urls == Urls::Allowed => {
                    transfer.urls.push(path)
                }
                Location::Url if *kind == Kind::Add => {
                    let problem = wrong("this builder fetches no URLs".into());
                    return Err(problem.remedy("fetch it in a RUN, for example with curl, or put it into the context"));
                }
                Location::Url => return Err(wrong("a URL cannot be copied".into()).remedy("use ADD")),
                Location::Git => {
                    return Err(wrong("this builder clones no repositories".into()).remedy("clone it in a RUN"));
                }
            }
        }
        let destination = self.expand(last, line)?;
        transfer.into_directory =
            destination.ends_with('/') || matches!(destination.rsplit('/').next(), Some("." | ".."));
        transfer.destination = below(&self.workdir(), &destination);
        if transfer.paths.len() + transfer.urls.len() + transfer.inline.len() > 1 && !transfer.into_directory {
            let problem = wrong("several sources need a directory to go to".into());
            return Err(problem.remedy(format!("write {destination}/ with a slash at its end")));
        }
        if !transfer.inline.is_empty() && transfer.source != Source::Context {
            return Err(wrong("a heredoc does not come from another stage".into()));
        }
        Ok(transfer)
    }

    fn inline(&self, heredoc: &Heredoc, line: usize) -> Result<Inline, Problem> {
        let content = heredoc.content();
        let content = match heredoc.expands {
            false => content,
            true => expand::text(&content, &|name| self.lookup(name), self.plan.escape)
                .map_err(|why| Problem::new(line, why))?,
        };
        // The name becomes a file's: the part behind the last slash.
        let name = heredoc.name.rsplit('/').next().unwrap_or_default().to_owned();
        if matches!(name.as_str(), "" | "." | "..") {
            return Err(Problem::new(line, format!("the heredoc {:?} has no name for a file", heredoc.name)));
        }
        Ok(Inline { name, content })
    }

    fn expose(&mut self, text: &str, line: usize) -> Result<(), Problem> {
        let wrong =
            || Problem::new(line, format!("EXPOSE: {text:?} is no port")).remedy("write 8080, 8080/udp or 8000-8010");
        let (numbers, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
        let (first, last): (u16, u16) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        for number in first..=last {
            let port = Port::parse(&format!("{number}/{protocol}")).ok_or_else(wrong)?;
            if !self.defaults.ports.contains(&port) {
                self.defaults.ports.push(port);
            }
            if self.defaults.ports.len() > MANY {
                return Err(Problem::new(line, format!("EXPOSE: more than {MANY} ports")));
            }
        }
        if first > last { Err(wrong()) } else { Ok(()) }
    }
}

/// Refuses a number of things that would take long to look through.
pub(super) fn few(count: usize, what: &str, line: usize) -> Result<(), Problem> {
    match count > MANY {
        true => Err(Problem::new(line, format!("there are more than {MANY} {what}"))),
        false => Ok(()),
    }
}

pub(super) fn within(size: usize, what: &str, line: usize) -> Result<(), Problem> {
    match size > MOST {
        true => Err(Problem::new(line, format!("{what} larger than {MOST} bytes"))),
        false => Ok(()),
    }
}

/// Whether a word opens a heredoc and is nothing else.
fn is_marker(text: &str, escape: char) -> bool {
    let words = words::split(text, escape);
    matches!(words.as_slice(), [only] if only.before_operators().len() == only.pieces().len() && lines::marker(only.pieces()).is_some())
}

enum Location {
    Path,
    Url,
    Git,
}

fn location(path: &str) -> Location {
    let lower = path.to_ascii_lowercase();
    let is_web = lower.starts_with("http://") || lower.starts_with("https://");
    let before = lower.split('#').next().unwrap_or_default();
    let is_git = ["git@", "git://", "ssh://"].iter().any(|prefix| lower.starts_with(prefix))
        || is_web && before.ends_with(".git");
    match (is_git, is_web) {
        (true, _) => Location::Git,
        (false, true) => Location::Url,
        (false, false) => Location::Path,
    }
}

/// A path seen from a directory: absolute, without `.` and `..`.
fn below(directory: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let from = if path.starts_with('/') { "" } else { directory };
    for part in from.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}
