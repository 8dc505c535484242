//! The provider: what is asked of sandboxes anywhere, by what a service can do.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use tokio::io::{AsyncRead, AsyncWrite};

use super::super::{
    Capabilities, Departure, Ended, Handle, Kind, Limit, Limits, Network, Order, Provider, ProviderError, SandboxId,
    Seen, Sighting, Supply, Unheld, Usage,
};
use super::link::Unnoted;
use super::{Found, Remote};
use crate::guest::{Guest, GuestError};

impl Remote {
    fn sighting(&self, found: Found) -> Sighting {
        Sighting { handle: self.handle(&found.name), id: found.id, state: found.state, ended: None, aside: None }
    }

    /// What the service has of an order's sandbox: what an earlier launch made, noted or not.
    async fn earlier(&self, order: &Order) -> Result<Option<Found>, ProviderError> {
        if let Some(handle) = &order.earlier
            && let Some(name) = self.name_of(handle).await?
        {
            return self.service.get(&name).await;
        }
        Ok(self.service.list(Some(&order.id)).await?.into_iter().find(|found| found.id == order.id))
    }

    /// Makes the sandbox. Where it is not known whether the service did so, it is asked: a second one would cost, and nobody
    /// would know of it.
    async fn make(&self, order: &Order) -> Result<String, ProviderError> {
        match self.service.create(order).await {
            Err(error @ (ProviderError::Exhausted(_) | ProviderError::Failed(_))) => {
                let found = self.service.list(Some(&order.id)).await.unwrap_or_default();
                match found.into_iter().find(|found| found.id == order.id) {
                    Some(found) => {
                        self.service.start(&found.name).await?;
                        Ok(found.name)
                    }
                    None => Err(error),
                }
            }
            made => made,
        }
    }
}

impl Remote {
    /// A sandbox whose guest has ended runs nothing that anybody could reach: it is stopped, and its end is told.
    async fn look_inside(&self) {
        let links: Vec<_> = {
            let links = self.links.lock().expect("no panic while held");
            self.keep
                .names()
                .into_iter()
                .filter_map(|name| links.get(&name).cloned().map(|link| (name, link)))
                .collect()
        };
        futures::stream::iter(links)
            .for_each_concurrent(AT_ONCE, |(name, link)| async move {
                if !link.is_dead().await || !self.keep.depart(&name, &Ended::GuestExited { code: 0 }) {
                    return;
                }
                link.reset().await;
                if let Err(error) = self.service.stop(&name).await {
                    tracing::warn!(sandbox = name, %error, "stop a sandbox whose guest has ended");
                }
            })
            .await;
    }
}

/// Guests asked at one time.
const AT_ONCE: usize = 8;

