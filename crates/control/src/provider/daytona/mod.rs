//! Sandboxes of Daytona, or of whatever speaks its API: another server of ours, for one.
//!
//! The control plane is REST with a bearer key; what runs inside is reached at the toolbox, whose address every sandbox
//! tells ([`toolbox`]). Changes are asked for and then waited for: an answer only says that one has begun.

mod toolbox;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue};
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
    NO_VOLUMES, Remote, Run, Running, Service, Trouble, Way,
};
use super::{
    Can, Capabilities, Isolation, Kind, Limit, Network, Order, Provider, ProviderError, SandboxId, Seen, Supply,
};
use crate::Error;
use crate::config::key::{Kind as Word, NEUTRAL_KEY, NEUTRAL_TARGET, NEUTRAL_URL, SectionKey};

pub static KIND: Kind = Kind {
    name: "daytona",
    keys: &[
        SectionKey::secret(API_KEY).neutral(NEUTRAL_KEY).others(&["DAYTONA_API_KEY"]),
        SectionKey::address(URL).neutral(NEUTRAL_URL).others(&["DAYTONA_API_URL", "DAYTONA_SERVER_URL"]),
        SectionKey::new(TARGET, Word::Text).neutral(NEUTRAL_TARGET).others(&["DAYTONA_TARGET"]),
        SectionKey::new(SNAPSHOT, Word::Text),
        GUEST,
        LEASE,
    ],
    count: Count::Any,
    open,
};

const API_KEY: &str = "api_key";
const URL: &str = "url";
const URL_DEFAULT: &str = "https://app.daytona.io/api";
/// The region of new sandboxes.
const TARGET: &str = "target";
/// What a sandbox starts from whose order names no image; the service's own default where absent.
const SNAPSHOT: &str = "snapshot";

/// How long a change may take, and how often is looked. A sandbox whose image is built takes minutes.
const WITHIN: Duration = Duration::from_secs(900);
const LOOK: Duration = Duration::from_millis(300);

/// What lets through to a port of a sandbox.
const PREVIEW_TOKEN: HeaderName = HeaderName::from_static("x-daytona-preview-token");

fn open(opening: &Opening<'_>) -> Result<Arc<dyn Provider>, Error> {
    let section = opening.section;
    let key = section.text(API_KEY).ok_or_else(|| {
        let field = format!("providers.{}.{API_KEY}", opening.name);
        Error::invalid(field, "needs the key of a Daytona account, or DAYTONA_API_KEY in the environment")
    })?;
    let mut headers = bearer(key)?;
    headers.insert("x-daytona-source", HeaderValue::from_static("cove"));
    let service = Daytona {
        client: Client::open(opening, section.text(URL).unwrap_or(URL_DEFAULT), headers.clone())?,
        headers,
        target: section.text(TARGET).map(str::to_owned),
        snapshot: section.text(SNAPSHOT).map(str::to_owned),
        lease: Duration::from_secs(section.integer(LEASE.name).unwrap_or(LEASE_DEFAULT).max(60)),
        known: Mutex::default(),
    };
    let bringing = if section.switch(GUEST.name).unwrap_or(true) { Bringing::Wanted } else { Bringing::Unwanted };
    Ok(Arc::new(Remote::new(opening.name, Arc::new(service), bringing, key.to_owned())))
}

pub struct Daytona {
    client: Client,
    /// With the key, for the toolbox: it is at another address.
    headers: HeaderMap,
    target: Option<String>,
    snapshot: Option<String>,
    lease: Duration,
    known: Mutex<HashMap<String, Inside>>,
}

/// How what runs in a sandbox is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Inside {
    toolbox: String,
    /// The user of commands that name none.
    user: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sandbox {
    id: String,
    #[serde(default)]
    state: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    user: String,
    #[serde(default)]
    toolbox_proxy_url: Option<String>,
    #[serde(default)]
    error_reason: Option<String>,
}

/// What a state of the service means to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Seen(Seen),
    /// On its way to there.
    Becoming(Seen),
    Failed,
    Gone,
}

