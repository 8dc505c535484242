//! A registry for the tests: tokens, ranges, uploads; and a hook that answers otherwise.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::digest::Digest;
use crate::manifest::{OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, Platform};

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: String,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn header(&self, name: header::HeaderName) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

type Hook = Box<dyn FnMut(&Seen) -> Option<Response> + Send>;

/// What clients must show.
#[derive(Clone)]
pub enum Door {
    Open,
    Basic(&'static str),
    /// A token of the realm, which wants `user:password` itself if there is one.
    Token {
        realm: Option<String>,
        password: Option<&'static str>,
    },
}

pub struct Inner {
    address: SocketAddr,
    pub blobs: Mutex<HashMap<Digest, Vec<u8>>>,
    /// By repository and tag or digest.
    pub manifests: Mutex<HashMap<(String, String), Vec<u8>>>,
    pub seen: Mutex<Vec<Seen>>,
    door: Mutex<Door>,
    /// The number in the token that is good.
    pub token: Mutex<u32>,
    hook: Mutex<Option<Hook>>,
    uploads: Mutex<HashMap<String, Vec<u8>>>,
}

#[derive(Clone)]
pub struct Fake(pub Arc<Inner>);

impl Fake {
    pub async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let inner = Inner {
            address: listener.local_addr().unwrap(),
            blobs: Mutex::default(),
            manifests: Mutex::default(),
            seen: Mutex::default(),
            door: Mutex::new(Door::Open),
            token: Mutex::new(0),
            hook: Mutex::default(),
            uploads: Mutex::default(),
        };
        let fake = Fake(Arc::new(inner));
        let router = Router::new().fallback(serve).with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        fake
    }

    pub fn host(&self) -> String {
        self.0.address.to_string()
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    pub fn lock(&self, door: Door) {
        *self.0.door.lock().unwrap() = door;
    }

    /// Answers first, where it wants to.
    pub fn hook(&self, hook: impl FnMut(&Seen) -> Option<Response> + Send + 'static) {
        *self.0.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.0.seen.lock().unwrap().clone()
    }

    pub fn count(&self, method: &Method, part: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == *method && seen.path.contains(part)).count()
    }

    pub fn blob(&self, bytes: &[u8], media_type: &str) -> Value {
        self.0.blobs.lock().unwrap().insert(Digest::of(bytes), bytes.to_vec());
        json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len()})
    }

    pub fn manifest(&self, repository: &str, tag: &str, manifest: &Value) -> Digest {
        let bytes = manifest.to_string().into_bytes();
        let digest = Digest::of(&bytes);
        let mut manifests = self.0.manifests.lock().unwrap();
        for target in [tag.to_owned(), digest.to_string()] {
            manifests.insert((repository.to_owned(), target), bytes.clone());
        }
        digest
    }

    /// An image with these layers, behind an index.
    pub fn image(&self, repository: &str, tag: &str, layers: &[&[u8]]) -> Digest {
        let diff_ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
        let host = Platform::host();
        let config = json!({"os": host.os, "architecture": host.architecture, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
        let config = self.blob(config.to_string().as_bytes(), OCI_CONFIG);
        let layers: Vec<Value> = layers.iter().map(|layer| self.blob(layer, OCI_LAYER)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers});
        let size = manifest.to_string().len();
        let inner = self.manifest(repository, "inner", &manifest);
        let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
            {"mediaType": OCI_MANIFEST, "digest": Digest::of(b"attestation"), "size": 7, "platform": {"os": "unknown", "architecture": "unknown"}},
            {"mediaType": OCI_MANIFEST, "digest": inner, "size": size, "platform": host},
        ]});
        self.manifest(repository, tag, &index)
    }
}

async fn serve(State(fake): State<Fake>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default().to_vec();
    let seen = Seen {
        method: parts.method,
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body,
    };
    fake.0.seen.lock().unwrap().push(seen.clone());
    let hooked = fake.0.hook.lock().unwrap().as_mut().and_then(|hook| hook(&seen));
    match hooked {
        Some(response) => response,
        None => fake.answer(&seen),
    }
}

pub fn status(status: u16) -> Response {
    StatusCode::from_u16(status).unwrap().into_response()
}

/// Says one length, sends these pieces, and then ends or breaks.
pub fn pieces(code: u16, length: Option<usize>, all: Vec<std::io::Result<Bytes>>) -> Response {
    let mut response = Response::builder().status(code);
    if let Some(length) = length {
        response = response.header(header::CONTENT_LENGTH, length);
    }
    response.body(Body::from_stream(futures::stream::iter(all))).unwrap()
}

impl Fake {
    fn answer(&self, seen: &Seen) -> Response {
        if seen.path == "/token" {
            return self.realm(seen);
        }
        if let Some(refusal) = self.challenge(seen) {
            return refusal;
        }
        let Some(rest) = seen.path.strip_prefix("/v2/") else { return status(404) };
        if rest.is_empty() {
            return status(200);
        }
        if let Some((repository, target)) = rest.split_once("/manifests/") {
            return self.manifests(seen, repository, target);
        }
        if let Some((_, upload)) = rest.split_once("/blobs/uploads/") {
            return self.upload(seen, upload);
        }
        match rest.split_once("/blobs/") {
            Some((_, digest)) => self.blobs(seen, digest),
            None => status(404),
        }
    }

