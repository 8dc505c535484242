//! Making, finding and destroying sandboxes.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::{OptionalBody, Params, Path, object, within};
use super::settings::TimersBody;
use super::view::SandboxView;
use crate::clock::Timestamp;
use crate::provider::Access;
use crate::sandbox::{
    Filter, IfExists, LimitsChange, NetworkPolicy, NewSandbox, Order, Page, Repository, State as Life,
};
use crate::snapshot::Rule;
use crate::volume::Mount;
use crate::{App, Error};

/// What shall be made. Everything has a default.
#[derive(Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CreateSandbox {
    /// Unique in the organisation while the sandbox is there.
    pub name: Option<String>,
    /// What it starts from; `base` where absent.
    pub template: Option<String>,
    /// Instead of `template`: an image of a registry. It is fetched if it is not here, which can take minutes.
    pub image: Option<String>,
    /// A repository of git that is cloned into it before it is answered. A name and password in it go to git alone.
    pub git_url: Option<String>,
    /// The branch of it; the repository's own choice where absent.
    pub git_branch: Option<String>,
    /// Where it is cloned to; a folder of its own name, where commands start, where absent.
    pub git_path: Option<String>,
    /// Where it runs; by the operator's rules or the server's default where absent.
    pub provider: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// What every process in it inherits.
    pub env: BTreeMap<String, String>,
    #[serde(deserialize_with = "object")]
    pub limits: LimitsChange,
    #[serde(deserialize_with = "object")]
    pub network: NetworkPolicy,
    /// Storage of yours that it gets; it stays when the sandbox goes.
    pub volumes: Vec<MountBody>,
    /// Makes a checkpoint before each command, and keeps some of them.
    pub checkpoints: Option<Rule>,
    #[serde(deserialize_with = "object")]
    pub timers: TimersBody,
    /// Whom it is billed to: any word of your own.
    pub owner: Option<String>,
    /// The user of commands that name none.
    pub user: Option<String>,
    /// Where a command starts that names no directory.
    pub cwd: Option<String>,
    /// Previews need no token.
    pub public: bool,
    /// What to do where the name is taken.
    pub if_exists: OnExisting,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnExisting {
    /// 409.
    #[default]
    Refuse,
    /// Give the one that is there.
    Return,
    /// Give the one that is there, started if it does not run.
    EnsureRunning,
}

/// A volume in a sandbox.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MountBody {
    /// By id or name.
    pub volume: String,
    /// Where it is in the sandbox; absolute.
    pub path: String,
    /// The directory of the volume that is shown there; made if it is not there.
    #[serde(default)]
    pub subpath: Option<String>,
    /// The sandbox cannot write to it.
    #[serde(default)]
    pub read_only: bool,
}

impl From<MountBody> for Mount {
    fn from(body: MountBody) -> Self {
        let access = if body.read_only { Access::ReadOnly } else { Access::ReadWrite };
        Mount { volume: body.volume, path: body.path, subpath: body.subpath, access }
    }
}

impl CreateSandbox {
    pub fn into_domain(self, idempotency_key: Option<String>) -> Result<NewSandbox, Error> {
        for (field, given) in [("git_branch", &self.git_branch), ("git_path", &self.git_path)] {
            if given.is_some() && self.git_url.is_none() {
                return Err(Error::invalid(field, "is of a repository; git_url names it"));
            }
        }
        let (branch, path) = (self.git_branch, self.git_path);
        Ok(NewSandbox {
            id: None,
            name: self.name,
            template: self.template,
            environment: None,
            image: self.image,
            repository: self.git_url.map(|url| Repository { url, branch, path }),
            labels: self.labels,
            env: self.env,
            id_variable: None,
            limits: self.limits,
            network: self.network,
            timers: self.timers.into(),
            provider: self.provider,
            owner: self.owner,
            user: self.user,
            cwd: self.cwd,
            public: self.public,
            idempotency_key,
            door: serde_json::Value::Null,
            if_exists: match self.if_exists {
                OnExisting::Refuse => IfExists::Refuse,
                OnExisting::Return => IfExists::Return,
                OnExisting::EnsureRunning => IfExists::EnsureRunning,
            },
            volumes: self.volumes.into_iter().map(Into::into).collect(),
            checkpoints: self.checkpoints,
        })
    }
}

