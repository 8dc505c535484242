//! Where sandboxes are moved from: a service that speaks Daytona's or E2B's API, another Cove server, or a passport.
//!
//! A small client of each, for five things: list, wake, run a command, fetch a file, put to sleep again.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use base64::Engine as _;
use futures::StreamExt as _;
use reqwest::{Method, RequestBuilder, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{Client, query_string, segment};
use crate::complaint::{Complaint, doing};

/// How long a sandbox may take to wake.
const AWAKE_WITHIN: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(500);
/// Seconds that a command may take, and that a sandbox of E2B lives from its last call on.
const LONG: u64 = 3600;
/// The port of E2B's daemon.
const DAEMON: u16 = 49983;

/// A sandbox as it is at its origin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    pub id: String,
    #[serde(default)]
    pub name: Option<String>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// As the native API takes them.
    #[serde(default)]
    pub timers: Value,
    #[serde(default)]
    pub network: Value,
    /// Whether it ran when it was found.
    pub runs: bool,
}

pub enum Origin {
    Cove(Client),
    Daytona(Service),
    E2b(Service),
}

/// A service by its address and key.
pub struct Service {
    http: reqwest::Client,
    url: String,
    key: String,
    /// E2B's fixed address of all sandboxes, and the domain of their names.
    sandbox_url: Option<String>,
    domain: String,
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|word| !word.is_empty())
}

impl Service {
    fn new(url: String, key: Option<String>, variable: &str) -> Result<Service, Complaint> {
        crate::client::prepare_tls();
        let http = reqwest::Client::builder().build();
        let http = http.map_err(|error| Complaint::failed(format!("make an HTTP client: {error}")))?;
        let key = key.ok_or_else(|| {
            Complaint::usage("the key of the service is not known")
                .hint(format!("set {variable}, or name --from-key-file"))
        })?;
        let url = url.trim_end_matches('/').to_owned();
        Ok(Service { http, url, key, sandbox_url: None, domain: String::new() })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Complaint> {
        let answer = request.send().await.map_err(|error| Complaint::failed(format!("reach {}: {error}", self.url)))?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        let (status, path) = (answer.status(), answer.url().path().to_owned());
        let said: String = answer.text().await.unwrap_or_default().chars().take(300).collect();
        Err(Complaint::failed(format!("{path} answered {status}: {said}")))
    }

    async fn json(&self, request: RequestBuilder) -> Result<Value, Complaint> {
        let bytes = self.send(request).await?.bytes().await;
        let bytes = bytes.map_err(|error| Complaint::failed(format!("read from {}: {error}", self.url)))?;
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| Complaint::failed(format!("unexpected answer of {}: {error}", self.url)))
    }

    fn daytona(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).bearer_auth(&self.key)
    }

    fn e2b(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url)).header("X-API-KEY", &self.key)
    }

    /// A call of the daemon in a sandbox of E2B, which is woken by it and lives on for a while.
    async fn daemon(&self, id: &str, method: Method, path: &str) -> Result<RequestBuilder, Complaint> {
        let body = json!({ "timeout": LONG });
        let told =
            self.json(self.e2b(Method::POST, &format!("/sandboxes/{}/connect", segment(id))).json(&body)).await?;
        let domain = told["domain"].as_str().unwrap_or(&self.domain);
        let url = self.sandbox_url.clone().unwrap_or_else(|| format!("https://{DAEMON}-{id}.{domain}"));
        let request = self.http.request(method, format!("{}{path}", url.trim_end_matches('/')));
        let request = request.header("E2b-Sandbox-Id", id).header("E2b-Sandbox-Port", DAEMON.to_string());
        let user = base64::engine::general_purpose::STANDARD.encode("user:");
        let request = request.header("Authorization", format!("Basic {user}"));
        Ok(match told["envdAccessToken"].as_str() {
            Some(token) => request.header("X-Access-Token", token),
            None => request,
        })
    }
}

/// What an origin is called, its address and its key, as far as they were given.
pub struct Named<'a> {
    pub kind: &'a str,
    pub url: Option<String>,
    pub key: Option<String>,
}

