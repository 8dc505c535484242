//! Layers: defaults < file < environment < flags. Each value remembers where it came from.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;

use super::check::{PROVIDERS, look};
use super::key::{KEYS, KIND, Key, Kind, Shown, named, section_variable};
use super::{Config, Problem};
use crate::provider;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Default,
    File { path: PathBuf, line: usize },
    Environment(String),
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
    origins: BTreeMap<String, Origin>,
}

/// One effective value, safe to show.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    pub key: String,
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
                take_word(key.name, key.kind, key.variable, &word, &mut values, &mut problems);
                origins.insert(key.name.to_owned(), Origin::Environment(key.variable.to_owned()));
            }
        }
        for (name, kind) in section_keys(&values) {
            let Some((section, key)) = name.rsplit_once('.') else { continue };
            let variable = section_variable(section.trim_start_matches("providers."), key);
            if let Some(word) = environment(&variable).filter(|word| !word.is_empty()) {
                take_word(&name, kind, &variable, &word, &mut values, &mut problems);
                origins.insert(name, Origin::Environment(variable));
            }
        }
        for Flag { key, flag, word } in &layers.flags {
            let Some(key) = named(key) else {
                problems.push(Problem::of(flag, format!("sets {key}, which does not exist")));
                continue;
            };
            take_word(key.name, key.kind, flag, word, &mut values, &mut problems);
            origins.insert(key.name.to_owned(), Origin::Flag(flag));
        }
        // Wrong values were left out: what the others are like together is told as well.
        let config = match Config::deserialize(toml::Value::Table(values.clone())) {
            Ok(config) => config,
            Err(error) => {
                let whole = Problem::whole(error.message().to_owned());
                let single = unreadable(&defaults, &values, &origins);
                problems.extend(if single.is_empty() { vec![whole] } else { single });
                return Err(problems);
            }
        };
        let loaded = Loaded { config, origins };
        problems.extend(loaded.contradictions());
        if problems.is_empty() { Ok(loaded) } else { Err(problems) }
    }

    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// The effective values, key by key; secrets are hidden.
    pub fn effective(&self) -> Vec<Effective> {
        let values = table_of(&self.config).unwrap_or_default();
        let one = |key: &Key| Effective {
            key: key.name.to_owned(),
            value: find(&values, key.name).map(|value| hide(key.shown, value)),
            origin: self.origin(key.name),
        };
        let of_section =
            |name: String| Effective { value: find(&values, &name).cloned(), origin: self.origin(&name), key: name };
        let kinds = self.config.providers.keys().map(|name| format!("{PROVIDERS}.{name}.{KIND}"));
        let keys = section_keys(&values).into_iter().map(|(name, _)| name);
        KEYS.iter().map(one).chain(kinds.chain(keys).map(of_section)).collect()
    }

    /// Values that do not go together, with where they came from.
    fn contradictions(&self) -> Vec<Problem> {
        let with_place = |problem: Problem| {
            let origin = self.origin(&problem.key);
            placed(problem, &origin)
        };
        self.config.contradictions().into_iter().map(with_place).collect()
    }
}

fn placed(mut problem: Problem, origin: &Origin) -> Problem {
    match origin {
        Origin::File { line, .. } => problem.line = Some(*line),
        Origin::Environment(variable) => problem.key = (*variable).to_owned(),
        Origin::Flag(flag) => problem.key = (*flag).to_owned(),
        Origin::Default => {}
    }
    problem
}

/// Texts of the right kind that mean nothing, such as an unknown word of a list: the whole names none of them, so each is
/// read alone.
fn unreadable(defaults: &Config, values: &toml::Table, origins: &BTreeMap<String, Origin>) -> Vec<Problem> {
    let alone = |(name, origin): (&String, &Origin)| {
        // A section is whole or nothing, and was checked.
        if name.starts_with(PROVIDERS) {
            return None;
        }
        let mut table = table_of(defaults).ok()?;
        put(&mut table, name, find(values, name)?.clone());
        let error = Config::deserialize(toml::Value::Table(table)).err()?;
        Some(placed(Problem::of(name, error.message()), origin))
    };
    origins.iter().filter_map(alone).collect()
}

