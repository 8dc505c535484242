//! Sandboxes of Vercel, or of whatever speaks its API: another server of ours, for one.
//!
//! A sandbox is a name in a project, and ours is made of our id: making it twice is making it once. While it runs it has a
//! *session*, and commands, files and ports are the session's ([`session`]); a stop ends the session and keeps the files,
//! a start begins another. Ports are named when it is made, so the tunnel's is the one that it has.

mod session;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, StatusCode};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::kind::{Count, Opening};
use super::remote::client::{Again, bearer};
use super::remote::words::addresses;
use super::remote::{
    Bringing, Client, Found, GUEST, Input, LABEL, LEASE, LEASE_DEFAULT, NO_ARCHIVE, NO_LAYERS, NO_MANIFEST, NO_RESIZE,
    NO_VOLUMES, PORT, Remote, Run, Running, Service, Trouble, Way,
};
use super::{
    Can, Capabilities, Isolation, Kind, Limit, Network, Order, Provider, ProviderError, SandboxId, Seen, Supply,
};
use crate::Error;
use crate::config::key::{Kind as Word, NEUTRAL_KEY, NEUTRAL_URL, SectionKey};

pub static KIND: Kind = Kind {
    name: "vercel",
    keys: &[
        SectionKey::secret(API_KEY).neutral(NEUTRAL_KEY).others(&["VERCEL_TOKEN"]),
        SectionKey::address(URL).neutral(NEUTRAL_URL),
        SectionKey::new(TEAM, Word::Text).others(&["VERCEL_TEAM_ID"]),
        SectionKey::new(PROJECT, Word::Text).others(&["VERCEL_PROJECT_ID"]),
        SectionKey::new(IMAGE, Word::Text),
        SectionKey::new(RUNTIME, Word::Text),
        GUEST,
        LEASE,
    ],
    count: Count::Any,
    open,
};

const API_KEY: &str = "api_key";
const URL: &str = "url";
const URL_DEFAULT: &str = "https://vercel.com/api";
const TEAM: &str = "team";
const PROJECT: &str = "project";
/// What a sandbox starts from whose order names nothing; the service's own default where both are absent.
const IMAGE: &str = "image";
/// As older versions name it: `node22`, `python3.13`.
const RUNTIME: &str = "runtime";

/// Before our id, in a sandbox's name.
const PREFIX: &str = "cove-";

/// How long a stop may take: it ends with a snapshot.
const WITHIN: Duration = Duration::from_secs(300);
const LOOK: Duration = Duration::from_millis(500);

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Provider>, Error> {
    let section = opening.section;
    let needs = |key: &str, what: &str, variable: &str| {
        let field = format!("providers.{}.{key}", opening.name);
        section
            .text(key)
            .ok_or_else(|| Error::invalid(field, format!("needs {what}, or {variable} in the environment")))
    };
    let key = needs(API_KEY, "a token of a Vercel account", "VERCEL_TOKEN")?;
    let team = needs(TEAM, "the id of a team", "VERCEL_TEAM_ID")?;
    let project = needs(PROJECT, "the id of a project", "VERCEL_PROJECT_ID")?;
    let service = Vercel {
        client: Client::open(opening, section.text(URL).unwrap_or(URL_DEFAULT), bearer(key)?)?,
        team: team.to_owned(),
        project: project.to_owned(),
        image: section.text(IMAGE).map(str::to_owned),
        runtime: section.text(RUNTIME).map(str::to_owned),
        lease: Duration::from_secs(section.integer(LEASE.name).unwrap_or(LEASE_DEFAULT).max(60)),
        sessions: Mutex::default(),
    };
    let bringing = if section.switch(GUEST.name).unwrap_or(true) { Bringing::Wanted } else { Bringing::Unwanted };
    Ok(Arc::new(Remote::new(opening.name, Arc::new(service), bringing, key.to_owned())))
}

