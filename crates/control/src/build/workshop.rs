//! The sandbox in which a build's steps run: the organisation's, in no list, and gone with the build.
//!
//! It is a sandbox like any other: the same walls, limits of its own, and a way to the internet. Being in no list is what
//! members of warm pools are, and like them one that a dead server leaves behind is removed by the next.

use cove_protocol::process::{Exit, OnDisconnect, Selector, Spec};
use cove_protocol::{Event as GuestEvent, FailureKind, Reply, Request};

use super::Build;
use super::log::{Level, Lines, Log};
use super::plan::{Context, Reach};
use crate::guest::{Guest, GuestError, Item};
use crate::image::LayerKind;
use crate::image::work::{Made, Work};
use crate::ledger::disk_of;
use crate::provider::{LayerId, Limits, Root};
use crate::sandbox::cause::{Cause, Code};
use crate::sandbox::state::Event;
use crate::sandbox::{NetworkPolicy, NewSandbox, Sandbox, Timers};
use crate::{App, Caller, Error, Scope, random};

/// The pools of this name are none: their members are builds' own.
pub const POOL: &str = "build/";

/// Bytes of a file of the system's that is read.
const SMALL_FILE: u64 = 1 << 20;

pub struct Workshop {
    app: App,
    sandbox: Sandbox,
    /// What it was started from: everything that it captures lies on this.
    root: Root,
    /// What its commands reach unless a step has none.
    network: NetworkPolicy,
    guest: Guest,
    closed: bool,
}

/// Whom a build acts for.
pub(crate) fn builder(organisation: &str) -> Caller {
    Caller { organisation: organisation.to_owned(), key: "build".into(), scopes: vec![Scope::Write] }
}

impl Workshop {
    /// `allow` are private addresses that whoever started the build may open.
    pub async fn open(
        app: &App,
        build: &Build,
        root: &Root,
        context: &Context,
        allow: &[String],
    ) -> Result<Workshop, Error> {
        let caller = builder(&build.organisation);
        let quota = app.quota(&build.organisation).await?;
        let settings = &app.config().builds;
        let limits = quota.clamp(Limits {
            cpus: settings.cpus,
            memory: settings.memory,
            disk: Some(settings.disk),
            pids: quota.pids_per_sandbox,
            ..Limits::default()
        });
        let new = NewSandbox {
            network: NetworkPolicy::open(),
            provider: Some(build.provider.clone()),
            ..NewSandbox::default()
        };
        let (mut sandbox, _) = app.draft(&caller, &new).await?;
        sandbox.image = root.clone().into();
        sandbox.build = None;
        sandbox.limits = limits;
        let network = NetworkPolicy { allow: allow.to_vec(), ..NetworkPolicy::open() };
        sandbox.network = network.clone();
        sandbox.env = context.env.clone();
        sandbox.user = "root".into();
        sandbox.cwd = None;
        sandbox.pool = Some(format!("{POOL}{}", build.id));
        sandbox.timers = Timers { idle_seconds: None, ..Timers::default() };
        sandbox.cause = Cause::new(Code::Requested, "made for a build", app.now());
        let (own, root) = (app.clone(), root.clone());
        // A build may be cancelled at any moment. What was begun is finished all the same: a workshop that nobody waits
        // for is dropped, and closes itself.
        app.detached(async move {
            let place = own.ledger().reserve(&sandbox.organisation, &quota, disk_of(&sandbox))?;
            let id = sandbox.id.clone();
            let made = own.launch_in_room(sandbox, place, &quota).await;
            if made.is_err() {
                own.capacity().release(&id);
            }
            let sandbox = made?;
            let guest = own.provider(&sandbox.provider)?.guest(&sandbox.handle());
            Ok(Workshop { app: own, sandbox, root, network, guest, closed: false })
        })
        .await
    }

    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// Runs a command to its end; what it prints goes to the log.
    pub async fn run(&self, mut spec: Spec, log: &Log, step: &str) -> Result<Exit, Error> {
        spec.on_disconnect = OnDisconnect::Kill;
        let (reply, mut operation) = self.guest.open(&Request::Start(spec)).await?;
        if !matches!(reply, Reply::Started { .. }) {
            return Err(GuestError::Protocol(format!("start answered {reply:?}")).into());
        }
        let (mut out, mut err) = (Lines::default(), Lines::default());
        let say = |line: &str| log.say(Level::Info, Some(step), line);
        let warn = |line: &str| log.say(Level::Warn, Some(step), line);
        let mut exit = None;
        while let Some(item) = operation.from.next().await? {
            match item {
                Item::Stdout(bytes) | Item::Pty(bytes) => out.add(&bytes, say),
                Item::Stderr(bytes) => err.add(&bytes, warn),
                Item::Event(GuestEvent::Exited { exit: ended }) => exit = Some(ended),
                Item::Event(_) | Item::Data(_) => {}
            }
        }
        out.end(say);
        err.end(warn);
        exit.ok_or_else(|| GuestError::Protocol("a command ended without an exit".into()).into())
    }

