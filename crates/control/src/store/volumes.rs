//! Volumes, and which sandboxes have them, in the store.
//!
//! Mounts are written with their sandbox, as the uses of layers are (see `layers`): the sandbox's transaction fails where
//! a volume is not ready, and a volume goes only where no sandbox has it.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Statement};
use super::sql::Sql;
use super::templates::Beside;
use super::{Dialect, Store, Written, from_body, is_unique_violation, to_body};
use crate::Error;
use crate::clock::from_millisecond;
use crate::provider::{VolumeId, VolumeMount};
use crate::sandbox::Sandbox;
use crate::volume::{State, Volume};

const COLUMNS: &str = "last_used_at, body";

fn read(row: &AnyRow) -> Result<Volume, Error> {
    let mut volume: Volume = from_body(&row.try_get::<String, _>("body")?)?;
    volume.last_used_at = row.try_get::<Option<i64>, _>("last_used_at")?.map(from_millisecond);
    Ok(volume)
}

/// The volumes of a new sandbox. The transaction fails where one of them is not ready.
pub(super) fn mounts(dialect: Dialect, sandbox: &Sandbox) -> Vec<Statement> {
    const SQLITE: &str = "INSERT INTO volume_mounts (sandbox, path, volume) \
         VALUES ($1, $2, (SELECT id FROM volumes WHERE id = $3 AND organisation = $4 AND state = 'ready'))";
    const POSTGRES: &str = "INSERT INTO volume_mounts (sandbox, path, volume) VALUES ($1, $2, \
         (SELECT id FROM volumes WHERE id = $3 AND organisation = $4 AND state = 'ready' FOR SHARE))";
    const USED: &str = "UPDATE volumes SET last_used_at = $1 WHERE id = $2";
    let text = match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    };
    let both = |mounted: &VolumeMount| {
        let values = [
            sandbox.id.as_str().into(),
            (&mounted.target).into(),
            mounted.volume.as_str().into(),
            (&sandbox.organisation).into(),
        ];
        let used = [sandbox.created_at.as_millisecond().into(), mounted.volume.as_str().into()];
        // The stronger lock first, and always in one order: of two who mount the same volumes one waits for the other.
        [Statement::other(USED, used), Statement::other(text, values)]
    };
    let mut mounted: Vec<&VolumeMount> = sandbox.volumes.iter().collect();
    mounted.sort_by(|one, other| one.volume.as_str().cmp(other.volume.as_str()));
    mounted.into_iter().flat_map(both).collect()
}

/// A sandbox that is gone has none.
pub(super) fn unmount(sandbox: &str) -> Statement {
    Statement::other("DELETE FROM volume_mounts WHERE sandbox = $1", [sandbox.into()])
}

