//! Webhooks: events sent to you.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{Body, Path};
use crate::App;
use crate::clock::Timestamp;
use crate::event::Kind;
use crate::webhook::Webhook;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct WebhookView {
    id: String,
    url: String,
    /// All where empty.
    #[schema(value_type = Vec<Kind>)]
    kinds: Vec<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// What deliveries are signed with; told at creation alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

fn view(webhook: Webhook, secret: Option<String>) -> WebhookView {
    WebhookView { id: webhook.id, url: webhook.url, kinds: webhook.kinds, created_at: webhook.created_at, secret }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateWebhook {
    url: String,
    /// Kinds of event; an empty list means all.
    #[serde(default)]
    #[schema(value_type = Vec<Kind>)]
    kinds: Vec<String>,
}

/// Create a webhook
///
/// Deliveries are POSTs with `Cove-Signature: t=SECONDS,v1=HEX`: HMAC-SHA256 with the secret of `SECONDS.BODY`. What is
/// not answered with 2xx is sent again, at growing intervals, under the same `Cove-Delivery-Id`.
#[utoipa::path(post, path = "/webhooks", tag = "events", request_body = CreateWebhook,
    responses((status = 201, description = "With its secret", body = WebhookView)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<CreateWebhook>,
) -> Result<(StatusCode, Json<WebhookView>), ApiError> {
    let made = app.create_webhook(&caller, &body.url, body.kinds).await?;
    let secret = made.secret.clone();
    Ok((StatusCode::CREATED, Json(view(made, Some(secret)))))
}

/// List webhooks
#[utoipa::path(get, path = "/webhooks", tag = "events",
    responses((status = 200, description = "Without their secrets", body = Vec<WebhookView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<WebhookView>>, ApiError> {
    let all = app.list_webhooks(&caller).await?;
    Ok(Json(all.into_iter().map(|webhook| view(webhook, None)).collect()))
}

/// Delete a webhook
#[utoipa::path(delete, path = "/webhooks/{id}", tag = "events", params(("id" = String, Path)),
    responses((status = 204, description = "Nothing is sent any more")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.delete_webhook(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