impl Origin {
    pub fn open(named: Named<'_>) -> Result<Origin, Complaint> {
        match named.kind {
            "cove" => {
                let url = named.url.ok_or_else(|| Complaint::usage("name the other server: --from-url URL"))?;
                let key = named.key.or_else(|| set("COVE_API_KEY"));
                let key = key.ok_or_else(|| Complaint::usage("name its key: --from-key-file FILE"))?;
                Ok(Origin::Cove(Client::at(&url, &key)?))
            }
            "daytona" => {
                let url = named.url.or_else(|| set("DAYTONA_API_URL")).or_else(|| set("DAYTONA_SERVER_URL"));
                let url = url.unwrap_or_else(|| "https://app.daytona.io/api".to_owned());
                let key = named.key.or_else(|| set("DAYTONA_API_KEY"));
                Ok(Origin::Daytona(Service::new(url, key, "DAYTONA_API_KEY")?))
            }
            "e2b" => {
                let domain = set("E2B_DOMAIN").unwrap_or_else(|| "e2b.app".to_owned());
                let is_named = named.url.is_some();
                let url = named.url.or_else(|| set("E2B_API_URL")).unwrap_or_else(|| format!("https://api.{domain}"));
                let service = Service::new(url, named.key.or_else(|| set("E2B_API_KEY")), "E2B_API_KEY")?;
                // A server of one's own has one address for all.
                let sandbox_url = if is_named { Some(service.url.clone()) } else { set("E2B_SANDBOX_URL") };
                Ok(Origin::E2b(Service { sandbox_url, domain, ..service }))
            }
            other => Err(Complaint::usage(format!("`{other}` is not one of cove, daytona, e2b"))),
        }
    }

