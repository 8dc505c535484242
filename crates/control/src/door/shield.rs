//! What a sandbox answers below a path of ours is of our own origin to a browser: it must not act in its name.
//!
//! By host name (`{port}-{id}.{domain}`) every sandbox has an origin of its own; by path it shares ours with the API and
//! with every other sandbox. So there its pages run in an origin that is nobody's, headers that concern the whole
//! origin are dropped, and its cookies stay below its path.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// A page in an opaque origin: no storage, no cookies by script, no service workers, no calls in our name.
const NOBODYS_ORIGIN: &str = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads";

/// What one answer would say for the whole origin.
const ORIGIN_WIDE: [HeaderName; 7] = [
    header::STRICT_TRANSPORT_SECURITY,
    header::ALT_SVC,
    HeaderName::from_static("clear-site-data"),
    HeaderName::from_static("service-worker-allowed"),
    HeaderName::from_static("nel"),
    HeaderName::from_static("report-to"),
    HeaderName::from_static("reporting-endpoints"),
];

/// Makes an answer of a sandbox harmless below `path`.
pub fn below(path: &str, headers: &mut HeaderMap) {
    for name in &ORIGIN_WIDE {
        headers.remove(name);
    }
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().filter_map(|c| kept(path, c)).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
    // Beside what the program says itself: of several the strictest counts.
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(NOBODYS_ORIGIN));
}

/// The cookie for this path and host alone, whatever it asked for.
fn kept(path: &str, cookie: &HeaderValue) -> Option<HeaderValue> {
    let text = cookie.to_str().ok()?;
    let own = |part: &&str| {
        let name = part.split('=').next().unwrap_or_default().trim();
        !name.eq_ignore_ascii_case("path") && !name.eq_ignore_ascii_case("domain")
    };
    let mut parts = text.split(';');
    let pair = parts.next()?;
    // These names promise the whole host, or came from us.
    if pair.trim_start().starts_with("__Host-") || pair.trim_start().starts_with("cove_token") {
        return None;
    }
    let rest: String = parts.filter(own).map(|part| format!(";{part}")).collect();
    HeaderValue::from_str(&format!("{pair}{rest}; Path={path}")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_speaks_for_its_path_and_not_for_the_origin() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("set-cookie", "a=1; Path=/; Domain=example.com; HttpOnly"),
            ("set-cookie", "b=2"),
            ("set-cookie", "cove_token=x; Path=/api"),
            ("set-cookie", "__Host-c=3; Secure; Path=/"),
            ("clear-site-data", "\"*\""),
            ("strict-transport-security", "max-age=1"),
            ("service-worker-allowed", "/"),
            ("content-security-policy", "default-src 'self'"),
            ("content-type", "text/html"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        below("/preview/x/80", &mut headers);
        let cookies: Vec<&str> = headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(cookies, ["a=1; HttpOnly; Path=/preview/x/80", "b=2; Path=/preview/x/80"]);
        let policies: Vec<_> = headers.get_all("content-security-policy").iter().collect();
        assert_eq!(policies, ["default-src 'self'", NOBODYS_ORIGIN]);
        assert_eq!(headers.len(), 5, "{headers:?}");
    }
}
