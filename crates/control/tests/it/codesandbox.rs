//! The provider of CodeSandbox against a stand-in: it answers as the service's public interface is written down, and keeps what
//! it was told. Commands are not run; those that the stories need have their output recorded.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path as Part, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cove_control::config::{Config, Section};
use cove_control::guest::{GuestError, Item};
use cove_control::provider::{
    self, Ability, Durability, Handle, Image, Limits, Network, Order, Provider, ProviderError, Seen,
};
use cove_control::random;
use cove_protocol::process::{Command, Spec};
use cove_protocol::{Event, FailureKind, Reply, Request as Ask};
use serde_json::{Value, json};

const KEY: &str = "csb_top_secret";
const INSIDE: &str = "pint_secret";

#[derive(Default)]
struct Service {
    url: String,
    /// Tags of each sandbox.
    sandboxes: BTreeMap<String, Vec<String>>,
    running: Vec<String>,
    leases: HashMap<String, u64>,
    files: HashMap<String, Vec<u8>>,
    execs: HashMap<String, (String, i32)>,
    /// How often a fork was asked for.
    forks: usize,
}

type Shared = Arc<Mutex<Service>>;

fn data(value: Value) -> Json<Value> {
    Json(json!({"success": true, "data": value}))
}

async fn fork(State(service): State<Shared>, Part(_): Part<String>, Json(body): Json<Value>) -> Response {
    let mut service = service.lock().unwrap();
    service.forks += 1;
    if service.forks == 1 {
        let refused = Json(json!({"success": false, "errors": ["too many requests"]}));
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "0")], refused).into_response();
    }
    let id = format!("csb{}", service.sandboxes.len());
    let tags = body["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap().to_owned()).collect();
    service.sandboxes.insert(id.clone(), tags);
    data(json!({"id": id, "alias": id, "title": body["title"]})).into_response()
}

fn shown(id: &str, tags: &[String]) -> Value {
    json!({"id": id, "tags": tags, "privacy": 2, "is_frozen": false, "settings": {"use_pint": true}})
}

async fn list(State(service): State<Shared>, Query(query): Query<HashMap<String, String>>) -> Json<Value> {
    let service = service.lock().unwrap();
    let with = |tags: &&Vec<String>| tags.contains(&query["tags"]);
    let all: Vec<Value> =
        service.sandboxes.iter().filter(|(_, tags)| with(tags)).map(|(id, tags)| shown(id, tags)).collect();
    let pagination = json!({"total_records": all.len(), "current_page": 1, "next_page": null});
    data(json!({"sandboxes": all, "pagination": pagination}))
}

async fn show(State(service): State<Shared>, Part(id): Part<String>) -> Response {
    match service.lock().unwrap().sandboxes.get(&id) {
        Some(tags) => data(shown(&id, tags)).into_response(),
        None => (StatusCode::NOT_FOUND, Json(json!({"errors": ["not found"]}))).into_response(),
    }
}

async fn running(State(service): State<Shared>) -> Json<Value> {
    let vms: Vec<Value> = service.lock().unwrap().running.iter().map(|id| json!({"id": id, "specs": {}})).collect();
    data(json!({"vms": vms, "concurrent_vm_count": 1, "concurrent_vm_limit": 10}))
}

async fn start(State(service): State<Shared>, Part(id): Part<String>, Json(body): Json<Value>) -> Json<Value> {
    let mut service = service.lock().unwrap();
    if !service.running.contains(&id) {
        service.running.push(id.clone());
    }
    service.leases.insert(id.clone(), body["hibernation_timeout_seconds"].as_u64().unwrap());
    data(json!({"id": id, "use_pint": true, "pint_url": format!("{}/inside", service.url), "pint_token": INSIDE}))
}

async fn hibernate(State(service): State<Shared>, Part(id): Part<String>) -> Json<Value> {
    service.lock().unwrap().running.retain(|other| *other != id);
    data(json!({}))
}

async fn lease(State(service): State<Shared>, Part(id): Part<String>, Json(body): Json<Value>) -> Json<Value> {
    let seconds = body["hibernation_timeout_seconds"].as_u64().unwrap();
    service.lock().unwrap().leases.insert(id, seconds);
    data(json!({}))
}

