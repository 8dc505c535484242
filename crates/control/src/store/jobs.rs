//! The durable queue of background work.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::change::{Change, Lasting, Statement};
use super::sql::Sql;
use super::{AT_ONCE, Store};
use crate::Error;
use crate::clock::from_millisecond;
use crate::job::{DELIVERY, Job, JobState, Line, NewJob, SHARE};

const COLUMNS: &str =
    "id, kind, subject, organisation, state, run_at, attempts, created_at, finished_at, error, payload";

fn read(row: &AnyRow) -> Result<Job, Error> {
    let state: String = row.try_get("state")?;
    let payload: String = row.try_get("payload")?;
    Ok(Job {
        id: row.try_get("id")?,
        kind: row.try_get("kind")?,
        subject: row.try_get("subject")?,
        organisation: row.try_get("organisation")?,
        state: JobState::parse(&state).ok_or_else(|| Error::internal(format!("store: job in state {state}")))?,
        run_at: from_millisecond(row.try_get("run_at")?),
        attempts: row.try_get("attempts")?,
        created_at: from_millisecond(row.try_get("created_at")?),
        finished_at: row.try_get::<Option<i64>, _>("finished_at")?.map(from_millisecond),
        error: row.try_get("error")?,
        payload: super::from_body(&payload)?,
    })
}

/// How many deliveries an organisation may begin now.
struct Turn {
    organisation: String,
    /// Under way on this server.
    busy: u32,
    given: u32,
}

/// Gives places one by one to whoever has fewest; nobody has more than [`SHARE`].
fn share_out(mut turns: Vec<Turn>, places: u32) -> Vec<Turn> {
    for _ in 0..places {
        let next = turns.iter_mut().min_by_key(|turn| turn.busy + turn.given);
        match next.filter(|turn| turn.busy + turn.given < SHARE) {
            Some(turn) => turn.given += 1,
            None => break,
        }
    }
    turns.retain(|turn| turn.given > 0);
    turns
}

impl Store {
    /// Queues work; where one with the same key is under way already, that one is enough.
    pub async fn add_job(&self, id: &str, job: &NewJob, now: i64) -> Result<bool, Error> {
        const SQL: &str = "INSERT INTO jobs (id, kind, subject, organisation, server, unique_key, state, run_at, \
             attempts, created_at, payload) VALUES ($1, $2, $3, $4, $5, $6, 'queued', $7, 0, $8, $9) \
             ON CONFLICT DO NOTHING";
        let done = self
            .execute(Statement::other(
                SQL,
                [
                    id.into(),
                    (&job.kind).into(),
                    (&job.subject).into(),
                    (&job.organisation).into(),
                    job.server.as_deref().into(),
                    job.unique_key.as_deref().into(),
                    job.run_at.as_millisecond().into(),
                    now.into(),
                    super::to_body(&job.payload)?.into(),
                ],
            ))
            .await?;
        Ok(done == 1)
    }

    /// Takes jobs of a line that are due, or whose worker went away, for `lease` milliseconds.
    pub async fn claim_jobs(
        &self,
        server: &str,
        line: Line,
        now: i64,
        lease: i64,
        limit: u32,
    ) -> Result<Vec<Job>, Error> {
        let candidates = match line {
            Line::Upkeep => self.due_upkeep(server, now, limit).await?,
            Line::Deliveries => self.due_deliveries(server, now, limit).await?,
        };
        let mut claimed = Vec::new();
        for mut job in candidates {
            const CLAIM: &str = "UPDATE jobs SET state = 'running', lease_until = $1, worker = $2, \
                 attempts = attempts + 1 WHERE id = $3 AND attempts = $4 AND state <> 'done' AND state <> 'failed'";
            let values = [(now + lease).into(), server.into(), (&job.id).into(), job.attempts.into()];
            let done = match self.execute_soon(Statement::other(CLAIM, values)).await {
                // Those that are taken are done; this one and the rest are looked for again.
                Err(error) if !claimed.is_empty() => {
                    tracing::warn!(job = job.id, %error, detail = error.detail(), "take a job");
                    break;
                }
                done => done?,
            };
            if done == 1 {
                job.attempts += 1;
                job.state = JobState::Running;
                claimed.push(job);
            }
        }
        Ok(claimed)
    }

