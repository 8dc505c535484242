//! Reading a process's output from its first byte over the WebSocket.

use std::net::TcpStream;

use cove_testkit::server::{Api, KEY};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};

use super::client::{Cut, LINES};

/// Lines, and the exit status of a process that ended.
pub type Told = (Vec<String>, Option<i64>);

/// Joins the process from the beginning and reads until `enough` lines have come, or its end. Returns the lines and the
/// exit status, if it ended.
pub fn lines(api: &Api, id: &str, tag: &str, enough: usize) -> Result<Told, Cut> {
    let url = format!("ws://{}/api/sandboxes/{id}/exec/stream", api.address);
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let stream = TcpStream::connect(&api.address).map_err(|_| Cut)?;
    stream.set_read_timeout(Some(cove_testkit::wait::LIMIT)).unwrap();
    let (mut socket, _) = tungstenite::client(request, stream).map_err(|_| Cut)?;
    socket.send(Message::text(json!({"attach": {"tag": tag, "from": 0}}).to_string())).map_err(|_| Cut)?;
    let mut output = Vec::new();
    loop {
        match socket.read().map_err(|_| Cut)? {
            Message::Binary(bytes) => output.extend_from_slice(&bytes[1..]),
            Message::Text(text) => {
                let told: Value = serde_json::from_str(&text).unwrap();
                match told["type"].as_str() {
                    Some("exited") => return Ok((split(&output), told["exit"]["status"].as_i64())),
                    Some("started") => assert_eq!(told["output_start"], 0, "the first byte is still there"),
                    _ => panic!("process {tag} of {id}: {told}"),
                }
            }
            _ => {}
        }
        if output.iter().filter(|&&byte| byte == b'\n').count() >= enough {
            return Ok((split(&output), None));
        }
    }
}

fn split(output: &[u8]) -> Vec<String> {
    let whole = output.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    String::from_utf8_lossy(&output[..whole]).lines().map(ToOwned::to_owned).collect()
}

/// A command that numbers its lines.
pub fn counting() -> String {
    format!("i=0; while [ $i -lt {LINES} ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 9")
}

/// Line after line, none lost, none twice.
pub fn check(lines: &[String], of: &str) {
    for (number, line) in lines.iter().enumerate() {
        assert_eq!(*line, number.to_string(), "line {number} of {of}");
    }
}
