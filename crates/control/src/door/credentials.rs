//! What is ours in a request to a program in a sandbox: taken off here, for every door, before it is passed on.
//!
//! The program is hostile, and what a client shows to us is not for it: API keys, the sandbox's tokens, the tokens of links
//! and the cookies that keep them. By name where the name is ours, by value where a program may use the same header: an
//! application's own `Authorization` passes, one that holds a key of this server does not, revoked or not.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use percent_encoding::percent_decode_str;

use super::link::{TOKEN, TOKEN_OF_HOST};
use crate::App;
use crate::sandbox::Sandbox;
use crate::secret::same;

/// Headers that mean something to us alone.
const HEADERS: [&str; 7] = [
    "e2b-traffic-access-token",
    "e2b-sandbox-id",
    "e2b-sandbox-port",
    "x-cove-traffic-token",
    "x-daytona-preview-token",
    "x-daytona-skip-last-activity-update",
    "cove-sent-on-by",
];

/// Parameters of a query that mean something to us alone.
const PARAMETERS: [&str; 2] = [TOKEN, "DAYTONA_SANDBOX_AUTH_KEY"];

/// Headers in which a client may show us a key or a token, and a program inside may be shown its own.
const SHARED: [HeaderName; 4] = [
    header::AUTHORIZATION,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-access-token"),
];

/// How many words of one request are looked up in the store. A request without a key may be full of words that look like
/// keys, and each costs a read. A word beyond counts as a key and is taken off.
const LOOKUPS: usize = 32;

/// One pair of a query, decoded.
pub struct Pair<'a> {
    pub name: String,
    pub value: String,
    /// As it was written.
    written: &'a str,
}

/// The pairs of a query, in order.
pub fn pairs(uri: &Uri) -> impl Iterator<Item = Pair<'_>> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let written = uri.query().into_iter().flat_map(|query| query.split('&')).filter(|pair| !pair.is_empty());
    written.map(move |written| {
        let (name, value) = written.split_once('=').unwrap_or((written, ""));
        Pair { name: decode(name), value: decode(value), written }
    })
}

/// The query as it was written, without the parameters that are ours by name.
pub fn query_without_ours(uri: &Uri) -> String {
    let kept = pairs(uri).filter(|pair| !PARAMETERS.contains(&pair.name.as_str()));
    kept.map(|pair| pair.written).collect::<Vec<_>>().join("&")
}

/// Takes off all that is ours.
pub async fn take_off(app: &App, sandbox: &Sandbox, request: &mut Request<Body>) {
    let ours = Ours { app, sandbox, lookups: AtomicUsize::new(0) };
    let mut kept = Vec::new();
    for pair in pairs(request.uri()) {
        let by_name = PARAMETERS.contains(&pair.name.as_str());
        let by_value = ours.is_in(&pair.value).await || pair.name == "api_key" && ours.is_ours(&pair.value).await;
        if !by_name && !by_value {
            kept.push(pair.written);
        }
    }
    let question = if kept.is_empty() { String::new() } else { format!("?{}", kept.join("&")) };
    if let Ok(path) = PathAndQuery::try_from(format!("{}{question}", request.uri().path())) {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(path);
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    let cookies = ours.cookies_of_others(request.headers()).await;
    let mut gone: Vec<HeaderName> = Vec::new();
    for (name, value) in request.headers() {
        let by_name = HEADERS.contains(&name.as_str());
        if by_name || name != header::COOKIE && ours.is_shown_in(name, value).await {
            gone.push(name.clone());
        }
    }
    let headers = request.headers_mut();
    for name in gone {
        headers.remove(name);
    }
    headers.remove(header::COOKIE);
    if let Some(cookies) = cookies {
        headers.insert(header::COOKIE, cookies);
    }
}

struct Ours<'a> {
    app: &'a App,
    sandbox: &'a Sandbox,
    /// That this request has had.
    lookups: AtomicUsize,
}

/// Counts one lookup more; `false` where the request has had all of them.
fn may_look_up(so_far: &AtomicUsize) -> bool {
    so_far.fetch_add(1, Ordering::Relaxed) < LOOKUPS
}

