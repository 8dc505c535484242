//! A sandbox's own ports from outside, as this dialect answers when nothing comes back.

use axum::body::Body;
use axum::response::Response;
use cove_protocol::{Reply, Request as Ask};
use http::{Request, StatusCode};

use super::destination::Reached;
use super::error::{for_reader, plain, port_closed, sandbox_not_found};
use crate::door::relay::{self, Broken, Host, Inside};
use crate::door::shield;
use crate::guest::{Guest, GuestError};

/// Passes one request to a port of the sandbox and its answer back. `host` replaces the Host header where given.
pub async fn forward(inside: Inside<'_>, named: Reached, host: Option<&str>, request: Request<Body>) -> Response {
    let Inside { sandbox, guest, port, .. } = inside;
    let (wants, id) = (request.headers().clone(), sandbox.id.as_str());
    let host = host.map_or(Host::AsSent, |mask| Host::Named(mask.replace("${PORT}", &port.to_string())));
    match relay::to_port(inside, host, request).await {
        Ok(mut answer) => {
            match named {
                Reached::ByHost => shield::at_host(answer.headers_mut()),
                Reached::ByHeader => shield::at_the_api(answer.headers_mut()),
            }
            answer
        }
        Err(Broken::Closed(_)) => {
            let answer = port_closed(id, port, &open_ports(guest).await);
            let advice = format!("The sandbox is running, but nothing listens on port {port} inside it.");
            for_reader(&wants, answer, "Nothing here yet", &advice)
        }
        Err(Broken::Guest(GuestError::Unreachable(_))) => sandbox_not_found(id),
        Err(broken @ (Broken::Guest(_) | Broken::BrokeOff { .. })) => {
            plain(StatusCode::BAD_GATEWAY, &broken.to_string())
        }
        Err(broken @ Broken::TooSlow(_)) => plain(StatusCode::GATEWAY_TIMEOUT, &broken.to_string()),
    }
}

async fn open_ports(guest: &Guest) -> Vec<u16> {
    match guest.call(&Ask::Ports).await {
        Ok(Reply::Ports { ports }) => ports.into_iter().map(|port| port.port).take(100).collect(),
        _ => Vec::new(),
    }
}
