//! A call's parameters are those that the API document names; any other is refused by its name.
//!
//! The document is made of the handlers, so a parameter that is added to one is known here at once.

use std::collections::HashMap;
use std::sync::OnceLock;

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, ParameterIn};

use super::error::ApiError;
use super::openapi;
use crate::Error;
use crate::door::known::{parameters, unknown_field, unknown_parameter};

/// What a call takes.
struct Call {
    query: Vec<String>,
    body: bool,
}

/// A body where none is taken is read this far, to name what is in it.
const LARGEST: usize = 64 << 10;

/// How a browser shows its key when it opens a WebSocket.
const KEY: &str = "api_key";

fn calls() -> &'static HashMap<(Method, String), Call> {
    static CALLS: OnceLock<HashMap<(Method, String), Call>> = OnceLock::new();
    CALLS.get_or_init(|| {
        let mut calls = HashMap::new();
        for (path, item) in openapi::document().paths.paths {
            let operations = [
                (Method::GET, item.get),
                (Method::PUT, item.put),
                (Method::POST, item.post),
                (Method::PATCH, item.patch),
                (Method::DELETE, item.delete),
            ];
            for (method, operation) in operations {
                if let Some(operation) = operation {
                    calls.insert((method, path.clone()), call(&operation));
                }
            }
        }
        calls
    })
}

fn call(operation: &Operation) -> Call {
    let parameters = operation.parameters.iter().flatten();
    let query = parameters.filter(|one| matches!(one.parameter_in, ParameterIn::Query)).map(|one| one.name.clone());
    Call { query: query.collect(), body: operation.request_body.is_some() }
}

pub async fn guard(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned()).unwrap_or_default();
    let path = path.strip_prefix("/api").unwrap_or(&path).to_owned();
    // HEAD is answered by the handler of GET.
    let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
    let Some(call) = calls().get(&(method, path)) else { return next.run(request).await };
    if let Err(error) = check_query(&request, call) {
        return ApiError(error).into_response();
    }
    if call.body || request.method() == Method::GET || request.method() == Method::HEAD {
        return next.run(request).await;
    }
    match without_fields(request).await {
        Ok(request) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    }
}

fn check_query(request: &Request, call: &Call) -> Result<(), Error> {
    let upgrades = request.headers().contains_key(header::UPGRADE);
    for name in parameters(request.uri().query().unwrap_or_default()) {
        let is_key = upgrades && name == KEY;
        if !is_key && !call.query.contains(&name) {
            let known: Vec<&str> = call.query.iter().map(String::as_str).collect();
            return Err(Error::invalid("query", unknown_parameter(&name, &known)));
        }
    }
    Ok(())
}

/// For a call that takes no body: an empty one, or an object without fields, is as good as none.
async fn without_fields(request: Request) -> Result<Request, Error> {
    let (parts, body) = request.into_parts();
    let bytes = axum::body::to_bytes(body, LARGEST).await;
    let bytes = bytes.map_err(|_| Error::invalid("body", "this call takes none"))?;
    match serde_json::from_slice::<serde_json::Value>(&bytes) {
        Ok(serde_json::Value::Object(fields)) => match fields.keys().next() {
            Some(name) => Err(Error::invalid("body", unknown_field(name, &[]))),
            None => Ok(Request::from_parts(parts, Body::empty())),
        },
        Ok(serde_json::Value::Null) => Ok(Request::from_parts(parts, Body::empty())),
        _ if bytes.trim_ascii().is_empty() => Ok(Request::from_parts(parts, Body::empty())),
        _ => Err(Error::invalid("body", "this call takes none")),
    }
}
