//! Every route of every door, with the places where something can be put: the native ones from the document that the server
//! gives, the other dialects from tables.

use cove_testkit::TestServer;
use serde_json::{Map, Value, json};

use super::shapes::Shape;

/// A request that would be in order, and where it can be wrong.
pub struct Route {
    pub method: String,
    pub path: String,
    query: Vec<String>,
    headers: Vec<(String, String)>,
    body: Option<Value>,
    pub places: Vec<Place>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A field of the body, by its path.
    Field(Vec<String>),
    Query(String),
    /// A part of the path, as it is written in it.
    Path(String),
    Header(String),
    /// The whole body.
    Body,
}

impl Place {
    /// Whether it stands before the body, where a server need not understand what comes.
    pub fn is_in_head(&self) -> bool {
        matches!(self, Place::Query(_) | Place::Path(_) | Place::Header(_))
    }

    /// The name of what is put.
    pub fn last(&self) -> &str {
        match self {
            Place::Field(path) => path.last().map_or("", String::as_str),
            Place::Query(name) | Place::Path(name) | Place::Header(name) => name,
            Place::Body => "",
        }
    }
}

/// What goes over the wire.
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

/// Stands in a body for what is put there, since that need not be JSON.
const HERE: &str = "__here__";

impl Route {
    fn new(method: &str, path: &str) -> Route {
        let parts = path.split('/').filter(|part| part.starts_with('{'));
        let places = parts.map(|part| Place::Path(part.to_owned())).collect();
        Route {
            method: method.to_uppercase(),
            path: path.to_owned(),
            query: Vec::new(),
            headers: Vec::new(),
            body: None,
            places,
        }
    }

    fn header(mut self, name: &str, value: &str) -> Route {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    fn query(mut self, names: &[&str]) -> Route {
        self.places.extend(names.iter().map(|name| Place::Query((*name).to_owned())));
        self
    }

    fn body(mut self, base: Value, fields: &[&str]) -> Route {
        let path = |field: &&str| Place::Field(field.split('.').map(ToOwned::to_owned).collect());
        self.places.extend(fields.iter().map(path));
        self.places.push(Place::Body);
        self.body = Some(base);
        self
    }

    /// The request with a shape in one place.
    pub fn with(&self, place: &Place, shape: &Shape, words: &[(&str, String)]) -> Request {
        let mut target = self.path.clone();
        if let Place::Path(part) = place {
            target = target.replace(part.as_str(), &shape.escaped());
        }
        for (word, value) in words.iter().map(|(word, value)| (*word, value.as_str())).chain(ORDINARY) {
            target = target.replace(word, value);
        }
        let mut pairs = self.query.clone();
        if let Place::Query(name) = place {
            pairs.retain(|pair| !pair.starts_with(&format!("{name}=")));
            match shape {
                Shape::Repeated(times) => pairs.extend(vec![format!("{name}=1"); *times]),
                shape => pairs.push(format!("{name}={}", shape.escaped())),
            }
        }
        if !pairs.is_empty() {
            target = format!("{target}?{}", pairs.join("&"));
        }
        let mut headers = self.headers.clone();
        for (_, value) in &mut headers {
            for (word, real) in words {
                *value = value.replace(word, real);
            }
        }
        if let Place::Header(name) = place {
            headers.retain(|(known, _)| known != name);
            match shape {
                Shape::Repeated(times) => headers.extend(vec![(name.clone(), "1".to_owned()); *times]),
                shape => headers.push((name.clone(), shape.header())),
            }
        }
        let body = self.body.as_ref().map(|base| match place {
            Place::Body => shape.json(),
            Place::Field(path) => filled(base, path, shape, words),
            _ => named(base, words).into_bytes(),
        });
        Request { method: self.method.clone(), target, headers, body }
    }
}

fn named(base: &Value, words: &[(&str, String)]) -> String {
    words.iter().fold(base.to_string(), |text, (word, value)| text.replace(word, value))
}

fn filled(base: &Value, path: &[String], shape: &Shape, words: &[(&str, String)]) -> Vec<u8> {
    let mut whole = base.clone();
    let mut at = &mut whole;
    for key in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[key.as_str()];
    }
    *at = HERE.into();
    let text = named(&whole, words);
    let (before, after) = text.split_once(&format!("\"{HERE}\"")).expect("it was put there");
    let mut bytes = before.as_bytes().to_vec();
    bytes.extend(shape.json());
    if let (Shape::Repeated(_), Some(last)) = (shape, path.last()) {
        bytes.extend(format!(",\"{last}\":").into_bytes());
        bytes.extend(shape.json());
    }
    bytes.extend(after.as_bytes());
    bytes
}

