//! Making and revoking keys, making organisations and deleting them.

use super::{Key, Organisation, Quota, Scope, hash};
use crate::app::FIRST_ORGANISATION;
use crate::clock::{Timestamp, after};
use crate::right::Right;
use crate::{App, Caller, Error, random};

#[derive(Debug, Clone)]
pub struct NewKey {
    pub name: String,
    pub scope: Scope,
    pub expires_in_seconds: Option<u64>,
    /// Another organisation than the caller's: operators only.
    pub organisation: Option<String>,
}

/// Whether a change is made that takes along more than it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Force {
    #[default]
    No,
    Yes,
}

impl App {
    /// The key and its secret, which is shown only once.
    pub async fn create_key(&self, caller: &Caller, new: NewKey) -> Result<(Key, String), Error> {
        caller.require(Scope::Admin)?;
        caller.require(new.scope)?;
        if new.name.is_empty() || new.name.len() > 128 {
            return Err(Error::invalid("name", "1 to 128 characters"));
        }
        let organisation = new.organisation.unwrap_or_else(|| caller.organisation.clone());
        if organisation != caller.organisation {
            caller.require(Scope::Operator)?;
            if self.store().organisation(&organisation).await?.is_none() {
                return Err(Error::not_found("organisation", organisation));
            }
        }
        let now = self.now();
        let expires_at = new.expires_in_seconds.map(|seconds| after(now, seconds));
        let secret = random::api_key();
        let key = self.add_key(&secret, &organisation, &new.name, new.scope, expires_at).await?;
        self.audit(caller, "key.create", &key.id).await?;
        Ok((key, secret))
    }

    pub(crate) async fn add_key(
        &self,
        secret: &str,
        organisation: &str,
        name: &str,
        scope: Scope,
        expires_at: Option<Timestamp>,
    ) -> Result<Key, Error> {
        let key = Key {
            id: random::id("key"),
            organisation: organisation.to_owned(),
            name: name.to_owned(),
            scope,
            prefix: secret.chars().take(8).collect(),
            created_at: self.now(),
            expires_at,
            revoked_at: None,
            last_used_at: None,
            configured_by: Vec::new(),
            replaced: false,
        };
        self.store().insert_key(&key, &hash(secret)).await?;
        Ok(key)
    }

    pub async fn list_keys(&self, caller: &Caller) -> Result<Vec<Key>, Error> {
        caller.require(Scope::Admin)?;
        self.store().keys(&caller.organisation).await
    }

    /// The key that the caller came with.
    pub async fn own_key(&self, caller: &Caller) -> Result<Key, Error> {
        let keys = self.store().keys(&caller.organisation).await?;
        keys.into_iter().find(|key| key.id == caller.key).ok_or_else(|| Error::not_found("key", &caller.key))
    }

    /// The organisation that the caller's key belongs to.
    pub async fn own_organisation(&self, caller: &Caller) -> Result<Organisation, Error> {
        let found = self.store().organisation(&caller.organisation).await?;
        found.ok_or_else(|| Error::not_found("organisation", &caller.organisation))
    }

    /// When this installation began: with its first organisation.
    pub async fn installed_at(&self) -> Result<Timestamp, Error> {
        let first = self.store().organisations().await?.into_iter().map(|organisation| organisation.created_at).min();
        Ok(first.unwrap_or_else(|| self.now()))
    }

    /// The last key of an operator is revoked by force alone: without it nobody could run the server.
    pub async fn revoke_key(&self, caller: &Caller, id: &str, force: Force) -> Result<(), Error> {
        caller.require(Scope::Admin)?;
        // Another organisation's key keeps its streams, and their log does not say that it was revoked.
        let keys = self.store().keys(&caller.organisation).await?;
        let key = keys.iter().find(|key| key.id == id).ok_or_else(|| Error::not_found("key", id))?;
        // Who may not make such a key may not end it: an administrator could lock the operator out.
        caller.require(key.scope)?;
        if force == Force::No && self.is_valid_operator(key) && self.is_last_operator(key).await? {
            return Err(Error::Conflict(format!(
                "key {id} is the last operator key of this server: nobody could run it without one; make another \
                 first, or revoke it with force=true"
            )));
        }
        let revoked = self.store().revoke_key(&caller.organisation, id, self.now().as_millisecond()).await?;
        self.key_cache().forget();
        let audited = self.audit(caller, "key.revoke", id).await;
        // This comes last: the key may be the caller's own. What it opened ends also where the log cannot be written.
        self.rights().end(&Right::Key(id.to_owned()));
        audited?;
        if revoked { Ok(()) } else { Err(Error::not_found("key", id)) }
    }

