//! scratch: a server on the engine, before the real one is there. Not committed.
use async_trait::async_trait;
use cove_control::guest::{Connect, Guest, GuestError, Pipe};
use cove_control::provider::*;
use cove_engine::Engine;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

struct Local {
    engine: Arc<Engine>,
    departures: Arc<Mutex<std::sync::mpsc::Receiver<(SandboxId, Ended)>>>,
}
struct Sock(PathBuf);
#[async_trait]
impl Connect for Sock {
    async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
        let s = tokio::net::UnixStream::connect(&self.0).await.map_err(|e| GuestError::Unreachable(e.to_string()))?;
        Ok(Box::new(s))
    }
}
fn bad(e: impl std::fmt::Display) -> ProviderError {
    ProviderError::Failed(e.to_string())
}
#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            pause: true,
            resize: true,
            persistent: true,
            network_policy: true,
            isolation: Isolation::Namespaces,
        }
    }
    async fn launch(&self, spec: &Spec) -> Result<(), ProviderError> {
        let (e, s) = (self.engine.clone(), spec.clone());
        tokio::task::spawn_blocking(move || e.launch(&s).map(|_| ()).map_err(bad)).await.unwrap()
    }
    async fn stop(&self, id: &SandboxId, grace: Duration) -> Result<(), ProviderError> {
        let (e, s) = (self.engine.clone(), id.clone());
        tokio::task::spawn_blocking(move || e.stop(&s, grace).map_err(bad)).await.unwrap()
    }
    async fn pause(&self, _id: &SandboxId) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("no".into()))
    }
    async fn resume(&self, _id: &SandboxId) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("no".into()))
    }
    async fn destroy(&self, id: &SandboxId) -> Result<(), ProviderError> {
        let (e, s) = (self.engine.clone(), id.clone());
        tokio::task::spawn_blocking(move || e.destroy(&s).map_err(bad)).await.unwrap()
    }
    async fn resize(&self, _: &SandboxId, _: &Limits) -> Result<(), ProviderError> {
        Ok(())
    }
    async fn set_network(&self, _: &SandboxId, _: &Network) -> Result<(), ProviderError> {
        Ok(())
    }
    async fn usage(&self, _: &SandboxId) -> Result<Usage, ProviderError> {
        Ok(Usage { memory: 1, ..Usage::default() })
    }
    async fn sightings(&self) -> Result<Vec<Sighting>, ProviderError> {
        Ok(vec![])
    }
    async fn departure(&self) -> Departure {
        let r = self.departures.clone();
        match tokio::task::spawn_blocking(move || r.lock().unwrap().recv()).await.unwrap() {
            Ok((id, ended)) => Departure { id, ended },
            Err(_) => std::future::pending().await,
        }
    }
    fn guest(&self, id: &SandboxId) -> Guest {
        Guest::new(Arc::new(Sock(self.engine.socket(id))))
    }
    async fn export(
        &self,
        _: &SandboxId,
        _: &mut (dyn tokio::io::AsyncWrite + Send + Unpin),
    ) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("no".into()))
    }
    async fn import(&self, _: &Spec, _: &mut (dyn tokio::io::AsyncRead + Send + Unpin)) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("no".into()))
    }
}
fn main() {
    if std::env::args().nth(1).as_deref() == Some("__cove-spawner") {
        cove_engine::spawner_main();
    }
    let args: Vec<String> = std::env::args().collect();
    let get = |n: &str| args.iter().position(|a| a == n).map(|i| args[i + 1].clone());
    let data = PathBuf::from(get("--data").unwrap());
    let listen = get("--listen").unwrap();
    std::fs::create_dir_all(&data).unwrap();
    let engine = Arc::new(
        Engine::open(cove_engine::Config {
            data: data.join("engine"),
            spawning: cove_engine::Spawning::Processes {
                count: std::num::NonZeroUsize::new(2).unwrap(),
                program: std::env::current_exe().unwrap(),
            },
            pool: 4,
        })
        .unwrap(),
    );
    let departures = engine.departures().unwrap();
    let provider = Arc::new(Local { engine, departures: Arc::new(Mutex::new(departures)) });
    tokio::runtime::Runtime::new().unwrap().block_on(async move {
        let store = cove_control::store::Store::sqlite(&data.join("cove.db")).await.unwrap();
        let config = cove_control::config::Config { listen: listen.clone(), data, ..Default::default() };
        let app =
            cove_control::App::open(config, store, vec![provider], cove_control::clock::Clock::system()).await.unwrap();
        let listener = tokio::net::TcpListener::bind(&listen).await.unwrap();
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).unwrap();
        cove_control::serve::run(listener, app, async move {
            term.recv().await;
        })
        .await
        .unwrap();
    });
}
