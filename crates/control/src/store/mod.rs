//! What is remembered: one SQL text for SQLite and PostgreSQL.
//!
//! Both are driven through sqlx's `Any` with `$N` placeholders, BIGINT milliseconds and JSON as TEXT: the dialect that
//! they share. SQLite has one connection that writes (so writers queue here, fairly, and never meet a busy database)
//! and several that read; it runs in WAL mode with `synchronous = NORMAL`: a killed process loses nothing, a power cut
//! can lose the last moments' writes but never corrupts. PostgreSQL has one pool for both. What is written together goes
//! as a `Change`, which either gets in the way that is quickest for it.
//!
//! Rows are private and become domain types here.

pub mod audit;
mod change;
pub mod events;
pub mod jobs;
pub mod keys;
mod migrate;
pub mod pools;
mod samples;
pub mod sandboxes;
pub mod servers;
pub mod sessions;
mod sql;
pub mod usage;
pub mod webhooks;

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use sqlx::any::{AnyConnectOptions, AnyPoolOptions};
use sqlx::{AnyPool, Executor};

use self::sandboxes::Recent;
use crate::Error;

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
    reads: AnyPool,
    writes: AnyPool,
    recent: Arc<Recent>,
}

/// Tokens and environments are in it: for the owner's eyes alone. SQLite gives its other files the same mode.
fn keep_private(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
    let file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
}

/// What SQLite is told on every connection.
const SQLITE_PRAGMAS: &str = "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 10000; \
     PRAGMA temp_store = MEMORY; PRAGMA cache_size = -16384; PRAGMA mmap_size = 268435456;";

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
        let dialect = if url.starts_with("sqlite:") {
            Dialect::Sqlite
        } else if url.starts_with("postgres:") || url.starts_with("postgresql:") {
            Dialect::Postgres
        } else {
            return Err(Error::invalid("database", "a URL that begins with sqlite:// or postgres://"));
        };
        let options =
            AnyConnectOptions::from_str(url).map_err(|error| Error::invalid("database", error.to_string()))?;
        let pool = |connections: u32| {
            AnyPoolOptions::new()
                .max_connections(connections)
                .acquire_timeout(Duration::from_secs(30))
                .test_before_acquire(dialect == Dialect::Postgres)
                .after_connect(move |connection, _| {
                    Box::pin(async move {
                        if dialect == Dialect::Sqlite {
                            connection.execute(SQLITE_PRAGMAS).await?;
                        }
                        Ok(())
                    })
                })
                .connect_with(options.clone())
        };
        let unreachable = |error: sqlx::Error| Error::internal(format!("open the database: {error}"));
        let (reads, writes) = match dialect {
            Dialect::Sqlite => {
                let writes = pool(1).await.map_err(unreachable)?;
                (pool(4).await.map_err(unreachable)?, writes)
            }
            Dialect::Postgres => {
                let both = pool(16).await.map_err(unreachable)?;
                (both.clone(), both)
            }
        };
        let store = Store { dialect, reads, writes, recent: Arc::new(Recent::new(dialect)) };
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
        sqlx::query(DRAW).bind(rand::random::<i64>() & i64::MAX).execute(&self.writes).await?;
        const READ: &str = "SELECT seq FROM cursors WHERE name = 'identity'";
        let drawn: i64 = sqlx::query_scalar(READ).fetch_one(&self.writes).await?;
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
