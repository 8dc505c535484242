//! Dockerfiles, as steps of a build. `cove-image` reads them; what a step means depends on what came before it, so a step
//! is only understood when its turn has come.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_image::config::Defaults;
use cove_image::dockerfile::{self, Action, Dockerfile, Kind, Mount, Network, Order, Problem, Source, Transfer, Urls};

use super::plan::{Command, Context, Copy, Deed, From, Patterns, Planned, Reach, Run, Stage};
use super::request::{Base, SecretMount};
use crate::Error;

/// A Dockerfile that was read, with the archives that its COPY takes files from.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    pub plan: Arc<dockerfile::Plan>,
    pub contexts: Vec<String>,
}

/// Stages, which of them are needed, and the recipe that their steps are read with.
pub fn read(
    text: &str,
    contexts: &[String],
    target: Option<&str>,
    arguments: &BTreeMap<String, String>,
) -> Result<(Vec<Stage>, Vec<usize>, Recipe), Error> {
    let order = Order {
        arguments: arguments.clone(),
        target: target.map(ToOwned::to_owned),
        // Whatever a build fetches, its own sandbox fetches.
        urls: Urls::Refused,
        ..Order::default()
    };
    let plan = Dockerfile::parse(text).and_then(|dockerfile| dockerfile.plan(&order)).map_err(wrong)?;
    let mut number = 0;
    let mut stages = Vec::new();
    for (place, stage) in plan.stages.iter().enumerate() {
        let is_needed = plan.needed.contains(&place);
        let mut steps = Vec::new();
        for step in stage.steps.iter().filter(|_| is_needed) {
            number += 1;
            let (text, deed) = (step.text.clone(), Deed::Dockerfile(Box::new(step.clone())));
            steps.push(Planned { number, text, force: false, deed });
        }
        let unnamed = if plan.stages.len() == 1 { "builder".to_owned() } else { format!("stage-{place}") };
        stages.push(Stage {
            name: stage.name.clone().unwrap_or(unnamed),
            base: match &stage.base {
                dockerfile::Base::Scratch => Base::Nothing,
                dockerfile::Base::Image(name) => Base::Image(name.clone()),
                dockerfile::Base::Stage(other) => Base::Stage(*other),
            },
            steps,
        });
    }
    let (needed, plan) = (plan.needed.clone(), Arc::new(plan));
    Ok((stages, needed, Recipe { plan, contexts: contexts.to_vec() }))
}

pub fn wrong(problem: Problem) -> Error {
    Error::invalid("dockerfile", problem.to_string())
}

/// What a stage begins with, as the reader of Dockerfiles knows it.
pub fn defaults_of(context: &Context) -> Defaults {
    Defaults {
        env: context.env.clone().into_iter().collect(),
        user: Some(context.user.clone()).filter(|user| !user.is_empty()),
        workdir: context.cwd.clone(),
        entrypoint: context.entrypoint.clone(),
        command: context.command.clone(),
        shell: context.shell.clone(),
        on_build: context.on_build.clone(),
        ..Defaults::default()
    }
}

pub fn context_of(defaults: &Defaults) -> Context {
    Context {
        as_root: false,
        arguments: BTreeMap::new(),
        env: defaults.env.iter().cloned().collect(),
        user: defaults.user.clone().unwrap_or_default(),
        cwd: defaults.workdir.clone(),
        shell: defaults.shell.clone(),
        entrypoint: defaults.entrypoint.clone(),
        command: defaults.command.clone(),
        on_build: defaults.on_build.clone(),
    }
}

/// What is done for one step.
#[derive(Debug, Clone, PartialEq)]
pub enum Doing {
    Nothing,
    Directory(String),
    Run(Run),
    /// One after the other.
    Copies(Vec<Copy>),
}

impl Recipe {
    /// Returns what is to be done, and what the log says about it.
    pub fn doing(&self, action: Action) -> (Doing, Vec<String>) {
        match action {
            Action::Noted => (Doing::Nothing, Vec::new()),
            Action::Workdir(path) => (Doing::Directory(path), Vec::new()),
            Action::Run(run) => {
                let mut notes = Vec::new();
                let mut secrets = Vec::new();
                for mount in run.mounts {
                    match mount {
                        Mount::Cache { target } => {
                            notes.push(format!("{target} is no cache here: what is in it stays in the image"));
                        }
                        Mount::Secret(secret) => secrets.push(SecretMount {
                            name: secret.id,
                            path: secret.target,
                            variable: secret.env,
                            required: secret.is_required,
                        }),
                    }
                }
                let run = Run {
                    command: match run.command {
                        dockerfile::Command::Exec(words) => Command::Exec(words),
                        dockerfile::Command::Script(text) => Command::Script(text),
                    },
                    user: run.user,
                    cwd: Some(run.workdir),
                    env: run.environment.into_iter().collect(),
                    secrets,
                    reach: match run.network {
                        Network::Default => Reach::Internet,
                        Network::None => Reach::Nothing,
                    },
                };
                (Doing::Run(run), notes)
            }
            Action::Copy(transfer) => (Doing::Copies(self.copies(transfer)), Vec::new()),
        }
    }

