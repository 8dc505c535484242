//! Sandboxes of E2B, or of whatever speaks its API: another server of ours, for one.
//!
//! The control plane is REST with `X-API-Key`; what runs inside is reached at the daemon of each sandbox, with a token of
//! that sandbox ([`daemon`]). A sandbox that E2B puts away keeps its memory or only its files; the list calls both
//! `paused`, so one that is paused is asked for its details.

mod daemon;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::kind::{Count, Opening};
use super::remote::client::{Again, secret};
use super::remote::words::addresses;
use super::remote::{
    Bringing, Client, Found, GUEST, Input, LABEL, LEASE, LEASE_DEFAULT, NO_ARCHIVE, NO_LAYERS, NO_MANIFEST, NO_RESIZE,
    NO_VOLUMES, Remote, Run, Running, Service, Trouble, Way,
};
use super::{
    Can, Capabilities, Isolation, Kind, Limit, Network, Order, Provider, ProviderError, SandboxId, Seen, Supply,
};
use crate::Error;
use crate::config::key::{Kind as Word, NEUTRAL_KEY, NEUTRAL_URL, SectionKey};

pub static KIND: Kind = Kind {
    name: "e2b",
    keys: &[
        SectionKey::secret(API_KEY).neutral(NEUTRAL_KEY).others(&["E2B_API_KEY"]),
        SectionKey::address(URL).neutral(NEUTRAL_URL).others(&["E2B_API_URL"]),
        SectionKey::address(SANDBOX_URL).others(&["E2B_SANDBOX_URL"]),
        SectionKey::new(DOMAIN, Word::Text).others(&["E2B_DOMAIN"]),
        SectionKey::new(TEMPLATE, Word::Text),
        GUEST,
        LEASE,
    ],
    count: Count::Any,
    open,
};

const API_KEY: &str = "api_key";
/// Where the control plane is; `https://api.DOMAIN` where absent.
const URL: &str = "url";
/// One address for what is inside all sandboxes; `https://PORT-ID.DOMAIN` for each where absent.
const SANDBOX_URL: &str = "sandbox_url";
const DOMAIN: &str = "domain";
const DOMAIN_DEFAULT: &str = "e2b.app";
/// What a sandbox starts from whose order names nothing.
const TEMPLATE: &str = "template";
const TEMPLATE_DEFAULT: &str = "base";

/// Details asked for at one time.
const AT_ONCE: usize = 8;

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Provider>, Error> {
    let section = opening.section;
    let key = section.text(API_KEY).ok_or_else(|| {
        let field = format!("providers.{}.{API_KEY}", opening.name);
        Error::invalid(field, "needs the key of an E2B account, or E2B_API_KEY in the environment")
    })?;
    let domain = section.text(DOMAIN).unwrap_or(DOMAIN_DEFAULT).to_owned();
    let url = section.text(URL).map_or_else(|| format!("https://api.{domain}"), str::to_owned);
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-api-key"), secret(key)?)]);
    let service = E2b {
        client: Client::open(opening, &url, headers)?,
        domain,
        sandbox_url: section.text(SANDBOX_URL).map(|url| url.trim_end_matches('/').to_owned()),
        template: section.text(TEMPLATE).unwrap_or(TEMPLATE_DEFAULT).to_owned(),
        lease: Duration::from_secs(section.integer(LEASE.name).unwrap_or(LEASE_DEFAULT).max(15)),
        opened: Mutex::default(),
    };
    let bringing = if section.switch(GUEST.name).unwrap_or(true) { Bringing::Wanted } else { Bringing::Unwanted };
    Ok(Arc::new(Remote::new(opening.name, Arc::new(service), bringing, key.to_owned())))
}

pub struct E2b {
    client: Client,
    domain: String,
    sandbox_url: Option<String>,
    template: String,
    lease: Duration,
    /// What opens each sandbox, by its name.
    opened: Mutex<HashMap<String, Opened>>,
}

/// What opens one sandbox.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Opened {
    #[serde(rename = "sandboxID")]
    name: String,
    envd_access_token: Option<String>,
    traffic_access_token: Option<String>,
    domain: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(rename = "sandboxID")]
    name: String,
    state: String,
    #[serde(default)]
    metadata: Option<BTreeMap<String, String>>,
    #[serde(default)]
    pause_mode: Option<String>,
}

impl Listed {
    /// `None` where it is not one of ours.
    fn found(self) -> Option<Found> {
        let id = self.metadata?.get(LABEL)?.parse().ok()?;
        let state = match (self.state.as_str(), self.pause_mode.as_deref()) {
            ("running", _) => Seen::Running,
            (_, Some("filesystem")) => Seen::Stopped,
            _ => Seen::Paused,
        };
        Some(Found { id, name: self.name, state })
    }
}

impl E2b {
    fn seconds(&self) -> u64 {
        self.lease.as_secs()
    }

