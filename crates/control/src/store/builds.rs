//! Builds in the store: their rows, what they are to do, what they said, the cache of their steps, and the files that
//! were sent for them.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Lasting, Statement};
use super::layers;
use super::sql::Sql;
use super::templates::{Beside, release_build, tag_newest};
use super::{AT_ONCE, Store, Written, from_body, to_body};
use crate::Error;
use crate::build::{Build, BuildFile, Level, LogEntry, Meant, Recipe, Request, Step};
use crate::clock::from_millisecond;
use crate::image::User;
use crate::sandbox::Listed;

const COLUMNS: &str = "generation, last_used_at, body";

fn read(row: &AnyRow) -> Result<Build, Error> {
    let mut build: Build = from_body(&row.try_get::<String, _>("body")?)?;
    build.generation = row.try_get("generation")?;
    build.last_used_at = Some(from_millisecond(row.try_get("last_used_at")?));
    Ok(build)
}

pub(super) fn insert(build: &Build) -> Result<Statement, Error> {
    const BUILD: &str = "id, template, organisation, kind, state, server, source_sandbox, parent_build, generation, \
         created_at, finished_at, last_used_at, body";
    let values = [
        (&build.id).into(),
        (&build.template).into(),
        (&build.organisation).into(),
        build.kind.as_str().into(),
        build.state.as_str().into(),
        (&build.server).into(),
        build.source_sandbox.as_deref().into(),
        build.parent_build.as_deref().into(),
        build.generation.into(),
        build.created_at.as_millisecond().into(),
        build.finished_at.map(|at| at.as_millisecond()).into(),
        build.created_at.as_millisecond().into(),
        to_body(build)?.into(),
    ];
    Ok(Statement::insert("builds", BUILD, values))
}

fn update(build: &Build) -> Result<Statement, Error> {
    const SQL: &str = "UPDATE builds SET state = $1, kind = $2, server = $3, source_sandbox = $4, parent_build = $5, \
         generation = $6, finished_at = $7, body = $8 WHERE id = $9 AND generation = $10";
    let values = [
        build.state.as_str().into(),
        build.kind.as_str().into(),
        (&build.server).into(),
        build.source_sandbox.as_deref().into(),
        build.parent_build.as_deref().into(),
        (build.generation + 1).into(),
        build.finished_at.map(|at| at.as_millisecond()).into(),
        to_body(build)?.into(),
        (&build.id).into(),
        build.generation.into(),
    ];
    Ok(Statement::other(SQL, values))
}

impl Store {
    pub async fn insert_build(&self, build: &Build, beside: Beside<'_>) -> Result<(), Error> {
        let change = Change::new(insert(build)?).with(self.beside(beside)?);
        let _always_done = self.write(change, None).await?;
        Ok(())
    }

    pub async fn build(&self, id: &str) -> Result<Option<Build>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM builds WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(id).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// Newest first.
    pub async fn builds_of_template(
        &self,
        template: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Build>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM builds WHERE template = "));
        sql.bind(template);
        self.page_of_builds(sql, cursor, limit).await
    }

    /// Captures of a sandbox, newest first.
    pub async fn builds_of_sandbox(
        &self,
        organisation: &str,
        sandbox: &str,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Build>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM builds WHERE source_sandbox = "));
        sql.bind(sandbox).push(" AND organisation = ").bind(organisation);
        sql.push(" AND EXISTS (SELECT 1 FROM templates t WHERE t.id = builds.template AND t.deleted_at IS NULL)");
        self.page_of_builds(sql, cursor, limit).await
    }

