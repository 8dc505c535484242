//! The native API, below `/api`. Every route is in the OpenAPI document, which is made of the handlers themselves.
//!
//! One noun a file. `auth` stands before all of them; `error` is the one place where refusals get their status. The scope
//! that a route asks for stands with the route, below.

mod agents;
mod aliases;
mod audit;
pub mod auth;
mod bounds;
mod builds;
mod checks;
mod docs;
pub mod error;
mod events;
mod exec;
mod execute;
mod extract;
mod files;
mod find;
mod forks;
mod git;
mod insight;
mod jobs;
mod keys;
mod known;
mod lifecycle;
mod openapi;
mod organisations;
mod orphans;
mod pools;
pub(in crate::door) mod preview;
mod processes;
mod providers;
mod pushes;
mod recipe;
mod recipes;
pub mod sandboxes;
mod sessions;
mod settings;
mod snapshots;
mod stream;
mod tar;
mod templates;
mod tree;
mod upkeep;
mod usage;
pub mod view;
mod volume_files;
mod volumes;
mod watch;
mod webhooks;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
pub use openapi::document;
use utoipa::openapi::security::SecurityRequirement;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use self::error::ApiError;
use super::peer::Subject;
use super::table::{Needs, Route, Table};
use crate::{App, Caller, Error, Scope};

/// Handlers, their document and what each asks for, still together.
struct Described {
    router: OpenApiRouter<App>,
    rows: Vec<Route>,
}

impl Described {
    /// Routes that ask for a key of this scope: the guard checks it, and the document says so.
    fn keyed(mut self, scope: Scope, (schemas, mut paths, handler): UtoipaMethodRouter<App>) -> Self {
        let word = serde_json::to_value(scope).ok().and_then(|word| word.as_str().map(ToOwned::to_owned));
        let security = vec![SecurityRequirement::new("key", word)];
        for (path, item) in &mut paths.paths {
            let operations = [
                ("GET", &mut item.get),
                ("PUT", &mut item.put),
                ("POST", &mut item.post),
                ("PATCH", &mut item.patch),
                ("DELETE", &mut item.delete),
            ];
            for (method, operation) in operations {
                if let Some(operation) = operation {
                    operation.security = Some(security.clone());
                    self.rows.push(Route { methods: vec![method], path: path.clone(), needs: Needs::Key(scope) });
                }
            }
        }
        self.router = self.router.routes((schemas, paths, guarded(scope, handler)));
        self
    }
}

/// The scope first, and only then what a call takes: who may not call learns nothing of it.
fn guarded(scope: Scope, handler: MethodRouter<App>) -> MethodRouter<App> {
    let strict = handler.route_layer(from_fn(known::guard));
    strict.route_layer(from_fn(move |request: Request, next: Next| require(scope, request, next)))
}

/// After the key itself was checked.
async fn require(scope: Scope, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    let allowed = caller.map_or_else(|| Err(Error::internal("a route without its guard")), |c| c.require(scope));
    match allowed {
        Ok(()) => next.run(request).await,
        Err(error) => ApiError(error).into_response(),
    }
}

