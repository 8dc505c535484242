//! What people call an image: `[registry/]name[:tag][@digest]`.
//!
//! The first part is a registry only if it has a dot or a colon, or is `localhost`. Everything else is in the default
//! registry, where a name of one part is below `library/`. A digest wins over a tag: the tag is kept, to be shown.
//!
//! Which registry is the default, what other names registries have, and where they are reached is the caller's data.

use std::collections::BTreeMap;
use std::fmt;

use crate::digest::Digest;

/// The longest text that is parsed at all; names themselves have at most 255 characters.
const LONGEST: usize = 1024;
const LONGEST_NAME: usize = 255;
const LONGEST_TAG: usize = 128;
/// How often an alias may lead to another.
const ALIASES: usize = 8;

/// Where names lead, as the operator configured it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Names {
    /// The registry of names without one.
    pub default_registry: String,
    /// Other names of registries, and what they are called here.
    pub same: BTreeMap<String, String>,
    /// Where a registry is reached, in this order, before the registry's own name is tried: `host[:port][/prefix]`.
    pub mirrors: BTreeMap<String, Vec<String>>,
    /// What an image is replaced by before anything else happens. The keys are references as people write them; a key
    /// without a tag means all of its tags.
    pub aliases: BTreeMap<String, Alias>,
}

/// What an alias names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alias {
    /// Another reference.
    Image(String),
    /// Something of the caller's own, such as a template.
    Own(String),
}

/// Where a text leads after all aliases.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meant {
    /// To an image of a registry.
    Image(Reference),
    /// To something of the caller's own, as the alias names it.
    Own(String),
}

impl Names {
    /// Parses a reference and replaces what an alias replaces. The alias of an exact reference wins over one for all tags.
    pub fn resolve(&self, text: &str) -> Result<Meant, NoReference> {
        let mut reference = Reference::parse(text, self)?;
        for _ in 0..ALIASES {
            match self.alias(&reference) {
                None => return Ok(Meant::Image(reference)),
                Some(Alias::Own(own)) => return Ok(Meant::Own(own.clone())),
                Some(Alias::Image(target)) => {
                    let next = Reference::parse(target, self)?;
                    // An alias for all tags may choose one of them.
                    if next == reference {
                        return Ok(Meant::Image(reference));
                    }
                    reference = next;
                }
            }
        }
        Err(NoReference::new(text, "its aliases lead in a circle"))
    }

    fn alias(&self, reference: &Reference) -> Option<&Alias> {
        let mut general = None;
        for (key, target) in &self.aliases {
            let Ok(named) = Reference::parse(key, self) else { continue };
            if named == *reference {
                return Some(target);
            }
            let any_tag = named.is_bare && named.registry == reference.registry && named.name == reference.name;
            if any_tag && reference.digest.is_none() {
                general = Some(target);
            }
        }
        general
    }

    /// Hosts (with a prefix, where a mirror has one) that serve this registry, in the order to try them.
    pub fn endpoints(&self, registry: &str) -> Vec<String> {
        let mut all = self.mirrors.get(registry).cloned().unwrap_or_default();
        if !all.iter().any(|endpoint| endpoint == registry) {
            all.push(registry.to_owned());
        }
        all
    }
}

#[derive(Debug, Clone)]
pub struct Reference {
    registry: String,
    name: String,
    tag: Option<String>,
    digest: Option<Digest>,
    /// Neither tag nor digest was written.
    is_bare: bool,
}

impl PartialEq for Reference {
    fn eq(&self, other: &Self) -> bool {
        (&self.registry, &self.name, &self.tag, self.digest) == (&other.registry, &other.name, &other.tag, other.digest)
    }
}

impl Eq for Reference {}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text} is no image reference: {why}")]
pub struct NoReference {
    text: String,
    why: String,
}

impl NoReference {
    fn new(text: &str, why: impl Into<String>) -> Self {
        NoReference { text: text.chars().take(200).flat_map(char::escape_default).collect(), why: why.into() }
    }
}