impl Sandbox {
    fn meaning(&self) -> Meaning {
        match self.state.as_deref().unwrap_or("unknown") {
            "started" => Meaning::Seen(Seen::Running),
            "stopped" | "archived" => Meaning::Seen(Seen::Stopped),
            "paused" => Meaning::Seen(Seen::Paused),
            "stopping" | "archiving" => Meaning::Becoming(Seen::Stopped),
            "pausing" => Meaning::Becoming(Seen::Paused),
            "destroying" | "destroyed" => Meaning::Gone,
            "error" | "build_failed" => Meaning::Failed,
            _ => Meaning::Becoming(Seen::Running),
        }
    }

    /// `None` where it is gone, or not one of ours.
    fn found(&self) -> Option<Found> {
        let id = self.labels.get(LABEL)?.parse().ok()?;
        let state = match self.meaning() {
            Meaning::Seen(seen) | Meaning::Becoming(seen) => seen,
            Meaning::Failed => Seen::Stopped,
            Meaning::Gone => return None,
        };
        Some(Found { id, name: self.id.clone(), state })
    }
}

/// Lists of today, and those of servers from before there were cursors.
#[derive(Deserialize)]
#[serde(untagged)]
enum List {
    Paged {
        items: Vec<Sandbox>,
        #[serde(rename = "nextCursor", default)]
        next: Option<String>,
    },
    Whole(Vec<Sandbox>),
}

impl Daytona {
    fn minutes(&self) -> u64 {
        self.lease.as_secs().div_ceil(60)
    }

    async fn ask(&self, name: &str) -> Result<Option<Sandbox>, ProviderError> {
        let path = format!("/sandbox/{name}");
        match self.client.json::<Sandbox>(Again::Always, || self.client.request(Method::GET, &path)).await {
            Ok(sandbox) => {
                self.note(&sandbox);
                Ok(Some(sandbox))
            }
            Err(trouble) if trouble.is_gone() => Ok(None),
            Err(trouble) => Err(trouble.into()),
        }
    }

    fn note(&self, sandbox: &Sandbox) {
        if let Some(url) = &sandbox.toolbox_proxy_url {
            let toolbox = format!("{}/{}", url.trim_end_matches('/'), sandbox.id);
            let inside = Inside { toolbox, user: sandbox.user.clone() };
            self.known.lock().expect("no panic while held").insert(sandbox.id.clone(), inside);
        }
    }

    async fn inside(&self, name: &str) -> Result<Inside, Trouble> {
        let known = || self.known.lock().expect("no panic while held").get(name).cloned();
        if let Some(inside) = known() {
            return Ok(inside);
        }
        self.ask(name).await.map_err(|error| Trouble::Away(error.to_string()))?;
        known().ok_or_else(|| Trouble::Garbled(format!("daytona does not say where the toolbox of {name} is")))
    }

    /// Waits until a sandbox is where it was sent.
    async fn settled(&self, name: &str, wanted: Seen) -> Result<(), ProviderError> {
        let begun = Instant::now();
        loop {
            let Some(sandbox) = self.ask(name).await? else {
                return Err(ProviderError::Refused(format!("sandbox {name} is gone from daytona")));
            };
            match sandbox.meaning() {
                Meaning::Seen(seen) if seen == wanted => return Ok(()),
                Meaning::Failed | Meaning::Gone => {
                    let reason = sandbox.error_reason.unwrap_or_else(|| "it gives no reason".into());
                    return Err(ProviderError::Exhausted(format!("daytona could not do it for {name}: {reason}")));
                }
                Meaning::Seen(_) | Meaning::Becoming(_) if begun.elapsed() < WITHIN => {
                    tokio::time::sleep(LOOK).await;
                }
                Meaning::Seen(_) | Meaning::Becoming(_) => {
                    let state = sandbox.state.unwrap_or_default();
                    return Err(ProviderError::Exhausted(format!("sandbox {name} is still {state} at daytona")));
                }
            }
        }
    }

    async fn act(&self, name: &str, verb: &str) -> Result<(), Trouble> {
        let path = format!("/sandbox/{name}/{verb}");
        self.client.done(Again::Always, || self.client.request(Method::POST, &path)).await
    }

    /// A request to the toolbox of a sandbox.
    fn toolbox_request(&self, method: Method, url: &str) -> RequestBuilder {
        self.client.request_to(method, url).headers(self.headers.clone())
    }
}