fn described() -> Described {
    let (look, act, administer, operate) = (Scope::Read, Scope::Write, Scope::Admin, Scope::Operator);
    Described { router: OpenApiRouter::new(), rows: Vec::new() }
        .keyed(look, routes!(sandboxes::list))
        .keyed(act, routes!(sandboxes::create))
        .keyed(look, routes!(sandboxes::read))
        .keyed(act, routes!(sandboxes::destroy))
        .keyed(act, routes!(lifecycle::start))
        .keyed(act, routes!(lifecycle::stop))
        .keyed(act, routes!(lifecycle::pause))
        .keyed(act, routes!(lifecycle::resume))
        .keyed(act, routes!(lifecycle::archive))
        .keyed(act, routes!(lifecycle::recover))
        .keyed(act, routes!(lifecycle::touch))
        .keyed(act, routes!(settings::timers))
        .keyed(act, routes!(settings::labels))
        .keyed(act, routes!(settings::name))
        .keyed(act, routes!(settings::limits))
        .keyed(act, routes!(settings::network))
        .keyed(act, routes!(settings::visibility))
        .keyed(act, routes!(settings::tokens))
        .keyed(act, routes!(settings::rotate_tokens))
        .keyed(look, routes!(insight::metrics))
        .keyed(look, routes!(insight::explain))
        .keyed(look, routes!(insight::ports))
        .keyed(look, routes!(insight::usage))
        .keyed(act, routes!(exec::exec))
        .keyed(act, routes!(stream::exec_stream))
        .keyed(look, routes!(processes::list))
        .keyed(look, routes!(processes::read))
        .keyed(act, routes!(processes::forget))
        .keyed(look, routes!(processes::wait))
        .keyed(act, routes!(processes::signal))
        .keyed(act, routes!(processes::input))
        .keyed(look, routes!(files::read))
        .keyed(act, routes!(files::write))
        .keyed(look, routes!(tree::list))
        .keyed(look, routes!(tree::stat))
        .keyed(act, routes!(tree::make_directory))
        .keyed(act, routes!(tree::rename))
        .keyed(act, routes!(tree::remove))
        .keyed(act, routes!(tree::set_attributes))
        .keyed(act, routes!(tree::symlink))
        .keyed(look, routes!(find::find))
        .keyed(look, routes!(find::grep))
        .keyed(act, routes!(find::replace))
        .keyed(look, routes!(tar::download))
        .keyed(act, routes!(tar::upload))
        .keyed(look, routes!(watch::watch))
        .keyed(act, routes!(git::clone))
        .keyed(look, routes!(git::status))
        .keyed(act, routes!(git::add))
        .keyed(act, routes!(git::commit))
        .keyed(act, routes!(git::push))
        .keyed(act, routes!(git::pull))
        .keyed(look, routes!(git::branches))
        .keyed(act, routes!(git::create_branch))
        .keyed(act, routes!(git::delete_branch))
        .keyed(act, routes!(git::checkout))
        .keyed(look, routes!(git::history))
        .keyed(look, routes!(git::diff))
        .keyed(act, routes!(preview::link))
        .keyed(look, routes!(templates::list))
        .keyed(look, routes!(templates::read))
        .keyed(act, routes!(templates::create))
        .keyed(act, routes!(templates::change))
        .keyed(act, routes!(templates::delete))
        .keyed(look, routes!(templates::tags))
        .keyed(act, routes!(templates::set_tags))
        .keyed(act, routes!(templates::remove_tag))
        .keyed(look, routes!(recipes::list))
        .keyed(look, routes!(recipes::read))
        .keyed(look, routes!(builds::list))
        .keyed(look, routes!(builds::read))
        .keyed(act, routes!(builds::cancel))
        .keyed(look, routes!(builds::logs))
        .keyed(look, routes!(builds::follow))
        .keyed(look, routes!(builds::find_file))
        .keyed(act, routes!(builds::send_file))
        .keyed(act, routes!(builds::forget_steps))
        .keyed(act, routes!(builds::import))
        .keyed(look, routes!(builds::export))
        .keyed(look, routes!(builds::export_snapshot))
        .keyed(act, routes!(pushes::push))
        .keyed(act, routes!(pushes::push_snapshot))
        .keyed(look, routes!(pushes::list))
        .keyed(look, routes!(pushes::read))
        .keyed(act, routes!(pushes::cancel))
        .keyed(look, routes!(pushes::follow))
        .keyed(act, routes!(snapshots::create))
        .keyed(look, routes!(snapshots::list))
        .keyed(look, routes!(snapshots::read))
        .keyed(act, routes!(snapshots::delete))
        .keyed(look, routes!(snapshots::checkpoints))
        .keyed(act, routes!(snapshots::checkpoint))
        .keyed(act, routes!(snapshots::set_rule))
        .keyed(act, routes!(snapshots::drop_rule))
        .keyed(act, routes!(snapshots::rollback))
        .keyed(act, routes!(forks::fork))
        .keyed(look, routes!(forks::lineage))
        .keyed(act, routes!(volumes::create))
        .keyed(look, routes!(volumes::list))
        .keyed(look, routes!(volumes::read))
        .keyed(act, routes!(volumes::resize))
        .keyed(act, routes!(volumes::delete))
        .keyed(look, routes!(volume_files::list))
        .keyed(look, routes!(volume_files::stat))
        .keyed(look, routes!(volume_files::read))
        .keyed(act, routes!(volume_files::write))
        .keyed(act, routes!(volume_files::make_directory))
        .keyed(act, routes!(volume_files::rename))
        .keyed(act, routes!(volume_files::remove))
        .keyed(act, routes!(volume_files::set_attributes))
        .keyed(look, routes!(providers::list))
        .keyed(administer, routes!(keys::create))
        .keyed(administer, routes!(keys::list))
        .keyed(administer, routes!(keys::revoke))
        .keyed(look, routes!(keys::whoami))
        .keyed(operate, routes!(organisations::create))
        .keyed(look, routes!(organisations::list))
        .keyed(look, routes!(organisations::read))
        .keyed(operate, routes!(organisations::delete))
        .keyed(operate, routes!(organisations::set_quota))
        .keyed(operate, routes!(orphans::list))
        .keyed(operate, routes!(orphans::adopt))
        .keyed(operate, routes!(orphans::remove))
        .keyed(look, routes!(usage::report))
        .keyed(administer, routes!(audit::list))
        .keyed(look, routes!(events::list))
        .keyed(look, routes!(events::follow))
        .keyed(administer, routes!(webhooks::create))
        .keyed(administer, routes!(webhooks::list))
        .keyed(administer, routes!(webhooks::delete))
        .keyed(look, routes!(pools::list))
        .keyed(administer, routes!(pools::set))
        .keyed(administer, routes!(pools::delete))
        .keyed(look, routes!(jobs::list))
        .keyed(act, routes!(checks::begin))
        .keyed(look, routes!(checks::read))
        .keyed(act, routes!(aliases::add))
        .keyed(look, routes!(aliases::list))
        .keyed(act, routes!(upkeep::begin))
        .keyed(look, routes!(upkeep::read))
        .keyed(act, routes!(sessions::create))
        .keyed(look, routes!(sessions::list))
        .keyed(look, routes!(sessions::read))
        .keyed(act, routes!(sessions::interrupt))
        .keyed(act, routes!(sessions::delete))
        .keyed(look, routes!(sessions::journal))
        .keyed(look, routes!(sessions::stream))
        .keyed(look, routes!(sessions::artifacts))
        .keyed(look, routes!(sessions::artifact))
        .keyed(act, routes!(execute::execute))
        .keyed(look, routes!(execute::list_files))
        .keyed(act, routes!(execute::write_file))
        .keyed(act, routes!(agents::execute))
}

