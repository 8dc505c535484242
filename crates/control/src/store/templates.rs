//! Templates, their names and their tags in the store.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Statement};
use super::layers;
use super::sql::Sql;
use super::{Store, Written, audit, events, from_body, is_unique_violation, to_body};
use crate::Error;
use crate::audit::Entry;
use crate::build::Build;
use crate::clock::from_millisecond;
use crate::event::NewEvent;
use crate::image::User;
use crate::sandbox::Listed;
use crate::template::{DEFAULT_TAG, Kind, Record, Tag, Visibility};

const COLUMNS: &str = "id, public, updated_at, deleted_at, body";

fn read(row: &AnyRow) -> Result<Record, Error> {
    let mut record: Record = from_body(&row.try_get::<String, _>("body")?)?;
    let public: i64 = row.try_get("public")?;
    record.visibility = if public == 0 { Visibility::Private } else { Visibility::Public };
    record.updated_at = from_millisecond(row.try_get("updated_at")?);
    record.deleted_at = row.try_get::<Option<i64>, _>("deleted_at")?.map(from_millisecond);
    Ok(record)
}

fn read_tag(row: &AnyRow) -> Result<Tag, Error> {
    Ok(Tag { tag: row.try_get("tag")?, build: row.try_get("build")?, at: from_millisecond(row.try_get("at")?) })
}

/// What lists show of a template beside its row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Around {
    /// The newest first.
    pub tags: Vec<Tag>,
    /// The ready build that its name alone leads to.
    pub current: Option<Build>,
    pub newest: Option<Build>,
    /// How many it has.
    pub builds: u64,
}

/// What is written with a template, in the same transaction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Beside<'a> {
    pub audit: Option<&'a Entry>,
    pub event: Option<&'a NewEvent>,
}

/// Which templates a list is of.
#[derive(Debug, Clone, Default)]
pub struct TemplateFilter {
    pub kind: Kind,
    /// Public ones of other organisations, and the installation's own, too.
    pub others: bool,
    pub source_sandbox: Option<String>,
    /// The beginning of a name.
    pub name_prefix: Option<String>,
}

impl Store {
    pub(super) fn beside(&self, beside: Beside<'_>) -> Result<Vec<Statement>, Error> {
        let mut statements = Vec::from_iter(beside.audit.map(audit::insert));
        // Last: from an event's number to the commit, other writers of events wait.
        if let Some(event) = beside.event {
            statements.extend(events::insert(self.dialect, event)?);
        }
        Ok(statements)
    }

