//! Contexts that come in several parts.
//!
//! Clients send some parts at one time, in any order. Each is read whole and waits here for those before it, so that the
//! context goes to the object store as one stream and nothing is kept on the way:
//!
//! ```text
//!   part 3 ──┐ waits
//!   part 2 ──┤ waits        ┌── next: 1
//!   part 1 ──┴──▶ turn ─────┴──▶ channel ──▶ App::put_build_file        no End: nothing is stored
//! ```
//!
//! An upload lives in this server's memory. One that is silent for long is given up.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::io::StreamReader;

use super::trouble::Trouble;
use crate::build::BuildFile;
use crate::{App, Caller, Error, random};

/// Bytes of one part. The SDKs send 5 MiB.
pub const PART_MAX: usize = 8 << 20;
/// Parts that are read before their turn.
const AHEAD: u32 = 4;
/// As S3 has it.
const PARTS_MAX: u32 = 10_000;
/// Uploads of one organisation, and of all, at one time.
const PER_ORGANISATION: usize = 4;
const AT_ONCE: usize = 16;
/// How long an upload waits for its next part, and a part for its turn.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Uploads {
    app: App,
    all: Arc<Mutex<HashMap<String, Arc<Upload>>>>,
}

pub struct Upload {
    organisation: String,
    hash: String,
    /// The number of the part whose turn it is.
    next: watch::Sender<u32>,
    came: tokio::sync::Mutex<Came>,
    to: mpsc::Sender<Piece>,
}

struct Came {
    /// The tags of the parts that were taken.
    tags: BTreeMap<u32, String>,
    /// Taken by whoever ends it.
    stored: Option<JoinHandle<Result<BuildFile, Error>>>,
}

enum Piece {
    Data(Bytes),
    /// All parts came.
    End,
}

impl Uploads {
    pub fn new(app: App) -> Uploads {
        Uploads { app, all: Arc::default() }
    }

    /// Begins to take a context. Returns the upload's id.
    pub fn begin(&self, caller: &Caller, hash: &str) -> Result<String, Trouble> {
        let mut all = self.all.lock().expect("no panic while held");
        let own = all.values().filter(|upload| upload.organisation == caller.organisation).count();
        if own >= PER_ORGANISATION || all.len() >= AT_ONCE {
            return Err(Error::exhausted("too many contexts are on their way in; try again").into());
        }
        let id = random::hex(16);
        let (to, from) = mpsc::channel(1);
        let stored = self.app.tasks().spawn({
            let (uploads, id, caller, hash) = (self.clone(), id.clone(), caller.clone(), hash.to_owned());
            async move {
                let stored = uploads.app.put_build_file(&caller, &hash, StreamReader::new(pieces(from))).await;
                // One that failed by itself, or was never ended.
                uploads.forget(&id);
                stored
            }
        });
        let came = Came { tags: BTreeMap::new(), stored: Some(stored) };
        let upload = Upload {
            organisation: caller.organisation.clone(),
            hash: hash.to_owned(),
            next: watch::channel(1).0,
            came: tokio::sync::Mutex::new(came),
            to,
        };
        all.insert(id.clone(), Arc::new(upload));
        Ok(id)
    }

    pub fn find(&self, caller: &Caller, hash: &str, id: &str) -> Result<Arc<Upload>, Trouble> {
        let found = self.all.lock().expect("no panic while held").get(id).cloned();
        let found = found.filter(|upload| upload.organisation == caller.organisation && upload.hash == hash);
        found.ok_or_else(|| Trouble::not_found("NoSuchUpload", "there is no such upload, or it was given up"))
    }

    /// One that was not ended leaves nothing: nobody can send to it any more.
    pub fn forget(&self, id: &str) {
        self.all.lock().expect("no panic while held").remove(id);
    }
}

/// What comes, up to the end. A channel that nobody can send to any more has not ended: what came must not be kept.
fn pieces(from: mpsc::Receiver<Piece>) -> std::pin::Pin<Box<dyn stream::Stream<Item = io::Result<Bytes>> + Send>> {
    let next = |from: Option<mpsc::Receiver<Piece>>| async move {
        let mut from = from?;
        match tokio::time::timeout(PATIENCE, from.recv()).await {
            Ok(Some(Piece::Data(bytes))) => Some((Ok(bytes), Some(from))),
            Ok(Some(Piece::End)) => None,
            Ok(None) => Some((Err(io::Error::other("the upload was given up")), None)),
            Err(_) => Some((Err(io::Error::other("the next part did not come")), None)),
        }
    };
    Box::pin(stream::unfold(Some(from), next))
}

impl Upload {
    /// Waits until a part may be read: there is room for a few that come early.
    pub async fn wait_for_room(&self, number: u32) -> Result<(), Trouble> {
        if !(1..=PARTS_MAX).contains(&number) {
            return Err(Trouble::bad("InvalidArgument", format!("parts have numbers from 1 to {PARTS_MAX}")));
        }
        self.reached(|next| number < next.saturating_add(AHEAD)).await
    }