    /// The folder that is moved where nobody says otherwise.
    pub fn home(&self) -> &'static str {
        match self {
            Origin::Cove(_) | Origin::E2b(_) => "/home/user",
            Origin::Daytona(_) => "/home/daytona",
        }
    }

    /// All that the key may see.
    pub async fn list(&self) -> Result<Vec<Found>, Complaint> {
        match self {
            Origin::Cove(client) => {
                let (mut all, mut cursor) = (Vec::new(), None::<String>);
                loop {
                    let mut pairs = vec![("limit", "1000")];
                    pairs.extend(cursor.as_deref().map(|cursor| ("cursor", cursor)));
                    let page: Value = client.get(&format!("/sandboxes{}", query_string(&pairs))).await?;
                    all.extend(page["items"].as_array().into_iter().flatten().map(of_cove));
                    cursor = page["next_cursor"].as_str().map(str::to_owned);
                    if cursor.is_none() {
                        return Ok(all);
                    }
                }
            }
            Origin::Daytona(service) => {
                let listed = service.json(service.daytona(Method::GET, "/sandbox")).await?;
                let items = listed.as_array().or_else(|| listed["items"].as_array());
                Ok(items.into_iter().flatten().map(of_daytona).collect())
            }
            Origin::E2b(service) => {
                let (mut all, mut token) = (Vec::new(), None::<String>);
                loop {
                    let mut pairs = vec![("limit", "100")];
                    pairs.extend(token.as_deref().map(|token| ("nextToken", token)));
                    let path = format!("/v2/sandboxes{}", query_string(&pairs));
                    let answer = service.send(service.e2b(Method::GET, &path)).await?;
                    token =
                        answer.headers().get("x-next-token").and_then(|value| value.to_str().ok()).map(str::to_owned);
                    let page: Value = answer.json().await.map_err(|error| Complaint::failed(error.to_string()))?;
                    all.extend(page.as_array().into_iter().flatten().map(of_e2b));
                    if token.as_deref().is_none_or(str::is_empty) {
                        return Ok(all);
                    }
                }
            }
        }
    }

    /// It runs when this returns.
    pub async fn wake(&self, found: &Found) -> Result<(), Complaint> {
        let id = segment(&found.id);
        match self {
            // Whatever is asked of one wakes it.
            Origin::E2b(_) => Ok(()),
            _ if found.runs => Ok(()),
            Origin::Cove(client) => client.post::<Value>(&format!("/sandboxes/{id}/start"), &json!({})).await.map(drop),
            Origin::Daytona(service) => {
                service.json(service.daytona(Method::POST, &format!("/sandbox/{id}/start"))).await?;
                let began = std::time::Instant::now();
                loop {
                    let now = service.json(service.daytona(Method::GET, &format!("/sandbox/{id}"))).await?;
                    match now["state"].as_str() {
                        Some("started") => return Ok(()),
                        Some("error") => {
                            let why = now["errorReason"].as_str().unwrap_or("the service does not say why");
                            return Err(Complaint::failed(format!("sandbox {} does not start: {why}", found.id)));
                        }
                        _ if began.elapsed() > AWAKE_WITHIN => {
                            return Err(Complaint::failed(format!("sandbox {} does not start in time", found.id)));
                        }
                        _ => tokio::time::sleep(LOOK).await,
                    }
                }
            }
        }
    }

    /// As it was found: what slept sleeps again.
    pub async fn put_back(&self, found: &Found) -> Result<(), Complaint> {
        if found.runs {
            return Ok(());
        }
        let id = segment(&found.id);
        match self {
            Origin::Cove(client) => client.post::<Value>(&format!("/sandboxes/{id}/stop"), &json!({})).await.map(drop),
            Origin::Daytona(service) => {
                service.json(service.daytona(Method::POST, &format!("/sandbox/{id}/stop"))).await.map(drop)
            }
            Origin::E2b(service) => {
                service.json(service.e2b(Method::POST, &format!("/sandboxes/{id}/pause"))).await.map(drop)
            }
        }
    }

    /// Runs a line of shell; what it printed, where it succeeded.
    pub async fn run(&self, found: &Found, line: &str) -> Result<String, Complaint> {
        let (code, said) = match self {
            Origin::Cove(client) => run_in(client, &found.id, line).await?,
            Origin::Daytona(service) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(line);
                let command = format!("sh -c \"echo '{encoded}' | base64 -d | sh\"");
                let path = format!("/toolbox/{}/toolbox/process/execute", segment(&found.id));
                let body = json!({ "command": command, "timeout": LONG });
                let ran = service.json(service.daytona(Method::POST, &path).json(&body)).await?;
                (ran["exitCode"].as_i64().unwrap_or(-1), ran["result"].as_str().unwrap_or_default().to_owned())
            }
            Origin::E2b(service) => {
                let request = service.daemon(&found.id, Method::POST, "/process.Process/Start").await?;
                let process = json!({ "process": { "cmd": "/bin/sh", "args": ["-c", line] } });
                let request =
                    request.header("Content-Type", "application/connect+json").header("Connect-Protocol-Version", "1");
                let answer = service.send(request.body(envelope(&process))).await?.bytes().await;
                let answer = answer.map_err(|error| Complaint::failed(format!("read a command's output: {error}")))?;
                outcome(&answer)?
            }
        };
        match code {
            0 => Ok(said),
            code => {
                Err(Complaint::failed(format!("a command in sandbox {} ended with {code}: {}", found.id, said.trim())))
            }
        }
    }

    /// The tar of a folder.
    pub async fn fetch(&self, found: &Found, folder: &str, to: &mut std::fs::File) -> Result<(), Complaint> {
        let answer = match self {
            Origin::Cove(client) => {
                let path = format!("/sandboxes/{}/files/tar{}", segment(&found.id), query_string(&[("path", folder)]));
                client.send(client.request(Method::GET, &path)).await?
            }
            Origin::Daytona(service) => {
                self.pack(found, folder).await?;
                let query = query_string(&[("path", PACKED)]);
                let path = format!("/toolbox/{}/toolbox/files/download{query}", segment(&found.id));
                service.send(service.daytona(Method::GET, &path)).await?
            }
            Origin::E2b(service) => {
                self.pack(found, folder).await?;
                let query = query_string(&[("path", PACKED), ("username", "user")]);
                service.send(service.daemon(&found.id, Method::GET, &format!("/files{query}")).await?).await?
            }
        };
        let mut stream = answer.bytes_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| Complaint::failed(format!("fetch files of {}: {error}", found.id)))?;
            to.write_all(&piece).map_err(doing("keep what was fetched"))?;
        }
        to.flush().map_err(doing("keep what was fetched"))?;
        if !matches!(self, Origin::Cove(_)) {
            self.run(found, &format!("rm -f {PACKED}")).await?;
        }
        Ok(())
    }

    async fn pack(&self, found: &Found, folder: &str) -> Result<(), Complaint> {
        let line = format!("tar -C {} -cf {PACKED} .", quoted(folder));
        self.run(found, &line).await.map(drop)
    }
}

