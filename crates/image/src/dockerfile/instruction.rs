//! A line into an instruction. Its words are kept as they stand: variables are replaced later.

use super::lines::{Heredoc, Line};
use super::words::{self, Flag};
use super::{Problem, Step};

/// What is run: by a shell, or by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    Shell(String),
    Exec(Vec<String>),
}

/// How files are brought in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Copy,
    /// Unpacks archives, and fetches URLs where that is allowed.
    Add,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Instruction {
    From {
        image: String,
        platform: Option<String>,
        name: Option<String>,
    },
    Arg(Vec<(String, Option<String>)>),
    Env(Vec<(String, String)>),
    Label(Vec<(String, String)>),
    Run {
        form: Form,
        heredocs: Vec<Heredoc>,
        mounts: Vec<String>,
        network: Option<String>,
    },
    Copy {
        kind: Kind,
        from: Option<String>,
        owner: Option<String>,
        mode: Option<String>,
        exclude: Vec<String>,
        /// The last one is where to.
        paths: Vec<String>,
        heredocs: Vec<Heredoc>,
    },
    Workdir(String),
    User(String),
    Shell(Vec<String>),
    Entrypoint(Form),
    Cmd(Form),
    Expose(Vec<String>),
    Volume(Vec<String>),
    StopSignal(String),
    /// Not run here; checked for its form.
    Healthcheck,
    /// Due in whoever builds on the image.
    OnBuild(String),
    /// Only says who wrote it.
    Maintainer,
}

const KNOWN: [&str; 18] = [
    "FROM",
    "ARG",
    "ENV",
    "LABEL",
    "RUN",
    "COPY",
    "ADD",
    "WORKDIR",
    "USER",
    "SHELL",
    "ENTRYPOINT",
    "CMD",
    "EXPOSE",
    "VOLUME",
    "STOPSIGNAL",
    "HEALTHCHECK",
    "ONBUILD",
    "MAINTAINER",
];

pub(super) fn step(line: Line, escape: char) -> Result<Step, Problem> {
    let text = match line.rest.is_empty() {
        true => line.keyword.clone(),
        false => format!("{} {}", line.keyword, line.rest),
    };
    let reader = Reader { line: line.first, keyword: &line.keyword, rest: &line.rest, escape };
    let instruction = reader.instruction(&line.heredocs)?;
    Ok(Step { lines: (line.first, line.last), text, instruction })
}

struct Reader<'a> {
    line: usize,
    keyword: &'a str,
    rest: &'a str,
    escape: char,
}

