//! Templates: what a sandbox can start from.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::builds::{BuildView, Started, begin};
use super::error::ApiError;
use super::extract::{Body, Params, Path};
use super::recipe::CreateTemplate;
use super::view::LimitsView;
use crate::build::{Build, Defaults, State as BuildState};
use crate::clock::Timestamp;
use crate::provider::Isolation;
use crate::store::templates::TemplateFilter;
use crate::template::name::{Chosen, Reference};
use crate::template::{Kind, Overview, Tag, Template, TemplateChange, Visibility};
use crate::{App, Caller, Error, Scope};

/// Templates that one answer holds at most.
const MOST: u32 = 1000;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct TemplateView {
    id: String,
    name: String,
    /// Other names of the template.
    aliases: Vec<String>,
    kind: Kind,
    description: String,
    /// What is missing compared with its description, and what to do about it.
    note: Option<String>,
    limits: LimitsView,
    /// What every process inherits.
    env: BTreeMap<String, String>,
    user: String,
    /// Where a command starts that names no directory.
    cwd: Option<String>,
    /// A command that runs from the start of every sandbox on.
    start: Option<String>,
    /// Succeeds once the start command has done its work.
    ready: Option<String>,
    /// The weakest isolation that its sandboxes may have.
    isolation: Option<Isolation>,
    /// Everybody's, rather than the organisation's own.
    built_in: bool,
    /// Everybody of this installation may start sandboxes from it.
    public: bool,
    /// Sandboxes may be started from it.
    active: bool,
    /// Sandboxes have what its description says; what is not built yet says in `note` what to do.
    built: bool,
    /// The build that sandboxes start from; absent while none is ready.
    build: Option<String>,
    /// The state of the newest build; absent where nothing had to be built.
    state: Option<BuildState>,
    /// How many builds it has.
    builds: u64,
    /// Words that lead to its builds.
    tags: Vec<Tag>,
    /// The sandbox that it is a snapshot of.
    source_sandbox: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    built_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    created_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    updated_at: Option<Timestamp>,
}

impl From<Template> for TemplateView {
    fn from(template: Template) -> Self {
        let public = template.is_public();
        TemplateView {
            built: template.is_ready(),
            id: template.id,
            name: template.name,
            aliases: template.aliases,
            kind: Kind::Built,
            description: template.description,
            note: template.note,
            limits: (&template.limits).into(),
            env: template.env,
            user: template.user,
            cwd: template.cwd,
            start: template.start,
            ready: template.ready,
            isolation: template.isolation,
            built_in: template.organisation.is_none(),
            public,
            active: true,
            state: template.build.as_ref().map(|_| BuildState::Ready),
            builds: u64::from(template.build.is_some()),
            build: template.build,
            tags: Vec::new(),
            source_sandbox: template.source_sandbox,
            built_at: template.built_at,
            created_at: None,
            updated_at: None,
        }
    }
}

