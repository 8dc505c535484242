//! Webhooks: events are posted to subscribers, signed, retried, from the durable queue.
//!
//! A body is signed with HMAC-SHA256 of `{timestamp}.{body}`; the header `Cove-Signature: t=…,v1=…` carries both, so a
//! receiver notices a replayed delivery. Retries reuse the delivery's id.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::border::field::{self, Characters};
use crate::border::shape;
use crate::clock::Timestamp;
use crate::event::{Event, EventFilter, Kind};
use crate::job::{DELIVERY, NewJob};
use crate::nearest::nearest;
use crate::peer::line;
use crate::{App, Caller, Error, Scope, neighbourhood, random};

/// How long a receiver may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many events one round reads.
const PAGE: u32 = 500;
/// The longest that a transaction takes to commit.
const SETTLING_MS: i64 = 10_000;
const CURSOR: &str = "webhooks";
/// Every event is a delivery to each webhook: this keeps one organisation from filling the queue.
const MOST: usize = 32;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Webhook {
    pub id: String,
    pub organisation: String,
    pub url: String,
    /// Kinds of event; an empty list means all.
    pub kinds: Vec<String>,
    /// The secret that signs deliveries.
    pub secret: String,
    pub created_at: Timestamp,
    #[serde(default)]
    pub reach: Reach,
}

/// Where deliveries may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The public internet, as for every request of a tenant.
    #[default]
    Public,
    /// Private addresses too: an operator made the webhook.
    Anywhere,
}

impl Webhook {
    fn wants(&self, event: &Event) -> bool {
        self.organisation == event.organisation && (self.kinds.is_empty() || self.kinds.contains(&event.kind))
    }
}

/// The signature header of a body.
pub fn signature(secret: &str, at: Timestamp, body: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("HMAC takes a key of any length");
    mac.update(at.as_second().to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    format!("t={},v1={}", at.as_second(), hex::encode(mac.finalize().into_bytes()))
}

/// Where a URL leads, without what may be a secret in it: a password, the path, the query. Whoever may look at jobs reads
/// why a delivery failed; the whole URL is for those who manage webhooks.
fn place(url: &str) -> String {
    reqwest::Url::parse(url).map_or_else(|_| "the webhook's URL".to_owned(), |url| url.origin().ascii_serialization())
}

/// Why nobody answered: refused, unknown, too slow. What the client says around that is the URL and its own steps.
fn reason(error: reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", PATIENCE.as_secs());
    }
    line::cause(&error.without_url())
}

impl App {
    pub async fn create_webhook(&self, caller: &Caller, url: &str, kinds: Vec<String>) -> Result<Webhook, Error> {
        caller.require(Scope::Admin)?;
        let parsed = reqwest::Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let Some(parsed) = parsed.filter(|_| url.len() <= 2048) else {
            return Err(Error::invalid("url", "an http or https URL"));
        };
        let reach = if caller.may(Scope::Operator) { Reach::Anywhere } else { Reach::Public };
        if reach == Reach::Public {
            neighbourhood::check_url(&self.config().private_targets, &parsed).map_err(|reason| {
                Error::Forbidden(format!("url: {reason}; only an operator's webhook may go there"))
            })?;
        }
        if kinds.len() > field::KINDS {
            return Err(Error::invalid("kinds", format!("{} kinds; at most {}", kinds.len(), field::KINDS)));
        }
        for kind in &kinds {
            shape::judge_text("kinds", kind, field::KIND, Characters::Line)?;
        }
        // A kind that never happens would be a webhook that is never called.
        if let Some(unknown) = kinds.iter().find(|kind| Kind::ALL.iter().all(|known| known.as_str() != **kind)) {
            let known = Kind::ALL.map(Kind::as_str);
            let meant = nearest(unknown, known).map(|meant| format!("; {meant:?} is one")).unwrap_or_default();
            let message = format!("{unknown:?} is no kind of event{meant}. There are {}", known.join(", "));
            return Err(Error::invalid("kinds", message));
        }
        if self.store().webhooks(Some(&caller.organisation)).await?.len() >= MOST {
            return Err(Error::Quota { message: format!("an organisation has at most {MOST} webhooks") });
        }
        let webhook = Webhook {
            id: random::id("hook"),
            organisation: caller.organisation.clone(),
            url: url.to_owned(),
            kinds,
            secret: random::token(),
            created_at: self.now(),
            reach,
        };
        if self.store().cursor(CURSOR).await?.is_none() {
            self.store().set_cursor(CURSOR, self.store().last_event().await?).await?;
        }
        self.store().insert_webhook(&webhook).await?;
        self.audit(caller, "webhook.create", &webhook.id).await?;
        Ok(webhook)
    }

