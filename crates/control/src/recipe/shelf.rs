//! Which recipes there are for a caller, and whether they are built.

use std::sync::Arc;

use super::{Bad, Recipe};
use crate::build::State;
use crate::{App, Caller, Error, Scope};

/// A recipe, and what became of it.
#[derive(Debug, Clone)]
pub struct Listed {
    pub recipe: Arc<Recipe>,
    /// Sandboxes have what its description says.
    pub built: bool,
    /// The state of its newest build; none where it was never begun.
    pub state: Option<State>,
}

impl App {
    /// All recipes of this server by name, and for operators the files that are none.
    pub async fn list_recipes(&self, caller: &Caller) -> Result<(Vec<Listed>, Vec<Bad>), Error> {
        let recipes = self.recipes();
        let mut all = Vec::new();
        for recipe in recipes.all.values() {
            all.push(self.listed(caller, recipe).await?);
        }
        Ok((all, if caller.may(Scope::Operator) { recipes.bad } else { Vec::new() }))
    }

    /// One recipe by name or alias.
    pub async fn recipe(&self, caller: &Caller, name: &str) -> Result<Listed, Error> {
        let recipes = self.recipes();
        self.listed(caller, recipes.wanted(name)?).await
    }

    /// An organisation's own template of the name comes before the one for everybody.
    async fn listed(&self, caller: &Caller, recipe: &Arc<Recipe>) -> Result<Listed, Error> {
        let recipe = Arc::clone(recipe);
        if let Some(record) = self.store().template_by_name(&caller.organisation, &recipe.name).await? {
            let overview = self.overview(record).await?;
            let state = overview.newest.map(|build| build.state);
            return Ok(Listed { recipe, built: overview.current.is_some(), state });
        }
        let built = self.installed(&recipe).await?.is_ready();
        let newest = self.store().builds_of_template(&recipe.name, None, 1).await?.items.pop();
        Ok(Listed { recipe, built, state: newest.map(|build| build.state) })
    }
}
