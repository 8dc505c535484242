//! What a session printed, numbered. An entry is written first and then sent to listeners, so a reader that continues
//! from a number misses nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::running::Cells;
use crate::clock::Timestamp;
use crate::interpreter::cell::{CellError, CellResult};
use crate::{App, Caller, Error};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Message {
    ExecutionStarted { execution: String },
    Log { stream: Stream, content: String },
    Result(CellResult),
    Error(CellError),
    ExecutionComplete { execution: String, exit_code: i32, result: Option<String>, artifacts: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct JournalEntry {
    pub seq: i64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    #[serde(flatten)]
    pub message: Message,
}

/// Sessions with an execution under way.
#[derive(Default)]
pub struct Live {
    writers: Mutex<HashMap<String, Arc<Writer>>>,
    pub(super) cells: Cells,
}

/// The most bytes of one session's journal, which is in the server's database. The oldest entries are dropped.
const MOST_BYTES: i64 = 128 << 20;

pub(super) struct Writer {
    /// `None` until it is read from the store.
    last: AsyncMutex<Option<Tail>>,
    told: watch::Sender<i64>,
}

/// The end of a journal.
#[derive(Clone, Copy)]
struct Tail {
    /// The number of the last entry.
    seq: i64,
    bytes: i64,
}

impl Live {
    fn writer(&self, session: &str) -> Arc<Writer> {
        let mut writers = self.writers.lock().expect("no panic while held");
        if writers.len() > 1024 {
            writers.retain(|_, writer| Arc::strong_count(writer) > 1 || writer.told.receiver_count() > 0);
        }
        let new = || Arc::new(Writer { last: AsyncMutex::new(None), told: watch::channel(0).0 });
        Arc::clone(writers.entry(session.to_owned()).or_insert_with(new))
    }
}

impl App {
    pub(crate) async fn say(&self, session: &str, messages: Vec<Message>) -> Result<(), Error> {
        let writer = self.live_sessions().writer(session);
        let mut last = writer.last.lock().await;
        let Tail { mut seq, mut bytes } = match *last {
            Some(tail) => tail,
            None => {
                let bytes = self.store().journal_bytes(session).await?;
                Tail { seq: self.store().last_journal(session).await?, bytes }
            }
        };
        let at = self.now();
        let entries: Vec<JournalEntry> = messages
            .into_iter()
            .map(|message| {
                seq += 1;
                JournalEntry { seq, at, message }
            })
            .collect();
        // After an error the number is read from the store again.
        *last = None;
        bytes += self.store().add_journal(session, &entries).await?;
        if bytes > MOST_BYTES {
            // Drops somewhat more than necessary, so that not every entry has to.
            bytes -= self.store().shorten_journal(session, bytes - MOST_BYTES + MOST_BYTES / 8).await?;
        }
        *last = Some(Tail { seq, bytes });
        writer.told.send_replace(seq);
        Ok(())
    }

    /// Entries after `after`, oldest first.
    pub async fn journal(&self, caller: &Caller, id: &str, after: i64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        let session = self.session(caller, id).await?;
        self.store().journal(&session.id, after, limit.clamp(1, 1000)).await
    }

    /// Changes whenever this server adds an entry to the session.
    pub fn journal_news(&self, session: &str) -> watch::Receiver<i64> {
        self.live_sessions().writer(session).told.subscribe()
    }
}
