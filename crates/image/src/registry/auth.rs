//! What a 401 asks for: a password, or a token from a realm.
//!
//! A realm is a URL that the registry chooses; the judge sees it like any other. It gets the credentials of the registry
//! that named it and no others; a place that the registry only leads to names none. Tokens live as long as they say, 60
//! seconds where they do not; a long pull asks for a new one when the old is refused.

use std::collections::HashMap;
use std::fmt;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use serde::Deserialize;

use super::dial::{failed, shown};
use super::send::limited;
use super::{Endpoint, Error, Registry};

const LIFETIME: u64 = 60;
const LONGEST_LIFE: u64 = 24 * 3600;
/// The largest answer of a realm.
const ANSWER: u64 = 1 << 20;

/// How to be somebody at a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// A refresh token, which a realm changes into tokens of its own.
    Identity(String),
    /// A token that is sent as it is.
    Token(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credentials::Password { user, .. } => write!(f, "Password {{ user: {user:?}, … }}"),
            Credentials::Identity(_) => f.write_str("Identity(…)"),
            Credentials::Token(_) => f.write_str("Token(…)"),
        }
    }
}

/// What may be done with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Pull,
    Push,
}

impl Action {
    fn words(self) -> &'static str {
        match self {
            Action::Pull => "pull",
            Action::Push => "pull,push",
        }
    }
}

/// What was sent with a request, and until when it is worth sending.
#[derive(Clone)]
pub(super) struct Key {
    pub header: HeaderValue,
    until: Option<Instant>,
}

/// By host, repository and action.
pub(super) type Keys = HashMap<(String, String, Action), Key>;

/// One way that a 401 offers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Challenge {
    scheme: String,
    parameters: HashMap<String, String>,
}

impl Registry {
    /// What a request is sent with right away.
    pub(super) fn key(&self, endpoint: &Endpoint, action: Action) -> Option<HeaderValue> {
        let mut keys = self.shared.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let place = (endpoint.host.clone(), endpoint.repository.clone(), action);
        let key = keys.get(&place)?;
        if key.until.is_some_and(|until| Instant::now() >= until) {
            keys.remove(&place);
            return None;
        }
        Some(key.header.clone())
    }

    /// Answers a 401. The new key is remembered.
    pub(super) async fn answer(
        &self,
        endpoint: &Endpoint,
        action: Action,
        headers: &HeaderMap,
    ) -> Result<HeaderValue, Error> {
        let challenges: Vec<Challenge> = headers
            .get_all(WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(challenges)
            .collect();
        let credentials = self.shared.options.credentials.get(&endpoint.host);
        let what = || format!("{}/{}", endpoint.host, endpoint.repository);
        let refused = |why: &str| Error::Unauthorized { what: what(), why: why.to_owned() };
        let offered = |scheme: &str| challenges.iter().find(|challenge| challenge.scheme == scheme);
        let key = match (credentials, offered("bearer"), offered("basic")) {
            (Some(Credentials::Token(token)), Some(_), _) => {
                bearer(token, None).ok_or_else(|| refused("the token has odd characters"))?
            }
            (credentials, Some(challenge), _) => self.token(endpoint, action, credentials, challenge).await?,
            (Some(Credentials::Password { user, password }), None, Some(_)) => Key {
                header: basic(user, password).ok_or_else(|| refused("the password has odd characters"))?,
                until: None,
            },
            (Some(_), None, Some(_)) => return Err(refused("it wants a user and a password")),
            (None, None, Some(_)) => return Err(refused("none are configured")),
            (_, None, None) => return Err(refused("it does not say which")),
        };
        let header = key.header.clone();
        let place = (endpoint.host.clone(), endpoint.repository.clone(), action);
        self.shared.keys.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(place, key);
        Ok(header)
    }

    async fn token(
        &self,
        endpoint: &Endpoint,
        action: Action,
        credentials: Option<&Credentials>,
        challenge: &Challenge,
    ) -> Result<Key, Error> {
        let what = format!("{}/{}", endpoint.host, endpoint.repository);
        let refused = |why: &str| Error::Unauthorized { what: what.clone(), why: why.to_owned() };
        let realm = challenge.parameters.get("realm").ok_or_else(|| refused("it names no realm for tokens"))?;
        let mut realm = Url::parse(realm).map_err(|_| refused("its realm for tokens is no URL"))?;
        // Credentials in a URL would be somebody's, not the tenant's.
        if !realm.username().is_empty() || realm.password().is_some() {
            return Err(refused("its realm for tokens has credentials in it"));
        }
        let own = || format!("repository:{}:{}", endpoint.repository, action.words());
        let scope = match action {
            Action::Pull => challenge.parameters.get("scope").cloned().unwrap_or_else(own),
            // What only asks is answered with a scope for that: the token is for all of the push.
            Action::Push => own(),
        };
        let service = challenge.parameters.get("service");
        let client = self.client(&realm)?;
        let request = match credentials {
            Some(Credentials::Identity(refresh)) => {
                let mut form = vec![
                    ("grant_type", "refresh_token"),
                    ("client_id", "cove"),
                    ("scope", &scope),
                    ("refresh_token", refresh),
                ];
                form.extend(service.map(|service| ("service", service.as_str())));
                client
                    .post(realm.clone())
                    .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
                    .body(encoded(&form))
            }
            other => {
                realm.query_pairs_mut().append_pair("scope", &scope);
                if let Some(service) = service {
                    realm.query_pairs_mut().append_pair("service", service);
                }
                let request = client.get(realm.clone());
                match other {
                    Some(Credentials::Password { user, password }) => {
                        let header = basic(user, password).ok_or_else(|| refused("the password has odd characters"))?;
                        request.header(AUTHORIZATION, header)
                    }
                    _ => request,
                }
            }
        };
        let realm_shown = shown(&realm);
        let response = request.send().await.map_err(|error| failed(realm.host_str().unwrap_or_default(), &error))?;
        let status = response.status();
        let body = limited(response, ANSWER, &realm_shown).await?;
        if !status.is_success() {
            let why = format!("{realm_shown} answers {}: {}", status.as_u16(), super::send::message(&body));
            return match status.as_u16() {
                // Worth another try.
                408 | 429 | 500.. => Err(Error::Answer { what, status: status.as_u16(), message: why }),
                _ => Err(Error::Unauthorized { what, why }),
            };
        }
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
            expires_in: Option<u64>,
        }
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|_| refused("its realm for tokens sends no token"))?;
        let token = answer.token.or(answer.access_token).filter(|token| !token.is_empty());
        let token = token.ok_or_else(|| refused("its realm for tokens sends no token"))?;
        let life = answer.expires_in.unwrap_or(LIFETIME).min(LONGEST_LIFE);
        // A little less, for the way; the registry's clock decides in the end.
        let life = Duration::from_secs(life).mul_f32(0.9);
        bearer(&token, Some(life)).ok_or_else(|| refused("its token has odd characters"))
    }
}

