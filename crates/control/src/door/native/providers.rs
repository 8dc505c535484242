//! Providers: where sandboxes can run, and what stands between them and the host there.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::auth::Authenticated;
use super::error::ApiError;
use crate::App;
use crate::provider::Isolation;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ProviderView {
    name: String,
    /// Taken where a creation names none.
    default: bool,
    isolation: Isolation,
    pause: bool,
    resize: bool,
    /// Files outlive a stop.
    persistent: bool,
    network_policy: bool,
}

/// List providers
#[utoipa::path(get, path = "/providers", tag = "providers",
    responses((status = 200, description = "Those that this server has", body = Vec<ProviderView>)))]
pub async fn list(State(app): State<App>, _caller: Authenticated) -> Result<Json<Vec<ProviderView>>, ApiError> {
    let views = app.providers().map(|provider| {
        let can = provider.capabilities();
        ProviderView {
            name: provider.name().to_owned(),
            default: provider.name() == app.default_provider(),
            isolation: can.isolation,
            pause: can.pause,
            resize: can.resize,
            persistent: can.persistent,
            network_policy: can.network_policy,
        }
    });
    Ok(Json(views.collect()))
}
