//! `cove setup`: the configuration of a server, asked for or given by flags, tried, and written.
//!
//! ```text
//!   what is there ──▶ what is missing is asked for ──▶ tried on a server of its own: a real sandbox ──▶ written
//!   file, variables      (a flag for each question)        database, TLS, names                      file, unit
//! ```
//! Nothing that somebody wrote is lost: keys are set one by one in the text of the file, and the text as it was is kept
//! beside it.

mod ask;
mod file;

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use cove_bench::measure::own_server::OwnServer;
use cove_control::config::key::{Kind as ValueKind, Shown};
use cove_control::config::{Config, Layers, Loaded};
use cove_control::provider::Kind;
use cove_control::store::Store;
use reqwest::Method;
use serde_json::{Value, json};

use self::ask::{ask, ask_secret, is_anybody_there};
use super::settings;
use crate::background::{UNIT, UNIT_FILE, systemctl};
use crate::client::block_on;
use crate::complaint::{Complaint, doing};
use crate::place::{Place, is_root};
use crate::render::{print, print_json, say};

/// The unit, as the package installs it.
const UNIT_TEXT: &str = include_str!("../../../../../deploy/cove.service");

/// Set up a server: ask for what is missing, try it, write the configuration
///
/// Every question has a flag, and without a terminal nothing is asked. What a file already says stays unless a flag or an
/// answer changes it, and the file as it was is kept beside it. The provider is tried with a real sandbox, and so are the
/// database, TLS and the domain's names, before anything is written.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove setup
  cove setup --yes --provider local --domain localhost
  cove setup --yes --provider e2b --secret api_key=/run/secrets/e2b --no-check
  cove setup --yes --tls 0.0.0.0:443 --domain sbx.example.com --set quota.sandboxes=50")]
pub struct Arguments {
    /// The configuration file [env: COVE_CONFIG] [default: /etc/cove/cove.toml, or below your home]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where sandboxes run: local, docker, e2b, daytona …
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// A key of the provider that must not be on a command line, read from a file; `-` is standard input; can be repeated
    #[arg(long, value_name = "KEY=FILE", value_parser = super::create::parse_pair)]
    secret: Vec<(String, String)>,
    /// Any other key of the configuration; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::create::parse_pair)]
    set: Vec<(String, String)>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Previews are at PORT-ID.DOMAIN
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Listen here with TLS too; `none` for no TLS
    #[arg(long, value_name = "ADDRESS")]
    tls: Option<String>,
    /// A certificate for DOMAIN and *.DOMAIN, in PEM [default: the local authority makes one]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// `postgres://…`; `sqlite` for a file in the data directory
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// The directory for all data
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Write a systemd unit
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    systemd: When,
    /// Where the unit goes
    #[arg(long, value_name = "FILE", default_value = UNIT_FILE, hide = true)]
    unit_file: PathBuf,
    /// Ask nothing: flags, the file and defaults say all
    #[arg(long, short)]
    yes: bool,
    /// Write without trying it
    #[arg(long)]
    no_check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum When {
    /// Where root asks and systemd runs this machine
    Auto,
    Yes,
    No,
}

/// A key and the value it shall have.
type Wish = (String, toml::Value);

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let path = arguments.config.clone().map_or_else(usual_place, Ok)?;
    let path = std::path::absolute(&path).unwrap_or(path);
    let before = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(doing(format!("read {}", path.display()))(error)),
    };
    let mut wishes = given(arguments)?;
    if !arguments.yes && is_anybody_there() {
        answered(&path, &before, &mut wishes)?;
    }
    let text = with_wishes(&before, &wishes).map_err(|why| Complaint::usage(format!("{}: {why}", path.display())))?;
    let folder = tempfile_beside(&path)?;
    let (candidate, loaded) = checked(&folder, &text)?;
    let tried = match arguments.no_check {
        true => Vec::new(),
        false => block_on(tried(&candidate, &loaded.config))?,
    };
    drop(folder);
    let kept = write(&path, &before, &text)?;
    let unit = unit(arguments, &path)?;
    if arguments.json {
        let tried: Vec<Value> = tried.iter().map(|(what, found)| json!({ "what": what, "found": found })).collect();
        print_json(&json!({ "file": path, "before": kept, "unit": unit, "tried": tried }))?;
        return Ok(0);
    }
    for (what, found) in &tried {
        say(&format!("{what}: {found}"));
    }
    print(&path.display().to_string())?;
    if let Some(kept) = kept {
        say(&format!("hint: the file as it was is {}", kept.display()));
    }
    if let Some(unit) = unit {
        say(&format!("hint: {} is written; systemctl enable {UNIT} starts it at every boot", unit.display()));
    }
    say("hint: cove up");
    Ok(0)
}

