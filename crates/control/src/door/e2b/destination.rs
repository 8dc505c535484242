//! Where a request is meant to go, from its host name, headers and path alone: pure, so that it can be tested whole.
//!
//! ```text
//!   Host: 3000-k3f….{domain}                      port 3000 of sandbox k3f…
//!   E2b-Sandbox-Id: k3f…  E2b-Sandbox-Port: 49983  the daemon of k3f…, under /e2b or at the root
//!   Host: api.{domain}                            the API at the root
//!   /sandboxes… with X-API-Key                    the API, for clients that cannot live with a prefix
//!   /volumecontent/…                              the API: the token of a volume is no key
//!   /files?signature=…                            the sandbox whose token made the signature
//! ```
//!
//! What is below `/e2b` without such a name is found by path, like every other door (`door/mod.rs`).

use cove_protocol::SandboxId;
use http::{HeaderMap, Method, Uri, header};

use super::query::Query;
use crate::tls::certified_domain;

pub const PREFIX: &str = "/e2b";

/// First words of the API's paths. At the root they count only together with the dialect's key header.
const API: [&str; 11] = [
    "sandboxes",
    "v2",
    "v3",
    "templates",
    "snapshots",
    "default-templates",
    "volumes",
    "secrets",
    "teams",
    "events",
    "nodes",
];

/// The first word of paths that no other door has; the client sends them without the key header.
const CONTENT: &str = "volumecontent";

/// The ports of the daemon and the interpreter, which have none of the API's paths.
const DAEMONS: [&str; 2] = ["49983", "49999"];

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    Sandbox {
        id: String,
        port: u16,
        reached: Reached,
    },
    Api,
    /// A signed file URL that names no sandbox.
    SignedFile,
    /// A browser asks what it may send; it cannot tell yet for which sandbox.
    Preflight,
    /// A name below the domain that is neither the API's nor a sandbox's.
    NoSuchHost,
    /// Not of this dialect.
    Elsewhere,
    Malformed(&'static str),
}

/// How the sandbox was named: by host name the path is the sandbox's own, by header it may carry our prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reached {
    ByHost,
    ByHeader,
}

/// The names under which this server is known.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub domain: &'a str,
    /// Where clients are told to find it, if that is said.
    pub public_url: Option<&'a str>,
}

pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap, names: Names<'_>) -> Destination {
    let domain = names.domain;
    let host = host(uri, headers);
    let host = host.as_str();
    match named_by_host(host) {
        Named::Sandbox(id, port) => return Destination::Sandbox { id, port, reached: Reached::ByHost },
        Named::Malformed => return Destination::Malformed("the host name must be {port}-{sandbox id}.{domain}"),
        Named::Nothing if is_nobodys(host, names) => return Destination::NoSuchHost,
        Named::Nothing => {}
    }
    let (path, prefixed) = match strip(uri.path()) {
        Some(path) => (path, true),
        None => (uri.path(), false),
    };
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    let of_api = API.contains(&first) && headers.contains_key("x-api-key");
    match (text(headers, "e2b-sandbox-id"), text(headers, "e2b-sandbox-port")) {
        // Clients from 2.7 to about 2.20 name the sandbox they connect to in their call of the API as well.
        (Some(_), Some(port)) if of_api && DAEMONS.contains(&port) => {
            return if prefixed { Destination::Elsewhere } else { Destination::Api };
        }
        (Some(id), Some(port)) => {
            return match port.parse::<u16>() {
                Err(_) | Ok(0) => Destination::Malformed("invalid header E2b-Sandbox-Port: not a port"),
                // An id that can be nobody's is as good as one that is nobody's.
                Ok(port) => Destination::Sandbox { id: sandbox_id(id).to_owned(), port, reached: Reached::ByHeader },
            };
        }
        (Some(_), None) => return Destination::Malformed("missing header E2b-Sandbox-Port"),
        (None, Some(_)) => return Destination::Malformed("missing header E2b-Sandbox-Id"),
        (None, None) => {}
    }
    let of_daemon = path == "/files" || path.starts_with("/process.Process/") || path.starts_with("/filesystem.");
    if of_daemon && method == Method::OPTIONS {
        return Destination::Preflight;
    }
    if path == "/files" && Query::of(uri).get("signature").is_some() {
        return Destination::SignedFile;
    }
    if prefixed {
        return Destination::Elsewhere;
    }
    if api_domain(host, domain).is_some() {
        return Destination::Api;
    }
    if of_api || first == CONTENT {
        return Destination::Api;
    }
    Destination::Elsewhere
}

/// An id without what clients put behind it: until their version 1.1 they named a sandbox `{id}-{machine}`. Another word, such
/// as a name, stays as it is.
pub fn sandbox_id(word: &str) -> &str {
    match word.split_once('-') {
        Some((id, _)) if id.parse::<SandboxId>().is_ok() => id,
        _ => word,
    }
}

