//! Answers in the guest's place, by the service's own calls.
//!
//! Where our guest cannot be in a sandbox, the doors still ask in its protocol; a deputy is the other end of that, in this
//! process. Commands go to the service, and what concerns files is done by small scripts that it runs ([`files`]). What a
//! service has no counterpart for (terminals, watches, ports) is refused as unsupported, with the reason.
//!
//! What a deputy knows of processes it knows in memory: a server that comes back has forgotten their output. The tunnel
//! has no such weakness, and is the normal way.

mod files;
mod process;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use cove_protocol::frame::{BULK, FrameError, read_async, write_async};
use cove_protocol::{Event, Failure, FailureKind, Frame, Kind, Reply, Request, VERSION};
use futures::StreamExt as _;
use serde::{Deserialize, Serialize};
use tokio::io::{DuplexStream, ReadHalf, WriteHalf};

use self::process::Table;
use super::service::{Run, Service, finish};
use super::{Output, Trouble};
use crate::guest::GATHERED;
use crate::provider::{Order, ProviderError};

/// Where a sandbox keeps what its processes inherit, for a server that comes back.
const KEPT: &str = "/tmp/.cove-configuration";

/// What processes inherit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    user: Option<String>,
    #[serde(default)]
    cwd: Option<String>,
}

impl Configuration {
    /// `user` is the order's, where the sandbox has it.
    pub fn of(order: &Order, user: Option<String>) -> Configuration {
        Configuration { env: order.env.clone(), user, cwd: order.cwd.clone() }
    }
}

pub struct Deputy {
    service: Arc<dyn Service>,
    /// The service's name for the sandbox.
    name: String,
    /// Why there is no guest: the end of what is said to whoever asks for more.
    why: String,
    begun: Instant,
    configuration: Mutex<Configuration>,
    processes: Table,
}

/// One operation: what the host says, and what it is told.
struct Line {
    from: ReadHalf<DuplexStream>,
    to: WriteHalf<DuplexStream>,
}

/// The host hung up, or what it asked for failed.
enum Stop {
    Gone,
    Failed(Failure),
}

impl From<FrameError> for Stop {
    fn from(_: FrameError) -> Stop {
        Stop::Gone
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Stop {
        Stop::Failed(failure(&trouble))
    }
}

type Outcome = Result<(), Stop>;

/// A service's refusal, as a guest would have put it.
fn failure(trouble: &Trouble) -> Failure {
    let kind = match trouble {
        Trouble::Refused { status, .. } => match status.as_u16() {
            404 | 410 => FailureKind::NotFound,
            401 | 403 => FailureKind::PermissionDenied,
            409 => FailureKind::AlreadyExists,
            413 | 429 | 507 => FailureKind::Exhausted,
            400 | 422 => FailureKind::InvalidArgument,
            501 => FailureKind::Unsupported,
            _ => FailureKind::Internal,
        },
        Trouble::Unsupported(_) => FailureKind::Unsupported,
        Trouble::Away(_) | Trouble::Garbled(_) => FailureKind::Internal,
    };
    Failure::new(kind, trouble.to_string())
}

impl Line {
    async fn reply(&mut self, reply: &Reply) -> Outcome {
        Ok(self.json(Kind::Reply, reply).await?)
    }

    async fn event(&mut self, event: &Event) -> Outcome {
        Ok(self.json(Kind::Event, event).await?)
    }

    async fn json(&mut self, kind: Kind, message: &impl Serialize) -> Result<(), FrameError> {
        let frame = Frame::json(kind, message);
        write_async(&mut self.to, frame.kind, &frame.payload).await
    }

    async fn bulk(&mut self, kind: Kind, bytes: &[u8]) -> Outcome {
        for piece in bytes.chunks(BULK) {
            write_async(&mut self.to, kind, piece).await?;
        }
        Ok(())
    }

    async fn end(&mut self) -> Outcome {
        Ok(write_async(&mut self.to, Kind::End, &[]).await?)
    }

