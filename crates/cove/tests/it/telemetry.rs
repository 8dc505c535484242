//! The server's traces at a collector of the test, its log as JSON, and its metrics.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cove_testkit::{TestServer, wait};
use serde_json::Value;

/// Takes OTLP over HTTP and keeps every span.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&spans);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || take(stream, &kept));
            }
        });
        Collector { url, spans }
    }

    fn find(&self, name: &str) -> Option<Value> {
        self.spans.lock().unwrap().iter().find(|span| span["name"] == name).cloned()
    }
}

/// One connection: request after request, each answered as a collector does.
fn take(mut stream: std::net::TcpStream, kept: &Mutex<Vec<Value>>) {
    let mut buffer = Vec::new();
    let mut piece = [0u8; 65536];
    loop {
        let head = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(count) => buffer.extend_from_slice(&piece[..count]),
            }
        };
        let text = String::from_utf8_lossy(&buffer[..head]).to_lowercase();
        assert!(text.starts_with("post /v1/traces http/1.1\r\n"), "{text}");
        assert!(text.contains("content-type: application/json"), "{text}");
        let length: usize =
            text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().trim().parse().unwrap();
        while buffer.len() < head + length {
            match stream.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(count) => buffer.extend_from_slice(&piece[..count]),
            }
        }
        let body: Value = serde_json::from_slice(&buffer[head..head + length]).unwrap();
        buffer.drain(..head + length);
        let resource = &body["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "test-cove");
        kept.lock().unwrap().extend(resource["scopeSpans"][0]["spans"].as_array().unwrap().iter().cloned());
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        if stream.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn attribute(span: &Value, name: &str) -> Value {
    let all = span["attributes"].as_array().unwrap();
    let found = all.iter().find(|one| one["key"] == name).unwrap_or_else(|| panic!("no {name} in {span}"));
    found["value"].as_object().unwrap().values().next().unwrap().clone()
}

#[test]
fn a_request_is_a_trace_that_joins_the_callers_and_holds_the_launch() {
    let collector = Collector::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("[telemetry]\nendpoint = \"{}\"\nservice = \"test-cove\"\n", collector.url);
    std::fs::write(file.path(), text).unwrap();
    let server = TestServer::start_with(&["--config", file.path().to_str().unwrap()]);
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let authorization = format!("Bearer {}", server.key());
    let headers = [("authorization", authorization.as_str()), ("traceparent", &parent), ("x-request-id", "mine-1")];
    let made = cove_testkit::http::request(server.address(), "POST", "/api/sandboxes", &headers, None).unwrap();
    assert_eq!(made.status, 201);
    let sandbox = made.json()["id"].as_str().unwrap().to_owned();
    let request =
        wait::until_some("the request's span", Duration::from_secs(20), || collector.find("POST /api/sandboxes"));
    let launch = wait::until_some("the launch's span", Duration::from_secs(20), || collector.find("launch"));
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&trace.into(), &"b7ad6b7169203331".into()));
    assert_eq!((&launch["traceId"], &launch["parentSpanId"]), (&trace.into(), &request["spanId"]));
    assert_eq!(request["kind"], 2);
    assert_eq!(attribute(&request, "http.response.status_code"), "201");
    assert_eq!(attribute(&request, "cove.request"), "mine-1");
    assert_eq!(attribute(&launch, "sandbox"), sandbox.as_str());
    let nanoseconds = |span: &Value, name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
    assert!(nanoseconds(&request, "startTimeUnixNano") <= nanoseconds(&launch, "startTimeUnixNano"));
    assert!(nanoseconds(&launch, "endTimeUnixNano") <= nanoseconds(&request, "endTimeUnixNano"));
}

#[test]
fn a_collector_that_is_away_costs_no_request_and_is_told_once() {
    let server = {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "[telemetry]\nendpoint = \"http://127.0.0.1:9\"\n").unwrap();
        TestServer::start_with(&["--config", file.path().to_str().unwrap(), "--log-json"])
    };
    for _ in 0..20 {
        assert_eq!(server.request("GET", "/api/whoami", None).status, 200);
    }
    wait::until("the complaint", Duration::from_secs(20), || server.log().contains("traces are not taken"));
    // The log is one JSON object a line.
    for line in server.log().lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(entry["timestamp"].is_string() && entry["level"].is_string() && entry["message"].is_string(), "{line}");
    }
    assert_eq!(server.log().matches("traces are not taken").count(), 1);
}

#[test]
fn the_metrics_are_what_prometheus_reads() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let answer = cove_testkit::http::request(server.address(), "GET", "/metrics", &[], None).unwrap();
    assert_eq!(answer.status, 200);
    let text = String::from_utf8(answer.body.clone()).unwrap();
    let families = families(&text);
    let value =
        |name: &str| families.iter().flat_map(|family| &family.1).find(|line| line.0 == name).map(|line| line.1);
    assert_eq!(value("cove_sandboxes{state=\"running\"}"), Some(1.0), "{text}");
    assert_eq!(value("cove_capacity_sandboxes"), Some(1.0));
    let count = value("cove_http_request_duration_seconds_count").unwrap();
    assert!(count >= 1.0);
    assert_eq!(value("cove_http_request_duration_seconds_bucket{le=\"+Inf\"}"), Some(count));
}

type Family = (String, Vec<(String, f64)>);

/// The rules of the text form that scrapers hold to: a family is announced once, with help and type, and all its samples
/// follow it; buckets do not fall.
fn families(text: &str) -> Vec<Family> {
    assert!(text.ends_with('\n'));
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let name = rest.split(' ').next().unwrap().to_owned();
            assert!(families.iter().all(|family| family.0 != name), "{name} twice");
            families.push((name, Vec::new()));
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(families.last().unwrap().0, name);
            assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let family = families.last_mut().unwrap();
            let name = sample.split('{').next().unwrap();
            let known = name.strip_prefix(&family.0).unwrap_or_else(|| panic!("{line} below {}", family.0));
            assert!(["", "_bucket", "_sum", "_count"].contains(&known), "{line}");
            let value: f64 = value.parse().unwrap();
            if let Some((before, last)) = family.1.last()
                && known == "_bucket"
                && before.contains("_bucket")
            {
                assert!(*last <= value, "{line} falls");
            }
            family.1.push((sample.to_owned(), value));
        }
    }
    families
}