fn take_file(
    path: &Path,
    values: &mut toml::Table,
    origins: &mut BTreeMap<String, Origin>,
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
        if let Some(value) = find(&written, &name) {
            put(values, &name, value.clone());
            origins.insert(name, Origin::File { path: path.to_owned(), line });
        }
    }
}

/// The keys that the sections of providers may have beside their kind, with their tables.
fn section_keys(values: &toml::Table) -> Vec<(String, Kind)> {
    let sections = values.get(PROVIDERS).and_then(toml::Value::as_table).into_iter().flatten();
    let of_section = |(name, section): (&String, &toml::Value)| {
        let kind = section.get(KIND).and_then(toml::Value::as_str).and_then(provider::Kind::named);
        let keys = kind.map_or(&[][..], |kind| kind.keys).iter();
        keys.map(|key| (format!("{PROVIDERS}.{name}.{}", key.name), key.kind)).collect::<Vec<_>>()
    };
    sections.flat_map(of_section).collect()
}

fn take_word(name: &str, kind: Kind, by: &str, word: &str, values: &mut toml::Table, problems: &mut Vec<Problem>) {
    match kind.parse(word) {
        Ok(value) => put(values, name, value),
        Err(message) => problems.push(Problem::of(by, message)),
    }
}

fn table_of(config: &Config) -> Result<toml::Table, Problem> {
    toml::Table::try_from(config).map_err(|error| Problem::whole(error.to_string()))
}

fn find<'a>(values: &'a toml::Table, name: &str) -> Option<&'a toml::Value> {
    match name.split_once('.') {
        None => values.get(name),
        Some((table, key)) => find(values.get(table)?.as_table()?, key),
    }
}