impl Reference {
    pub fn parse(text: &str, names: &Names) -> Result<Self, NoReference> {
        let wrong = |why: &str| NoReference::new(text, why);
        if text.is_empty() {
            return Err(wrong("it is empty"));
        }
        if text.len() > LONGEST {
            return Err(wrong("it is too long"));
        }
        let (rest, digest) = match text.split_once('@') {
            None => (text, None),
            Some((rest, digest)) => (rest, Some(digest.parse::<Digest>().map_err(|error| wrong(&error.to_string()))?)),
        };
        let (host, rest) = match rest.split_once('/') {
            Some((first, rest)) if is_host(first) => (Some(first), rest),
            _ => (None, rest),
        };
        // A colon before a slash belongs to a host.
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        let registry = match host {
            None => names.default_registry.clone(),
            Some(host) => {
                check_host(host).map_err(&wrong)?;
                let host = host.to_ascii_lowercase();
                names.same.get(&host).cloned().unwrap_or(host)
            }
        };
        if registry.is_empty() {
            return Err(wrong("it names no registry, and none is configured for such names"));
        }
        let name = match name.contains('/') || registry != names.default_registry {
            true => name.to_owned(),
            false => format!("library/{name}"),
        };
        check_name(&name).map_err(&wrong)?;
        if let Some(tag) = tag {
            check_tag(tag).map_err(&wrong)?;
        }
        let is_bare = tag.is_none() && digest.is_none();
        let tag = match (tag, digest) {
            (None, None) => Some("latest".to_owned()),
            (tag, _) => tag.map(str::to_owned),
        };
        Ok(Reference { registry, name, tag, digest, is_bare })
    }

    /// Of a registry that is named; nothing is added to the name.
    pub fn at(registry: &str, name: &str, tag: Option<&str>, digest: Option<Digest>) -> Result<Self, NoReference> {
        let wrong = |why: &str| NoReference::new(&format!("{registry}/{name}"), why);
        check_host(registry).map_err(&wrong)?;
        check_name(name).map_err(&wrong)?;
        if let Some(tag) = tag {
            check_tag(tag).map_err(&wrong)?;
        }
        let tag = tag.map(str::to_owned);
        Ok(Reference { registry: registry.to_owned(), name: name.to_owned(), is_bare: false, tag, digest })
    }

    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository: the name within the registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What is asked for in the registry: the digest, else the tag.
    pub fn target(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.clone().unwrap_or_else(|| "latest".to_owned()),
        }
    }

    /// The same image, fixed.
    pub fn with_digest(&self, digest: Digest) -> Self {
        Reference { digest: Some(digest), ..self.clone() }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.name)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn is_host(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = match host.rsplit_once(':') {
        // The colons of an IPv6 address are in brackets.
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (host, None),
    };
    if let Some(port) = port
        && (port.is_empty()
            || port.len() > 5
            || !port.bytes().all(|digit| digit.is_ascii_digit())
            || port.parse::<u16>().is_err())
    {
        return Err("the port of its registry is no number from 0 to 65535");
    }
    if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        return match address.parse::<std::net::Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err("the address of its registry is no IPv6 address"),
        };
    }
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    match name.len() <= 253 && name.split('.').all(is_label) {
        true => Ok(()),
        false => Err("the name of its registry is no host name"),
    }
}

