//! Who the operator is at registries: a file as `docker login`, `podman login` and `skopeo login` write it.
//!
//! Only what is in the file itself is read. Programs that such a file may name (`credsStore`, `credHelpers`) are not run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cove_image::registry::Credentials;
use serde::Deserialize;

use super::{HUB, HUB_ENDPOINT, HUB_NAMES};

/// Bytes of the file.
const LARGEST: u64 = 1 << 20;

#[derive(Deserialize)]
struct Written {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    /// `user:password` in Base64.
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
}

/// By host, as it is in references and mirrors. The error says what is wrong with the file, without what is secret in it.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Credentials>, String> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST).read_to_string(&mut text));
    read.map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(text: &str) -> Result<BTreeMap<String, Credentials>, String> {
    let written: Written =
        serde_json::from_str(text).map_err(|error| format!("line {}: not what `docker login` writes", error.line()))?;
    let mut all = BTreeMap::new();
    for (name, entry) in written.auths {
        let host = host_of(&name)?;
        // One whose password a program has is there, and empty.
        let Some(credentials) = entry.credentials().map_err(|why| format!("{name}: {why}"))? else { continue };
        if host == HUB {
            all.insert(HUB_ENDPOINT.to_owned(), credentials.clone());
        }
        all.insert(host, credentials);
    }
    Ok(all)
}

impl Entry {
    fn credentials(self) -> Result<Option<Credentials>, &'static str> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credentials::Identity(self.identitytoken)));
        }
        if self.auth.is_empty() {
            return Ok(None);
        }
        let wrong = "auth is not user:password in Base64";
        let decoded = STANDARD.decode(self.auth.trim()).map_err(|_| wrong)?;
        let decoded = String::from_utf8(decoded).map_err(|_| wrong)?;
        let (user, password) = decoded.split_once(':').ok_or(wrong)?;
        Ok(Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() }))
    }
}

/// The registry of a key: a host, or a URL of the first version of the protocol, as Docker writes its own.
fn host_of(name: &str) -> Result<String, String> {
    let rest = name.strip_prefix("https://").or_else(|| name.strip_prefix("http://")).unwrap_or(name);
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    if host.is_empty() || !matches!(path.trim_end_matches('/'), "" | "v1" | "v2") {
        return Err(format!("{name}: a whole registry is wanted, not a part of it"));
    }
    let host = host.to_lowercase();
    Ok(if HUB_NAMES.contains(&host.as_str()) { HUB.to_owned() } else { host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_docker_login_writes_is_read() {
        let text = r#"{"auths": {"https://index.docker.io/v1/": {"auth": "YWRhOnA6dw=="},
            "registry.example:5000": {"auth": "", "identitytoken": "t"}, "by.program": {}}, "credsStore": "x"}"#;
        let found = parse(text).unwrap();
        let ada = Credentials::Password { user: "ada".into(), password: "p:w".into() };
        assert_eq!((&found[HUB], &found[HUB_ENDPOINT]), (&ada, &ada));
        assert_eq!(found["registry.example:5000"], Credentials::Identity("t".into()));
        assert_eq!(found.len(), 3);
        assert!(parse("{}").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_is_named_without_what_is_secret() {
        for (text, word) in [
            ("secret", "line 1"),
            (r#"{"auths": {"a.example": {"auth": "secret!"}}}"#, "a.example"),
            (r#"{"auths": {"a.example": {"auth": "c2VjcmV0"}}}"#, "Base64"),
            (r#"{"auths": {"a.example/team": {"auth": "YTpi"}}}"#, "a.example/team"),
        ] {
            let why = parse(text).unwrap_err();
            assert!(why.contains(word) && !why.contains("secret"), "{why}");
        }
        assert!(read(Path::new("/nowhere/registries.json")).unwrap_err().contains("/nowhere/registries.json"));
    }
}
