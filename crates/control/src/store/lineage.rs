//! Which sandbox came from which: copies and what they are copies of, in the store.
//!
//! ```text
//!   build ──▶ sandbox ──capture──▶ build ──▶ sandbox ──fork──▶ sandbox
//! ```

use sqlx::Row;

use super::Store;
use crate::Error;

/// How far up a line of ancestors is followed.
const DEEPEST: usize = 1000;

impl Store {
    /// The copies of a sandbox, oldest first; destroyed ones too where asked for.
    pub async fn forks_of(&self, organisation: &str, parent: &str, with_destroyed: bool) -> Result<Vec<String>, Error> {
        const LIVING: &str = "SELECT id FROM sandboxes WHERE parent = $1 AND organisation = $2 \
             AND state <> 'destroyed' AND pool IS NULL ORDER BY created_at, id LIMIT 1000";
        const ALL: &str = "SELECT id FROM sandboxes WHERE parent = $1 AND organisation = $2 AND pool IS NULL \
             ORDER BY created_at, id LIMIT 1000";
        let text = if with_destroyed { ALL } else { LIVING };
        Ok(sqlx::query_scalar(text).bind(parent).bind(organisation).fetch_all(&self.reads).await?)
    }

    /// The next sandboxes of a server that have checkpoints, after a template: each with the template of its checkpoints before it.
    pub async fn sandboxes_with_checkpoints(&self, server: &str, after: &str) -> Result<Vec<(String, String)>, Error> {
        const SQL: &str = "SELECT t.id AS template, s.id AS sandbox FROM templates t \
             JOIN sandboxes s ON s.id = t.source_sandbox WHERE t.kind = 'checkpoints' AND t.deleted_at IS NULL \
             AND s.server = $1 AND s.state <> 'destroyed' AND t.id > $2 ORDER BY t.id LIMIT 256";
        let rows = sqlx::query(SQL).bind(server).bind(after).fetch_all(&self.reads).await?;
        rows.iter().map(|row| Ok((row.try_get("template")?, row.try_get("sandbox")?))).collect()
    }

    /// Templates of the checkpoints of sandboxes that are gone; some of them.
    pub async fn checkpoints_of_destroyed(&self) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT t.id FROM templates t WHERE t.kind = 'checkpoints' AND t.deleted_at IS NULL \
             AND NOT EXISTS (SELECT 1 FROM sandboxes s WHERE s.id = t.source_sandbox AND s.state <> 'destroyed') \
             LIMIT 256";
        Ok(sqlx::query_scalar(SQL).fetch_all(&self.reads).await?)
    }

    /// The sandbox that this one is a copy of, the one that that one is a copy of, and so on: nearest first. A sandbox
    /// whose build was captured of another descends from that one.
    pub async fn ancestors_of(&self, organisation: &str, sandbox: &str) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT COALESCE(s.parent, b.source_sandbox) AS parent FROM sandboxes s \
             LEFT JOIN builds b ON b.id = s.build WHERE s.id = $1 AND s.organisation = $2";
        let mut ancestors: Vec<String> = Vec::new();
        let mut of = sandbox.to_owned();
        while ancestors.len() < DEEPEST {
            let row = sqlx::query(SQL).bind(&of).bind(organisation).fetch_optional(&self.reads).await?;
            let Some(parent) = row.map(|row| row.try_get::<Option<String>, _>("parent")).transpose()?.flatten() else {
                break;
            };
            if ancestors.contains(&parent) || parent == sandbox {
                break;
            }
            ancestors.push(parent.clone());
            of = parent;
        }
        Ok(ancestors)
    }
}
