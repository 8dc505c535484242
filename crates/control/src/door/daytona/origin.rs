//! How the client reached us, for links that it can follow back.

use axum::extract::{FromRequestParts, OriginalUri};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};

use super::Door;
use super::sdk::Words;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `http://host:port`, without a path.
    pub url: String,
    pub words: Words,
}

impl Origin {
    pub fn of(headers: &HeaderMap, public_url: Option<&str>) -> Self {
        let words = Words::known_to(headers);
        if let Some(configured) = public_url {
            return Origin { url: configured.trim_end_matches('/').to_owned(), words };
        }
        let text = |name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).map(|v| v.split(',').next().unwrap_or(v).trim())
        };
        let host = text("x-forwarded-host").or_else(|| text(header::HOST.as_str())).unwrap_or("localhost");
        let scheme = match text("x-forwarded-proto") {
            Some("https") => "https",
            _ => "http",
        };
        // Characters that would end a link are not allowed in it.
        let plain = |b: u8| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b);
        let host = if host.bytes().all(plain) { host } else { "localhost" };
        Origin { url: format!("{scheme}://{host}"), words }
    }

    pub fn api(&self) -> String {
        format!("{}/daytona/api", self.url)
    }

    /// Where build contexts are sent.
    pub fn storage(&self) -> String {
        format!("{}/daytona/storage", self.url)
    }

    pub fn toolbox(&self) -> String {
        format!("{}/daytona/toolbox", self.url)
    }

    pub fn preview(&self, sandbox: &str, port: u16) -> String {
        format!("{}/daytona/preview/{sandbox}/{port}", self.url)
    }

    pub fn signed_preview(&self, sandbox: &str, port: u16, token: &str) -> String {
        format!("{}/daytona/preview/{sandbox}/{port}~{token}", self.url)
    }
}

impl FromRequestParts<Door> for Origin {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, door: &Door) -> Result<Self, Self::Rejection> {
        // HTTP/2 has the host in the URI.
        if !parts.headers.contains_key(header::HOST)
            && let Ok(OriginalUri(uri)) = OriginalUri::from_request_parts(parts, door).await
            && let Some(authority) = uri.authority()
            && let Ok(host) = authority.as_str().parse()
        {
            parts.headers.insert(header::HOST, host);
        }
        Ok(Origin::of(&parts.headers, door.app.config().public_url.as_deref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&'static str, &'static str)]) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.insert(*name, value.parse().unwrap());
        }
        Origin::of(&headers, None).url
    }

    #[test]
    fn links_lead_back_the_way_the_request_came() {
        assert_eq!(of(&[("host", "10.0.0.7:7070")]), "http://10.0.0.7:7070");
        assert_eq!(
            of(&[("host", "in"), ("x-forwarded-host", "cove.example"), ("x-forwarded-proto", "https")]),
            "https://cove.example"
        );
        assert_eq!(of(&[("host", "evil/../?x")]), "http://localhost");
        assert_eq!(Origin::of(&HeaderMap::new(), Some("https://cove.example/")).url, "https://cove.example");
    }
}