/// A network as Daytona takes it: everything, nothing, or some ranges.
fn rules(network: &Network) -> Result<Value, ProviderError> {
    let addresses = addresses(KIND.name, network)?;
    if !addresses.resolvers.is_empty() {
        return Err(ProviderError::Refused("network.resolvers: daytona has its own".into()));
    }
    if addresses.open && !(addresses.deny.is_empty() && addresses.allow.is_empty()) {
        let message =
            "network: daytona knows a list of what is allowed, and nothing that is denied; close it and allow";
        return Err(ProviderError::Refused(message.into()));
    }
    Ok(match (addresses.open, addresses.allow.is_empty()) {
        (true, _) => json!({"networkBlockAll": false}),
        (false, true) => json!({"networkBlockAll": true}),
        (false, false) => {
            let ranges = addresses.allow.iter().map(|entry| match entry.contains('/') {
                true => entry.clone(),
                false if entry.contains(':') => format!("{entry}/128"),
                false => format!("{entry}/32"),
            });
            json!({"networkBlockAll": false, "networkAllowList": ranges.collect::<Vec<_>>().join(",")})
        }
    })
}

#[async_trait]
impl Service for Daytona {
    fn kind(&self) -> &'static Kind {
        &KIND
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            isolation: Isolation::Namespaces,
            pause: Can::not("Daytona pauses virtual machines alone; a stop keeps the files"),
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
        Supply::Images
    }

    /// A snapshot has its size; of an image it is taken in whole processors and gibibytes.
    fn unheld(&self) -> &'static [Limit] {
        &[Limit::Cpus, Limit::Memory, Limit::Pids, Limit::Disk]
    }

    fn lease(&self) -> Duration {
        self.lease
    }

    async fn answers(&self) -> Result<(), ProviderError> {
        let path = "/sandbox?limit=1";
        Ok(self.client.done(Again::Never, || self.client.request(Method::GET, path)).await?)
    }

    async fn create(&self, order: &Order) -> Result<String, ProviderError> {
        let mut body = rules(&order.network)?;
        body["labels"] = json!({LABEL: order.id});
        body["env"] = json!({});
        body["public"] = json!(false);
        // A server that is gone leaves what costs little, and loses nothing.
        body["autoStopInterval"] = json!(self.minutes());
        body["autoDeleteInterval"] = json!(-1);
        if let Some(target) = &self.target {
            body["target"] = json!(target);
        }
        match (&order.image.reference, &self.snapshot) {
            (Some(image), _) => body["buildInfo"] = json!({"dockerfileContent": format!("FROM {image}\n")}),
            (None, Some(snapshot)) => body["snapshot"] = json!(snapshot),
            (None, None) => {}
        }
        let make = || self.client.request(Method::POST, "/sandbox").json(&body);
        let sandbox: Sandbox = self.client.json(Again::IfUndone, make).await?;
        self.note(&sandbox);
        self.settled(&sandbox.id, Seen::Running).await?;
        Ok(sandbox.id)
    }

    async fn list(&self, of: Option<&SandboxId>) -> Result<Vec<Found>, ProviderError> {
        let filter = of.map_or_else(String::new, |id| {
            let labels = json!({LABEL: id}).to_string();
            format!("&labels={}", utf8_percent_encode(&labels, NON_ALPHANUMERIC))
        });
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/sandbox?limit=100{filter}{cursor}");
            let page: List = self.client.json(Again::Always, || self.client.request(Method::GET, &path)).await?;
            let (items, next) = match page {
                List::Paged { items, next } => (items, next),
                List::Whole(items) => (items, None),
            };
            items.iter().for_each(|sandbox| self.note(sandbox));
            found.extend(items.iter().filter_map(Sandbox::found));
            match next.filter(|next| !next.is_empty() && !items.is_empty()) {
                Some(next) => cursor = format!("&cursor={}", utf8_percent_encode(&next, NON_ALPHANUMERIC)),
                None => return Ok(found),
            }
        }
    }

    async fn get(&self, name: &str) -> Result<Option<Found>, ProviderError> {
        Ok(self.ask(name).await?.and_then(|sandbox| sandbox.found()))
    }

    async fn start(&self, name: &str) -> Result<(), ProviderError> {
        if self.ask(name).await?.is_some_and(|sandbox| sandbox.meaning() == Meaning::Seen(Seen::Running)) {
            return Ok(());
        }
        self.act(name, "start").await?;
        self.settled(name, Seen::Running).await
    }

    async fn stop(&self, name: &str) -> Result<(), ProviderError> {
        let Some(sandbox) = self.ask(name).await? else { return Ok(()) };
        match sandbox.meaning() {
            Meaning::Seen(Seen::Stopped) | Meaning::Gone | Meaning::Failed => Ok(()),
            Meaning::Becoming(Seen::Stopped) => self.settled(name, Seen::Stopped).await,
            Meaning::Seen(_) | Meaning::Becoming(_) => {
                self.act(name, "stop").await?;
                self.settled(name, Seen::Stopped).await
            }
        }
    }

    async fn pause(&self, _name: &str) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported("daytona does not pause containers".into()))
    }

    async fn destroy(&self, name: &str) -> Result<(), ProviderError> {
        let path = format!("/sandbox/{name}");
        let done = self.client.done(Again::Always, || self.client.request(Method::DELETE, &path)).await;
        self.known.lock().expect("no panic while held").remove(name);
        match done {
            Err(trouble) if trouble.is_gone() => Ok(()),
            done => Ok(done?),
        }
    }

    async fn renew(&self, name: &str) -> Result<(), ProviderError> {
        Ok(self.act(name, "last-activity").await?)
    }

    async fn set_network(&self, name: &str, network: &Network) -> Result<(), ProviderError> {
        let path = format!("/sandbox/{name}/network-settings");
        let body = rules(network)?;
        Ok(self.client.done(Again::Always, || self.client.request(Method::POST, &path).json(&body)).await?)
    }

    async fn way(&self, name: &str, port: u16) -> Result<Option<Way>, ProviderError> {
        #[derive(Deserialize)]
        struct Preview {
            url: String,
            token: String,
        }
        let path = format!("/sandbox/{name}/ports/{port}/preview-url");
        let preview: Preview = self.client.json(Again::Always, || self.client.request(Method::GET, &path)).await?;
        let mut token = HeaderValue::from_str(&preview.token)
            .map_err(|_| ProviderError::Failed("a preview token of daytona is no header".into()))?;
        token.set_sensitive(true);
        let skip = (HeaderName::from_static("x-daytona-skip-preview-warning"), HeaderValue::from_static("true"));
        Ok(Some(Way { url: preview.url, headers: HeaderMap::from_iter([(PREVIEW_TOKEN, token), skip]) }))
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
        self.end(name, process, signal).await
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
    fn states_mean_what_they_lead_to() {
        let found = |state: &str| {
            let text = json!({"id": "x", "state": state, "labels": {LABEL: "a".repeat(20)}});
            serde_json::from_value::<Sandbox>(text).unwrap().found().map(|found| found.state)
        };
        assert_eq!(found("started"), Some(Seen::Running));
        assert_eq!(found("pulling_snapshot"), Some(Seen::Running));
        assert_eq!(found("archived"), Some(Seen::Stopped));
        assert_eq!(found("error"), Some(Seen::Stopped));
        assert_eq!(found("destroyed"), None);
    }

    #[test]
    fn a_list_is_read_with_and_without_a_cursor() {
        let paged: List = serde_json::from_value(json!({"items": [{"id": "a"}], "nextCursor": null})).unwrap();
        assert!(matches!(paged, List::Paged { items, next: None } if items.len() == 1));
        let whole: List = serde_json::from_value(json!([{"id": "a"}])).unwrap();
        assert!(matches!(whole, List::Whole(items) if items.len() == 1));
    }

    #[test]
    fn a_network_is_all_or_nothing_or_some_ranges() {
        use crate::sandbox::NetworkPolicy;
        let rules = |policy: NetworkPolicy| rules(&policy.to_network().unwrap());
        assert_eq!(rules(NetworkPolicy::open()).unwrap(), json!({"networkBlockAll": false}));
        assert_eq!(rules(NetworkPolicy::closed()).unwrap(), json!({"networkBlockAll": true}));
        let some = NetworkPolicy { allow: vec!["1.2.3.4".into(), "10.0.0.0/8".into()], ..NetworkPolicy::closed() };
        assert_eq!(rules(some).unwrap()["networkAllowList"], "1.2.3.4/32,10.0.0.0/8");
        let denied = NetworkPolicy { deny: vec!["1.2.3.4".into()], ..NetworkPolicy::open() };
        assert!(rules(denied).unwrap_err().to_string().contains("nothing that is denied"));
    }
}