fn bearer(token: &str, life: Option<Duration>) -> Option<Key> {
    let header = secret(&format!("Bearer {token}"))?;
    Some(Key { header, until: life.map(|life| Instant::now() + life) })
}

fn basic(user: &str, password: &str) -> Option<HeaderValue> {
    secret(&format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::from_str(text).ok()?;
    header.set_sensitive(true);
    Some(header)
}

/// As a form: a URL's query has the same encoding.
fn encoded(form: &[(&str, &str)]) -> String {
    let Ok(mut url) = Url::parse("http://form.invalid/") else { return String::new() };
    url.query_pairs_mut().extend_pairs(form);
    url.query().unwrap_or_default().to_owned()
}

/// `Bearer realm="…",service="…", Basic realm="…"`: schemes with parameters, RFC 9110 section 11.6.1.
fn challenges(text: &str) -> Vec<Challenge> {
    let mut found: Vec<Challenge> = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() && found.len() < 16 {
        let end = rest.find(|letter: char| !is_token(letter)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            break;
        }
        match after.trim_start_matches([' ', '\t']).strip_prefix('=') {
            Some(value) => {
                let (value, after) = parameter(value.trim_start_matches([' ', '\t']));
                if let Some(challenge) = found.last_mut() {
                    challenge.parameters.insert(word.to_ascii_lowercase(), value);
                }
                rest = after;
            }
            None => {
                found.push(Challenge { scheme: word.to_ascii_lowercase(), parameters: HashMap::new() });
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    found
}

fn is_token(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(letter)
}

/// A token or a quoted string, and what follows it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        let (value, rest) = text.split_at(end);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut letters = quoted.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, quoted.get(at + 1..).unwrap_or_default()),
            '\\' => value.extend(letters.next().map(|(_, letter)| letter)),
            letter => value.push(letter),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_in_all_their_forms() {
        let text = r#"Bearer realm="https://auth.example/token?a=1,2",service="registry.example",scope="repository:a/b:pull,push""#;
        let found = challenges(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].scheme, "bearer");
        assert_eq!(found[0].parameters["realm"], "https://auth.example/token?a=1,2");
        assert_eq!(found[0].parameters["scope"], "repository:a/b:pull,push");
        let both = challenges(r#"Basic realm="a \"quoted\" one", BEARER Realm=plain , service = "x""#);
        assert_eq!(both[0].parameters["realm"], r#"a "quoted" one"#);
        assert_eq!((both[1].scheme.as_str(), both[1].parameters["realm"].as_str()), ("bearer", "plain"));
        assert_eq!(both[1].parameters["service"], "x");
        for odd in ["", ",,,", "=", "\"", "Bearer realm=\"open", "a=b", "é"] {
            let _ = challenges(odd);
        }
    }

    #[test]
    fn credentials_are_not_printed() {
        let all = [
            Credentials::Password { user: "u".into(), password: "hunter2".into() },
            Credentials::Identity("hunter2".into()),
            Credentials::Token("hunter2".into()),
        ];
        assert!(!format!("{all:?}").contains("hunter2"));
        assert!(!format!("{:?}", basic("u", "hunter2").unwrap()).contains("aHVudGVy"));
    }

    #[test]
    fn a_form_is_encoded() {
        assert_eq!(encoded(&[("a b", "c&d"), ("e", "ü")]), "a+b=c%26d&e=%C3%BC");
    }
}
