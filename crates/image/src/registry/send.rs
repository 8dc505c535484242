//! One request, with everything that can come between it and its answer.
//!
//! ```text
//!  attempt ─▶ key ─▶ request ─▶ 2xx, 404 …            answer
//!     ▲                 ├─────▶ 401 ─▶ a new key, once per attempt; not for a place that it was sent on to
//!     │                 ├─────▶ 30x ─▶ the other place, without the key if it is another origin; what is sent stays
//!     └── pause ◀───────┴─────▶ 408, 429, 5xx, no answer
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::RngExt as _;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, LOCATION, RETRY_AFTER};
use reqwest::{Body, Method, Response, StatusCode, Url};

use super::auth::Action;
use super::dial::{failed, shown};
use super::{Endpoint, Error, Registry};

/// Registries lead to a storage, perhaps by way of a cache.
const REDIRECTS: usize = 5;
/// How often it is looked how much of a body was taken.
const LOOK: Duration = Duration::from_millis(250);
/// How much of an error's text is read.
const MESSAGE: u64 = 8 << 10;

/// What is sent, as often as needed.
pub(super) struct Call<'a> {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub endpoint: &'a Endpoint,
    pub action: Action,
    /// For errors: what is asked for.
    pub what: String,
    pub body: Option<&'a (dyn Fn() -> Body + Send + Sync)>,
    /// Of a body that takes its time: how far it is.
    pub upload: Option<Upload<'a>>,
}

/// A body on its way.
#[derive(Clone, Copy)]
pub(super) struct Upload<'a> {
    /// How many bytes of it the peer has taken.
    pub taken: &'a AtomicU64,
    /// Told now and then.
    pub tell: &'a (dyn Fn(u64) + Sync),
}

impl<'a> Call<'a> {
    pub fn new(method: Method, url: Url, endpoint: &'a Endpoint, what: String) -> Self {
        Call { method, url, headers: HeaderMap::new(), endpoint, action: Action::Pull, what, body: None, upload: None }
    }
}

impl Registry {
    /// Sends until there is an answer worth reading, or no attempt is left. An answer that is no success is an error.
    pub(super) async fn send(&self, call: &Call<'_>) -> Result<Response, Error> {
        let mut attempt = 1;
        loop {
            let error = match self.attempt(call).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if !error.is_passing() || attempt >= self.options().attempts {
                return Err(error);
            }
            self.pause(attempt, &error).await?;
            attempt += 1;
        }
    }

