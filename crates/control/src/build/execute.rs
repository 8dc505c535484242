//! Doing a build: stage by stage, step by step, in a sandbox that is opened when the first step has to be done.
//!
//! ```text
//!   base ──▶ step 1 ──▶ step 2 ──▶ …          CACHED: found by its key, nothing is done
//!    │         │ not found                     from there on everything is done
//!    │         └─▶ workshop: run, capture ──▶ remembered by its key
//!    └─ pulled, or a template, or an earlier stage
//! ```
//!
//! What a workshop captures holds everything since it was opened, so a root grows by one layer for each time that a
//! build had to begin in the middle, not for each step.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cove_protocol::file::WriteMode;
use cove_protocol::process::{Command as GuestCommand, Exit, Spec};
use cove_protocol::{FailureKind, Request as GuestRequest};

use super::cache::{Key, Step};
use super::copying::{self, Copying};
use super::dockerfile::{self, Doing, Recipe as Dockerfile};
use super::log::{Level, Log};
use super::people::{self, People, Power};
use super::plan::{
    Command, Context, Copy, Deed, EXPANDED_MAX, From, Plan, Planned, Reach, Run, Stage, expand, first_line,
};
use super::request::{Base, Confidential, Habits, Recipe, Request};
use super::secret::pieces;
use super::workshop::{Workshop, builder};
use super::{Build, Defaults, Failure, State};
use crate::event::Kind as EventKind;
use crate::guest::GuestError;
use crate::image::pull::{Origin, Wanted, registry_of};
use crate::image::source::Meant;
use crate::image::work::Work;
use crate::provider::{Image, Root, Under};
use crate::store::Written;
use crate::store::templates::Beside;
use crate::{App, Error};

// The futures of a build lie on the heap (`Box::pin`): nested in each other they are too large for a worker's stack.

/// A job that was begun this often and never came to an end is given up.
const LIVES: i64 = 5;
/// How often a build of another server's hand is looked at, for its end.
const LOOK: Duration = Duration::from_secs(5);
/// How long a template may take to be ready, and how often it is asked.
const READY_WITHIN: Duration = Duration::from_secs(600);
const READY_EVERY: Duration = Duration::from_secs(2);
/// After so many times it is said that it is not.
const READY_TOLD: u32 = 5;
/// E2B waits so long for a start command that has no ready command.
const READY_GUESS: &str = "sleep 20";
/// Before the name of a template, where a Dockerfile would name an image.
const TEMPLATE: &str = "template:";
/// The user of E2B's templates.
const E2B_USER: &str = "user";

/// Why a build failed, and at which step.
#[derive(Debug)]
pub struct Stopped {
    pub step: Option<String>,
    pub error: Error,
}

impl Stopped {
    fn at(step: impl Into<String>) -> impl FnOnce(Error) -> Stopped {
        let step = step.into();
        move |error| Stopped { step: Some(step), error }
    }
}

/// What a build has made so far.
#[derive(Debug, Clone)]
struct Progress {
    root: Root,
    context: Context,
    key: String,
    /// Bytes of layers that this build brought.
    bytes: u64,
    parent_build: Option<String>,
}

impl App {
    /// The job of a build, from the first time or after a crash.
    pub(crate) async fn run_build(&self, id: &str, life: i64) -> Result<(), Error> {
        let Some(build) = self.store().build(id).await? else { return Ok(()) };
        if build.state != State::Building {
            self.builds().remove(id);
            return Ok(());
        }
        if life > LIVES {
            let failure =
                Failure { step: None, message: "the server ended in the middle of it, again and again".into() };
            self.conclude_build(id, State::Error, Some(failure)).await?;
            self.builds().remove(id);
            return Ok(());
        }
        let place = self.builds().place(id);
        let _turn = tokio::select! {
            turn = self.builds().turn(&build.organisation) => turn,
            () = place.cancelled.cancelled() => {
                self.builds().remove(id);
                return Ok(());
            }
            () = self.ending().cancelled() => return Err(Error::exhausted("the server ends")),
        };
        let request = self.store().build_request(id).await?;
        let done = Box::pin(self.try_build(build, request.as_ref(), &place)).await;
        // What fails is done again, with the secrets that are in memory alone.
        if done.is_ok() {
            self.builds().remove(id);
        }
        done
    }

    async fn try_build(
        &self,
        build: Build,
        request: Option<&Request>,
        place: &Arc<super::UnderWay>,
    ) -> Result<(), Error> {
        let id = build.id.clone();
        let Some(request) = request else {
            // Ended a moment ago.
            let is_over = self.store().build(&id).await?.is_none_or(|build| build.state.is_final());
            return if is_over { Ok(()) } else { Err(Error::internal(format!("build {id} has nothing to do"))) };
        };
        let confidential = place.confidential.lock().expect("no panic while held").clone();
        let confidential = match confidential {
            Some(confidential) => confidential,
            None if !request.is_confidential => Confidential::default(),
            None => {
                let message = "the server was started anew, and secrets and credentials are kept in memory alone: \
                               start the build again";
                let failure = Failure { step: None, message: message.into() };
                self.conclude_build(&id, State::Error, Some(failure)).await?;
                return Ok(());
            }
        };
        let passwords = confidential.registry.iter().map(|who| who.password.clone().into_bytes());
        let secrets: Vec<Vec<u8>> =
            confidential.secrets.values().flat_map(|value| pieces(value)).chain(passwords).collect();
        let log = Log::open(self.store().clone(), self.clock().clone(), &id, secrets, place.news.clone()).await?;
        let limit = Duration::from_secs(self.config().builds.timeout_seconds.max(1));
        let (confidential, log, registry) = (&confidential, &log, OnceLock::new());
        let executor = Executor { app: self, build: &build, request, confidential, log, registry };
        let outcome = tokio::select! {
            outcome = log.writing(tokio::time::timeout(limit, Box::pin(executor.execute()))) => match outcome {
                Ok(outcome) => outcome,
                Err(_) => Err(Stopped {
                    step: None,
                    error: Error::invalid("build", format!("it took longer than {} s", limit.as_secs())),
                }),
            },
            // The row says why.
            () = place.cancelled.cancelled() => return Ok(()),
            () = self.ended_elsewhere(&id) => return Ok(()),
            () = self.ending().cancelled() => return Err(Error::exhausted("the server ends")),
        };
        match outcome {
            Ok(()) => Ok(()),
            // Begun again when the database answers.
            Err(Stopped { error, .. }) if is_passing(&error) => Err(error),
            Err(Stopped { step, error }) => {
                if let Some(detail) = error.detail() {
                    tracing::error!(build = id, detail, "a build failed by a fault of this server");
                }
                let message = log.cover(&sentence(&error));
                log.say(Level::Error, step.as_deref(), &message);
                let failure = Failure { step, message };
                // Kept until it is written: on a disk that is full it cannot be, and the build is not done again for that.
                self.insist("note of a build's end", || async {
                    log.flush().await?;
                    self.conclude_build(&id, State::Error, Some(failure.clone())).await.map(drop)
                })
                .await
            }
        }
    }

