//! Values that are valid each, but do not go together.

use super::{Config, Problem};
use crate::provider::Kind;
use crate::provider::kind::Count;
use crate::provider::route::Route;
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
        if self.database_url.as_deref().is_some_and(|url| url.ends_with("://")) {
            say("database_url", "names no database; write postgres://USER:PASSWORD@HOST/DATABASE".into());
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
        if self.data.as_os_str().is_empty() {
            say("data", "names no directory".into());
        }
        if self.domain.is_empty() || self.domain.contains(['/', ' ']) {
            say("domain", format!("{:?} is not a host name", self.domain));
        }
        self.provider_contradictions(&mut say);
        if self.capacity.launches == 0 {
            say("capacity.launches", "at least 1".into());
        }
        if self.builds.at_once == 0 || self.builds.per_organisation == 0 {
            say("builds.at_once", "it and builds.per_organisation are at least 1".into());
        }
        if self.builds.unpack_seconds == 0 {
            say("builds.unpack_seconds", "at least 1".into());
        }
        if let Err((key, message)) = crate::image::registries::names(&self.images) {
            say(key, message);
        }
        for (key, seconds) in [
            ("timers.idle_seconds", self.timers.idle_seconds),
            ("timers.lifetime_seconds", self.timers.lifetime_seconds),
            ("e2b.timeout_seconds", self.e2b.timeout_seconds),
        ] {
            if seconds > LONGEST_SECONDS {
                say(key, format!("at most {LONGEST_SECONDS}, which is 60 years"));
            }
        }
        if self.metrics.store_every_seconds == 0 {
            say("metrics.store_every_seconds", "at least 1".into());
        }
        problems
    }

    fn provider_contradictions(&self, say: &mut impl FnMut(&str, String)) {
        for (name, section) in &self.providers {
            if let Some(message) = provider_name(name) {
                say(&format!("providers.{name}"), message);
            }
            if Kind::named(&section.kind).is_none() {
                let message = format!("{:?} is not one of {}", section.kind, Kind::names());
                say(&format!("providers.{name}.kind"), message);
            }
        }
        self.route_contradictions(say);
        let sections = self.sections();
        if !sections.contains_key(&self.provider) {
            let name = &self.provider;
            let known: Vec<&str> = sections.keys().map(String::as_str).collect();
            let known = if known.is_empty() { Kind::names() } else { known.join(", ") };
            say("provider", format!("there is no [providers.{name}]; write one with its kind, or name one of {known}"));
        }
        for (name, section) in &sections {
            let first = sections.iter().find(|(_, other)| other.kind == section.kind).map(|(first, _)| first);
            let only_one = Kind::named(&section.kind).is_some_and(|kind| kind.count == Count::One);
            let Some(first) = first.filter(|first| only_one && *first != name) else { continue };
            let remedy = if self.providers.contains_key(first) && self.providers.contains_key(name) {
                "remove one of them".to_owned()
            } else {
                let written = if self.providers.contains_key(first) { first } else { name };
                format!("write provider = {written:?}, or name that section {:?}", self.provider)
            };
            let message = format!("{first} is of kind {} too, and a server has one of them; {remedy}", section.kind);
            say(&format!("providers.{name}.kind"), message);
        }
    }
}

impl Config {
    fn route_contradictions(&self, say: &mut impl FnMut(&str, String)) {
        let sections = self.sections();
        for written in &self.routes {
            let route = match Route::read(written) {
                Ok(route) => route,
                Err(message) => {
                    say("routes", message);
                    continue;
                }
            };
            for name in route.names().filter(|name| !sections.contains_key(*name)) {
                let known: Vec<&str> = sections.keys().map(String::as_str).collect();
                say("routes", format!("there is no provider {name:?}; there are {}", known.join(", ")));
            }
        }
    }
}

/// What is wrong with the name of a provider. It is part of variables, and of rows in the database.
pub(super) fn provider_name(name: &str) -> Option<String> {
    let letters = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    let fits = letters && (1..=32).contains(&name.len());
    (!fits).then(|| "a provider's name is 1 to 32 lower-case letters, digits and '-'".to_owned())
}

fn is_port(text: &str) -> bool {
    text.parse::<u16>().is_ok()
}

fn is_web(text: &str) -> bool {
    reqwest::Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}
