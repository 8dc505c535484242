//! Sandboxes of CodeSandbox, as far as its public REST interface goes.
//!
//! A sandbox is a fork of a template, and starting its machine says where the daemon inside is ([`agent`]). Lists say which
//! sandboxes there are, and another list which machines run; whether one that does not run kept its memory nobody says, so a
//! stop hibernates it, which keeps all files, and there is no pause beside it. Ports are reached by browsers alone, so our
//! guest is not brought in: commands and files go by the service's own calls.

mod agent;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use reqwest::Method;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::kind::{Count, Opening};
use super::remote::client::{Again, bearer};
use super::remote::{
    Bringing, Client, Found, Input, LEASE, LEASE_DEFAULT, NO_ARCHIVE, NO_LAYERS, NO_MANIFEST, NO_RESIZE, NO_VOLUMES,
    Remote, Run, Running, Service, Trouble, Way,
};
use super::{
    Can, Capabilities, Isolation, Kind, Limit, Network, Order, Provider, ProviderError, SandboxId, Seen, Supply,
};
use crate::Error;
use crate::config::key::{Kind as Word, NEUTRAL_KEY, NEUTRAL_URL, SectionKey};

pub static KIND: Kind = Kind {
    name: "codesandbox",
    keys: &[
        SectionKey::secret(API_KEY).neutral(NEUTRAL_KEY).others(&["CSB_API_KEY"]),
        SectionKey::address(URL).neutral(NEUTRAL_URL).others(&["CSB_BASE_URL"]),
        SectionKey::new(TEMPLATE, Word::Text),
        LEASE,
    ],
    count: Count::Any,
    open,
};

const API_KEY: &str = "api_key";
const URL: &str = "url";
const URL_DEFAULT: &str = "https://api.codesandbox.io";
/// What a sandbox starts from whose order names nothing.
const TEMPLATE: &str = "template";
/// The service's universal template.
const TEMPLATE_DEFAULT: &str = "pcz35m";

/// The tag of all of ours, and the beginning of the one that says which.
const OURS: &str = "cove";
const PREFIX: &str = "cove-";

/// Privacy: for the workspace alone, previews too.
const PRIVATE: u32 = 2;

/// The longest that the service keeps a machine running unasked.
const LONGEST_LEASE: u64 = 86_400;

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Provider>, Error> {
    let section = opening.section;
    let key = section.text(API_KEY).ok_or_else(|| {
        let field = format!("providers.{}.{API_KEY}", opening.name);
        Error::invalid(field, "needs a key of a CodeSandbox workspace, or CSB_API_KEY in the environment")
    })?;
    let service = CodeSandbox {
        client: Client::open(opening, section.text(URL).unwrap_or(URL_DEFAULT), bearer(key)?)?,
        template: section.text(TEMPLATE).unwrap_or(TEMPLATE_DEFAULT).to_owned(),
        lease: Duration::from_secs(section.integer(LEASE.name).unwrap_or(LEASE_DEFAULT).clamp(60, LONGEST_LEASE)),
        machines: Mutex::default(),
    };
    Ok(Arc::new(Remote::new(opening.name, Arc::new(service), Bringing::Wanted, key.to_owned())))
}

pub struct CodeSandbox {
    client: Client,
    template: String,
    lease: Duration,
    /// Where the daemon of each running machine is.
    machines: Mutex<HashMap<String, Machine>>,
}

/// Where the daemon of a machine is, and what opens it.
#[derive(Debug, Clone, Deserialize)]
struct Machine {
    #[serde(default)]
    pint_url: Option<String>,
    #[serde(default)]
    pint_token: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Listed {
    id: String,
    #[serde(default)]
    tags: Vec<String>,
}

impl Listed {
    /// `None` where it is not one of ours.
    fn ours(&self) -> Option<SandboxId> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(PREFIX)?.parse().ok())
    }
}

/// The service wraps what it says.
#[derive(Deserialize)]
struct Wrapped<T> {
    data: Option<T>,
}

