//! A large file up and down through the API, beside a plain copy over loopback HTTP.

use std::path::{Path, PathBuf};
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use reqwest::{Body, Method};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::super::Bench;
use crate::measure::api::{Api, Trouble, lost};
use crate::measure::report::{Suite, Unit};

const PIECE: usize = 256 << 10;
const ROUNDS: usize = 7;
/// The plain server's file.
const COPY: &str = "plain-copy";

pub async fn measure(bench: &Bench) -> Suite {
    let size = bench.effort.file_mib << 20;
    let mut suite = Suite::new(
        "files",
        "A large file, up and down",
        &format!(
            "{} MiB through `/files/content`, beside the same bytes sent to and from a file on the same filesystem by the simplest HTTP server there is, \
             over loopback, in turn. The sandbox has memory enough for the file to stay in the page cache, as the plain server's does.",
            bench.effort.file_mib
        ),
    );
    let Some(server) = &bench.server else {
        bench.note_absent(&mut suite);
        return suite;
    };
    match both(bench, &server.api, &server.data(), size).await {
        Ok(samples) => {
            for (who, values) in
                ["cove, up", "plain HTTP, up", "cove, down", "plain HTTP, down"].into_iter().zip(&samples)
            {
                suite.row(who, Unit::MebibytesPerSecond, values);
            }
        }
        Err(why) => suite.absent("cove", why),
    }
    suite.compare("cove, up", "plain HTTP, up");
    suite.compare("cove, down", "plain HTTP, down");
    suite
}

async fn both(bench: &Bench, api: &Api, data: &Path, size: usize) -> Result<[Vec<f64>; 4], String> {
    let told = |trouble: Trouble| trouble.to_string();
    let timers = json!({ "lifetime_seconds": 3600, "ephemeral": true });
    let limits = json!({ "disk": size + (1 << 30), "memory": size + (1 << 30) });
    let ask = |body| api.call(Method::POST, "/api/sandboxes", Some(body));
    let made = match ask(json!({ "timers": timers, "limits": limits })).await {
        // Without root there may be nothing that holds a limit.
        Err(Trouble::Refused { status: 400, .. }) => ask(json!({ "timers": timers })).await,
        made => made,
    };
    let id = made.and_then(|made| crate::measure::api::text_of(&made, "id")).map_err(told)?;
    let path = format!("/api/sandboxes/{id}/files/content?path=/home/user/large");
    let directory = beside_sandboxes(data);
    let plain = PlainServer::start(&directory, size).await.map_err(|error| error.to_string())?;
    let plain_api = Api::new(&plain.url, "").map_err(|complaint| complaint.to_string())?;
    let mut samples: [Vec<f64>; 4] = Default::default();
    bench.bar.set_message("files");
    bench.bar.set_length(ROUNDS as u64);
    for round in 0..ROUNDS {
        samples[0].push(up(api, &path, size).await.map_err(told)?);
        samples[1].push(up(&plain_api, "/file", size).await.map_err(told)?);
        samples[2].push(down(api, &path, size).await.map_err(told)?);
        samples[3].push(down(&plain_api, "/file", size).await.map_err(told)?);
        bench.bar.set_position(round as u64);
    }
    api.delete(&id).await.map_err(told)?;
    std::fs::remove_file(directory.join(COPY)).map_err(|error| format!("remove the plain copy: {error}"))?;
    Ok(samples)
}

/// Sandboxes may lie in a filesystem of their own below the data directory: what is held against them must lie there too.
pub fn beside_sandboxes(data: &Path) -> PathBuf {
    let pool = data.join("pool");
    if pool.is_dir() { pool } else { data.to_owned() }
}

fn rate(size: usize, began: Instant) -> f64 {
    size as f64 / (1 << 20) as f64 / began.elapsed().as_secs_f64()
}

async fn up(api: &Api, path: &str, size: usize) -> Result<f64, Trouble> {
    let piece: Vec<u8> = (0..PIECE).map(|at| (at * 31 % 251) as u8).collect();
    // Shared, not copied, for every piece.
    let piece = Bytes::from(piece);
    let pieces = futures::stream::iter((0..size / PIECE).map(move |_| Ok::<_, std::io::Error>(piece.clone())));
    let request =
        api.request(Method::PUT, path).body(Body::wrap_stream(pieces)).timeout(std::time::Duration::from_secs(300));
    let began = Instant::now();
    api.send(request).await?;
    Ok(rate(size, began))
}

async fn down(api: &Api, path: &str, size: usize) -> Result<f64, Trouble> {
    let began = Instant::now();
    let request = api.request(Method::GET, path).timeout(std::time::Duration::from_secs(300));
    let mut body = api.send(request).await?.bytes_stream();
    let mut got = 0;
    while let Some(piece) = body.next().await {
        got += piece.map_err(lost)?.len();
    }
    if got == size { Ok(rate(size, began)) } else { Err(Trouble::Wrong(format!("{got} of {size} bytes came back"))) }
}

/// One file, PUT and GET, chunked up and counted down. No more than that: it is what the real one is held against.
struct PlainServer {
    url: String,
    task: tokio::task::JoinHandle<()>,
}

impl PlainServer {
    async fn start(directory: &Path, size: usize) -> std::io::Result<PlainServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let file = directory.join(COPY);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let file = file.clone();
                tokio::spawn(async move { serve(stream, &file, size).await });
            }
        });
        Ok(PlainServer { url, task })
    }
}

impl Drop for PlainServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, path: &Path, size: usize) -> std::io::Result<()> {
    let mut stream = BufReader::with_capacity(PIECE, stream);
    loop {
        let (mut first, mut line) = (String::new(), String::new());
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        while stream.read_line(&mut line).await? > 2 {
            line.clear();
        }
        let mut buffer = vec![0u8; PIECE];
        if first.starts_with("GET") {
            let mut file = tokio::fs::File::open(path).await?;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            loop {
                match file.read(&mut buffer).await? {
                    0 => break,
                    count => stream.write_all(&buffer[..count]).await?,
                }
            }
        } else {
            let mut file = tokio::fs::File::create(path).await?;
            loop {
                let mut head = String::new();
                stream.read_line(&mut head).await?;
                let mut left = usize::from_str_radix(head.trim(), 16).map_err(std::io::Error::other)?;
                let is_last = left == 0;
                while left > 0 {
                    let most = left.min(buffer.len());
                    let count = stream.read(&mut buffer[..most]).await?;
                    if count == 0 {
                        return Ok(());
                    }
                    file.write_all(&buffer[..count]).await?;
                    left -= count;
                }
                let mut end = String::new();
                stream.read_line(&mut end).await?;
                if is_last {
                    break;
                }
            }
            file.flush().await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await?;
        }
    }
}
