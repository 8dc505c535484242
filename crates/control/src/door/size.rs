//! How large a body may be, by what its route takes.

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::http::Extensions;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use hyper::body::Body as _;

use crate::Error;
use crate::border::{CONTENT, MESSAGE};

/// Routes whose body carries content, by how they end.
const CARRY_CONTENT: [&str; 7] = [
    // A file of a session.
    "/api/files",
    "/api/e2b/files",
    // Commands and code, native and Daytona's.
    "/exec",
    "/execute",
    "/process/code-run",
    "/input",
    "/files/replace",
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

/// The whole body, of at most so many bytes.
pub async fn whole(body: Body, most: usize) -> Result<Bytes, Error> {
    let mut fits = body.size_hint().lower() <= most as u64;
    let mut pieces = body.into_data_stream();
    let (mut held, mut came) = (BytesMut::new(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| Error::invalid("body", format!("not read: {error}")))?;
        came += piece.len();
        fits &= came <= most;
        if fits {
            held.extend_from_slice(&piece);
        } else {
            held = BytesMut::new();
        }
        if came > DROPPED {
            break;
        }
    }
    if fits { Ok(held.freeze()) } else { Err(Error::TooLarge { most }) }
}
