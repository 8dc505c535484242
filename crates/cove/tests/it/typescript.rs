//! Hostile TypeScript on a real server: its memory stays what it was, and others are served meanwhile.

use std::fs;
use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use serde_json::json;

/// Bytes of memory that the server had at most, ever.
fn peak(server: &TestServer) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn session(server: &TestServer) -> String {
    let made = server.request("POST", "/api/sessions", Some(&json!({}))).expect_status(201).json();
    made["session_id"].as_str().unwrap().to_owned()
}

#[test]
fn hostile_typescript_costs_its_own_cell_and_nobody_elses() {
    let server = TestServer::start();
    let session = session(&server);
    let run = |code: &str| {
        let cell = json!({"session_id": session, "code": code, "language": "typescript"});
        server.request("POST", "/api/execute", Some(&cell)).expect_status(200).json()
    };
    let first = run("const x: number = 41; x + 1");
    if first["error"]["value"].as_str().is_some_and(|value| value.contains("need node")) {
        eprintln!("skipped: node is not installed");
        return;
    }
    assert_eq!(first["results"][0]["data"]["text/plain"], "42", "{first}");
    let before = peak(&server);

    let members: Vec<String> = (1..=36).map(|n| format!("a{n}=a{m}+a{m}", m = n - 1)).collect();
    let doubling = format!("enum E{{a0='xxxxxxxxxxxxxxxx',{}}}", members.join(","));
    let nested = format!("{}1{}", "(".repeat(30_000), ")".repeat(30_000));
    std::thread::scope(|scope| {
        let bombs = scope.spawn(|| [run(&doubling), run(&nested)]);
        while !bombs.is_finished() {
            let asked = Instant::now();
            server.request("GET", "/api/sandboxes", None).expect_status(200);
            assert!(asked.elapsed() < Duration::from_secs(10), "served after {:?}", asked.elapsed());
        }
        let [grown, deep] = bombs.join().unwrap();
        let said = |answer: &serde_json::Value| answer["error"]["value"].as_str().unwrap_or_default().to_owned();
        // Whichever is met first; a debug build is slow.
        assert!(
            ["more than 256 MiB of memory", "more than 2 s"].iter().any(|limit| said(&grown).contains(limit)),
            "{grown}"
        );
        assert!(said(&deep).contains("nested too deeply") || said(&deep).contains("MiB of memory"), "{deep}");
    });
    let growth = peak(&server).saturating_sub(before);
    assert!(growth < 64 << 20, "the server grew by {} MiB", growth >> 20);
    assert_eq!(run("x")["results"][0]["data"]["text/plain"], "41", "the context goes on");
}

#[test]
fn a_result_of_many_values_is_refused_before_it_is_parsed() {
    let server = TestServer::start();
    let session = session(&server);
    let run = |code: &str| {
        let cell = json!({"session_id": session, "code": code});
        server.request("POST", "/api/execute", Some(&cell)).expect_status(200).json()
    };
    assert_eq!(run("6 * 7")["results"][0]["data"]["text/plain"], "42");
    let before = peak(&server);
    // As the driver would say it, but by the cell's own hand: no limit of the driver's holds.
    let bomb = run("import sys, os\n\
         channel = next(value for value in __import__('gc').get_objects() if type(value).__name__ == 'Channel')\n\
         line = '{\"cell\": \"%s\", \"event\": \"result\", \"main\": true, \"data\": {\"application/json\": [%s]}}\\n' % (channel.cell, ','.join(['[]'] * 12_000_000))\n\
         data = memoryview(line.encode())\n\
         while data: data = data[os.write(channel.fd, data):]\n");
    assert_eq!(bomb["error"]["name"], "ResultTooLarge", "{bomb}");
    let growth = peak(&server).saturating_sub(before);
    assert!(growth < 256 << 20, "39 MB of empty lists cost {} MiB", growth >> 20);
    assert_eq!(run("6 * 7")["results"][0]["data"]["text/plain"], "42");
}