    fn challenge(&self, seen: &Seen) -> Option<Response> {
        let shown = seen.header(header::AUTHORIZATION);
        let (wanted, asks) = match &*self.0.door.lock().unwrap() {
            Door::Open => return None,
            Door::Basic(password) => {
                (format!("Basic {}", STANDARD.encode(password)), "Basic realm=\"test\"".to_owned())
            }
            Door::Token { realm, .. } => {
                let realm = realm.clone().unwrap_or_else(|| format!("http://{}/token", self.host()));
                let asks = format!("Bearer realm=\"{realm}\",service=\"test\",scope=\"repository:a/b:pull\"");
                (format!("Bearer t{}", self.0.token.lock().unwrap()), asks)
            }
        };
        if shown == Some(wanted.as_str()) {
            return None;
        }
        Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, asks)]).into_response())
    }

    fn realm(&self, seen: &Seen) -> Response {
        if let Door::Token { password: Some(password), .. } = &*self.0.door.lock().unwrap() {
            let wanted = format!("Basic {}", STANDARD.encode(password));
            let refresh = format!("refresh_token={password}");
            let by_form = seen.method == Method::POST && String::from_utf8_lossy(&seen.body).contains(&refresh);
            if seen.header(header::AUTHORIZATION) != Some(wanted.as_str()) && !by_form {
                return (
                    StatusCode::UNAUTHORIZED,
                    r#"{"errors":[{"code":"UNAUTHORIZED","message":"wrong password"}]}"#,
                )
                    .into_response();
            }
        }
        json!({"token": format!("t{}", self.0.token.lock().unwrap()), "expires_in": 300}).to_string().into_response()
    }

    fn manifests(&self, seen: &Seen, repository: &str, target: &str) -> Response {
        let place = (repository.to_owned(), target.to_owned());
        if seen.method == Method::PUT {
            let digest = Digest::of(&seen.body).to_string();
            let mut manifests = self.0.manifests.lock().unwrap();
            manifests.insert((repository.to_owned(), digest), seen.body.clone());
            manifests.insert(place, seen.body.clone());
            return status(201);
        }
        let Some(bytes) = self.0.manifests.lock().unwrap().get(&place).cloned() else { return status(404) };
        // As registries of version 2.8 do.
        let accepted: Vec<_> =
            seen.headers.get_all(header::ACCEPT).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        if !accepted.iter().any(|accepted| accepted == OCI_INDEX) {
            return status(404);
        }
        let headers =
            [("docker-content-digest", Digest::of(&bytes).to_string()), ("content-type", OCI_MANIFEST.to_owned())];
        (headers, bytes).into_response()
    }

    fn blobs(&self, seen: &Seen, digest: &str) -> Response {
        let found = digest.parse().ok().and_then(|digest: Digest| self.0.blobs.lock().unwrap().get(&digest).cloned());
        let Some(bytes) = found else { return status(404) };
        let range = seen
            .header(header::RANGE)
            .and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
        match range {
            None => bytes.into_response(),
            Some(start) if start >= bytes.len() => status(416),
            Some(start) => {
                let range = format!("bytes {start}-{}/{}", bytes.len() - 1, bytes.len());
                (StatusCode::PARTIAL_CONTENT, [(header::CONTENT_RANGE, range)], bytes[start..].to_vec()).into_response()
            }
        }
    }

    fn upload(&self, seen: &Seen, id: &str) -> Response {
        let query: HashMap<String, String> = reqwest::Url::parse(&format!("http://x/?{}", seen.query))
            .unwrap()
            .query_pairs()
            .map(|(key, value)| (key.into_owned(), value.into_owned()))
            .collect();
        let digest = query.get("digest").or(query.get("mount")).and_then(|text| text.parse::<Digest>().ok());
        let place = |id: &str| [(header::LOCATION, format!("/v2/a/b/blobs/uploads/{id}?state=x"))];
        let mut uploads = self.0.uploads.lock().unwrap();
        match seen.method {
            Method::POST if digest.is_some_and(|digest| self.0.blobs.lock().unwrap().contains_key(&digest)) => {
                status(201)
            }
            Method::POST => {
                // Several may be under way.
                let id = format!("u{}", self.0.seen.lock().unwrap().len());
                uploads.insert(id.clone(), Vec::new());
                (StatusCode::ACCEPTED, place(&id)).into_response()
            }
            Method::PATCH => {
                let upload = uploads.get_mut(id).unwrap();
                let range = format!("{}-{}", upload.len(), upload.len() + seen.body.len() - 1);
                assert_eq!(seen.header(header::CONTENT_RANGE), Some(range.as_str()));
                upload.extend_from_slice(&seen.body);
                (StatusCode::ACCEPTED, place(id)).into_response()
            }
            _ => {
                let mut whole = uploads.remove(id).unwrap();
                whole.extend_from_slice(&seen.body);
                if Some(Digest::of(&whole)) != digest {
                    return status(400);
                }
                self.0.blobs.lock().unwrap().insert(Digest::of(&whole), whole);
                status(201)
            }
        }
    }
}
