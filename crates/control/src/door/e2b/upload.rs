//! Archives for builds, sent by whoever has a link: clients show no key there.
//!
//! ```text
//!   GET /templates/{id}/files/{hash}  with a key ──▶ a link to the same path with ?key=…&end=…&signature=…
//!   PUT the link                      without one ──▶ the archive is kept for the key's organisation
//! ```
//!
//! A link is good for one archive of one template, for the key that asked for it, until its end; it is good no longer than
//! the key itself. The signature is an HMAC with the secret that the servers of one database share, or, where there is but
//! one, with a secret of the running server.

use std::sync::LazyLock;

use axum::body::Body;
use axum::extract::{Path, State};
use futures::TryStreamExt as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::{HeaderMap, StatusCode, Uri, header};
use sha2::Sha256;
use tokio_util::io::StreamReader;

use super::api::By;
use super::destination::PREFIX;
use super::error::ApiError;
use super::query::Query;
use crate::clock::{Timestamp, after};
use crate::secret::same;
use crate::{App, Caller, Error, random, right};

/// How long a link is good for: clients give up sending after an hour.
const GOOD_FOR_SECONDS: u64 = 2 * 60 * 60;

static OF_THIS_SERVER: LazyLock<String> = LazyLock::new(random::token);

fn secret(app: &App) -> &str {
    app.peer_secret().unwrap_or(&OF_THIS_SERVER)
}

/// What a link is good for.
#[derive(Debug, Clone, Copy)]
struct Grant<'a> {
    template: &'a str,
    hash: &'a str,
    key: &'a str,
    /// In seconds.
    end: i64,
}

impl Grant<'_> {
    fn sign(&self, secret: &str) -> String {
        let Grant { template, hash, key, end } = self;
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("an HMAC takes a key of any length");
        // Neither ids nor hashes have a line break; `check` takes none that do.
        mac.update(format!("cove-upload\n{template}\n{hash}\n{key}\n{end}").as_bytes());
        hex::encode(mac.finalize().into_bytes())
    }

    fn is_signed_by(&self, secret: &str, signature: &str) -> bool {
        let one_line = [self.template, self.hash, self.key].iter().all(|part| !part.contains('\n'));
        one_line && same(signature, self.sign(secret))
    }
}

/// A link to send an archive to.
pub fn link(app: &App, caller: &Caller, template: &str, hash: &str, asked: (&Uri, &HeaderMap)) -> String {
    let end = after(app.now(), GOOD_FOR_SECONDS).as_second();
    let grant = Grant { template, hash, key: &caller.key, end };
    let signature = grant.sign(secret(app));
    let base = base_url(app, asked.0, asked.1);
    format!("{base}{PREFIX}/templates/{template}/files/{hash}?key={}&end={end}&signature={signature}", caller.key)
}

/// How the client that asked reaches this server.
fn base_url(app: &App, uri: &Uri, headers: &HeaderMap) -> String {
    if let Some(url) = &app.config().public_url {
        return url.trim_end_matches('/').to_owned();
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // Characters that would end a link are not allowed in it. HTTP/2 has the host in the address.
    let plain = |host: &&str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:[]_".contains(&byte));
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| text(header::HOST.as_str()));
    let host = host.filter(plain).unwrap_or(&app.config().listen);
    // TLS of ours says so in the same header as a proxy before us.
    let scheme = if text("x-forwarded-proto") == Some("https") { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The caller whom a link speaks for.
pub async fn admit(app: &App, template: &str, hash: &str, uri: &Uri) -> Result<Caller, Error> {
    let unknown = || Error::Unauthenticated("the link is not one of this server, or has expired".into());
    let query = Query::of(uri);
    if query.repeated(&["key", "end", "signature"]).is_some() {
        return Err(unknown());
    }
    let (Some(key), Some(end), Some(signature)) = (query.get("key"), query.get("end"), query.get("signature")) else {
        return Err(unknown());
    };
    let end: i64 = end.parse().map_err(|_| unknown())?;
    let grant = Grant { template, hash, key, end };
    if !grant.is_signed_by(secret(app), signature) || end <= app.now().as_second() {
        return Err(unknown());
    }
    let record = app.store().template_by_id(template).await?.filter(|record| record.deleted_at.is_none());
    let organisation = record.ok_or_else(|| Error::not_found("template", template))?.organisation;
    let key = app.store().keys(&organisation).await?.into_iter().find(|known| known.id == key).ok_or_else(unknown)?;
    if key.revoked_at.is_some() || key.expires_at.is_some_and(|end| end <= app.now()) {
        return Err(unknown());
    }
    right::hold_key(&key.id, &key.organisation, key.expires_at)?;
    right::hold_link(Timestamp::from_second(end).map_err(|_| unknown())?);
    let caller = Caller { organisation, key: key.id, scopes: vec![key.scope] };
    app.admit(&caller).await?;
    Ok(caller)
}

/// Keeps an archive.
pub async fn put(
    State(app): State<App>,
    By(caller): By,
    Path((_, hash)): Path<(String, String)>,
    body: Body,
) -> Result<StatusCode, ApiError> {
    let bytes = StreamReader::new(body.into_data_stream().map_err(std::io::Error::other));
    app.put_build_file(&caller, &hash, bytes).await?;
    Ok(StatusCode::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_good_for_what_it_was_signed_for_alone() {
        let grant = Grant { template: "t", hash: "abc", key: "key_1", end: 100 };
        let signature = grant.sign("secret");
        assert!(grant.is_signed_by("secret", &signature));
        for other in [
            Grant { template: "u", ..grant },
            Grant { hash: "abd", ..grant },
            Grant { key: "key_2", ..grant },
            Grant { end: 101, ..grant },
            Grant { template: "t\nabc", hash: "key_1", key: "", ..grant },
        ] {
            assert!(!other.is_signed_by("secret", &signature), "{other:?}");
        }
        assert!(!grant.is_signed_by("another", &signature) && !grant.is_signed_by("secret", ""));
    }
}
