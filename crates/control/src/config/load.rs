//! Layers: defaults < file < environment < flags. Each value remembers where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;

use super::check::look;
use super::key::{KEYS, Key, Shown, named};
use super::{Config, Problem};

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(&'static str),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment(variable) => write!(f, "${variable}"),
            Origin::Flag(flag) => f.write_str(flag),
        }
    }
}

/// A flag that was given: the key it sets, its own name, its value.
#[derive(Debug, Clone)]
pub struct Flag {
    pub key: &'static str,
    pub flag: &'static str,
    pub word: String,
}

/// Reads a variable by its name.
type Environment = dyn Fn(&str) -> Option<String>;

/// The layers over the defaults.
#[derive(Default)]
pub struct Layers<'a> {
    pub file: Option<&'a Path>,
    pub environment: Option<&'a Environment>,
    pub flags: Vec<Flag>,
}

/// The whole configuration and where each of its values came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    pub config: Config,
    origins: BTreeMap<&'static str, Origin>,
}

/// One effective value, safe to show.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    pub key: &'static str,
    /// `None` where it is not set.
    pub value: Option<toml::Value>,
    pub origin: Origin,
}

impl Loaded {
    /// Applies the layers to `defaults`. Returns all mistakes of all layers.
    pub fn new(defaults: Config, layers: Layers<'_>) -> Result<Loaded, Vec<Problem>> {
        let mut values = table_of(&defaults).map_err(|problem| vec![problem])?;
        let (mut origins, mut problems) = (BTreeMap::new(), Vec::new());
        if let Some(path) = layers.file {
            take_file(path, &mut values, &mut origins, &mut problems);
        }
        let environment = layers.environment.unwrap_or(&|_| None);
        for key in KEYS {
            if let Some(word) = environment(key.variable).filter(|word| !word.is_empty()) {
                take_word(key, key.variable, &word, &mut values, &mut problems);
                origins.insert(key.name, Origin::Environment(key.variable));
            }
        }
        for Flag { key, flag, word } in &layers.flags {
            let Some(key) = named(key) else {
                problems.push(Problem::of(flag, format!("sets {key}, which does not exist")));
                continue;
            };
            take_word(key, flag, word, &mut values, &mut problems);
            origins.insert(key.name, Origin::Flag(flag));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let config = Config::deserialize(toml::Value::Table(values))
            .map_err(|error| vec![Problem::whole(error.message().to_owned())])?;
        let loaded = Loaded { config, origins };
        let problems = loaded.contradictions();
        if problems.is_empty() { Ok(loaded) } else { Err(problems) }
    }

    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// The effective values, key by key; secrets are hidden.
    pub fn effective(&self) -> Vec<Effective> {
        let values = table_of(&self.config).unwrap_or_default();
        let one = |key: &Key| Effective {
            key: key.name,
            value: find(&values, key.name).map(|value| hide(key.shown, value)),
            origin: self.origin(key.name),
        };
        KEYS.iter().map(one).collect()
    }

    /// Values that do not go together, with where they came from.
    fn contradictions(&self) -> Vec<Problem> {
        let with_place = |mut problem: Problem| {
            match self.origin(&problem.key) {
                Origin::File { line, .. } => problem.line = Some(line),
                Origin::Environment(variable) => problem.key = variable.to_owned(),
                Origin::Flag(flag) => problem.key = flag.to_owned(),
                Origin::Default => {}
            }
            problem
        };
        self.config.contradictions().into_iter().map(with_place).collect()
    }
}

fn take_file(
    path: &Path,
    values: &mut toml::Table,
    origins: &mut BTreeMap<&'static str, Origin>,
    problems: &mut Vec<Problem>,
) {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => return problems.push(Problem::whole(format!("read {}: {error}", path.display()))),
    };
    let (found, wrong) = look(&text);
    problems.extend(wrong);
    // The mistakes are reported. The valid values still apply, so that later layers are checked too.
    let Ok(written) = text.parse::<toml::Table>() else { return };
    for (name, line) in found {
        if let Some(value) = find(&written, name) {
            put(values, name, value.clone());
            origins.insert(name, Origin::File { path: path.to_owned(), line });
        }
    }
}

fn take_word(key: &Key, by: &str, word: &str, values: &mut toml::Table, problems: &mut Vec<Problem>) {
    match key.kind.parse(word) {
        Ok(value) => put(values, key.name, value),
        Err(message) => problems.push(Problem::of(by, message)),
    }
}

fn table_of(config: &Config) -> Result<toml::Table, Problem> {
    toml::Table::try_from(config).map_err(|error| Problem::whole(error.to_string()))
}

fn find<'a>(values: &'a toml::Table, name: &str) -> Option<&'a toml::Value> {
    match name.split_once('.') {
        None => values.get(name),
        Some((table, key)) => values.get(table)?.as_table()?.get(key),
    }
}

fn put(values: &mut toml::Table, name: &str, value: toml::Value) {
    let Some((table, key)) = name.split_once('.') else {
        values.insert(name.to_owned(), value);
        return;
    };
    let inner = values.entry(table).or_insert_with(|| toml::Table::new().into());
    if let Some(inner) = inner.as_table_mut() {
        inner.insert(key.to_owned(), value);
    }
}