async fn remove(State(service): State<Shared>, Part(id): Part<String>) -> Json<Value> {
    let mut service = service.lock().unwrap();
    service.running.retain(|other| *other != id);
    service.sandboxes.remove(&id);
    data(json!({}))
}

/// What the recorded commands print and end with.
fn recorded(service: &mut Service, script: &str) -> (String, i32) {
    let last =
        script.split_whitespace().filter(|word| *word != "</dev/null").next_back().unwrap_or_default().to_owned();
    if script.contains("base64 -d") {
        let text = service.files.remove(&format!("{last}.base64")).unwrap_or_default();
        let bytes = BASE64_STANDARD.decode(text).unwrap();
        service.files.insert(last, bytes);
        (String::new(), 0)
    } else if script.contains("base64 -w 0") {
        match service.files.get(&last) {
            Some(bytes) => (BASE64_STANDARD.encode(bytes), 0),
            None => (String::new(), 1),
        }
    } else if script.contains("echo hello") {
        ("hello\n".into(), 3)
    } else {
        // Whether a user is there, and other small things that go well.
        (String::new(), 0)
    }
}

async fn exec(State(service): State<Shared>, Json(body): Json<Value>) -> Response {
    let mut service = service.lock().unwrap();
    let script = body["args"][1].as_str().unwrap().to_owned();
    let ended = recorded(&mut service, &script);
    let id = format!("exec{}", service.execs.len());
    service.execs.insert(id.clone(), ended);
    let told = json!({"id": id, "command": "sh", "args": [], "status": "RUNNING", "pid": 7, "interactive": false, "exitCode": 0});
    (StatusCode::CREATED, Json(told)).into_response()
}

async fn output(State(service): State<Shared>, Part(id): Part<String>) -> Response {
    let (out, code) = service.lock().unwrap().execs[&id].clone();
    let first = json!({"type": "stdout", "output": out, "sequence": 1});
    let last = json!({"type": "stdout", "output": "", "sequence": 2, "exitCode": code});
    ([(header::CONTENT_TYPE, "text/event-stream")], format!("data:{first}\n\ndata:{last}\n\n")).into_response()
}

async fn file(State(service): State<Shared>, Part(path): Part<String>, Json(body): Json<Value>) -> StatusCode {
    let text = body["content"].as_str().unwrap().as_bytes().to_vec();
    service.lock().unwrap().files.insert(path, text);
    StatusCode::CREATED
}

async fn keyed(headers: HeaderMap, request: Request, next: Next) -> Response {
    let wanted = if request.uri().path().starts_with("/inside") { INSIDE } else { KEY };
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if shown != format!("Bearer {wanted}") {
        return (StatusCode::UNAUTHORIZED, Json(json!({"errors": ["who are you?"]}))).into_response();
    }
    next.run(request).await
}

/// A service, and a provider of it.
async fn service(key: &str) -> (Shared, Arc<dyn Provider>) {
    let service = Shared::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    service.lock().unwrap().url = url.clone();
    let router = Router::new()
        .route("/meta/info", get(|| async { Json(json!({"auth": {}})) }))
        .route("/sandbox/{id}/fork", post(fork))
        .route("/sandbox", get(list))
        .route("/sandbox/{id}", get(show))
        .route("/vm/running", get(running))
        .route("/vm/{id}/start", post(start))
        .route("/vm/{id}/hibernate", post(hibernate))
        .route("/vm/{id}/hibernation_timeout", put(lease))
        .route("/vm/{id}", delete(remove))
        .route("/inside/api/v1/execs", post(exec))
        .route("/inside/api/v1/execs/{id}/io", get(output))
        .route("/inside/api/v1/files/{path}", post(file))
        .layer(from_fn(keyed))
        .with_state(Arc::clone(&service));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let keys = [("url", url.as_str()), ("api_key", key), ("template", "tmpl")];
    let keys = keys.map(|(name, value)| (name.to_owned(), toml::Value::from(value))).into_iter().collect();
    let section = Section { kind: "codesandbox".into(), keys };
    let config =
        Config { provider: "csb".into(), providers: BTreeMap::from([("csb".into(), section)]), ..Config::default() };
    let provider = provider::configured(&config, Path::new("/nothing")).unwrap().pop().unwrap();
    (service, provider)
}