/// What stands for the parts of paths that need no more than to be there.
const ORDINARY: [(&str, &str); 16] = [
    ("{session_id}", "nobody"),
    ("{agent_id}", "agent"),
    ("{template}", "nothing"),
    ("{name}", "nothing"),
    ("{process}", "1"),
    ("{port}", "8080"),
    ("{minutes}", "1"),
    ("{is_public}", "true"),
    ("{token}", "t"),
    ("{command}", "c"),
    ("{context}", "c"),
    ("{alias}", "a"),
    ("{other}", "nobody"),
    ("{pty}", "p"),
    ("{shell}", "s"),
    ("{path}", "x"),
];

pub fn all(server: &TestServer) -> Vec<Route> {
    let document = server.request("GET", "/api/openapi.json", None).expect_status(200).json();
    let mut routes = native(&document);
    routes.extend(e2b());
    routes.extend(daytona());
    routes.extend(vercel());
    routes
}

/// Sessions of these calls are nobody's: one of a real sandbox would be ended by the first of them.
fn vercel() -> Vec<Route> {
    let api = |method: &str, path: &str| Route::new(method, &format!("/vercel/api{path}"));
    let session = |method: &str, path: &str| api(method, &format!("/v2/sandboxes/sessions/nobody{path}"));
    let create = [
        "name",
        "ports",
        "source",
        "source.type",
        "source.url",
        "timeout",
        "resources",
        "resources.vcpus",
        "runtime",
        "image",
        "persistent",
        "networkPolicy",
        "networkPolicy.mode",
        "networkPolicy.subnets",
        "env",
        "tags",
        "mounts",
        "region",
    ];
    let listing = ["limit", "sortBy", "sortOrder", "namePrefix", "cursor", "tags"];
    vec![
        // What is in order would be made: this never is.
        api("POST", "/v3/sandboxes").body(json!({"networkId": "nobody"}), &create),
        api("GET", "/v2/sandboxes").query(&listing),
        api("GET", "/v2/sandboxes/{other}").query(&["resume", "projectId"]),
        api("PATCH", "/v2/sandboxes/{other}").body(json!({}), &["tags", "ports", "timeout", "networkPolicy"]),
        api("POST", "/v2/sandboxes/{other}/fork").body(json!({}), &["name", "ports", "timeout", "tags"]),
        session("POST", "/cmd").body(json!({"command": "true"}), &["command", "args", "env", "cwd", "timeout"]),
        session("POST", "/cmd/{command}/kill").body(json!({}), &["signal"]),
        session("POST", "/cmd/{command}/stdin").body(json!({}), &["data", "offset", "close"]),
        session("POST", "/fs/mkdir").body(json!({"path": "x"}), &["path", "cwd"]),
        session("POST", "/fs/read").body(json!({"path": "x"}), &["path", "cwd"]),
        session("POST", "/extend-timeout").body(json!({"duration": 1}), &["duration"]),
        session("POST", "/network-policy").body(json!({"mode": "deny-all"}), &["mode", "allow", "subnets"]),
        api("GET", "/v2/sandboxes/snapshots").query(&["name", "limit", "cursor"]),
        api("GET", "/v2/sandboxes/drives").query(&["namePrefix", "limit", "cursor"]),
    ]
}

