//! How one sandbox is reached: through the tunnel to our guest, or by a deputy that answers in its place.
//!
//! Which of the two is found out once, when the sandbox is launched or, on a server that came back, when somebody first
//! asks for it. A start after a stop finds it out anew: the guest went with the other processes.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cove_protocol::{Reply, Request};
use tokio::sync::Mutex;

use super::deputy::{Configuration, Deputy};
use super::service::Service;
use super::{Bringing, Way, install, tunnel};
use crate::guest::{Connect, Guest, GuestError, Pipe};
use crate::provider::{Order, ProviderError, Seen};

/// The port that the guest's tunnel listens on.
pub const PORT: u16 = 49820;

/// How long a guest that did not answer is left alone before it is taken for dead.
const SECOND_LOOK: Duration = Duration::from_secs(2);

pub struct Link {
    service: Arc<dyn Service>,
    /// The service's name for the sandbox.
    name: String,
    /// What the guest wants to be shown.
    token: String,
    bringing: Bringing,
    /// Unknown until somebody asks.
    mode: Mutex<Option<Mode>>,
}

#[derive(Clone)]
enum Mode {
    Tunnel(Way),
    Deputy(Arc<Deputy>),
}

impl Link {
    pub fn new(service: Arc<dyn Service>, name: String, token: String, bringing: Bringing) -> Link {
        Link { service, name, token, bringing, mode: Mutex::default() }
    }

    /// After a launch: brings in what is needed, and tells it what processes inherit.
    pub async fn establish(self: &Arc<Self>, order: &Order) -> Result<(), ProviderError> {
        self.reset().await;
        let user = install::user(&*self.service, &self.name, order.user.as_str()).await;
        let configuration = Configuration::of(order, user.clone());
        let mode = self.find(Some(&configuration)).await?;
        let deputy = matches!(mode, Mode::Deputy(_));
        *self.mode.lock().await = Some(mode);
        if deputy {
            return Ok(());
        }
        let (env, default_cwd) = (Some(order.env.clone()), order.cwd.clone());
        let configure = Request::Configure { env, default_user: user, default_cwd };
        let guest = Guest::new(Arc::clone(self) as Arc<dyn Connect>);
        match guest.call(&configure).await {
            Ok(_) => Ok(()),
            Err(error) => Err(ProviderError::Exhausted(format!("sandbox {}: {error}", self.name))),
        }
    }

    /// What was found out holds no longer: its processes ended.
    pub async fn reset(&self) {
        *self.mode.lock().await = None;
    }

    async fn mode(&self) -> Result<Mode, GuestError> {
        let mut mode = self.mode.lock().await;
        if let Some(mode) = &*mode {
            return Ok(mode.clone());
        }
        let unreachable = |error: ProviderError| GuestError::Unreachable(error.to_string());
        // One that rests is not woken by a question, and nobody answers in its place.
        match self.service.get(&self.name).await.map_err(unreachable)? {
            Some(found) if found.state == Seen::Running => {}
            _ => return Err(GuestError::Unreachable("it does not run".into())),
        }
        let found = self.find(None).await.map_err(unreachable)?;
        *mode = Some(found.clone());
        Ok(found)
    }

    async fn find(&self, configuration: Option<&Configuration>) -> Result<Mode, ProviderError> {
        let why = match self.bringing {
            Bringing::Unwanted => "its provider's section has guest = false".to_owned(),
            Bringing::Wanted => match self.service.way(&self.name, PORT).await? {
                None => format!("{} leads to no port of it", self.service.kind().name),
                Some(way) => match self.bring_in(&way).await {
                    Ok(()) => return Ok(Mode::Tunnel(way)),
                    Err(reason) => reason,
                },
            },
        };
        if self.bringing == Bringing::Wanted {
            tracing::info!(sandbox = %self.name, service = self.service.kind().name, why, "served by the service's own calls");
        }
        let service = Arc::clone(&self.service);
        Ok(Mode::Deputy(Deputy::new(service, &self.name, configuration, why).await?))
    }

    /// The guest answers there, once this returns; the sentence says why it cannot.
    async fn bring_in(&self, way: &Way) -> Result<(), String> {
        if self.answers(way).await {
            return Ok(());
        }
        install::guest(&*self.service, &self.name, &self.token, PORT).await?;
        if self.answers_soon(way).await {
            return Ok(());
        }
        let said = install::last_words(&*self.service, &self.name).await;
        Err(format!(
            "our guest does not answer at port {PORT} of it{}",
            said.map_or(String::new(), |said| format!(": {said}"))
        ))
    }

    async fn answers(&self, way: &Way) -> bool {
        let connection =
            Arc::new(Through { http: self.service.http().clone(), way: way.clone(), token: self.token.clone() });
        matches!(Guest::new(connection).call(&Request::Ping).await, Ok(Reply::Pong { .. }))
    }

    /// Whether our guest was there and has ended.
    pub async fn is_dead(&self) -> bool {
        let mode = self.mode.lock().await.clone();
        let Some(Mode::Tunnel(way)) = mode else { return false };
        if self.answers(&way).await {
            return false;
        }
        // Once more: a service's proxies have bad moments.
        tokio::time::sleep(SECOND_LOOK).await;
        !self.answers(&way).await
    }

    /// A program that was just started takes a moment, and so do a service's proxies.
    async fn answers_soon(&self, way: &Way) -> bool {
        for pause in install::PATIENCE {
            if self.answers(way).await {
                return true;
            }
            tokio::time::sleep(pause).await;
        }
        self.answers(way).await
    }
}

#[async_trait]
impl Connect for Link {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        match self.mode().await? {
            Mode::Deputy(deputy) => Ok(Box::new(deputy.connect())),
            Mode::Tunnel(way) => match tunnel::connect(self.service.http(), &way, &self.token).await {
                Ok(tunnel) => Ok(Box::new(tunnel)),
                // What let us through may have been made anew meanwhile.
                Err(first) => {
                    let now = self.service.way(&self.name, PORT).await;
                    let Ok(Some(now)) = now else { return Err(first) };
                    if now == way {
                        return Err(first);
                    }
                    *self.mode.lock().await = Some(Mode::Tunnel(now.clone()));
                    Ok(Box::new(tunnel::connect(self.service.http(), &now, &self.token).await?))
                }
            },
        }
    }
}

/// A way that is tried.
struct Through {
    http: reqwest::Client,
    way: Way,
    token: String,
}

#[async_trait]
impl Connect for Through {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        Ok(Box::new(tunnel::connect(&self.http, &self.way, &self.token).await?))
    }
}

/// A sandbox that is known by our id alone: found when somebody asks for it.
pub struct Unnoted<F>(pub F);

#[async_trait]
impl<F, A> Connect for Unnoted<F>
where
    F: Fn() -> A + Send + Sync,
    A: Future<Output = Result<Arc<Link>, GuestError>> + Send,
{
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        (self.0)().await?.connect().await
    }
}