fn hide(shown: Shown, value: &toml::Value) -> toml::Value {
    let text = match (shown, value.as_str()) {
        (Shown::Plainly, _) | (_, None) => return value.clone(),
        (Shown::Hidden, Some(_)) => "(hidden)".to_owned(),
        (Shown::WithoutPassword, Some(url)) => without_password(url),
    };
    toml::Value::String(text)
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let end = rest.find('/').unwrap_or(rest.len());
    match rest[..end].rsplit_once('@') {
        Some((who, host)) => {
            let user = who.split(':').next().unwrap_or_default();
            let hidden = if who.contains(':') { ":(hidden)" } else { "" };
            format!("{scheme}://{user}{hidden}@{host}{}", &rest[end..])
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cove.toml");
        std::fs::write(&path, text).unwrap();
        (folder, path)
    }

    fn told(problems: Vec<Problem>) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn flags_win_over_the_environment_and_the_environment_over_the_file() {
        let (_folder, path) = written("listen = \"0.0.0.0:80\"\ndomain = \"a.example\"\n[quota]\nsandboxes = 7\n");
        let environment = |name: &str| match name {
            "COVE_LISTEN" => Some("127.0.0.1:1".to_owned()),
            "COVE_QUOTA_SANDBOXES" => Some("8".to_owned()),
            _ => None,
        };
        let flags = vec![Flag { key: "listen", flag: "--listen", word: "127.0.0.1:2".into() }];
        let layers = Layers { file: Some(&path), environment: Some(&environment), flags };
        let loaded = Loaded::new(Config::default(), layers).unwrap();
        assert_eq!((loaded.config.listen.as_str(), loaded.config.domain.as_str()), ("127.0.0.1:2", "a.example"));
        assert_eq!((loaded.config.quota.sandboxes, loaded.config.quota.cpus_per_sandbox), (8, 4.0));
        let origins = ["listen", "quota.sandboxes", "domain", "provider"].map(|key| loaded.origin(key).to_string());
        let file = format!("{}:2", path.display());
        assert_eq!(origins, ["--listen", "$COVE_QUOTA_SANDBOXES", file.as_str(), "default"]);
    }

    #[test]
    fn every_wrong_thing_is_named_with_its_place() {
        let text = "listen = 80\ndomian = \"x\"\n\n[quota]\nsandboxes = \"many\"\ndisk_per_sandbox = -1\n[nonsense]\n";
        let (_folder, path) = written(text);
        let environment = |name: &str| (name == "COVE_QUOTA_RUNNING_SANDBOXES").then(|| "few".to_owned());
        let layers = Layers { file: Some(&path), environment: Some(&environment), flags: Vec::new() };
        assert_eq!(
            told(Loaded::new(Config::default(), layers).unwrap_err()),
            [
                "line 1: listen: a text is wanted, not an integer",
                "line 2: domian: no such key; is domain meant?",
                "line 5: quota.sandboxes: an integer is wanted, not a string",
                "line 6: quota.disk_per_sandbox: must not be negative",
                "line 7: nonsense: no such key",
                "COVE_QUOTA_RUNNING_SANDBOXES: an integer is wanted, not \"few\"",
            ]
        );
    }

    #[test]
    fn half_a_configuration_is_refused() {
        let text = "listen = \"7070\"\n[tls]\ncertificate = \"/c.pem\"\n[archive]\nendpoint = \"http://s3\"\n";
        let (_folder, path) = written(text);
        let layers = Layers { file: Some(&path), ..Layers::default() };
        assert_eq!(
            told(Loaded::new(Config::default(), layers).unwrap_err()),
            [
                "line 1: listen: \"7070\" is not an address with a port, such as 127.0.0.1:7070",
                "line 3: tls.certificate: needs tls.key as well",
                "line 3: tls.certificate: needs tls.listen as well",
                "line 5: archive.endpoint: needs archive.url as well",
            ]
        );
    }

    #[test]
    fn secrets_are_not_shown() {
        let config = Config {
            api_key: Some("e2b_secret_of_the_operator".into()),
            database_url: Some("postgres://cove:secret@db.example/cove".into()),
            ..Config::default()
        };
        let loaded = Loaded::new(config, Layers::default()).unwrap();
        let shown = format!("{:?}", loaded.effective());
        assert!(!shown.contains("secret"), "{shown}");
        assert!(shown.contains("postgres://cove:(hidden)@db.example/cove"), "{shown}");
    }

    #[test]
    fn every_key_is_one_of_the_configuration_and_none_is_forgotten() {
        let full = Config::full_for_tests();
        let values = table_of(&full).unwrap();
        for key in KEYS {
            assert!(find(&values, key.name).is_some(), "{} is in no struct", key.name);
        }
        let count: usize = values.values().map(|value| value.as_table().map_or(1, toml::Table::len)).sum();
        assert_eq!(count, KEYS.len());
    }
}