    /// Returns when somebody has written an end: another server, by a request that came to it.
    async fn ended_elsewhere(&self, id: &str) {
        loop {
            tokio::time::sleep(LOOK).await;
            match self.store().build(id).await {
                Ok(Some(build)) if !build.state.is_final() => {}
                Ok(_) => return,
                Err(error) => tracing::debug!(build = id, %error, "look whether a build has ended"),
            }
        }
    }
}

/// Whether the build is begun again for it. A full disk is not: whoever builds is told.
fn is_passing(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. })
}

/// What the user reads. A field's name in front of it says nothing here.
fn sentence(error: &Error) -> String {
    match error {
        Error::Invalid { message, .. } => message.clone(),
        error => error.to_string(),
    }
}

struct Executor<'a> {
    app: &'a App,
    build: &'a Build,
    request: &'a Request,
    confidential: &'a Confidential,
    log: &'a Log,
    /// Whom the build's credentials are for: what names of that registry begin with.
    registry: OnceLock<String>,
}

impl Executor<'_> {
    async fn execute(&self) -> Result<(), Stopped> {
        let work = Work::begin(self.app);
        let made = self.make(&work).await?;
        let made = self.shallow(&work, made).await.map_err(Stopped::at("finalize"))?;
        self.app.check_storage(&self.build.organisation, 0).await.map_err(Stopped::at("finalize"))?;
        self.finish(made).await.map_err(Stopped::at("finalize"))?;
        work.end().await.map_err(Stopped::at("finalize"))
    }

    async fn make(&self, work: &Work) -> Result<Progress, Stopped> {
        if let Recipe::Archive { hash, name } = &self.request.recipe {
            let pulled = self.app.take_archive(work, self.build, hash, name.as_deref()).await;
            let pulled = pulled.map_err(Stopped::at("base"))?;
            let layer = self.app.store().layer(pulled.layer).await.map_err(Stopped::at("base"))?;
            return Ok(Progress {
                root: pulled.root(),
                context: pulled.config.context().map_err(Stopped::at("base"))?,
                key: String::new(),
                bytes: layer.map_or(0, |layer| layer.bytes),
                parent_build: None,
            });
        }
        // A long Dockerfile takes a while to read.
        let (request, size) = (self.request.clone(), self.request.size());
        let plan = crate::heavy::run(size, crate::heavy::SMALL, move || Plan::of(&request)).await;
        let plan = plan.map_err(Stopped::at("base"))?;
        if let Some(registry) = self.registry_for(&plan.images) {
            let _is_the_first = self.registry.set(registry);
        }
        let (count, last) = (plan.count(), plan.needed.last().copied());
        let mut done: Vec<Option<Progress>> = vec![None; plan.stages.len()];
        for place in plan.needed.iter().copied() {
            let Some(stage) = plan.stages.get(place) else { continue };
            let mut line =
                StageLine { executor: self, plan: &plan, place, stage, count, done: &done, work, workshop: None };
            let progress = Box::pin(line.run()).await?;
            let workshop = line.workshop.take();
            if Some(place) == last {
                Box::pin(self.prove(workshop, &progress)).await?;
                return Ok(progress);
            }
            if let Some(workshop) = workshop {
                workshop.close().await.map_err(Stopped::at("base"))?;
            }
            done[place] = Some(progress);
        }
        Err(Stopped::at("base")(Error::invalid("build", "there is nothing to build")))
    }

    /// Runs the start command until the ready command says that it is ready.
    async fn prove(&self, workshop: Option<Workshop>, made: &Progress) -> Result<(), Stopped> {
        let at = || Stopped::at("finalize");
        let (start, ready) = (self.request.start.as_deref(), self.request.ready.as_deref());
        if start.is_none() && ready.is_none() {
            return match workshop {
                Some(workshop) => workshop.close().await.map_err(at()),
                None => Ok(()),
            };
        }
        let workshop = match workshop {
            Some(workshop) => workshop,
            None => {
                let open = Workshop::open(self.app, self.build, &made.root, &made.context, &self.request.allow);
                Box::pin(open).await.map_err(at())?
            }
        };
        let proved = match make_working_folder(&workshop, made.context.cwd.as_deref()).await {
            Ok(()) => self.become_ready(&workshop, &made.context, start, ready).await,
            Err(error) => Err(refused(start.or(ready).unwrap_or_default(), made.context.user(), error)),
        };
        let closed = workshop.close().await;
        proved.map_err(at())?;
        closed.map_err(at())
    }

    async fn become_ready(
        &self,
        workshop: &Workshop,
        context: &Context,
        start: Option<&str>,
        ready: Option<&str>,
    ) -> Result<(), Error> {
        let spec = |line: &str| Spec {
            env: context.env.clone(),
            user: Some(context.user().to_owned()),
            cwd: context.cwd.clone(),
            ..Spec::new(GuestCommand::Shell(line.to_owned()))
        };
        let step = "finalize";
        let started = async {
            match start {
                Some(line) => {
                    self.log.info(Some(step), &format!("start: {line}"));
                    workshop.run(spec(line), self.log, step).await.map(Some)
                }
                None => std::future::pending().await,
            }
        };
        let line = ready.unwrap_or(READY_GUESS);
        let asking = async {
            self.log.info(Some(step), &format!("wait until it is ready: {line}"));
            for asked in 1_u32.. {
                let exit = workshop.run(spec(line), self.log, step).await?;
                if exit.status() == 0 {
                    break;
                }
                if asked.is_multiple_of(READY_TOLD) {
                    let end = READY_WITHIN.as_secs() / 60;
                    let how = format!("not ready yet: exit status {}; given up after {end} min", exit.status());
                    self.log.say(Level::Warn, Some(step), &how);
                }
                tokio::time::sleep(READY_EVERY).await;
            }
            Ok::<_, Error>(())
        };
        tokio::pin!(asking);
        let work = async {
            tokio::select! {
                ended = started => match ended? {
                    // It has done its work; what is left running may take a while yet.
                    Some(exit) if exit.status() == 0 && ready.is_some() => asking.as_mut().await,
                    Some(exit) if exit.status() == 0 => Ok(()),
                    Some(exit) => Err(failed(start.unwrap_or_default(), exit)),
                    None => Ok(()),
                },
                asked = &mut asking => asked,
            }
        };
        match tokio::time::timeout(READY_WITHIN, work).await {
            Ok(done) => done,
            Err(_) => {
                Err(Error::invalid("ready", format!("it was not ready after {} min", READY_WITHIN.as_secs() / 60)))
            }
        }
    }

    /// Another image that files are taken from: its root.
    async fn other_image(&self, work: &Work, name: &str, label: &str) -> Result<Root, Error> {
        match self.pull(work, name, label).await? {
            Origin::Image(pulled) => Ok(pulled.root()),
            Origin::Template(template) => {
                let template = self.app.template(&builder(&self.build.organisation), &template).await?;
                if !work.hold(&template.image.root.over).await? {
                    return Err(Error::exhausted(format!("template {name} was just deleted")));
                }
                self.app.bring_layers(work, &self.build.provider, &template.image.root).await?;
                Ok(template.image.root)
            }
        }
    }

    /// What tells another image from every other.
    async fn identity(&self, work: &Work, name: &str, label: &str) -> Result<String, Error> {
        match self.pull(work, name, label).await? {
            Origin::Image(pulled) => Ok(pulled.digest),
            Origin::Template(template) => {
                let template = self.app.template(&builder(&self.build.organisation), &template).await?;
                Ok(template.build.unwrap_or(template.name))
            }
        }
    }

    /// In a Dockerfile the organisation's own templates come before images of the same name, and `template:NAME` is any
    /// template that the organisation may use. The template that is being built is not meant: `nginx` can be built `FROM
    /// nginx` twice.
    async fn template_named(&self, name: &str) -> Result<Option<String>, Error> {
        if !matches!(self.request.recipe, Recipe::Dockerfile { .. }) {
            return Ok(None);
        }
        if let Some(named) = name.strip_prefix(TEMPLATE) {
            return Ok(Some(named.to_owned()));
        }
        let organisation = &self.build.organisation;
        match self.app.template(&builder(organisation), name).await {
            Ok(found) => {
                let is_own = found.organisation.as_ref() == Some(organisation) && found.id != self.build.template;
                // No registry has an image of this name.
                Ok((is_own || name == "base").then(|| name.to_owned()))
            }
            Err(Error::NotFound { .. } | Error::Conflict(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn pull(&self, work: &Work, name: &str, label: &str) -> Result<Origin, Error> {
        if let Some(template) = self.template_named(name).await? {
            return Ok(Origin::Template(template));
        }
        let pulled = self.pull_image(work, name, label).await;
        pulled.map_err(|error| remedied(error, &self.request.recipe))
    }

    /// The one registry that gets the build's credentials: of those that the request names the first beside the usual
    /// one, or that one where there is no other. An image of somebody else's may lead a build to any registry
    /// (`ONBUILD`), and public ones ask for a password, too.
    fn registry_for(&self, images: &[String]) -> Option<String> {
        let usual = format!("{}/", self.app.config().images.registry.trim());
        let all: Vec<String> = images.iter().filter_map(|name| self.registry_named(name)).collect();
        all.iter().find(|registry| **registry != usual).or(all.first()).cloned()
    }

    fn registry_named(&self, name: &str) -> Option<String> {
        match self.app.builds().source().meaning(name) {
            Ok(Meant::Image(reference)) => Some(registry_of(&reference).to_owned()),
            Ok(Meant::Template(_)) | Err(_) => None,
        }
    }

    async fn pull_image(&self, work: &Work, name: &str, label: &str) -> Result<Origin, Error> {
        let is_theirs = self.registry_named(name).is_some_and(|registry| self.registry.get() == Some(&registry));
        let wanted = Wanted {
            organisation: &self.build.organisation,
            provider: &self.build.provider,
            name,
            credentials: self.confidential.registry.as_ref().filter(|_| is_theirs),
        };
        Box::pin(self.app.pull(work, wanted, &|line: String| self.log.info(Some(label), &line))).await
    }

    /// Few layers: a stack of many is slow to open.
    async fn shallow(&self, work: &Work, made: Progress) -> Result<Progress, Error> {
        let root = self.app.merged(work, &self.build.organisation, &self.build.provider, &made.root).await?;
        Ok(Progress { root, ..made })
    }

    /// Writes that the build is ready, unless somebody ended it meanwhile.
    async fn finish(&self, made: Progress) -> Result<(), Error> {
        let record = self.app.store().template_by_id(&self.build.template).await?;
        let record = record.filter(|record| record.deleted_at.is_none());
        let Some(record) = record else { return Err(Error::invalid("template", "the template was deleted")) };
        self.log.info(None, "the template is ready");
        self.log.flush().await?;
        loop {
            let found = self.app.store().build(&self.build.id).await?;
            let Some(mut build) = found.filter(|build| build.state == State::Building) else { return Ok(()) };
            let now = self.app.now();
            build.state = State::Ready;
            build.image = Image::from(made.root.clone());
            build.defaults = self.defaults(&made.context, &build.defaults);
            build.parent_build = made.parent_build.clone();
            build.bytes = made.bytes;
            build.finished_at = Some(now);
            let event = self.app.template_event(&record, Some(&build), EventKind::TemplateBuilt);
            let beside = Beside { audit: None, event: Some(&event) };
            match self.app.store().finish_build(&mut build, now.as_millisecond(), beside).await? {
                Some(Written::Done) => {
                    if record.is_built_in() {
                        self.app.publish(&record, &build).await;
                    }
                    self.app.forget_files_of_build(&build.id).await;
                    self.app.forget_old_builds(&build.organisation).await;
                    return Ok(());
                }
                Some(Written::Overtaken) => {}
                None => return Err(Error::exhausted("a layer of the build is gone; start it again")),
            }
        }
    }

    fn defaults(&self, context: &Context, asked: &Defaults) -> Defaults {
        let own = match self.request.habits {
            Habits::OfTheImage => context.start().filter(|_| !only_waits(context)),
            Habits::OfE2b => None,
        };
        Defaults {
            env: context.env.clone(),
            user: context.user().to_owned(),
            cwd: context.cwd.clone(),
            start: self.request.start.clone().or(own),
            ready: self.request.ready.clone(),
            ..asked.clone()
        }
    }
}

/// What the log says of an instruction of a Dockerfile that means nothing here.
fn unheeded(step: &str) -> Option<String> {
    let word = step.split_whitespace().next()?.to_ascii_uppercase();
    match word.as_str() {
        "VOLUME" => Some("VOLUME makes no volume and no folder here; `cove create --volume` mounts one".to_owned()),
        "HEALTHCHECK" => Some("HEALTHCHECK is not asked here; a ready command is, at each start".to_owned()),
        _ => None,
    }
}

/// Whose commands are in sandboxes of a template that says nothing about it.
fn base_user() -> String {
    crate::template::base().user
}

/// An image that did not come, with what can be done about it.
fn remedied(error: Error, recipe: &Recipe) -> Error {
    let from = match recipe {
        Recipe::Dockerfile { .. } => "; a template is named `FROM template:NAME`",
        Recipe::Image { .. } | Recipe::Archive { .. } | Recipe::Steps { .. } => "",
    };
    match error {
        Error::Exhausted { message, retry_after } => Error::Exhausted {
            message: format!(
                "{message}{from}; where the server reaches no registry, `docker save` writes an image to a file for \
                 `cove template build NAME --archive FILE`, and images.mirrors names another registry"
            ),
            retry_after,
        },
        Error::Invalid { field, message } if field == "image" => Error::Invalid { field, message: message + from },
        error => error,
    }
}

/// Whether an image's command is a shell or an interpreter that waits for somebody to type.
fn only_waits(context: &Context) -> bool {
    let words: Vec<&String> = context.entrypoint.iter().chain(&context.command).collect();
    let [only] = words.as_slice() else { return false };
    let name = only.rsplit('/').next().unwrap_or_default();
    let name = name.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    ["sh", "bash", "ash", "dash", "zsh", "python", "node", "irb", "ruby", "php"].contains(&name)
}

fn failed(command: &str, exit: Exit) -> Error {
    let how = match exit {
        Exit { timed_out: true, .. } => "it took too long".to_owned(),
        Exit { out_of_memory: true, .. } => "memory ran out".to_owned(),
        Exit { signal: Some(signal), .. } => format!("signal {signal}"),
        exit => format!("exit status {}", exit.status()),
    };
    Error::invalid("run", format!("failed to run command '{}': command failed: {how}", shown(command)))
}

fn shown(command: &str) -> String {
    let command = first_line(command);
    if command.chars().count() <= 200 { command } else { command.chars().take(200).collect::<String>() + "…" }
}

/// One stage under way.
struct StageLine<'a> {
    executor: &'a Executor<'a>,
    plan: &'a Plan,
    /// Its number among all stages.
    place: usize,
    stage: &'a Stage,
    /// Steps of all stages.
    count: usize,
    /// Stages before this one, where they are needed.
    done: &'a [Option<Progress>],
    work: &'a Work,
    /// Open from the first step on that has to be done.
    workshop: Option<Workshop>,
}

/// Whether a step was found in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    Yes,
    No,
}

impl StageLine<'_> {
    async fn run(&mut self) -> Result<Progress, Stopped> {
        let mut progress = self.base().await.map_err(Stopped::at("base"))?;
        progress = self.provision(progress).await.map_err(Stopped::at("base"))?;
        if let Some(recipe) = &self.plan.dockerfile {
            return Box::pin(self.dockerfile(progress, recipe)).await;
        }
        for step in &self.stage.steps {
            progress = Box::pin(self.step(progress, step)).await.map_err(Stopped::at(step.number.to_string()))?;
        }
        Ok(progress)
    }

    async fn base(&self) -> Result<Progress, Error> {
        let Executor { app, build, log, .. } = self.executor;
        let organisation = &build.organisation;
        let mut base = self.stage.base.clone();
        if let Base::Image(name) = &base {
            log.info(Some("base"), &format!("FROM {name}"));
            match self.executor.pull(self.work, name, "base").await? {
                Origin::Image(pulled) => {
                    let key = Key::of_base(organisation, &format!("image {}", pulled.digest)).end();
                    let context = pulled.config.context()?;
                    return Ok(Progress { root: pulled.root(), context, key, bytes: 0, parent_build: None });
                }
                Origin::Template(template) => base = Base::Template(template),
            }
        }
        match base {
            Base::Image(_) => Err(Error::internal("an image that is neither image nor template")),
            Base::Template(name) => {
                if matches!(self.stage.base, Base::Template(_)) {
                    log.info(Some("base"), &format!("FROM template {name}"));
                }
                let template = app.template(&builder(organisation), &name).await?;
                if !self.work.hold(&template.image.root.over).await? {
                    return Err(Error::exhausted(format!("template {name} was just deleted")));
                }
                app.bring_layers(self.work, &build.provider, &template.image.root).await?;
                let mut identity = match &template.build {
                    Some(id) => format!("build {id}"),
                    None => format!("built in {}", template.name),
                };
                let mut context =
                    Context { env: template.env, user: template.user, cwd: template.cwd, ..Context::default() };
                // Most templates have an ordinary user for what runs on them. What is built on them is root's work.
                let is_ordinary = template.organisation.is_none() || context.user == base_user();
                if is_ordinary && self.plan.habits == Habits::OfTheImage {
                    if template.organisation.is_some() {
                        identity.push_str(" as root");
                    }
                    match self.plan.dockerfile {
                        Some(_) => context = Context { user: String::new(), cwd: None, ..context },
                        None => context.as_root = true,
                    }
                }
                let key = Key::of_base(organisation, &identity).end();
                Ok(Progress { root: template.image.root, context, key, bytes: 0, parent_build: template.build })
            }
            Base::Stage(place) => Ok(Progress { bytes: 0, ..self.stage_before(place)?.clone() }),
            Base::Nothing => {
                let layer = app.empty_layer(self.work, &build.provider).await?;
                let root = Root { under: Under::Nothing, over: vec![layer] };
                let key = Key::of_base(organisation, "nothing").end();
                Ok(Progress { root, context: Context::default(), key, bytes: 0, parent_build: None })
            }
        }
    }

    fn stage_before(&self, place: usize) -> Result<&Progress, Error> {
        let done = self.done.get(place).and_then(Option::as_ref);
        done.ok_or_else(|| Error::internal("a stage that is not done"))
    }

    /// Steps of a Dockerfile, each understood with what came before it. What the image below asks of those who build on
    /// it comes first.
    async fn dockerfile(&mut self, mut progress: Progress, recipe: &Dockerfile) -> Result<Progress, Stopped> {
        if self.plan.needed.last() == Some(&self.place) {
            for name in &recipe.plan.unused {
                let note = format!("the build argument {name} is not used: no ARG asks for it");
                self.executor.log.say(Level::Warn, Some("base"), &note);
            }
        }
        let mut defaults = dockerfile::defaults_of(&progress.context);
        let triggers = cove_image::dockerfile::triggers(&mut defaults).map_err(dockerfile::wrong);
        let triggers = triggers.map_err(Stopped::at("base"))?;
        let mut context = cove_image::dockerfile::Context::new(&recipe.plan, self.place, defaults);
        let triggers =
            triggers.iter().map(|step| ("base".to_owned(), format!("[{}] {}", self.stage.name, step.text), step));
        let own = self.stage.steps.iter().filter_map(|planned| match &planned.deed {
            Deed::Dockerfile(step) => {
                let title = format!("[{} {}/{}] {}", self.stage.name, planned.number, self.count, planned.text);
                Some((planned.number.to_string(), title, &**step))
            }
            _ => None,
        });
        let steps: Vec<_> = triggers.chain(own).collect();
        for (label, title, step) in steps {
            let action = context.step(step).map_err(dockerfile::wrong).map_err(Stopped::at(label.clone()))?;
            let (doing, notes) = recipe.doing(action);
            for note in notes.into_iter().chain(unheeded(&step.text)) {
                self.executor.log.say(Level::Warn, Some(&label), &note);
            }
            progress.context = dockerfile::context_of(context.defaults());
            // Steps that are only noted wait for nothing, and there may be thousands: others have their turn in between.
            tokio::task::yield_now().await;
            progress = Box::pin(self.docker_step(progress, doing, &label, &title)).await.map_err(Stopped::at(label))?;
        }
        Ok(progress)
    }

    async fn docker_step(
        &mut self,
        progress: Progress,
        doing: Doing,
        label: &str,
        title: &str,
    ) -> Result<Progress, Error> {
        let fresh = if self.plan.force { Fresh::Forced } else { Fresh::Allowed };
        match doing {
            // Whatever it changes is in the keys of the steps that see it.
            Doing::Nothing => {
                self.executor.log.info(Some(label), title);
                Ok(progress)
            }
            Doing::Directory(path) => {
                let key = Key::after(&progress.key).parts(["workdir", &path, "root"]).end();
                let act = Act::Directory { path: &path, owner: "root" };
                Box::pin(self.remembered(progress, key, label, title, fresh, act)).await
            }
            Doing::Run(run) => {
                let key = run_key(&progress, &run);
                Box::pin(self.remembered(progress, key, label, title, fresh, Act::Run(&run))).await
            }
            Doing::Copies(copies) => {
                let mut progress = progress;
                for copy in &copies {
                    progress = Box::pin(self.copy_step(progress, copy, label, title, fresh)).await?;
                }
                Ok(progress)
            }
        }
    }

    async fn copy_step(
        &mut self,
        progress: Progress,
        copy: &Copy,
        label: &str,
        title: &str,
        fresh: Fresh,
    ) -> Result<Progress, Error> {
        let Executor { app, build, .. } = self.executor;
        let copying = app.look_at(build, copy, &progress.context, self.plan.habits).await?;
        let from = match &copy.from {
            From::Stage(place) => self.stage_before(*place)?.key.clone(),
            From::Image(name) => self.executor.identity(self.work, name, label).await?,
            From::Files(_) | From::Here(_) => copying.digest().to_owned(),
        };
        let mode = copy.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let unpack = if copy.unpack { "unpack" } else { "" };
        let mut key = Key::after(&progress.key);
        key.parts(["copy", &from, copying.destination(), copying.owner(), &mode, unpack]);
        key.parts(copy.sources.iter().chain(&copy.exclude).map(String::as_str));
        let key = key.end();
        Box::pin(self.remembered(progress, key, label, title, fresh, Act::Copy(&copying))).await
    }

    /// What E2B's templates have whatever they are made of.
    async fn provision(&mut self, progress: Progress) -> Result<Progress, Error> {
        if self.plan.habits != Habits::OfE2b || !matches!(self.stage.base, Base::Image(_)) {
            return Ok(progress);
        }
        let context = Context {
            env: progress.context.env.clone(),
            user: E2B_USER.into(),
            cwd: Some(format!("/home/{E2B_USER}")),
            ..Context::default()
        };
        let key = Key::after(&progress.key).part("user of e2b").end();
        let progress = Progress { context, ..progress };
        if progress.root.under == Under::Host {
            return Ok(Progress { key, ..progress });
        }
        let act = Act::User { name: E2B_USER, power: Power::Sudo };
        Box::pin(self.remembered(progress, key, "base", "user", Fresh::Allowed, act)).await
    }

    async fn step(&mut self, mut progress: Progress, step: &Planned) -> Result<Progress, Error> {
        let label = step.number.to_string();
        let title = format!("[{} {}/{}] {}", self.stage.name, step.number, self.count, step.text);
        let fresh = if step.force || self.plan.force { Fresh::Forced } else { Fresh::Allowed };
        let key = |progress: &Progress, parts: &[&str]| Key::after(&progress.key).parts(parts.iter().copied()).end();
        match &step.deed {
            Deed::Env(values) => {
                self.executor.log.info(Some(&label), &title);
                let mut parts = vec!["env"];
                parts.extend(values.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]));
                progress.key = key(&progress, &parts);
                let mut size = 0;
                for (name, value) in values {
                    let value = expand(value, &progress.context.env)?;
                    size += value.len();
                    if size > EXPANDED_MAX {
                        return Err(Error::invalid("env", format!("at most {EXPANDED_MAX} bytes in all")));
                    }
                    progress.context.env.insert(name.clone(), value);
                }
                crate::sandbox::create::check_env(&progress.context.env)?;
                Ok(progress)
            }
            // They are in the keys of all that follows, and in no sandbox.
            Deed::Arg(values) => {
                self.executor.log.info(Some(&label), &title);
                let mut parts = vec!["arg"];
                parts.extend(values.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]));
                progress.key = key(&progress, &parts);
                progress.context.arguments.extend(values.iter().cloned());
                Ok(progress)
            }
            Deed::User { name, sudo, make } => {
                let parts = ["user", name, if *sudo { "sudo" } else { "" }, if *make { "make" } else { "" }];
                let next = key(&progress, &parts);
                progress.context.user = name.clone();
                progress.context.as_root = false;
                if !make {
                    self.executor.log.info(Some(&label), &title);
                    return Ok(Progress { key: next, ..progress });
                }
                let power = if *sudo { Power::Sudo } else { Power::Ordinary };
                Box::pin(self.remembered(progress, next, &label, &title, fresh, Act::User { name, power })).await
            }
            Deed::Workdir(path) => {
                let path = expand(path, &progress.context.env)?;
                let path = absolute(&path, &progress.context);
                let next = key(&progress, &["workdir", &path, progress.context.user()]);
                progress.context.cwd = Some(path.clone());
                let owner = match self.plan.habits {
                    Habits::OfE2b => progress.context.user().to_owned(),
                    Habits::OfTheImage => "root".to_owned(),
                };
                let act = Act::Directory { path: &path, owner: &owner };
                Box::pin(self.remembered(progress, next, &label, &title, fresh, act)).await
            }
            Deed::Run(run) => {
                let next = run_key(&progress, run);
                Box::pin(self.remembered(progress, next, &label, &title, fresh, Act::Run(run))).await
            }
            Deed::Copy(copy) => Box::pin(self.copy_step(progress, copy, &label, &title, fresh)).await,
            Deed::Dockerfile(_) => Err(Error::internal("a step of a Dockerfile among others")),
        }
    }

    /// Finds a step in the cache, or does it and remembers it.
    async fn remembered(
        &mut self,
        progress: Progress,
        key: String,
        label: &str,
        title: &str,
        fresh: Fresh,
        act: Act<'_>,
    ) -> Result<Progress, Error> {
        let Executor { app, build, log, .. } = self.executor;
        let organisation = &build.organisation;
        // Nobody does the same at the same time. The second finds it done, unless the first has failed.
        let _flight = app.builds().flights().join(organisation, &key).await;
        // From the first step on that was done anew everything is: what lies below it is new.
        if fresh == Fresh::Allowed && self.workshop.is_none() {
            let (found, progress) = self.look_up(&progress, &key).await?;
            if found == Found::Yes {
                log.info(Some(label), &format!("CACHED {title} [{}]", &key[..12]));
                return Ok(progress);
            }
        }
        log.info(Some(label), &format!("{title} [{}]", &key[..12]));
        Box::pin(self.act(&progress, act, label)).await?;
        let Some(workshop) = &self.workshop else { return Err(Error::internal("a step without a workshop")) };
        workshop.settle().await?;
        let (root, bytes) = Box::pin(workshop.capture(self.work, organisation)).await?;
        app.check_storage(organisation, 0).await?;
        let step = Step { key: key.clone(), root: root.clone(), context: progress.context.clone(), bytes };
        app.store().put_step(organisation, app.server(), &step, app.now().as_millisecond()).await?;
        Ok(Progress { root, key, bytes, ..progress })
    }

    async fn look_up(&self, progress: &Progress, key: &str) -> Result<(Found, Progress), Error> {
        let Executor { app, build, .. } = self.executor;
        let (organisation, store) = (&build.organisation, app.store());
        let Some(step) = store.step(organisation, key, app.server()).await? else {
            return Ok((Found::No, progress.clone()));
        };
        // A provider that lost a layer lost the step.
        let layers = app.provider(&build.provider)?.layers();
        for layer in &step.root.over {
            if layers.layer(*layer).await?.is_none() {
                return Ok((Found::No, progress.clone()));
            }
        }
        if !self.work.hold(&step.root.over).await? {
            return Ok((Found::No, progress.clone()));
        }
        store.touch_step(organisation, key, app.server(), app.now().as_millisecond()).await?;
        let (bytes, parent_build) = (step.bytes, progress.parent_build.clone());
        // The context of this build: what an environment is called before it is expanded is in the key.
        let context = progress.context.clone();
        Ok((Found::Yes, Progress { root: step.root, context, key: key.to_owned(), bytes, parent_build }))
    }

    async fn act(&mut self, progress: &Progress, act: Act<'_>, label: &str) -> Result<(), Error> {
        let executor = self.executor;
        let done = self.done;
        let workshop = self.open(progress).await?;
        match act {
            Act::User { name, power } => {
                people::ensure_user(workshop, name, power).await?;
                Ok(())
            }
            Act::Directory { path, owner } => {
                if people::make_directory(workshop, path).await? {
                    let (uid, gid) = owner_of(workshop, owner).await?;
                    people::set_owner(workshop, path, uid, gid).await?;
                }
                Ok(())
            }
            Act::Run(run) => Box::pin(self.command(progress, run, label)).await,
            Act::Copy(copying) => match copying.from() {
                From::Files(_) | From::Here(_) => Box::pin(copying::unpack(executor.app, workshop, copying)).await,
                From::Stage(place) => {
                    let stage = done.get(*place).and_then(Option::as_ref);
                    let stage = stage.ok_or_else(|| Error::internal("a stage that is not done"))?;
                    Box::pin(copying::take_from(executor.app, executor.build, &stage.root, workshop, copying)).await
                }
                From::Image(name) => {
                    let root = executor.other_image(self.work, name, label).await?;
                    let Some(workshop) = &self.workshop else { return Err(Error::internal("no workshop is open")) };
                    Box::pin(copying::take_from(executor.app, executor.build, &root, workshop, copying)).await
                }
            },
        }
    }

    /// The workshop, opened on what there is so far.
    async fn open(&mut self, progress: &Progress) -> Result<&Workshop, Error> {
        if self.workshop.is_none() {
            let Executor { app, build, request, .. } = self.executor;
            let open = Workshop::open(app, build, &progress.root, &progress.context, &request.allow);
            self.workshop = Some(Box::pin(open).await?);
        }
        self.workshop.as_ref().ok_or_else(|| Error::internal("a workshop that was just opened"))
    }

    async fn command(&mut self, progress: &Progress, run: &Run, label: &str) -> Result<(), Error> {
        let (executor, habits) = (self.executor, self.plan.habits);
        let workshop = self.open(progress).await?;
        let context = &progress.context;
        let user = run.user.as_deref().unwrap_or_else(|| context.worker()).to_owned();
        let mut script = None;
        let (command, told) = match &run.command {
            Command::Exec(words) => (GuestCommand::Argv(words.clone()), words.join(" ")),
            Command::Script(text) => {
                let path = format!("/tmp/.cove-{}", crate::random::hex(8));
                people::write(workshop, &path, text.as_bytes(), WriteMode::Create, 0o755).await?;
                script = Some(path.clone());
                (GuestCommand::Argv(vec![path]), text.clone())
            }
            Command::Shell(line) => {
                let shell: Vec<String> = match (&context.shell[..], habits) {
                    ([], Habits::OfE2b) => Vec::new(),
                    ([], Habits::OfTheImage) => vec!["/bin/sh".into(), "-c".into()],
                    (shell, _) => shell.to_vec(),
                };
                let command = if shell.is_empty() {
                    GuestCommand::Shell(line.clone())
                } else {
                    GuestCommand::Argv(shell.into_iter().chain([line.clone()]).collect())
                };
                (command, line.clone())
            }
        };
        let cwd = run.cwd.as_deref().or(context.cwd.as_deref());
        make_working_folder(workshop, cwd).await.map_err(|error| refused(&told, &user, error))?;
        let mut env = context.env.clone();
        env.extend(context.arguments.clone());
        env.extend(run.env.clone());
        let secrets = super::secret::Secrets::lay_out(workshop, run, executor.confidential, &user).await?;
        env.extend(secrets.variables());
        let spec =
            Spec { env, user: Some(user.clone()), cwd: Some(cwd.unwrap_or("/").to_owned()), ..Spec::new(command) };
        if run.reach == Reach::Nothing {
            workshop.set_reach(Reach::Nothing).await?;
        }
        let exit = workshop.run(spec, executor.log, label).await;
        if run.reach == Reach::Nothing {
            workshop.set_reach(Reach::Internet).await?;
        }
        // Whatever became of the command: nothing is captured while a secret lies there.
        secrets.take_away(workshop).await?;
        if let Some(path) = script {
            let remove = GuestRequest::Remove { path, user: Some("root".into()), recursive: false };
            workshop.guest().call(&remove).await?;
        }
        let exit = exit.map_err(|error| refused(&told, &user, error))?;
        if exit.status() == 0 { Ok(()) } else { Err(failed(&told, exit)) }
    }
}