    /// All bytes up to the End. Half is not the whole: a host that hangs up before has sent nothing.
    async fn upload(&mut self) -> Result<Bytes, Stop> {
        let mut whole = Vec::new();
        while let Some(frame) = read_async(&mut self.from).await? {
            match frame.kind {
                Kind::Data | Kind::Stdin => whole.extend(frame.payload),
                Kind::End => return Ok(whole.into()),
                _ => return Err(Stop::Gone),
            }
            if whole.len() > GATHERED {
                let message = format!("more than {} MiB in one piece; send less at a time", GATHERED >> 20);
                return Err(Failure::new(FailureKind::Exhausted, message).into());
            }
        }
        Err(Stop::Gone)
    }
}

impl Deputy {
    /// With what was kept in the sandbox where nothing is given.
    pub async fn new(
        service: Arc<dyn Service>,
        name: &str,
        configuration: Option<&Configuration>,
        why: String,
    ) -> Result<Arc<Deputy>, ProviderError> {
        let deputy = Deputy {
            service,
            name: name.to_owned(),
            why,
            begun: Instant::now(),
            configuration: Mutex::default(),
            processes: Table::default(),
        };
        match configuration {
            Some(configuration) => deputy.keep(configuration.clone()).await?,
            None => {
                let kept = deputy.kept().await;
                *deputy.configuration.lock().expect("no panic while held") = kept;
            }
        }
        Ok(Arc::new(deputy))
    }

