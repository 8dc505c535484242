//! `POST /files`: one file as the body, or several as a form.

use std::io::Write;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use cove_protocol::Request as Ask;
use cove_protocol::file::{FileKind, WriteMode};
use flate2::write::GzDecoder;
use futures::{Stream, StreamExt};
use http::{HeaderMap, header};
use serde_json::json;

use super::super::envd::{Envd, ROOT, parent};
use super::super::filesystem::{follow, give, make_directories};
use super::super::query::Query;
use super::Refused;
use super::metadata::{self, Metadata};
use crate::door::form;

/// Compressed input is fed to the decoder in pieces of this size, so that a bomb fills no memory before the guest's
/// disk limit stops it.
const COMPRESSED_PIECE: usize = 4 << 10;

pub async fn answer(
    envd: &Envd,
    user: Option<&str>,
    query: &Query,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refused> {
    let upload = Upload { envd, user, metadata: metadata::of(headers).map_err(Refused::bad)? };
    envd.check_user(user).await?;
    let coding = Coding::of(headers)?;
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = query.get("path").filter(|path| !path.is_empty());
    let body = coding.decoded(body.into_data_stream().map(|piece| piece.map_err(|error| error.to_string())));
    let written = if let Ok(boundary) = multer::parse_boundary(kind) {
        let body = form::bounded(body, boundary.clone());
        upload.form(path, multer::Multipart::new(body, boundary)).await?
    } else if kind.split(';').next().unwrap_or_default().trim() == "application/octet-stream" {
        let path = path.ok_or_else(|| Refused::bad("a plain upload needs the path in the query"))?;
        vec![upload.file(path, body).await?]
    } else {
        return Err(Refused::bad(format!(
            "unsupported content type '{kind}': send multipart/form-data or application/octet-stream"
        )));
    };
    Ok(axum::Json(written).into_response())
}

struct Upload<'a> {
    envd: &'a Envd,
    user: Option<&'a str>,
    metadata: Metadata,
}

impl Upload<'_> {
    /// Every part named `file`; the query's path wins over the part's own name.
    async fn form(
        &self,
        path: Option<&str>,
        mut form: multer::Multipart<'_>,
    ) -> Result<Vec<serde_json::Value>, Refused> {
        let mut written = Vec::new();
        while let Some(field) = form.next_field().await.map_err(malformed)? {
            if field.name() != Some("file") {
                continue;
            }
            let name = path.or(field.file_name()).unwrap_or_default().to_owned();
            if name.is_empty() {
                return Err(Refused::bad("a part has no file name, and the query has no path"));
            }
            written.push(self.file(&name, field.map(|piece| piece.map_err(|error| error.to_string()))).await?);
        }
        Ok(written)
    }

    async fn file(
        &self,
        path: &str,
        bytes: impl Stream<Item = Result<Bytes, String>>,
    ) -> Result<serde_json::Value, Refused> {
        let path = self.envd.resolve(self.user, path).await?;
        let old = follow(self.envd, &path).await?;
        if old.as_ref().is_some_and(|found| found.kind == FileKind::Directory) {
            return Err(Refused::bad(format!("path '{path}' is a directory")));
        }
        make_directories(self.envd, self.user, parent(&path)).await?;
        self.write(&path, bytes).await?;
        give(self.envd, self.user, &path).await?;
        // An upload replaces what was pinned to the file together with its content.
        let pinned = old.is_some_and(|found| !metadata::shown(&found.metadata).is_empty());
        if pinned || !self.metadata.is_empty() {
            metadata::store(self.envd, &path, &self.metadata).await?;
        }
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut told = json!({ "path": path, "name": name, "type": "file" });
        if !self.metadata.is_empty() {
            told["metadata"] = json!(self.metadata);
        }
        Ok(told)
    }

    async fn write(&self, path: &str, bytes: impl Stream<Item = Result<Bytes, String>>) -> Result<(), Refused> {
        let ask = Ask::Write {
            path: path.to_owned(),
            user: Some(ROOT.into()),
            // As an ordinary program would: the file keeps its inode and its watchers see a write.
            how: WriteMode::InPlace,
            mode: None,
            parents: false,
        };
        let mut operation = self.envd.guest.send(&ask).await?;
        let mut bytes = std::pin::pin!(bytes);
        while let Some(piece) = bytes.next().await {
            let piece = piece.map_err(|reason| Refused::bad(format!("upload was cut off: {reason}")))?;
            if operation.to.data(&piece).await.is_err() {
                // The guest has refused: its reason is the reply, not the broken pipe.
                break;
            }
        }
        let _refused = operation.to.end().await;
        operation.reply().await?;
        Ok(())
    }
}

