//! A server on a socket of its own: streams, webhooks, and its end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use cove_control::serve;
use futures::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::harness::{TestApp, eventually};

pub struct Server {
    pub address: String,
    pub stop: tokio::sync::oneshot::Sender<()>,
    pub running: tokio::task::JoinHandle<Result<(), cove_control::Error>>,
}

pub async fn serve(t: &TestApp) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(serve::run(listener, t.app.clone(), async {
        let _told = stopped.await;
    }));
    let health = format!("http://{address}/healthz");
    eventually("the server is ready", || async {
        reqwest::get(&health).await.is_ok_and(|answer| answer.status() == 200)
    })
    .await;
    Server { address, stop, running }
}

#[tokio::test]
async fn a_process_is_fed_and_followed_over_a_websocket_and_the_server_ends_in_good_order() {
    let t = TestApp::new().await;
    let server = serve(&t).await;
    let made = t.app.create_sandbox(&t.caller, Default::default()).await.unwrap();
    let url = format!("ws://{}/api/sandboxes/{}/exec/stream", server.address, made.id);
    let mut request = url.into_client_request().unwrap();
    request.headers_mut().insert("authorization", format!("Bearer {}", t.key).parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    socket.send(Message::text(json!({"start": {"shell": "cat; echo end >&2"}}).to_string())).await.unwrap();
    socket.send(Message::binary(&b"hello"[..])).await.unwrap();
    socket.send(Message::text(json!({"type": "end_input"}).to_string())).await.unwrap();
    let mut heard = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        match message {
            Message::Binary(bytes) => {
                heard.push((bytes[0].to_string(), String::from_utf8_lossy(&bytes[1..]).into_owned()))
            }
            Message::Text(text) => {
                let value: Value = serde_json::from_str(&text).unwrap();
                heard.push((value["type"].as_str().unwrap().to_owned(), value["exit"]["status"].to_string()));
            }
            _ => {}
        }
    }
    let expected = [("started", "null"), ("1", "hello"), ("2", "end\n"), ("exited", "0")];
    let expected: Vec<(String, String)> = expected.map(|(a, b)| (a.to_owned(), b.to_owned())).into();
    assert_eq!(heard, expected);
    server.stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(30), server.running).await.expect("ends in time").unwrap().unwrap();
    assert_eq!(t.fake.ids(), [made.id], "sandboxes outlive the server");
}

type Deliveries = Arc<Mutex<Vec<(HeaderMap, String)>>>;

async fn receive(State(deliveries): State<Deliveries>, headers: HeaderMap, body: String) -> StatusCode {
    let mut deliveries = deliveries.lock().unwrap();
    deliveries.push((headers, body));
    // The first is refused: it must come again.
    if deliveries.len() == 1 { StatusCode::INTERNAL_SERVER_ERROR } else { StatusCode::OK }
}

#[tokio::test]
async fn a_webhook_is_signed_and_sent_again_until_it_is_taken() {
    let t = TestApp::new().await;
    let deliveries = Deliveries::default();
    let router = axum::Router::new().route("/", axum::routing::post(receive)).with_state(deliveries.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let hook = t.app.create_webhook(&t.caller, &url, vec!["sandbox.created".into()]).await.unwrap();
    t.app.begin();
    let made = t.app.create_sandbox(&t.caller, Default::default()).await.unwrap();
    eventually("the first delivery", || async { !deliveries.lock().unwrap().is_empty() }).await;
    eventually("the second delivery", || async {
        t.clock.advance(Duration::from_secs(1));
        deliveries.lock().unwrap().len() >= 2
    })
    .await;
    let deliveries = deliveries.lock().unwrap();
    let ((first, _), (second, body)) = (&deliveries[0], &deliveries[1]);
    assert_eq!(first["cove-delivery-id"], second["cove-delivery-id"]);
    let event: Value = serde_json::from_str(body).unwrap();
    assert_eq!((event["kind"].as_str(), event["sandbox"].as_str()), (Some("sandbox.created"), Some(made.id.as_str())));
    let signed = second["cove-signature"].to_str().unwrap();
    let second_of = signed.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
    let at = cove_control::clock::Timestamp::from_second(second_of).unwrap();
    assert_eq!(cove_control::webhook::signature(&hook.secret, at, body.as_bytes()), signed);
}
