//! The OpenAPI document: made of the handlers, with the refusals that every call can answer.

use utoipa::openapi::schema::Schema;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{Content, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder, ServerBuilder};
use utoipa::{PartialSchema as _, ToSchema as _};

use super::described;
use super::error::ErrorBody;

const REFUSALS: [(&str, &str); 12] = [
    ("400", "Something in the request is wrong; the message names it"),
    ("401", "No key, or one that is unknown, revoked or expired"),
    ("403", "The key, or the user inside the sandbox, may not do this"),
    ("404", "Not there, or another organisation's"),
    ("409", "The name is taken, or the sandbox's state does not allow it; the message says which"),
    ("421", "The sandbox is on another server"),
    ("429", "Too many requests, or a maximum of the organisation; see Retry-After"),
    ("500", "The server's fault"),
    ("502", "The sandbox cannot be reached, or broke off"),
    ("503", "No room now; see Retry-After"),
    ("504", "The sandbox did not answer in time"),
    ("507", "The sandbox is out of disk, processes or descriptors"),
];

/// The whole document.
pub fn document() -> OpenApi {
    let mut document = described().into_openapi();
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
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            for (status, description) in REFUSALS {
                let body = Content::new(Some(Ref::from_schema_name(ErrorBody::name())));
                let response =
                    ResponseBuilder::new().description(description).content("application/json", body).build();
                operation.responses.responses.entry(status.to_owned()).or_insert(RefOr::T(response));
            }
        }
    }
    document
}