    /// A template with its names, and its first build. `false` where a name is taken.
    pub async fn insert_template(
        &self,
        record: &Record,
        first: Option<&Build>,
        beside: Beside<'_>,
    ) -> Result<bool, Error> {
        let values = [
            (&record.id).into(),
            (&record.organisation).into(),
            record.kind.as_str().into(),
            public(record).into(),
            record.source_sandbox.as_deref().into(),
            record.created_at.as_millisecond().into(),
            record.updated_at.as_millisecond().into(),
            to_body(record)?.into(),
        ];
        const TEMPLATE: &str = "id, organisation, kind, public, source_sandbox, created_at, updated_at, body";
        let change = Change::new(Statement::insert("templates", TEMPLATE, values))
            .with(insert_names(record))
            .with(first.map(super::builds::insert).transpose()?)
            .with(self.beside(beside)?);
        match self.write(change, None).await {
            Ok(_) => Ok(true),
            Err(error) if is_unique_violation(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Other names, another visibility, another description. `Ok(None)` where a name is taken.
    pub async fn update_template(&self, record: &Record, beside: Beside<'_>) -> Result<Option<Written>, Error> {
        const SQL: &str = "UPDATE templates SET public = $1, updated_at = $2, body = $3 WHERE id = $4 \
             AND deleted_at IS NULL";
        let values = [
            public(record).into(),
            record.updated_at.as_millisecond().into(),
            to_body(record)?.into(),
            (&record.id).into(),
        ];
        let change = Change::new(Statement::other(SQL, values))
            .with([drop_names(&record.id)])
            .with(insert_names(record))
            .with(self.beside(beside)?);
        match self.write(change, None).await {
            Ok(written) => Ok(Some(written)),
            Err(error) if is_unique_violation(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Its names and tags are free, and its builds need their layers no more: sandboxes that stand on them keep them.
    pub async fn delete_template(&self, id: &str, now: i64, beside: Beside<'_>) -> Result<Written, Error> {
        const SQL: &str = "UPDATE templates SET deleted_at = $1 WHERE id = $2 AND deleted_at IS NULL";
        const TAGS: &str = "DELETE FROM template_tags WHERE template = $1";
        const USES: &str = "DELETE FROM layer_uses WHERE user_kind = 'build' AND user_id IN \
             (SELECT id FROM builds WHERE template = $1)";
        let change = Change::new(Statement::other(SQL, [now.into(), id.into()]))
            .with([drop_names(id), Statement::other(TAGS, [id.into()]), Statement::other(USES, [id.into()])])
            .with(self.beside(beside)?);
        Ok(self.write(change, None).await?)
    }

    /// Deleted ones too.
    pub async fn template_by_id(&self, id: &str) -> Result<Option<Record>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM templates WHERE id = "));
        sql.bind(id);
        Ok(self.templates_of(sql).await?.pop())
    }

    /// By name or alias, within the organisation.
    pub async fn template_by_name(&self, organisation: &str, name: &str) -> Result<Option<Record>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM templates WHERE deleted_at IS NULL AND id = \
             (SELECT template FROM template_names WHERE organisation = "
        ));
        sql.bind(organisation).push(" AND name = ").bind(name).push(")");
        Ok(self.templates_of(sql).await?.pop())
    }

    /// Newest first, page by page.
    pub async fn list_templates(
        &self,
        organisation: &str,
        filter: &TemplateFilter,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Record>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM templates t WHERE deleted_at IS NULL AND kind = "));
        sql.bind(filter.kind.as_str()).push(" AND (organisation = ").bind(organisation);
        sql.push(if filter.others { " OR organisation = '' OR public = 1)" } else { ")" });
        if let Some(sandbox) = &filter.source_sandbox {
            sql.push(" AND source_sandbox = ").bind(sandbox);
        }
        if let Some(prefix) = &filter.name_prefix {
            let pattern = prefix.to_lowercase().replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            sql.push(" AND EXISTS (SELECT 1 FROM template_names n WHERE n.template = t.id AND n.name LIKE ");
            sql.bind(format!("{pattern}%")).push(" ESCAPE '\\')");
        }
        if let Some(cursor) = cursor {
            let parsed = cursor.split_once('.').and_then(|(at, id)| Some((at.parse::<i64>().ok()?, id)));
            let (at, id) = parsed.ok_or_else(|| Error::invalid("cursor", "not one that this server gave"))?;
            sql.push(&format!(" AND (created_at < {at} OR (created_at = {at} AND id < ")).bind(id).push("))");
        }
        let limit = limit.clamp(1, 1000) as usize;
        sql.push(&format!(" ORDER BY created_at DESC, id DESC LIMIT {}", limit + 1));
        let mut items = self.templates_of(sql).await?;
        let next = (items.len() > limit).then(|| {
            items.truncate(limit);
            let last = &items[limit - 1];
            format!("{}.{}", last.created_at.as_millisecond(), last.id)
        });
        Ok(Listed { items, next })
    }

    pub async fn count_templates(&self, organisation: &str) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM templates WHERE organisation = $1 AND deleted_at IS NULL";
        Ok(sqlx::query_scalar(SQL).bind(organisation).fetch_one(&self.reads).await?)
    }

    /// With their names.
    async fn templates_of(&self, sql: Sql) -> Result<Vec<Record>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        let mut records: Vec<Record> = rows.iter().map(read).collect::<Result<_, Error>>()?;
        if records.is_empty() {
            return Ok(records);
        }
        let mut sql = Sql::new("SELECT template, name FROM template_names WHERE template IN (".to_owned());
        sql.bind_all(records.iter().map(|record| record.id.as_str())).push(") ORDER BY template, place");
        let mut names: HashMap<String, Vec<String>> = HashMap::new();
        for row in self.rows_of(sql).await? {
            names.entry(row.try_get("template")?).or_default().push(row.try_get("name")?);
        }
        for record in &mut records {
            record.names = names.remove(&record.id).unwrap_or_default();
        }
        Ok(records)
    }

    async fn rows_of(&self, sql: Sql) -> Result<Vec<AnyRow>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        Ok(query.fetch_all(&self.reads).await?)
    }

    /// What lists show of each template, in their order. Four questions, however many templates there are.
    pub async fn around_templates(&self, templates: &[&str]) -> Result<Vec<Around>, Error> {
        if templates.is_empty() {
            return Ok(Vec::new());
        }
        let mut around: HashMap<String, Around> =
            templates.iter().map(|id| ((*id).to_owned(), Around::default())).collect();
        let mut sql = Sql::new("SELECT template, tag, build, at FROM template_tags WHERE template IN (".to_owned());
        sql.bind_all(templates.iter().copied()).push(") ORDER BY at DESC, tag");
        for row in self.rows_of(sql).await? {
            let template: String = row.try_get("template")?;
            if let Some(around) = around.get_mut(&template) {
                around.tags.push(read_tag(&row)?);
            }
        }
        let mut sql = Sql::new("SELECT template, COUNT(*) AS builds FROM builds WHERE template IN (".to_owned());
        sql.bind_all(templates.iter().copied()).push(") GROUP BY template");
        for row in self.rows_of(sql).await? {
            let template: String = row.try_get("template")?;
            if let Some(around) = around.get_mut(&template) {
                around.builds = row.try_get::<i64, _>("builds")?.unsigned_abs();
            }
        }
        for build in self.tagged_builds(templates, DEFAULT_TAG).await? {
            if let Some(around) = around.get_mut(&build.template) {
                around.current = Some(build);
            }
        }
        for build in self.newest_builds(templates).await? {
            if let Some(around) = around.get_mut(&build.template) {
                around.newest = Some(build);
            }
        }
        Ok(templates.iter().map(|id| around.remove(*id).unwrap_or_default()).collect())
    }