    async fn due_upkeep(&self, server: &str, now: i64, limit: u32) -> Result<Vec<Job>, Error> {
        let mut sql = Sql::new(format!(
            "SELECT {COLUMNS} FROM jobs WHERE ((state = 'queued' AND run_at <= {now}) \
             OR (state = 'running' AND lease_until < {now})) AND kind <> '{DELIVERY}' \
             AND (server IS NULL OR server = "
        ));
        sql.bind(server).push(&format!(") ORDER BY run_at LIMIT {limit}"));
        self.candidates(sql).await
    }

    /// Each goes to the organisation that has fewest under way: one with many, or with receivers that are slow, keeps
    /// none of the others waiting.
    async fn due_deliveries(&self, server: &str, now: i64, limit: u32) -> Result<Vec<Job>, Error> {
        let mut jobs = Vec::new();
        for turn in share_out(self.turns(server, now).await?, limit) {
            // What a worker left behind first. One condition each, so that an index knows the order.
            let lost = format!("state = 'running' AND lease_until < {now}");
            let waiting = format!("state = 'queued' AND run_at <= {now}");
            let mut room = turn.given;
            for condition in [lost, waiting] {
                let mut sql = Sql::new(format!(
                    "SELECT {COLUMNS} FROM jobs WHERE kind = '{DELIVERY}' AND {condition} AND organisation = "
                ));
                sql.bind(&turn.organisation).push(" AND (server IS NULL OR server = ").bind(server);
                sql.push(&format!(") ORDER BY run_at LIMIT {room}"));
                let found = self.candidates(sql).await?;
                room -= found.len() as u32;
                jobs.extend(found);
            }
        }
        Ok(jobs)
    }

    /// Organisations that have deliveries to make, those that wait longest first. However many deliveries there are,
    /// each organisation is looked up once.
    async fn turns(&self, server: &str, now: i64) -> Result<Vec<Turn>, Error> {
        let queued = format!("FROM jobs WHERE kind = '{DELIVERY}' AND state = 'queued'");
        let waiting = format!(
            "WITH RECURSIVE waiting (organisation) AS (SELECT MIN(organisation) {queued} UNION ALL \
             SELECT (SELECT MIN(jobs.organisation) {queued} AND jobs.organisation > waiting.organisation) \
             FROM waiting WHERE waiting.organisation IS NOT NULL), \
             oldest AS (SELECT organisation, \
             (SELECT MIN(jobs.run_at) {queued} AND jobs.organisation = waiting.organisation) AS run_at FROM waiting) \
             SELECT organisation FROM oldest WHERE run_at <= {now} ORDER BY run_at, organisation"
        );
        let under_way = format!(
            "SELECT organisation, COUNT(CASE WHEN worker = $1 AND lease_until >= {now} THEN 1 END) AS busy, \
             COUNT(CASE WHEN lease_until < {now} THEN 1 END) AS lost \
             FROM jobs WHERE kind = '{DELIVERY}' AND state = 'running' GROUP BY organisation"
        );
        let mut turns: Vec<Turn> = sqlx::query_scalar(sqlx::AssertSqlSafe(waiting))
            .fetch_all(&self.reads)
            .await?
            .into_iter()
            .map(|organisation| Turn { organisation, busy: 0, given: 0 })
            .collect();
        for row in &sqlx::query(sqlx::AssertSqlSafe(under_way)).bind(server).fetch_all(&self.reads).await? {
            let organisation: String = row.try_get("organisation")?;
            let busy = row.try_get::<i64, _>("busy")?.unsigned_abs() as u32;
            match turns.iter_mut().find(|turn| turn.organisation == organisation) {
                Some(turn) => turn.busy = busy,
                None if row.try_get::<i64, _>("lost")? > 0 => turns.push(Turn { organisation, busy, given: 0 }),
                None => {}
            }
        }
        Ok(turns)
    }

    async fn candidates(&self, sql: Sql) -> Result<Vec<Job>, Error> {
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        query.fetch_all(&self.reads).await?.iter().map(read).collect()
    }

