//! How large a body may be, by what its route takes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::Extensions;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use hyper::body::Body as _;

use crate::border::{CONTENT, MESSAGE};
use crate::{Error, right};

/// Routes whose body carries content, by how they end.
const CARRY_CONTENT: [&str; 10] = [
    // A file of a session.
    "/api/files",
    "/api/e2b/files",
    // Commands and code, native and Daytona's.
    "/exec",
    "/execute",
    "/process/code-run",
    "/input",
    "/files/replace",
    // Vercel's commands, and what they read.
    "/cmd",
    "/stdin",
    // A Dockerfile, steps and secrets.
    "/api/templates",
];

/// The most that a route takes.
pub fn most(extensions: &Extensions) -> usize {
    extensions.get::<MatchedPath>().map_or(MESSAGE, |path| most_of(path.as_str()))
}

/// The same by the route's path, as it is written where it is declared.
pub fn most_of(path: &str) -> usize {
    if CARRY_CONTENT.iter().any(|end| path.ends_with(end)) { CONTENT } else { MESSAGE }
}

/// What is read and dropped of a body that is too large, so that a client that still sends hears why it is refused.
const DROPPED: usize = 64 << 20;

/// Bodies up to this size are not counted for their organisation.
const UNCOUNTED: usize = 8 << 10;

/// How long a client may be silent in the middle of a body that is held.
const SILENCE: Duration = Duration::from_secs(60);

/// Counts what is held of a body for whoever sends it: many that are never finished would fill the memory of all.
pub fn count(held: usize) -> Result<(), Error> {
    let counted = if held > UNCOUNTED { held } else { 0 };
    right::current().map_or(Ok(()), |admission| admission.holds_body(counted))
}

/// The whole body, of at most so many bytes.
pub async fn whole(body: Body, most: usize) -> Result<Bytes, Error> {
    let mut fits = body.size_hint().lower() <= most as u64;
    let mut pieces = body.into_data_stream();
    let (mut held, mut came) = (BytesMut::new(), 0);
    let silent = |_| Error::invalid("body", format!("nothing more came within {} s", SILENCE.as_secs()));
    while let Some(piece) = tokio::time::timeout(SILENCE, pieces.next()).await.map_err(silent)? {
        let piece = piece.map_err(|error| Error::invalid("body", format!("not read: {error}")))?;
        came += piece.len();
        fits &= came <= most;
        if fits {
            held.extend_from_slice(&piece);
        } else {
            held = BytesMut::new();
        }
        count(held.len())?;
        if came > DROPPED {
            break;
        }
    }
    if fits { Ok(held.freeze()) } else { Err(Error::TooLarge { most }) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Connections;
    use crate::right::Rights;
    use crate::right::budget::Budget;

    /// What becomes of a body of so many KiB that is read for a request of these rights.
    async fn read(rights: &Arc<Rights>, kib: usize) -> (Result<usize, Error>, crate::right::Admission) {
        let admission = rights.admit();
        let body = Body::from(vec![7u8; kib << 10]);
        let read = admission.clone().within(async { whole(body, CONTENT).await.map(|bytes| bytes.len()) }).await;
        (read, admission)
    }

    #[tokio::test]
    async fn bodies_that_are_held_are_counted_until_their_requests_end() {
        let config = Connections { unfinished_bytes: 256 << 10, ..Default::default() };
        let rights = Arc::new(Rights::new(Budget::new(&config, 1024)));
        let (first, held) = read(&rights, 900).await;
        assert_eq!(first.unwrap(), 900 << 10);
        let (refused, _) = read(&rights, 200).await;
        assert!(matches!(refused, Err(Error::Exhausted { .. })), "{refused:?}");
        assert_eq!(read(&rights, 8).await.0.unwrap(), 8 << 10, "a small one always passes");
        drop(held);
        assert_eq!(read(&rights, 200).await.0.unwrap(), 200 << 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_in_the_middle_of_a_body_is_not_waited_for_without_end() {
        let begun = futures::stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(b"{"))]);
        let body = Body::from_stream(begun.chain(futures::stream::pending()));
        let refused = whole(body, MESSAGE).await.unwrap_err();
        assert!(refused.to_string().contains("within 60 s"), "{refused}");
    }
}
