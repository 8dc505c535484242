//! How this server speaks with another one of the same store: the client that the door sends requests on with, and
//! questions of its own.

use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, Uri, header};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use super::proof::{HEADER, SentOn};
use crate::App;

pub(crate) type Client = legacy::Client<HttpsConnector<HttpConnector>, Body>;

/// A server that is there takes a connection at once.
const CONNECT: Duration = Duration::from_secs(5);
/// How long it may take to begin an answer.
const ANSWER: Duration = Duration::from_secs(30);

pub(crate) fn client(app: &App) -> Client {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_nodelay(true);
    connector.enforce_http(false);
    let secured = HttpsConnectorBuilder::new().with_tls_config(app.peer_trust().clone());
    // HTTP/1.1 on both: an upgrade is an upgrade on the other side too.
    let connector = secured.https_or_http().enable_http1().wrap_connector(connector);
    legacy::Client::builder(TokioExecutor::new()).build(connector)
}

/// Asks another server for something that it tells its own kind alone. `path` has the query. The error continues a sentence that
/// begins with the server.
pub(super) async fn ask(app: &App, url: &str, path: &str) -> Result<Response<Incoming>, String> {
    let uri: Uri = format!("{}{path}", url.trim_end_matches('/'))
        .parse()
        .map_err(|error| format!("has a wrong address: {error}"))?;
    let host = uri.authority().ok_or("has a wrong address")?.as_str().to_owned();
    let secret = app.peer_secret().ok_or("shares no secret with this one")?;
    let proof = SentOn { server: app.server(), method: "GET", path, host: &host.to_ascii_lowercase() };
    let request = Request::get(uri)
        .header(header::HOST, &host)
        .header(HEADER, proof.prove(secret, app.now().as_millisecond()))
        .body(Body::empty())
        .map_err(|error| error.to_string())?;
    let asked = tokio::time::timeout(ANSWER, client(app).request(request)).await;
    let answer = asked.map_err(|_| "does not answer".to_owned())?;
    answer.map_err(|error| format!("could not be reached: {}", cause(&error)))
}

/// The innermost reason: what lies around it says where, which is not for callers.
pub(crate) fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