/// The domain of a host name that is the API's own: `api.` before the configured domain, or before any name of
/// loopback, which leads to this machine alone.
pub fn api_domain<'a>(host: &'a str, domain: &str) -> Option<&'a str> {
    let rest = host.strip_prefix("api.")?;
    let local = rest == "localhost" || rest.ends_with(".localhost");
    (local || rest.eq_ignore_ascii_case(without_port(domain))).then_some(rest)
}

/// Below the domain there are the API, the sandboxes, and what the operator calls this server; a page at any other name would
/// be a second origin for the same server.
fn is_nobodys(host: &str, names: Names<'_>) -> bool {
    let domain = &without_port(names.domain).to_ascii_lowercase();
    let below = host.strip_suffix(domain.as_str()).is_some_and(|rest| rest.ends_with('.'));
    let public = names.public_url.and_then(|url| url.parse::<Uri>().ok());
    let is_public = public.as_ref().and_then(Uri::host).is_some_and(|public| public.eq_ignore_ascii_case(host));
    below && !is_public && host != certified_domain(domain) && api_domain(host, domain).is_none()
}

/// The path below the dialect's prefix.
pub fn strip(path: &str) -> Option<&str> {
    let rest = path.strip_prefix(PREFIX)?;
    match rest {
        "" => Some("/"),
        rest if rest.starts_with('/') => Some(rest),
        _ => None,
    }
}