    /// These jobs of a server stay its own.
    pub async fn renew_leases(&self, server: &str, jobs: &[String], until: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE jobs SET lease_until = $1 WHERE id = $2 AND state = 'running' AND worker = $3";
        for some in jobs.chunks(AT_ONCE) {
            let renew = |job: &String| Statement::other(SQL, [until.into(), job.into(), server.into()]);
            self.carry_out(Change::all(some.iter().map(renew).collect()).lasting(Lasting::Soon), None).await?;
        }
        Ok(())
    }

    /// What a server was at when it died, to be done again at once. Says how many.
    pub async fn release_jobs(&self, server: &str, now: i64, error: &str) -> Result<u64, Error> {
        const SQL: &str = "UPDATE jobs SET state = 'queued', run_at = $1, lease_until = NULL, worker = NULL, \
             error = $2 WHERE state = 'running' AND worker = $3";
        self.execute(Statement::other(SQL, [now.into(), error.into(), server.into()])).await
    }

    /// What servers were at that were not heard of since `silent_since`, and that any server can do, to be done by
    /// others. Says how many.
    pub async fn release_jobs_of_the_dead(&self, silent_since: i64, now: i64) -> Result<u64, Error> {
        const SQL: &str = "UPDATE jobs SET state = 'queued', run_at = $1, lease_until = NULL, worker = NULL, \
             error = 'its server was not heard of any more' WHERE state = 'running' AND server IS NULL AND worker IN \
             (SELECT id FROM servers WHERE seen_at < $2)";
        self.execute(Statement::other(SQL, [now.into(), silent_since.into()])).await
    }

    /// Done: the key is free for the next.
    pub async fn finish_job(&self, id: &str, attempts: i64, now: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE jobs SET state = 'done', finished_at = $1, lease_until = NULL, unique_key = NULL, \
             error = NULL WHERE id = $2 AND attempts = $3";
        self.execute(Statement::other(SQL, [now.into(), id.into(), attempts.into()])).await?;
        Ok(())
    }

    /// Again at that time.
    pub async fn retry_job(&self, id: &str, attempts: i64, run_at: i64, error: &str) -> Result<(), Error> {
        const SQL: &str = "UPDATE jobs SET state = 'queued', run_at = $1, lease_until = NULL, error = $2 \
             WHERE id = $3 AND attempts = $4";
        self.execute(Statement::other(SQL, [run_at.into(), error.into(), id.into(), attempts.into()])).await?;
        Ok(())
    }

    /// Given up.
    pub async fn fail_job(&self, id: &str, attempts: i64, now: i64, error: &str) -> Result<(), Error> {
        const SQL: &str = "UPDATE jobs SET state = 'failed', finished_at = $1, lease_until = NULL, unique_key = NULL, \
             error = $2 WHERE id = $3 AND attempts = $4";
        self.execute(Statement::other(SQL, [now.into(), error.into(), id.into(), attempts.into()])).await?;
        Ok(())
    }

    /// How many jobs are in this state, counted up to 1,000.
    pub async fn count_jobs(&self, state: JobState) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM (SELECT 1 AS one FROM jobs WHERE state = $1 LIMIT 1000) AS counted";
        Ok(sqlx::query_scalar(SQL).bind(state.as_str()).fetch_one(&self.reads).await?)
    }

    pub async fn jobs(
        &self,
        organisation: Option<&str>,
        state: Option<JobState>,
        limit: u32,
    ) -> Result<Vec<Job>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM jobs WHERE 1 = 1"));
        if let Some(organisation) = organisation {
            sql.push(" AND organisation = ").bind(organisation);
        }
        if let Some(state) = state {
            sql.push(" AND state = ").bind(state.as_str());
        }
        sql.push(&format!(" ORDER BY created_at DESC, id LIMIT {}", limit.clamp(1, 1000)));
        let mut query = sqlx::query(sqlx::AssertSqlSafe(sql.text));
        for bind in sql.binds {
            query = query.bind(bind);
        }
        let rows = query.fetch_all(&self.reads).await?;
        rows.iter().map(read).collect()
    }

    pub async fn job(&self, id: &str) -> Result<Option<Job>, Error> {
        let mut sql = Sql::new(format!("SELECT {COLUMNS} FROM jobs WHERE id = "));
        sql.bind(id);
        let row = sqlx::query(sqlx::AssertSqlSafe(sql.text)).bind(id).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }
}
