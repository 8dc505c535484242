//! Credentials for git: bound to one host, and handed over safely.

use std::fmt;

use super::GitError;

/// A username and password or token for one call. Never printed, never kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// A token alone is common; hosts accept any name with it. `None` without both.
    pub fn new(username: Option<String>, password: Option<String>) -> Result<Option<Self>, GitError> {
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let (username, password) = match (given(username), given(password)) {
            (None, None) => return Ok(None),
            (Some(_), None) => {
                return Err(GitError::Invalid("a username was given without a password or token".into()));
            }
            (None, Some(password)) => ("git".to_owned(), password),
            (Some(username), Some(password)) => (username, password),
        };
        if [&username, &password].iter().any(|text| text.contains(['\n', '\r', '\0'])) {
            return Err(GitError::Invalid("credentials cannot hold line breaks".into()));
        }
        Ok(Some(Credentials { username, password }))
    }

    /// In the format of git's credential protocol.
    pub(super) fn spoken(&self) -> Vec<u8> {
        format!("username={}\npassword={}\n", self.username, self.password).into_bytes()
    }

    /// Removes the password from a text: a careless server or hook may have put it into an error.
    pub(super) fn redact(&self, text: &str) -> String {
        text.replace(&self.password, "***")
    }

    /// Removes name and password from a URL; otherwise the clone's configuration would keep them.
    pub(super) fn out_of_url(url: &str) -> Result<(String, Option<Self>), GitError> {
        let Some((scheme, rest)) = url.split_once("://") else { return Ok((url.to_owned(), None)) };
        if scheme != "http" && scheme != "https" {
            return Ok((url.to_owned(), None));
        }
        let end = rest.find('/').unwrap_or(rest.len());
        let Some((user, host)) = rest[..end].rsplit_once('@') else { return Ok((url.to_owned(), None)) };
        let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        let (username, password) = match user.split_once(':') {
            Some((username, password)) => (Some(decode(username)), Some(decode(password))),
            // As in https://TOKEN@host/…
            None => (None, Some(decode(user))),
        };
        let bare = format!("{scheme}://{host}{}", &rest[end..]);
        Ok((bare, Credentials::new(username, password)?))
    }

    /// The options that make git ask us, and only us, and only for this URL's scheme and host.
    pub(super) fn options(url: &str) -> Result<Vec<String>, GitError> {
        let place = place(url).ok_or_else(|| {
            GitError::Invalid(format!("credentials are for http and https remotes; {url:?} is neither"))
        })?;
        Ok(vec![
            "-c".into(),
            // An empty value clears every helper of the sandbox's own configuration.
            "credential.helper=".into(),
            "-c".into(),
            format!("credential.{place}.helper=!f() {{ if test \"$1\" = get; then cat <&3; fi; }}; f"),
        ])
    }
}

/// `scheme://host[:port]` of an HTTP URL, if it is one and a plain one.
fn place(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let host = rest.split('/').next()?;
    let host = host.rsplit('@').next()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b);
    let fits = matches!(scheme, "http" | "https") && !host.is_empty() && host.bytes().all(plain);
    fits.then(|| format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_in_a_url_is_taken_out_of_it() {
        let (url, credentials) = Credentials::out_of_url("https://ada:p%40ss@git.example/a/b.git").unwrap();
        assert_eq!(url, "https://git.example/a/b.git");
        assert_eq!(credentials.unwrap().spoken(), b"username=ada\npassword=p@ss\n");

        let (url, credentials) = Credentials::out_of_url("https://git.example/a@b.git").unwrap();
        assert_eq!((url.as_str(), credentials), ("https://git.example/a@b.git", None));
    }

    #[test]
    fn credentials_are_never_printed() {
        let credentials = Credentials::new(Some("ada".into()), Some("hunter2".into())).unwrap().unwrap();
        assert!(!format!("{credentials:?}").contains("hunter2"));
        assert_eq!(credentials.redact("bad password hunter2"), "bad password ***");
    }

    #[test]
    fn credentials_are_bound_to_a_plain_http_host() {
        assert_eq!(place("https://git.example:8443/a").as_deref(), Some("https://git.example:8443"));
        assert_eq!(place("ssh://git.example/a"), None);
        assert_eq!(place("https://git.example\"; rm/a"), None);
    }

    #[test]
    fn a_line_break_cannot_smuggle_another_field() {
        assert!(Credentials::new(Some("ada\nhost=evil".into()), Some("x".into())).is_err());
    }
}