#[async_trait]
impl Provider for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> &'static Kind {
        self.service.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.service.capabilities()
    }

    /// Whoever has the key can act on them.
    fn is_bound_to_host(&self) -> bool {
        false
    }

    fn supply(&self) -> Supply {
        self.service.supply()
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        self.service.answers().await
    }

    /// A service has sizes of its own, and what it holds of these is its business.
    fn unheld(&self) -> Vec<Unheld> {
        let service = self.service.kind().name;
        let unheld = |limit: &Limit| Unheld {
            limit: *limit,
            why: format!("{service} does not take this limit from its callers"),
            remedy: "choose a template or a plan of the service that has it".into(),
        };
        self.service.unheld().iter().map(unheld).collect()
    }

    async fn launch(&self, order: &Order) -> Result<Handle, ProviderError> {
        let service = self.service.kind().name;
        if order.image.reference.is_none() && !order.image.root.over.is_empty() {
            let message = format!("the files of this template are layers of this server, which {service} cannot have");
            return Err(ProviderError::Refused(message));
        }
        if !order.volumes.is_empty() {
            return Err(ProviderError::Unsupported(format!("{service} cannot mount volumes: {}", super::NO_VOLUMES)));
        }
        let name = match self.earlier(order).await? {
            Some(found) => {
                if found.state != Seen::Running {
                    self.service.start(&found.name).await?;
                }
                found.name
            }
            // Its files were there, and are not.
            None if order.earlier.is_some() => {
                let message = format!("{service} has sandbox {} no longer, and its files with it", order.id);
                return Err(ProviderError::Refused(message));
            }
            None => self.make(order).await?,
        };
        self.link(&name).establish(order).await?;
        self.keep.add(&name, &order.id);
        Ok(self.handle(&name))
    }

    async fn stop(&self, handle: &Handle, _grace: Duration) -> Result<(), ProviderError> {
        let Some(name) = self.name_of(handle).await? else { return Ok(()) };
        self.keep.remove(&name);
        self.link(&name).reset().await;
        self.service.stop(&name).await
    }

    async fn pause(&self, handle: &Handle) -> Result<(), ProviderError> {
        let name = self.known(handle).await?;
        self.keep.remove(&name);
        self.service.pause(&name).await
    }

    async fn resume(&self, handle: &Handle) -> Result<(), ProviderError> {
        let name = self.known(handle).await?;
        let found = self.service.get(&name).await?.ok_or_else(|| ProviderError::NotFound(handle.clone()))?;
        self.service.start(&name).await?;
        self.keep.add(&name, &found.id);
        Ok(())
    }

    async fn destroy(&self, handle: &Handle) -> Result<(), ProviderError> {
        let Some(name) = self.name_of(handle).await? else { return Ok(()) };
        self.keep.remove(&name);
        self.forget(&name);
        self.service.destroy(&name).await
    }

    async fn resize(&self, handle: &Handle, limits: &Limits) -> Result<(), ProviderError> {
        self.service.resize(&self.known(handle).await?, limits).await
    }

    async fn set_network(&self, handle: &Handle, network: &Network) -> Result<(), ProviderError> {
        self.service.set_network(&self.known(handle).await?, network).await
    }

    async fn usage(&self, handle: &Handle) -> Result<Usage, ProviderError> {
        self.service.usage(&self.known(handle).await?).await
    }

    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        let found = self.service.list(None).await?;
        // A server that came back gives time to what runs.
        for one in found.iter().filter(|one| one.state == Seen::Running) {
            self.keep.add(&one.name, &one.id);
        }
        Ok(found.into_iter().map(|found| self.sighting(found)).collect())
    }

    async fn sighting(&self, handle: &Handle) -> Result<Option<Sighting>, ProviderError> {
        let Some(name) = self.name_of(handle).await? else { return Ok(None) };
        Ok(self.service.get(&name).await?.map(|found| self.sighting(found)))
    }

    async fn departure(&self) -> Departure {
        loop {
            if let Some(departure) = self.keep.told() {
                return departure;
            }
            self.keep.wait().await;
            self.keep.look(&*self.service).await;
            self.look_inside().await;
            self.keep.renew(&*self.service).await;
        }
    }

    fn guest(&self, handle: &Handle) -> Guest {
        let prefix = self.service.kind().name;
        if let Some(name) = handle.as_str().strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':')) {
            return Guest::new(self.link(name));
        }
        // Of a launch that was never noted: the service is asked when somebody wants it.
        let (service, handle) = (Arc::clone(&self.service), handle.clone());
        let (secret, bringing) = (self.secret.clone(), self.bringing);
        Guest::new(Arc::new(Unnoted(move || {
            let (service, handle, secret) = (Arc::clone(&service), handle.clone(), secret.clone());
            async move {
                let unreachable = |reason: String| GuestError::Unreachable(reason);
                let id: SandboxId = handle.as_str().parse().map_err(|_| unreachable("no such sandbox".into()))?;
                let found = service.list(Some(&id)).await.map_err(|error| unreachable(error.to_string()))?;
                let found = found.into_iter().find(|found| found.id == id);
                let name = found.ok_or_else(|| unreachable("no such sandbox".into()))?.name;
                let token = super::words::proof(&secret, &name);
                Ok::<_, GuestError>(Arc::new(super::link::Link::new(service, name, token, bringing)))
            }
        })))
    }

    async fn export(&self, _handle: &Handle, _to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported(super::NO_ARCHIVE.into()))
    }

    async fn import(
        &self,
        _order: &Order,
        _from: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<Handle, ProviderError> {
        Err(ProviderError::Unsupported(super::NO_ARCHIVE.into()))
    }
}