fn put(values: &mut toml::Table, name: &str, value: toml::Value) {
    let Some((table, key)) = name.split_once('.') else {
        values.insert(name.to_owned(), value);
        return;
    };
    let inner = values.entry(table).or_insert_with(|| toml::Table::new().into());
    if let Some(inner) = inner.as_table_mut() {
        put(inner, key, value);
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
    fn a_word_that_means_nothing_has_its_place_and_hides_nothing_else() {
        let text = "lissten = \"x\"\n[timers]\nidle_counts = \"foo\"\n[connections]\nproxies = \"bar\"\n";
        let (_folder, path) = written(text);
        let layers = Layers { file: Some(&path), ..Layers::default() };
        let told = told(Loaded::new(Config::default(), layers).unwrap_err());
        let starts = ["line 1: lissten: no such key", "line 5: connections.proxies: ", "line 3: timers.idle_counts: "];
        assert_eq!(told.len(), starts.len(), "{told:?}");
        assert!(starts.iter().all(|start| told.iter().any(|one| one.starts_with(start))), "{told:?}");

        let (_folder, path) = written("lissten = \"x\"\ndata = \"\"\n[tls]\ncertificate = \"/c.pem\"\n");
        let layers = Layers { file: Some(&path), ..Layers::default() };
        let told = self::told(Loaded::new(Config::default(), layers).unwrap_err());
        assert!(told.iter().any(|one| one.starts_with("line 2: data: ")), "{told:?}");
        assert!(told.iter().any(|one| one == "line 4: tls.certificate: needs tls.key as well"), "{told:?}");
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

    fn load(text: &str, environment: &Environment) -> Result<Loaded, Vec<String>> {
        let (_folder, path) = written(text);
        let layers = Layers { file: Some(&path), environment: Some(environment), flags: Vec::new() };
        Loaded::new(Config::default(), layers).map_err(told)
    }

    fn kinds(loaded: &Loaded) -> Vec<(String, String)> {
        loaded.config.sections().into_iter().map(|(name, section)| (name, section.kind)).collect()
    }

    #[test]
    fn a_provider_needs_no_section_where_its_name_is_a_kind() {
        let pair = |name: &str, kind: &str| (name.to_owned(), kind.to_owned());
        assert_eq!(kinds(&load("", &|_| None).unwrap()), [pair("local", "local")]);
        assert_eq!(kinds(&load("provider = \"fake\"", &|_| None).unwrap()), [pair("fake", "fake")]);
        let by_variable = |name: &str| (name == "SANDBOX_PROVIDER").then(|| "fake".to_owned());
        assert_eq!(kinds(&load("", &by_variable).unwrap()), [pair("fake", "fake")]);
        let text = "provider = \"box\"\n[providers.box]\nkind = \"local\"\n[providers.other]\nkind = \"fake\"\n";
        let loaded = load(text, &|_| None).unwrap();
        assert_eq!(kinds(&loaded), [pair("box", "local"), pair("other", "fake")]);
        assert_eq!(loaded.config.provider, "box");
    }

    #[test]
    fn the_keys_of_a_section_are_its_kinds_and_variables_set_them() {
        let text = "[providers.local]\nkind = \"local\"\nready = 3\n";
        let loaded = load(text, &|_| None).unwrap();
        assert_eq!(loaded.config.providers["local"].integer("ready"), Some(3));
        assert!(loaded.origin("providers.local.ready").to_string().ends_with(":3"));
        let shown = |loaded: &Loaded| {
            let ready = loaded.effective().into_iter().find(|one| one.key == "providers.local.ready").unwrap();
            (ready.value.unwrap().to_string(), ready.origin.to_string())
        };
        assert_eq!(shown(&loaded).0, "3");
        let more = |name: &str| (name == "COVE_PROVIDERS_LOCAL_READY").then(|| "5".to_owned());
        let loaded = load(text, &more).unwrap();
        assert_eq!(shown(&loaded), ("5".to_owned(), "$COVE_PROVIDERS_LOCAL_READY".to_owned()));
        let wrong = |name: &str| (name == "COVE_PROVIDERS_LOCAL_READY").then(|| "few".to_owned());
        assert_eq!(load(text, &wrong).unwrap_err(), ["COVE_PROVIDERS_LOCAL_READY: an integer is wanted, not \"few\""]);
    }

    #[test]
    fn what_is_wrong_with_a_provider_is_named_with_its_remedy() {
        let text = "[providers.Big]\nkind = \"local\"\n[providers.a]\nready = 1\n[providers.b]\nkind = \"moon\"\n\
                    [providers.local]\nkind = \"local\"\nreddy = 1\nready = \"x\"\n[providers.d]\nkind = \"fake\"\nurl = 1\n";
        assert_eq!(
            load(text, &|_| None).unwrap_err(),
            [
                "line 1: providers.Big: a provider's name is 1 to 32 lower-case letters, digits and '-'",
                "line 3: providers.a: needs kind, one of local, fake",
                "line 6: providers.b.kind: one of local, fake is wanted",
                "line 9: providers.local.reddy: no such key; is ready meant?",
                "line 10: providers.local.ready: an integer is wanted, not a string",
                "line 13: providers.d.url: no such key of a provider of kind fake",
            ]
        );
        assert_eq!(
            load("provider = \"moon\"\n[providers.a]\nkind = \"fake\"\n", &|_| None).unwrap_err(),
            ["line 1: provider: there is no [providers.moon]; write one with its kind, or name one of a"]
        );
        assert_eq!(
            load("providers = 1\n", &|_| None).unwrap_err(),
            ["line 1: providers: a table is wanted, not an integer"]
        );
        let error = load("[providers.box]\nkind = \"local\"\n", &|_| None).unwrap_err();
        assert_eq!(
            error,
            [
                "providers.local.kind: box is of kind local too, and a server has one of them; write provider = \"box\", \
              or name that section \"local\""
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