/// Where a folder is packed on its way.
const PACKED: &str = "/tmp/.cove-move.tar";

/// A word of the shell, whatever is in it.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs a line of shell in a sandbox of a Cove server: its status, and what it printed.
pub async fn run_in(client: &Client, id: &str, line: &str) -> Result<(i64, String), Complaint> {
    let ran: Value = client.post(&format!("/sandboxes/{}/exec", segment(id)), &json!({ "shell": line })).await?;
    let status = ran["exit"]["status"].as_i64().unwrap_or(-1);
    // What it complained of is of interest where it failed.
    let stream = if status == 0 { "stdout" } else { "stderr" };
    Ok((status, ran[stream].as_str().unwrap_or_default().to_owned()))
}

fn map_of(value: &Value) -> BTreeMap<String, String> {
    let pairs = value.as_object().into_iter().flatten();
    pairs.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// Whether every sandbox has such a variable by itself.
pub fn is_own(name: &str) -> bool {
    const NAMES: [&str; 14] = [
        "HOME", "HOSTNAME", "LANG", "LOGNAME", "MAIL", "OLDPWD", "PATH", "PWD", "SHELL", "SHLVL", "TERM", "TMPDIR",
        "USER", "_",
    ];
    NAMES.contains(&name) || ["COVE_", "DAYTONA_", "E2B_", "LC_"].iter().any(|start| name.starts_with(start))
}

fn of_cove(item: &Value) -> Found {
    let timers = &item["timers"];
    let kept = ["idle_seconds", "at_idle", "archive_after_seconds", "delete_after_seconds", "auto_resume"];
    let timers: serde_json::Map<String, Value> = kept
        .iter()
        .filter(|name| !timers[**name].is_null() || **name == "idle_seconds")
        .map(|name| ((*name).to_owned(), timers[*name].clone()))
        .collect();
    Found {
        id: item["id"].as_str().unwrap_or_default().to_owned(),
        name: item["name"].as_str().map(str::to_owned),
        labels: map_of(&item["labels"]),
        env: map_of(&item["env"]),
        timers: Value::Object(timers),
        network: item["network"].clone(),
        runs: item["state"] == "running",
    }
}

fn of_daytona(item: &Value) -> Found {
    // Minutes; zero is never to stop, a negative number never to delete.
    let seconds = |name: &str| item[name].as_i64().filter(|minutes| *minutes > 0).map(|minutes| minutes * 60);
    let mut timers = json!({ "idle_seconds": seconds("autoStopInterval") });
    for (name, own) in
        [("autoArchiveInterval", "archive_after_seconds"), ("autoDeleteInterval", "delete_after_seconds")]
    {
        if let Some(seconds) = seconds(name) {
            timers[own] = json!(seconds);
        }
    }
    Found {
        id: item["id"].as_str().unwrap_or_default().to_owned(),
        name: item["name"].as_str().filter(|name| Some(*name) != item["id"].as_str()).map(str::to_owned),
        labels: map_of(&item["labels"]),
        env: map_of(&item["env"]).into_iter().filter(|(name, _)| !is_own(name)).collect(),
        timers,
        network: open(),
        runs: item["state"] == "started",
    }
}

fn of_e2b(item: &Value) -> Found {
    Found {
        id: item["sandboxID"].as_str().unwrap_or_default().to_owned(),
        name: None,
        labels: map_of(&item["metadata"]),
        // The service does not say.
        env: BTreeMap::new(),
        timers: json!({ "idle_seconds": null }),
        network: open(),
        runs: item["state"] == "running",
    }
}

/// As sandboxes of these services have it.
fn open() -> Value {
    json!({ "access": "open" })
}

/// One message of Connect's streams: no flags, its length, its bytes.
fn envelope(message: &Value) -> Vec<u8> {
    let text = message.to_string().into_bytes();
    let mut bytes = vec![0];
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend(text);
    bytes
}

/// What a command printed, and its exit code, out of the messages of a stream.
fn outcome(mut bytes: &[u8]) -> Result<(i64, String), Complaint> {
    let broken = || Complaint::failed("the answer to a command was cut off");
    let (mut said, mut complained, mut code) = (Vec::new(), Vec::new(), None);
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(5).ok_or_else(broken)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let (message, rest) = rest.split_at_checked(length).ok_or_else(broken)?;
        bytes = rest;
        let message: Value = serde_json::from_slice(message).map_err(|_| broken())?;
        if let Some(error) = message.get("error") {
            let why = error["message"].as_str().unwrap_or("the service does not say why");
            return Err(Complaint::failed(format!("a command could not be run: {why}")));
        }
        let event = &message["event"];
        for (name, stream) in [("stdout", &mut said), ("stderr", &mut complained)] {
            if let Some(data) = event["data"][name].as_str() {
                stream.extend(base64::engine::general_purpose::STANDARD.decode(data).map_err(|_| broken())?);
            }
        }
        if event["end"].is_object() {
            // A zero is left out.
            code = Some(event["end"]["exitCode"].as_i64().unwrap_or(0));
        }
    }
    let code = code.ok_or_else(broken)?;
    let said = if code == 0 { said } else { complained };
    Ok((code, String::from_utf8_lossy(&said).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_messages_of_a_stream_are_put_together() {
        let data = |text: &str| {
            let text = base64::engine::general_purpose::STANDARD.encode(text);
            envelope(&json!({ "event": { "data": { "stdout": text } } }))
        };
        let mut answer = envelope(&json!({ "event": { "start": { "pid": 7 } } }));
        answer.extend(data("hel"));
        answer.extend(data("lo"));
        let end = envelope(&json!({ "event": { "end": { "exited": true } } }));
        let whole = [answer.clone(), end].concat();
        assert_eq!(outcome(&whole).unwrap(), (0, "hello".to_owned()));
        assert!(outcome(&answer).is_err(), "without an end it was cut off");
        assert!(outcome(&whole[..whole.len() - 1]).is_err());
        let refused = envelope(&json!({ "error": { "message": "no such program" } }));
        assert!(outcome(&refused).unwrap_err().to_string().contains("no such program"));
    }

    #[test]
    fn what_services_say_of_a_sandbox_becomes_what_a_server_takes() {
        let daytona = json!({
            "id": "6f3a", "name": "6f3a", "labels": { "a": "b" }, "env": { "X": "1" }, "state": "stopped",
            "autoStopInterval": 15, "autoArchiveInterval": 60, "autoDeleteInterval": -1,
        });
        let found = of_daytona(&daytona);
        assert_eq!((found.name, found.runs, found.labels["a"].as_str()), (None, false, "b"));
        assert_eq!(found.timers, json!({ "idle_seconds": 900, "archive_after_seconds": 3600 }));
        let never = of_daytona(&json!({ "id": "x", "autoStopInterval": 0 }));
        assert_eq!(never.timers, json!({ "idle_seconds": null }));
        let e2b = of_e2b(&json!({ "sandboxID": "i3r", "metadata": { "k": "v" }, "state": "running" }));
        assert_eq!((e2b.id.as_str(), e2b.runs, e2b.labels["k"].as_str()), ("i3r", true, "v"));
    }

    #[test]
    fn a_word_of_the_shell_stays_one() {
        assert_eq!(quoted("/a b'c"), r"'/a b'\''c'");
    }
}