    fn copies(&self, transfer: Transfer) -> Vec<Copy> {
        let slash = if transfer.into_directory && !transfer.destination.ends_with('/') { "/" } else { "" };
        let of = |from: From, sources: Vec<String>| Copy {
            from,
            sources,
            destination: format!("{}{slash}", transfer.destination),
            owner: transfer.owner.clone(),
            mode: transfer.mode,
            unpack: transfer.kind == Kind::Add,
            patterns: Patterns::Match,
            exclude: transfer.exclude.clone(),
        };
        let mut copies = Vec::new();
        if !transfer.paths.is_empty() {
            let from = match &transfer.source {
                Source::Context => From::Files(self.contexts.clone()),
                Source::Stage(place) => From::Stage(*place),
                Source::Image(name) => From::Image(name.clone()),
            };
            copies.push(of(from, transfer.paths.clone()));
        }
        for file in &transfer.inline {
            let content = file.content.clone().into_bytes();
            let here = of(From::Here(vec![(file.name.clone(), content)]), vec![file.name.clone()]);
            copies.push(Copy { unpack: false, exclude: Vec::new(), ..here });
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Vec<(Doing, Vec<String>)> {
        let (stages, needed, recipe) = read(text, &["c".into()], None, &BTreeMap::new()).unwrap();
        let last = *needed.last().unwrap();
        let mut context = dockerfile::Context::new(&recipe.plan, last, Defaults::default());
        let steps = stages[last].steps.iter().map(|step| match &step.deed {
            Deed::Dockerfile(step) => recipe.doing(context.step(step).unwrap()),
            other => panic!("{other:?}"),
        });
        steps.collect()
    }

    #[test]
    fn only_stages_that_are_needed_have_steps() {
        let text = "FROM a AS one\nRUN x\nFROM b AS two\nRUN y\nFROM scratch\nCOPY --from=one /x /\n";
        let (stages, needed, _) = read(text, &[], None, &BTreeMap::new()).unwrap();
        assert_eq!(needed, [0, 2]);
        let counts: Vec<usize> = stages.iter().map(|stage| stage.steps.len()).collect();
        assert_eq!((counts, stages[2].base.clone()), (vec![1, 0, 1], Base::Nothing));
        assert!(read("FROM", &[], None, &BTreeMap::new()).unwrap_err().to_string().contains("line 1"));
    }

    #[test]
    fn steps_are_understood_with_what_came_before_them() {
        let done = run(
            "FROM a\nARG V=1\nENV P=/srv/$V\nWORKDIR $P\nUSER ada\nRUN --network=none --mount=type=cache,target=/c make\nCOPY --chown=ada --chmod=640 a b ./\n",
        );
        let Doing::Directory(path) = &done[2].0 else { panic!("{done:?}") };
        assert_eq!(path, "/srv/1");
        let Doing::Run(command) = &done[4].0 else { panic!("{done:?}") };
        assert_eq!(command.command, Command::Exec(vec!["/bin/sh".into(), "-c".into(), "make".into()]));
        assert_eq!(
            (command.user.as_deref(), command.reach, command.env["V"].as_str()),
            (Some("ada"), Reach::Nothing, "1")
        );
        assert_eq!(done[4].1.len(), 1, "a cache that is none is said");
        let Doing::Copies(copies) = &done[5].0 else { panic!("{done:?}") };
        assert_eq!((copies[0].destination.as_str(), copies[0].mode), ("/srv/1/", Some(0o640)));
        assert_eq!((copies[0].sources.len(), &copies[0].from), (2, &From::Files(vec!["c".into()])));
    }

    #[test]
    fn a_heredoc_is_a_file_and_a_script_says_what_runs_it() {
        let done =
            run("FROM a\nCOPY <<one <<two /d/\n1\none\n2\ntwo\nRUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF\n");
        let Doing::Copies(copies) = &done[0].0 else { panic!("{done:?}") };
        assert_eq!(copies.len(), 2);
        assert_eq!(copies[1].from, From::Here(vec![("two".into(), b"2\n".to_vec())]));
        let Doing::Run(command) = &done[1].0 else { panic!("{done:?}") };
        assert!(matches!(&command.command, Command::Script(text) if text.starts_with("#!/usr/bin/env python3")));
    }
}
