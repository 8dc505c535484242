//! A command that ends while input still comes: its last words arrive.

use std::net::TcpStream;

use cove_testkit::TestServer;
use cove_testkit::server::KEY;
use cove_testkit::wait::LIMIT;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};

type Socket = tungstenite::WebSocket<TcpStream>;

fn open(server: &TestServer, id: &str) -> Socket {
    let url = format!("ws://{}/api/sandboxes/{id}/exec/stream", server.address());
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    tungstenite::client(request, stream).expect("a WebSocket").0
}

fn made(server: &TestServer) -> String {
    let made = server.request("POST", "/api/sandboxes", Some(&json!({}))).expect_status(201).json();
    made["id"].as_str().unwrap().to_owned()
}

#[test]
fn input_that_nobody_reads_any_more_does_not_cost_the_exit() {
    let server = TestServer::start();
    let id = made(&server);
    for round in 0..40 {
        let mut socket = open(&server, &id);
        let start = json!({"start": {"shell": "echo last words; exit 4"}});
        socket.send(Message::text(start.to_string())).unwrap();
        for _ in 0..64 {
            socket.send(Message::binary(vec![b'x'; 2048])).unwrap();
        }
        socket.send(Message::text(json!({"type": "end_input"}).to_string())).unwrap();
        let mut output = Vec::new();
        let exit = loop {
            match socket.read().unwrap_or_else(|error| panic!("round {round}: before the exit: {error}")) {
                Message::Binary(bytes) => output.extend_from_slice(&bytes[1..]),
                Message::Text(text) => {
                    let told: Value = serde_json::from_str(&text).unwrap();
                    if told["type"] == "exited" {
                        break told["exit"]["status"].clone();
                    }
                    assert_eq!(told["type"], "started", "round {round}: {told}");
                }
                _ => {}
            }
        };
        assert_eq!((output.as_slice(), exit), (&b"last words\n"[..], json!(4)), "round {round}");
    }
}

#[test]
fn a_message_that_cannot_be_understood_is_told_and_the_command_goes_on() {
    let server = TestServer::start();
    let id = made(&server);
    let mut socket = open(&server, &id);
    socket.send(Message::text(json!({"start": {"shell": "cat", "tag": "cat"}}).to_string())).unwrap();
    socket.send(Message::text(json!({"type": "sing"}).to_string())).unwrap();
    let told: Vec<Value> = std::iter::from_fn(|| match socket.read() {
        Ok(Message::Text(text)) => Some(serde_json::from_str(&text).unwrap()),
        _ => None,
    })
    .collect();
    let kinds: Vec<&Value> = told.iter().map(|word| &word["type"]).collect();
    assert_eq!(kinds, ["started", "error"], "{told:?}");
    let cat = server.request("GET", &format!("/api/sandboxes/{id}/processes/cat"), None).expect_status(200).json();
    assert!(cat["exit"].is_null(), "{cat}");
}