/// Parts of lower-case letters and digits, with `.`, `_`, `__` or dashes between them.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.len() > LONGEST_NAME {
        return Err("its name has more than 255 characters");
    }
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("its name has capital letters");
    }
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        let ends = bytes.first().zip(bytes.last()).is_some_and(|(first, last)| is_plain(*first) && is_plain(*last));
        let between = part.split(|character: char| character.is_ascii() && is_plain(character as u8));
        ends && between
            .into_iter()
            .all(|between| matches!(between, "" | "." | "_" | "__") || between.bytes().all(|byte| byte == b'-'))
    };
    match name.split('/').all(is_part) {
        true => Ok(()),
        false => Err("its name has other than lower-case letters, digits and single separators"),
    }
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let good = tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || matches!(byte, b'.' | b'-'));
    match good {
        true => Ok(()),
        false => Err("its tag is not 1 to 128 letters, digits, dots, dashes and underscores"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names() -> Names {
        Names {
            default_registry: "registry.example".into(),
            same: [("index.registry.example".into(), "registry.example".into())].into(),
            mirrors: [("registry.example".into(), vec!["mirror.example:5000/proxy".into()])].into(),
            aliases: BTreeMap::new(),
        }
    }

    fn shown(text: &str) -> String {
        match Reference::parse(text, &names()) {
            Ok(reference) => reference.to_string(),
            Err(error) => error.why,
        }
    }

    const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn names_get_what_is_left_out() {
        assert_eq!(shown("ubuntu"), "registry.example/library/ubuntu:latest");
        assert_eq!(shown("ubuntu:22.04"), "registry.example/library/ubuntu:22.04");
        assert_eq!(shown("e2bdev/base"), "registry.example/e2bdev/base:latest");
        assert_eq!(shown("registry.example/ubuntu"), "registry.example/library/ubuntu:latest");
        assert_eq!(shown("index.registry.example/ubuntu"), "registry.example/library/ubuntu:latest");
        assert_eq!(shown("other.example/ubuntu"), "other.example/ubuntu:latest");
    }

    #[test]
    fn the_first_part_is_a_registry_only_if_it_looks_like_a_host() {
        assert_eq!(shown("localhost/x"), "localhost/x:latest");
        assert_eq!(shown("localhost:5000/x"), "localhost:5000/x:latest");
        assert_eq!(shown("myhost/x"), "registry.example/myhost/x:latest");
        assert_eq!(shown("myhost:80/x:y"), "myhost:80/x:y");
        assert_eq!(shown("[::1]:5000/x"), "[::1]:5000/x:latest");
        assert_eq!(shown("Example.COM/x"), "example.com/x:latest");
    }

    #[test]
    fn the_digest_wins_and_the_tag_is_kept() {
        let both = Reference::parse(&format!("a/b:c@{DIGEST}"), &names()).unwrap();
        assert_eq!(both.target(), DIGEST);
        assert_eq!(both.tag(), Some("c"));
        let only = Reference::parse(&format!("a/b@{DIGEST}"), &names()).unwrap();
        assert_eq!(only.tag(), None);
        assert_eq!(only.to_string(), format!("registry.example/a/b@{DIGEST}"));
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "empty"),
            ("UPPER", "capital"),
            ("a//b", "separators"),
            ("a/../b", "separators"),
            ("../b", "host name"),
            ("./b", "host name"),
            ("a_-b", "separators"),
            ("a:", "tag"),
            ("a:b c", "tag"),
            ("a:.b", "tag"),
            ("a@sha256:12", "no digest"),
            ("a@md5:12", "no digest"),
            ("host:99999/a", "port"),
            ("host:/a", "port"),
            ("-a.b/c", "host name"),
            ("user@host.example/a", "no digest"),
            ("http://host/a", "port"),
            ("a\nb", "separators"),
            ("ä", "separators"),
            ("[::1/a", "host name"),
            ("[zz]:1/a", "IPv6"),
        ] {
            assert!(shown(text).contains(why), "{text}: {}", shown(text));
        }
        assert!(shown(&"a".repeat(256)).contains("255"));
        assert!(shown(&"a".repeat(2000)).contains("too long"));
        assert!(shown(&format!("a:{}", "t".repeat(129))).contains("128"));
    }

    #[test]
    fn names_without_a_registry_need_a_default() {
        let none = Names::default();
        assert!(Reference::parse("ubuntu", &none).unwrap_err().to_string().contains("names no registry"));
        assert_eq!(Reference::parse("h.example/u", &none).unwrap().to_string(), "h.example/u:latest");
    }

    #[test]
    fn mirrors_come_before_the_registry_itself() {
        assert_eq!(names().endpoints("registry.example"), ["mirror.example:5000/proxy", "registry.example"]);
        assert_eq!(names().endpoints("other.example"), ["other.example"]);
    }

    #[test]
    fn an_alias_replaces_one_tag_or_all_of_them() {
        let mut names = names();
        names.aliases = [
            ("ubuntu:22.04", Alias::Own("base".to_owned())),
            ("python", Alias::Image("mirror.example/python:3".to_owned())),
            ("python:2", Alias::Image("old/python:2".to_owned())),
            ("round", Alias::Image("round:about".to_owned())),
            ("round:about", Alias::Image("round:up".to_owned())),
            ("one", Alias::Image("one:1".to_owned())),
        ]
        .map(|(name, alias)| (name.to_owned(), alias))
        .into();
        let meant = |text: &str| match names.resolve(text) {
            Ok(Meant::Image(reference)) => reference.to_string(),
            Ok(Meant::Own(own)) => format!("own {own}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(meant("ubuntu:22.04"), "own base");
        assert_eq!(meant("registry.example/library/ubuntu:22.04"), "own base");
        assert_eq!(meant("one:2"), "registry.example/library/one:1");
        assert_eq!(meant("ubuntu:24.04"), "registry.example/library/ubuntu:24.04");
        assert_eq!(meant("python:3.11-slim"), "mirror.example/python:3");
        assert_eq!(meant("python:2"), "registry.example/old/python:2");
        assert_eq!(meant(&format!("python@{DIGEST}")), format!("registry.example/library/python@{DIGEST}"));
        assert!(meant("round:about").contains("circle"));
    }

    proptest! {
        #[test]
        fn a_reference_reads_back_as_it_is_shown(text in "[a-zA-Z0-9./:@_\\-]{0,60}") {
            let names = names();
            if let Ok(reference) = Reference::parse(&text, &names) {
                prop_assert_eq!(Reference::parse(&reference.to_string(), &names), Ok(reference));
            }
        }
    }
}
