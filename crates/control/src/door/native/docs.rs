//! The API document for programs and, as one page without anything from elsewhere, for people.

use std::sync::OnceLock;

use axum::http::header;
use axum::response::{Html, IntoResponse};

use super::openapi::document;

fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| document().to_pretty_json().unwrap_or_default())
}

/// This document
#[utoipa::path(get, path = "/openapi.json", tag = "documents", security(()),
    responses((status = 200, description = "OpenAPI 3.1", body = serde_json::Value)))]
pub async fn json() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text())
}

/// This document for people
#[utoipa::path(get, path = "/docs", tag = "documents", security(()),
    responses((status = 200, description = "A page that needs nothing from elsewhere", body = String, content_type = "text/html")))]
pub async fn page() -> impl IntoResponse {
    static PAGE: OnceLock<String> = OnceLock::new();
    // `<` must not end the script that holds the document.
    let page = PAGE.get_or_init(|| include_str!("docs.html").replace("{{document}}", &text().replace('<', "\\u003c")));
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(page.as_str()))
}
