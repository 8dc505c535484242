//! The OpenAPI document: made of the handlers, with the refusals that every call can answer.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, Response, ResponseBuilder, ServerBuilder};
use utoipa::{OpenApi as _, PartialSchema as _, ToSchema as _};

use super::error::ErrorBody;
use super::{OLD_NAMES, OLD_PREFIX, bounds, described, docs, preview};

/// A refusal: its status, its name among the document's components, what it means.
type Refusal = (&'static str, &'static str, &'static str);

/// What any call can answer.
const OF_ALL: [Refusal; 6] = [
    ("400", "Invalid", "Something in the request is wrong; the message names it"),
    ("401", "Unauthenticated", "No key, or one that is unknown, revoked or expired"),
    ("403", "Forbidden", "The key, or the user inside the sandbox, may not do this"),
    ("404", "NotFound", "Not there, or another organisation's"),
    ("429", "TooMany", "Too many requests, or a maximum of the organisation; see Retry-After"),
    ("500", "Internal", "The server's fault; its log says more"),
];

/// What a change can answer besides.
const OF_CHANGES: [Refusal; 2] = [
    ("409", "Conflict", "The name is taken, or the sandbox's state does not allow it; the message says which"),
    ("413", "TooLarge", "The body has more bytes than this call takes"),
];

/// What a call can answer that reaches into a sandbox.
const OF_SANDBOXES: [Refusal; 6] = [
    OF_CHANGES[0],
    ("421", "Elsewhere", "The sandbox is on another server"),
    ("502", "Unreachable", "The sandbox cannot be reached, or broke off"),
    ("503", "NoRoom", "No room now; see Retry-After"),
    ("504", "TooSlow", "The sandbox did not answer in time"),
    ("507", "Full", "The sandbox is out of disk, processes or descriptors"),
];

/// Below these paths a call reaches into a sandbox.
const INTO_SANDBOXES: [&str; 11] = [
    "/sandboxes",
    "/sessions",
    "/execute",
    "/files",
    "/agents",
    "/e2b",
    // What is kept on one server, with a disk that can be full.
    "/templates",
    "/snapshots",
    "/volumes",
    "/build-files",
    "/images",
];

/// Routes that ask for no key, or take any method: described here, routed by hand.
#[derive(utoipa::OpenApi)]
#[openapi(paths(preview::root, preview::below, docs::json, docs::page))]
struct Unguarded;

/// One handler for all methods has one name; each operation needs its own.
fn name_by_method(item: &mut PathItem) {
    let operations = [
        ("get", &mut item.get),
        ("head", &mut item.head),
        ("options", &mut item.options),
        ("put", &mut item.put),
        ("post", &mut item.post),
        ("patch", &mut item.patch),
        ("delete", &mut item.delete),
    ];
    for (method, operation) in operations {
        if let Some(operation) = operation {
            operation.operation_id = operation.operation_id.take().map(|id| format!("{id}_{method}"));
        }
    }
}

/// What is there under a second name stands in the document twice.
fn add_old_names(document: &mut OpenApi) {
    for name in OLD_NAMES {
        let mut item = document.paths.paths.get(name).cloned().unwrap_or_default();
        for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
            operation.operation_id = operation.operation_id.take().map(|id| format!("old_{id}"));
            operation.deprecated = Some(utoipa::openapi::Deprecated::True);
            operation.tags = Some(vec!["old names".into()]);
        }
        document.paths.paths.insert(format!("{OLD_PREFIX}{name}"), item);
    }
}

/// The whole document.
pub fn document() -> OpenApi {
    let mut document = described().router.into_openapi();
    let mut unguarded = Unguarded::openapi();
    unguarded.paths.paths.values_mut().for_each(name_by_method);
    document.merge(unguarded);
    add_old_names(&mut document);
    document.info = InfoBuilder::new()
        .title("Cove")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Sandboxes for AI agents' code, on your own machines."))
        .build();
    document.servers = Some(vec![ServerBuilder::new().url("/api").build()]);
    document.security = Some(vec![SecurityRequirement::new("key", Vec::<String>::new())]);
    let components = document.components.get_or_insert_default();
    components.add_security_scheme("key", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    let error: RefOr<Schema> = ErrorBody::schema();
    components.schemas.insert(ErrorBody::name().into_owned(), error);
    for (_, name, description) in OF_ALL.iter().chain(&OF_CHANGES).chain(&OF_SANDBOXES) {
        components.responses.insert((*name).to_owned(), refusal(description).into());
    }
    // Behind a proxy it is the program inside that answers.
    let ours = document.paths.paths.iter_mut().filter(|(path, _)| !path.contains("/proxy"));
    for (path, item) in ours {
        let reaches = INTO_SANDBOXES.iter().any(|prefix| path.starts_with(prefix));
        let changes = [&mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in changes.into_iter().flatten() {
            refuse(operation, &OF_CHANGES);
        }
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in all.into_iter().flatten() {
            refuse(operation, &OF_ALL);
            if reaches {
                refuse(operation, &OF_SANDBOXES);
            }
        }
    }
    bounds::tell(&mut document);
    document
}

fn refusal(description: &str) -> Response {
    let body = Content::new(Some(Ref::from_schema_name(ErrorBody::name())));
    ResponseBuilder::new().description(description).content("application/json", body).build()
}

/// Besides what the handler says of itself.
fn refuse(operation: &mut Operation, refusals: &[Refusal]) {
    for (status, name, _) in refusals {
        let named = Ref::from_response_name(*name);
        operation.responses.responses.entry((*status).to_owned()).or_insert(RefOr::Ref(named));
    }
}