    pub async fn list_webhooks(&self, caller: &Caller) -> Result<Vec<Webhook>, Error> {
        caller.require(Scope::Admin)?;
        self.store().webhooks(Some(&caller.organisation)).await
    }

    /// What waits to be delivered to it is forgotten with it.
    pub async fn delete_webhook(&self, caller: &Caller, id: &str) -> Result<(), Error> {
        caller.require(Scope::Admin)?;
        // What is not theirs is not changed, and their log does not say that it was.
        if !self.store().webhooks(Some(&caller.organisation)).await?.iter().any(|webhook| webhook.id == id) {
            return Err(Error::not_found("webhook", id));
        }
        self.audit(caller, "webhook.delete", id).await?;
        let deleted = self.store().delete_webhook(&caller.organisation, id).await?;
        if deleted { Ok(()) } else { Err(Error::not_found("webhook", id)) }
    }

    /// Queues deliveries for the events since the last round. The queue's unique keys keep two servers from sending
    /// twice.
    pub(crate) async fn queue_webhooks(&self) -> Result<(), Error> {
        let Some(after) = self.store().cursor(CURSOR).await? else { return Ok(()) };
        let events = self.store().events(&EventFilter::default(), after, PAGE).await?;
        let Some(last) = self.left_behind(&events, after) else { return Ok(()) };
        let webhooks = self.store().webhooks(None).await?;
        for event in &events {
            for webhook in webhooks.iter().filter(|webhook| webhook.wants(event)) {
                let job = NewJob {
                    kind: DELIVERY.into(),
                    subject: webhook.id.clone(),
                    organisation: webhook.organisation.clone(),
                    server: None,
                    unique_key: None,
                    run_at: self.now(),
                    payload: serde_json::json!(event),
                };
                let id = format!("delivery_{}_{}", webhook.id, event.seq);
                self.store().add_job(&id, &job, self.now().as_millisecond()).await?;
            }
        }
        if last > after { self.store().set_cursor(CURSOR, last).await } else { Ok(()) }
    }

    /// Up to which number events are done. Servers that share a database write at the same time, so a lower number may
    /// appear after a higher one. The newest events are read again for a while; a delivery's unique name keeps it from
    /// being queued twice.
    fn left_behind(&self, events: &[Event], after: i64) -> Option<i64> {
        let last = events.last()?.seq;
        if !self.shares_its_store() || events.len() >= PAGE as usize {
            return Some(last);
        }
        let old = crate::clock::from_millisecond(self.now().as_millisecond() - SETTLING_MS);
        let settled = events.iter().rev().find(|event| event.at < old).map(|event| event.seq);
        Some(settled.unwrap_or(after))
    }

    pub(crate) async fn deliver_webhook(&self, job: &crate::job::Job) -> Result<(), Error> {
        // The webhook was removed in the meantime: nothing to do.
        let Some(webhook) = self.store().webhook(&job.subject).await? else { return Ok(()) };
        let body = serde_json::to_vec(&job.payload).map_err(Error::internal)?;
        let failed = |reason: String| Error::internal(format!("deliver to {}: {reason}", place(&webhook.url)));
        let client = match webhook.reach {
            Reach::Anywhere => self.http(),
            Reach::Public => {
                // The configuration may have changed since the webhook was made.
                let url = reqwest::Url::parse(&webhook.url).map_err(|error| failed(error.to_string()))?;
                neighbourhood::check_url(&self.config().private_targets, &url).map_err(failed)?;
                self.guarded_http()
            }
        };
        let answer = client
            .post(&webhook.url)
            .header("content-type", "application/json")
            .header("cove-webhook-id", &webhook.id)
            .header("cove-delivery-id", &job.id)
            .header("cove-signature", signature(&webhook.secret, self.now(), &body))
            .timeout(PATIENCE)
            .body(body)
            .send()
            .await
            .map_err(|error| failed(reason(error)))?;
        if answer.status().is_success() { Ok(()) } else { Err(failed(format!("answered {}", answer.status()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_delivery_names_the_receiver_and_none_of_its_secrets() {
        for (url, shown) in [
            ("http://user:word@hooks.example:81/services/T0/secret?key=1", "http://hooks.example:81"),
            ("https://hooks.example/a", "https://hooks.example"),
            ("nonsense", "the webhook's URL"),
        ] {
            assert_eq!(place(url), shown);
        }
    }
}
