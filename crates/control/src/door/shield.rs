//! What a sandbox answers must not act for anybody else: not for the API, not for another sandbox.
//!
//! By host name (`{port}-{id}.{domain}`) every sandbox has an origin of its own; its cookies are for that host alone,
//! never for the domain that it shares with others. By path it shares our origin with the API and with every other
//! sandbox. So there its pages run in an opaque origin, headers that concern the whole origin are dropped, and its
//! cookies stay below its path.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

/// A page in an opaque origin: no storage, no cookies by script, no service workers, no calls in our name.
const NOBODYS_ORIGIN: &str = "sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads";

/// Headers that affect the whole origin.
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
    keep_cookies(headers, Some(path));
    // Beside what the program says itself: of several the strictest counts.
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(NOBODYS_ORIGIN));
}

/// Makes an answer of a sandbox harmless at an address that is the API's own: it sets nothing at all.
pub fn at_the_api(headers: &mut HeaderMap) {
    for name in &ORIGIN_WIDE {
        headers.remove(name);
    }
    headers.remove(header::SET_COOKIE);
    headers.append(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(NOBODYS_ORIGIN));
}

/// Makes an answer of a sandbox harmless at its own host name.
pub fn at_host(headers: &mut HeaderMap) {
    // Cookies of the whole registered domain would go.
    headers.remove("clear-site-data");
    keep_cookies(headers, None);
}

fn keep_cookies(headers: &mut HeaderMap, path: Option<&str>) {
    let cookies: Vec<HeaderValue> = headers.get_all(header::SET_COOKIE).iter().filter_map(|c| kept(path, c)).collect();
    headers.remove(header::SET_COOKIE);
    for cookie in cookies {
        headers.append(header::SET_COOKIE, cookie);
    }
}

/// The cookie for this host alone, and below this path where there is one, whatever it asked for.
fn kept(path: Option<&str>, cookie: &HeaderValue) -> Option<HeaderValue> {
    let mut parts = cookie.as_bytes().split(|byte| *byte == b';');
    let pair = parts.next()?;
    let name = pair.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
    // One without a name is read back as whatever its value looks like.
    if name.is_empty() || !pair.contains(&b'=') {
        return None;
    }
    // These names came from us, or promise the whole host.
    let bare = [&b"__Host-"[..], b"__Secure-"].into_iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    if bare.starts_with(b"cove_") || path.is_some() && name.starts_with(b"__Host-") {
        return None;
    }
    let mut text = pair.to_vec();
    for part in parts {
        let name = part.split(|byte| *byte == b'=').next().unwrap_or_default().trim_ascii();
        let moves = path.is_some() && name.eq_ignore_ascii_case(b"path");
        if !name.eq_ignore_ascii_case(b"domain") && !moves {
            text.push(b';');
            text.extend_from_slice(part);
        }
    }
    if let Some(path) = path {
        text.extend_from_slice(format!("; Path={path}").as_bytes());
    }
    HeaderValue::from_bytes(&text).ok()
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

    #[test]
    fn at_its_own_host_a_sandbox_sets_cookies_for_that_host_alone() {
        let mut headers = HeaderMap::new();
        for value in [
            "a=1; Path=/x; Domain=example.com; HttpOnly",
            "b=2; domain\t=.example.com",
            "c=3;DOMAIN=example.com;Domain=other",
            "cove_token=x",
            "__Host-cove_token=x; Secure; Path=/",
            "=cove_token=x",
            "nameless",
            "__Host-d=4; Secure; Path=/",
        ] {
            headers.append(header::SET_COOKIE, HeaderValue::from_static(value));
        }
        at_host(&mut headers);
        let cookies: Vec<&str> = headers.get_all("set-cookie").iter().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(cookies, ["a=1; Path=/x; HttpOnly", "b=2", "c=3", "__Host-d=4; Secure; Path=/"]);
    }
}
