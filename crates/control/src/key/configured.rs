//! The key of the configuration, and what happens when the configuration names another one.
//!
//! A key's row lists the servers that are configured with it. A server that starts with another key revokes the
//! previous one: that is how an operator rotates the key. Keys that were made through the API are not affected.

use super::{Key, Scope, hash};
use crate::app::FIRST_ORGANISATION;
use crate::config::Config;
use crate::store::Dialect;
use crate::{App, Error};

/// The name of such keys.
const NAME: &str = "first";

impl App {
    /// Makes the configured key valid and revokes the one that this server was configured with before.
    pub(crate) async fn configure_key(&self, secret: &str) -> Result<(), Error> {
        let current = hash(secret);
        let mut key = match self.store().key_by_hash(&current).await? {
            Some(key) => key,
            None => self.add_key(secret, FIRST_ORGANISATION, NAME, Scope::Operator, None).await?,
        };
        let us = self.server().to_owned();
        let (is_new, is_replaced) = (!key.configured_by.contains(&us), key.replaced && key.revoked_at.is_some());
        if key.revoked_at.is_some() && !is_replaced {
            tracing::warn!(key = key.id, "{}", revoked(self.config()));
        }
        if is_new || is_replaced {
            if is_new {
                key.configured_by.push(us.clone());
            }
            if is_replaced {
                (key.revoked_at, key.replaced) = (None, false);
            }
            self.store().update_configured_key(&key).await?;
        }
        for former in self.store().keys(FIRST_ORGANISATION).await? {
            if former.id != key.id && former.revoked_at.is_none() && self.was_configured(&former, &us).await? {
                let now = self.now();
                tracing::info!(key = former.id, "revoked: the configuration names another key now");
                let former = Key { revoked_at: Some(now), replaced: true, ..former };
                self.store().update_configured_key(&former).await?;
            }
        }
        self.key_cache().forget();
        Ok(())
    }

    async fn was_configured(&self, key: &Key, us: &String) -> Result<bool, Error> {
        if !key.configured_by.is_empty() || key.name != NAME || key.scope != Scope::Operator {
            return Ok(key.configured_by.contains(us));
        }
        // The row is older than the list of servers. A key that the API made has an entry in the audit log.
        if self.store().is_audited("key.create", &key.id).await? {
            return Ok(false);
        }
        if self.store().dialect() == Dialect::Postgres {
            tracing::warn!(
                key = key.id,
                "this operator's key may be of a former configuration; revoke it if no server uses it"
            );
            return Ok(false);
        }
        Ok(true)
    }
}

/// Every verb on this machine comes with that key: whoever is locked out reads here how to get in again.
fn revoked(config: &Config) -> String {
    match &config.api_key {
        Some(_) => "the key of the configuration (`api_key`, COVE_API_KEY) was revoked and opens nothing: set another \
                    one and start the server again"
            .to_owned(),
        None => {
            let file = config.data.join("api-key");
            format!(
                "the key in {} was revoked and opens nothing: remove the file and start the server again for a new \
                 one",
                file.display()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_opens_nothing_is_told_with_its_place_and_the_way_out() {
        let config = Config { data: "/srv/cove".into(), ..Config::default() };
        let told = revoked(&config);
        assert!(told.contains("/srv/cove/api-key") && told.contains("remove the file"), "{told}");
        let told = revoked(&Config { api_key: Some("e2b_x".into()), ..config });
        assert!(told.contains("COVE_API_KEY") && !told.contains("e2b_x"), "{told}");
    }
}
