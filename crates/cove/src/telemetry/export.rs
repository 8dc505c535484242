//! Sends batches of spans to the collector in a task of its own: a slow or absent collector delays no request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::otlp::{Finished, request};
use super::spans::Spans;
use crate::complaint::Complaint;

/// The most spans that wait for the exporter; more are dropped and counted.
const WAITING: usize = 4096;
const BATCH: usize = 512;
const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(10);

static LOST: AtomicU64 = AtomicU64::new(0);

pub fn note_loss() {
    LOST.fetch_add(1, Ordering::Relaxed);
}

pub struct Exporter {
    ending: CancellationToken,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Sends what is left, for as long as one export may take.
    pub async fn finish(self) {
        self.ending.cancel();
        if tokio::time::timeout(PATIENCE, self.task).await.is_err() {
            tracing::warn!("the last traces were not taken in time");
        }
    }
}

pub fn start(endpoint: &str, service: &str) -> Result<(Spans, Exporter), Complaint> {
    let (to, from) = channel(WAITING);
    let client = reqwest::Client::builder().timeout(PATIENCE).build();
    let client = client.map_err(|error| Complaint::failed(cove_control::tls::no_client(&error)))?;
    let ending = CancellationToken::new();
    let collector = Collector { url: url(endpoint), service: service.to_owned(), client, trouble: false };
    let task = tokio::spawn(collector.run(from, ending.clone()));
    Ok((Spans::new(to), Exporter { ending, task }))
}

/// As the specification says: the path of traces follows the endpoint.
fn url(endpoint: &str) -> String {
    let endpoint = endpoint.trim_end_matches('/');
    if endpoint.ends_with("/v1/traces") { endpoint.to_owned() } else { format!("{endpoint}/v1/traces") }
}

struct Collector {
    url: String,
    service: String,
    client: reqwest::Client,
    /// Whether the last export failed: logged once, not every second.
    trouble: bool,
}

impl Collector {
    async fn run(mut self, mut from: Receiver<Finished>, ending: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let ended = ending.is_cancelled();
            if ended {
                from.close();
            }
            tokio::select! {
                () = ending.cancelled(), if !ended => {}
                count = from.recv_many(&mut batch, BATCH) => if count == 0 { return },
            }
            // A short pause makes fewer and larger exports.
            let full = async { while batch.len() < BATCH && from.recv_many(&mut batch, BATCH).await > 0 {} };
            tokio::select! {
                () = ending.cancelled() => {}
                _ = tokio::time::timeout(EVERY, full) => {}
            }
            if !batch.is_empty() {
                self.send(&batch).await;
                batch.clear();
            }
        }
    }

    async fn send(&mut self, batch: &[Finished]) {
        let sent = self.client.post(&self.url).json(&request(&self.service, batch)).send().await;
        let refusal = match sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(answer.status().to_string()),
            Err(error) => Some(error.to_string()),
        };
        match (&refusal, self.trouble) {
            (Some(reason), false) => tracing::warn!(url = self.url, reason, "traces are not taken"),
            (None, true) => {
                let lost = LOST.swap(0, Ordering::Relaxed);
                tracing::info!(url = self.url, lost, "traces are taken again");
            }
            _ => {}
        }
        self.trouble = refusal.is_some();
    }
}