pub struct Vercel {
    client: Client,
    team: String,
    project: String,
    image: Option<String>,
    runtime: Option<String>,
    lease: Duration,
    /// The session of each sandbox, by its name.
    sessions: Mutex<HashMap<String, String>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sandbox {
    name: String,
    status: String,
    current_session_id: String,
    #[serde(default)]
    tags: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Whole {
    sandbox: Sandbox,
    #[serde(default)]
    routes: Vec<Route>,
}

#[derive(Debug, Deserialize)]
struct Route {
    url: String,
    port: u16,
}

impl Sandbox {
    /// `None` where it is not one of ours.
    fn found(&self) -> Option<Found> {
        let id = self.tags.get(LABEL)?.parse().ok()?;
        Some(Found { id, name: self.name.clone(), state: self.seen() })
    }

    fn seen(&self) -> Seen {
        match self.status.as_str() {
            "pending" | "running" => Seen::Running,
            _ => Seen::Stopped,
        }
    }

    fn is_settled(&self) -> bool {
        !matches!(self.status.as_str(), "pending" | "stopping" | "snapshotting")
    }
}

impl Vercel {
    /// A request with what every call says.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, &self.with_team(path))
    }

    fn with_team(&self, path: &str) -> String {
        let mark = if path.contains('?') { '&' } else { '?' };
        format!("{path}{mark}teamId={}", utf8_percent_encode(&self.team, NON_ALPHANUMERIC))
    }

    fn path(&self, name: &str) -> String {
        let project = utf8_percent_encode(&self.project, NON_ALPHANUMERIC);
        format!("/v2/sandboxes/{}?projectId={project}", utf8_percent_encode(name, NON_ALPHANUMERIC))
    }

    fn note(&self, sandbox: &Sandbox) {
        let (name, session) = (sandbox.name.clone(), sandbox.current_session_id.clone());
        self.sessions.lock().expect("no panic while held").insert(name, session);
    }

    async fn ask(&self, name: &str, resume: &str) -> Result<Option<Whole>, Trouble> {
        let path = format!("{}{resume}", self.path(name));
        match self.client.json::<Whole>(Again::Always, || self.request(Method::GET, &path)).await {
            Ok(whole) => {
                self.note(&whole.sandbox);
                Ok(Some(whole))
            }
            Err(trouble) if trouble.is(StatusCode::NOT_FOUND) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The session of a sandbox that runs.
    async fn session(&self, name: &str) -> Result<String, Trouble> {
        let known = self.sessions.lock().expect("no panic while held").get(name).cloned();
        if let Some(session) = known {
            return Ok(session);
        }
        match self.ask(name, "").await? {
            Some(whole) => Ok(whole.sandbox.current_session_id),
            None => Err(Trouble::Refused {
                status: StatusCode::NOT_FOUND,
                message: format!("vercel has no sandbox {name}"),
            }),
        }
    }

    /// Waits until a change has come to its end.
    async fn settled(&self, name: &str) -> Result<Option<Whole>, ProviderError> {
        let begun = Instant::now();
        loop {
            match self.ask(name, "").await? {
                Some(whole) if !whole.sandbox.is_settled() && begun.elapsed() < WITHIN => {
                    tokio::time::sleep(LOOK).await;
                }
                Some(whole) if !whole.sandbox.is_settled() => {
                    let status = &whole.sandbox.status;
                    return Err(ProviderError::Exhausted(format!("sandbox {name} is still {status} at vercel")));
                }
                settled => return Ok(settled),
            }
        }
    }

    /// Calls the session of a sandbox.
    async fn act(&self, name: &str, verb: &str, body: &Value) -> Result<(), Trouble> {
        let path = format!("/v2/sandboxes/sessions/{}/{verb}", self.session(name).await?);
        self.client.done(Again::IfUndone, || self.request(Method::POST, &path).json(body)).await
    }

    fn milliseconds(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A network as Vercel takes it.
fn rules(network: &Network) -> Result<Value, ProviderError> {
    let addresses = addresses(KIND.name, network)?;
    if !addresses.resolvers.is_empty() {
        return Err(ProviderError::Refused("network.resolvers: vercel has its own".into()));
    }
    Ok(match (addresses.open, addresses.allow.is_empty(), addresses.deny.is_empty()) {
        (true, true, true) => json!({"mode": "allow-all"}),
        (false, true, _) => json!({"mode": "deny-all"}),
        // Every name, and of addresses all but those.
        (true, ..) => json!({"allow": ["*"], "subnets": {"allow": addresses.allow, "deny": addresses.deny}}),
        (false, ..) => json!({"allow": [], "subnets": {"allow": addresses.allow}}),
    })
}

#[async_trait]
impl Service for Vercel {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: Isolation::Microvm,
            pause: Can::not("Vercel keeps files and no memory; a stop keeps the files"),
            resize: Can::not(NO_RESIZE),
            persistent: Can::Yes,
            network_policy: Can::Yes,
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

    /// Memory follows from the processors, which are whole.
    fn unheld(&self) -> &'static [Limit] {
        &[Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk]
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        let project = utf8_percent_encode(&self.project, NON_ALPHANUMERIC);
        let path = format!("/v2/sandboxes?project={project}&limit=1");
        Ok(self.client.done(Again::Never, || self.request(Method::GET, &path)).await?)
    }

    async fn create(&self, order: &Order) -> Result<String, ProviderError> {
        let name = format!("{PREFIX}{}", order.id);
        let mut body = json!({
            "projectId": self.project,
            "name": name,
            "ports": [PORT],
            "timeout": self.milliseconds(),
            "persistent": true,
            "tags": {LABEL: order.id},
            "networkPolicy": rules(&order.network)?,
        });
        let runtime = self.runtime.as_ref().filter(|_| order.image.reference.is_none());
        let path = match (runtime, order.image.reference.as_ref().or(self.image.as_ref())) {
            (Some(runtime), _) => {
                body["runtime"] = json!(runtime);
                "/v2/sandboxes"
            }
            (None, image) => {
                if let Some(image) = image {
                    body["image"] = json!(image);
                }
                "/v3/sandboxes"
            }
        };
        let made = self.client.json::<Whole>(Again::IfUndone, || self.request(Method::POST, path).json(&body)).await;
        match made {
            Ok(whole) => self.note(&whole.sandbox),
            // An earlier attempt was heard after all.
            Err(trouble) if trouble.is(StatusCode::CONFLICT) => {
                self.ask(&name, "&resume=true").await?;
            }
            Err(trouble) => return Err(trouble.into()),
        }
        match self.settled(&name).await? {
            Some(whole) if whole.sandbox.status == "running" => Ok(name),
            Some(whole) => {
                Err(ProviderError::Exhausted(format!("sandbox {name} is {} at vercel", whole.sandbox.status)))
            }
            None => Err(ProviderError::Exhausted(format!("sandbox {name} is gone from vercel"))),
        }
    }

    async fn list(&self, of: Option<&SandboxId>) -> Result<Vec<Found>, ProviderError> {
        #[derive(Deserialize)]
        struct Page {
            sandboxes: Vec<Sandbox>,
            pagination: Pagination,
        }
        #[derive(Deserialize)]
        struct Pagination {
            next: Option<String>,
        }
        // A name is all that one of ours needs to be found by.
        if let Some(id) = of {
            let whole = self.ask(&format!("{PREFIX}{id}"), "").await?;
            return Ok(whole.and_then(|whole| whole.sandbox.found()).into_iter().collect());
        }
        let project = utf8_percent_encode(&self.project, NON_ALPHANUMERIC);
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v2/sandboxes?project={project}&limit=50&sortBy=name&namePrefix={PREFIX}{cursor}");
            let page: Page = self.client.json(Again::Always, || self.request(Method::GET, &path)).await?;
            page.sandboxes.iter().for_each(|sandbox| self.note(sandbox));
            found.extend(page.sandboxes.iter().filter_map(Sandbox::found));
            match page.pagination.next.filter(|next| !next.is_empty() && !page.sandboxes.is_empty()) {
                Some(next) => cursor = format!("&cursor={}", utf8_percent_encode(&next, NON_ALPHANUMERIC)),
                None => return Ok(found),
            }
        }
    }

    async fn get(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        Ok(self.ask(name, "").await?.and_then(|whole| whole.sandbox.found()))
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        self.settled(name).await?;
        self.ask(name, "&resume=true").await?;
        match self.settled(name).await? {
            Some(whole) if whole.sandbox.status == "running" => Ok(()),
            _ => Err(ProviderError::Exhausted(format!("sandbox {name} does not run at vercel"))),
        }
    }

    async fn stop(&self, name: &str) -> Result<(), ProviderError> {
        let Some(whole) = self.settled(name).await? else { return Ok(()) };
        if whole.sandbox.seen() == Seen::Stopped {
            return Ok(());
        }
        match self.act(name, "stop", &json!({})).await {
            Err(trouble) if trouble.is_gone() => {}
            done => done?,
        }
        self.sessions.lock().expect("no panic while held").remove(name);
        self.settled(name).await.map(drop)
    }

    async fn pause(&self, _name: &str) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("vercel keeps no memory".into()))
    }

    async fn destroy(&self, name: &str) -> Result<(), ProviderError> {
        let path = format!("{}&deleteOrphanSnapshots=true", self.path(name));
        let done = self.client.done(Again::Always, || self.request(Method::DELETE, &path)).await;
        self.sessions.lock().expect("no panic while held").remove(name);
        match done {
            Err(trouble) if trouble.is_gone() => Ok(()),
            done => Ok(done?),
        }
    }

    /// Time is added here, and not set: a third of it, as often as a third is over.
    async fn renew(&self, name: &str) -> Result<(), ProviderError> {
        Ok(self.act(name, "extend-timeout", &json!({"duration": self.milliseconds() / 3})).await?)
    }

    async fn set_network(&self, name: &str, network: &Network) -> Result<(), ProviderError> {
        Ok(self.act(name, "network-policy", &rules(network)?).await?)
    }

    async fn way(&self, name: &str, port: u16) -> Result<Option<Way>, ProviderError> {
        let Some(whole) = self.ask(name, "").await? else {
            return Err(ProviderError::Refused(format!("vercel has no sandbox {name}")));
        };
        let route = whole.routes.into_iter().find(|route| route.port == port);
        Ok(route.map(|route| Way { url: route.url, headers: HeaderMap::new() }))
    }

    fn http(&self) -> &reqwest::Client {
        self.client.http()
    }

    async fn run(&self, name: &str, run: &Run) -> Result<Running, Trouble> {
        self.run_in_session(name, run).await
    }

    async fn input(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble> {
        self.say(name, process, input).await
    }

    async fn signal(&self, name: &str, process: &str, signal: i32) -> Result<(), Trouble> {
        self.act(name, &format!("cmd/{process}/kill"), &json!({"signal": signal})).await
    }

    async fn read(&self, name: &str, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        self.download(name, path).await
    }

    async fn write(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble> {
        self.upload(name, path, content).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_a_mode_or_subnets() {
        use crate::sandbox::NetworkPolicy;
        let rules = |policy: NetworkPolicy| rules(&policy.to_network().unwrap()).unwrap();
        assert_eq!(rules(NetworkPolicy::open()), json!({"mode": "allow-all"}));
        assert_eq!(rules(NetworkPolicy::closed()), json!({"mode": "deny-all"}));
        let some = NetworkPolicy { allow: vec!["1.2.3.4".into()], ..NetworkPolicy::closed() };
        assert_eq!(rules(some), json!({"allow": [], "subnets": {"allow": ["1.2.3.4"]}}));
        let denied = NetworkPolicy { deny: vec!["10.0.0.0/8".into()], ..NetworkPolicy::open() };
        assert_eq!(rules(denied)["subnets"]["deny"], json!(["10.0.0.0/8"]));
    }

    #[test]
    fn only_what_carries_our_tag_is_ours() {
        let sandbox = |tags: Value| -> Sandbox {
            serde_json::from_value(json!({"name": "n", "status": "stopping", "currentSessionId": "s", "tags": tags}))
                .unwrap()
        };
        assert_eq!(sandbox(json!({LABEL: "a".repeat(20)})).found().unwrap().state, Seen::Stopped);
        assert_eq!(sandbox(json!({"other": "x"})).found(), None);
    }
}
