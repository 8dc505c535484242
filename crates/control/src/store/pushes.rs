//! Pushes in the store: their rows. What they say is with the lines of builds.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Statement};
use super::sql::Sql;
use super::templates::Beside;
use super::{Store, Written, from_body, to_body};
use crate::Error;
use crate::push::Push;
use crate::sandbox::Listed;

fn read(row: &AnyRow) -> Result<Push, Error> {
    from_body(&row.try_get::<String, _>("body")?)
}

impl Store {
    pub async fn insert_push(&self, push: &Push, beside: Beside<'_>) -> Result<(), Error> {
        const COLUMNS: &str = "id, organisation, state, server, created_at, body";
        let values = [
            (&push.id).into(),
            (&push.organisation).into(),
            push.state.as_str().into(),
            (&push.server).into(),
            push.created_at.as_millisecond().into(),
            to_body(push)?.into(),
        ];
        let change = Change::new(Statement::insert("pushes", COLUMNS, values)).with(self.beside(beside)?);
        let _always_done = self.write(change, None).await?;
        Ok(())
    }

    /// The last state of a push that is under way. One that has its last state keeps it.
    pub async fn end_push(&self, push: &Push) -> Result<Written, Error> {
        const SQL: &str = "UPDATE pushes SET state = $1, body = $2 WHERE id = $3 AND state = 'pushing'";
        let values = [push.state.as_str().into(), to_body(push)?.into(), (&push.id).into()];
        Ok(self.write(Change::new(Statement::other(SQL, values)), None).await?)
    }

    pub async fn push(&self, id: &str) -> Result<Option<Push>, Error> {
        let row = sqlx::query("SELECT body FROM pushes WHERE id = $1").bind(id).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// Newest first, page by page.
    pub async fn pushes(&self, organisation: &str, cursor: Option<&str>, limit: u32) -> Result<Listed<Push>, Error> {
        let mut sql = Sql::new("SELECT body FROM pushes WHERE organisation = ".to_owned());
        sql.bind(organisation);
        if let Some(cursor) = cursor {
            let parsed = cursor.split_once('.').and_then(|(at, id)| Some((at.parse::<i64>().ok()?, id)));
            let (at, id) = parsed.ok_or_else(|| Error::invalid("cursor", "not one that this server gave"))?;
            sql.push(&format!(" AND (created_at < {at} OR (created_at = {at} AND id < ")).bind(id).push("))");
        }
        let limit = limit.clamp(1, 1000) as usize;
        sql.push(&format!(" ORDER BY created_at DESC, id DESC LIMIT {}", limit + 1));
        let mut items = self.fetch_pushes(sql).await?;
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            let last = &items[limit - 1];
            format!("{}.{}", last.created_at.as_millisecond(), last.id)
        });
        Ok(Listed { items, next })
    }

    /// Those that a server does, or should.
    pub async fn pushes_under_way(&self, server: &str) -> Result<Vec<Push>, Error> {
        let mut sql = Sql::new("SELECT body FROM pushes WHERE state = 'pushing' AND server = ".to_owned());
        sql.bind(server);
        self.fetch_pushes(sql).await
    }

    pub async fn count_pushes_under_way(&self, organisation: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM pushes WHERE organisation = $1 AND state = 'pushing'";
        Ok(sqlx::query_scalar(SQL).bind(organisation).fetch_one(&self.reads).await?)
    }

    /// Pushes of an organisation that have ended, without the newest; some of them.
    pub async fn old_pushes(&self, organisation: &str, newest: u32) -> Result<Vec<Push>, Error> {
        let mut sql = Sql::new("SELECT body FROM pushes WHERE state <> 'pushing' AND organisation = ".to_owned());
        sql.bind(organisation).push(&format!(" ORDER BY created_at DESC, id DESC LIMIT 64 OFFSET {newest}"));
        self.fetch_pushes(sql).await
    }

    /// Forgets a push, with what it said.
    pub async fn remove_push(&self, id: &str) -> Result<(), Error> {
        self.remove_build_logs(id).await?;
        self.execute(Statement::other("DELETE FROM pushes WHERE id = $1", [id.into()])).await?;
        Ok(())
    }

    async fn fetch_pushes(&self, sql: Sql) -> Result<Vec<Push>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        query.fetch_all(&self.reads).await?.iter().map(read).collect()
    }
}
