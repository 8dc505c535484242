//! The kinds of providers: how each is named in `[providers.NAME]`, what keys its section has, and how it is opened.

use std::path::Path;
use std::sync::Arc;

#[cfg(feature = "fake")]
use super::fake;
use super::{Provider, codesandbox, daytona, docker, e2b, local, vercel};
use crate::Error;
use crate::config::key::SectionKey;
use crate::config::{Config, Section};

/// A kind of provider, defined in the provider's own file.
pub struct Kind {
    /// As in `kind = "…"`.
    pub name: &'static str,
    /// What its section may set, beside `kind`.
    pub keys: &'static [SectionKey],
    pub count: Count,
    /// Blocking; called before serving.
    pub open: fn(&Opening<'_>) -> Result<Arc<dyn Provider>, Error>,
}

/// How many of a kind a server can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    One,
    Any,
}

/// What a provider is opened with.
pub struct Opening<'a> {
    /// The name of its section.
    pub name: &'a str,
    pub section: &'a Section,
    pub config: &'a Config,
    /// This program, which helpers of a provider run.
    pub program: &'a Path,
}

/// Every kind that this program has, for people in this order.
static KINDS: &[&Kind] = &[
    &local::KIND,
    &docker::KIND,
    &e2b::KIND,
    &daytona::KIND,
    &vercel::KIND,
    &codesandbox::KIND,
    #[cfg(feature = "fake")]
    &fake::KIND,
];

impl Kind {
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.iter().copied().find(|kind| kind.name == name)
    }

    /// All of them.
    pub fn all() -> &'static [&'static Kind] {
        KINDS
    }

    /// All of them, for people.
    pub fn names() -> String {
        KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Kind) -> bool {
        self.name == other.name
    }
}

/// The providers that a server has by its configuration. `program` is the path of this program. Blocking; call it before
/// serving.
pub fn configured(config: &Config, program: &Path) -> Result<Vec<Arc<dyn Provider>>, Error> {
    let open = |(name, section): (&String, &Section)| {
        let kind = Kind::named(&section.kind).ok_or_else(|| {
            let message = format!("{:?} is not one of {}", section.kind, Kind::names());
            Error::invalid(format!("providers.{name}.kind"), message)
        })?;
        (kind.open)(&Opening { name, section, config, program })
    };
    config.sections().iter().map(open).collect()
}
