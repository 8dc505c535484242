//! Stages: which there are, what each begins with, which the wanted one needs.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::context::{MANY, Source, few, within};
use super::instruction::{self, Instruction};
use super::{Dockerfile, LARGEST, Problem, Step, expand, lines};
use crate::config::Defaults;
use crate::manifest::Platform;

/// What a build is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// `--build-arg`.
    pub arguments: BTreeMap<String, String>,
    /// The stage that is wanted, by name or number; else the last one.
    pub target: Option<String>,
    /// What the result runs on.
    pub platform: Platform,
    /// Whether `ADD` may fetch URLs.
    pub urls: Urls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urls {
    Allowed,
    Refused,
}

impl Default for Order {
    fn default() -> Self {
        Order { arguments: BTreeMap::new(), target: None, platform: Platform::host(), urls: Urls::Refused }
    }
}

/// What a stage begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// Nothing at all.
    Scratch,
    /// A reference, as the Dockerfile has it.
    Image(String),
    /// An earlier stage.
    Stage(usize),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub name: Option<String>,
    /// Of its `FROM`.
    pub line: usize,
    pub base: Base,
    pub steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub stages: Vec<Stage>,
    /// The stages to build, in this order; the last one is the result.
    pub needed: Vec<usize>,
    /// Build arguments that no `ARG` asks for.
    pub unused: Vec<String>,
    pub(super) order: Order,
    /// Values of `ARG`s before the first `FROM`.
    pub(super) globals: BTreeMap<String, String>,
    pub(super) escape: char,
}

impl Dockerfile {
    pub fn plan(&self, order: &Order) -> Result<Plan, Problem> {
        let mut plan = Plan {
            stages: Vec::new(),
            needed: Vec::new(),
            unused: Vec::new(),
            order: order.clone(),
            globals: BTreeMap::new(),
            escape: self.escape,
        };
        for step in &self.steps {
            plan.take(step)?;
        }
        if plan.stages.is_empty() {
            return Err(Problem::new(1, "it has no FROM").remedy("begin with FROM and the image to build on"));
        }
        let target = plan.target()?;
        let mut seen = vec![false; plan.stages.len()];
        plan.need(target, &mut seen)?;
        plan.needed = seen.iter().enumerate().filter(|(_, needed)| **needed).map(|(number, _)| number).collect();
        plan.unused = order.arguments.keys().filter(|name| !self.declares(name)).cloned().collect();
        Ok(plan)
    }

    fn declares(&self, wanted: &str) -> bool {
        self.steps.iter().any(|step| match &step.instruction {
            Instruction::Arg(all) => all.iter().any(|(name, _)| name == wanted),
            _ => false,
        })
    }
}

impl Plan {
    fn take(&mut self, step: &Step) -> Result<(), Problem> {
        let line = step.lines.0;
        match &step.instruction {
            Instruction::From { image, platform, name } => {
                let base = self.base(image, platform.as_deref(), line)?;
                if name.is_some() && self.stages.iter().any(|stage| stage.name == *name) {
                    return Err(
                        Problem::new(line, "a stage of this name is already there").remedy("choose another name")
                    );
                }
                self.stages.push(Stage { name: name.clone(), line, base, steps: Vec::new() });
            }
            Instruction::Arg(all) if self.stages.is_empty() => {
                few(self.globals.len() + all.len(), "arguments", line)?;
                let mut size: usize = self.globals.values().map(String::len).sum();
                for (name, default) in all {
                    let value = match (self.order.arguments.get(name), default) {
                        (Some(value), _) => Some(value.clone()),
                        (None, Some(default)) => Some(self.global(default, line)?),
                        (None, None) => self.platform_variable(name),
                    };
                    size += value.as_ref().map_or(0, String::len);
                    within(size, "all arguments together are", line)?;
                    self.globals.extend(value.map(|value| (name.clone(), value)));
                }
            }
            _ => match self.stages.last_mut() {
                Some(stage) => stage.steps.push(step.clone()),
                None => {
                    let message = format!("{} stands before FROM", step.text.split(' ').next().unwrap_or_default());
                    return Err(Problem::new(line, message).remedy("only ARG can"));
                }
            },
        }
        Ok(())
    }

    fn base(&self, image: &str, platform: Option<&str>, line: usize) -> Result<Base, Problem> {
        if let Some(platform) = platform.map(|platform| self.global(platform, line)).transpose()? {
            let ours = &self.order.platform;
            let same = Platform::parse(&platform)
                .is_some_and(|asked| asked.os == ours.os && asked.architecture == ours.architecture);
            if !same {
                let message = format!("FROM --platform={platform} cannot run here");
                return Err(Problem::new(line, message).remedy(format!("this machine is {ours}")));
            }
        }
        let image = self.global(image, line)?;
        if image.is_empty() {
            let problem = Problem::new(line, "FROM: the name of the image is empty");
            return Err(problem.remedy("give its ARG a default before the FROM, or a build argument"));
        }
        if image == "scratch" {
            return Ok(Base::Scratch);
        }
        let name = image.to_ascii_lowercase();
        let earlier = self.stages.iter().position(|stage| stage.name.as_deref() == Some(name.as_str()));
        Ok(earlier.map_or(Base::Image(image), Base::Stage))
    }

