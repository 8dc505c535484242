//! Values that are valid each, but do not go together.

use super::{Config, Problem};
use crate::sandbox::timers::LONGEST_SECONDS;

impl Config {
    /// All contradictions, by key. Empty where the server can start.
    pub fn contradictions(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut say = |key: &str, message: String| problems.push(Problem::of(key, message));
        let address = |text: &str| text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && is_port(port));
        if !address(&self.listen) {
            say("listen", format!("{:?} is not an address with a port, such as 127.0.0.1:7070", self.listen));
        }
        if let Some(listen) = self.tls.listen.as_deref().filter(|text| !address(text)) {
            say("tls.listen", format!("{listen:?} is not an address with a port, such as 127.0.0.1:7443"));
        }
        let needs = |key: &str, other: &str| (key.to_owned(), format!("needs {other} as well"));
        let tls = &self.tls;
        let halves = [
            (tls.certificate.is_some() && tls.key.is_none(), needs("tls.certificate", "tls.key")),
            (tls.key.is_some() && tls.certificate.is_none(), needs("tls.key", "tls.certificate")),
            (tls.certificate.is_some() && tls.listen.is_none(), needs("tls.certificate", "tls.listen")),
            (self.archive.endpoint.is_some() && self.archive.url.is_none(), needs("archive.endpoint", "archive.url")),
            (self.archive.region.is_some() && self.archive.url.is_none(), needs("archive.region", "archive.url")),
        ];
        for (_, (key, message)) in halves.into_iter().filter(|(half, _)| *half) {
            say(&key, message);
        }
        if let Some(url) = &self.database_url
            && !["sqlite:", "postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
        {
            say("database_url", "begins with sqlite:, postgres:// or postgresql://".into());
        }
        if let Some(url) = self.archive.url.as_deref().filter(|url| !url.starts_with("s3://")) {
            say("archive.url", format!("{url:?} does not begin with s3://"));
        }
        let links = [
            ("public_url", &self.public_url),
            ("peer_url", &self.peer_url),
            ("archive.endpoint", &self.archive.endpoint),
            ("telemetry.endpoint", &self.telemetry.endpoint),
        ];
        for (key, url) in links {
            if let Some(url) = url.as_deref().filter(|url| !is_web(url)) {
                say(key, format!("{url:?} is not an http or https URL"));
            }
        }
        if let Some(key) = &self.api_key
            && !(16..=256).contains(&key.trim().len())
        {
            say("api_key", "16 to 256 characters; `e2b_` and 40 hexadecimal digits suit every SDK".into());
        }
        if self.domain.is_empty() || self.domain.contains(['/', ' ']) {
            say("domain", format!("{:?} is not a host name", self.domain));
        }
        if self.capacity.launches == 0 {
            say("capacity.launches", "at least 1".into());
        }
        if self.timers.idle_seconds > LONGEST_SECONDS {
            say("timers.idle_seconds", format!("at most {LONGEST_SECONDS}, which is 60 years"));
        }
        if self.metrics.store_every_seconds == 0 {
            say("metrics.store_every_seconds", "at least 1".into());
        }
        problems
    }
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn is_web(text: &str) -> bool {
    reqwest::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}
