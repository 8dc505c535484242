//! The network of sandboxes whose containers are on this machine: our engine's proxy.
//!
//! Such a container has no network of Docker's, only a loopback device. When it has started, its namespace is set up as one
//! of our own engine's: everything that leaves it ends at the proxy, which judges by the rules. Nobody inside has the right
//! to change that. A step that fails ends the start. The proxy is this process's: after a restart of the server it is
//! attached again to what runs.

use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError};

use cove_engine::network::namespace;
use cove_engine::network::{Counters, Proxy};
use cove_protocol::SandboxId;

use super::process::Process;
use crate::provider::{Network, ProviderError};

#[derive(Default)]
pub struct Gate {
    /// Started with the first sandbox that has a network.
    proxy: Arc<Mutex<Option<Arc<Proxy>>>>,
}

impl Gate {
    /// After each start of a container, before anything runs in it.
    pub async fn adopt(&self, id: &SandboxId, process: Process) -> Result<(), ProviderError> {
        on_a_thread(id, move || {
            let network = process.network().map_err(|error| format!("open its network: {error}"))?;
            namespace::adopt(network.as_fd()).map_err(|error| error.to_string())
        })
        .await
    }

    /// What it reaches from now on; connections that are no longer allowed end.
    pub async fn set(&self, id: &SandboxId, process: Process, network: &Network) -> Result<(), ProviderError> {
        let (sandbox, wanted, proxy) = (id.clone(), network.clone(), Arc::clone(&self.proxy));
        on_a_thread(id, move || {
            let egress = match wanted {
                Network::Full(egress) => egress,
                Network::None => {
                    if let Some(proxy) = running(&proxy) {
                        proxy.detach(&sandbox);
                    }
                    return Ok(());
                }
            };
            let proxy = started(&proxy)?;
            if proxy.counters(&sandbox).is_some() {
                return proxy.update(&sandbox, &egress).map_err(|error| error.to_string());
            }
            let network = process.network().map_err(|error| format!("open its network: {error}"))?;
            proxy.attach(&sandbox, network.as_fd(), &egress).map_err(|error| error.to_string())
        })
        .await
    }

    /// After its end.
    pub async fn leave(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let (sandbox, Some(proxy)) = (id.clone(), running(&self.proxy)) else { return Ok(()) };
        on_a_thread(id, move || {
            proxy.detach(&sandbox);
            Ok(())
        })
        .await
    }

    /// What its network has done since it was attached.
    pub fn counters(&self, id: &SandboxId) -> Option<Counters> {
        running(&self.proxy)?.counters(id)
    }
}

fn running(proxy: &Mutex<Option<Arc<Proxy>>>) -> Option<Arc<Proxy>> {
    proxy.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn started(proxy: &Mutex<Option<Arc<Proxy>>>) -> Result<Arc<Proxy>, String> {
    let mut proxy = proxy.lock().unwrap_or_else(PoisonError::into_inner);
    match &*proxy {
        Some(proxy) => Ok(Arc::clone(proxy)),
        None => {
            let new = Arc::new(Proxy::start().map_err(|error| error.to_string())?);
            Ok(Arc::clone(proxy.insert(new)))
        }
    }
}

/// Threads of the proxy and of namespaces are waited for.
async fn on_a_thread(
    id: &SandboxId,
    act: impl FnOnce() -> Result<(), String> + Send + 'static,
) -> Result<(), ProviderError> {
    let failed = |error: String| ProviderError::Failed(format!("the network of sandbox {id}: {error}"));
    match tokio::task::spawn_blocking(act).await {
        Ok(done) => done.map_err(failed),
        Err(error) => Err(failed(error.to_string())),
    }
}
