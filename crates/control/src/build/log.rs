//! What a build says while it goes on: lines with a number, a level and the step that they belong to.
//!
//! Lines are numbered from 1 without gaps, so an offset stays what it was. They are written a few at a time; whoever
//! follows is woken. A build that says more than is kept is told so once, and the rest is counted. Secrets of the build
//! are covered before a line goes anywhere.

use std::sync::Mutex;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio_util::sync::CancellationToken;

use super::cover::Cover;
use crate::clock::{Clock, Timestamp};
use crate::store::Store;
use crate::{Error, heavy};

/// Bytes of text that are kept of one build.
const KEPT: usize = 8 << 20;
/// Lines that are kept of one build.
const LINES: i64 = 100_000;
/// Characters of a line; a longer one is cut.
const LONGEST: usize = 4096;
/// How long a line waits for others before it is written.
const FLUSH: Duration = Duration::from_millis(100);
/// How long lines wait that the store did not take.
const AGAIN: Duration = Duration::from_secs(1);
/// Lines that do not wait.
const FULL: usize = 200;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    #[default]
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Debug, Level::Info, Level::Warn, Level::Error];

    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Level::ALL.into_iter().find(|level| level.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = BuildLogEntry)]
pub struct LogEntry {
    /// From 1, without gaps.
    pub seq: i64,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub level: Level,
    /// `base`, the number of the step from 1, or `finalize`.
    pub step: Option<String>,
    pub message: String,
}

/// Writes one build's lines.
pub struct Log {
    store: Store,
    clock: Clock,
    build: String,
    cover: Cover,
    pending: Mutex<Pending>,
    /// Held by whoever writes: lines come into the store in their order.
    turn: AsyncMutex<()>,
    news: watch::Sender<i64>,
}

struct Pending {
    lines: Vec<LogEntry>,
    next: i64,
    bytes: usize,
    is_full: bool,
}

impl Log {
    /// Goes on after the lines of an earlier life.
    pub async fn open(
        store: Store,
        clock: Clock,
        build: &str,
        secrets: impl IntoIterator<Item = Vec<u8>>,
        news: watch::Sender<i64>,
    ) -> Result<Log, Error> {
        let last = store.last_build_log(build).await?;
        let secrets: Vec<Vec<u8>> = secrets.into_iter().collect();
        let size: usize = secrets.iter().map(Vec::len).sum();
        let learn = move || Cover::new(lines_of(&secrets).iter().map(|line| line.trim()));
        let cover = heavy::run(size, heavy::SMALL, learn).await;
        let pending = Pending { lines: Vec::new(), next: last + 1, bytes: 0, is_full: last >= LINES };
        let (pending, turn) = (Mutex::new(pending), AsyncMutex::default());
        Ok(Log { store, clock, build: build.to_owned(), cover, pending, turn, news })
    }

    /// One line, or several.
    pub fn say(&self, level: Level, step: Option<&str>, text: &str) {
        let mut pending = self.pending.lock().expect("no panic while held");
        for line in text.lines() {
            if pending.is_full {
                return;
            }
            let mut message = self.covered(line);
            if pending.bytes + message.len() > KEPT || pending.next >= LINES {
                pending.is_full = true;
                message = "more was said than is kept; the rest of the output is left out".to_owned();
            }
            pending.bytes += message.len();
            let seq = pending.next;
            pending.next += 1;
            pending.lines.push(LogEntry {
                seq,
                at: self.clock.now(),
                level,
                step: step.map(ToOwned::to_owned),
                message,
            });
        }
    }

    pub fn info(&self, step: Option<&str>, text: &str) {
        self.say(Level::Info, step, text);
    }

    /// As it may be shown: without secrets, escape sequences and NUL bytes, and not too long.
    fn covered(&self, line: &str) -> String {
        let text = plain(line);
        let mut text = self.cover.over(&text).into_owned();
        if text.chars().count() > LONGEST {
            text = text.chars().take(LONGEST).collect::<String>() + " …";
        }
        text
    }

    /// A text for the row of the build: as a line would be shown.
    pub fn cover(&self, text: &str) -> String {
        text.lines().map(|line| self.covered(line)).collect::<Vec<_>>().join("\n")
    }

