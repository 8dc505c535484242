//! The control plane of this dialect.
//!
//! # Layout
//! * [`create`], [`find`], [`lifecycle`], [`change`], [`links`]: sandboxes, one verb a file
//! * [`snapshot`], [`volume`], [`account`]: the rest that the SDKs ask for

mod account;
mod change;
mod create;
mod find;
mod lifecycle;
mod links;
mod snapshot;
mod volume;

use axum::Router;
use axum::routing::{any, delete, get, post, put};

use super::problem::Problem;
use super::{Door, events};

pub fn router() -> Router<Door> {
    Router::new()
        .route("/sandbox", post(create::create).get(find::list))
        .route("/sandbox/paginated", get(find::pages))
        .route("/sandbox/ssh-access/validate", get(no_ssh))
        .route("/sandbox/{id}", get(find::show).delete(lifecycle::destroy))
        .route("/sandbox/{id}/start", post(lifecycle::start))
        .route("/sandbox/{id}/stop", post(lifecycle::stop))
        .route("/sandbox/{id}/pause", post(lifecycle::pause))
        .route("/sandbox/{id}/archive", post(lifecycle::archive))
        .route("/sandbox/{id}/recover", post(lifecycle::recover))
        .route("/sandbox/{id}/labels", put(change::labels))
        .route("/sandbox/{id}/autostop/{minutes}", post(change::auto_stop))
        .route("/sandbox/{id}/autopause/{minutes}", post(change::auto_pause))
        .route("/sandbox/{id}/autoarchive/{minutes}", post(change::auto_archive))
        .route("/sandbox/{id}/autodelete/{minutes}", post(change::auto_delete))
        .route("/sandbox/{id}/ttl/{minutes}", post(change::time_to_live))
        .route("/sandbox/{id}/public/{is_public}", post(change::public))
        .route("/sandbox/{id}/resize", post(change::resize))
        .route("/sandbox/{id}/network-settings", post(change::network))
        .route("/sandbox/{id}/last-activity", post(change::activity))
        .route("/sandbox/{id}/toolbox-proxy-url", get(links::toolbox))
        .route("/sandbox/{id}/ports/{port}/preview-url", get(links::preview))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url", get(links::signed_preview))
        .route("/sandbox/{id}/ports/{port}/signed-preview-url/{token}/expire", post(links::end_signed_preview))
        .route("/sandbox/{id}/signing-key", get(links::signing_key))
        .route("/sandbox/{id}/signing-key/rotate", post(links::rotate_signing_key))
        .route("/sandbox/{id}/telemetry/metrics", get(links::no_series))
        .route("/sandbox/{id}/build-logs-url", get(no_builds))
        .route("/sandbox/{id}/ssh-access", post(no_ssh).delete(no_ssh))
        .route("/sandbox/{id}/fork", post(no_fork))
        .route("/sandbox/{id}/snapshot", post(no_snapshots))
        .route("/sandbox/{id}/secrets", put(no_secrets))
        .route("/snapshots", get(snapshot::list).post(no_snapshots))
        .route("/snapshots/{id}", get(snapshot::show).delete(no_snapshots))
        .route("/snapshots/{id}/{*what}", any(no_snapshots))
        .route("/volumes", get(volume::list).post(volume::none))
        .route("/volumes/{id}", get(volume::show).delete(volume::none))
        .route("/volumes/by-name/{name}", get(volume::show_by_name))
        .route("/secret", any(no_secrets))
        .route("/secret/paginated", get(account::no_items))
        .route("/secret/{id}", delete(no_secrets).get(no_secrets).patch(no_secrets))
        .route("/warm-pools", get(account::no_list).post(no_pools))
        .route("/object-storage/push-access", get(no_builds))
        .route("/config", get(account::config))
        .route("/health", get(account::health))
        .route("/health/ready", get(account::health))
        .route("/regions", get(account::regions))
        .route("/shared-regions", get(account::regions))
        .route("/organizations", get(account::organisations))
        .route("/organizations/{id}", get(account::organisation))
        .route("/users/me", get(account::me))
        .route("/api-keys", get(account::keys))
        .route("/api-keys/current", get(account::current_key))
        .route("/socket.io/", get(events::connect))
        .route("/socket.io", get(events::connect))
}

fn not_offered(what: &str) -> Problem {
    let problem = Problem::not_offered(format!("{what} on this server"));
    Problem { speaker: super::problem::Speaker::Api, ..problem }
}

async fn no_ssh() -> Problem {
    not_offered("SSH access is not offered; use a PTY session or the process API")
}

async fn no_fork() -> Problem {
    not_offered("forking a sandbox is not offered")
}

async fn no_snapshots() -> Problem {
    not_offered("making, changing or deleting snapshots is not offered; list them with GET /snapshots")
}

async fn no_builds() -> Problem {
    not_offered("building images is not offered; create the sandbox from a snapshot that GET /snapshots lists")
}

async fn no_secrets() -> Problem {
    not_offered("secrets are not offered; pass env when the sandbox is created")
}

async fn no_pools() -> Problem {
    not_offered("warm pools are the operator's to configure")
}
