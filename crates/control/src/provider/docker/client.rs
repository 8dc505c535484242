//! The connection to the daemon, and its errors in the control plane's words.
//!
//! Requests name no version of the interface, so a daemon answers with its own newest: every version from 1.41 (Docker 20.10)
//! on, and podman's compatible socket. Each request is a connection of its own; nothing is connected before the first.

use std::fmt;

use bollard::errors::Error;
use bollard::{API_DEFAULT_VERSION, Docker};
use tokio::sync::OnceCell;

use super::facts::Facts;
use crate::provider::{Isolation, ProviderError};

/// Seconds until a daemon must have begun to answer. A commit of many files says nothing for long.
const PATIENCE: u64 = 900;

/// Where a daemon is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// A path on this machine; whether the daemon runs on it is another question, see [`Facts`].
    Socket(String),
    /// `host:port`, in the clear.
    Network(String),
}

impl Host {
    /// As in `DOCKER_HOST`. The error says what is wanted.
    pub fn parse(text: &str) -> Result<Host, String> {
        let wrong = || {
            format!(
                "{text:?} is not unix:///PATH or tcp://HOST:PORT; a daemon with TLS or SSH is reached through a tunnel"
            )
        };
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Host::Socket(path.to_owned())) } else { Err(wrong()) };
        }
        let place = text.strip_prefix("tcp://").or_else(|| text.strip_prefix("http://")).ok_or_else(wrong)?;
        let place = place.trim_end_matches('/');
        match place.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !place.contains(['/', '@']) && port.parse::<u16>().is_ok() => {
                Ok(Host::Network(place.to_owned()))
            }
            _ => Err(wrong()),
        }
    }

    fn connect(&self) -> Result<Docker, Error> {
        match self {
            Host::Socket(path) => Docker::connect_with_unix(path, PATIENCE, API_DEFAULT_VERSION),
            Host::Network(place) => Docker::connect_with_http(&format!("tcp://{place}"), PATIENCE, API_DEFAULT_VERSION),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Socket(path) => write!(f, "unix://{path}"),
            Host::Network(place) => write!(f, "tcp://{place}"),
        }
    }
}

pub struct Client {
    host: Host,
    isolation: Isolation,
    docker: OnceCell<Docker>,
    facts: OnceCell<Facts>,
}

impl Client {
    pub fn new(host: Host, isolation: Isolation) -> Client {
        Client { host, isolation, docker: OnceCell::new(), facts: OnceCell::new() }
    }

    pub fn host(&self) -> &Host {
        &self.host
    }

    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// What requests are made with. Fails where the socket is not there.
    pub async fn docker(&self) -> Result<&Docker, ProviderError> {
        self.docker.get_or_try_init(|| async { self.host.connect() }).await.map_err(|error| self.silent(&error))
    }

    /// What the daemon can do; asked once.
    pub async fn facts(&self) -> Result<&Facts, ProviderError> {
        let docker = self.docker().await?;
        let ask = || async {
            let (info, version) = tokio::try_join!(docker.info(), docker.version())?;
            Ok::<_, Error>(Facts::of(&info, &version, &self.host, self.isolation))
        };
        self.facts.get_or_try_init(ask).await.map_err(|error| self.silent(&error))
    }

    /// The same, where it was asked already.
    pub fn known_facts(&self) -> Option<&Facts> {
        self.facts.get()
    }

    /// Asks on a thread of its own, for callers that are not asynchronous: before a server serves.
    pub fn ask_now(&self, within: std::time::Duration) -> Result<(), String> {
        let ask = || -> Result<Facts, String> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(|error| format!("start a thread: {error}"))?;
            // A client of its own: connections belong to the runtime that made them.
            let other = Client::new(self.host.clone(), self.isolation);
            runtime.block_on(async {
                match tokio::time::timeout(within, other.facts()).await {
                    Ok(told) => told.cloned().map_err(|error| error.to_string()),
                    Err(_) => Err(format!("docker at {} says nothing", self.host)),
                }
            })
        };
        let facts = std::thread::scope(|scope| scope.spawn(ask).join());
        let facts = facts.map_err(|_| "the thread that asks docker ended".to_owned())??;
        // Somebody else may have been quicker.
        let _known = self.facts.set(facts);
        Ok(())
    }

    fn silent(&self, error: &Error) -> ProviderError {
        ProviderError::Failed(format!("docker at {} does not answer: {error}", self.host))
    }
}

/// The status of an answer that says no.
pub fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// `None` for what is not there.
pub fn unless_absent<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(error) if status(&error) == Some(404) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Already so: nothing to do. A daemon says 304 or 409 then, which differs by version; whoever asks has looked before.
pub fn unless_so(answer: Result<(), Error>) -> Result<(), Error> {
    match answer {
        Err(error) if matches!(status(&error), Some(304 | 404 | 409)) => Ok(()),
        answer => answer,
    }
}

/// What was being done when it failed.
pub fn during(step: impl fmt::Display) -> impl FnOnce(Error) -> ProviderError {
    move |error| {
        let text = format!("{step}: {}", said(&error));
        match status(&error) {
            _ if text.contains("no space left on device") => ProviderError::Full(text),
            // Its own words about what was asked of it.
            Some(400 | 403 | 404 | 409) => ProviderError::Refused(text),
            _ => ProviderError::Failed(text),
        }
    }
}

/// A daemon's own message without the number before it.
fn said(error: &Error) -> String {
    match error {
        Error::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Error::DockerStreamError { error } => error.trim().to_owned(),
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_written_as_docker_writes_it() {
        let shown = |text: &str| Host::parse(text).map(|host| host.to_string());
        assert_eq!(shown("unix:///run/podman/podman.sock").unwrap(), "unix:///run/podman/podman.sock");
        assert_eq!(shown("tcp://10.0.0.7:2375/").unwrap(), "tcp://10.0.0.7:2375");
        assert_eq!(shown("http://[::1]:2375").unwrap(), "tcp://[::1]:2375");
        for wrong in
            ["", "unix://docker.sock", "tcp://docker", "tcp://:1", "ssh://me@there", "https://there:2376", "/run/x"]
        {
            let why = shown(wrong).unwrap_err();
            assert!(why.contains("is not unix:///PATH or tcp://HOST:PORT"), "{wrong}: {why}");
        }
    }

    #[test]
    fn what_a_daemon_says_is_told_with_the_step() {
        let answer =
            |status_code, message: &str| Error::DockerResponseServerError { status_code, message: message.into() };
        let told = during("start sandbox x")(answer(409, "it is being removed\n"));
        assert!(
            matches!(&told, ProviderError::Refused(text) if text == "start sandbox x: it is being removed"),
            "{told:?}"
        );
        let told = during("commit")(answer(500, "write /var/lib/docker/x: no space left on device"));
        assert!(matches!(told, ProviderError::Full(_)));
        assert!(matches!(during("commit")(answer(500, "x")), ProviderError::Failed(_)));
        assert!(unless_absent::<()>(Err(answer(404, "no such container"))).unwrap().is_none());
        assert!(unless_so(Err(answer(409, "is not running"))).is_ok());
        assert!(unless_so(Err(answer(500, "x"))).is_err());
    }
}