    /// With what is known before any stage.
    fn global(&self, text: &str, line: usize) -> Result<String, Problem> {
        let known = |name: &str| self.globals.get(name).map(|value| Cow::Borrowed(value.as_str()));
        let lookup = |name: &str| known(name).or_else(|| self.platform_variable(name).map(Cow::Owned));
        expand::word(text, &lookup, self.escape).map_err(|why| Problem::new(line, why))
    }

    /// What every build knows about its machine.
    pub(super) fn platform_variable(&self, name: &str) -> Option<String> {
        let platform = &self.order.platform;
        match name {
            "TARGETPLATFORM" | "BUILDPLATFORM" => Some(platform.to_string()),
            "TARGETOS" | "BUILDOS" => Some(platform.os.clone()),
            "TARGETARCH" | "BUILDARCH" => Some(platform.architecture.clone()),
            "TARGETVARIANT" | "BUILDVARIANT" => Some(platform.variant.clone().unwrap_or_default()),
            _ => None,
        }
    }

    fn target(&self) -> Result<usize, Problem> {
        let last = self.stages.len().saturating_sub(1);
        let Some(wanted) = &self.order.target else { return Ok(last) };
        let name = wanted.to_ascii_lowercase();
        let named = self.stages.iter().position(|stage| stage.name.as_deref() == Some(name.as_str()));
        let numbered = wanted.parse().ok().filter(|number| *number <= last);
        named.or(numbered).ok_or_else(|| {
            let names: Vec<&str> = self.stages.iter().filter_map(|stage| stage.name.as_deref()).collect();
            let there = if names.is_empty() {
                "no stage has a name".to_owned()
            } else {
                format!("there are: {}", names.join(", "))
            };
            Problem::new(1, format!("there is no stage {wanted:?}")).remedy(there)
        })
    }

    fn need(&self, first: usize, seen: &mut [bool]) -> Result<(), Problem> {
        let mut open = vec![first];
        while let Some(number) = open.pop() {
            let (Some(place), Some(stage)) = (seen.get_mut(number), self.stages.get(number)) else { continue };
            if std::mem::replace(place, true) {
                continue;
            }
            if let Base::Stage(below) = stage.base {
                open.push(below);
            }
            for step in &stage.steps {
                if let Instruction::Copy { from: Some(from), .. } = &step.instruction
                    && let Source::Stage(other) = self.source(number, from, step.lines.0)?
                {
                    open.push(other);
                }
            }
        }
        Ok(())
    }

    /// Images that the text itself names, in its order. What an image below asks for (`ONBUILD`) is not among them.
    pub fn images(&self) -> Vec<&str> {
        let mut images = Vec::new();
        for (number, stage) in self.stages.iter().enumerate() {
            if let Base::Image(name) = &stage.base {
                images.push(name.as_str());
            }
            for step in &stage.steps {
                if let Instruction::Copy { from: Some(from), .. } = &step.instruction
                    && matches!(self.source(number, from, step.lines.0), Ok(Source::Image(_)))
                {
                    images.push(from.as_str());
                }
            }
        }
        images
    }

    /// What `COPY --from` means within a stage: an earlier stage by name or number, else an image.
    pub(super) fn source(&self, stage: usize, from: &str, line: usize) -> Result<Source, Problem> {
        let wrong = |why: String| Problem::new(line, format!("COPY --from={from}: {why}"));
        if from.contains('$') {
            return Err(
                wrong("a variable cannot stand here".into()).remedy("use it in FROM … AS NAME, and that name here")
            );
        }
        let name = from.to_ascii_lowercase();
        let named = self.stages.iter().position(|other| other.name.as_deref() == Some(name.as_str()));
        let numbered = from.parse::<usize>().ok();
        match named.or(numbered) {
            Some(other) if other < stage => Ok(Source::Stage(other)),
            Some(_) => Err(wrong("that stage does not come before this one".into()).remedy("move it up")),
            None => Ok(Source::Image(from.to_owned())),
        }
    }
}

/// The steps that an image asks of whoever builds on it. They are due right after `FROM`, and are taken out of the defaults.
pub fn triggers(defaults: &mut Defaults) -> Result<Vec<Step>, Problem> {
    let mut steps = Vec::new();
    let all = std::mem::take(&mut defaults.on_build);
    // The words of a stranger: as much as a Dockerfile may have.
    if all.len() > MANY || all.iter().map(String::len).sum::<usize>() > LARGEST {
        let message = format!("ONBUILD of the image below: more than {MANY} steps or {LARGEST} bytes");
        return Err(Problem::new(1, message).remedy("build on another image"));
    }
    for text in all {
        let outside = |problem: Problem| Problem {
            message: format!("ONBUILD of the image below: {}", problem.message),
            ..problem
        };
        let read = lines::read(&text).map_err(outside)?;
        for line in read.lines {
            let step = instruction::step(line, read.escape).map_err(outside)?;
            if matches!(step.instruction, Instruction::From { .. } | Instruction::OnBuild(_)) {
                return Err(outside(Problem::new(1, "FROM and ONBUILD cannot be put off")));
            }
            steps.push(step);
        }
    }
    Ok(steps)
}