/// Calls that would end what all others are tried on: for another sandbox, which is not there.
const ENDS: [&str; 9] = ["/stop", "/pause", "/archive", "/recover", "/tokens", "/limits", "/timers", "/name", "/proxy"];

fn native(document: &Value) -> Vec<Route> {
    let mut routes = Vec::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("operations") {
            // Behind a proxy it is the program inside that answers.
            if path.contains("/proxy") {
                continue;
            }
            let ends = (method != "get" && ENDS.iter().any(|end| path.ends_with(end)))
                || (method == "delete" && matches!(path.as_str(), "/sandboxes/{id}" | "/sessions/{id}"));
            let path =
                if path.starts_with("/sessions/{id}") { path.replace("{id}", "{session}") } else { path.clone() };
            let path = if ends { path.replace("{id}", "{other}").replace("{session}", "{other}") } else { path };
            let mut route = Route::new(method, &format!("/api{path}"));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().expect("a name").to_owned();
                match parameter["in"].as_str() {
                    Some("query") => {
                        if parameter["required"] == true {
                            // Without its folder for what passes, a sandbox is good for little.
                            let value = if method == "delete" { "/tmp/none" } else { "/tmp" };
                            route.query.push(format!("{name}={value}"));
                        }
                        if name == "for_seconds" {
                            route.query.push("for_seconds=1".into());
                        }
                        route.places.push(Place::Query(name));
                    }
                    Some("header") => route.places.push(Place::Header(name.to_lowercase())),
                    _ => {}
                }
            }
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            if !schema.is_null() {
                let (mut base, mut places) = (Map::new(), Vec::new());
                look_at(document, schema, &mut Vec::new(), &mut base, &mut places);
                // Nothing listens there: a repository on the network would have to be waited for.
                if path.contains("/git/") && base.contains_key("url") {
                    base.insert("url".into(), "https://127.0.0.1:1/x".into());
                }
                route.body = Some(Value::Object(base));
                route.places.extend(places);
                route.places.push(Place::Body);
            }
            routes.push(route);
        }
    }
    routes
}

/// Every field of a schema is a place; those that must be there have something ordinary in them.
fn look_at(
    document: &Value,
    schema: &Value,
    path: &mut Vec<String>,
    base: &mut Map<String, Value>,
    places: &mut Vec<Place>,
) {
    let schema = resolved(document, schema);
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        places.push(Place::Field(path.clone()));
        let field = resolved(document, field);
        if field["properties"].is_object() && path.len() < 3 {
            look_at(document, field, path, &mut Map::new(), places);
        }
        if required.contains(&name.as_str()) {
            base.insert(name.clone(), ordinary(name, field));
        }
        path.pop();
    }
}

fn resolved<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return &document["components"]["schemas"][reference.rsplit('/').next().unwrap_or_default()];
    }
    let one = schema["oneOf"].as_array().into_iter().flatten().find(|one| one["$ref"].is_string());
    one.map_or(schema, |one| resolved(document, one))
}

fn ordinary(name: &str, field: &Value) -> Value {
    let kind = field["type"].as_str().or_else(|| field["type"][0].as_str()).unwrap_or("string");
    match (name, kind) {
        ("session_id", _) => "{session}".into(),
        ("url", _) => "https://example.com/hook".into(),
        ("code", _) => "1".into(),
        ("path", _) => "/tmp/sizes".into(),
        (_, "array") => json!([]),
        (_, "object") => json!({}),
        (_, "boolean") => false.into(),
        (_, "integer" | "number") => 1.into(),
        _ => "x".into(),
    }
}

