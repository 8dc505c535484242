//! What is remembered: one SQL text for SQLite and PostgreSQL.
//!
//! Both are driven through sqlx's `Any` with `$N` placeholders, BIGINT milliseconds and JSON as TEXT: the dialect that
//! they share. SQLite has one connection that writes (so writers queue here, fairly, and never meet a busy database)
//! and several that read; `sync` brings its commits to the disk. PostgreSQL has one pool for both, and a deadline for
//! every statement. What is written together is a `Change`; `write` carries it out and is the only way to write.
//!
//! Rows are private and become domain types here.

pub mod audit;
pub mod builds;
mod change;
mod checks;
mod damage;
pub mod events;
pub mod jobs;
pub mod keys;
pub mod layers;
mod lineage;
mod migrate;
pub mod pools;
mod pushes;
mod reads;
pub mod retention;
mod room;
mod samples;
pub mod sandboxes;
pub mod servers;
pub mod sessions;
mod sql;
mod sync;
pub mod templates;
pub mod usage;
mod volumes;
pub mod webhooks;
mod write;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyPool, Executor};

use self::change::Statement;
use self::reads::Reads;
use self::sandboxes::Recent;
use self::sync::Syncer;
use crate::Error;

pub use change::Lasting;

/// How long an answer is waited for: a database that does not answer is as good as gone.
const STATEMENT: Duration = Duration::from_secs(10);
/// How long to wait for a free connection, and for a new one.
const CONNECTION: Duration = Duration::from_secs(5);
/// Rows that are written in one transaction where there may be any number.
const AT_ONCE: usize = 256;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Sqlite,
    Postgres,
}

/// Whether a write found the row as its writer had read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Written {
    Done,
    /// Somebody else wrote in between.
    Overtaken,
}

#[derive(Debug, Clone)]
pub struct Store {
    dialect: Dialect,
    reads: Reads,
    /// Only `write` and `migrate` use it.
    writes: AnyPool,
    /// Only with SQLite.
    syncer: Option<Arc<Syncer>>,
    recent: Arc<Recent>,
}

/// Tokens and environments are in it: for the owner's eyes alone. SQLite gives its other files the same mode.
fn keep_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// What SQLite is told on every connection. `NORMAL` syncs at checkpoints alone; commits are synced by `sync`.
const SQLITE_SETTINGS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 10000; \
     PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384; PRAGMA mmap_size = 268435456;";

/// And PostgreSQL: a commit that is not on the disk is none, whatever the database's own default is; and a statement ends
/// in the database, too, before its caller has given up on it.
const POSTGRES_SETTINGS: &str = "SELECT set_config('statement_timeout', '8s', false), \
     CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END";

impl Store {
    /// The embedded database in a file, made if it is not there.
    pub async fn sqlite(path: &Path) -> Result<Store, Error> {
        keep_private(path).map_err(|error| Error::internal(format!("open {}: {error}", path.display())))?;
        let path = percent_encoding::utf8_percent_encode(&path.to_string_lossy(), PATH).to_string();
        Store::open(&format!("sqlite://{path}?mode=rwc")).await
    }

    /// By URL: `sqlite://…` or `postgres://…`.
    pub async fn open(url: &str) -> Result<Store, Error> {
        sqlx::any::install_default_drivers();
        let wrong = |error: sqlx::Error| Error::invalid("database", error.to_string());
        let options = AnyConnectOptions::from_str(url);
        if url.starts_with("sqlite:") {
            let file = sqlx::sqlite::SqliteConnectOptions::from_str(url).map_err(wrong)?;
            Store::open_sqlite(options.map_err(wrong)?, file.get_filename()).await
        } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            Store::open_postgres(options.map_err(wrong)?).await
        } else {
            Err(Error::invalid("database", "a URL that begins with sqlite:// or postgres://"))
        }
    }

    async fn open_sqlite(options: AnyConnectOptions, file: &Path) -> Result<Store, Error> {
        damage::check(file)?;
        let trouble = |error: sqlx::Error| damage::name(file, error);
        let pool = |connections: u32| {
            // No connection grows old: with the last one SQLite would remove its log.
            let pool = AnyPoolOptions::new().max_connections(connections).idle_timeout(None).max_lifetime(None);
            pool.acquire_timeout(Duration::from_secs(30))
                .test_before_acquire(false)
                .after_connect(|connection, _| {
                    Box::pin(async move { connection.execute(SQLITE_SETTINGS).await.map(drop) })
                })
                .connect_with(options.clone())
        };
        let writes = pool(1).await.map_err(trouble)?;
        let reads = Reads::new(pool(4).await.map_err(trouble)?, STATEMENT);
        let syncer = Some(Arc::new(Syncer::new(file)));
        let recent = Arc::new(Recent::new(Dialect::Sqlite));
        let store = Store { dialect: Dialect::Sqlite, reads, writes, syncer, recent };
        store.migrate().await?;
        Ok(store)
    }

    async fn open_postgres(options: AnyConnectOptions) -> Result<Store, Error> {
        let unreachable = |error: sqlx::Error| Error::internal(format!("open the database: {error}"));
        let pool = AnyPoolOptions::new()
            .max_connections(16)
            .acquire_timeout(CONNECTION)
            .test_before_acquire(true)
            .after_connect(|connection, _| {
                Box::pin(async move { connection.execute(POSTGRES_SETTINGS).await.map(drop) })
            })
            .connect_with(options)
            .await
            .map_err(unreachable)?;
        let reads = Reads::new(pool.clone(), STATEMENT);
        let recent = Arc::new(Recent::new(Dialect::Postgres));
        let store = Store { dialect: Dialect::Postgres, reads, writes: pool, syncer: None, recent };
        store.migrate().await?;
        Ok(store)
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether the database answers.
    pub async fn ping(&self) -> Result<(), Error> {
        sqlx::query("SELECT 1").execute(&self.reads).await?;
        Ok(())
    }

    /// What tells this database from every other; drawn when it is first asked for, and kept with its rows.
    pub async fn identity(&self) -> Result<String, Error> {
        const DRAW: &str = "INSERT INTO cursors (name, seq) VALUES ('identity', $1) ON CONFLICT DO NOTHING";
        self.execute(Statement::other(DRAW, [(rand::random::<i64>() & i64::MAX).into()])).await?;
        const READ: &str = "SELECT seq FROM cursors WHERE name = 'identity'";
        let drawn: i64 = sqlx::query_scalar(READ).fetch_one(&self.reads).await?;
        Ok(format!("{drawn:016x}"))
    }

    pub async fn close(&self) {
        self.reads.close().await;
        self.writes.close().await;
    }
}

const PATH: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS.add(b' ').add(b'?').add(b'#').add(b'%');

/// A noun as JSON for its `body`.
fn to_body(noun: &impl serde::Serialize) -> Result<String, Error> {
    serde_json::to_string(noun).map_err(|error| Error::internal(format!("store: write a body: {error}")))
}

/// And back.
fn from_body<T: serde::de::DeserializeOwned>(body: &str) -> Result<T, Error> {
    serde_json::from_str(body).map_err(|error| Error::internal(format!("store: read a body: {error}")))
}

fn is_unique_violation(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(database) if database.is_unique_violation())
}
