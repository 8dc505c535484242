//! Recipes: templates that can be built by their name.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use serde::Serialize;

use super::auth::Authenticated;
use super::error::ApiError;
use super::extract::Path;
use crate::build::{Base, State as BuildState};
use crate::recipe::{Bad, Kind, Listed};
use crate::{App, Caller, Scope};

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RecipeView {
    name: String,
    /// Other names of its template.
    aliases: Vec<String>,
    description: String,
    /// What it needs of the server's machine or of the network, in plain words.
    needs: Vec<String>,
    /// What it stands on: a template, or an image of a registry.
    from: RecipeBase,
    /// Other forms of it.
    variants: Vec<RecipeVariant>,
    /// Values that may be set.
    arguments: Vec<RecipeArgument>,
    /// What its commands may read of whoever builds it, and that is kept nowhere.
    secrets: Vec<RecipeSecret>,
    /// Sandboxes of the template have what its description says.
    built: bool,
    /// The state of the newest build; absent where it was never begun.
    state: Option<BuildState>,
    /// Part of every installation, rather than a file of the operator's.
    built_in: bool,
    /// The operator's file; for operators alone.
    path: Option<String>,
    /// Why it cannot be used; for operators alone.
    problem: Option<String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecipeBase {
    Template(String),
    Image(String),
    Nothing,
}

impl From<&Base> for RecipeBase {
    fn from(base: &Base) -> Self {
        match base {
            Base::Template(name) => RecipeBase::Template(name.clone()),
            Base::Image(name) => RecipeBase::Image(name.clone()),
            Base::Stage(_) | Base::Nothing => RecipeBase::Nothing,
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RecipeVariant {
    name: String,
    description: Option<String>,
    /// Values that it sets.
    arguments: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RecipeArgument {
    name: String,
    description: String,
    kind: Kind,
    default: String,
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RecipeSecret {
    name: String,
    description: String,
    /// The variable that commands have it in; absent where it is a file.
    variable: Option<String>,
}

impl RecipeView {
    fn of(caller: &Caller, listed: &Listed) -> RecipeView {
        let recipe = &listed.recipe;
        let shown = recipe.path.as_ref().filter(|_| caller.may(Scope::Operator));
        RecipeView {
            name: recipe.name.clone(),
            aliases: recipe.aliases.clone(),
            description: recipe.description.clone(),
            needs: recipe.needs.clone(),
            from: (&recipe.base).into(),
            variants: recipe
                .variants
                .iter()
                .map(|(name, variant)| RecipeVariant {
                    name: name.clone(),
                    description: variant.description.clone(),
                    arguments: variant.arguments.clone(),
                })
                .collect(),
            arguments: recipe
                .arguments
                .iter()
                .map(|(name, argument)| RecipeArgument {
                    name: name.clone(),
                    description: argument.description.clone(),
                    kind: argument.kind,
                    default: argument.default.clone(),
                })
                .collect(),
            secrets: recipe
                .secrets
                .iter()
                .map(|(name, secret)| RecipeSecret {
                    name: name.clone(),
                    description: secret.description.clone(),
                    variable: secret.path.is_none().then(|| name.clone()),
                })
                .collect(),
            built: listed.built,
            state: listed.state,
            built_in: recipe.path.is_none(),
            path: shown.map(|path| path.display().to_string()),
            problem: None,
        }
    }

    /// A file that is none.
    fn bad(bad: &Bad) -> RecipeView {
        RecipeView {
            name: bad.name.clone(),
            aliases: Vec::new(),
            description: String::new(),
            needs: Vec::new(),
            from: RecipeBase::Nothing,
            variants: Vec::new(),
            arguments: Vec::new(),
            secrets: Vec::new(),
            built: false,
            state: None,
            built_in: bad.path.is_none(),
            path: bad.path.as_ref().map(|path| path.display().to_string()),
            problem: Some(bad.problem.to_string()),
        }
    }
}

/// List recipes
///
/// Templates that can be built by their name, whether they are built or not. Operators see files that cannot be read, too.
#[utoipa::path(get, path = "/recipes", tag = "templates",
    responses((status = 200, description = "By name", body = Vec<RecipeView>)))]
pub async fn list(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
) -> Result<Json<Vec<RecipeView>>, ApiError> {
    let (all, bad) = app.list_recipes(&caller).await?;
    let good = all.iter().map(|listed| RecipeView::of(&caller, listed));
    Ok(Json(good.chain(bad.iter().map(RecipeView::bad)).collect()))
}

/// A recipe as it is written.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct RecipeText {
    recipe: RecipeView,
    /// The file, in TOML.
    text: String,
}

/// Read a recipe
#[utoipa::path(get, path = "/recipes/{name}", tag = "templates",
    params(("name" = String, Path, description = "name or alias")),
    responses((status = 200, description = "The recipe", body = RecipeText)))]
pub async fn read(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(name): Path<String>,
) -> Result<Json<RecipeText>, ApiError> {
    let listed = app.recipe(&caller, &name).await?;
    let text = listed.recipe.text.clone();
    Ok(Json(RecipeText { recipe: RecipeView::of(&caller, &listed), text }))
}
