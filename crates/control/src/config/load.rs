//! Layers: defaults < variables of other products < file < neutral variables < our own variables < flags. Each value remembers
//! where it came from.
//!
//! The variables of other products come before the file because they have two readers: the same `E2B_API_KEY` opens E2B for
//! a server, and this server for a client. What an operator has written down is not replaced by what a shell happens to have.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize as _;

use super::check::{PROVIDERS, ROUTES, look};
use super::key::{KEYS, KIND, Key, Kind, NEUTRAL_HOST, NEUTRAL_PORT, SectionKey, Shown, named, section_variable};
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

/// The key of the address, whose two parts can be set alone.
const LISTEN: &Key = &KEYS[0];
/// The key that names the default provider.
const PROVIDER: &str = "provider";

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
        let set = |name: &str| environment(name).filter(|word| !word.is_empty());
        for key in KEYS {
            if let Some((variable, word)) = chosen(key, origins.contains_key(key.name), &set) {
                take_word(key.name, key.kind, variable, &word, &mut values, &mut problems);
                origins.insert(key.name.to_owned(), Origin::Environment(variable.to_owned()));
            }
        }
        if set(LISTEN.variable).is_none() {
            take_host_and_port(&set, &mut values, &mut origins, &mut problems);
        }
        for Flag { key, flag, word } in &layers.flags {
            let Some(key) = named(key) else {
                problems.push(Problem::of(flag, format!("sets {key}, which does not exist")));
                continue;
            };
            take_word(key.name, key.kind, flag, word, &mut values, &mut problems);
            origins.insert(key.name.to_owned(), Origin::Flag(flag));
        }
        // After the flags: which provider is the default is known now.
        take_sections(&set, &mut values, &mut origins, &mut problems);
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
        let of_section = |(name, shown): (String, Shown)| Effective {
            value: find(&values, &name).map(|value| hide(shown, value)),
            origin: self.origin(&name),
            key: name,
        };
        let kinds = self.config.providers.keys().map(|name| (format!("{PROVIDERS}.{name}.{KIND}"), Shown::Plainly));
        let keys = section_keys(&values).into_iter().map(|(name, key)| (name, key.shown));
        let routes = find(&values, ROUTES).map(|routes| Effective {
            key: ROUTES.to_owned(),
            value: Some(routes.clone()),
            origin: self.origin(ROUTES),
        });
        KEYS.iter().map(one).chain(kinds.chain(keys).map(of_section)).chain(routes).collect()
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
fn section_keys(values: &toml::Table) -> Vec<(String, SectionKey)> {
    let sections = values.get(PROVIDERS).and_then(toml::Value::as_table).into_iter().flatten();
    let of_section = |(name, section): (&String, &toml::Value)| {
        let kind = section.get(KIND).and_then(toml::Value::as_str).and_then(provider::Kind::named);
        let keys = kind.map_or(&[][..], |kind| kind.keys).iter();
        keys.map(|key| (format!("{PROVIDERS}.{name}.{}", key.name), *key)).collect::<Vec<_>>()
    };
    sections.flat_map(of_section).collect()
}