impl Reader<'_> {
    fn instruction(&self, heredocs: &[Heredoc]) -> Result<Instruction, Problem> {
        if self.rest.is_empty() && KNOWN.contains(&self.keyword) {
            return Err(self.wrong("it has nothing after it"));
        }
        match self.keyword {
            "FROM" => self.from(),
            "ARG" => self.argument(),
            "ENV" => Ok(Instruction::Env(self.pairs()?)),
            "LABEL" => Ok(Instruction::Label(self.pairs()?)),
            "RUN" => self.run(heredocs),
            "COPY" => self.copy(Kind::Copy, heredocs),
            "ADD" => self.copy(Kind::Add, heredocs),
            "WORKDIR" => Ok(Instruction::Workdir(self.rest.to_owned())),
            "USER" => Ok(Instruction::User(self.rest.to_owned())),
            "SHELL" => match words::json(self.rest, self.line)? {
                Some(words) if !words.is_empty() => Ok(Instruction::Shell(words)),
                _ => Err(self.wrong("it needs a list").remedy(r#"write it as SHELL ["/bin/bash", "-c"]"#)),
            },
            "ENTRYPOINT" => Ok(Instruction::Entrypoint(self.form(self.rest)?)),
            "CMD" => Ok(Instruction::Cmd(self.form(self.rest)?)),
            "EXPOSE" => Ok(Instruction::Expose(self.words())),
            "VOLUME" => Ok(Instruction::Volume(words::json(self.rest, self.line)?.unwrap_or_else(|| self.words()))),
            "STOPSIGNAL" => Ok(Instruction::StopSignal(self.rest.to_owned())),
            "HEALTHCHECK" => self.health(),
            "ONBUILD" => self.on_build(heredocs),
            "MAINTAINER" => Ok(Instruction::Maintainer),
            other => {
                let shown: String = other.chars().take(40).flat_map(char::escape_default).collect();
                Err(Problem::new(self.line, format!("{shown} is no instruction")).remedy(guess(other)))
            }
        }
    }

    fn wrong(&self, why: impl std::fmt::Display) -> Problem {
        Problem::new(self.line, format!("{}: {why}", self.keyword))
    }

    fn words(&self) -> Vec<String> {
        words::split(self.rest, self.escape).into_iter().map(|word| word.raw).collect()
    }

    fn form(&self, text: &str) -> Result<Form, Problem> {
        Ok(match words::json(text, self.line)? {
            Some(words) => Form::Exec(words),
            None => Form::Shell(text.to_owned()),
        })
    }

    fn value(&self, flag: &Flag) -> Result<String, Problem> {
        let value = flag.value.clone().filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            self.wrong(format!("--{} has no value", flag.name)).remedy(format!("write --{}=VALUE", flag.name))
        })
    }

    fn unknown(&self, flag: &Flag) -> Problem {
        let shown: String = flag.name.chars().take(40).collect();
        self.wrong(format!("--{shown} is not supported by this builder")).remedy("leave it out")
    }

    fn from(&self) -> Result<Instruction, Problem> {
        let (flags, rest) = words::flags(self.rest, self.escape);
        let mut platform = None;
        for flag in &flags {
            match flag.name.as_str() {
                "platform" => platform = Some(self.value(flag)?),
                _ => return Err(self.unknown(flag)),
            }
        }
        let words = words::split(rest, self.escape);
        let name = match words.as_slice() {
            [_] => None,
            [_, word, name] if word.raw.eq_ignore_ascii_case("as") => Some(name.raw.to_ascii_lowercase()),
            _ => return Err(self.wrong("it is not understood").remedy("write FROM IMAGE, or FROM IMAGE AS NAME")),
        };
        if let Some(name) = &name {
            let first = name.chars().next().is_some_and(|letter| letter.is_ascii_lowercase());
            let all = name
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_-.".contains(letter));
            if !first || !all {
                let remedy = "begin with a letter and use letters, digits, _, - and .";
                return Err(self.wrong(format!("{name:?} is no name for a stage")).remedy(remedy));
            }
        }
        let image = words.into_iter().next().map(|word| word.raw).unwrap_or_default();
        Ok(Instruction::From { image, platform, name })
    }

    fn argument(&self) -> Result<Instruction, Problem> {
        let words = words::split(self.rest, self.escape).into_iter();
        let all = words.map(|word| match word.raw.split_once('=') {
            None => Ok((self.name(&word.raw)?, None)),
            Some((name, value)) => Ok((self.name(name)?, Some(value.to_owned()))),
        });
        Ok(Instruction::Arg(all.collect::<Result<_, Problem>>()?))
    }

    /// The name of a variable, which stands for nothing else.
    fn name(&self, name: &str) -> Result<String, Problem> {
        let good = !name.is_empty() && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        match good && !name.starts_with(|letter: char| letter.is_ascii_digit()) {
            true => Ok(name.to_owned()),
            false => Err(self.wrong(format!("{name:?} is no name of a variable")).remedy("use letters, digits and _")),
        }
    }

    /// `a=b c="d e"`, or the old form `a the rest`.
    fn pairs(&self) -> Result<Vec<(String, String)>, Problem> {
        let words = words::split(self.rest, self.escape);
        let is_old = words.first().is_none_or(|first| !first.raw.contains('='));
        if is_old {
            let (name, value) = self
                .rest
                .split_once([' ', '\t'])
                .ok_or_else(|| self.wrong("a value is missing").remedy(format!("write {} NAME=VALUE", self.keyword)))?;
            return Ok(vec![(name.to_owned(), value.trim_start().to_owned())]);
        }
        let pairs = words.iter().map(|word| {
            let (name, value) = word.raw.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(|| {
                let shown: String = word.raw.chars().take(40).collect();
                self.wrong(format!("{shown:?} has no =")).remedy("put values with blanks in quotes")
            })?;
            Ok((name.to_owned(), value.to_owned()))
        });
        pairs.collect()
    }

    fn run(&self, heredocs: &[Heredoc]) -> Result<Instruction, Problem> {
        let (flags, rest) = words::flags(self.rest, self.escape);
        let (mut mounts, mut network) = (Vec::new(), None);
        for flag in &flags {
            match flag.name.as_str() {
                "mount" => mounts.push(self.value(flag)?),
                "network" => network = Some(self.value(flag)?),
                "security" if self.value(flag)? == "sandbox" => {}
                "security" => {
                    return Err(self.wrong("--security=insecure is refused: a build has the walls of every sandbox"));
                }
                _ => return Err(self.unknown(flag)),
            }
        }
        if rest.is_empty() {
            return Err(self.wrong("it has no command"));
        }
        let form = self.form(rest)?;
        if matches!(&form, Form::Exec(words) if words.is_empty()) {
            return Err(self.wrong("its list is empty"));
        }
        if !heredocs.is_empty() && matches!(form, Form::Exec(_)) {
            return Err(self.wrong("a list cannot have a heredoc").remedy("write the command without brackets"));
        }
        Ok(Instruction::Run { form, heredocs: heredocs.to_vec(), mounts, network })
    }

    fn copy(&self, kind: Kind, heredocs: &[Heredoc]) -> Result<Instruction, Problem> {
        let (flags, rest) = words::flags(self.rest, self.escape);
        let (mut from, mut owner, mut mode, mut exclude) = (None, None, None, Vec::new());
        for flag in &flags {
            match flag.name.as_str() {
                "from" if kind == Kind::Copy => from = Some(self.value(flag)?),
                "chown" => owner = Some(self.value(flag)?),
                "chmod" => mode = Some(self.value(flag)?),
                "exclude" => exclude.push(self.value(flag)?),
                // How layers are stored, not what is in them.
                "link" => {}
                _ => return Err(self.unknown(flag)),
            }
        }
        let paths = match words::json(rest, self.line)? {
            Some(paths) => paths,
            None => words::split(rest, self.escape).into_iter().map(|word| word.raw).collect(),
        };
        if paths.len() < 2 {
            let remedy = format!("write {} SOURCE… DESTINATION", self.keyword);
            return Err(self.wrong("it needs a source and a destination").remedy(remedy));
        }
        Ok(Instruction::Copy { kind, from, owner, mode, exclude, paths, heredocs: heredocs.to_vec() })
    }

    fn health(&self) -> Result<Instruction, Problem> {
        let (flags, rest) = words::flags(self.rest, self.escape);
        for flag in &flags {
            match flag.name.as_str() {
                "interval" | "timeout" | "start-period" | "start-interval" | "retries" => drop(self.value(flag)?),
                _ => return Err(self.unknown(flag)),
            }
        }
        let first = rest.split([' ', '\t']).next().unwrap_or_default().to_ascii_uppercase();
        match first.as_str() {
            "CMD" | "NONE" => Ok(Instruction::Healthcheck),
            _ => Err(self.wrong("it is not understood").remedy("write HEALTHCHECK CMD COMMAND, or HEALTHCHECK NONE")),
        }
    }

    fn on_build(&self, heredocs: &[Heredoc]) -> Result<Instruction, Problem> {
        let (keyword, rest) = self.rest.split_once([' ', '\t']).unwrap_or((self.rest, ""));
        let keyword = keyword.to_ascii_uppercase();
        if matches!(keyword.as_str(), "ONBUILD" | "FROM" | "MAINTAINER") {
            return Err(self.wrong(format!("{keyword} cannot be put off")));
        }
        if !heredocs.is_empty() {
            return Err(self.wrong("a heredoc cannot be put off").remedy("write it as one line"));
        }
        Reader { keyword: &keyword, rest: rest.trim(), ..*self }.instruction(&[])?;
        Ok(Instruction::OnBuild(format!("{keyword} {}", rest.trim())))
    }
}

/// What may have been meant.
fn guess(word: &str) -> String {
    let close = KNOWN.iter().map(|known| (distance(word, known), known)).min();
    match close {
        Some((distance, known)) if distance <= 2 => format!("did you mean {known}?"),
        _ => "a command goes after RUN, and a line that belongs to the one before needs a \\ at that one's end"
            .to_owned(),
    }
}

/// How many letters differ (Levenshtein), for short words.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 20 {
        return usize::MAX;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (number, letter) in one.chars().enumerate() {
        let mut next = vec![number + 1];
        for (column, there) in other.iter().enumerate() {
            let change = row.get(column).copied().unwrap_or(0) + usize::from(letter != *there);
            let add = row.get(column + 1).copied().unwrap_or(0) + 1;
            let remove = next.get(column).copied().unwrap_or(0) + 1;
            next.push(change.min(add).min(remove));
        }
        row = next;
    }
    row.last().copied().unwrap_or(usize::MAX)
}
