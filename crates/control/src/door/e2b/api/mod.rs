//! The control plane of the dialect: sandboxes, templates, and clear words where something is not served.

mod create;
mod describe;
mod lifecycle;
mod list;
mod logs;
mod metrics;
mod network;
mod templates;
mod unserved;

use axum::Router;
use axum::extract::FromRequestParts;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;

use super::error::{ApiError, plain};
use crate::{App, Caller, Error};

pub fn router(app: App) -> Router {
    Router::new()
        .route("/health", get(|| async { StatusCode::NO_CONTENT }))
        .route("/sandboxes", post(create::v1).get(list::v1))
        .route("/v2/sandboxes", post(create::v2).get(list::v2))
        .route("/sandboxes/metrics", get(metrics::of_many))
        .route("/sandboxes/{id}", get(describe::one).delete(lifecycle::kill))
        .route("/sandboxes/{id}/connect", post(lifecycle::connect))
        .route("/v2/sandboxes/{id}/connect", post(lifecycle::connect))
        .route("/sandboxes/{id}/resume", post(lifecycle::resume))
        .route("/sandboxes/{id}/pause", post(lifecycle::pause))
        .route("/sandboxes/{id}/timeout", post(lifecycle::timeout))
        .route("/sandboxes/{id}/refreshes", post(lifecycle::refresh))
        .route("/sandboxes/{id}/network", put(network::replace))
        .route("/sandboxes/{id}/metrics", get(metrics::of_one))
        .route("/sandboxes/{id}/logs", get(logs::v1))
        .route("/v2/sandboxes/{id}/logs", get(logs::v2))
        .route("/sandboxes/{id}/snapshots", post(unserved::of_sandbox))
        .route("/sandboxes/{id}/fork", post(unserved::of_sandbox))
        .route("/snapshots", get(unserved::no_snapshots))
        .route("/templates", get(templates::list).post(unserved::builds))
        .route("/v2/templates", get(templates::list).post(unserved::builds))
        .route("/default-templates", get(templates::defaults))
        .route("/v3/templates", post(unserved::builds))
        .route("/templates/tags", post(unserved::builds).delete(unserved::builds))
        .route("/templates/aliases/{alias}", get(templates::by_alias))
        .route("/templates/{id}", get(templates::one).delete(templates::remove).patch(unserved::builds))
        .route("/templates/{id}/tags", get(templates::tags))
        .route("/v2/templates/{id}", patch(unserved::builds))
        .route("/volumes", get(unserved::none).post(unserved::volumes))
        .route("/volumes/{id}", get(unserved::volumes).delete(unserved::volumes))
        .route("/secrets", get(unserved::none).post(unserved::secrets))
        .route("/secrets/{id}", get(unserved::secrets).post(unserved::secrets).merge(delete(unserved::secrets)))
        .fallback(|uri: http::Uri| async move { plain(StatusCode::NOT_FOUND, &format!("no route {}", uri.path())) })
        .with_state(app)
}

/// Who calls: the key of the request, checked and counted.
pub struct By(pub Caller);

impl FromRequestParts<App> for By {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let Some(secret) = secret(&parts.headers) else {
            return Err(plain(StatusCode::UNAUTHORIZED, "no API key: send it in the X-API-Key header"));
        };
        let admitted = async {
            let caller = app.authenticate(secret).await?;
            app.admit(&caller).await?;
            Ok(By(caller))
        };
        admitted.await.map_err(|error: Error| ApiError::from(error).into_response())
    }
}

fn secret(headers: &HeaderMap) -> Option<&str> {
    if let Some(key) = headers.get("x-api-key") {
        return key.to_str().ok().filter(|key| !key.is_empty());
    }
    let (scheme, token) = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// A body of JSON; an empty one has every field absent. Whatever its content type says.
pub fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes };
    serde_json::from_slice(bytes).map_err(|error| ApiError::bad(format!("malformed body: {error}")))
}

/// Where previews are, as the client that asked can reach them: the configured domain, with the port that it used
/// itself unless the domain says one. Over https it is the name that the certificate bears.
pub fn domain(app: &App, headers: &HeaderMap, uri: &http::Uri) -> String {
    let secure = headers.get("x-forwarded-proto").is_some_and(|protocol| protocol == "https");
    let certified = crate::tls::certified_domain(&app.config().domain);
    let domain = if secure && !app.config().domain.contains(':') { &certified } else { &app.config().domain };
    let host = uri.authority().map(|authority| authority.as_str());
    let host = host.or_else(|| headers.get(http::header::HOST)?.to_str().ok()).unwrap_or_default();
    // Who asked at `api.{domain}` finds its sandboxes at `{port}-{id}.{domain}`.
    let name = host.split(':').next().unwrap_or_default();
    if let Some(rest) = super::destination::api_domain(name, domain) {
        return host.strip_prefix("api.").unwrap_or(rest).to_owned();
    }
    let Some((name, port)) = host.rsplit_once(':') else { return domain.clone() };
    let local = name == "localhost" || name.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let ours = local || name == domain || name.ends_with(&format!(".{domain}"));
    if domain.contains(':') || !ours { domain.clone() } else { format!("{domain}:{port}") }
}

/// A sandbox that another organisation owns is not there; one that is being destroyed is not there any more.
pub async fn find(app: &App, caller: &Caller, id: &str) -> Result<crate::sandbox::Sandbox, ApiError> {
    use crate::sandbox::State;
    let sandbox = app.sandbox(caller, id).await?;
    match sandbox.state {
        State::Destroying | State::Destroyed => Err(ApiError::from(Error::not_found("sandbox", id))),
        _ => Ok(sandbox),
    }
}