/// Create a sandbox
///
/// Answers when it runs. With `if_exists` the call is get-or-create by name; with an `Idempotency-Key` header the same
/// request gives the same sandbox however often it is sent.
#[utoipa::path(post, path = "/sandboxes", tag = "sandboxes", request_body = Option<CreateSandbox>,
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 characters of your own")),
    responses((status = 201, description = "It runs", body = SandboxView)))]
pub async fn create(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    headers: HeaderMap,
    OptionalBody(body): OptionalBody<CreateSandbox>,
) -> Result<(StatusCode, Json<SandboxView>), ApiError> {
    let key = headers.get("idempotency-key").map(|value| value.to_str().map(ToOwned::to_owned)).transpose();
    // One that is dropped would make a second sandbox of the same request.
    let key = key.map_err(|_| Error::invalid("Idempotency-Key", "letters, digits and signs of ASCII"))?;
    let sandbox = match app.create_sandbox(&caller, body.into_domain(key)?).await {
        Ok(sandbox) => sandbox,
        Err(error) => return Err(app.explained(&caller, error).await.into()),
    };
    Ok((StatusCode::CREATED, Json(SandboxView::of(&app, sandbox))))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// `name=value`; several are parted by commas and must all match.
    label: Option<String>,
    /// States, parted by commas; all but destroyed where absent.
    #[param(value_type = Option<Vec<Life>>, style = Form, explode = false)]
    state: Option<String>,
    template: Option<String>,
    /// The beginning of the name.
    name: Option<String>,
    owner: Option<String>,
    #[param(value_type = Option<String>, format = DateTime)]
    created_after: Option<Timestamp>,
    #[param(value_type = Option<String>, format = DateTime)]
    created_before: Option<Timestamp>,
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// From the page before.
    cursor: Option<String>,
    order: Option<Order>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct SandboxPage {
    items: Vec<SandboxView>,
    /// For the page after; absent on the last.
    next_cursor: Option<String>,
}

impl ListQuery {
    fn filter(&self) -> Result<Filter, Error> {
        let mut labels = BTreeMap::new();
        for pair in self.label.iter().flat_map(|text| text.split(',')).filter(|pair| !pair.is_empty()) {
            let (label, value) =
                pair.split_once('=').ok_or_else(|| Error::invalid("label", format!("{pair:?} is not name=value")))?;
            labels.insert(label.to_owned(), value.to_owned());
        }
        let states = self.state.iter().flat_map(|text| text.split(',')).filter(|word| !word.is_empty());
        let states = states
            .map(|word| {
                let known = || Life::ALL.map(|state| state.to_string()).join(", ");
                Life::parse(word)
                    .ok_or_else(|| Error::invalid("state", format!("{word:?} is no state: there are {}", known())))
            })
            .collect::<Result<_, _>>()?;
        Ok(Filter {
            labels,
            states,
            template: self.template.clone(),
            name_prefix: self.name.clone(),
            owner: self.owner.clone(),
            created_after: self.created_after,
            created_before: self.created_before,
        })
    }
}

/// List sandboxes
#[utoipa::path(get, path = "/sandboxes", tag = "sandboxes", params(ListQuery),
    responses((status = 200, description = "A page of them", body = SandboxPage)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Params(query): Params<ListQuery>,
) -> Result<Json<SandboxPage>, ApiError> {
    let page = Page {
        limit: within("limit", query.limit, 100, 1000)?,
        cursor: query.cursor.clone(),
        order: query.order.unwrap_or_default(),
    };
    let listed = app.list_sandboxes(&caller, &query.filter()?, &page).await?;
    Ok(Json(SandboxPage { items: listed.items.into_iter().map(Into::into).collect(), next_cursor: listed.next }))
}

/// Read a sandbox
#[utoipa::path(get, path = "/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 200, description = "As it is now", body = SandboxView)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<Json<SandboxView>, ApiError> {
    let sandbox = app.sandbox(&caller, &id).await?;
    Ok(Json(SandboxView::of(&app, sandbox)))
}

/// Destroy a sandbox
///
/// Its processes end, its files are removed. The name is free at once.
#[utoipa::path(delete, path = "/sandboxes/{id}", tag = "sandboxes",
    params(("id" = String, Path, description = "id or name")),
    responses((status = 204, description = "Nothing remains")))]
pub async fn destroy(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.destroy(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