/// The same calls under the names that older programs use: the prefix, and the calls that are there twice.
const OLD_PREFIX: &str = "/e2b";
const OLD_NAMES: [&str; 3] = ["/execute", "/files/{session_id}", "/files"];

fn aliases() -> Table<App> {
    let (look, act) = (Needs::Key(Scope::Read), Needs::Key(Scope::Write));
    Table::new()
        .post("/e2b/execute", act, execute::execute)
        .get("/e2b/files/{session_id}", look, execute::list_files)
        .post("/e2b/files", act, execute::write_file)
}

/// What asks for no key of ours, or takes other rights too.
fn unguarded() -> Table<App> {
    Table::new()
        .any("/sandboxes/{id}/ports/{port}/proxy", Needs::Port, preview::root)
        // As links end: a wildcard does not match nothing.
        .any("/sandboxes/{id}/ports/{port}/proxy/", Needs::Port, preview::root)
        .any("/sandboxes/{id}/ports/{port}/proxy/{*path}", Needs::Port, preview::below)
        .get("/openapi.json", Needs::Nothing, docs::json)
        .get("/docs", Needs::Nothing, docs::page)
}

/// Every route and what it asks for.
pub fn routes() -> Vec<Route> {
    described().rows.into_iter().chain(aliases().routes()).chain(unguarded().routes()).collect()
}

pub fn router(app: App) -> Router {
    let (router, _) = described().router.split_for_parts();
    let aliases = aliases().guarded(|needs, handler| match needs {
        Needs::Key(scope) => guarded(scope, handler),
        _ => handler,
    });
    router
        .merge(aliases)
        // Around each route's own guard: the key, then its scope.
        .route_layer(from_fn_with_state(app.clone(), auth::guard))
        // Previews check the sandbox's own tokens themselves.
        .merge(unguarded().guarded(|_, handler| handler))
        .fallback(error::no_such_route)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(axum::extract::DefaultBodyLimit::disable())
        .with_state(app)
}

/// Which sandbox a request is about, by its path below `/api`.
pub fn subject(method: &Method, path: &str) -> Subject {
    let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
    match words.as_slice() {
        ["sandboxes", word, ..] => Subject::by_name(word),
        ["sessions", id, ..] | ["files", id] | ["e2b", "files", id] => Subject::Session((*id).to_owned()),
        ["execute" | "files" | "sandboxes" | "sessions"] | ["e2b", "execute" | "files"] if method == Method::POST => {
            Subject::InBody
        }
        _ => Subject::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sessions_are_told_from_the_rest() {
        let get = |path: &str| subject(&Method::GET, path);
        assert_eq!(get("/sandboxes/box/processes"), Subject::Named("box".into()));
        assert_eq!(get("/sandboxes/abcdefghij0123456789"), Subject::by_id("abcdefghij0123456789"));
        assert_eq!(get("/sessions/session_1/journal"), Subject::Session("session_1".into()));
        assert_eq!(subject(&Method::POST, "/execute"), Subject::InBody);
        for path in ["/sandboxes", "/keys", ""] {
            assert_eq!(get(path), Subject::Nothing, "{path}");
        }
    }
}