fn e2b() -> Vec<Route> {
    let api = |method: &str, path: &str| Route::new(method, &format!("/e2b{path}"));
    let create = [
        "templateID",
        "timeout",
        "metadata",
        "envVars",
        "secure",
        "autoPause",
        "allow_internet_access",
        "network",
        "network.allowOut",
        "network.denyOut",
        "network.dnsServers",
        "mcp",
        "volumeMounts",
    ];
    let mut routes = vec![
        api("POST", "/sandboxes").body(json!({"templateID": "base", "timeout": 15}), &create),
        api("POST", "/v2/sandboxes").body(json!({"templateID": "base", "timeout": 15}), &create),
        api("GET", "/sandboxes").query(&["metadata", "state", "limit", "nextToken"]),
        api("GET", "/v2/sandboxes").query(&["metadata", "state", "limit", "nextToken", "order"]),
        api("GET", "/sandboxes/metrics").query(&["sandbox_ids"]),
        api("GET", "/sandboxes/{id}"),
        api("DELETE", "/sandboxes/{other}"),
        api("POST", "/sandboxes/{id}/connect").body(json!({"timeout": 300}), &["timeout"]),
        api("POST", "/v2/sandboxes/{id}/connect").body(json!({"timeout": 300}), &["timeout"]),
        api("POST", "/sandboxes/{other}/resume").body(json!({"timeout": 15}), &["timeout", "autoPause"]),
        api("POST", "/sandboxes/{other}/pause").body(json!({}), &["memory"]),
        api("POST", "/sandboxes/{other}/timeout").body(json!({"timeout": 15}), &["timeout"]),
        api("POST", "/sandboxes/{id}/refreshes").body(json!({"duration": 60}), &["duration"]),
        api("PUT", "/sandboxes/{id}/network")
            .body(json!({}), &["allowOut", "denyOut", "dnsServers", "rules", "egressProxy", "maskRequestHost"]),
        api("GET", "/sandboxes/{id}/metrics").query(&["start", "end"]),
        api("GET", "/sandboxes/{id}/logs").query(&["start", "limit"]),
        api("GET", "/v2/sandboxes/{id}/logs").query(&["cursor", "limit", "direction", "level", "search"]),
        api("POST", "/sandboxes/{id}/snapshots").body(json!({}), &["name"]),
        api("GET", "/snapshots").query(&["limit"]),
        api("GET", "/templates").query(&["teamID"]),
        api("GET", "/templates/aliases/{alias}"),
        api("GET", "/templates/{name}"),
        api("DELETE", "/templates/{name}"),
        api("POST", "/v3/templates").body(json!({"name": "x"}), &["name", "cpuCount", "steps"]),
        api("GET", "/volumes"),
        api("GET", "/secrets"),
    ];
    // The daemon and the interpreter, found by headers as the SDKs find them.
    let inside = |port: &str, method: &str, path: &str| {
        Route::new(method, path).header("e2b-sandbox-id", "{id}").header("e2b-sandbox-port", port)
    };
    let envd = |method: &str, path: &str| inside("49983", method, path);
    let mut daemon = vec![
        envd("GET", "/files").query(&["path", "username", "signature", "signature_expiration"]),
        envd("POST", "/files")
            .query(&["path", "username"])
            .header("content-type", "application/octet-stream")
            .body(json!({}), &[]),
        envd("POST", "/files/compose").body(
            json!({"source_paths": ["/tmp/a"], "destination": "/tmp/b"}),
            &["source_paths", "destination", "username"],
        ),
        envd("GET", "/envs"),
        envd("GET", "/metrics"),
    ];
    for (method, base, fields) in [
        ("process.Process/List", json!({}), &["x"][..]),
        (
            "process.Process/Update",
            json!({"process": {"pid": 1}}),
            &["process", "process.pid", "process.tag", "pty", "pty.size.cols"],
        ),
        (
            "process.Process/SendInput",
            json!({"process": {"pid": 1}}),
            &["process", "process.tag", "input", "input.stdin", "input.pty"],
        ),
        (
            "process.Process/SendSignal",
            json!({"process": {"tag": "none"}, "signal": "SIGNAL_SIGTERM"}),
            &["process", "process.pid", "process.tag", "signal"],
        ),
        ("process.Process/CloseStdin", json!({"process": {"tag": "none"}}), &["process.tag"]),
        ("filesystem.Filesystem/Stat", json!({"path": "/tmp"}), &["path"]),
        ("filesystem.Filesystem/ListDir", json!({"path": "/tmp", "depth": 1}), &["path", "depth"]),
        ("filesystem.Filesystem/MakeDir", json!({"path": "/tmp/made"}), &["path"]),
        (
            "filesystem.Filesystem/Move",
            json!({"source": "/tmp/none", "destination": "/tmp/other"}),
            &["source", "destination"],
        ),
        ("filesystem.Filesystem/Remove", json!({"path": "/tmp/none"}), &["path"]),
        ("filesystem.Filesystem/CreateWatcher", json!({"path": "/tmp"}), &["path", "recursive"]),
        ("filesystem.Filesystem/GetWatcherEvents", json!({"watcherId": "w"}), &["watcherId"]),
        ("filesystem.Filesystem/RemoveWatcher", json!({"watcherId": "w"}), &["watcherId"]),
    ] {
        let mut route = envd("POST", &format!("/{method}")).body(base, fields);
        route.places.push(Place::Header("connect-timeout-ms".into()));
        route.places.push(Place::Header("keepalive-ping-interval".into()));
        daemon.push(route);
    }
    let interpreter = |method: &str, path: &str| inside("49999", method, path);
    routes.extend(daemon);
    routes.extend([
        interpreter("POST", "/execute").body(json!({"code": "1"}), &["code", "context_id", "language", "env_vars"]),
        interpreter("GET", "/contexts"),
        interpreter("POST", "/contexts").body(json!({"cwd": "/nowhere"}), &["cwd", "language"]),
        interpreter("POST", "/contexts/{context}/restart"),
        interpreter("DELETE", "/contexts/{context}"),
    ]);
    routes
}

