//! A server whose sandboxes are elsewhere, as its clients see it: killed in the middle of a command.

use std::net::TcpStream;

use cove_testkit::TestServer;
use cove_testkit::server::KEY;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message, WebSocket};

use super::far;
use super::place::Place;

const LINES: usize = 400;
const TAG: &str = "long";

#[test]
fn nothing_of_a_command_in_a_container_is_lost_when_the_server_is_killed() {
    if let Some(place) = Place::docker() {
        the_client_has_the_whole_output(&place);
    }
}

#[test]
fn nothing_of_a_command_at_a_service_is_lost_when_the_server_is_killed() {
    for (kind, keys) in far::KINDS {
        if let Some(place) = Place::far(kind, keys) {
            the_client_has_the_whole_output(&place);
        }
    }
}

fn the_client_has_the_whole_output(place: &Place) {
    let mut server = place.serve();
    let made = server.request("POST", "/api/sandboxes", Some(&json!({ "name": "box" }))).expect_status(201).json();
    let line = format!("i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 9");
    let mut heard = Heard::default();
    let mut socket = speak(&server, &json!({ "start": { "shell": line, "tag": TAG } }));
    while heard.output.len() < 200 {
        heard.hear(&mut socket);
    }
    server.kill();
    server.restart();
    assert_eq!(heard.status, None, "it was in the middle");
    let mut socket = speak(&server, &json!({ "attach": { "tag": TAG, "from": heard.output.len() } }));
    while heard.status.is_none() {
        heard.hear(&mut socket);
    }
    let whole: String = (0..LINES).map(|number| format!("line {number}\n")).collect();
    assert_eq!((String::from_utf8(heard.output).unwrap(), heard.status), (whole, Some(9)));
    server.cove(["rm", "box"]).finish().expect_success();
    assert!(made["id"].is_string());
}

#[derive(Default)]
struct Heard {
    output: Vec<u8>,
    status: Option<i64>,
}

impl Heard {
    fn hear(&mut self, socket: &mut WebSocket<TcpStream>) {
        match socket.read().expect("the server speaks") {
            Message::Binary(bytes) => self.output.extend_from_slice(&bytes[1..]),
            Message::Text(text) => {
                let told: Value = serde_json::from_str(&text).unwrap();
                match told["type"].as_str() {
                    Some("started") => {}
                    Some("exited") => self.status = told["exit"]["status"].as_i64(),
                    _ => panic!("{told}"),
                }
            }
            _ => {}
        }
    }
}

fn speak(server: &TestServer, opening: &Value) -> WebSocket<TcpStream> {
    let url = format!("ws://{}/api/sandboxes/box/exec/stream", server.address());
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let stream = TcpStream::connect(server.address()).unwrap();
    stream.set_read_timeout(Some(cove_testkit::wait::LIMIT)).unwrap();
    let (mut socket, _) = tungstenite::client(request, stream).unwrap();
    socket.send(Message::text(opening.to_string())).unwrap();
    socket
}