impl Store {
    /// `false` where the name is taken.
    pub async fn insert_volume(&self, volume: &Volume, beside: Beside<'_>) -> Result<bool, Error> {
        const VOLUME: &str = "id, organisation, name, server, provider, state, size_limit, created_at, body";
        let values = [
            volume.id.as_str().into(),
            (&volume.organisation).into(),
            (&volume.name).into(),
            (&volume.server).into(),
            (&volume.provider).into(),
            volume.state.as_str().into(),
            number(volume.size_limit).into(),
            volume.created_at.as_millisecond().into(),
            to_body(volume)?.into(),
        ];
        let change = Change::new(Statement::insert("volumes", VOLUME, values)).with(self.beside(beside)?);
        match self.write(change, None).await {
            Ok(_) => Ok(true),
            Err(error) if is_unique_violation(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the volume where it is still in the state `from`.
    pub async fn update_volume(&self, volume: &Volume, from: State, beside: Beside<'_>) -> Result<Written, Error> {
        let change = Change::new(update(volume, from)?).with(self.beside(beside)?);
        Ok(self.write(change, None).await?)
    }

    /// The volume begins to go. Overtaken where a sandbox has it, or where it is not ready any more.
    pub async fn begin_to_delete_volume(&self, volume: &Volume, beside: Beside<'_>) -> Result<Written, Error> {
        const LOCK: &str = "UPDATE volumes SET state = state WHERE id = $1";
        const GO: &str = "UPDATE volumes SET state = 'deleting', name = NULL, body = $1 WHERE id = $2 \
             AND state = 'ready' AND NOT EXISTS (SELECT 1 FROM volume_mounts WHERE volume_mounts.volume = $2)";
        // PostgreSQL looks for mounts with what was committed when a statement began: first the row is locked.
        let lock = Statement::other(LOCK, [volume.id.as_str().into()]);
        let go = Statement::other(GO, [to_body(volume)?.into(), volume.id.as_str().into()]);
        self.write_when_locked(lock, go).await?;
        let now = self.volume_by_id(&volume.id).await?;
        if now.is_none_or(|now| now.state != State::Deleting) {
            return Ok(Written::Overtaken);
        }
        self.carry_out(Change::all(self.beside(beside)?), None).await?;
        Ok(Written::Done)
    }

    async fn write_when_locked(&self, lock: Statement, then: Statement) -> Result<(), Error> {
        let statements = match self.dialect {
            Dialect::Sqlite => vec![then],
            Dialect::Postgres => vec![lock, then],
        };
        self.carry_out(Change::all(statements), None).await?;
        Ok(())
    }

    pub async fn volume_by_id(&self, id: &VolumeId) -> Result<Option<Volume>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM volumes WHERE id = "));
        sql.bind(id.as_str());
        Ok(self.fetch_volumes(sql).await?.pop())
    }

    /// By id, else by name; none that is gone.
    pub async fn volume(&self, organisation: &str, id_or_name: &str) -> Result<Option<Volume>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM volumes WHERE state <> 'deleted' AND organisation = "));
        sql.bind(organisation).push(" AND (id = ").bind(id_or_name);
        sql.push(" OR name = ").bind(id_or_name).push(") ORDER BY CASE WHEN id = ").bind(id_or_name);
        sql.push(" THEN 0 ELSE 1 END LIMIT 1");
        Ok(self.fetch_volumes(sql).await?.pop())
    }

    /// Oldest first. Those that are gone only where asked for.
    pub async fn volumes(&self, organisation: &str, with_deleted: bool) -> Result<Vec<Volume>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM volumes WHERE organisation = "));
        sql.bind(organisation).push(if with_deleted { "" } else { " AND state <> 'deleted'" });
        sql.push(" ORDER BY created_at, id LIMIT 10000");
        self.fetch_volumes(sql).await
    }

    /// Those of a server that were being made or removed when it died.
    pub async fn unfinished_volumes(&self, server: &str) -> Result<Vec<Volume>, Error> {
        let mut sql =
            Sql::new(format!("SELECT {COLUMNS} FROM volumes WHERE state IN ('creating', 'deleting') AND server = "));
        sql.bind(server);
        self.fetch_volumes(sql).await
    }

    async fn fetch_volumes(&self, sql: Sql) -> Result<Vec<Volume>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        query.fetch_all(&self.reads).await?.iter().map(read).collect()
    }

    /// The sandboxes that have a volume.
    pub async fn sandboxes_with_volume(&self, volume: &VolumeId) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT DISTINCT sandbox FROM volume_mounts WHERE volume = $1 ORDER BY sandbox LIMIT 1000";
        Ok(sqlx::query_scalar(SQL).bind(volume.as_str()).fetch_all(&self.reads).await?)
    }

    /// Removes rows of volumes that went before a time. Returns how many.
    pub async fn remove_deleted_volumes(&self, before: i64) -> Result<u64, Error> {
        const SQL: &str = "DELETE FROM volumes WHERE id IN \
             (SELECT id FROM volumes WHERE deleted_at < $1 AND state = 'deleted' ORDER BY deleted_at LIMIT 256)";
        self.execute_soon(Statement::other(SQL, [before.into()])).await
    }
}

fn update(volume: &Volume, from: State) -> Result<Statement, Error> {
    const SQL: &str = "UPDATE volumes SET name = $1, state = $2, size_limit = $3, deleted_at = $4, body = $5 \
         WHERE id = $6 AND state = $7";
    let name = match volume.state {
        State::Creating | State::Ready => Some(volume.name.as_str()),
        State::Deleting | State::Deleted => None,
    };
    let values = [
        name.into(),
        volume.state.as_str().into(),
        number(volume.size_limit).into(),
        volume.deleted_at.map(|at| at.as_millisecond()).into(),
        to_body(volume)?.into(),
        volume.id.as_str().into(),
        from.as_str().into(),
    ];
    Ok(Statement::other(SQL, values))
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