    fn is_valid_operator(&self, key: &Key) -> bool {
        let is_over = key.expires_at.is_some_and(|end| end <= self.now());
        key.scope == Scope::Operator && key.revoked_at.is_none() && !is_over
    }

    /// Whether no organisation has another.
    async fn is_last_operator(&self, key: &Key) -> Result<bool, Error> {
        for organisation in self.store().organisations().await? {
            let keys = self.store().keys(&organisation.id).await?;
            if keys.iter().any(|other| other.id != key.id && self.is_valid_operator(other)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub async fn create_organisation(&self, caller: &Caller, id: &str, name: &str) -> Result<Organisation, Error> {
        caller.require(Scope::Operator)?;
        let fits = (2..=63).contains(&id.len())
            && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !fits {
            return Err(Error::invalid("id", "2 to 63 lower-case letters, digits and '-'"));
        }
        // Keys, webhooks, journals, usage and the audit log are found by the organisation's id, and stay after its end.
        // Whatever an organisation had was made with a key, so one without keys has left nothing.
        if self.store().organisation(id).await?.is_none() && !self.store().keys(id).await?.is_empty() {
            let reason = "was deleted; its records stay, so nobody else gets its id: choose another";
            return Err(Error::Conflict(format!("organisation {id} {reason}")));
        }
        let organisation = Organisation {
            id: id.to_owned(),
            name: name.to_owned(),
            created_at: self.now(),
            quota: self.config().quota,
        };
        if !self.store().insert_organisation(&organisation).await? {
            return Err(Error::Conflict(format!("organisation {id} is there already")));
        }
        self.audit(caller, "organisation.create", id).await?;
        Ok(organisation)
    }

    /// Deletes an organisation. Its keys, the tokens of its volumes, and what they opened end at once. An organisation that
    /// still has sandboxes is refused; one that has templates, snapshots or volumes too, unless they go by force.
    pub async fn delete_organisation(&self, caller: &Caller, id: &str, force: Force) -> Result<(), Error> {
        caller.require(Scope::Operator)?;
        self.organisation(caller, id).await?;
        if id == FIRST_ORGANISATION {
            return Err(Error::Conflict(format!("organisation {id} is the server's own and stays")));
        }
        let keys = self.store().keys(id).await?;
        if force == Force::Yes {
            self.delete_belongings(caller, id).await?;
        }
        if !self.store().delete_organisation(id).await? {
            return Err(Error::Conflict(self.belongings(id).await?.refusal(id)));
        }
        self.key_cache().forget();
        let audited = self.audit(caller, "organisation.delete", id).await;
        for key in keys {
            self.rights().end(&Right::Key(key.id));
        }
        // One may have been made at the last moment: nobody gets in by its token from now on.
        for volume in self.store().volumes(id, false).await? {
            self.rights().end(&Right::Volume(volume.id));
        }
        audited
    }

    pub async fn list_organisations(&self, caller: &Caller) -> Result<Vec<Organisation>, Error> {
        if caller.may(Scope::Operator) {
            return self.store().organisations().await;
        }
        Ok(self.store().organisation(&caller.organisation).await?.into_iter().collect())
    }

    pub async fn organisation(&self, caller: &Caller, id: &str) -> Result<Organisation, Error> {
        let visible = caller.organisation == id || caller.may(Scope::Operator);
        let found = if visible { self.store().organisation(id).await? } else { None };
        found.ok_or_else(|| Error::not_found("organisation", id))
    }

    pub async fn set_quota(&self, caller: &Caller, id: &str, quota: Quota) -> Result<Organisation, Error> {
        let mut organisation = self.organisation(caller, id).await?;
        caller.require(Scope::Operator)?;
        quota.check()?;
        organisation.quota = quota;
        self.store().update_organisation(&organisation).await?;
        self.key_cache().forget();
        self.audit(caller, "organisation.quota", id).await?;
        Ok(organisation)
    }
}
