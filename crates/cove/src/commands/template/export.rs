//! A template or a snapshot into a file, as an image.

use std::io::Write;
use std::path::Path;

use futures::StreamExt;
use reqwest::{Method, Response};
use serde_json::json;

use crate::client::Client;
use crate::complaint::{Complaint, doing};
use crate::interrupt::or_interrupted;
use crate::landing::Incoming;
use crate::progress::Bytes;
use crate::render::{print_json, say};

/// `of` is the path of what is exported.
pub async fn run(client: &Client, of: &str, file: &Path, as_json: bool) -> Result<u8, Complaint> {
    let to_stdout = file == Path::new("-");
    if to_stdout && as_json {
        return Err(Complaint::usage("--json and an export to `-` would both be on standard output")
            .hint("export to a file, or leave out --json"));
    }
    let answer = client.send(client.request(Method::GET, &format!("{of}/export"))).await?;
    if to_stdout {
        receive(answer, &mut std::io::stdout().lock(), Path::new("standard output")).await?;
        return Ok(0);
    }
    let mut incoming = Incoming::at(file).map_err(doing(writing(file)))?;
    // It gets its name when it is whole.
    let bytes = or_interrupted(receive(answer, &mut incoming, file)).await?;
    incoming.finish().map_err(doing(writing(file)))?;
    if as_json {
        print_json(&json!({ "file": file, "bytes": bytes }))?;
    } else {
        say(&format!("hint: docker load -i {}", file.display()));
    }
    Ok(0)
}

fn writing(file: &Path) -> String {
    format!("write {}", file.display())
}

/// `shown` is what `to` is called.
async fn receive(answer: Response, to: &mut impl Write, shown: &Path) -> Result<u64, Complaint> {
    let seen = Bytes::new("receiving the image", answer.content_length());
    let mut stream = answer.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| Complaint::failed(format!("the export broke off: {error}")))?;
        seen.more(piece.len());
        to.write_all(&piece).map_err(doing(writing(shown)))?;
    }
    to.flush().map_err(doing(writing(shown)))?;
    Ok(seen.count().get())
}
