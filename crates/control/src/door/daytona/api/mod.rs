//! The control plane of this dialect.
//!
//! # Layout
//! * [`create`], [`find`] with its [`filter`], [`lifecycle`], [`change`], [`links`]: sandboxes, one verb a file
//! * [`snapshot`] with its [`build`] and [`logs`]; [`pending`]: sandboxes that wait for a build; [`lineage`]: what came
//!   from what
//! * [`volume`], [`telemetry`], [`account`]: the rest that the SDKs ask for

mod account;
mod build;
mod change;
mod create;
mod filter;
mod find;
mod lifecycle;
mod lineage;
mod links;
mod logs;
mod pending;
mod snapshot;
mod telemetry;
mod volume;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;

pub use self::pending::Nursery;
use super::admit::Authenticated;
use super::problem::Problem;
use super::{Door, events, storage};
use crate::Scope;
use crate::door::table::{Needs, Table};

/// What would change something, if it were offered.
const CHANGES: [&str; 4] = ["POST", "PUT", "PATCH", "DELETE"];

/// The path names a sandbox of the caller's: 404 first where it does not, also for what is not offered.
struct Own;

impl FromRequestParts<Door> for Own {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Problem> {
        let Authenticated(caller) = Authenticated::from_request_parts(parts, door).await?;
        let Path(id) = Path::<String>::from_request_parts(parts, door)
            .await
            .map_err(|rejection| Problem::api(StatusCode::BAD_REQUEST, "BAD_REQUEST", rejection.body_text()))?;
        door.app.sandbox(&caller, &id).await?;
        Ok(Own)
    }
}

/// The routes and what each asks for.
pub fn table() -> Table<Door> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .post("/sandbox", act, create::create)
        .get("/sandbox", look, find::list)
        .get("/sandbox/paginated", look, find::pages)
        .get("/sandbox/ssh-access/validate", look, no_ssh)
        .get("/sandbox/{id}", look, find::show)
        .delete("/sandbox/{id}", act, lifecycle::destroy)
        .post("/sandbox/{id}/start", act, lifecycle::start)
        .post("/sandbox/{id}/stop", act, lifecycle::stop)
        .post("/sandbox/{id}/pause", act, lifecycle::pause)
        .post("/sandbox/{id}/archive", act, lifecycle::archive)
        .post("/sandbox/{id}/recover", act, lifecycle::recover)
        .put("/sandbox/{id}/labels", act, change::labels)
        .post("/sandbox/{id}/autostop/{minutes}", act, change::auto_stop)
        .post("/sandbox/{id}/autopause/{minutes}", act, change::auto_pause)
        .post("/sandbox/{id}/autoarchive/{minutes}", act, change::auto_archive)
        .post("/sandbox/{id}/autodelete/{minutes}", act, change::auto_delete)
        .post("/sandbox/{id}/ttl/{minutes}", act, change::time_to_live)
        .post("/sandbox/{id}/public/{is_public}", act, change::public)
        .post("/sandbox/{id}/resize", act, change::resize)
        .post("/sandbox/{id}/network-settings", act, change::network)
        .post("/sandbox/{id}/last-activity", act, change::activity)
        .get("/sandbox/{id}/toolbox-proxy-url", look, links::toolbox)
        .get("/sandbox/{id}/ports/{port}/preview-url", act, links::preview)
        .get("/sandbox/{id}/ports/{port}/signed-preview-url", act, links::signed_preview)
        .post("/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", act, links::end_signed_preview)
        .get("/sandbox/{id}/signing-key", act, links::signing_key)
        .post("/sandbox/{id}/signing-key/rotate", act, links::rotate_signing_key)
        .get("/sandbox/{id}/telemetry/metrics", look, telemetry::metrics)
        .get("/sandbox/{id}/build-logs-url", look, logs::url_of_sandbox)
        .get("/sandbox/{id}/build-logs", look, logs::of_sandbox)
        .post("/sandbox/{id}/backup", act, lineage::backup)
        .post("/sandbox/{id}/snapshot", act, lineage::freeze)
        .post("/sandbox/{id}/fork", act, lineage::fork)
        .get("/sandbox/{id}/forks", look, lineage::forks)
        .get("/sandbox/{id}/parent", look, lineage::parent)
        .get("/sandbox/{id}/ancestors", look, lineage::ancestors)
        .post("/sandbox/{id}/ssh-access", act, |_: Own| no_ssh())
        .delete("/sandbox/{id}/ssh-access", act, |_: Own| no_ssh())
        .put("/sandbox/{id}/secrets", act, |_: Own| no_secrets())
        .get("/snapshots", look, snapshot::list)
        .post("/snapshots", act, snapshot::create)
        .get("/snapshots/{id}", look, snapshot::show)
        .delete("/snapshots/{id}", act, snapshot::delete)
        .post("/snapshots/{id}/activate", act, snapshot::activate)
        .post("/snapshots/{id}/deactivate", act, snapshot::deactivate)
        .get("/snapshots/{id}/build-logs", look, logs::of_snapshot)
        .get("/snapshots/{id}/build-logs-url", look, logs::url_of_snapshot)
        .get("/volumes", look, volume::list)
        .post("/volumes", act, volume::create)
        .get("/volumes/{id}", look, volume::show)
        .delete("/volumes/{id}", act, volume::delete)
        .get("/volumes/by-name/{name}", look, volume::show_by_name)
        .get("/secret", look, no_secrets)
        .on(&CHANGES, "/secret", act, no_secrets)
        .get("/secret/paginated", look, account::no_items)
        .delete("/secret/{id}", act, no_secrets)
        .get("/secret/{id}", look, no_secrets)
        .patch("/secret/{id}", act, no_secrets)
        .get("/warm-pools", look, account::no_list)
        .post("/warm-pools", act, no_pools)
        .get("/object-storage/push-access", act, storage::push_access)
        .get("/config", Needs::Nothing, account::config)
        .get("/health", Needs::Nothing, account::health)
        .get("/health/ready", Needs::Nothing, account::health)
        .get("/regions", look, account::regions)
        .get("/shared-regions", look, account::regions)
        .get("/organizations", look, account::organisations)
        .get("/organizations/{id}", look, account::organisation)
        .get("/users/me", look, account::me)
        .get("/api-keys", look, account::keys)
        .get("/api-keys/current", look, account::current_key)
        .get("/socket.io/", Needs::KeyOnSocket, events::connect)
        .get("/socket.io", Needs::KeyOnSocket, events::connect)
}

fn not_offered(what: &str) -> Problem {
    let problem = Problem::not_offered(format!("{what} on this server"));
    Problem { speaker: super::problem::Speaker::Api, ..problem }
}

async fn no_ssh() -> Problem {
    not_offered("SSH access is not offered; use a PTY session or the process API")
}

async fn no_secrets() -> Problem {
    not_offered("secrets are not offered; pass env when the sandbox is created")
}

async fn no_pools() -> Problem {
    not_offered("warm pools are the operator's to configure")
}
