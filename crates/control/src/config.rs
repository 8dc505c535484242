//! What an operator can set. Every value has a default that works.

use std::path::PathBuf;

use crate::key::Quota;
use crate::usage::Prices;

#[derive(Debug, Clone)]
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
        }
    }
}