/// The folder that commands of a build start in may be one that its image only names: then it is made, root's, as
/// container runtimes do.
async fn make_working_folder(workshop: &Workshop, path: Option<&str>) -> Result<(), Error> {
    match path.filter(|path| path.starts_with('/') && *path != "/") {
        Some(path) => people::make_directory(workshop, path).await.map(drop),
        None => Ok(()),
    }
}

/// What is done in a workshop for one step.
enum Act<'a> {
    User { name: &'a str, power: Power },
    Directory { path: &'a str, owner: &'a str },
    Run(&'a Run),
    Copy(&'a Copying),
}

/// Whether the cache may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fresh {
    Allowed,
    /// It is written all the same.
    Forced,
}

fn run_key(progress: &Progress, run: &Run) -> String {
    let mut key = Key::after(&progress.key);
    match &run.command {
        Command::Shell(line) => key.part("run").part(line),
        Command::Exec(words) => key.part("exec").parts(words.iter().map(String::as_str)),
        Command::Script(text) => key.part("script").part(text),
    };
    key.part(run.user.as_deref().unwrap_or_default()).part(run.cwd.as_deref().unwrap_or_default());
    if run.reach == Reach::Nothing {
        key.part("without network");
    }
    for (name, value) in &run.env {
        key.part(name).part(value);
    }
    for secret in &run.secrets {
        key.part("secret").part(&secret.name);
    }
    key.end()
}

/// An error of the guest's as people who build read it.
fn refused(command: &str, user: &str, error: Error) -> Error {
    let command = shown(command);
    match error {
        Error::Guest(GuestError::Failed(failure)) if failure.kind == FailureKind::UnknownUser => Error::invalid(
            "run",
            format!("failed to run command '{command}': command failed: unauthenticated: invalid username: '{user}'"),
        ),
        Error::Guest(GuestError::Failed(failure)) => {
            Error::invalid("run", format!("failed to run command '{command}': command failed: {failure}"))
        }
        Error::Guest(GuestError::Unreachable(_)) => Error::invalid(
            "run",
            format!("failed to run command '{command}': its sandbox ended; it may need more memory"),
        ),
        error => error,
    }
}

pub(super) async fn owner_of(workshop: &Workshop, owner: &str) -> Result<(u32, u32), Error> {
    People::of(workshop).await?.owner(owner).map_err(|message| Error::invalid("owner", message))
}

/// A path that may be relative, from the directory of the context.
pub(super) fn absolute(path: &str, context: &Context) -> String {
    let home = match context.user() {
        "root" => "/root".to_owned(),
        user => format!("/home/{user}"),
    };
    if path.starts_with('/') {
        return path.to_owned();
    }
    if let Some(rest) = path.strip_prefix('~') {
        return format!("{home}/{}", rest.trim_start_matches('/')).trim_end_matches('/').to_owned();
    }
    let below = context.cwd.as_deref().unwrap_or("/");
    let slash = if path.ends_with('/') { "/" } else { "" };
    let parts = path.split('/').filter(|part| !part.is_empty() && *part != ".");
    let joined = parts.fold(below.trim_end_matches('/').to_owned(), |whole, part| format!("{whole}/{part}"));
    if joined.is_empty() { "/".to_owned() } else { format!("{joined}{slash}") }
}

/// Beside the context's variables, those that a build's own commands have.
pub(super) type Variables = BTreeMap<String, String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_below_the_directory_that_is_set() {
        let context = Context { user: "user".into(), cwd: Some("/home/user".into()), ..Context::default() };
        for (path, expected) in [
            ("/app", "/app"),
            ("folder", "/home/user/folder"),
            ("folder/", "/home/user/folder/"),
            ("./a/./b", "/home/user/a/b"),
            (".", "/home/user"),
            ("~", "/home/user"),
            ("~/x", "/home/user/x"),
        ] {
            assert_eq!(absolute(path, &context), expected, "{path}");
        }
        assert_eq!(absolute("x", &Context::default()), "/x");
        assert_eq!(absolute(".", &Context::default()), "/");
    }

    #[test]
    fn an_image_whose_command_waits_for_somebody_starts_nothing() {
        let of = |entrypoint: &[&str], command: &[&str]| Context {
            entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            ..Context::default()
        };
        assert!(only_waits(&of(&[], &["python3"])) && only_waits(&of(&["/bin/bash"], &[])));
        assert!(only_waits(&of(&[], &["python3.12"])));
        assert!(!only_waits(&of(&["nginx"], &["-g", "daemon off;"])) && !only_waits(&of(&[], &["redis-server"])));
    }
}