impl TemplateView {
    /// A template with its tags and builds, as sandboxes of `chosen` get it. Of another's, what came from its sandboxes
    /// and its environment are not shown: both may have secrets in them.
    pub fn of(caller: &Caller, overview: Overview, chosen: Option<Build>) -> TemplateView {
        let Overview { record, tags, current, newest, builds } = overview;
        let is_own = record.organisation == caller.organisation;
        // Of a snapshot it is what its sandbox was given, which no sandbox shows either.
        let shows_env = is_own && (record.kind == Kind::Built || caller.may(Scope::Write));
        let title = record.title().to_owned();
        let chosen = chosen.or(current);
        let defaults = match &chosen {
            Some(build) => build.defaults.clone(),
            // What was asked for, before it is built.
            None => newest.as_ref().map(|build| build.defaults.clone()).unwrap_or_default(),
        };
        let Defaults { env, user, cwd, start, ready, limits, isolation, interpreter: _, python: _ } = defaults;
        TemplateView {
            name: title,
            aliases: record.names.iter().skip(1).cloned().collect(),
            kind: record.kind,
            note: None,
            limits: (&limits.unwrap_or_default()).into(),
            env: if shows_env { env } else { BTreeMap::new() },
            user,
            cwd,
            start,
            ready,
            isolation,
            built_in: record.is_built_in(),
            public: record.visibility == Visibility::Public,
            active: !record.inactive,
            state: newest.map(|build| build.state),
            builds,
            tags,
            built_at: chosen.as_ref().and_then(|build| build.finished_at),
            built: chosen.is_some(),
            build: chosen.map(|build| build.id),
            source_sandbox: record.source_sandbox.filter(|_| is_own),
            created_at: Some(record.created_at),
            updated_at: Some(record.updated_at),
            id: record.id,
            description: record.description,
        }
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct TemplateQuery {
    /// The beginning of the name.
    name: Option<String>,
    /// Those that others have made public, too.
    others: Option<bool>,
}

/// List templates
///
/// The built-in ones and your own, newest first; those that are still being built, too.
#[utoipa::path(get, path = "/templates", tag = "templates", params(TemplateQuery),
    responses((status = 200, description = "All that can be used", body = Vec<TemplateView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<TemplateQuery>,
) -> Result<Json<Vec<TemplateView>>, ApiError> {
    let built_in = app.list_templates(&caller).await?.into_iter().filter(|template| template.organisation.is_none());
    let fits = |name: &str| query.name.as_deref().is_none_or(|prefix| name.starts_with(prefix));
    let mut all: Vec<TemplateView> = built_in.filter(|template| fits(&template.name)).map(Into::into).collect();
    let filter = TemplateFilter {
        kind: Kind::Built,
        others: query.others.unwrap_or(false),
        name_prefix: query.name.clone(),
        ..TemplateFilter::default()
    };
    let own = app.catalogue(&caller, &filter, None, MOST).await?.items;
    let own = own.into_iter().filter(|overview| !overview.record.is_built_in());
    all.extend(own.map(|overview| TemplateView::of(&caller, overview, None)));
    Ok(Json(all))
}

/// Read a template
///
/// With a tag or a build after a colon the settings of that one are shown.
#[utoipa::path(get, path = "/templates/{name}", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias, with `:tag` or `:BUILD`")),
    responses((status = 200, description = "The template", body = TemplateView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Json<TemplateView>, ApiError> {
    match app.template_overview(&caller, &name).await {
        Ok(overview) => {
            let chosen = match Reference::parse(&name)?.chosen {
                Chosen::Default => None,
                chosen => {
                    let found = app.chosen_build(&overview.record, &chosen).await?;
                    Some(found.ok_or_else(|| Error::not_found("template", &name))?)
                }
            };
            Ok(Json(TemplateView::of(&caller, overview, chosen)))
        }
        Err(Error::NotFound { .. }) => Ok(Json(app.template(&caller, &name).await?.into())),
        Err(error) => Err(error.into()),
    }
}

/// Build a template
///
/// Answers at once; the build goes on in the background. Follow its log, or ask for its state. A template of yours that
/// has the name gets another build: its sandboxes keep theirs, new ones get the new one once it is ready. Files for
/// `COPY` are sent to `/build-files` before.
#[utoipa::path(post, path = "/templates", tag = "templates", request_body = CreateTemplate,
    responses((status = 202, description = "The build is under way", body = Started)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Body(body): Body<CreateTemplate>,
) -> Result<(StatusCode, Json<Started>), ApiError> {
    let (template, request, confidential) = body.into_domain(&app.recipes())?;
    Ok((StatusCode::ACCEPTED, Json(begin(&app, &caller, template, request, confidential).await?)))
}

/// What is absent stays as it is.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ChangeTemplate {
    name: Option<String>,
    /// Replaces all other names.
    aliases: Option<Vec<String>>,
    description: Option<String>,
    /// Everybody of this installation may start sandboxes from it.
    public: Option<bool>,
    /// Sandboxes may be started from it.
    active: Option<bool>,
}

/// Change a template
///
/// Its files and settings are its builds': build it anew to change them.
#[utoipa::path(patch, path = "/templates/{name}", tag = "templates", request_body = ChangeTemplate,
    params(("name" = String, Path, description = "id, name or alias")),
    responses((status = 200, description = "Changed", body = TemplateView)))]
pub async fn change(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
    Body(body): Body<ChangeTemplate>,
) -> Result<Json<TemplateView>, ApiError> {
    let visibility = |public| if public { Visibility::Public } else { Visibility::Private };
    let change = TemplateChange {
        name: body.name,
        aliases: body.aliases,
        description: body.description,
        visibility: body.public.map(visibility),
        active: body.active,
    };
    let record = app.update_template(&caller, &name, change).await?;
    let overview = app.template_overview(&caller, &record.id).await?;
    Ok(Json(TemplateView::of(&caller, overview, None)))
}

/// Delete a template
///
/// Its names are free at once, and nothing is started from it any more. Sandboxes that were keep their files. With a tag or
/// a build after a colon that one alone goes: a tag with its build where no other tag and no sandbox needs it, and a build
/// that no sandbox was started from.
#[utoipa::path(delete, path = "/templates/{name}", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias, with `:tag` or `:BUILD`")),
    responses((status = 204, description = "Deleted")))]
pub async fn delete(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    match app.delete_template(&caller, &name).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) => Err(app.explained(&caller, error).await.into()),
    }
}

/// List a template's tags
#[utoipa::path(get, path = "/templates/{name}/tags", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias")),
    responses((status = 200, description = "Newest first", body = Vec<Tag>)))]
pub async fn tags(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Json<Vec<Tag>>, ApiError> {
    Ok(Json(app.template_tags(&caller, &name).await?.1))
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TagBody {
    tags: Vec<String>,
    /// What they lead to: a tag, or a build's id; the template's usual build where absent.
    #[serde(default)]
    build: Option<String>,
}

/// Set tags
///
/// A tag that leads elsewhere leads here from now on.
#[utoipa::path(post, path = "/templates/{name}/tags", tag = "templates", request_body = TagBody,
    params(("name" = String, Path, description = "id, name or alias")),
    responses((status = 200, description = "The build that they lead to", body = BuildView)))]
pub async fn set_tags(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
    Body(body): Body<TagBody>,
) -> Result<Json<BuildView>, ApiError> {
    let target = match &body.build {
        Some(build) => format!("{name}:{build}"),
        None => name,
    };
    match app.assign_tags(&caller, &target, body.tags).await {
        Ok((_, build)) => Ok(Json(build.into())),
        Err(error) => Err(app.explained(&caller, error).await.into()),
    }
}

/// Remove a tag
///
/// The build stays.
#[utoipa::path(delete, path = "/templates/{name}/tags/{tag}", tag = "templates",
    params(("name" = String, Path, description = "id, name or alias"), ("tag" = String, Path)),
    responses((status = 204, description = "Removed")))]
pub async fn remove_tag(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path((name, tag)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let (record, tags) = app.template_tags(&caller, &name).await?;
    let wanted = tag.trim().to_lowercase();
    if tags.iter().all(|one| one.tag != wanted) {
        return Err(Error::not_found("template", format!("{}:{wanted}", record.title())).into());
    }
    app.remove_tags(&caller, &name, vec![tag]).await?;
    Ok(StatusCode::NO_CONTENT)
}
