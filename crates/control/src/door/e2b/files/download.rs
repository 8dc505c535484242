//! `GET /files`: a file's bytes, whole or in part.

use std::io::Write;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_protocol::Request as Ask;
use cove_protocol::file::FileKind;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::Stream;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

use super::super::envd::{Envd, ROOT};
use super::super::filesystem::follow;
use super::super::query::Query;
use super::Refused;
use crate::guest::{Item, Operation};

pub async fn answer(envd: &Envd, user: Option<&str>, query: &Query, parts: &Parts) -> Result<Response, Refused> {
    let path = envd.resolve(user, query.get("path").unwrap_or_default()).await?;
    let Some(entry) = follow(envd, &path).await? else {
        return Err(Refused::With(StatusCode::NOT_FOUND, format!("path '{path}' does not exist")));
    };
    match entry.kind {
        FileKind::File => {}
        FileKind::Directory => return Err(Refused::bad(format!("path '{path}' is a directory"))),
        FileKind::Symlink | FileKind::Other => {
            return Err(Refused::bad(format!("path '{path}' is not a regular file")));
        }
    }

    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Ok(disposition) = HeaderValue::from_str(&disposition(&entry.name)) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    let modified = jiff::Timestamp::from_millisecond(entry.modified_ms).unwrap_or_default();
    let modified = jiff::Timestamp::from_second(modified.as_second()).unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(&modified.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
        headers.insert(header::LAST_MODIFIED, value);
    }
    if unchanged(&parts.headers, modified) {
        return Ok((StatusCode::NOT_MODIFIED, headers).into_response());
    }

    // Files of the kernel's own claim no size and have content all the same: they are read to their end.
    let size = entry.size;
    let range = match range(&parts.headers, size) {
        Ok(range) => range,
        Err(()) => {
            let unsatisfied = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
            return Ok((StatusCode::RANGE_NOT_SATISFIABLE, unsatisfied).into_response());
        }
    };
    let compressed = range.is_none() && only_gzip(&parts.headers);
    let (status, offset, length) = match range {
        Some((first, last)) => {
            let content_range = format!("bytes {first}-{last}/{size}");
            headers.insert(header::CONTENT_RANGE, HeaderValue::from_str(&content_range).expect("digits"));
            (StatusCode::PARTIAL_CONTENT, first, Some(last - first + 1))
        }
        None => (StatusCode::OK, 0, None),
    };
    if compressed {
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    } else if let Some(known) = length.or((size > 0).then_some(size)) {
        headers.insert(header::CONTENT_LENGTH, known.into());
    }
    if parts.method == Method::HEAD {
        return Ok((status, headers).into_response());
    }
    // Reads exactly as many bytes as announced, although the file may grow meanwhile.
    let length = length.or((size > 0).then_some(size));
    let ask = Ask::Read { path, user: Some(ROOT.into()), offset, length };
    let (_, operation) = envd.guest.open(&ask).await?;
    let body = if compressed { Body::from_stream(gzip(operation)) } else { Body::from_stream(bytes(operation)) };
    Ok((status, headers, body).into_response())
}

/// The guest's data as a body; a guest that goes away cuts it off, never ends it early.
fn bytes(operation: Operation) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    futures::stream::try_unfold(operation, async |mut operation| match operation.from.next().await {
        Ok(Some(Item::Data(bytes))) => Ok(Some((Bytes::from(bytes), operation))),
        Ok(None) => Ok(None),
        Ok(Some(_)) => Err(std::io::Error::other("the sandbox sent something that is no data")),
        Err(error) => Err(std::io::Error::other(error)),
    })
}

fn gzip(operation: Operation) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    futures::stream::try_unfold(Some((operation, encoder)), async |state| {
        let Some((mut operation, mut encoder)) = state else { return Ok(None) };
        loop {
            match operation.from.next().await.map_err(std::io::Error::other)? {
                Some(Item::Data(bytes)) => {
                    encoder.write_all(&bytes)?;
                    let ready = std::mem::take(encoder.get_mut());
                    if !ready.is_empty() {
                        return Ok(Some((Bytes::from(ready), Some((operation, encoder)))));
                    }
                }
                Some(_) => return Err(std::io::Error::other("the sandbox sent something that is no data")),
                None => return Ok(Some((Bytes::from(encoder.finish()?), None))),
            }
        }
    })
}

/// Clients offer gzip out of habit, and compressing costs more than loopback saves: only one that offers nothing else
/// gets it.
fn only_gzip(headers: &HeaderMap) -> bool {
    headers.get(header::ACCEPT_ENCODING).is_some_and(|value| value.as_bytes().trim_ascii() == b"gzip")
}

fn unchanged(headers: &HeaderMap, modified: jiff::Timestamp) -> bool {
    let since = headers.get(header::IF_MODIFIED_SINCE).and_then(|value| value.to_str().ok());
    let since = since.and_then(|text| jiff::fmt::rfc2822::parse(text).ok());
    since.is_some_and(|since| modified <= since.timestamp())
}

/// The first and last byte asked for. Only one range is served; several, or a unit that is not bytes, give the whole.
fn range(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, ()> {
    let Some(text) = headers.get(header::RANGE).and_then(|value| value.to_str().ok()) else { return Ok(None) };
    let Some(range) = text.strip_prefix("bytes=").filter(|range| !range.contains(',')) else { return Ok(None) };
    let Some((first, last)) = range.trim().split_once('-') else { return Ok(None) };
    let (first, last) = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => (first, last.min(size.saturating_sub(1))),
        (Ok(first), Err(_)) if last.is_empty() => (first, size.saturating_sub(1)),
        (Err(_), Ok(0)) if first.is_empty() => return Err(()),
        (Err(_), Ok(tail)) if first.is_empty() => (size.saturating_sub(tail), size.saturating_sub(1)),
        _ => return Ok(None),
    };
    if first >= size { Err(()) } else { Ok(Some((first, last))) }
}

fn disposition(name: &str) -> String {
    let plain = name.bytes().all(|byte| (0x20..0x7f).contains(&byte) && byte != b'"' && byte != b'\\');
    if plain {
        return format!("inline; filename=\"{name}\"");
    }
    let encoded = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    format!("inline; filename*=utf-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::RANGE, HeaderValue::from_str(value).unwrap())])
    }

    #[test]
    fn ranges_are_cut_to_the_file() {
        for (value, wanted) in [
            ("bytes=0-3", Ok(Some((0, 3)))),
            ("bytes=5-", Ok(Some((5, 9)))),
            ("bytes=5-500", Ok(Some((5, 9)))),
            ("bytes=-3", Ok(Some((7, 9)))),
            ("bytes=-300", Ok(Some((0, 9)))),
            ("bytes=10-", Err(())),
            ("bytes=-0", Err(())),
            ("bytes=3-1", Ok(None)),
            ("bytes=0-1,4-5", Ok(None)),
            ("lines=1-2", Ok(None)),
        ] {
            assert_eq!(range(&asked(value), 10), wanted, "{value}");
        }
        assert_eq!(range(&HeaderMap::new(), 10), Ok(None));
    }

    #[test]
    fn names_that_a_header_cannot_hold_are_encoded() {
        assert_eq!(disposition("a b.txt"), "inline; filename=\"a b.txt\"");
        assert_eq!(disposition("ř\n.txt"), "inline; filename*=utf-8''%C5%99%0A%2Etxt");
    }
}