/// Where the file goes that nobody named.
fn usual_place() -> Result<PathBuf, Complaint> {
    if let Some(named) = settings::usual_file() {
        return Ok(named);
    }
    if is_root() {
        return Ok(PathBuf::from("/etc/cove/cove.toml"));
    }
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let folder = home("XDG_CONFIG_HOME").or_else(|| Some(home("HOME")?.join(".config")));
    folder
        .map(|folder| folder.join("cove/cove.toml"))
        .ok_or_else(|| Complaint::usage("no HOME is set").hint("name the file: --config FILE"))
}

/// What flags say.
fn given(arguments: &Arguments) -> Result<Vec<Wish>, Complaint> {
    let mut wishes = Vec::new();
    let mut wish = |key: &str, word: Option<String>| {
        wishes.extend(word.map(|word| (key.to_owned(), toml::Value::String(word))));
    };
    let path = |path: &Option<PathBuf>| {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        path.as_ref().map(|path| absolute(path).to_string_lossy().into_owned())
    };
    wish("provider", arguments.provider.clone());
    wish("listen", arguments.listen.clone());
    wish("domain", arguments.domain.clone());
    wish("tls.listen", arguments.tls.clone().filter(|word| word != "none"));
    wish("tls.certificate", path(&arguments.tls_certificate));
    wish("tls.key", path(&arguments.tls_key));
    wish("database_url", arguments.database_url.clone().filter(|word| word != "sqlite"));
    wish("data", path(&arguments.data));
    for (key, word) in &arguments.set {
        wishes.push((key.clone(), value_of(key, word)?));
    }
    let provider = || {
        let message = "--secret is of a provider; name it with --provider";
        arguments.provider.as_deref().ok_or_else(|| Complaint::usage(message))
    };
    for (key, from) in &arguments.secret {
        let read = match from.as_str() {
            "-" => std::io::read_to_string(std::io::stdin()).map_err(doing("read standard input"))?,
            file => fs::read_to_string(file).map_err(doing(format!("read {file}")))?,
        };
        wishes.push((format!("providers.{}.{key}", provider()?), toml::Value::String(read.trim().to_owned())));
    }
    with_kind(&mut wishes);
    Ok(wishes)
}

/// A provider with keys of its own needs a section, and a section needs its kind.
fn with_kind(wishes: &mut Vec<Wish>) {
    let sections = wishes.iter().filter_map(|(key, _)| key.strip_prefix("providers.")?.split_once('.'));
    let named: Vec<String> = sections.map(|(name, _)| name.to_owned()).collect();
    for name in named {
        let key = format!("providers.{name}.kind");
        if Kind::named(&name).is_some() && !wishes.iter().any(|(other, _)| *other == key) {
            wishes.insert(0, (key, toml::Value::String(name)));
        }
    }
}

/// A word as the value that its key wants.
fn value_of(key: &str, word: &str) -> Result<toml::Value, Complaint> {
    let kind = match cove_control::config::key::named(key) {
        Some(key) => key.kind,
        // The keys of a provider are known by its kind, which is checked with the whole.
        None if key.starts_with("providers.") => guess(word),
        None => {
            return Err(Complaint::usage(format!("--set {key}: no such key")).hint("`cove config show` lists them all"));
        }
    };
    let wrong = || Complaint::usage(format!("--set {key}: {word:?} is not what it wants"));
    match kind {
        ValueKind::Text => Ok(toml::Value::String(word.to_owned())),
        ValueKind::Integer => word.parse::<i64>().map(Into::into).map_err(|_| wrong()),
        ValueKind::Number => word.parse::<f64>().map(Into::into).map_err(|_| wrong()),
        ValueKind::Switch => word.parse::<bool>().map(Into::into).map_err(|_| wrong()),
    }
}

fn guess(word: &str) -> ValueKind {
    match word {
        "true" | "false" => ValueKind::Switch,
        word if word.parse::<i64>().is_ok() => ValueKind::Integer,
        _ => ValueKind::Text,
    }
}

