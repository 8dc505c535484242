//! What a sandbox starts from.
//!
//! The built-in `base` needs no image: it shows the host's own `/usr`. Names that the SDKs send when a person named
//! nothing lead to it too.

use std::collections::BTreeMap;

use cove_engine::spec::{Limits, Root};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub id: String,
    pub name: String,
    /// Other names that lead here.
    pub aliases: Vec<String>,
    pub description: String,
    pub root: Root,
    pub limits: Limits,
    pub env: BTreeMap<String, String>,
    /// Who runs a command that names nobody.
    pub user: String,
    pub cwd: Option<String>,
    /// Whose it is; a built-in is everybody's.
    pub organisation: Option<String>,
}

/// The templates that every installation has.
pub fn built_in(limits: Limits) -> Vec<Template> {
    vec![Template {
        id: "base".into(),
        name: "base".into(),
        aliases: vec!["default".into(), "code-interpreter-v1".into()],
        description: "the host's own programs (python, node, git …) under a private root, home and network".into(),
        root: Root::Base,
        limits,
        env: BTreeMap::new(),
        user: "user".into(),
        cwd: None,
        organisation: None,
    }]
}

impl Template {
    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}
