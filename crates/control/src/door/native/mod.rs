//! The native API, below `/api`. Every route is in the OpenAPI document, which is made of the handlers themselves.
//!
//! One noun a file. `auth` stands before all of them; `error` is the one place where refusals get their status.

mod agents;
mod audit;
pub mod auth;
mod docs;
pub mod error;
mod events;
mod exec;
mod execute;
mod extract;
mod files;
mod find;
mod git;
mod insight;
mod jobs;
mod keys;
mod lifecycle;
mod openapi;
mod organisations;
mod orphans;
mod pools;
mod preview;
mod processes;
mod providers;
pub mod sandboxes;
mod sessions;
mod settings;
mod stream;
mod tar;
mod templates;
mod tree;
mod usage;
pub mod view;
mod watch;
mod webhooks;

use axum::Router;
use axum::routing::get;
pub use openapi::document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::App;

/// Handlers and their document, still together.
fn described() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::create, sandboxes::list))
        .routes(routes!(sandboxes::read, sandboxes::destroy))
        .routes(routes!(lifecycle::start))
        .routes(routes!(lifecycle::stop))
        .routes(routes!(lifecycle::pause))
        .routes(routes!(lifecycle::resume))
        .routes(routes!(lifecycle::archive))
        .routes(routes!(lifecycle::recover))
        .routes(routes!(lifecycle::touch))
        .routes(routes!(settings::timers))
        .routes(routes!(settings::labels))
        .routes(routes!(settings::name))
        .routes(routes!(settings::limits))
        .routes(routes!(settings::network))
        .routes(routes!(settings::visibility))
        .routes(routes!(settings::rotate_tokens, settings::tokens))
        .routes(routes!(insight::metrics))
        .routes(routes!(insight::explain))
        .routes(routes!(insight::ports))
        .routes(routes!(insight::usage))
        .routes(routes!(exec::exec))
        .routes(routes!(stream::exec_stream))
        .routes(routes!(processes::list))
        .routes(routes!(processes::read, processes::forget))
        .routes(routes!(processes::wait))
        .routes(routes!(processes::signal))
        .routes(routes!(processes::input))
        .routes(routes!(files::read, files::write))
        .routes(routes!(tree::list))
        .routes(routes!(tree::stat))
        .routes(routes!(tree::make_directory))
        .routes(routes!(tree::rename))
        .routes(routes!(tree::remove))
        .routes(routes!(tree::set_attributes))
        .routes(routes!(tree::symlink))
        .routes(routes!(find::find))
        .routes(routes!(find::grep))
        .routes(routes!(find::replace))
        .routes(routes!(tar::download, tar::upload))
        .routes(routes!(watch::watch))
        .routes(routes!(git::clone))
        .routes(routes!(git::status))
        .routes(routes!(git::add))
        .routes(routes!(git::commit))
        .routes(routes!(git::push))
        .routes(routes!(git::pull))
        .routes(routes!(git::branches, git::create_branch, git::delete_branch))
        .routes(routes!(git::checkout))
        .routes(routes!(git::history))
        .routes(routes!(git::diff))
        .routes(routes!(preview::link))
        .routes(routes!(templates::list))
        .routes(routes!(templates::read))
        .routes(routes!(providers::list))
        .routes(routes!(keys::create, keys::list))
        .routes(routes!(keys::revoke))
        .routes(routes!(keys::whoami))
        .routes(routes!(organisations::create, organisations::list))
        .routes(routes!(organisations::read, organisations::delete))
        .routes(routes!(organisations::set_quota))
        .routes(routes!(orphans::list))
        .routes(routes!(orphans::adopt))
        .routes(routes!(orphans::remove))
        .routes(routes!(usage::report))
        .routes(routes!(audit::list))
        .routes(routes!(events::list))
        .routes(routes!(events::follow))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::delete))
        .routes(routes!(pools::list))
        .routes(routes!(pools::set, pools::delete))
        .routes(routes!(jobs::list))
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::read, sessions::delete))
        .routes(routes!(sessions::journal))
        .routes(routes!(sessions::stream))
        .routes(routes!(sessions::artifacts))
        .routes(routes!(sessions::artifact))
        .routes(routes!(execute::execute))
        .routes(routes!(execute::list_files))
        .routes(routes!(execute::write_file))
        .routes(routes!(agents::execute))
}

/// The same calls under the names that older programs use: the prefix, and the calls that are there twice.
const OLD_PREFIX: &str = "/e2b";
const OLD_NAMES: [&str; 3] = ["/execute", "/files/{session_id}", "/files"];

fn aliases() -> Router<App> {
    Router::new()
        .route("/e2b/execute", axum::routing::post(execute::execute))
        .route("/e2b/files/{session_id}", get(execute::list_files))
        .route("/e2b/files", axum::routing::post(execute::write_file))
}

pub fn router(app: App) -> Router {
    let (router, _) = described().split_for_parts();
    let guarded = router.merge(aliases()).route_layer(axum::middleware::from_fn_with_state(app.clone(), auth::guard));
    guarded
        // Previews carry tokens of their own.
        .route("/sandboxes/{id}/ports/{port}/proxy", preview::methods(preview::root))
        // As links end: a wildcard does not match nothing.
        .route("/sandboxes/{id}/ports/{port}/proxy/", preview::methods(preview::root))
        .route("/sandboxes/{id}/ports/{port}/proxy/{*path}", preview::methods(preview::below))
        .route("/openapi.json", get(docs::json))
        .route("/docs", get(docs::page))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(app)
}
