//! Signatures of version 4, as S3's clients make them.
//!
//! A signature covers method, path, query, the headers that it names, and the SHA-256 of the body or a word that stands
//! for it. It is an HMAC with a key that is derived of the secret, the day and the region.

use axum::http::{HeaderMap, Method, Uri, header};
use hmac::{Hmac, KeyInit as _, Mac as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha2::{Digest as _, Sha256};

use super::credentials::Keys;
use super::trouble::Trouble;
use crate::clock::Timestamp;
use crate::secret::same;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
/// How far a client's clock may be off, in seconds.
const SKEW: i64 = 15 * 60;
/// Headers that one signature may name.
const HEADERS_MAX: usize = 64;
const DATE: &str = "x-amz-date";
const PAYLOAD: &str = "x-amz-content-sha256";
const TOKEN: &str = "x-amz-security-token";
/// Without these a signature would hold for another time, place or body.
const COVERED: [&str; 4] = ["host", DATE, PAYLOAD, TOKEN];

/// All but what a URL never escapes.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// What a request says of itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    pub access_key: &'a str,
    /// `20260131/us-east-1/s3/aws4_request`
    scope: &'a str,
    /// In the order in which they are signed.
    headers: Vec<&'a str>,
    signature: &'a str,
    /// `20260131T120000Z`
    date: &'a str,
    /// The SHA-256 of the body, or a word that stands for it.
    pub payload: &'a str,
    token: &'a str,
}

fn unsigned() -> Trouble {
    Trouble::denied("AccessDenied", "a request is signed with the credentials of GET /object-storage/push-access")
}

pub fn read(headers: &HeaderMap) -> Result<Claim<'_>, Trouble> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let fields = text(header::AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix(ALGORITHM));
    let fields = fields.ok_or_else(unsigned)?;
    let field = |name: &str| {
        fields.split(',').find_map(|field| field.trim().strip_prefix(name)?.strip_prefix('=').map(str::trim))
    };
    let (Some(credential), Some(signed), Some(signature)) =
        (field("Credential"), field("SignedHeaders"), field("Signature"))
    else {
        return Err(unsigned());
    };
    let (access_key, scope) = credential.split_once('/').ok_or_else(unsigned)?;
    let (Some(date), Some(payload), Some(token)) = (text(DATE), text(PAYLOAD), text(TOKEN)) else {
        return Err(unsigned());
    };
    Ok(Claim { access_key, scope, headers: signed.split(';').collect(), signature, date, payload, token })
}

impl Claim<'_> {
    /// Refuses what the holder of the keys did not sign, or not now.
    pub fn check(
        &self,
        keys: &Keys,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<(), Trouble> {
        let wrong = || Trouble::denied("SignatureDoesNotMatch", "the request is not signed with its credentials");
        if !same(self.token, &keys.token) {
            return Err(Trouble::denied("InvalidToken", "the session token is not the access key's"));
        }
        if self.headers.len() > HEADERS_MAX || COVERED.iter().any(|name| !self.headers.contains(name)) {
            return Err(Trouble::denied("AccessDenied", format!("a signature covers {}", COVERED.join(", "))));
        }
        let at = moment(self.date).ok_or_else(wrong)?;
        if (at.as_second() - now.as_second()).abs() > SKEW {
            return Err(Trouble::denied("RequestTimeTooSkewed", "the request was signed at another time"));
        }
        let key = self.key(&keys.secret).ok_or_else(wrong)?;
        // Behind a proxy the client has signed for the name that it knows.
        let hosts = [header::HOST.as_str(), "x-forwarded-host"];
        let mut names = hosts.iter().filter_map(|name| headers.get(*name)?.to_str().ok().map(str::to_owned));
        let authority = uri.authority().map(ToString::to_string);
        let fits = |host: String| {
            let request = self.canonical(method, uri, headers, &host);
            let text = format!("{ALGORITHM}\n{}\n{}\n{}", self.date, self.scope, hash(request.as_bytes()));
            same(self.signature, hex::encode(hmac(&key, &text)))
        };
        if names.by_ref().chain(authority).any(fits) { Ok(()) } else { Err(wrong()) }
    }

    /// The key of the day, the region and the service.
    fn key(&self, secret: &str) -> Option<Vec<u8>> {
        let mut words = self.scope.split('/');
        let (day, region) = (words.next()?, words.next()?);
        let rest = (words.next(), words.next(), words.next());
        if rest != (Some("s3"), Some("aws4_request"), None) || !self.date.starts_with(day) || day.len() != 8 {
            return None;
        }
        let first = format!("AWS4{secret}").into_bytes();
        Some([day, region, "s3", "aws4_request"].iter().fold(first, |key, word| hmac(&key, word)))
    }

    /// The request in the one form that both sides sign.
    fn canonical(&self, method: &Method, uri: &Uri, headers: &HeaderMap, host: &str) -> String {
        let mut text = format!("{method}\n{}\n{}\n", uri.path(), query(uri.query().unwrap_or_default()));
        for name in &self.headers {
            let value = if *name == "host" { host.to_owned() } else { value(headers, name) };
            text.push_str(&format!("{name}:{value}\n"));
        }
        text.push_str(&format!("\n{}\n{}", self.headers.join(";"), self.payload));
        text
    }
}

/// Pairs in order, escaped in one way.
fn query(query: &str) -> String {
    let escaped = |text: &str| {
        let plain = percent_decode_str(text).decode_utf8_lossy();
        utf8_percent_encode(&plain, ESCAPED).to_string()
    };
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (escaped(name), escaped(value)))
        .collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// All values of a header, without more space than is needed.