/// Asks for what no flag says, with what the file has as the answer of Enter.
fn answered(path: &Path, before: &str, wishes: &mut Vec<Wish>) -> Result<(), Complaint> {
    say(&format!("The configuration is {}. Enter takes what is in brackets.", path.display()));
    let known: toml::Table = before.parse().unwrap_or_default();
    let has = |wishes: &[Wish], key: &str| wishes.iter().any(|(other, _)| other == key);
    let now = |key: &str, usual: &str| text_at(&known, key).unwrap_or_else(|| usual.to_owned());
    let text = |word: &str| Ok::<_, String>(word.to_owned());
    if !has(wishes, "provider") {
        let sections: Vec<String> = known
            .get("providers")
            .and_then(toml::Value::as_table)
            .into_iter()
            .flatten()
            .map(|(name, _)| name.clone())
            .collect();
        let one = |word: &str| match Kind::named(word).is_some() || sections.iter().any(|name| name == word) {
            true => Ok(word.to_owned()),
            false => Err(format!("one of {} is wanted", Kind::names())),
        };
        let provider =
            ask(&format!("Where do sandboxes run ({})", Kind::names()), Some(&now("provider", "local")), one)?;
        wishes.push(("provider".into(), toml::Value::String(provider)));
    }
    let provider = wishes.iter().find(|(key, _)| key == "provider").and_then(|(_, value)| value.as_str());
    let provider = provider.unwrap_or("local").to_owned();
    ask_for_keys(&known, &provider, wishes)?;
    for (key, question, usual) in [
        ("listen", "Where does it listen", "127.0.0.1:7070"),
        ("domain", "Previews are at PORT-ID.DOMAIN; the domain", "localhost"),
    ] {
        if !has(wishes, key) {
            let usual = now(key, usual);
            let answer = ask(question, Some(&usual), text)?;
            if text_at(&known, key).is_some() || answer != usual {
                wishes.push((key.into(), toml::Value::String(answer)));
            }
        }
    }
    if !has(wishes, "tls.listen") {
        let usual = now("tls.listen", "none");
        let answer = ask("Where does it listen with TLS (an address, or none)", Some(&usual), text)?;
        if answer != "none" && answer != usual {
            wishes.push(("tls.listen".into(), toml::Value::String(answer)));
        }
    }
    if !has(wishes, "database_url") {
        let is_set = text_at(&known, "database_url").is_some();
        let usual = if is_set { "as it is" } else { "sqlite" };
        let answer = ask("The database (postgres://…, or sqlite)", Some(usual), text)?;
        if answer != usual && answer != "sqlite" {
            wishes.push(("database_url".into(), toml::Value::String(answer)));
        }
    }
    with_kind(wishes);
    Ok(())
}

/// What a provider's kind has to be told: secrets, and what every service has a name for.
fn ask_for_keys(known: &toml::Table, provider: &str, wishes: &mut Vec<Wish>) -> Result<(), Complaint> {
    let kind = text_at(known, &format!("providers.{provider}.kind")).unwrap_or_else(|| provider.to_owned());
    let Some(kind) = Kind::named(&kind) else { return Ok(()) };
    for key in kind.keys.iter().filter(|key| key.shown == Shown::Hidden || key.neutral.is_some()) {
        let name = format!("providers.{provider}.{}", key.name);
        if wishes.iter().any(|(other, _)| *other == name) {
            continue;
        }
        let is_set = |variable: &&&str| std::env::var_os(variable).is_some_and(|word| !word.is_empty());
        let variable = key.neutral.iter().chain(key.others).find(is_set);
        let from = match (text_at(known, &name), variable) {
            (Some(_), _) => Some("as the file has it".to_owned()),
            (None, Some(variable)) => Some(format!("as ${variable} has it")),
            (None, None) => None,
        };
        let question = format!("{provider}: {}{}", key.name, from.map_or_else(String::new, |from| format!(", {from}")));
        let answer = match key.shown {
            Shown::Hidden => ask_secret(&question)?,
            _ => ask(&question, None, |word| Ok(word.to_owned()))?,
        };
        if !answer.is_empty() {
            wishes.push((name, toml::Value::String(answer)));
        }
    }
    Ok(())
}

fn text_at(table: &toml::Table, key: &str) -> Option<String> {
    match key.split_once('.') {
        None => table.get(key)?.as_str().map(ToOwned::to_owned),
        Some((first, rest)) => text_at(table.get(first)?.as_table()?, rest),
    }
}

/// The text with every wish in it. What is written already stays as it is written.
fn with_wishes(before: &str, wishes: &[Wish]) -> Result<String, String> {
    let mut text = before.to_owned();
    for (key, value) in wishes {
        let same = text.parse::<toml::Table>().ok().is_some_and(|table| value_at(&table, key) == Some(value));
        if !same {
            text = file::set(&text, key, value)?;
        }
    }
    Ok(text)
}

