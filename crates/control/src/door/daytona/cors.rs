//! Pages of any origin may call this door, as they may call the original: it reflects the origin and takes credentials.
//!
//! That opens nothing. A call shows a key or a token, which no browser adds by itself. A preview is different: the
//! program inside may know its visitors by cookies, and who may use those is the program's to say.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const METHODS: HeaderValue = HeaderValue::from_static("GET,HEAD,PUT,PATCH,POST,DELETE,OPTIONS");

/// Who shows it wants the answer of the program inside, unchanged.
const SWITCHED_OFF: &str = "x-daytona-disable-cors";

pub async fn open(request: Request, next: Next) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else { return next.run(request).await };
    if request.headers().get(SWITCHED_OFF).is_some_and(|value| value == "true") {
        return next.run(request).await;
    }
    let credentials = !is_of_a_program(request.uri().path());
    let asks_first =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    if asks_first {
        let mut response = StatusCode::NO_CONTENT.into_response();
        let headers = response.headers_mut();
        if let Some(asked) = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
        }
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        reflect(headers, origin, credentials);
        return response;
    }
    let mut response = next.run(request).await;
    // A program inside that says who may read it knows best.
    if !response.headers().contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        reflect(response.headers_mut(), origin, credentials);
    }
    response
}

/// Whether a program inside a sandbox answers, below `/daytona` or with it: at a preview, or through the toolbox's proxy.
fn is_of_a_program(path: &str) -> bool {
    let path = path.strip_prefix("/daytona").unwrap_or(path);
    let toolbox = path.strip_prefix("/toolbox/").or_else(|| path.strip_prefix("/api/toolbox/"));
    // The sandbox's id, then the call; old clients write `toolbox` between them.
    let call = toolbox.and_then(|rest| rest.split_once('/')).map(|(_, call)| call);
    let call = call.map(|call| call.strip_prefix("toolbox/").unwrap_or(call));
    path.starts_with("/preview/") || call.is_some_and(|call| call.starts_with("proxy/"))
}

fn reflect(headers: &mut HeaderMap, origin: HeaderValue, credentials: bool) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    if credentials {
        headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    } else {
        // Without an origin of its own choice it means nothing, and with ours it would mean everybody.
        headers.remove(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
    }
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_inside_answers_is_told_from_what_we_do() {
        for path in [
            "/daytona/preview/abc/3000/x",
            "/preview/abc/3000~token",
            "/toolbox/abc/proxy/3000/x",
            "/daytona/toolbox/abc/toolbox/proxy/3000",
            "/api/toolbox/abc/proxy/3000/",
        ] {
            assert!(is_of_a_program(path), "{path}");
        }
        for path in ["/api/sandbox", "/toolbox/abc/files", "/toolbox/proxy/files", "/api/sandbox/proxy/start"] {
            assert!(!is_of_a_program(path), "{path}");
        }
    }
}
