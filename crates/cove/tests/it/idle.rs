//! Who is put away when nobody calls: what works stays, what waits goes.

use std::time::Duration;

use cove_testkit::TestServer;
use cove_testkit::wait::until;
use serde_json::{Value, json};

/// Seconds. Longer than a look takes, and short for a test.
const IDLE: u64 = 4;

/// What only waits: a bare sandbox, an interpreter, a shell at its prompt, servers without requests.
const WAITING: [(&str, &str); 5] = [
    ("bare", ""),
    ("sleeper", "sleep 100000"),
    ("python-server", "python3 -m http.server 8000"),
    ("node-server", "node -e 'require(\"http\").createServer(() => {}).listen(8000); setInterval(() => {}, 1000)'"),
    ("heartbeat", "while :; do echo alive >> /tmp/log; sleep 1; done"),
];

/// What works, a twentieth of the time.
const WORKING: [(&str, &str); 1] = [(
    "loop",
    "python3 -c 'import time\nwhile True:\n    end = time.process_time() + 0.05\n    while time.process_time() < end: pass\n    time.sleep(0.95)'",
)];

fn create(server: &TestServer, name: &str, measure: &str, command: &str) {
    let body = json!({"name": name, "timers": {"idle_seconds": IDLE, "idle_measure": measure}});
    let made = server.request("POST", "/api/sandboxes", Some(&body));
    assert_eq!(made.status, 201, "{made:?}");
    if !command.is_empty() {
        let body = json!({"shell": command, "background": true});
        let started = server.request("POST", &format!("/api/sandboxes/{name}/exec"), Some(&body));
        assert_eq!(started.status, 200, "{started:?}");
    }
}

fn seen(server: &TestServer, name: &str) -> Value {
    server.request("GET", &format!("/api/sandboxes/{name}"), None).json()
}

#[test]
fn what_works_in_the_background_stays_and_what_waits_is_stopped() {
    let server = TestServer::start();
    for (name, command) in WAITING.into_iter().chain(WORKING) {
        create(&server, name, "requests_and_work", command);
    }
    create(&server, "requests-alone", "requests", WORKING[0].1);
    create(&server, "processes", "requests_and_processes", "sleep 100000");
    // An interpreter that has run a cell and waits for the next.
    create(&server, "interpreter", "requests_and_work", "");
    let session = json!({"sandbox_id": seen(&server, "interpreter")["id"]});
    let session = server.request("POST", "/api/sessions", Some(&session)).json();
    let cell = json!({"session_id": session["session_id"], "code": "x = 41\nx + 1"});
    let ran = server.request("POST", "/api/execute", Some(&cell));
    assert_eq!(ran.status, 200, "{ran:?}");

    let stopped = WAITING.map(|(name, _)| name).into_iter().chain(["requests-alone", "interpreter"]);
    for name in stopped {
        until(&format!("{name} is stopped"), Duration::from_secs(60), || seen(&server, name)["state"] == "stopped");
        assert_eq!(seen(&server, name)["cause"]["code"], "idle", "{name}");
    }
    for name in WORKING.map(|(name, _)| name).into_iter().chain(["processes"]) {
        assert_eq!(seen(&server, name)["state"], "running", "{name}: {}", seen(&server, name));
    }
}

#[test]
fn a_command_that_its_caller_waits_for_is_not_ended_under_it() {
    let server = TestServer::start();
    create(&server, "box", "requests", "");
    let body = json!({"command": ["sh", "-c", "sleep 9; echo done"]});
    let ran = server.request("POST", "/api/sandboxes/box/exec", Some(&body));
    assert_eq!((ran.status, &ran.json()["stdout"]), (200, &json!("done\n")), "{ran:?}");
    until("it is stopped once nobody waits", Duration::from_secs(60), || seen(&server, "box")["state"] == "stopped");
}

#[test]
fn a_background_command_reads_what_it_was_given() {
    let server = TestServer::start();
    create(&server, "box", "requests", "");
    let long = "a line\n".repeat(50_000);
    for (text, wanted) in [("", "0"), ("two\nlines\n", "2"), (long.as_str(), "50000")] {
        let body = json!({"shell": "wc -l > /tmp/count.new && mv /tmp/count.new /tmp/count", "background": true, "stdin": text});
        let started = server.request("POST", "/api/sandboxes/box/exec", Some(&body));
        assert_eq!(started.status, 200, "{started:?}");
        let look = json!({"shell": "cat /tmp/count 2>/dev/null || true"});
        until(&format!("{wanted} lines were read"), Duration::from_secs(30), || {
            server.request("POST", "/api/sandboxes/box/exec", Some(&look)).json()["stdout"] == format!("{wanted}\n")
        });
    }
}