fn daytona() -> Vec<Route> {
    let api = |method: &str, path: &str| Route::new(method, &format!("/daytona/api{path}"));
    let create = [
        "name",
        "snapshot",
        "user",
        "env",
        "labels",
        "public",
        "networkBlockAll",
        "networkAllowList",
        "domainAllowList",
        "target",
        "cpu",
        "memory",
        "disk",
        "autoStopInterval",
        "autoArchiveInterval",
        "autoDeleteInterval",
        "volumes",
        "buildInfo",
        "buildInfo.dockerfileContent",
        "buildInfo.contextHashes",
    ];
    let mut routes = vec![
        api("POST", "/sandbox").body(json!({}), &create),
        api("GET", "/sandbox").query(&["labels", "verbose", "states", "limit", "cursor", "name", "order"]),
        api("GET", "/sandbox/paginated").query(&[
            "labels",
            "page",
            "limit",
            "states",
            "snapshots",
            "createdAtAfter",
            "name",
        ]),
        api("GET", "/sandbox/{id}"),
        api("DELETE", "/sandbox/{other}"),
        api("POST", "/sandbox/{id}/start"),
        api("POST", "/sandbox/{other}/stop"),
        api("PUT", "/sandbox/{id}/labels").body(json!({"labels": {}}), &["labels"]),
        api("POST", "/sandbox/{other}/autostop/{minutes}"),
        api("POST", "/sandbox/{other}/autoarchive/{minutes}"),
        api("POST", "/sandbox/{other}/autodelete/{minutes}"),
        api("POST", "/sandbox/{other}/ttl/{minutes}"),
        api("POST", "/sandbox/{other}/public/{is_public}"),
        api("POST", "/sandbox/{other}/resize").body(json!({"cpu": 1}), &["cpu", "memory", "disk"]),
        api("POST", "/sandbox/{id}/network-settings")
            .body(json!({"networkBlockAll": false}), &["networkBlockAll", "networkAllowList", "domainAllowList"]),
        api("POST", "/sandbox/{id}/last-activity"),
        api("GET", "/sandbox/{id}/ports/{port}/preview-url"),
        api("GET", "/sandbox/{id}/ports/{port}/signed-preview-url").query(&["expiresInSeconds"]),
        api("POST", "/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire"),
        api("GET", "/snapshots").query(&["page", "limit", "name"]),
        api("GET", "/snapshots/{name}"),
        api("GET", "/volumes/{name}"),
        api("GET", "/organizations/{name}"),
        api("POST", "/snapshots").body(json!({"name": "x"}), &["name", "imageName"]),
    ];
    let toolbox = |method: &str, path: &str| Route::new(method, &format!("/daytona/toolbox/{{id}}{path}"));
    routes.extend([
        toolbox("POST", "/process/execute")
            .body(json!({"command": "true", "timeout": 5}), &["command", "cwd", "env", "envs", "timeout"]),
        toolbox("POST", "/process/code-run")
            .body(json!({"code": "1", "timeout": 5}), &["code", "language", "argv", "envs", "timeout"]),
        toolbox("GET", "/process/session"),
        toolbox("POST", "/process/session").body(json!({"sessionId": "{session}"}), &["sessionId"]),
        toolbox("GET", "/process/session/{shell}"),
        toolbox("DELETE", "/process/session/{shell}"),
        toolbox("POST", "/process/session/{shell}/exec")
            .body(json!({"command": "true"}), &["command", "runAsync", "suppressInputEcho"]),
        toolbox("GET", "/process/session/{shell}/command/{command}"),
        toolbox("GET", "/process/session/{shell}/command/{command}/logs").query(&["follow"]),
        toolbox("POST", "/process/session/{shell}/command/{command}/input").body(json!({"data": "x"}), &["data"]),
        toolbox("GET", "/process/pty"),
        toolbox("POST", "/process/pty")
            .body(json!({"id": "{session}"}), &["id", "cwd", "envs", "cols", "rows", "lazyStart"]),
        toolbox("GET", "/process/pty/{pty}"),
        toolbox("POST", "/process/pty/{pty}/resize").body(json!({"cols": 80, "rows": 24}), &["cols", "rows"]),
        toolbox("POST", "/process/interpreter/context").body(json!({"cwd": "/nowhere"}), &["cwd", "language"]),
        toolbox("DELETE", "/process/interpreter/context/{context}"),
        toolbox("GET", "/files").query(&["path"]),
        toolbox("DELETE", "/files").query(&["path", "recursive"]),
        toolbox("GET", "/files/info").query(&["path"]),
        toolbox("POST", "/files/folder").query(&["path", "mode"]),
        toolbox("POST", "/files/move").query(&["source", "destination"]),
        toolbox("POST", "/files/permissions").query(&["path", "mode", "owner", "group"]),
        toolbox("GET", "/files/find").query(&["path", "pattern"]),
        toolbox("GET", "/files/search").query(&["path", "pattern"]),
        toolbox("GET", "/files/download").query(&["path"]),
        toolbox("POST", "/files/replace")
            .body(json!({"files": ["/tmp/none"], "pattern": "a", "newValue": "b"}), &["files", "pattern", "newValue"]),
        toolbox("POST", "/files/bulk-download").body(json!({"paths": ["/tmp/none"]}), &["paths"]),
        toolbox("GET", "/git/status").query(&["path"]),
        toolbox("GET", "/git/branches").query(&["path"]),
        toolbox("GET", "/git/history").query(&["path"]),
        toolbox("POST", "/git/clone").body(
            json!({"url": "https://127.0.0.1:1/x", "path": "/tmp/clone"}),
            &["url", "path", "branch", "commit_id", "username", "password"],
        ),
        toolbox("POST", "/git/add").body(json!({"path": "/tmp", "files": ["a"]}), &["path", "files"]),
        toolbox("POST", "/git/commit").body(
            json!({"path": "/tmp", "message": "m", "author": "a", "email": "e"}),
            &["path", "message", "author", "email", "allow_empty"],
        ),
        toolbox("POST", "/git/checkout").body(json!({"path": "/tmp", "branch": "b"}), &["path", "branch"]),
        toolbox("POST", "/env").body(json!({"set": {"A": "b"}}), &["set", "unset", "env"]),
        toolbox("GET", "/port/{port}/in-use"),
    ]);
    routes
}