    /// The ready build that the name of each template alone leads to, in their order.
    pub async fn current_builds(&self, templates: &[&str]) -> Result<Vec<Option<Build>>, Error> {
        if templates.is_empty() {
            return Ok(Vec::new());
        }
        let builds = self.tagged_builds(templates, DEFAULT_TAG).await?;
        let mut builds: HashMap<String, Build> =
            builds.into_iter().map(|build| (build.template.clone(), build)).collect();
        Ok(templates.iter().map(|id| builds.remove(*id)).collect())
    }

    /// A template's tags, the newest first.
    pub async fn tags(&self, template: &str) -> Result<Vec<Tag>, Error> {
        const SQL: &str = "SELECT tag, build, at FROM template_tags WHERE template = $1 ORDER BY at DESC, tag";
        let rows = sqlx::query(SQL).bind(template).fetch_all(&self.reads).await?;
        rows.iter().map(read_tag).collect()
    }

    /// The build that a tag leads to.
    pub async fn tagged(&self, template: &str, tag: &str) -> Result<Option<String>, Error> {
        const SQL: &str = "SELECT build FROM template_tags WHERE template = $1 AND tag = $2";
        Ok(sqlx::query_scalar(SQL).bind(template).bind(tag).fetch_optional(&self.reads).await?)
    }

    /// Tags lead to this build from now on, whatever they led to.
    pub async fn assign_tags(&self, build: &Build, tags: &[String], now: i64, asked: &Entry) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO template_tags (template, tag, build, at) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (template, tag) DO UPDATE SET build = EXCLUDED.build, at = EXCLUDED.at";
        let one = |tag: &String| {
            Statement::other(SQL, [(&build.template).into(), tag.into(), (&build.id).into(), now.into()])
        };
        let statements = tags.iter().map(one).chain([audit::insert(asked)]);
        self.carry_out(Change::all(statements.collect()), None).await?;
        Ok(())
    }

    pub async fn remove_tags(&self, template: &str, tags: &[String], asked: &Entry) -> Result<(), Error> {
        const SQL: &str = "DELETE FROM template_tags WHERE template = $1 AND tag = $2";
        let one = |tag: &String| Statement::other(SQL, [template.into(), tag.into()]);
        let statements = tags.iter().map(one).chain([audit::insert(asked)]);
        self.carry_out(Change::all(statements.collect()), None).await?;
        Ok(())
    }

    /// Removes some templates that were deleted before a time and that no existing sandbox was started from, with their
    /// builds. Returns how many.
    pub async fn remove_deleted_templates(&self, before: i64) -> Result<u64, Error> {
        // A sandbox that starts again looks for the start command in its build, and its lineage goes through it.
        const OLD: &str = "SELECT t.id FROM templates t WHERE t.deleted_at < $1 AND NOT EXISTS \
             (SELECT 1 FROM builds b JOIN sandboxes s ON s.build = b.id \
             WHERE b.template = t.id AND s.state <> 'destroyed') ORDER BY t.deleted_at LIMIT 32";
        let ids: Vec<String> = sqlx::query_scalar(OLD).bind(before).fetch_all(&self.reads).await?;
        for id in &ids {
            for build in self.builds_of_template(id, None, 10_000).await?.items {
                self.remove_build(&build.id).await?;
            }
            const ROW: &str = "DELETE FROM templates WHERE id = $1 AND deleted_at IS NOT NULL";
            self.execute(Statement::other(ROW, [id.into()])).await?;
        }
        Ok(ids.len() as u64)
    }
}

fn public(record: &Record) -> i64 {
    i64::from(record.visibility == Visibility::Public)
}

fn insert_names(record: &Record) -> impl Iterator<Item = Statement> {
    record.names.iter().enumerate().map(|(place, name)| {
        let values = [(&record.organisation).into(), name.into(), (&record.id).into(), (place as i64).into()];
        Statement::insert("template_names", "organisation, name, template, place", values)
    })
}

fn drop_names(template: &str) -> Statement {
    Statement::other("DELETE FROM template_names WHERE template = $1", [template.into()])
}

/// Tags that a build which has become ready was made for: each leads to the newest ready build.
pub(super) fn tag_newest(build: &Build, now: i64) -> impl Iterator<Item = Statement> {
    const SQL: &str = "INSERT INTO template_tags (template, tag, build, at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (template, tag) DO UPDATE SET build = EXCLUDED.build, at = EXCLUDED.at \
         WHERE COALESCE((SELECT b.created_at FROM builds b WHERE b.id = template_tags.build), 0) <= $5";
    build.tags.iter().map(move |tag| {
        let values = [
            (&build.template).into(),
            tag.into(),
            (&build.id).into(),
            now.into(),
            build.created_at.as_millisecond().into(),
        ];
        Statement::other(SQL, values)
    })
}

/// A build needs its layers no more.
pub(super) fn release_build(build: &str) -> Statement {
    layers::release(User::Build(build))
}