    /// What its commands reach from now on.
    pub async fn set_reach(&self, reach: Reach) -> Result<(), Error> {
        let policy = match reach {
            Reach::Internet => self.network.clone(),
            Reach::Nothing => NetworkPolicy::closed(),
        };
        let provider = self.app.provider(&self.sandbox.provider)?;
        Ok(provider.set_network(&self.sandbox.handle(), &policy.to_network()?).await?)
    }

    /// Ends what a step has left running, as far as the guest knows of it.
    pub async fn settle(&self) -> Result<(), Error> {
        let Reply::Processes { processes } = self.guest.call(&Request::Processes).await? else { return Ok(()) };
        for process in processes.into_iter().filter(|process| process.exit.is_none()) {
            let kill = Request::Signal { process: Selector::Pid(process.pid), signal: 9, group: true };
            // It may have ended by itself.
            let _ended = self.guest.call(&kill).await;
        }
        Ok(())
    }

    /// All that was done so far becomes a layer. Returns the root with it, and its size.
    pub async fn capture(&self, work: &Work, organisation: &str) -> Result<(Root, u64), Error> {
        let layer = random::layer_id();
        let provider = self.app.provider(&self.sandbox.provider)?;
        let handle = self.sandbox.handle();
        let make = || async { Ok(provider.layers().capture(&handle, layer).await?) };
        let made = work.make(layer, LayerKind::Delta, Some(organisation), &self.sandbox.provider, make).await?;
        let bytes = match made {
            Made::Now(info) => info.bytes,
            Made::Found => 0,
        };
        let over: Vec<LayerId> = std::iter::once(layer).chain(self.root.over.iter().copied()).collect();
        Ok((Root { under: self.root.under, over }, bytes))
    }

    /// A small file's text; empty where there is none.
    pub async fn read_text(&self, path: &str) -> Result<String, Error> {
        let read = Request::Read { path: path.into(), user: Some("root".into()), offset: 0, length: Some(SMALL_FILE) };
        let (_, operation) = match self.guest.open(&read).await {
            Err(GuestError::Failed(failure))
                if matches!(failure.kind, FailureKind::NotFound | FailureKind::IsADirectory) =>
            {
                return Ok(String::new());
            }
            opened => opened?,
        };
        let mut operation = operation.gathered();
        let mut text = Vec::new();
        while let Some(item) = operation.from.next().await? {
            if let Item::Data(bytes) = item {
                text.extend(bytes);
            }
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    pub async fn close(mut self) -> Result<(), Error> {
        destroy(&self.app, &self.sandbox).await?;
        self.closed = true;
        Ok(())
    }
}

async fn destroy(app: &App, sandbox: &Sandbox) -> Result<(), Error> {
    app.change_state(&sandbox.id, Event::Destroy, ended(app)).await?;
    Ok(())
}

fn ended(app: &App) -> Cause {
    Cause::new(Code::Requested, "its build has ended", app.now())
}

impl Drop for Workshop {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let (app, sandbox) = (self.app.clone(), self.sandbox.clone());
        self.app.tasks().spawn(async move {
            if let Err(error) = destroy(&app, &sandbox).await {
                tracing::warn!(sandbox = %sandbox.id, %error, detail = error.detail(), "remove a build's sandbox, will be tried again");
                app.unfinished().unwanted(&sandbox.id, ended(&app));
            }
        });
    }
}

impl App {
    /// Sandboxes of builds that a dead server was at.
    pub(crate) async fn remove_workshops(&self) -> Result<(), Error> {
        for sandbox in self.store().pooled_sandboxes(self.server()).await? {
            if sandbox.pool.as_deref().is_some_and(|pool| pool.starts_with(POOL)) {
                let cause = Cause::new(Code::ServerRestart, "the server ended in the middle of its build", self.now());
                self.change_state(&sandbox.id, Event::Destroy, cause).await?;
            }
        }
        Ok(())
    }
}