    /// Writes what waits, and wakes those who follow. What could not be written goes on waiting.
    pub async fn flush(&self) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        let lines = std::mem::take(&mut self.pending.lock().expect("no panic while held").lines);
        let Some(last) = lines.last().map(|line| line.seq) else { return Ok(()) };
        if let Err(error) = self.store.add_build_logs(&self.build, &lines).await {
            let mut pending = self.pending.lock().expect("no panic while held");
            let later = std::mem::replace(&mut pending.lines, lines);
            pending.lines.extend(later);
            return Err(error);
        }
        self.news.send_replace(last);
        Ok(())
    }

    fn waiting(&self) -> usize {
        self.pending.lock().expect("no panic while held").lines.len()
    }

    /// Writes lines while `work` goes on, and what is left at its end.
    ///
    /// Both are polled together. Work that stood still while lines are written may be the one that holds the store's
    /// only connection to write with, or that comes next: then neither would ever go on.
    pub async fn writing<T>(&self, work: impl Future<Output = T>) -> T {
        let over = CancellationToken::new();
        let working = async {
            let done = work.await;
            over.cancel();
            done
        };
        let (done, ()) = tokio::join!(working, self.write_until(&over));
        done
    }

    async fn write_until(&self, over: &CancellationToken) {
        let mut pause = FLUSH;
        loop {
            let is_over = tokio::select! {
                () = over.cancelled() => true,
                () = tokio::time::sleep(pause) => false,
                // A store that does not take them is not asked more often because there are many.
                () = self.full(), if pause == FLUSH => false,
            };
            pause = match self.flush().await {
                Ok(()) => FLUSH,
                Err(error) => {
                    tracing::warn!(build = self.build, %error, detail = error.detail(), "write a build's log");
                    AGAIN
                }
            };
            if is_over {
                return;
            }
        }
    }

    async fn full(&self) {
        while self.waiting() < FULL {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Lines of secrets as a log may show them: as they are, and without what is shown of no line.
fn lines_of(secrets: &[Vec<u8>]) -> Vec<String> {
    let texts = secrets.iter().map(|secret| String::from_utf8_lossy(secret));
    texts.flat_map(|text| text.lines().flat_map(|line| [line.to_owned(), plain(line)]).collect::<Vec<_>>()).collect()
}

/// Without escape sequences of terminals and other control characters.
fn plain(line: &str) -> String {
    // What a progress bar wrote over is not shown.
    let line = line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or_default();
    let mut text = String::with_capacity(line.len());
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            // CSI: ESC [ parameters letter; OSC: ESC ] … BEL or ESC \.
            '\u{1b}' => match characters.peek() {
                Some('[') => {
                    characters.next();
                    for next in characters.by_ref() {
                        if ('\u{40}'..='\u{7e}').contains(&next) {
                            break;
                        }
                    }
                }
                Some(']') => {
                    while let Some(next) = characters.next() {
                        if next == '\u{7}' {
                            break;
                        }
                        if next == '\u{1b}' {
                            characters.next();
                            break;
                        }
                    }
                }
                _ => {
                    characters.next();
                }
            },
            '\t' => text.push(character),
            character if character.is_control() => {}
            character => text.push(character),
        }
    }
    text
}