    /// What opens a sandbox; asked for once. A server that came back does not know it.
    async fn opened(&self, name: &str) -> Result<Opened, Trouble> {
        let known = self.opened.lock().expect("no panic while held").get(name).cloned();
        if let Some(opened) = known {
            return Ok(opened);
        }
        // What says it would also wake a sandbox that rests: nobody here wants that.
        let found = self.detail(name).await.map_err(|error| Trouble::Away(error.to_string()))?;
        if found.is_some_and(|found| found.state == Seen::Running) {
            return self.connect(name).await;
        }
        Err(Trouble::Refused { status: StatusCode::GONE, message: format!("sandbox {name} does not run at e2b") })
    }

    /// Makes it run where it does not, gives it its time, and says what opens it.
    async fn connect(&self, name: &str) -> Result<Opened, Trouble> {
        let path = format!("/sandboxes/{name}/connect");
        let body = json!({"timeout": self.seconds()});
        let opened: Opened =
            self.client.json(Again::Always, || self.client.request(Method::POST, &path).json(&body)).await?;
        self.note(&opened);
        Ok(opened)
    }

    fn note(&self, opened: &Opened) {
        self.opened.lock().expect("no panic while held").insert(opened.name.clone(), opened.clone());
    }

    /// Where a port of it is, and what is shown there.
    fn place(&self, opened: &Opened, port: u16) -> (String, HeaderMap) {
        let domain = opened.domain.as_deref().filter(|domain| !domain.is_empty()).unwrap_or(&self.domain);
        let url = self.sandbox_url.clone().unwrap_or_else(|| format!("https://{port}-{}.{domain}", opened.name));
        let mut headers = HeaderMap::new();
        let mut put = |name: &'static str, value: &str| {
            if let Ok(mut value) = HeaderValue::from_str(value) {
                value.set_sensitive(true);
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        put("e2b-sandbox-id", &opened.name);
        put("e2b-sandbox-port", &port.to_string());
        if let Some(token) = &opened.traffic_access_token {
            put("e2b-traffic-access-token", token);
        }
        (url, headers)
    }

    async fn put_away(&self, name: &str, memory: bool) -> Result<(), ProviderError> {
        let path = format!("/sandboxes/{name}/pause");
        let body = json!({"memory": memory});
        let done = self.client.done(Again::Always, || self.client.request(Method::POST, &path).json(&body)).await;
        self.opened.lock().expect("no panic while held").remove(name);
        match done {
            // It is where it shall be, or gone.
            Err(trouble) if trouble.is(StatusCode::CONFLICT) || trouble.is_gone() => Ok(()),
            done => Ok(done?),
        }
    }

    async fn detail(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        let path = format!("/sandboxes/{name}");
        let asked = self.client.json::<Listed>(Again::Always, || self.client.request(Method::GET, &path)).await;
        match asked {
            Ok(listed) => Ok(listed.found()),
            Err(trouble) if trouble.is_gone() => Ok(None),
            Err(trouble) => Err(trouble.into()),
        }
    }
}

/// A network as E2B takes it.
fn rules(network: &Network) -> Result<Value, ProviderError> {
    let mut addresses = addresses(KIND.name, network)?;
    // What E2B denies by itself, private and link-local addresses among others, stays denied.
    if !addresses.open {
        addresses.deny = vec!["0.0.0.0/0".into()];
    }
    let mut rules = json!({"allowOut": addresses.allow, "denyOut": addresses.deny});
    if !addresses.resolvers.is_empty() {
        rules["dnsServers"] = json!(addresses.resolvers);
    }
    Ok(rules)
}

#[async_trait]
impl Service for E2b {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: Isolation::Microvm,
            pause: Can::Yes,
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

    /// All of them are its template's.
    fn unheld(&self) -> &'static [Limit] {
        &[Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk]
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        let path = "/v2/sandboxes?limit=1";
        Ok(self.client.done(Again::Never, || self.client.request(Method::GET, path)).await?)
    }

    async fn create(&self, order: &Order) -> Result<String, ProviderError> {
        let mut network = rules(&order.network)?;
        // Its ports are for us alone.
        network["allowPublicTraffic"] = json!(false);
        let body = json!({
            "templateID": order.image.reference.as_deref().unwrap_or(&self.template),
            "timeout": self.seconds(),
            // A server that is gone leaves what costs little, and loses nothing.
            "autoPause": true,
            "secure": true,
            "allow_internet_access": !matches!(order.network, Network::None),
            "network": network,
            "metadata": {LABEL: order.id},
        });
        // E2B takes the same key for the same sandbox, where it knows the header.
        let make = || {
            let request = self.client.request(Method::POST, "/sandboxes");
            request.header("Idempotency-Key", order.id.as_str()).json(&body)
        };
        let opened: Opened = self.client.json(Again::IfUndone, make).await?;
        self.note(&opened);
        Ok(opened.name)
    }