    async fn page_of_builds(&self, mut sql: Sql, cursor: Option<&str>, limit: u32) -> Result<Listed<Build>, Error> {
        if let Some(cursor) = cursor {
            let parsed = cursor.split_once('.').and_then(|(at, id)| Some((at.parse::<i64>().ok()?, id)));
            let (at, id) = parsed.ok_or_else(|| Error::invalid("cursor", "not one that this server gave"))?;
            sql.push(&format!(" AND (created_at < {at} OR (created_at = {at} AND id < ")).bind(id).push("))");
        }
        let limit = limit.clamp(1, 10_000) as usize;
        sql.push(&format!(" ORDER BY created_at DESC, id DESC LIMIT {}", limit + 1));
        let mut items = self.fetch_builds(sql).await?;
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            let last = &items[limit - 1];
            format!("{}.{}", last.created_at.as_millisecond(), last.id)
        });
        Ok(Listed { items, next })
    }

    /// The ready builds that a tag of each template leads to.
    pub(super) async fn tagged_builds(&self, templates: &[&str], tag: &str) -> Result<Vec<Build>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM builds b JOIN template_tags t ON t.build = b.id AND t.template = b.template \
             WHERE b.state = 'ready' AND t.tag = "
        ));
        sql.bind(tag).push(" AND t.template IN (").bind_all(templates.iter().copied()).push(")");
        self.fetch_builds(sql).await
    }

    /// The newest build of each template that has one.
    pub(super) async fn newest_builds(&self, templates: &[&str]) -> Result<Vec<Build>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM builds WHERE id IN (SELECT id FROM (SELECT id, ROW_NUMBER() OVER \
             (PARTITION BY template ORDER BY created_at DESC, id DESC) AS place FROM builds WHERE template IN ("
        ));
        sql.bind_all(templates.iter().copied()).push(")) AS ordered WHERE place = 1)");
        self.fetch_builds(sql).await
    }

    /// Builds that are not finished: of one template, or those that a server does.
    pub async fn unfinished_builds(&self, of: Unfinished<'_>) -> Result<Vec<Build>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM builds WHERE state IN ('waiting', 'building') AND "));
        match of {
            Unfinished::OfTemplate(template) => sql.push("template = ").bind(template),
            Unfinished::OfServer(server) => sql.push("server = ").bind(server),
            Unfinished::OfOrganisation(organisation) => sql.push("organisation = ").bind(organisation),
        };
        sql.push(" ORDER BY created_at, id");
        self.fetch_builds(sql).await
    }

    async fn fetch_builds(&self, sql: Sql) -> Result<Vec<Build>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        query.fetch_all(&self.reads).await?.iter().map(read).collect()
    }

    /// Writes the build where its generation is still the one that was read, and raises it.
    pub async fn update_build(&self, build: &mut Build, beside: Beside<'_>) -> Result<Written, Error> {
        let over = build.state.is_final().then(|| forget_request(&build.id));
        let change = Change::new(update(build)?).with(over).with(self.beside(beside)?);
        self.raise_build(change, build).await
    }

    /// The build starts: its row, what is to be done, and whose an archive is that was sent for it alone.
    pub async fn start_build(
        &self,
        build: &mut Build,
        request: &Request,
        beside: Beside<'_>,
    ) -> Result<Written, Error> {
        const SQL: &str = "INSERT INTO build_requests (build, body) VALUES ($1, $2) \
             ON CONFLICT (build) DO UPDATE SET body = EXCLUDED.body";
        const FILE: &str = "UPDATE build_files SET build = $1 WHERE organisation = $2 AND hash = $3 AND build = ''";
        let file = match &request.recipe {
            Recipe::Archive { hash, .. } => {
                Some(Statement::other(FILE, [(&build.id).into(), (&build.organisation).into(), hash.into()]))
            }
            Recipe::Image { .. } | Recipe::Steps { .. } | Recipe::Dockerfile { .. } => None,
        };
        let change = Change::new(update(build)?)
            .with([Statement::other(SQL, [(&build.id).into(), to_body(request)?.into()])])
            .with(file)
            .with(self.beside(beside)?);
        self.raise_build(change, build).await
    }

    pub async fn build_request(&self, build: &str) -> Result<Option<Request>, Error> {
        let body: Option<String> = sqlx::query_scalar("SELECT body FROM build_requests WHERE build = $1")
            .bind(build)
            .fetch_optional(&self.reads)
            .await?;
        body.as_deref().map(from_body).transpose()
    }

    /// The build is ready: its row, the use of its layers, and the tags that lead to it. `Ok(None)` where a layer is
    /// going.
    pub async fn finish_build(
        &self,
        build: &mut Build,
        now: i64,
        beside: Beside<'_>,
    ) -> Result<Option<Written>, Error> {
        let change = Change::new(update(build)?)
            .with(layers::uses(self.dialect, User::Build(&build.id), &build.layers()))
            .with(tag_newest(build, now))
            .with([forget_request(&build.id)])
            .with(self.beside(beside)?);
        build.generation += 1;
        let written = self.write(change, None).await;
        if !matches!(written, Ok(Written::Done)) {
            build.generation -= 1;
        }
        match written {
            Ok(written) => Ok(Some(written)),
            Err(error) if layers::is_gone(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn raise_build(&self, change: Change, build: &mut Build) -> Result<Written, Error> {
        build.generation += 1;
        let written = self.write(change, None).await;
        if !matches!(written, Ok(Written::Done)) {
            build.generation -= 1;
        }
        Ok(written?)
    }

    pub async fn touch_build(&self, id: &str, now: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE builds SET last_used_at = $1 WHERE id = $2 AND last_used_at < $1";
        self.execute_soon(Statement::other(SQL, [now.into(), id.into()])).await?;
        Ok(())
    }

    /// Finished builds of an organisation, captures aside, without the newest; some of them, with their templates.
    pub async fn old_builds(&self, organisation: &str, newest: u32) -> Result<Vec<Build>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM builds WHERE state IN ('ready', 'error', 'cancelled') AND kind <> 'capture' \
             AND organisation = "
        ));
        sql.bind(organisation).push(&format!(" ORDER BY created_at DESC, id DESC LIMIT 64 OFFSET {newest}"));
        self.fetch_builds(sql).await
    }

    /// Forgets what a build said.
    pub async fn remove_build_logs(&self, id: &str) -> Result<(), Error> {
        const PIECE: &str = "DELETE FROM build_logs WHERE build = $1 AND seq < \
             (SELECT MIN(seq) + 1024 FROM build_logs WHERE build = $1)";
        while self.execute_soon(Statement::other(PIECE, [id.into()])).await? > 0 {}
        Ok(())
    }

    /// Removes one build: no tag leads to it, its layers are free, what it said is gone.
    pub async fn remove_build(&self, id: &str) -> Result<(), Error> {
        self.remove_build_logs(id).await?;
        const TAGS: &str = "DELETE FROM template_tags WHERE build = $1";
        const ROW: &str = "DELETE FROM builds WHERE id = $1";
        let statements = vec![
            Statement::other(TAGS, [id.into()]),
            forget_request(id),
            release_build(id),
            Statement::other(ROW, [id.into()]),
        ];
        self.carry_out(Change::all(statements), None).await?;
        Ok(())
    }

    /// How many sandboxes that are not destroyed started from a build.
    pub async fn count_sandboxes_of_build(&self, build: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM sandboxes WHERE build = $1 AND state <> 'destroyed'";
        Ok(sqlx::query_scalar(SQL).bind(build).fetch_one(&self.reads).await?)
    }

    pub async fn count_builds(&self, template: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM builds WHERE template = $1";
        Ok(sqlx::query_scalar(SQL).bind(template).fetch_one(&self.reads).await?)
    }

    /// Lines of a build. Those that are there already stay: whoever was not told that they were written tries again.
    pub async fn add_build_logs(&self, build: &str, entries: &[LogEntry]) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO build_logs (build, seq, at, level, step, message) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (build, seq) DO NOTHING";
        for some in entries.chunks(AT_ONCE) {
            let row = |entry: &LogEntry| {
                let values = [
                    build.into(),
                    entry.seq.into(),
                    entry.at.as_millisecond().into(),
                    entry.level.as_str().into(),
                    entry.step.as_deref().into(),
                    (&entry.message).into(),
                ];
                Statement::other(SQL, values)
            };
            self.carry_out(Change::all(some.iter().map(row).collect()).lasting(Lasting::Soon), None).await?;
        }
        Ok(())
    }

    pub async fn last_build_log(&self, build: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT MAX(seq) FROM build_logs WHERE build = $1";
        let last: Option<i64> = sqlx::query_scalar(SQL).bind(build).fetch_one(&self.reads).await?;
        Ok(last.unwrap_or(0))
    }

    /// Lines of at least a level; of those, `limit` from the `skip`th on, oldest first.
    pub async fn build_logs(&self, build: &str, least: Level, skip: i64, limit: u32) -> Result<Vec<LogEntry>, Error> {
        let mut sql = Sql::new("SELECT seq, at, level, step, message FROM build_logs WHERE build = ".to_owned());
        sql.bind(build);
        if least > Level::Debug {
            let levels: Vec<String> = Level::ALL
                .into_iter()
                .filter(|level| *level >= least)
                .map(|level| format!("'{}'", level.as_str()))
                .collect();
            sql.push(&format!(
                " AND level IN ({}) ORDER BY seq LIMIT {limit} OFFSET {}",
                levels.join(", "),
                skip.max(0)
            ));
        } else {
            // Numbers have no gaps: the offset is a number.
            sql.push(&format!(" AND seq > {} ORDER BY seq LIMIT {limit}", skip.max(0)));
        }
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter()
            .map(|row| {
                let level: String = row.try_get("level")?;
                Ok(LogEntry {
                    seq: row.try_get("seq")?,
                    at: from_millisecond(row.try_get("at")?),
                    level: Level::parse(&level).unwrap_or(Level::Info),
                    step: row.try_get("step")?,
                    message: row.try_get("message")?,
                })
            })
            .collect()
    }

    /// A step that was done before.
    pub async fn step(&self, organisation: &str, key: &str, server: &str) -> Result<Option<Step>, Error> {
        const SQL: &str = "SELECT body FROM steps WHERE organisation = $1 AND step_key = $2 AND server = $3";
        let query = sqlx::query_scalar(SQL).bind(organisation).bind(key).bind(server);
        let body: Option<String> = query.fetch_optional(&self.reads).await?;
        body.as_deref().map(from_body).transpose()
    }

    /// Remembers a step, with the use of its layers. `false` where one of them is going.
    pub async fn put_step(&self, organisation: &str, server: &str, step: &Step, now: i64) -> Result<bool, Error> {
        const SQL: &str = "INSERT INTO steps (organisation, step_key, server, created_at, last_used_at, body) \
             VALUES ($1, $2, $3, $4, $4, $5) ON CONFLICT (organisation, step_key, server) \
             DO UPDATE SET created_at = EXCLUDED.created_at, last_used_at = EXCLUDED.last_used_at, \
             body = EXCLUDED.body";
        let values = [organisation.into(), (&step.key).into(), server.into(), now.into(), to_body(step)?.into()];
        let user = step_user(organisation, &step.key, server);
        let mut statements = vec![Statement::other(SQL, values), layers::release(User::Step(&user))];
        statements.extend(layers::uses(self.dialect, User::Step(&user), &step.root.over));
        match self.carry_out(Change::all(statements), None).await {
            Ok(_) => Ok(true),
            Err(error) if layers::is_gone(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// A step was used; it stays a while longer.
    pub async fn touch_step(&self, organisation: &str, key: &str, server: &str, now: i64) -> Result<(), Error> {
        const SQL: &str =
            "UPDATE steps SET last_used_at = $1 WHERE organisation = $2 AND step_key = $3 AND server = $4";
        let values = [now.into(), organisation.into(), key.into(), server.into()];
        self.execute_soon(Statement::other(SQL, values)).await?;
        Ok(())
    }

    /// Forgets some steps that nobody has used since a time, of one organisation or of all. Returns how many.
    pub async fn remove_old_steps(&self, organisation: Option<&str>, before: i64) -> Result<u64, Error> {
        let mut sql =
            Sql::new(format!("SELECT organisation, step_key, server FROM steps WHERE last_used_at < {before}"));
        if let Some(organisation) = organisation {
            sql.push(" AND organisation = ").bind(organisation);
        }
        sql.push(" ORDER BY last_used_at LIMIT 64");
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        for row in &rows {
            let (organisation, key, server): (String, String, String) =
                (row.try_get("organisation")?, row.try_get("step_key")?, row.try_get("server")?);
            const ROW: &str = "DELETE FROM steps WHERE organisation = $1 AND step_key = $2 AND server = $3 \
                 AND last_used_at < $4";
            let user = step_user(&organisation, &key, &server);
            let values = [organisation.into(), key.into(), server.into(), before.into()];
            let change = Change::new(Statement::other(ROW, values)).with([layers::release(User::Step(&user))]);
            let _or_used_meanwhile = self.write(change, None).await?;
        }
        Ok(rows.len() as u64)
    }

    /// Notes an archive that was sent. Its bytes are in the object store already.
    pub async fn put_build_file(&self, file: &BuildFile, meant: Meant, now: i64) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO build_files (organisation, hash, bytes, created_at, last_used_at, build) \
             VALUES ($1, $2, $3, $4, $4, $5) ON CONFLICT (organisation, hash) \
             DO UPDATE SET bytes = EXCLUDED.bytes, last_used_at = EXCLUDED.last_used_at, build = EXCLUDED.build";
        let bytes = i64::try_from(file.bytes).unwrap_or(i64::MAX);
        let build: Option<&str> = match meant {
            Meant::ForAny => None,
            Meant::ForOne => Some(""),
        };
        let values = [(&file.organisation).into(), (&file.hash).into(), bytes.into(), now.into(), build.into()];
        self.execute(Statement::other(SQL, values)).await?;
        Ok(())
    }

    pub async fn build_file(&self, organisation: &str, hash: &str) -> Result<Option<BuildFile>, Error> {
        const SQL: &str = "SELECT organisation, hash, bytes FROM build_files WHERE organisation = $1 AND hash = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(hash).fetch_optional(&self.reads).await?;
        row.as_ref().map(read_file).transpose()
    }

    pub async fn touch_build_file(&self, organisation: &str, hash: &str, now: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE build_files SET last_used_at = $1 WHERE organisation = $2 AND hash = $3";
        self.execute_soon(Statement::other(SQL, [now.into(), organisation.into(), hash.into()])).await?;
        Ok(())
    }

    /// Bytes of the archives that an organisation has sent.
    pub async fn build_file_bytes(&self, organisation: &str) -> Result<u64, Error> {
        const SQL: &str = "SELECT CAST(SUM(bytes) AS BIGINT) FROM build_files WHERE organisation = $1";
        let bytes: Option<i64> = sqlx::query_scalar(SQL).bind(organisation).fetch_one(&self.reads).await?;
        Ok(bytes.unwrap_or(0).unsigned_abs())
    }

    /// Archives that nobody has used since a time; some of them. Those of one build have their own end.
    pub async fn old_build_files(&self, of: Option<&str>, before: i64) -> Result<Vec<BuildFile>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT organisation, hash, bytes FROM build_files WHERE build IS NULL AND last_used_at < {before}"
        ));
        if let Some(organisation) = of {
            sql.push(" AND organisation = ").bind(organisation);
        }
        sql.push(" ORDER BY last_used_at LIMIT 64");
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        query.fetch_all(&self.reads).await?.iter().map(read_file).collect()
    }

    /// The archive that was sent for a build alone.
    pub async fn files_of_build(&self, build: &str) -> Result<Vec<BuildFile>, Error> {
        const SQL: &str = "SELECT organisation, hash, bytes FROM build_files WHERE build = $1";
        sqlx::query(SQL).bind(build).fetch_all(&self.reads).await?.iter().map(read_file).collect()
    }

    /// Archives that were sent for one build which is over, or was not begun although they came before a time; some of them.
    pub async fn spent_build_files(&self, before: i64) -> Result<Vec<BuildFile>, Error> {
        const SQL: &str = "SELECT organisation, hash, bytes FROM build_files WHERE build IS NOT NULL AND \
             ((build = '' AND created_at < $1) OR (build <> '' AND NOT EXISTS (SELECT 1 FROM builds b \
             WHERE b.id = build_files.build AND b.state IN ('waiting', 'building')))) LIMIT 64";
        sqlx::query(SQL).bind(before).fetch_all(&self.reads).await?.iter().map(read_file).collect()
    }

    /// `false` where somebody has used it meanwhile.
    pub async fn remove_build_file(&self, file: &BuildFile, before: i64) -> Result<bool, Error> {
        const SQL: &str = "DELETE FROM build_files WHERE organisation = $1 AND hash = $2 AND last_used_at < $3";
        let values = [(&file.organisation).into(), (&file.hash).into(), before.into()];
        Ok(self.execute(Statement::other(SQL, values)).await? > 0)
    }
}

/// Which unfinished builds are meant.
#[derive(Debug, Clone, Copy)]
pub enum Unfinished<'a> {
    OfTemplate(&'a str),
    OfServer(&'a str),
    OfOrganisation(&'a str),
}

fn read_file(row: &AnyRow) -> Result<BuildFile, Error> {
    Ok(BuildFile {
        organisation: row.try_get("organisation")?,
        hash: row.try_get("hash")?,
        bytes: row.try_get::<i64, _>("bytes")?.unsigned_abs(),
    })
}

/// What a build was asked to do is of no use once it has ended, and may be large.
fn forget_request(build: &str) -> Statement {
    Statement::other("DELETE FROM build_requests WHERE build = $1", [build.into()])
}

fn step_user(organisation: &str, key: &str, server: &str) -> String {
    format!("{server}/{organisation}/{key}")
}
