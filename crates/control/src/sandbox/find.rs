//! Finding sandboxes: by id, by name, by filter.

use cove_protocol::SandboxId;

use super::create::check_labels;
use super::{Filter, Listed, Page, Sandbox, State};
use crate::{App, Caller, Error, Scope, right};

/// Of an id that a sandbox had elsewhere.
const ALIAS_MAX: usize = 128;

impl App {
    /// One sandbox by id, else by name. A destroyed one is found by id alone, and only where asked for.
    pub async fn sandbox(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        let found = self.store().sandbox(&caller.organisation, id_or_name).await?;
        found.filter(|sandbox| sandbox.state != State::Destroyed).ok_or_else(|| Error::not_found("sandbox", id_or_name))
    }

    /// As [`App::sandbox`], and those that are gone as well: for the record.
    pub async fn sandbox_even_destroyed(&self, caller: &Caller, id_or_name: &str) -> Result<Sandbox, Error> {
        let found = self.store().sandbox(&caller.organisation, id_or_name).await?;
        found.ok_or_else(|| Error::not_found("sandbox", id_or_name))
    }

    /// For those who prove their right by a token of the sandbox's own: what they are let in with ends when its tokens
    /// change, or when it is public no more.
    pub(crate) async fn sandbox_of_anybody(&self, id: &SandboxId) -> Result<Sandbox, Error> {
        loop {
            let ends = self.rights().ends();
            let found = self.store().sandbox_by_any_id(id).await?;
            let found = found.filter(|sandbox| sandbox.state != State::Destroyed && sandbox.pool.is_none());
            let sandbox = found.ok_or_else(|| Error::not_found("sandbox", id.to_string()))?;
            right::hold_sandbox(&sandbox)?;
            // New tokens are written first and then end what is held, so either this check or that end sees the other:
            // nobody is let in by a token that was read before it was replaced, and stays.
            if self.rights().ends() == ends {
                return Ok(sandbox);
            }
        }
    }

    /// From now on it answers to an id that it had elsewhere, at every door.
    pub async fn add_alias(&self, caller: &Caller, id_or_name: &str, alias: &str) -> Result<(), Error> {
        caller.require(Scope::Write)?;
        let fits = (1..=ALIAS_MAX).contains(&alias.len())
            && alias.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            && !alias.starts_with(['-', '.']);
        if !fits {
            let message = format!("1 to {ALIAS_MAX} letters, digits, '-', '_' and '.', not beginning with '-' or '.'");
            return Err(Error::invalid("alias", message));
        }
        let sandbox = self.sandbox(caller, id_or_name).await?;
        let taken = || Error::Conflict(format!("{alias} leads to another sandbox already"));
        match self.store().sandbox(&caller.organisation, alias).await? {
            Some(other) if other.id != sandbox.id && other.state != State::Destroyed => return Err(taken()),
            _ => {}
        }
        self.audit(caller, "sandbox.alias", sandbox.id.as_str()).await?;
        match self.store().add_alias(&caller.organisation, alias, &sandbox.id).await? {
            true => Ok(()),
            false => Err(taken()),
        }
    }

    /// Ids that a sandbox had elsewhere.
    pub async fn aliases(&self, caller: &Caller, id_or_name: &str) -> Result<Vec<String>, Error> {
        let sandbox = self.sandbox(caller, id_or_name).await?;
        self.store().aliases(&sandbox.id).await
    }

    pub async fn list_sandboxes(
        &self,
        caller: &Caller,
        filter: &Filter,
        page: &Page,
    ) -> Result<Listed<Sandbox>, Error> {
        check_labels(&filter.labels)?;
        self.store().list_sandboxes(&caller.organisation, filter, page).await
    }
}
