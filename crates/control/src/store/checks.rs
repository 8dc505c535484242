//! What a check looks at, and how far it is, in the store.

use sqlx::Row;

use super::change::{Change, Statement};
use super::{Lasting, Store, to_body};
use crate::Error;
use crate::provider::LayerId;

impl Store {
    /// Servers that have files of an organisation.
    pub async fn servers_with_files(&self, organisation: &str) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT server FROM sandboxes WHERE organisation = $1 AND state <> 'destroyed' \
             UNION SELECT server FROM volumes WHERE organisation = $1 AND state <> 'deleted' \
             UNION SELECT server FROM builds WHERE organisation = $1 ORDER BY server";
        Ok(sqlx::query_scalar(SQL).bind(organisation).fetch_all(&self.reads).await?)
    }

    /// Layers that sandboxes, templates and snapshots of an organisation on one server need, each with the provider that has
    /// it; with none where no provider of that server is known to.
    pub async fn layers_of(&self, organisation: &str, server: &str) -> Result<Vec<(LayerId, Option<String>)>, Error> {
        const SQL: &str = "SELECT DISTINCT layer_uses.layer AS layer, layer_places.provider AS provider \
             FROM layer_uses LEFT JOIN layer_places \
             ON layer_places.layer = layer_uses.layer AND layer_places.server = $2 \
             WHERE (layer_uses.user_kind = 'build' AND layer_uses.user_id IN \
             (SELECT id FROM builds WHERE organisation = $1 AND server = $2)) \
             OR (layer_uses.user_kind = 'sandbox' AND layer_uses.user_id IN \
             (SELECT id FROM sandboxes WHERE organisation = $1 AND server = $2 AND state <> 'destroyed')) \
             ORDER BY layer";
        let rows = sqlx::query(SQL).bind(organisation).bind(server).fetch_all(&self.reads).await?;
        let mut layers = Vec::new();
        for row in &rows {
            let layer: String = row.try_get("layer")?;
            let layer = layer.parse().map_err(|_| Error::internal(format!("store: a layer with id {layer:?}")))?;
            layers.push((layer, row.try_get("provider")?));
        }
        Ok(layers)
    }

    /// What a job that is under way says of itself.
    pub async fn note_job(
        &self,
        id: &str,
        attempts: i64,
        payload: &serde_json::Value,
        lasting: Lasting,
    ) -> Result<(), Error> {
        const SQL: &str = "UPDATE jobs SET payload = $1 WHERE id = $2 AND attempts = $3 AND state = 'running'";
        let statement = Statement::other(SQL, [to_body(payload)?.into(), id.into(), attempts.into()]);
        self.carry_out(Change::new(statement).lasting(lasting), None).await?;
        Ok(())
    }
}