fn order() -> Order {
    Order {
        id: random::sandbox_id(),
        earlier: None,
        image: Image::default(),
        durability: Durability::Durable,
        limits: Limits::default(),
        network: Network::Full(Default::default()),
        volumes: Vec::new(),
        hostname: "story".into(),
        env: BTreeMap::new(),
        user: "root".into(),
        cwd: None,
    }
}

async fn said(provider: &Arc<dyn Provider>, handle: &Handle, line: &str) -> (String, i32) {
    let spec = Spec::new(Command::Shell(line.into()));
    let (_, mut operation) = provider.guest(handle).open(&Ask::Start(spec)).await.unwrap();
    let (mut out, mut code) = (Vec::new(), None);
    while let Some(item) = operation.from.next().await.unwrap() {
        match item {
            Item::Stdout(bytes) => out.extend(bytes),
            Item::Event(Event::Exited { exit }) => code = Some(exit.status()),
            other => panic!("{other:?}"),
        }
    }
    (String::from_utf8(out).unwrap(), code.unwrap())
}

#[tokio::test]
async fn a_sandbox_of_codesandbox_lives_from_fork_to_deletion() {
    let (service, provider) = service(KEY).await;
    provider.answers().await.unwrap();
    let order = order();
    let handle = provider.launch(&order).await.unwrap();
    assert_eq!(handle, Handle::new("codesandbox:csb0"));
    assert_eq!(service.lock().unwrap().forks, 2, "it was asked again after a refusal that named a time");
    assert_eq!(service.lock().unwrap().leases["csb0"], 3600);
    assert_eq!(said(&provider, &handle, "echo hello").await, ("hello\n".to_owned(), 3));

    let seen = provider.sighting(&Handle::from(&order.id)).await.unwrap().unwrap();
    assert_eq!((seen.id.clone(), seen.handle, seen.state), (order.id.clone(), handle.clone(), Seen::Running));
    let again = Order { earlier: Some(handle.clone()), ..order.clone() };
    assert_eq!(provider.launch(&again).await.unwrap(), handle, "it runs: nothing to do");
    assert_eq!(service.lock().unwrap().sandboxes.len(), 1);

    provider.stop(&handle, Duration::ZERO).await.unwrap();
    provider.stop(&handle, Duration::ZERO).await.unwrap();
    assert_eq!(provider.sightings().await.unwrap()[0].state, Seen::Stopped);
    let unreachable = provider.guest(&handle).call(&Ask::Ping).await.unwrap_err();
    assert!(matches!(unreachable, GuestError::Unreachable(_)), "{unreachable}");
    provider.launch(&again).await.unwrap();
    assert!(matches!(provider.guest(&handle).call(&Ask::Ping).await, Ok(Reply::Pong { .. })));

    provider.destroy(&handle).await.unwrap();
    provider.destroy(&handle).await.unwrap();
    assert_eq!(provider.sightings().await.unwrap(), []);
}

#[tokio::test]
async fn what_codesandbox_cannot_do_is_said() {
    let (_, provider) = service(KEY).await;
    let closed = Order { network: Network::None, ..order() };
    assert!(matches!(provider.launch(&closed).await.unwrap_err(), ProviderError::Unsupported(_)));
    let handle = provider.launch(&order()).await.unwrap();
    let refused = provider.guest(&handle).call(&Ask::Dial { port: 80 }).await.unwrap_err();
    assert!(
        matches!(&refused, GuestError::Failed(failure) if failure.kind == FailureKind::Unsupported
            && failure.message.contains("codesandbox cannot lead to a port")),
        "{refused}"
    );
    for ability in [Ability::Pause, Ability::NetworkPolicy, Ability::Snapshot] {
        assert!(!provider.capabilities().of(ability).is_yes(), "{ability:?}");
    }
}

#[tokio::test]
async fn a_key_that_the_service_does_not_know_is_told_and_never_shown() {
    let (_, provider) = service("csb_wrong_key").await;
    let refused = provider.answers().await.unwrap_err();
    assert!(matches!(&refused, ProviderError::Unfit(sentence) if sentence.contains("who are you?")), "{refused:?}");
    assert!(!format!("{refused:?}").contains("csb_wrong_key"));
    assert!(matches!(provider.launch(&order()).await.unwrap_err(), ProviderError::Unfit(_)));
}