fn value(headers: &HeaderMap, name: &str) -> String {
    let all = headers.get_all(name).iter();
    let single = |value: &axum::http::HeaderValue| {
        String::from_utf8_lossy(value.as_bytes()).split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    };
    all.map(single).collect::<Vec<_>>().join(",")
}

fn moment(text: &str) -> Option<Timestamp> {
    let parsed = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", text).ok()?;
    Some(parsed.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("an HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hash(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    /// The example of Amazon's own documentation of the algorithm.
    #[test]
    fn a_signature_is_the_one_that_is_documented() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("range", "bytes=0-9"), (PAYLOAD, EMPTY), (DATE, "20130524T000000Z")] {
            headers.insert(name, value.parse().unwrap());
        }
        let claim = Claim {
            access_key: "AKIAIOSFODNN7EXAMPLE",
            scope: "20130524/us-east-1/s3/aws4_request",
            headers: vec!["host", "range", PAYLOAD, DATE],
            signature: "",
            date: "20130524T000000Z",
            payload: EMPTY,
            token: "",
        };
        let request =
            claim.canonical(&Method::GET, &"/test.txt".parse().unwrap(), &headers, "examplebucket.s3.amazonaws.com");
        let text = format!("{ALGORITHM}\n{}\n{}\n{}", claim.date, claim.scope, hash(request.as_bytes()));
        let key = claim.key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY").unwrap();
        assert_eq!(hex::encode(hmac(&key, &text)), "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
    }

    fn keys() -> Keys {
        Keys { access: "61".into(), secret: "s".into(), token: "t".into() }
    }

    /// What a client sends.
    fn signed(path: &str, secret: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [("host", "cove"), (DATE, "20260131T120000Z"), (PAYLOAD, EMPTY), (TOKEN, "t")] {
            headers.insert(name, value.parse().unwrap());
        }
        let claim = Claim {
            access_key: "61",
            scope: "20260131/us-east-1/s3/aws4_request",
            headers: vec!["host", PAYLOAD, DATE, TOKEN],
            signature: "",
            date: "20260131T120000Z",
            payload: EMPTY,
            token: "t",
        };
        let request = claim.canonical(&Method::PUT, &path.parse().unwrap(), &headers, "cove");
        let text = format!("{ALGORITHM}\n{}\n{}\n{}", claim.date, claim.scope, hash(request.as_bytes()));
        let signature = hex::encode(hmac(&claim.key(secret).unwrap(), &text));
        let names = claim.headers.join(";");
        let value = format!("{ALGORITHM} Credential=61/{}, SignedHeaders={names}, Signature={signature}", claim.scope);
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    fn verdict(headers: &HeaderMap, method: &Method, path: &str, now: &str) -> Result<(), &'static str> {
        let claim = read(headers).map_err(|trouble| trouble.code)?;
        let checked = claim.check(&keys(), method, &path.parse().unwrap(), headers, now.parse().unwrap());
        checked.map_err(|trouble| trouble.code)
    }

    #[test]
    fn a_signature_is_good_for_one_request_at_its_time() {
        let (path, now) = ("/b/a/h/context.tar?uploads=&x-id=PutObject", "2026-01-31T12:01:00Z");
        let headers = signed(path, "s");
        assert_eq!(verdict(&headers, &Method::PUT, path, now), Ok(()));
        // The order of a query and the way it is escaped are the same request.
        assert_eq!(verdict(&headers, &Method::PUT, "/b/a/h/context.tar?x-id=%50utObject&uploads", now), Ok(()));
        assert_eq!(verdict(&headers, &Method::DELETE, path, now), Err("SignatureDoesNotMatch"));
        assert_eq!(verdict(&headers, &Method::PUT, "/b/a/i/context.tar", now), Err("SignatureDoesNotMatch"));
        assert_eq!(verdict(&signed(path, "z"), &Method::PUT, path, now), Err("SignatureDoesNotMatch"));
        assert_eq!(verdict(&headers, &Method::PUT, path, "2026-01-31T13:00:00Z"), Err("RequestTimeTooSkewed"));
        let mut other = headers.clone();
        other.insert(PAYLOAD, "UNSIGNED-PAYLOAD".parse().unwrap());
        assert_eq!(verdict(&other, &Method::PUT, path, now), Err("SignatureDoesNotMatch"));
        let mut other = headers.clone();
        other.insert(TOKEN, "u".parse().unwrap());
        assert_eq!(verdict(&other, &Method::PUT, path, now), Err("InvalidToken"));
    }

    #[test]
    fn a_proxy_may_have_taken_the_name_that_was_signed() {
        let (path, now) = ("/b/a/h/context.tar", "2026-01-31T12:01:00Z");
        let mut headers = signed(path, "s");
        headers.insert("host", "inside".parse().unwrap());
        assert_eq!(verdict(&headers, &Method::PUT, path, now), Err("SignatureDoesNotMatch"));
        headers.insert("x-forwarded-host", "cove".parse().unwrap());
        assert_eq!(verdict(&headers, &Method::PUT, path, now), Ok(()));
    }

    #[test]
    fn a_signature_that_leaves_out_what_matters_is_none() {
        let mut headers = signed("/b/k", "s");
        let value = headers[header::AUTHORIZATION].to_str().unwrap().replace("host;", "");
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        assert_eq!(verdict(&headers, &Method::PUT, "/b/k", "2026-01-31T12:00:00Z"), Err("AccessDenied"));
        for value in ["", "Bearer x", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=b, Signature=c"]
        {
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            assert_eq!(verdict(&headers, &Method::PUT, "/b/k", "2026-01-31T12:00:00Z"), Err("AccessDenied"), "{value}");
        }
    }
}
