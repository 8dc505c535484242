//! A process's output, collected or marked.
//!
//! Session logs carry both streams in one: three bytes of 1 before what went to standard output, three of 2 before what
//! went to standard error. Clients drop what comes before the first marker and sort the rest.

use cove_protocol::process::{Exit, Info, Selector};
use cove_protocol::{Event, Request};

use crate::guest::{Guest, GuestError, Item};

/// The most output one answer holds; the rest is counted, not kept.
const MOST: usize = 32 << 20;

const STDOUT_MARK: [u8; 3] = [1; 3];
const STDERR_MARK: [u8; 3] = [2; 3];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chunk {
    Out(Vec<u8>),
    Error(Vec<u8>),
}

impl Chunk {
    pub fn of(item: Item) -> Option<Chunk> {
        match item {
            Item::Stdout(bytes) | Item::Pty(bytes) => Some(Chunk::Out(bytes)),
            Item::Stderr(bytes) => Some(Chunk::Error(bytes)),
            Item::Data(_) | Item::Event(_) => None,
        }
    }

    pub fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Out(bytes) | Chunk::Error(bytes) => bytes,
        }
    }

    pub fn marked(&self) -> Vec<u8> {
        let mark = match self {
            Chunk::Out(_) => STDOUT_MARK,
            Chunk::Error(_) => STDERR_MARK,
        };
        [&mark, self.bytes()].concat()
    }
}

/// Output in the order the guest read it.
#[derive(Debug, Default)]
pub struct Log {
    chunks: Vec<Chunk>,
    kept: usize,
    dropped: usize,
}

impl Log {
    pub fn push(&mut self, chunk: Chunk) {
        let size = chunk.bytes().len();
        if self.kept + size > MOST {
            self.dropped += size;
        } else {
            self.kept += size;
            self.chunks.push(chunk);
        }
    }

    pub fn marked(&self) -> Vec<u8> {
        self.chunks.iter().flat_map(Chunk::marked).collect()
    }

    pub fn together(&self) -> Vec<u8> {
        let mut all: Vec<u8> = self.chunks.iter().flat_map(|chunk| chunk.bytes().iter().copied()).collect();
        if self.dropped > 0 {
            all.extend(format!("\n[{} more bytes of output were not kept]\n", self.dropped).bytes());
        }
        all
    }

    pub fn stdout(&self) -> String {
        self.only(|chunk| matches!(chunk, Chunk::Out(_)))
    }

    pub fn stderr(&self) -> String {
        self.only(|chunk| matches!(chunk, Chunk::Error(_)))
    }

    fn only(&self, wanted: impl Fn(&Chunk) -> bool) -> String {
        let bytes: Vec<u8> =
            self.chunks.iter().filter(|chunk| wanted(chunk)).flat_map(|chunk| chunk.bytes().iter().copied()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// What a process has written until now, without waiting for more; all of it where it has ended.
pub async fn so_far(guest: &Guest, process: &Info) -> Result<Log, GuestError> {
    let mut log = Log::default();
    let kept = process.output_end.saturating_sub(process.output_start);
    if kept == 0 && process.exit.is_none() {
        return Ok(log);
    }
    let request = Request::Attach { process: Selector::Pid(process.pid), from: Some(process.output_start) };
    let (_, mut operation) = guest.open(&request).await?;
    let mut seen = 0u64;
    while process.exit.is_some() || seen < kept {
        match operation.from.next().await? {
            None => break,
            Some(Item::Event(Event::Lost { bytes })) => seen += bytes,
            Some(item) => {
                if let Some(chunk) = Chunk::of(item) {
                    seen += chunk.bytes().len() as u64;
                    log.push(chunk);
                }
            }
        }
    }
    Ok(log)
}

/// All that an operation under way brings until the process ends.
pub async fn to_the_end(operation: &mut crate::guest::Receiver) -> Result<(Log, Option<Exit>), GuestError> {
    let (mut log, mut exit) = (Log::default(), None);
    while let Some(item) = operation.next().await? {
        match item {
            Item::Event(Event::Exited { exit: how }) => exit = Some(how),
            item => {
                if let Some(chunk) = Chunk::of(item) {
                    log.push(chunk);
                }
            }
        }
    }
    Ok((log, exit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_keep_their_order_and_their_marks() {
        let mut log = Log::default();
        log.push(Chunk::Out(b"a\n".to_vec()));
        log.push(Chunk::Error(b"b\n".to_vec()));
        assert_eq!(log.marked(), b"\x01\x01\x01a\n\x02\x02\x02b\n");
        assert_eq!((log.stdout().as_str(), log.stderr().as_str()), ("a\n", "b\n"));
        assert_eq!(log.together(), b"a\nb\n");
    }

    #[test]
    fn a_flood_is_counted_and_not_kept() {
        let mut log = Log::default();
        log.push(Chunk::Out(vec![b'x'; MOST]));
        log.push(Chunk::Out(vec![b'y'; 10]));
        let all = String::from_utf8(log.together()).unwrap();
        assert!(all.ends_with("[10 more bytes of output were not kept]\n"));
    }
}
