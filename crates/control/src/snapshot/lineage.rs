//! Who came from whom: copies, what they are copies of, and sandboxes that were started from captures of others.

use crate::sandbox::Sandbox;
use crate::{App, Caller, Error};

/// Which copies a list is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Forks {
    #[default]
    Existing,
    WithDestroyed,
}

impl App {
    /// The copies of a sandbox, oldest first.
    pub async fn forks_of(&self, caller: &Caller, id_or_name: &str, which: Forks) -> Result<Vec<Sandbox>, Error> {
        let sandbox = self.sandbox_even_destroyed(caller, id_or_name).await?;
        let with_destroyed = which == Forks::WithDestroyed;
        let ids = self.store().forks_of(&caller.organisation, sandbox.id.as_str(), with_destroyed).await?;
        self.sandboxes_by_id(caller, ids).await
    }

    /// The sandbox that this one came from, if the store still knows it.
    pub async fn parent_of(&self, caller: &Caller, id_or_name: &str) -> Result<Option<Sandbox>, Error> {
        Ok(self.ancestors_of(caller, id_or_name).await?.into_iter().next())
    }

    /// Those that a sandbox came from, nearest first.
    pub async fn ancestors_of(&self, caller: &Caller, id_or_name: &str) -> Result<Vec<Sandbox>, Error> {
        let sandbox = self.sandbox_even_destroyed(caller, id_or_name).await?;
        let ids = self.store().ancestors_of(&caller.organisation, sandbox.id.as_str()).await?;
        self.sandboxes_by_id(caller, ids).await
    }

    /// What the store has forgotten is left out.
    async fn sandboxes_by_id(&self, caller: &Caller, ids: Vec<String>) -> Result<Vec<Sandbox>, Error> {
        let mut found = Vec::new();
        for id in ids {
            match self.sandbox_even_destroyed(caller, &id).await {
                Ok(sandbox) => found.push(sandbox),
                Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }
}