fn value_at<'a>(table: &'a toml::Table, key: &str) -> Option<&'a toml::Value> {
    match key.split_once('.') {
        None => table.get(key),
        Some((first, rest)) => value_at(table.get(first)?.as_table()?, rest),
    }
}

/// A folder for what is not yet the configuration; it goes when it is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Nothing but our own files is in it; what is left is said by whoever looks.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tempfile_beside(path: &Path) -> Result<Folder, Complaint> {
    let parent = path.parent().unwrap_or(Path::new("/"));
    cove_control::app::make_private_directory(parent).map_err(doing(format!("make {}", parent.display())))?;
    let folder = parent.join(format!(".cove-setup-{}", std::process::id()));
    cove_control::app::make_private_directory(&folder).map_err(doing(format!("make {}", folder.display())))?;
    Ok(Folder(folder))
}

/// All mistakes of the candidate are told before anything is tried.
fn checked(folder: &Folder, text: &str) -> Result<(PathBuf, Loaded), Complaint> {
    let candidate = folder.0.join("cove.toml");
    cove_sys::replacement::replace(&candidate, text.as_bytes(), 0o600)
        .map_err(doing(format!("write {}", candidate.display())))?;
    let environment = |name: &str| std::env::var(name).ok();
    let layers = Layers { file: Some(&candidate), environment: Some(&environment), flags: Vec::new() };
    let defaults = Config { data: Place::usual().data(), ..Config::default() };
    let loaded = Loaded::new(defaults, layers).map_err(|problems| settings::complaint(None, &problems))?;
    Ok((candidate, loaded))
}

/// Each thing that was tried, and what was found.
async fn tried(candidate: &Path, config: &Config) -> Result<Vec<(&'static str, String)>, Complaint> {
    let mut found = Vec::new();
    if let Some(url) = &config.database_url {
        let store = Store::open(url).await.map_err(|error| {
            let why = error.detail().map_or_else(|| error.to_string(), str::to_owned);
            Complaint::failed(format!("the database cannot be used: {why}")).hint("nothing was written")
        })?;
        store.close().await;
        found.push(("database", "it answers, and has the tables".to_owned()));
    }
    found.push(("domain", names_of(&config.domain).await));
    let program = crate::place::program()?;
    let mut words: Vec<OsString> = vec!["--config".into(), candidate.into()];
    // Nobody's port is taken, and nobody's database gets a server that is gone a moment later.
    let database = candidate.with_file_name("check.db");
    words.extend(["--database-url".into(), format!("sqlite://{}?mode=rwc", database.display()).into()]);
    if config.tls.listen.is_some() {
        words.extend(["--tls".into(), "127.0.0.1:0".into()]);
    }
    let server = OwnServer::start_by(&program, words).await?;
    let sandbox = try_sandbox(&server).await;
    let finished = server.finish().await;
    let sandbox = sandbox.map_err(|complaint| complaint.hint("nothing was written; --no-check writes all the same"))?;
    finished?;
    if config.tls.listen.is_some() {
        found.push(("tls", "the certificate and its key are good".to_owned()));
    }
    found.push(("sandbox", format!("provider {} made one, ran a command and removed it: {sandbox}", config.provider)));
    Ok(found)
}

/// Returns what the command said.
async fn try_sandbox(server: &OwnServer) -> Result<String, Complaint> {
    let timers = json!({ "lifetime_seconds": 600 });
    let made = server.api.call(Method::POST, "/api/sandboxes", Some(json!({ "timers": timers }))).await;
    let made = made.map_err(|trouble| Complaint::failed(format!("no sandbox could be made: {trouble}")))?;
    let id = made["id"].as_str().unwrap_or_default();
    let command = json!({ "shell": "uname -sr" });
    let ran = server.api.call(Method::POST, &format!("/api/sandboxes/{id}/exec"), Some(command)).await;
    let removed = server.api.call(Method::DELETE, &format!("/api/sandboxes/{id}"), None).await;
    let ran = ran.map_err(|trouble| Complaint::failed(format!("no command could be run: {trouble}")))?;
    removed.map_err(|trouble| Complaint::failed(format!("the sandbox could not be removed: {trouble}")))?;
    if ran["exit"]["status"] != 0 {
        return Err(Complaint::failed(format!(
            "a command failed inside: {}",
            ran["stderr"].as_str().unwrap_or_default()
        )));
    }
    Ok(ran["stdout"].as_str().unwrap_or_default().trim().to_owned())
}