    async fn reached(&self, is_so: impl Fn(u32) -> bool) -> Result<(), Trouble> {
        let mut next = self.next.subscribe();
        let waited = tokio::time::timeout(PATIENCE, next.wait_for(|next| is_so(*next))).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Trouble::bad("RequestTimeout", "the parts before this one did not come")),
        }
    }

    /// Takes a part when its turn comes. One that comes again must be the same. Returns its tag.
    pub async fn take(&self, number: u32, bytes: Bytes) -> Result<String, Trouble> {
        let tag = hex::encode(&Sha256::digest(&bytes)[..16]);
        self.reached(|next| number <= next).await?;
        let mut came = self.came.lock().await;
        if let Some(earlier) = came.tags.get(&number) {
            let same = *earlier == tag;
            return if same {
                Ok(tag)
            } else {
                Err(Trouble::bad("InvalidPart", "the part came before, with other bytes"))
            };
        }
        if self.to.send(Piece::Data(bytes)).await.is_err() {
            return Err(came.failure().await);
        }
        came.tags.insert(number, tag.clone());
        self.next.send_replace(number + 1);
        Ok(tag)
    }

    /// Puts the parts together: those that the client names, which must be those that came.
    pub async fn end(&self, named: &[(u32, String)]) -> Result<(), Trouble> {
        let mut came = self.came.lock().await;
        let same = named.len() == came.tags.len()
            && named.iter().all(|(number, tag)| came.tags.get(number).is_some_and(|known| known == tag));
        if !same || named.is_empty() {
            return Err(Trouble::bad("InvalidPart", "the parts that are named are not those that came"));
        }
        if self.to.send(Piece::End).await.is_err() {
            return Err(came.failure().await);
        }
        match came.stored.take() {
            Some(stored) => Ok(stored.await.map_err(Error::internal)?.map(drop)?),
            None => Err(Trouble::not_found("NoSuchUpload", "the upload has ended")),
        }
    }
}

impl Came {
    /// Why nothing is taken any more.
    async fn failure(&mut self) -> Trouble {
        let gone = || Trouble::not_found("NoSuchUpload", "the upload was given up");
        match self.stored.take() {
            Some(stored) => match stored.await {
                Ok(Err(error)) => error.into(),
                Ok(Ok(_)) | Err(_) => gone(),
            },
            None => gone(),
        }
    }
}

/// The numbers and tags in `<Part><PartNumber>1</PartNumber><ETag>"…"</ETag></Part>…`, in their order.
pub fn listed(text: &[u8]) -> Result<Vec<(u32, String)>, Trouble> {
    let malformed = || Trouble::bad("MalformedXML", "a list of parts has a number and a tag in each");
    let text = std::str::from_utf8(text).map_err(|_| malformed())?;
    let within = |part: &str, name: &str| {
        let (_, rest) = part.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim().to_owned())
    };
    let mut parts = Vec::new();
    for part in text.split("<Part>").skip(1) {
        let number = within(part, "PartNumber").and_then(|number| number.parse().ok()).ok_or_else(malformed)?;
        let tag =
            within(part, "ETag").ok_or_else(malformed)?.replace("&quot;", "").replace("&#34;", "").replace('"', "");
        parts.push((number, tag));
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;

    use super::*;

    fn upload() -> (Arc<Upload>, mpsc::Receiver<Piece>) {
        let (to, from) = mpsc::channel(1);
        let came = Came { tags: BTreeMap::new(), stored: None };
        let upload = Upload {
            organisation: "acme".into(),
            hash: "h".into(),
            next: watch::channel(1).0,
            came: tokio::sync::Mutex::new(came),
            to,
        };
        (Arc::new(upload), from)
    }

    #[tokio::test]
    async fn parts_go_on_in_their_order_whenever_they_come() {
        let (upload, from) = upload();
        let reader = tokio::spawn(async move {
            let mut stream = pieces(from);
            let mut all = Vec::new();
            while let Some(Ok(piece)) = stream.next().await {
                all.extend(piece);
            }
            all
        });
        let late = tokio::spawn({
            let upload = Arc::clone(&upload);
            async move { upload.take(2, Bytes::from_static(b"second")).await }
        });
        let first = upload.take(1, Bytes::from_static(b"first ")).await.unwrap();
        let second = late.await.unwrap().unwrap();
        assert_eq!(upload.take(1, Bytes::from_static(b"first ")).await.unwrap(), first);
        assert_eq!(upload.take(1, Bytes::from_static(b"other")).await.unwrap_err().code, "InvalidPart");
        assert_eq!(upload.end(&[(1, first.clone())]).await.unwrap_err().code, "InvalidPart");
        assert_eq!(upload.end(&[(1, first.clone()), (2, first.clone())]).await.unwrap_err().code, "InvalidPart");
        // Nobody stores it here.
        assert_eq!(upload.end(&[(1, first), (2, second)]).await.unwrap_err().code, "NoSuchUpload");
        assert_eq!(reader.await.unwrap(), b"first second");
    }

    #[tokio::test]
    async fn what_is_never_ended_is_an_error() {
        let (upload, from) = upload();
        let mut stream = pieces(from);
        let send = tokio::spawn(async move { upload.take(1, Bytes::from_static(b"a")).await });
        assert_eq!(stream.next().await.unwrap().unwrap(), "a");
        send.await.unwrap().unwrap();
        assert!(stream.next().await.unwrap().is_err());
        assert!(stream.next().await.is_none());
    }

    #[test]
    fn a_list_of_parts_is_read_as_both_sdks_write_it() {
        let text = b"<CompleteMultipartUpload><Part><ETag>\"a\"</ETag><PartNumber>1</PartNumber></Part>\
            <Part><PartNumber>2</PartNumber><ETag>&quot;b&quot;</ETag></Part></CompleteMultipartUpload>";
        assert_eq!(listed(text).unwrap(), [(1, "a".to_owned()), (2, "b".to_owned())]);
        assert!(listed(b"<Part><ETag>a</ETag></Part>").is_err());
        assert!(listed(b"\xff").is_err());
    }
}
