//! Connections to read from, with a deadline for every answer.
//!
//! A PostgreSQL that is stopped keeps its connections open and says nothing: whoever asked would wait for ever. SQLite
//! answers from its own file, which may lie on a disk that hangs.

use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use sqlx::any::{AnyQueryResult, AnyRow, AnyStatement, AnyTypeInfo};
use sqlx::{Any, AnyPool, Either, Execute, Executor, SqlStr};

#[derive(Debug, Clone)]
pub(super) struct Reads {
    pool: AnyPool,
    deadline: Duration,
}

impl Reads {
    pub(super) fn new(pool: AnyPool, deadline: Duration) -> Self {
        Reads { pool, deadline }
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

async fn in_time<T>(
    deadline: Duration,
    answer: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(deadline, answer).await.unwrap_or(Err(sqlx::Error::PoolTimedOut))
}

impl<'p> Executor<'p> for &'_ Reads {
    type Database = Any;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<AnyQueryResult, AnyRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        let (rows, deadline) = ((&self.pool).fetch_many(query), self.deadline);
        // After an error there is nothing more.
        let next = move |rows: Option<BoxStream<'e, _>>| async move {
            let mut rows = rows?;
            match in_time(deadline, async { Ok(rows.next().await) }).await {
                Ok(None) => None,
                Ok(Some(row)) => Some((row, Some(rows))),
                Err(error) => Some((Err(error), None)),
            }
        };
        futures::stream::unfold(Some(rows), next).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<AnyRow>, sqlx::Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Any>,
    {
        Box::pin(in_time(self.deadline, (&self.pool).fetch_optional(query)))
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [AnyTypeInfo],
    ) -> BoxFuture<'e, Result<AnyStatement, sqlx::Error>>
    where
        'p: 'e,
    {
        Box::pin(in_time(self.deadline, (&self.pool).prepare_with(sql, parameters)))
    }
}
