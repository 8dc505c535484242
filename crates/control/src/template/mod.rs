//! What a sandbox starts from.
//!
//! The built-in `base` needs no image: it shows the host's own `/usr`. `code-interpreter` adds packages to it once they
//! are built (`cove template build code-interpreter`), and is `base` until then, so that the SDKs' default name works
//! from the first minute.

mod built;
mod unused;

use std::collections::BTreeMap;
use std::path::Path;

use cove_engine::spec::{Limits, Root};
use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

pub use self::built::{Built, CODE_INTERPRETER, ROOM, Unusable, layers_of};
pub use self::unused::{Held, hold};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub id: String,
    pub name: String,
    /// Other names of the template.
    pub aliases: Vec<String>,
    pub description: String,
    /// What is missing compared with its description, and what to do about it.
    pub note: Option<String>,
    pub root: Root,
    pub limits: Limits,
    pub env: BTreeMap<String, String>,
    /// The user of commands that name none.
    pub user: String,
    pub cwd: Option<String>,
    /// For cells: its sandboxes start their interpreter ahead.
    pub interpreter: bool,
    /// The organisation that owns it; a built-in belongs to everybody.
    pub organisation: Option<String>,
    /// When it was built on this machine; one that needs no building was not.
    pub built_at: Option<Timestamp>,
}

/// The templates that every installation has. `data` is the server's data directory.
pub fn built_in(data: &Path, limits: Limits) -> Vec<Template> {
    let base = Template {
        id: "base".into(),
        name: "base".into(),
        aliases: vec!["default".into()],
        description: "the host's own programs (python, node, git …) under a private root, home and network".into(),
        note: None,
        root: Root::Base,
        limits,
        env: BTreeMap::new(),
        user: "user".into(),
        cwd: None,
        interpreter: false,
        organisation: None,
        built_at: None,
    };
    let code_interpreter = code_interpreter(data, &base);
    vec![base, code_interpreter]
}

fn code_interpreter(data: &Path, base: &Template) -> Template {
    let mut template = Template {
        id: CODE_INTERPRETER.into(),
        name: CODE_INTERPRETER.into(),
        aliases: vec!["code-interpreter-v1".into()],
        description: "base with IPython, numpy, pandas and matplotlib, for cells with rich results".into(),
        interpreter: true,
        ..base.clone()
    };
    match Built::load(data, CODE_INTERPRETER) {
        Ok(built) => {
            template.root = Root::BaseWith(built.roots(data));
            template.built_at = built.built_at.parse().ok();
            template.env = built.env;
            template.description = format!("base with {} for cells with rich results", built.packages.join(", "));
        }
        Err(unusable) => template.note = Some(unusable.to_string()),
    }
    template
}

impl Template {
    /// Whether it is all that its description says.
    pub fn is_ready(&self) -> bool {
        self.note.is_none()
    }

    pub fn answers_to(&self, name: &str) -> bool {
        self.id == name || self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sdks_default_name_works_before_anything_is_built_and_says_what_to_do() {
        let data = tempfile::tempdir().unwrap();
        let all = built_in(data.path(), Limits::default());
        let found = all.iter().find(|template| template.answers_to("code-interpreter-v1")).unwrap();
        assert_eq!(found.root, Root::Base);
        assert!(found.note.as_ref().unwrap().contains("cove template build code-interpreter"), "{:?}", found.note);
    }

    #[test]
    fn a_built_template_lies_over_base_and_one_that_lost_its_layer_says_so() {
        let data = tempfile::tempdir().unwrap();
        let layer = "ab".repeat(32);
        let built = Built {
            layers: vec![layer.clone()],
            python: String::new(),
            packages: vec!["numpy".into()],
            env: [("A".into(), "b".into())].into(),
            bytes: 1,
            built_at: "2026-01-01T00:00:00Z".into(),
        };
        built.save(data.path(), CODE_INTERPRETER).unwrap();
        let tell = || built_in(data.path(), Limits::default()).remove(1);
        assert!(tell().note.unwrap().contains("is missing"));
        let usr = layers_of(data.path()).join(&layer).join("usr");
        std::fs::create_dir_all(&usr).unwrap();
        let template = tell();
        assert_eq!((template.root, template.note), (Root::BaseWith(vec![usr]), None));
        assert_eq!(template.env["A"], "b");
        assert!(template.description.contains("numpy"));
    }
}