/// Bytes as they come, taken apart into lines. A line without an end is given when it is as long as a line may be.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    pub fn add(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for byte in bytes {
            if *byte == b'\n' {
                each(&String::from_utf8_lossy(&self.rest));
                self.rest.clear();
            } else {
                self.rest.push(*byte);
                if self.rest.len() >= 4 * LONGEST {
                    each(&String::from_utf8_lossy(&self.rest));
                    self.rest.clear();
                }
            }
        }
    }

    pub fn end(&mut self, mut each: impl FnMut(&str)) {
        if !self.rest.is_empty() {
            each(&String::from_utf8_lossy(&self.rest));
            self.rest.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn log(secrets: &[&str]) -> (tempfile::TempDir, Store, Log) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::sqlite(&folder.path().join("cove.db")).await.unwrap();
        let secrets = secrets.iter().map(|secret| secret.as_bytes().to_vec());
        let (news, _) = watch::channel(0);
        let log = Log::open(store.clone(), Clock::system(), "b", secrets, news).await.unwrap();
        (folder, store, log)
    }

    #[tokio::test]
    async fn a_secret_is_in_no_line_whatever_it_looks_like() {
        let (_folder, store, log) = log(&["hunter2", "-----BEGIN\nabcdef\n-----END", "ab"]).await;
        log.info(None, "token hunter2, twice hunter2\nabcdef");
        log.say(Level::Error, Some("1"), "hun\u{1b}[1mter2 is a \u{1b}[31mred\u{1b}[0m word");
        log.flush().await.unwrap();
        let lines = store.build_logs("b", Level::Debug, 0, 10).await.unwrap();
        let texts: Vec<&str> = lines.iter().map(|line| line.message.as_str()).collect();
        assert_eq!(texts, ["token ***, twice ***", "***", "*** is a red word"]);
        assert_eq!(log.cover("hunter2!"), "***!");
    }

    #[tokio::test]
    async fn a_secret_with_control_characters_is_in_no_line() {
        let (_folder, _, log) = log(&["first\rsecond", "tw\u{1b}[1mo\u{7}parts"]).await;
        assert_eq!(log.cover("first\rsecond and twoparts"), "*** and ***");
    }

    #[tokio::test]
    async fn lines_cost_the_same_however_many_secrets_there_are() {
        let words: Vec<String> = (0..50_000).map(|number| format!("{number:05x}")).collect();
        let (_folder, store, log) = log(&[&words.join("\n")]).await;
        let begun = std::time::Instant::now();
        let line = "-".repeat(80);
        for _ in 0..20_000 {
            log.info(None, &line);
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        log.flush().await.unwrap();
        assert_eq!(store.last_build_log("b").await.unwrap(), 20_000);
        assert_eq!(log.cover("the word 0c34f."), "the word ***.");
    }

    #[tokio::test]
    async fn work_that_writes_goes_on_while_its_lines_are_written() {
        let (_folder, store, log) = log(&[]).await;
        // Always in the middle of a write: also at the moment when lines are due.
        let work = async {
            let begun = tokio::time::Instant::now();
            let mut said = 0;
            while begun.elapsed() < 4 * FLUSH {
                said += 1;
                log.info(None, &format!("line {said}"));
                store.touch_build("b", said).await.unwrap();
            }
            said
        };
        let said = tokio::time::timeout(Duration::from_secs(10), log.writing(work)).await.expect("both go on");
        assert_eq!(store.last_build_log("b").await.unwrap(), said, "none is left behind");
    }

    #[tokio::test]
    async fn lines_that_the_store_did_not_take_are_written_later_and_in_their_order() {
        use sqlx::ConnectOptions as _;
        let (folder, store, log) = log(&[]).await;
        let file = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.path().join("cove.db"));
        let mut database = file.connect().await.unwrap();
        log.info(None, "first");
        sqlx::raw_sql("ALTER TABLE build_logs RENAME TO away").execute(&mut database).await.unwrap();
        assert!(log.flush().await.is_err());
        log.info(None, "second");
        sqlx::raw_sql("ALTER TABLE away RENAME TO build_logs").execute(&mut database).await.unwrap();
        log.flush().await.unwrap();
        let lines = store.build_logs("b", Level::Debug, 0, 10).await.unwrap();
        let told: Vec<(i64, &str)> = lines.iter().map(|line| (line.seq, line.message.as_str())).collect();
        assert_eq!(told, [(1, "first"), (2, "second")]);
    }

    #[tokio::test]
    async fn offsets_stay_although_not_everything_is_kept() {
        let (_folder, store, log) = log(&[]).await;
        for _ in 0..3 {
            log.info(None, &"x".repeat(KEPT / 2 / LONGEST * 10));
        }
        let line = "y".repeat(LONGEST);
        for _ in 0..KEPT / LONGEST + 10 {
            log.info(None, &line);
        }
        log.flush().await.unwrap();
        let last = store.last_build_log("b").await.unwrap();
        let end = store.build_logs("b", Level::Debug, last - 1, 10).await.unwrap();
        assert_eq!(end.len(), 1);
        assert!(end[0].message.starts_with("more was said"), "{}", end[0].message);
    }

    #[test]
    fn lines_are_found_in_bytes_of_any_size() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        for piece in [&b"a\nb"[..], b"c\n\n", b"\xff\xfe", b"d"] {
            lines.add(piece, |line| seen.push(line.to_owned()));
        }
        lines.end(|line| seen.push(line.to_owned()));
        assert_eq!(seen, ["a", "bc", "", "\u{fffd}\u{fffd}d"]);
        assert_eq!(plain("10%\r50%\r100%"), "100%");
        assert_eq!(plain("\u{1b}]0;title\u{7}x\0y"), "xy");
    }
}