impl Ours<'_> {
    async fn is_a_key(&self, word: &str) -> bool {
        !may_look_up(&self.lookups) || self.app.is_a_key(word).await
    }

    async fn is_shown_in(&self, name: &HeaderName, value: &HeaderValue) -> bool {
        let text = String::from_utf8_lossy(value.as_bytes());
        // A page that was opened by a link names the link where it comes from.
        if name == header::REFERER && leads_in(&text) {
            return true;
        }
        if self.is_in(&text).await {
            return true;
        }
        if !SHARED.contains(name) {
            return false;
        }
        let secret = text.split_once(' ').map_or(text.as_ref(), |(_, secret)| secret).trim();
        if name == "x-access-token" && has_the_form_of_a_token(secret) {
            return true;
        }
        if self.is_ours(secret).await {
            return true;
        }
        // A name and a password.
        let decoded = STANDARD.decode(secret).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let Some((user, password)) = decoded.as_deref().and_then(|pair| pair.split_once(':')) else { return false };
        self.is_ours(user).await || self.is_ours(password).await
    }

    /// Whether one of this sandbox's tokens, or a key, stands anywhere in a text.
    async fn is_in(&self, text: &str) -> bool {
        for word in text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_') {
            let token = same(word, &self.sandbox.access_token) || same(word, &self.sandbox.traffic_token);
            if token || has_the_form_of_a_key(word) && self.is_a_key(word).await {
                return true;
            }
        }
        false
    }

    async fn is_ours(&self, secret: &str) -> bool {
        let tokens = [&self.sandbox.access_token, &self.sandbox.traffic_token];
        tokens.into_iter().any(|token| same(secret, token)) || self.is_a_key(secret).await
    }

    /// The cookies that are the program's own, in one header.
    async fn cookies_of_others(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut kept: Vec<&[u8]> = Vec::new();
        for value in headers.get_all(header::COOKIE) {
            for pair in value.as_bytes().split(|byte| *byte == b';') {
                let pair = pair.trim_ascii();
                let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
                let ours = name == TOKEN.as_bytes() || name == TOKEN_OF_HOST.as_bytes();
                if !pair.is_empty() && !ours && !self.is_in(&String::from_utf8_lossy(pair)).await {
                    kept.push(pair);
                }
            }
        }
        (!kept.is_empty()).then(|| HeaderValue::from_bytes(&kept.join(&b"; "[..])).ok()).flatten()
    }
}

/// Whether an address holds the token of a link: in its query, or in its path as Daytona's links do.
fn leads_in(address: &str) -> bool {
    let decoded = percent_decode_str(address).decode_utf8_lossy().into_owned();
    let by_path =
        decoded.split('/').skip_while(|part| *part != "preview").nth(2).is_some_and(|part| part.contains('~'));
    by_path || PARAMETERS.iter().any(|name| decoded.contains(&format!("{name}=")))
}

/// As `random::api_key` makes them.
fn has_the_form_of_a_key(word: &str) -> bool {
    word.strip_prefix("e2b_").is_some_and(|rest| rest.len() == 40 && rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// As `random::token` makes them.
fn has_the_form_of_a_token(word: &str) -> bool {
    word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_ours_in_any_spelling_and_the_rest_stays_as_it_was_written() {
        let uri: Uri = "/a?x=%20&cove%5Ftoken=1&y&DAYTONA_SANDBOX_AUTH_KEY=2&cove_tokens=3".parse().unwrap();
        assert_eq!(query_without_ours(&uri), "x=%20&y&cove_tokens=3");
    }

    #[test]
    fn a_request_has_so_many_lookups_and_no_more() {
        let so_far = AtomicUsize::new(0);
        assert_eq!((0..10_000).filter(|_| may_look_up(&so_far)).count(), LOOKUPS);
    }

    #[test]
    fn an_address_with_a_link_in_it_is_known() {
        for address in [
            "http://h/?a=b&cove_token=1",
            "http://h/daytona/preview/x/80~tok/a",
            "http://h/daytona/preview/x/80%7Etok/",
        ] {
            assert!(leads_in(address), "{address}");
        }
        for address in ["http://h/~user/a", "http://h/daytona/preview/x/80/~me", "http://h/?q=1"] {
            assert!(!leads_in(address), "{address}");
        }
    }
}
