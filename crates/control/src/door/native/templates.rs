//! Templates: what a sandbox can start from.

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::Path;
use super::view::LimitsView;
use crate::App;
use crate::template::Template;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TemplateView {
    id: String,
    name: String,
    /// Other names of the template.
    aliases: Vec<String>,
    description: String,
    /// What is missing compared with its description, and what to do about it.
    note: Option<String>,
    limits: LimitsView,
    user: String,
    /// Everybody's, rather than the organisation's own.
    built_in: bool,
}

impl From<Template> for TemplateView {
    fn from(template: Template) -> Self {
        TemplateView {
            id: template.id,
            name: template.name,
            aliases: template.aliases,
            description: template.description,
            note: template.note,
            limits: (&template.limits).into(),
            user: template.user,
            built_in: template.organisation.is_none(),
        }
    }
}

/// List templates
#[utoipa::path(get, path = "/templates", tag = "templates",
    responses((status = 200, description = "All that can be used", body = Vec<TemplateView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<TemplateView>>, ApiError> {
    Ok(Json(app.list_templates(&caller).await?.into_iter().map(Into::into).collect()))
}

/// Read a template
#[utoipa::path(get, path = "/templates/{name}", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias")),
    responses((status = 200, description = "The template", body = TemplateView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Json<TemplateView>, ApiError> {
    Ok(Json(app.template(&caller, &name).await?.into()))
}