    async fn list(&self, of: Option<&SandboxId>) -> Result<Vec<Found>, ProviderError> {
        let mut listed = Vec::new();
        let mut token = String::new();
        loop {
            // The filter is escaped three times; letters, digits and hyphens are as they are.
            let filter = of.map_or_else(String::new, |id| format!("&metadata={LABEL}%3D{id}"));
            let after = if token.is_empty() { String::new() } else { format!("&nextToken={token}") };
            let path = format!("/v2/sandboxes?state=running,paused&limit=100{filter}{after}");
            let response = self.client.send(Again::Always, || self.client.request(Method::GET, &path)).await?;
            let next = response.headers().get("x-next-token").and_then(|next| next.to_str().ok());
            token = next.map_or_else(String::new, |next| {
                percent_encoding::utf8_percent_encode(next, percent_encoding::NON_ALPHANUMERIC).to_string()
            });
            let bytes = self.client.bytes(response).await?;
            let page: Vec<Listed> = serde_json::from_slice(&bytes)
                .map_err(|error| ProviderError::Failed(format!("a list of {}: {error}", KIND.name)))?;
            let last = page.is_empty() || token.is_empty();
            listed.extend(page.into_iter().filter_map(Listed::found));
            if last {
                break;
            }
        }
        // Whether one kept its memory is in its details alone.
        let detailed = futures::stream::iter(listed).map(|found| async move {
            match found.state {
                Seen::Paused => Ok::<Found, ProviderError>(self.detail(&found.name).await?.unwrap_or(found)),
                Seen::Running | Seen::Stopped => Ok(found),
            }
        });
        let detailed: Vec<Result<Found, ProviderError>> = detailed.buffer_unordered(AT_ONCE).collect().await;
        detailed.into_iter().collect()
    }

    async fn get(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        self.detail(name).await
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        self.connect(name).await?;
        Ok(())
    }

    async fn stop(&self, name: &str) -> Result<(), ProviderError> {
        self.put_away(name, false).await
    }

    async fn pause(&self, name: &str) -> Result<(), ProviderError> {
        self.put_away(name, true).await
    }

    async fn destroy(&self, name: &str) -> Result<(), ProviderError> {
        let path = format!("/sandboxes/{name}");
        let done = self.client.done(Again::Always, || self.client.request(Method::DELETE, &path)).await;
        self.opened.lock().expect("no panic while held").remove(name);
        match done {
            Err(trouble) if trouble.is_gone() => Ok(()),
            done => Ok(done?),
        }
    }

    async fn renew(&self, name: &str) -> Result<(), ProviderError> {
        let path = format!("/sandboxes/{name}/timeout");
        let body = json!({"timeout": self.seconds()});
        Ok(self.client.done(Again::Always, || self.client.request(Method::POST, &path).json(&body)).await?)
    }

    async fn set_network(&self, name: &str, network: &Network) -> Result<(), ProviderError> {
        let path = format!("/sandboxes/{name}/network");
        let mut body = rules(network)?;
        body["allow_internet_access"] = json!(!matches!(network, Network::None));
        Ok(self.client.done(Again::Always, || self.client.request(Method::PUT, &path).json(&body)).await?)
    }

    async fn way(&self, name: &str, port: u16) -> Result<Option<Way>, ProviderError> {
        let (url, headers) = self.place(&self.opened(name).await?, port);
        Ok(Some(Way { url, headers }))
    }

    fn http(&self) -> &reqwest::Client {
        self.client.http()
    }

    async fn run(&self, name: &str, run: &Run) -> Result<Running, Trouble> {
        self.daemon(name).await?.run(run).await
    }

    async fn input(&self, name: &str, process: &str, input: Input) -> Result<(), Trouble> {
        self.daemon(name).await?.input(process, input).await
    }

    async fn signal(&self, name: &str, process: &str, signal: i32) -> Result<(), Trouble> {
        self.daemon(name).await?.signal(process, signal).await
    }

    async fn read(&self, name: &str, path: &str) -> Result<BoxStream<'static, Result<Bytes, Trouble>>, Trouble> {
        self.daemon(name).await?.read(path).await
    }

    async fn write(&self, name: &str, path: &str, content: Bytes) -> Result<(), Trouble> {
        self.daemon(name).await?.write(path, content).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_paused_without_its_memory_is_stopped() {
        let listed = |state: &str, mode: &str| {
            let text = json!({"sandboxID": "x", "state": state, "pauseMode": mode,
                              "metadata": {LABEL: "a".repeat(20)}});
            serde_json::from_value::<Listed>(text).unwrap().found().unwrap().state
        };
        assert_eq!(listed("running", ""), Seen::Running);
        assert_eq!(listed("paused", "full"), Seen::Paused);
        assert_eq!(listed("paused", "filesystem"), Seen::Stopped);
        let others: Listed = serde_json::from_value(json!({"sandboxID": "x", "state": "running"})).unwrap();
        assert_eq!(others.found(), None);
    }

    #[test]
    fn a_closed_network_denies_everything_but_what_is_allowed() {
        let policy = crate::sandbox::NetworkPolicy { allow: vec!["1.2.3.0/24".into()], ..Default::default() };
        let rules = rules(&policy.to_network().unwrap()).unwrap();
        assert_eq!(rules, json!({"allowOut": ["1.2.3.0/24"], "denyOut": ["0.0.0.0/0"]}));
    }
}
