//! Providers: where sandboxes can run, and what stands between them and the host there.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::auth::Authenticated;
use super::error::ApiError;
use crate::App;
use crate::provider::{Ability, Isolation, Unheld, health};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ProviderView {
    name: String,
    /// As in its section of the configuration.
    kind: &'static str,
    /// Taken where a creation names none.
    default: bool,
    isolation: Isolation,
    pause: bool,
    resize: bool,
    /// Files outlive a stop.
    persistent: bool,
    network_policy: bool,
    archive: bool,
    snapshot: bool,
    fork: bool,
    volumes: bool,
    /// Pauses and stops can be durable, and checks compare with what they wrote down.
    manifest: bool,
    /// Why it cannot do what it cannot: the reason that a request for it is refused with.
    refusals: Vec<RefusalView>,
    /// Limits that nothing enforces there. One that is asked for is refused.
    unheld: Vec<Unheld>,
    /// How it does, measured on what is asked of it and by a light call four times a minute.
    health: health::Report,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RefusalView {
    ability: Ability,
    reason: String,
}

/// List providers
#[utoipa::path(get, path = "/providers", tag = "providers",
    responses((status = 200, description = "Those that this server has", body = Vec<ProviderView>)))]
pub async fn list(State(app): State<App>, _caller: Authenticated) -> Result<Json<Vec<ProviderView>>, ApiError> {
    let views = app.providers().map(|provider| {
        let capabilities = provider.capabilities();
        let can = |ability| capabilities.of(ability).is_yes();
        let refusal = |(ability, reason): (Ability, &str)| RefusalView { ability, reason: reason.to_owned() };
        ProviderView {
            name: provider.name().to_owned(),
            kind: provider.kind().name,
            default: provider.name() == app.default_provider(),
            isolation: capabilities.isolation,
            pause: can(Ability::Pause),
            resize: can(Ability::Resize),
            persistent: can(Ability::Persistent),
            network_policy: can(Ability::NetworkPolicy),
            archive: can(Ability::Archive),
            snapshot: can(Ability::Snapshot),
            fork: can(Ability::Fork),
            volumes: can(Ability::Volumes),
            manifest: can(Ability::Manifest),
            refusals: capabilities.refusals().map(refusal).collect(),
            unheld: provider.unheld(),
            health: app.provider_health(provider.name()),
        }
    });
    Ok(Json(views.collect()))
}