fn malformed(error: multer::Error) -> Refused {
    Refused::bad(format!("malformed form: {}", form::reason(&error)))
}

#[derive(Clone, Copy)]
enum Coding {
    Identity,
    Gzip,
}

impl Coding {
    fn of(headers: &HeaderMap) -> Result<Coding, Refused> {
        match headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok()) {
            None | Some("" | "identity") => Ok(Coding::Identity),
            Some("gzip") => Ok(Coding::Gzip),
            Some(other) => Err(Refused::bad(format!("unsupported content encoding '{other}': send gzip or none"))),
        }
    }

    fn decoded(
        self,
        body: impl Stream<Item = Result<Bytes, String>> + Send + 'static,
    ) -> futures::stream::BoxStream<'static, Result<Bytes, String>> {
        match self {
            Coding::Identity => body.boxed(),
            Coding::Gzip => unzip(body).boxed(),
        }
    }
}

fn unzip(body: impl Stream<Item = Result<Bytes, String>>) -> impl Stream<Item = Result<Bytes, String>> {
    let pieces = body.flat_map(|piece| {
        let cut = match piece {
            Ok(bytes) => {
                let count = bytes.len().div_ceil(COMPRESSED_PIECE);
                (0..count)
                    .map(|at| Ok(bytes.slice(at * COMPRESSED_PIECE..((at + 1) * COMPRESSED_PIECE).min(bytes.len()))))
                    .collect()
            }
            Err(error) => vec![Err(error)],
        };
        futures::stream::iter(cut)
    });
    let state = Some((Box::pin(pieces), GzDecoder::new(Vec::new())));
    futures::stream::try_unfold(state, async |state| {
        let Some((mut pieces, mut decoder)) = state else { return Ok(None) };
        let broken = |error: std::io::Error| format!("malformed gzip: {error}");
        loop {
            match pieces.next().await.transpose()? {
                Some(piece) => {
                    decoder.write_all(&piece).map_err(broken)?;
                    let ready = std::mem::take(decoder.get_mut());
                    if !ready.is_empty() {
                        return Ok(Some((Bytes::from(ready), Some((pieces, decoder)))));
                    }
                }
                None => {
                    let rest = decoder.finish().map_err(broken)?;
                    return Ok(Some((Bytes::from(rest), None)));
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    async fn unzipped(wire: &[u8], cut: usize) -> Result<Vec<u8>, String> {
        let pieces: Vec<_> = wire.chunks(cut).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
        let mut out = Vec::new();
        let mut stream = std::pin::pin!(unzip(futures::stream::iter(pieces)));
        while let Some(piece) = stream.next().await {
            out.extend_from_slice(&piece?);
        }
        Ok(out)
    }

    #[tokio::test]
    async fn a_compressed_upload_is_unpacked_however_it_was_cut() {
        let content: Vec<u8> = (0..200_000u32).flat_map(|number| number.to_le_bytes()).collect();
        for cut in [1000, 5000, usize::MAX] {
            assert_eq!(unzipped(&zipped(&content), cut).await.unwrap(), content);
        }
    }

    #[tokio::test]
    async fn a_compressed_upload_that_is_cut_short_is_refused() {
        let wire = zipped(&[7; 100_000]);
        assert!(unzipped(&wire[..wire.len() - 5], 100).await.is_err());
        assert!(unzipped(b"not gzip at all", 100).await.is_err());
    }

    #[tokio::test]
    async fn a_bomb_comes_out_in_pieces_that_fit_in_memory() {
        let wire = zipped(&vec![0; 64 << 20]);
        let mut largest = 0;
        let mut stream = std::pin::pin!(unzip(futures::stream::iter([Ok(Bytes::from(wire))])));
        while let Some(piece) = stream.next().await {
            largest = largest.max(piece.unwrap().len());
        }
        assert!(largest <= 8 << 20, "{largest}");
    }
}
