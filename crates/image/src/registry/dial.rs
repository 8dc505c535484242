//! Which addresses are dialled, and how.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::{Error, Registry};

/// How long a host that may speak either has to answer in TLS.
const HANDSHAKE: Duration = Duration::from_secs(5);
const CONNECT: Duration = Duration::from_secs(15);

/// Decides which addresses may be dialled. It is asked for every connection: registries, redirects, token realms.
pub trait Judge: Send + Sync {
    /// `host` is what the URL said; the error is a sentence for whoever asked for the image.
    fn judge(&self, host: &str, address: SocketAddr) -> Result<(), String>;
}

impl<F: Fn(&str, SocketAddr) -> Result<(), String> + Send + Sync> Judge for F {
    fn judge(&self, host: &str, address: SocketAddr) -> Result<(), String> {
        self(host, address)
    }
}

/// A refusal on its way through the HTTP client.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

/// Resolves names and passes on what the judge allows: nothing is looked up a second time in between.
struct Judged {
    judge: Arc<dyn Judge>,
    port: u16,
}

impl Resolve for Judged {
    fn resolve(&self, name: Name) -> Resolving {
        let (judge, port) = (Arc::clone(&self.judge), self.port);
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), port)).await?.collect();
            let mut refusal = None;
            let mut allowed = Vec::new();
            for address in found {
                match judge.judge(name.as_str(), address) {
                    Ok(()) => allowed.push(address),
                    Err(why) => refusal = Some(why),
                }
            }
            match refusal {
                Some(why) if allowed.is_empty() => Err(Refusal(why).into()),
                _ => Ok(Box::new(allowed.into_iter()) as Addrs),
            }
        })
    }
}

/// How long a client waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Patience {
    /// As long as peers may say nothing.
    Silence,
    /// As long as its caller does: reqwest counts the time that a body takes to be sent as silence.
    Callers,
}

impl Registry {
    /// A client for the URL's host, after the judge saw an address in it. The resolver sees names only.
    pub(super) fn client(&self, url: &Url) -> Result<reqwest::Client, Error> {
        self.client_with(url, Patience::Silence)
    }

    /// The same for a body that takes its time.
    pub(super) fn sender(&self, url: &Url) -> Result<reqwest::Client, Error> {
        self.client_with(url, Patience::Callers)
    }

    fn client_with(&self, url: &Url, patience: Patience) -> Result<reqwest::Client, Error> {
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or(0);
        let options = &self.shared.options;
        if url.scheme() != "https" && !(url.scheme() == "http" && self.may_be_plain(url)) {
            return Err(Error::Insecure { url: shown(url), host });
        }
        if let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() {
            let judged = options.judge.judge(&host, SocketAddr::new(address, port));
            judged.map_err(|why| Error::Forbidden { host: host.clone(), why })?;
        }
        let mut clients = self.shared.clients.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(client) = clients.get(&(host.clone(), port, patience)) {
            return Ok(client.clone());
        }
        let mut builder = (options.builder)()
            .redirect(reqwest::redirect::Policy::none())
            // A proxy of the environment would resolve names itself.
            .no_proxy()
            .connect_timeout(CONNECT)
            .dns_resolver(Arc::new(Judged { judge: Arc::clone(&options.judge), port }));
        if patience == Patience::Silence {
            builder = builder.read_timeout(options.silence);
        }
        let client = builder.build().map_err(|error| failed(&host, &error))?;
        clients.insert((host, port, patience), client.clone());
        Ok(client)
    }

    /// Loopback, or configured.
    fn may_be_plain(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let bare = host.trim_matches(['[', ']']);
        let with_port = format!("{host}:{}", url.port_or_known_default().unwrap_or(0));
        bare == "localhost"
            || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            || self.shared.options.insecure.iter().any(|allowed| allowed == host || *allowed == with_port)
    }

    /// `https://host/v2/`, or `http` where the host may be talked to so and does not speak TLS.
    pub(super) async fn base(&self, host: &str) -> Result<Url, Error> {
        let wrong = |_| Error::Unreachable { what: host.to_owned(), why: "it is no host name".into() };
        let secure = Url::parse(&format!("https://{host}/v2/")).map_err(wrong)?;
        let plain = Url::parse(&format!("http://{host}/v2/")).map_err(wrong)?;
        if !self.may_be_plain(&plain) && !self.may_be_plain(&secure) {
            return Ok(secure);
        }
        let mut schemes = self.shared.schemes.lock().await;
        if let Some(scheme) = schemes.get(host) {
            return Ok(if *scheme == "https" { secure } else { plain });
        }
        let asked = self.client(&secure)?.get(secure.clone()).timeout(HANDSHAKE).send().await;
        let scheme = match asked {
            Ok(_) => "https",
            Err(error) => {
                if let Error::Forbidden { host, why } = failed(host, &error) {
                    return Err(Error::Forbidden { host, why });
                }
                "http"
            }
        };
        schemes.insert(host.to_owned(), scheme);
        Ok(if scheme == "https" { secure } else { plain })
    }
}

/// Without its query, which may be a signature, and without a password.
pub(super) fn shown(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    // Fails for URLs that cannot have one.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.to_string()
}

/// What went wrong on the way, without the URL.
pub(super) fn failed(what: &str, error: &reqwest::Error) -> Error {
    let mut reason = String::new();
    let mut source: Option<&(dyn std::error::Error + 'static)> = std::error::Error::source(error);
    while let Some(inner) = source {
        if let Some(Refusal(why)) = inner.downcast_ref::<Refusal>() {
            return Error::Forbidden { host: what.to_owned(), why: why.clone() };
        }
        reason = inner.to_string();
        source = inner.source();
    }
    if error.is_timeout() {
        reason = "it does not answer in time".to_owned();
    } else if reason.is_empty() {
        reason = "the connection failed".to_owned();
    }
    Error::Unreachable { what: what.to_owned(), why: reason }
}