/// Reads a variable that is set, and not empty.
type Set<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// The variable that sets a key, and its word. `written` says whether the file has it.
fn chosen(key: &Key, written: bool, set: &Set<'_>) -> Option<(&'static str, String)> {
    let first = |variables: &[&'static str]| variables.iter().find_map(|name| set(name).map(|word| (*name, word)));
    let ours = first(&[key.variable]).or_else(|| key.neutral.and_then(|name| first(&[name])));
    ours.or_else(|| first(key.others).filter(|_| !written))
}

/// Two variables make one address: each replaces its part of what the file or the default has.
fn take_host_and_port(
    set: &Set<'_>,
    values: &mut toml::Table,
    origins: &mut BTreeMap<String, Origin>,
    problems: &mut Vec<Problem>,
) {
    let (host, port) = (set(NEUTRAL_HOST), set(NEUTRAL_PORT));
    let by = match (&host, &port) {
        (None, None) => return,
        (Some(_), None) => NEUTRAL_HOST.to_owned(),
        (None, Some(_)) => NEUTRAL_PORT.to_owned(),
        (Some(_), Some(_)) => format!("{NEUTRAL_HOST} and ${NEUTRAL_PORT}"),
    };
    if let Some(port) = port.as_deref().filter(|port| port.parse::<u16>().is_err()) {
        return problems.push(Problem::of(NEUTRAL_PORT, format!("a port from 0 to 65535 is wanted, not {port:?}")));
    }
    let now = find(values, LISTEN.name).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    let (old_host, old_port) = now.rsplit_once(':').unwrap_or((now.as_str(), ""));
    let host = match host {
        // An address with colons of its own.
        Some(host) if host.contains(':') && !host.starts_with('[') => format!("[{host}]"),
        Some(host) => host,
        None => old_host.to_owned(),
    };
    let port = port.unwrap_or_else(|| old_port.to_owned());
    put(values, LISTEN.name, toml::Value::String(format!("{host}:{port}")));
    origins.insert(LISTEN.name.to_owned(), Origin::Environment(by));
}

/// The keys of the providers' sections, and the section of a default provider that has none and whose variables are set.
fn take_sections(
    set: &Set<'_>,
    values: &mut toml::Table,
    origins: &mut BTreeMap<String, Origin>,
    problems: &mut Vec<Problem>,
) {
    let default = find(values, PROVIDER).and_then(toml::Value::as_str).unwrap_or_default().to_owned();
    let kind_of_default = format!("{PROVIDERS}.{default}.{KIND}");
    let implied = find(values, &kind_of_default).is_none().then(|| provider::Kind::named(&default)).flatten();
    if let Some(kind) = implied {
        let of_key = |key: &SectionKey| {
            let own = section_variable(&default, key.name);
            set(&own).is_some() || key.neutral.is_some_and(|name| set(name).is_some()) || others(key, set).is_some()
        };
        if kind.keys.iter().any(of_key) {
            put(values, &kind_of_default, toml::Value::String(default.clone()));
            let origin = origins.get(PROVIDER).cloned().unwrap_or(Origin::Default);
            origins.insert(kind_of_default, origin);
        }
    }
    for (name, key) in section_keys(values) {
        let section = name.strip_prefix("providers.").and_then(|rest| rest.rsplit_once('.')).map_or("", |(one, _)| one);
        let own = section_variable(section, key.name);
        let neutral = key.neutral.filter(|_| section == default);
        let word = set(&own).map(|word| (own, word));
        let word = word.or_else(|| neutral.and_then(|name| set(name).map(|word| (name.to_owned(), word))));
        let word = word.or_else(|| others(&key, set).filter(|_| !origins.contains_key(&name)));
        if let Some((variable, word)) = word {
            take_word(&name, key.kind, &variable, &word, values, problems);
            origins.insert(name, Origin::Environment(variable));
        }
    }
}

/// The first variable of the service's own programs that is set.
fn others(key: &SectionKey, set: &Set<'_>) -> Option<(String, String)> {
    key.others.iter().find_map(|name| set(name).map(|word| ((*name).to_owned(), word)))
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
    fn neutral_names_come_before_the_file_and_names_of_others_after_it() {
        assert_eq!(LISTEN.name, "listen");
        let variables = |name: &str| {
            let word = match name {
                "POSTGRES_URL" => "postgres://cove@old.example/cove",
                "SANDBOX_TIMEOUT" => "600",
                "E2B_TIMEOUT" => "60",
                _ => return None,
            };
            Some(word.to_owned())
        };
        let loaded = load("", &variables).unwrap();
        assert_eq!(loaded.config.database_url.as_deref(), Some("postgres://cove@old.example/cove"));
        assert_eq!(loaded.origin("database_url").to_string(), "$POSTGRES_URL");
        assert_eq!((loaded.config.timers.lifetime_seconds, loaded.config.e2b.timeout_seconds), (600, 600));
        let text = "database_url = \"postgres://cove@file.example/cove\"\n[timers]\nlifetime_seconds = 5\n";
        let loaded = load(text, &variables).unwrap();
        assert_eq!(loaded.config.database_url.as_deref(), Some("postgres://cove@file.example/cove"));
        assert_eq!(loaded.config.timers.lifetime_seconds, 600, "a neutral name is ours");
        let old = |name: &str| (name == "E2B_TIMEOUT").then(|| "60".to_owned());
        let loaded = load("", &old).unwrap();
        assert_eq!((loaded.config.timers.lifetime_seconds, loaded.config.e2b.timeout_seconds), (0, 60));
        assert_eq!(load("[e2b]\ntimeout_seconds = 7\n", &old).unwrap().config.e2b.timeout_seconds, 7);
    }

    #[test]
    fn a_service_is_known_by_its_own_variables_and_by_neutral_ones() {
        let own = |name: &str| match name {
            "SANDBOX_PROVIDER" => Some("e2b".to_owned()),
            "E2B_API_KEY" => Some("e2b_of_the_service".to_owned()),
            "E2B_API_URL" => Some("https://api.service.example".to_owned()),
            _ => None,
        };
        let loaded = load("", &own).unwrap();
        let section = &loaded.config.sections()["e2b"];
        assert_eq!((section.kind.as_str(), section.text("api_key")), ("e2b", Some("e2b_of_the_service")));
        assert_eq!(loaded.origin("providers.e2b.api_key").to_string(), "$E2B_API_KEY");
        assert!(!format!("{:?}", loaded.effective()).contains("of_the_service"));
        // The file is before the service's own names, and the neutral names are before the file.
        let text = "[providers.e2b]\nkind = \"e2b\"\napi_key = \"of_the_file\"\n";
        assert_eq!(load(text, &own).unwrap().config.providers["e2b"].text("api_key"), Some("of_the_file"));
        let neutral = move |name: &str| match name {
            "SANDBOX_API_KEY" => Some("of_nobody_alone".to_owned()),
            name => own(name),
        };
        let loaded = load(text, &neutral).unwrap();
        assert_eq!(loaded.config.providers["e2b"].text("api_key"), Some("of_nobody_alone"));
        assert_eq!(loaded.origin("providers.e2b.api_key").to_string(), "$SANDBOX_API_KEY");
        let ours = move |name: &str| match name {
            "COVE_PROVIDERS_E2B_API_KEY" => Some("ours".to_owned()),
            name => neutral(name),
        };
        assert_eq!(load(text, &ours).unwrap().config.providers["e2b"].text("api_key"), Some("ours"));
        // Nothing is read for a provider that this server does not have.
        let elsewhere = |name: &str| (name == "E2B_API_KEY").then(|| "e2b_of_the_service".to_owned());
        assert_eq!(kinds(&load("", &elsewhere).unwrap()), [("local".to_owned(), "local".to_owned())]);
    }

    #[test]
    fn routes_name_providers_that_are_there() {
        let text = "provider = \"a\"\n[providers.a]\nkind = \"fake\"\n[providers.b]\nkind = \"fake\"\n\
                    [[routes]]\nlabels = \"tier=paid\"\nproviders = \"a=3, b\"\n[[routes]]\nproviders = \"b\"\n";
        let loaded = load(text, &|_| None).unwrap();
        assert_eq!(loaded.config.routes.len(), 2);
        let shown = loaded.effective().into_iter().find(|one| one.key == "routes").unwrap();
        assert!(shown.origin.to_string().ends_with(":6"), "{}", shown.origin);
        assert_eq!(
            load("[[routes]]\nproviders = \"moon\"\n", &|_| None).unwrap_err(),
            ["line 1: routes: there is no provider \"moon\"; there are local"]
        );
        assert_eq!(
            load("[[routes]]\nprovider = \"local\"\nlabels = 1\n", &|_| None).unwrap_err(),
            [
                "line 2: routes.provider: no such key of a route, which has labels, template, providers",
                "line 3: routes.labels: a text is wanted, not an integer",
            ]
        );
        assert_eq!(
            load("routes = \"x\"\n", &|_| None).unwrap_err(),
            ["line 1: routes: write [[routes]]; tables are wanted, not a string"]
        );
    }

    #[test]
    fn host_and_port_are_set_each_for_itself() {
        let listen = |text: &str, pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> = pairs.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect();
            let environment =
                move |name: &str| pairs.iter().find(|(variable, _)| variable == name).map(|(_, word)| word.clone());
            let loaded = load(text, &environment)?;
            Ok::<_, Vec<String>>((loaded.config.listen.clone(), loaded.origin("listen").to_string()))
        };
        let pair = |address: &str, origin: &str| (address.to_owned(), origin.to_owned());
        assert_eq!(listen("", &[("SANDBOX_PORT", "8090")]).unwrap(), pair("127.0.0.1:8090", "$SANDBOX_PORT"));
        let file = "listen = \"10.0.0.1:80\"\n";
        assert_eq!(listen(file, &[("SANDBOX_HOST", "::1")]).unwrap(), pair("[::1]:80", "$SANDBOX_HOST"));
        let both = [("SANDBOX_HOST", "localhost"), ("SANDBOX_PORT", "1")];
        assert_eq!(listen("", &both).unwrap(), pair("localhost:1", "$SANDBOX_HOST and $SANDBOX_PORT"));
        let ours = [("COVE_LISTEN", "127.0.0.1:9"), ("SANDBOX_PORT", "1")];
        assert_eq!(listen("", &ours).unwrap(), pair("127.0.0.1:9", "$COVE_LISTEN"));
        assert_eq!(
            listen("", &[("SANDBOX_PORT", "many")]).unwrap_err(),
            ["SANDBOX_PORT: a port from 0 to 65535 is wanted, not \"many\""]
        );
    }

    #[test]
    fn what_is_wrong_with_a_provider_is_named_with_its_remedy() {
        let text = "[providers.Big]\nkind = \"local\"\n[providers.a]\nready = 1\n[providers.b]\nkind = \"moon\"\n\
                    [providers.local]\nkind = \"local\"\nreddy = 1\nready = \"x\"\n[providers.d]\nkind = \"fake\"\nurl = 1\n";
        let kinds = provider::Kind::names();
        let told = load(text, &|_| None).unwrap_err().into_iter().map(|told| told.replace(&kinds, "KINDS"));
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "line 1: providers.Big: a provider's name is 1 to 32 lower-case letters, digits and '-'",
                "line 3: providers.a: needs kind, one of KINDS",
                "line 6: providers.b.kind: one of KINDS is wanted",
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
    fn the_key_of_a_service_is_not_shown() {
        let text =
            "[providers.cloud]\nkind = \"e2b\"\napi_key = \"top-secret\"\nurl = \"https://a:top-secret@e.example\"\n";
        let shown = format!("{:?}", load(text, &|_| None).unwrap().effective());
        assert!(!shown.contains("top-secret"), "{shown}");
        assert!(shown.contains("https://a:(hidden)@e.example"), "{shown}");
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
