//! A request to a port of a sandbox, as this dialect answers when nothing comes back.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::problem::{Answer, Problem, Speaker};
use crate::door::relay::{self, Broken, Host, Inside};
use crate::door::shield;

/// `below` is the path that the application's own root has outside: its redirects are put there.
pub async fn to_port(inside: Inside<'_>, below: &str, request: Request) -> Answer<Response> {
    // Development servers answer to this name and often to no other.
    let host = Host::Named(format!("localhost:{}", inside.port));
    let mut answer = relay::to_port(inside, host, request).await.map_err(|broken| match broken {
        Broken::Guest(error) => error.into(),
        Broken::Closed(_) | Broken::BrokeOff { .. } => problem(StatusCode::BAD_GATEWAY, "BAD_GATEWAY", &broken),
        Broken::TooSlow(_) => problem(StatusCode::GATEWAY_TIMEOUT, "GATEWAY_TIMEOUT", &broken),
    })?;
    put_redirect_below(answer.headers_mut(), below);
    shield::below(below, answer.headers_mut());
    Ok(answer)
}

fn problem(status: StatusCode, code: &'static str, broken: &Broken) -> Problem {
    Problem { status, code, speaker: Speaker::Proxy, message: broken.to_string(), retry_after: None }
}

fn put_redirect_below(headers: &mut HeaderMap, below: &str) {
    let Some(location) = headers.get(header::LOCATION).and_then(|value| value.to_str().ok()) else { return };
    // `//host` is another server.
    if location.starts_with('/')
        && !location.starts_with("//")
        && let Ok(moved) = HeaderValue::from_str(&format!("{below}{location}"))
    {
        headers.insert(header::LOCATION, moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_of_the_application_stays_in_its_preview() {
        let moved = |to: &'static str| {
            let mut headers = HeaderMap::from_iter([(header::LOCATION, HeaderValue::from_static(to))]);
            put_redirect_below(&mut headers, "/daytona/preview/abc/3000");
            headers[header::LOCATION].to_str().unwrap().to_owned()
        };
        assert_eq!(moved("/login"), "/daytona/preview/abc/3000/login");
        assert_eq!(moved("https://elsewhere.example/"), "https://elsewhere.example/");
        assert_eq!(moved("//elsewhere.example/"), "//elsewhere.example/");
    }
}
