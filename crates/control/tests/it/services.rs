//! What the page about providers says of services is what the code does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cove_control::config::{Config, Section};
use cove_control::provider::{self, Ability, Can, Isolation, Provider, Supply};

const KINDS: [&str; 4] = ["e2b", "daytona", "vercel", "codesandbox"];
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/how-to/providers.md");
const BEGIN: &str = "<!-- made by crates/control/tests/it/services.rs; COVE_BLESS=1 writes it again -->\n";
const END: &str = "<!-- end -->\n";

/// Nothing is asked of a service before somebody wants a sandbox.
fn opened(kind: &str, keys: &[(&str, &str)]) -> Result<Arc<dyn Provider>, String> {
    let keys = keys.iter().map(|(name, value)| ((*name).to_owned(), toml::Value::from(*value))).collect();
    let section = Section { kind: kind.to_owned(), keys };
    let providers = BTreeMap::from([(kind.to_owned(), section)]);
    let data = tempfile::tempdir().unwrap();
    let config = Config { provider: kind.to_owned(), providers, data: data.path().to_owned(), ..Config::default() };
    let opened = provider::configured(&config, Path::new("/nothing")).map_err(|error| error.to_string())?;
    Ok(opened.into_iter().next().unwrap())
}

fn with_keys(kind: &str) -> Arc<dyn Provider> {
    let all = [("api_key", "k"), ("url", "http://127.0.0.1:1"), ("team", "t"), ("project", "p")];
    let keys = if kind == "vercel" { &all[..] } else { &all[..2] };
    opened(kind, keys).unwrap()
}

fn name(ability: Ability) -> String {
    serde_json::to_value(ability).unwrap().as_str().unwrap().replace('_', " ")
}

fn table() -> String {
    let all = KINDS.map(with_keys);
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let line = |what: &str, of: &dyn Fn(&Arc<dyn Provider>) -> String| {
        row(std::iter::once(what.to_owned()).chain(all.iter().map(of)).collect())
    };
    let mut text = line("", &|provider| format!("`{}`", provider.name()));
    text.push_str(&row(vec!["---".to_owned(); KINDS.len() + 1]));
    text.push_str(&line("isolation", &|provider| match provider.capabilities().isolation {
        Isolation::None => "none".into(),
        Isolation::Namespaces => "namespaces".into(),
        Isolation::Gvisor => "gVisor".into(),
        Isolation::Microvm => "virtual machine".into(),
    }));
    text.push_str(&line("starts from", &|provider| match provider.supply() {
        Supply::Layers => "layers".into(),
        Supply::Images => "images".into(),
        Supply::Templates => "its templates".into(),
    }));
    for ability in Ability::ALL {
        let can = |provider: &Arc<dyn Provider>| match provider.capabilities().of(ability) {
            Can::Yes => "yes".to_owned(),
            Can::No(_) => "no".to_owned(),
        };
        text.push_str(&line(&name(ability), &can));
    }
    text.push_str("\nWhy not:\n\n");
    for provider in &all {
        for (ability, why) in provider.capabilities().refusals() {
            text.push_str(&format!("- `{}`, {}: {why}\n", provider.name(), name(ability)));
        }
    }
    text
}

#[test]
fn the_page_shows_what_each_service_can_do() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once(BEGIN).expect("the page has a place for the table");
    let (written, after) = rest.split_once(END).expect("and an end of it");
    let made = table();
    if std::env::var_os("COVE_BLESS").is_some() {
        std::fs::write(PAGE, format!("{before}{BEGIN}{made}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(written, made, "run this test with COVE_BLESS=1 to write the table again");
}

#[test]
fn a_section_without_its_key_names_what_is_missing() {
    for (kind, key) in [("e2b", "api_key"), ("daytona", "api_key"), ("vercel", "api_key"), ("codesandbox", "api_key")] {
        let refused = opened(kind, &[]).err().unwrap();
        assert!(refused.starts_with(&format!("providers.{kind}.{key}: needs ")), "{refused}");
    }
    let refused = opened("vercel", &[("api_key", "k")]).err().unwrap();
    assert!(refused.starts_with("providers.vercel.team: needs "), "{refused}");
    let refused = opened("e2b", &[("api_key", "a\nb")]).err().unwrap();
    assert!(!refused.contains("a\nb"), "{refused}");
}
