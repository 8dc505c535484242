//! What an operator can set. Every value has a default that works.
//!
//! A file gives way to the environment, the environment to flags. A file with a wrong key is refused as a whole, with
//! every wrong key named by its line: half configured is worse than not started.

mod check;

use std::path::{Path, PathBuf};

pub use check::{Problem, check};
use serde::Deserialize;

use crate::key::Quota;
use crate::usage::Prices;

#[derive(Debug, Clone, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub listen: String,
    pub data: PathBuf,
    /// `sqlite://…` or `postgres://…`; a file in the data directory where absent.
    pub database_url: Option<String>,
    /// Where sandboxes run that name no provider.
    pub provider: String,
    /// The first key; made and kept in the data directory where absent.
    pub api_key: Option<String>,
    /// How clients reach this server; made from each request's own Host where absent.
    pub public_url: Option<String>,
    /// Previews are at `{port}-{id}.{domain}`.
    pub domain: String,
    /// Maxima of an organisation that has none of its own.
    pub quota: Quota,
    pub prices: Prices,
    pub archive: Archive,
}

/// Where archives and artifacts go.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Archive {
    /// `s3://bucket/prefix`; the folder `archive` of the data directory where absent. Credentials come from the usual
    /// `AWS_…` variables.
    pub url: Option<String>,
    /// Of an S3-compatible store that is not Amazon's.
    pub endpoint: Option<String>,
    pub region: Option<String>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: "127.0.0.1:7070".into(),
            data: PathBuf::from("/var/lib/cove"),
            database_url: None,
            provider: "local".into(),
            api_key: None,
            public_url: None,
            domain: "localhost".into(),
            quota: Quota::default(),
            prices: Prices::default(),
            archive: Archive::default(),
        }
    }
}

impl Config {
    /// The file, if any, with the environment on top. Flags are the caller's.
    pub fn load(file: Option<&Path>, environment: &dyn Fn(&str) -> Option<String>) -> Result<Config, Vec<Problem>> {
        let mut config = match file {
            None => Config::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| vec![Problem::whole(format!("read {}: {error}", path.display()))])?;
                Config::parse(&text)?
            }
        };
        config.take_environment(environment);
        Ok(config)
    }

    /// A file's text; every problem that it has.
    pub fn parse(text: &str) -> Result<Config, Vec<Problem>> {
        let problems = check(text);
        if !problems.is_empty() {
            return Err(problems);
        }
        toml::from_str(text).map_err(|error| vec![Problem::at(text, error.span(), "", error.message())])
    }

    fn take_environment(&mut self, environment: &dyn Fn(&str) -> Option<String>) {
        let set = |name: &str| environment(name).filter(|value| !value.is_empty());
        let optional: [(&str, &mut Option<String>); 4] = [
            ("DATABASE_URL", &mut self.database_url),
            ("COVE_API_KEY", &mut self.api_key),
            ("COVE_PUBLIC_URL", &mut self.public_url),
            ("COVE_ARCHIVE_URL", &mut self.archive.url),
        ];
        for (name, value) in optional {
            if let Some(found) = set(name) {
                *value = Some(found);
            }
        }
        let required: [(&str, &mut String); 3] = [
            ("COVE_LISTEN", &mut self.listen),
            ("SANDBOX_PROVIDER", &mut self.provider),
            ("COVE_DOMAIN", &mut self.domain),
        ];
        for (name, value) in required {
            if let Some(found) = set(name) {
                *value = found;
            }
        }
        if let Some(data) = set("COVE_DATA") {
            self.data = data.into();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_wins_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cove.toml");
        std::fs::write(&file, "listen = \"0.0.0.0:80\"\ndomain = \"example.com\"\n[quota]\nsandboxes = 7\n").unwrap();
        let environment = |name: &str| (name == "COVE_LISTEN").then(|| "127.0.0.1:1".to_owned());
        let config = Config::load(Some(&file), &environment).unwrap();
        assert_eq!((config.listen.as_str(), config.domain.as_str()), ("127.0.0.1:1", "example.com"));
        assert_eq!(config.quota.sandboxes, 7);
        assert_eq!(config.quota.cpus_per_sandbox, 4.0);
    }

    #[test]
    fn every_wrong_key_is_named_with_its_line() {
        let text = "listen = 80\ndomian = \"x\"\n\n[quota]\nsandboxes = \"many\"\n[nonsense]\n";
        let problems: Vec<String> = Config::parse(text).unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(
            problems,
            [
                "line 1: listen: a text is wanted, not an integer",
                "line 2: domian: no such key; is domain meant?",
                "line 5: quota.sandboxes: an integer is wanted, not a string",
                "line 6: nonsense: no such key",
            ]
        );
    }
}