    async fn keep(&self, configuration: Configuration) -> Result<(), Trouble> {
        if let Some(cwd) = &configuration.cwd {
            let owner = configuration.user.as_deref().unwrap_or_default();
            let run = Run::script(r#"mkdir -p "$1" && chown "${2:-0}" "$1""#, &[cwd.as_str(), owner]);
            finish(&*self.service, &self.name, &run.by(Some("root"))).await?;
        }
        let text = serde_json::to_vec(&configuration).expect("maps of text are JSON");
        self.service.write(&self.name, KEPT, text.into()).await?;
        *self.configuration.lock().expect("no panic while held") = configuration;
        Ok(())
    }

    async fn kept(&self) -> Configuration {
        let Ok(mut stream) = self.service.read(&self.name, KEPT).await else { return Configuration::default() };
        let mut text = Vec::new();
        while let Some(Ok(bytes)) = stream.next().await {
            text.extend_from_slice(&bytes);
        }
        serde_json::from_slice(&text).unwrap_or_default()
    }

    fn configuration(&self) -> Configuration {
        self.configuration.lock().expect("no panic while held").clone()
    }

    /// Whose rights an operation has.
    fn user(&self, wanted: Option<&str>) -> Option<String> {
        wanted.map(str::to_owned).or_else(|| self.configuration().user)
    }

    /// A connection whose other end is served by a task of its own.
    pub fn connect(self: &Arc<Self>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(256 << 10);
        let deputy = Arc::clone(self);
        tokio::spawn(async move {
            let (from, to) = tokio::io::split(theirs);
            let mut line = Line { from, to };
            let Ok(Some(frame)) = read_async(&mut line.from).await else { return };
            let asked = frame.parse::<Request>();
            let outcome = match asked {
                Ok(request) => deputy.answer(request, &mut line).await,
                Err(error) => Err(Failure::new(FailureKind::InvalidArgument, error.to_string()).into()),
            };
            if let Err(Stop::Failed(failure)) = outcome {
                // An error here means that the host hung up.
                let _ = line.json(Kind::Failure, &failure).await;
            }
        });
        ours
    }

    async fn answer(self: &Arc<Self>, request: Request, line: &mut Line) -> Outcome {
        match request {
            Request::Ping => {
                let uptime_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                line.reply(&Reply::Pong { version: VERSION, uptime_ms }).await
            }
            Request::Configure { env, default_user, default_cwd } => {
                let now = self.configuration();
                let then = Configuration {
                    env: env.unwrap_or(now.env),
                    user: default_user.or(now.user),
                    cwd: default_cwd.or(now.cwd),
                };
                self.keep(then).await?;
                line.reply(&Reply::Done).await
            }
            Request::Shutdown { .. } => Err(self.cannot("end the sandbox from inside")),

            Request::Start(spec) => self.start(spec, line).await,
            Request::Attach { process, from } => self.attach(&process, from, line).await,
            Request::Processes => line.reply(&Reply::Processes { processes: self.processes.list() }).await,
            Request::Signal { process, signal, .. } => {
                self.signal(&process, signal).await?;
                line.reply(&Reply::Done).await
            }
            Request::Input { process } => {
                let bytes = line.upload().await?;
                self.input(&process, bytes).await?;
                line.reply(&Reply::Done).await
            }
            Request::CloseStdin { process } => {
                self.close_input(&process).await?;
                line.reply(&Reply::Done).await
            }
            Request::Resize { .. } => Err(self.cannot("open a terminal")),
            Request::Wait { process } => {
                let exit = self.processes.find(&process)?.wait().await;
                line.reply(&Reply::Exited { exit }).await
            }
            Request::Forget { process } => {
                self.processes.forget(&process)?;
                line.reply(&Reply::Done).await
            }

            Request::Stat { path, user, follow } => self.stat(&path, user.as_deref(), follow, line).await,
            Request::List { path, user, depth } => self.list(&path, user.as_deref(), depth, line).await,
            Request::Read { path, user, offset, length } => {
                self.read(&path, user.as_deref(), offset, length, line).await
            }
            Request::Write { path, user, how, mode, parents } => {
                let wanted = files::Wanted { path: &path, user: user.as_deref(), how, mode, parents };
                self.write(&wanted, line).await
            }
            Request::MakeDirectory { path, user, mode } => {
                self.make_directory(&path, user.as_deref(), mode, line).await
            }
            Request::Move { from, to, user } => self.rename(&from, &to, user.as_deref(), line).await,
            Request::Remove { path, user, recursive } => self.remove(&path, user.as_deref(), recursive, line).await,
            Request::SetAttributes { path, user, mode, owner, group } => {
                let wanted = files::Attributes { mode, owner: owner.as_deref(), group: group.as_deref() };
                self.set_attributes(&path, user.as_deref(), &wanted, line).await
            }
            Request::Symlink { path, target, user } => self.symlink(&path, &target, user.as_deref(), line).await,
            Request::Find { path, pattern, user, limit } => {
                self.find(&path, &pattern, user.as_deref(), limit, line).await
            }
            Request::Grep { path, pattern, user, limit } => {
                self.grep(&path, &pattern, user.as_deref(), limit, line).await
            }
            Request::TarOut { path, user } => self.tar_out(&path, user.as_deref(), line).await,
            Request::TarIn { path, user } => self.tar_in(&path, user.as_deref(), line).await,
            Request::SetMetadata { .. } => Err(self.cannot("keep metadata of files")),
            Request::Replace { .. } => Err(self.cannot("replace text in files")),
            Request::Watch { .. } => Err(self.cannot("watch files")),

            Request::Dial { .. } => Err(self.cannot("lead to a port")),
            Request::Ports => Err(self.cannot("list ports")),
            Request::Usage => Err(self.cannot("tell what is used inside")),
        }
    }

    /// What has no counterpart at the service.
    fn cannot(&self, what: &str) -> Stop {
        let service = self.service.kind().name;
        let message = format!("{service} cannot {what} without our guest inside, which is not there: {}", self.why);
        Failure::new(FailureKind::Unsupported, message).into()
    }

    /// Runs a script to its end, with a user's rights. `$1` and so on are its arguments.
    async fn script(&self, script: &str, arguments: &[&str], user: Option<&str>) -> Result<Output, Trouble> {
        let run = Run::script(script, arguments).by(self.user(user).as_deref());
        finish(&*self.service, &self.name, &run).await
    }
}