impl CodeSandbox {
    async fn ask<T: DeserializeOwned>(
        &self,
        again: Again,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<T, Trouble> {
        let make = || {
            let request = self.client.request(method.clone(), path);
            match body {
                Some(body) => request.json(body),
                None => request,
            }
        };
        let wrapped: Wrapped<T> = self.client.json(again, make).await?;
        wrapped.data.ok_or_else(|| Trouble::Garbled(format!("codesandbox answered {path} without data")))
    }

    /// The machines that run.
    async fn running(&self) -> Result<HashSet<String>, Trouble> {
        #[derive(Deserialize)]
        struct Machines {
            vms: Vec<Running>,
        }
        #[derive(Deserialize)]
        struct Running {
            id: String,
        }
        let machines: Machines = self.ask(Again::Always, Method::GET, "/vm/running", None).await?;
        Ok(machines.vms.into_iter().map(|machine| machine.id).collect())
    }

    /// Starts the machine, or finds the one that runs, and says where its daemon is.
    async fn machine(&self, name: &str) -> Result<Machine, Trouble> {
        let known = self.machines.lock().expect("no panic while held").get(name).cloned();
        match known {
            Some(machine) => Ok(machine),
            None => self.boot(name).await,
        }
    }

    async fn boot(&self, name: &str) -> Result<Machine, Trouble> {
        let body = json!({
            "hibernation_timeout_seconds": self.lease.as_secs(),
            // Nobody wakes it but us.
            "automatic_wakeup_config": {"http": false, "websocket": false},
        });
        let path = format!("/vm/{name}/start");
        let machine: Machine = self.ask(Again::Always, Method::POST, &path, Some(&body)).await?;
        self.machines.lock().expect("no panic while held").insert(name.to_owned(), machine.clone());
        Ok(machine)
    }

    fn forget(&self, name: &str) {
        self.machines.lock().expect("no panic while held").remove(name);
    }
}

#[async_trait]
impl Service for CodeSandbox {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: Isolation::Microvm,
            pause: Can::not("CodeSandbox does not say whether one that sleeps kept its memory; a stop hibernates it"),
            resize: Can::not(NO_RESIZE),
            persistent: Can::Yes,
            network_policy: Can::not("CodeSandbox has no rules for what leaves a sandbox; open its network"),
            archive: Can::not(NO_ARCHIVE),
            snapshot: Can::not(NO_LAYERS),
            fork: Can::not(NO_LAYERS),
            volumes: Can::not(NO_VOLUMES),
            manifest: Can::not(NO_MANIFEST),
        }
    }

    fn supply(&self) -> Supply {
        Supply::Templates
    }

    fn unheld(&self) -> &'static [Limit] {
        &[Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk]
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        Ok(self.client.done(Again::Never, || self.client.request(Method::GET, "/meta/info")).await?)
    }

    async fn create(&self, order: &Order) -> Result<String, ProviderError> {
        #[derive(Deserialize)]
        struct Forked {
            id: String,
        }
        if order.network != Network::Full(Default::default()) {
            return Err(ProviderError::Unsupported("codesandbox has no rules for what leaves a sandbox".into()));
        }
        let template = order.image.reference.as_deref().unwrap_or(&self.template);
        let body = json!({
            "title": order.hostname,
            "tags": ["sdk", OURS, format!("{PREFIX}{}", order.id)],
            "privacy": PRIVATE,
            "private_preview": true,
            "path": "/Cove",
        });
        let path = format!("/sandbox/{template}/fork");
        let forked: Forked = self.ask(Again::IfUndone, Method::POST, &path, Some(&body)).await?;
        self.boot(&forked.id).await?;
        Ok(forked.id)
    }

    async fn list(&self, of: Option<&SandboxId>) -> Result<Vec<Found>, ProviderError> {
        #[derive(Deserialize)]
        struct Page {
            sandboxes: Vec<Listed>,
            pagination: Pagination,
        }
        #[derive(Deserialize)]
        struct Pagination {
            next_page: Option<u32>,
        }
        let tag = of.map_or_else(|| OURS.to_owned(), |id| format!("{PREFIX}{id}"));
        let running = self.running().await?;
        let (mut found, mut page) = (Vec::new(), Some(1));
        while let Some(number) = page {
            let path = format!("/sandbox?tags={tag}&page_size=50&page={number}");
            let listed: Page = self.ask(Again::Always, Method::GET, &path, None).await?;
            for one in &listed.sandboxes {
                if let Some(id) = one.ours() {
                    let state = if running.contains(&one.id) { Seen::Running } else { Seen::Stopped };
                    found.push(Found { id, name: one.id.clone(), state });
                }
            }
            page = listed.pagination.next_page.filter(|_| !listed.sandboxes.is_empty());
        }
        Ok(found)
    }

    async fn get(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        let path = format!("/sandbox/{name}");
        let listed = match self.ask::<Listed>(Again::Always, Method::GET, &path, None).await {
            Err(trouble) if trouble.is_gone() => return Ok(None),
            listed => listed?,
        };
        let Some(id) = listed.ours() else { return Ok(None) };
        let state = if self.running().await?.contains(name) { Seen::Running } else { Seen::Stopped };
        Ok(Some(Found { id, name: name.to_owned(), state }))
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        self.boot(name).await?;
        Ok(())
    }

    async fn stop(&self, name: &str) -> Result<(), ProviderError> {
        self.forget(name);
        let path = format!("/vm/{name}/hibernate");
        let done = self.client.done(Again::Always, || self.client.request(Method::POST, &path).json(&json!({}))).await;
        let Err(trouble) = done else { return Ok(()) };
        // One that does not run is where it shall be.
        let refused = matches!(trouble, Trouble::Refused { .. });
        if trouble.is_gone() || refused && !self.running().await?.contains(name) {
            return Ok(());
        }
        Err(trouble.into())
    }

    async fn pause(&self, _name: &str) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("codesandbox has one way to put a sandbox away, which is its stop".into()))
    }

    async fn destroy(&self, name: &str) -> Result<(), ProviderError> {
        self.forget(name);
        let path = format!("/vm/{name}");
        match self.client.done(Again::Always, || self.client.request(Method::DELETE, &path)).await {
            Err(trouble) if trouble.is_gone() => Ok(()),
            done => Ok(done?),
        }
    }

    async fn renew(&self, name: &str) -> Result<(), ProviderError> {
        let path = format!("/vm/{name}/hibernation_timeout");
        let body = json!({"hibernation_timeout_seconds": self.lease.as_secs()});
        Ok(self.client.done(Again::Always, || self.client.request(Method::PUT, &path).json(&body)).await?)
    }

    async fn set_network(&self, _name: &str, _network: &Network) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("codesandbox has no rules for what leaves a sandbox".into()))
    }

    async fn way(&self, _name: &str, _port: u16) -> Result<Option<Way>, ProviderError> {
        Ok(None)
    }

    fn http(&self) -> &reqwest::Client {
        self.client.http()
    }

    async fn run(&self, name: &str, run: &Run) -> Result<Running, Trouble> {
        self.agent(name).await?.run(run).await
    }

    async fn input(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble> {
        self.agent(name).await?.input(process, input).await
    }

    async fn signal(&self, name: &str, process: &str, signal: i32) -> Result<(), Trouble> {
        self.agent(name).await?.signal(process, signal).await
    }

    async fn read(&self, name: &str, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        self.agent(name).await?.read(path).await
    }

    async fn write(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble> {
        self.agent(name).await?.write(path, content).await
    }
}
