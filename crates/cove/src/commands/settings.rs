//! The settings of `cove serve`: file < environment < flags. `cove config` reads the same.

use std::path::{Path, PathBuf};

use clap::Args;
use cove_control::config::{Config, Flag, Layers, Loaded, Problem};

use crate::complaint::Complaint;
use crate::place::{Place, is_root};
use crate::render::say;

/// Flags that set a value of the configuration.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// The configuration file [env: COVE_CONFIG] [default: /etc/cove/cove.toml, or below your home, where it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen; port 0 takes a free one [env: COVE_LISTEN] [default: 127.0.0.1:7070]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// The directory for all data [env: COVE_DATA] [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// `postgres://…`, to share the work with other servers [env: DATABASE_URL] [default: SQLite in the data directory]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// The provider of sandboxes that name none [env: SANDBOX_PROVIDER] [default: local]
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// How clients reach this server, if not by the address it listens on [env: COVE_PUBLIC_URL]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// How other servers of the same database reach this one [env: COVE_PEER_URL] [default: the address it listens on]
    #[arg(long, value_name = "URL")]
    peer_url: Option<String>,
    /// Previews are at PORT-ID.DOMAIN [env: COVE_DOMAIN] [default: localhost]
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Listen here with TLS too; without a certificate of yours, a local authority is made on first use [env: COVE_TLS]
    #[arg(long, value_name = "ADDRESS")]
    tls: Option<String>,
    /// A certificate for DOMAIN and *.DOMAIN, with its chain, in PEM [env: COVE_TLS_CERTIFICATE]
    #[arg(long, value_name = "FILE")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM [env: COVE_TLS_KEY]
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,
    /// Log as JSON [env: COVE_LOG_JSON]
    #[arg(long)]
    log_json: bool,
}

impl Flags {
    fn given(&self) -> Vec<Flag> {
        // Made absolute now, before the working directory changes.
        let path = |path: &Option<PathBuf>| path.as_deref().map(|path| absolute(path).to_string_lossy().into_owned());
        let words = [
            ("listen", "--listen", self.listen.clone()),
            ("data", "--data", path(&self.data)),
            ("database_url", "--database-url", self.database_url.clone()),
            ("provider", "--provider", self.provider.clone()),
            ("public_url", "--public-url", self.public_url.clone()),
            ("peer_url", "--peer-url", self.peer_url.clone()),
            ("domain", "--domain", self.domain.clone()),
            ("tls.listen", "--tls", self.tls.clone()),
            ("tls.certificate", "--tls-certificate", path(&self.tls_certificate)),
            ("tls.key", "--tls-key", path(&self.tls_key)),
            ("log.json", "--log-json", self.log_json.then(|| "true".to_owned())),
        ];
        words.into_iter().filter_map(|(key, flag, word)| Some(Flag { key, flag, word: word? })).collect()
    }

    /// The flags again, as another `cove serve` takes them.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(config) = &self.config {
            words.extend(["--config".to_owned(), absolute(config).to_string_lossy().into_owned()]);
        }
        for Flag { flag, word, .. } in self.given() {
            words.push(flag.to_owned());
            // A switch has no word.
            if flag != "--log-json" {
                words.push(word);
            }
        }
        words
    }

    /// The whole configuration, or all its mistakes.
    pub fn load(&self) -> Result<Loaded, Complaint> {
        let file = self.config.clone().or_else(usual_file);
        let environment = |name: &str| std::env::var(name).ok();
        let layers = Layers { file: file.as_deref(), environment: Some(&environment), flags: self.given() };
        let mut loaded = Loaded::new(defaults(), layers).map_err(|problems| {
            complaint(file.as_deref(), &problems)
                .hint("cove config check FILE looks at a file without starting anything")
        })?;
        check_filter(&loaded.config)?;
        // A wrong key in the file is an error. The environment is everybody's, so here it is a hint.
        for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
            if let Some(meant) = cove_control::config::misspelt(&name) {
                say(&format!("hint: {name} sets nothing; is {meant} meant?"));
            }
        }
        loaded.config.data = absolute(&loaded.config.data);
        Ok(loaded)
    }
}

/// The data directory that `cove serve` would use.
pub fn data_directory(asked: Option<&Path>) -> Result<PathBuf, Complaint> {
    let flags = Flags { data: asked.map(Path::to_owned), ..Flags::default() };
    Ok(flags.load()?.config.data)
}

fn defaults() -> Config {
    Config { data: Place::usual().data(), ..Config::default() }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The default file; `None` where it does not exist.
pub fn usual_file() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("COVE_CONFIG").filter(|name| !name.is_empty()) {
        return Some(named.into());
    }
    let usual = if is_root() {
        PathBuf::from("/etc/cove/cove.toml")
    } else {
        let home = |name: &str| std::env::var_os(name).map(PathBuf::from);
        home("XDG_CONFIG_HOME").or_else(|| Some(home("HOME")?.join(".config")))?.join("cove/cove.toml")
    };
    usual.exists().then_some(usual)
}

/// The log's filter is read where the log is made, and nowhere else.
pub fn check_filter(config: &Config) -> Result<(), Complaint> {
    crate::telemetry::filter::read(&config.log.filter).map(drop)
}

/// All problems at once, so that people do not find them one by one.
pub fn complaint(file: Option<&Path>, problems: &[Problem]) -> Complaint {
    let mut lines = Vec::new();
    for problem in problems {
        match (file, problem.line) {
            (Some(file), Some(line)) => {
                let rest = Problem { line: None, ..problem.clone() };
                lines.push(format!("  {}:{line}: {rest}", file.display()));
            }
            _ => lines.push(format!("  {problem}")),
        }
    }
    let things = if problems.len() == 1 { "1 thing is" } else { &format!("{} things are", problems.len()) };
    Complaint::usage(format!("{things} wrong with the configuration\n{}", lines.join("\n")))
}