/// Whether names below the domain lead somewhere. One that does not is no mistake: its DNS may come later.
async fn names_of(domain: &str) -> String {
    let host = domain.rsplit_once(':').map_or(domain, |(host, _)| host);
    if crate::client::is_this_machine(host) {
        return format!("*.{host} is this machine");
    }
    match tokio::net::lookup_host((format!("3000-check.{host}"), 443)).await.map(|mut found| found.next()) {
        Ok(Some(address)) => format!("*.{host} leads to {}", address.ip()),
        _ => format!("*.{host} leads nowhere yet: give *.{host} the address of this machine"),
    }
}

/// Writes the file; returns where the one that was there is kept.
fn write(path: &Path, before: &str, text: &str) -> Result<Option<PathBuf>, Complaint> {
    if before == text && path.exists() {
        return Ok(None);
    }
    let mode = fs::metadata(path).map_or(0o600, |found| found.permissions().mode() & 0o777);
    let kept = (!before.is_empty()).then(|| free_name(path));
    if let Some(kept) = &kept {
        cove_sys::replacement::replace(kept, before.as_bytes(), mode)
            .map_err(doing(format!("keep the file as it was in {}", kept.display())))?;
    }
    cove_sys::replacement::replace(path, text.as_bytes(), mode).map_err(doing(format!("write {}", path.display())))?;
    Ok(kept)
}

/// `cove.toml.1`, or the first number that is free.
fn free_name(path: &Path) -> PathBuf {
    let numbered = |number: u32| {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{number}"));
        path.with_file_name(name)
    };
    (1..).map(numbered).find(|name| !name.exists()).unwrap_or_else(|| numbered(0))
}

/// Writes the unit where it is wanted; returns where it is.
fn unit(arguments: &Arguments, config: &Path) -> Result<Option<PathBuf>, Complaint> {
    let is_usual = arguments.unit_file == Path::new(UNIT_FILE);
    let can = is_root() && Path::new("/run/systemd/system").is_dir();
    let wanted = match arguments.systemd {
        When::Yes => true,
        When::No => false,
        When::Auto => can,
    };
    if !wanted {
        return Ok(None);
    }
    let program = crate::place::program()?;
    let text = UNIT_TEXT
        .replace("/usr/local/bin/cove", &program.display().to_string())
        .replace("/etc/cove/cove.toml", &config.display().to_string());
    let file = &arguments.unit_file;
    let before = fs::read_to_string(file).unwrap_or_default();
    if before != text {
        if !before.is_empty() {
            let kept = free_name(file);
            cove_sys::replacement::replace(&kept, before.as_bytes(), 0o644)
                .map_err(doing(format!("keep the unit as it was in {}", kept.display())))?;
        }
        cove_sys::replacement::replace(file, text.as_bytes(), 0o644)
            .map_err(doing(format!("write {}", file.display())))?;
    }
    if is_usual && can {
        systemctl(&["daemon-reload"])?;
    }
    Ok(Some(file.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &str) -> toml::Value {
        toml::Value::String(word.into())
    }

    #[test]
    fn a_wish_that_holds_already_changes_nothing() {
        let before = "listen = '127.0.0.1:1' # ours\n";
        let wishes = [("listen".to_owned(), text("127.0.0.1:1"))];
        assert_eq!(with_wishes(before, &wishes).unwrap(), before);
        let wishes = [("listen".to_owned(), text("127.0.0.1:2"))];
        assert_eq!(with_wishes(before, &wishes).unwrap(), "listen = \"127.0.0.1:2\" # ours\n");
    }

    #[test]
    fn a_key_of_a_provider_brings_its_section() {
        let mut wishes = vec![("providers.local.ready".to_owned(), toml::Value::Integer(3))];
        with_kind(&mut wishes);
        assert_eq!(wishes[0], ("providers.local.kind".to_owned(), text("local")));
        let written = with_wishes("", &wishes).unwrap();
        assert_eq!(written, "[providers.local]\nready = 3\nkind = \"local\"\n");
    }

    #[test]
    fn words_become_what_their_key_wants() {
        assert_eq!(value_of("quota.sandboxes", "50").unwrap(), toml::Value::Integer(50));
        assert_eq!(value_of("log.json", "true").unwrap(), toml::Value::Boolean(true));
        assert_eq!(value_of("providers.x.url", "http://x").unwrap(), text("http://x"));
        assert!(value_of("quota.sandboxes", "many").is_err() && value_of("no.such", "1").is_err());
    }
}