    /// Waits before the next attempt: as long as the registry asks for, else longer each time and never in step with others.
    pub(super) async fn pause(&self, attempt: u32, error: &Error) -> Result<(), Error> {
        let options = self.options();
        let pause = match error {
            Error::Busy { what, wait } if *wait > options.longest_pause => {
                return Err(Error::Busy { what: what.clone(), wait: *wait });
            }
            Error::Busy { wait, .. } if !wait.is_zero() => *wait,
            _ => {
                let doubled = options.pause.saturating_mul(1 << attempt.saturating_sub(1).min(10));
                doubled.min(options.longest_pause).mul_f32(rand::rng().random_range(0.75..1.25))
            }
        };
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// Once, with a new key if the old one is refused.
    pub(super) async fn attempt(&self, call: &Call<'_>) -> Result<Response, Error> {
        let key = self.key(call.endpoint, call.action);
        let mut response = self.follow(call, key).await?;
        // Only the registry itself asks for its password: a place that it leads to would name a realm of its own.
        let is_registrys = response.url().origin() == call.url.origin();
        if response.status() == StatusCode::UNAUTHORIZED && is_registrys {
            let key = self.answer(call.endpoint, call.action, response.headers()).await?;
            response = self.follow(call, Some(key)).await?;
        }
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let wait = retry_after(response.headers());
        // Whoever sends a reason byte by byte has given none.
        let reason = tokio::time::timeout(self.options().silence, limited(response, MESSAGE, &call.what)).await;
        let body = reason.ok().and_then(Result::ok).unwrap_or_default();
        let (what, message) = (call.what.clone(), message(&body));
        Err(match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Unauthorized { what, why: message },
            StatusCode::NOT_FOUND => Error::NotFound { what },
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Error::Busy { what, wait: wait.unwrap_or(Duration::ZERO) }
            }
            _ => Error::Answer { what, status: status.as_u16(), message },
        })
    }

    /// One request and where it is sent on to.
    async fn follow(&self, call: &Call<'_>, key: Option<HeaderValue>) -> Result<Response, Error> {
        let mut url = call.url.clone();
        let mut key = key;
        for _ in 0..=REDIRECTS {
            let client = if call.upload.is_some() { self.sender(&url)? } else { self.client(&url)? };
            let mut request = client.request(call.method.clone(), url.clone()).headers(call.headers.clone());
            if let Some(key) = &key {
                request = request.header(AUTHORIZATION, key.clone());
            }
            if let Some(body) = call.body {
                request = request.body(body());
            }
            let host = url.host_str().unwrap_or_default().to_owned();
            let sending = async {
                request.send().await.map_err(|error| match failed(&call.what, &error) {
                    Error::Forbidden { why, .. } => Error::Forbidden { host, why },
                    other => other,
                })
            };
            let response = match call.upload {
                Some(upload) => self.while_taken(&call.what, upload, sending).await?,
                None => sending.await?,
            };
            if !response.status().is_redirection() {
                return Ok(response);
            }
            // Only what asks can be sent on; a body is not sent to places that the registry did not start with.
            if !matches!(call.method, Method::GET | Method::HEAD) {
                let why = "the registry sends it on to another place, and what is pushed goes to the registry alone";
                return Err(Error::Content { what: call.what.clone(), why: why.into() });
            }
            let Some(location) = response.headers().get(LOCATION) else { return Ok(response) };
            let next = location.to_str().ok().and_then(|location| url.join(location).ok());
            let next =
                next.ok_or_else(|| Error::Content { what: call.what.clone(), why: "it is sent on to no URL".into() })?;
            // A signed URL refuses a second kind of credentials, and another host has no right to them.
            if next.origin() != url.origin() {
                key = None;
            }
            tracing::debug!(from = shown(&url), to = shown(&next), "the registry sends on");
            url = next;
        }
        Err(Error::Content { what: call.what.clone(), why: format!("it is sent on more than {REDIRECTS} times") })
    }

    /// Waits for an answer for as long as the peer takes something of what is sent.
    pub(super) async fn while_taken(
        &self,
        what: &str,
        upload: Upload<'_>,
        sending: impl Future<Output = Result<Response, Error>>,
    ) -> Result<Response, Error> {
        let silence = self.options().silence;
        tokio::pin!(sending);
        let (mut seen, mut since) = (0, Instant::now());
        loop {
            tokio::select! {
                answered = &mut sending => return answered,
                () = tokio::time::sleep(LOOK.min(silence)) => {}
            }
            let taken = upload.taken.load(Ordering::Relaxed);
            (upload.tell)(taken);
            if taken != seen {
                (seen, since) = (taken, Instant::now());
            } else if since.elapsed() >= silence {
                let why = "it takes nothing more and does not answer".to_owned();
                return Err(Error::Unreachable { what: what.to_owned(), why });
            }
        }
    }
}

/// A body of at most so many bytes.
pub(super) async fn limited(mut response: Response, most: u64, what: &str) -> Result<Vec<u8>, Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| failed(what, &error))? {
        if (body.len() + piece.len()) as u64 > most {
            return Err(Error::TooLarge {
                what: what.to_owned(),
                why: format!("the answer has more than {most} bytes"),
            });
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

/// What a registry says about an error: its own JSON, or the beginning of whatever it sent.
pub(super) fn message(body: &[u8]) -> String {
    #[derive(serde::Deserialize)]
    struct Answer {
        errors: Vec<One>,
    }
    #[derive(serde::Deserialize)]
    struct One {
        code: Option<String>,
        message: Option<String>,
    }
    let told = serde_json::from_slice::<Answer>(body).ok().and_then(|answer| {
        let one = answer.errors.into_iter().next()?;
        Some([one.code, one.message].into_iter().flatten().collect::<Vec<_>>().join(": "))
    });
    let text = told.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let text: String = text.chars().filter(|letter| !letter.is_control()).take(200).collect();
    if text.trim().is_empty() { "no reason given".to_owned() } else { text }
}

/// Seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let left = then.duration_since(jiff::Timestamp::now());
    Some(Duration::try_from(left).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_asked_for_in_seconds_or_as_a_date() {
        let asked = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            retry_after(&headers)
        };
        assert_eq!(asked("7"), Some(Duration::from_secs(7)));
        assert_eq!(asked("Fri, 31 Dec 1999 23:59:59 GMT"), Some(Duration::ZERO));
        assert!(asked("Mon, 31 Dec 2125 23:59:59 GMT").unwrap() > Duration::from_secs(1 << 30));
        assert_eq!(asked("soon"), None);
    }

    #[test]
    fn a_registrys_reason_is_shown_without_control_characters() {
        assert_eq!(message(br#"{"errors":[{"code":"DENIED","message":"not you"}]}"#), "DENIED: not you");
        assert_eq!(message(b"<html>\x1b[31mred"), "<html>[31mred");
        assert_eq!(message(b""), "no reason given");
        assert_eq!(message(&[b'x'; 5000]).len(), 200);
    }
}