/// The host without its port; HTTP/2 has it in the address, HTTP/1 in a header. Names are compared without case, and one
/// with a dot at its end is the same name (RFC 9110, 4.2.3; RFC 1034, 3.1): another spelling must not lead elsewhere.
fn host(uri: &Uri, headers: &HeaderMap) -> String {
    let sent = uri.host().or_else(|| headers.get(header::HOST)?.to_str().ok());
    let name = sent.map(without_port).unwrap_or_default();
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

enum Named {
    Sandbox(String, u16),
    Malformed,
    Nothing,
}

/// `{port}-{id}.{anything}`: the id tells that it is meant for us, so any domain that leads here will do.
fn named_by_host(host: &str) -> Named {
    let Some((label, _)) = host.split_once('.') else { return Named::Nothing };
    let Some((port, id)) = label.split_once('-') else { return Named::Nothing };
    let id = sandbox_id(id);
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) || id.parse::<SandboxId>().is_err() {
        return Named::Nothing;
    }
    match port.parse::<u16>() {
        Ok(port) if port > 0 => Named::Sandbox(id.to_owned(), port),
        _ => Named::Malformed,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap_or_default().trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "abcdefghij0123456789";

    fn ask(uri: &str, headers: &[(&str, &str)]) -> Destination {
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect();
        let names = Names { domain: "sbx.example.com:8443", public_url: Some("https://cove.sbx.example.com") };
        of(&Method::GET, &uri.parse().unwrap(), &headers, names)
    }

    #[test]
    fn below_the_domain_no_other_name_leads_here() {
        for host in [
            "www.sbx.example.com",
            "WWW.SBX.Example.Com",
            "www.sbx.example.com.",
            "www.sbx.example.com.:8443",
            "3000-short.sbx.example.com:8443",
            "a.api.sbx.example.com",
        ] {
            assert_eq!(ask("/api/sandboxes", &[("host", host)]), Destination::NoSuchHost, "{host}");
        }
        for host in ["sbx.example.com:8443", "cove.sbx.example.com", "localhost:7070", "10.0.0.7", "example.com"] {
            assert_eq!(ask("/api/sandboxes", &[("host", host)]), Destination::Elsewhere, "{host}");
        }
    }

    fn sandbox(port: u16, reached: Reached) -> Destination {
        Destination::Sandbox { id: ID.into(), port, reached }
    }

    #[test]
    fn a_host_name_names_port_and_sandbox() {
        for host in [
            format!("3000-{ID}.localhost:7070"),
            format!("3000-{ID}.sbx.example.com"),
            format!("3000-{}.SBX.Example.com", ID.to_uppercase()),
            format!("3000-{ID}.sbx.example.com.:8443"),
        ] {
            assert_eq!(ask("/x", &[("host", &host)]), sandbox(3000, Reached::ByHost), "{host}");
        }
        assert_eq!(ask(&format!("https://3000-{ID}.sbx.example.com/x"), &[]), sandbox(3000, Reached::ByHost));
        assert!(matches!(ask("/", &[("host", &format!("99999-{ID}.localhost"))]), Destination::Malformed(_)));
    }

    #[test]
    fn an_id_may_have_the_name_of_a_machine_behind_it() {
        let host = format!("3000-{ID}-cove.localhost:7070");
        assert_eq!(ask("/x", &[("host", &host)]), sandbox(3000, Reached::ByHost));
        let id = format!("{ID}-cove");
        let headers = [("host", "127.0.0.1"), ("e2b-sandbox-id", id.as_str()), ("e2b-sandbox-port", "49983")];
        assert_eq!(ask("/health", &headers), sandbox(49983, Reached::ByHeader));
        for name in ["my-box", "box", "short-cove", ID] {
            assert_eq!(sandbox_id(name), name);
        }
    }

    #[test]
    fn a_call_of_the_api_may_name_the_sandbox_in_its_headers_too() {
        let headers = |host: &'static str, port: &'static str| {
            [("host", host), ("x-api-key", "e2b_1"), ("e2b-sandbox-id", ID), ("e2b-sandbox-port", port)]
        };
        let connect = format!("/sandboxes/{ID}/connect");
        assert_eq!(ask(&connect, &headers("127.0.0.1:7070", "49983")), Destination::Api);
        assert_eq!(ask(&connect, &headers("api.sbx.example.com:8443", "49983")), Destination::Api);
        assert_eq!(ask(&format!("/e2b{connect}"), &headers("127.0.0.1:7070", "49983")), Destination::Elsewhere);
        // A program inside has its own paths, and the daemon has others.
        assert_eq!(ask(&connect, &headers("127.0.0.1:7070", "3000")), sandbox(3000, Reached::ByHeader));
        assert_eq!(ask("/files?path=a", &headers("127.0.0.1:7070", "49983")), sandbox(49983, Reached::ByHeader));
    }

    #[test]
    fn the_host_name_wins_over_headers() {
        let host = format!("3000-{ID}.localhost");
        let headers = [("host", host.as_str()), ("e2b-sandbox-id", "x"), ("e2b-sandbox-port", "49983")];
        assert_eq!(ask("/", &headers), sandbox(3000, Reached::ByHost));
    }

    #[test]
    fn headers_name_a_sandbox_under_any_path_and_only_together() {
        let both = [("host", "127.0.0.1:7070"), ("e2b-sandbox-id", ID), ("e2b-sandbox-port", "49983")];
        assert_eq!(ask("/health", &both), sandbox(49983, Reached::ByHeader));
        assert_eq!(ask("/e2b/process.Process/Start", &both), sandbox(49983, Reached::ByHeader));
        assert!(matches!(ask("/health", &both[..2]), Destination::Malformed("missing header E2b-Sandbox-Port")));
        assert!(matches!(ask("/health", &both[2..]), Destination::Malformed("missing header E2b-Sandbox-Id")));
        let zero = [("e2b-sandbox-id", ID), ("e2b-sandbox-port", "0")];
        assert!(matches!(ask("/health", &zero), Destination::Malformed(_)));
    }

    #[test]
    fn the_api_is_at_its_host_and_at_the_root_with_its_key() {
        assert_eq!(ask("/e2b/v2/sandboxes", &[]), Destination::Elsewhere, "by path");
        assert_eq!(ask("/v2/sandboxes", &[("host", "api.sbx.example.com:8443")]), Destination::Api);
        assert_eq!(ask("/v2/sandboxes", &[("host", "api.localhost:7070")]), Destination::Api);
        assert_eq!(ask("/v2/sandboxes", &[("host", "API.SBX.example.com.")]), Destination::Api);
        assert_eq!(ask("/v2/sandboxes", &[("host", "api.cove.localhost:7070")]), Destination::Api);
        assert_eq!(ask("/v2/sandboxes", &[("x-api-key", "e2b_1")]), Destination::Api);
        assert_eq!(ask("/v2/sandboxes", &[]), Destination::Elsewhere);
        assert_eq!(ask("/api/sandboxes", &[("x-api-key", "e2b_1")]), Destination::Elsewhere);
        assert_eq!(ask("/e2bx", &[]), Destination::Elsewhere);
        assert_eq!(ask("/volumecontent/v/dir?path=a", &[("authorization", "Bearer t")]), Destination::Api);
        assert_eq!(ask("/e2b/volumecontent/v/dir?path=a", &[]), Destination::Elsewhere, "by path");
        assert_eq!(ask("/", &[("host", "api.evil.example")]), Destination::Elsewhere);
    }

    #[test]
    fn a_signed_link_needs_no_headers() {
        assert_eq!(ask("/files?path=a&signature=v1_x", &[]), Destination::SignedFile);
        assert_eq!(ask("/e2b/files?path=a&signature=v1_x", &[]), Destination::SignedFile);
        assert_eq!(ask("/files?path=a", &[]), Destination::Elsewhere);
    }
}
