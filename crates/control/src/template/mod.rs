//! What a sandbox starts from.
//!
//! The built-in `base` needs no image: it shows the host's own `/usr`. Others are built of recipes (`recipe/`), for
//! everybody by an operator or for one organisation by itself. `code-interpreter` is `base` until it is built, so that the
//! SDKs' default name works from the first minute.
//!
//! * [`record`]: names and owner of a template; its files are its builds' (`build`)
//! * [`name`]: how templates are called; [`resolve`]: from that to a build
//! * [`installed`]: those that were built for everybody; [`built`]: the note that `cove run` finds them by
//! * `origin`: environments that people know by name, and images, for new sandboxes
//! * [`boot`]: the start and ready commands of a new sandbox

mod boot;
mod built;
mod installed;
mod manage;
pub mod name;
mod notes;
mod origin;
mod record;
mod resolve;
mod tag;

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::provider::{Image, Isolation, Limits};
use crate::recipe::{Recipe, Recipes};

pub use self::built::{Built, Unusable};
pub use self::manage::{NewTemplate, Overview, TemplateChange};
pub use self::name::DEFAULT_TAG;
pub use self::record::{Kind, Record, Tag, Visibility};

/// Of a template's id: letters and digits.
pub const ID_LENGTH: usize = 20;

/// A template with the build that was chosen: what a sandbox starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Template {
    pub id: String,
    pub name: String,
    /// Other names of the template.
    pub aliases: Vec<String>,
    pub description: String,
    /// What is missing compared with its description, and what to do about it.
    pub note: Option<String>,
    /// Nothing can be started from it: its recipe was never built here.
    #[serde(default)]
    pub missing: bool,
    /// What its sandboxes start from.
    pub image: Image,
    pub limits: Limits,
    pub env: BTreeMap<String, String>,
    /// The user of commands that name none.
    pub user: String,
    pub cwd: Option<String>,
    /// A command that runs from the start of every sandbox on.
    #[serde(default)]
    pub start: Option<String>,
    /// Succeeds once the start command has done its work.
    #[serde(default)]
    pub ready: Option<String>,
    /// The weakest isolation that its sandboxes may have.
    #[serde(default)]
    pub isolation: Option<Isolation>,
    /// For cells: its sandboxes start their interpreter ahead.
    pub interpreter: bool,
    /// The organisation that owns it; a built-in belongs to everybody.
    pub organisation: Option<String>,
    #[serde(default)]
    pub visibility: Visibility,
    /// The provider that has its files; any where it has none.
    #[serde(default)]
    pub provider: Option<String>,
    /// The build that was chosen; none where nothing had to be built.
    #[serde(default)]
    pub build: Option<String>,
    /// The sandbox that the build was captured of.
    #[serde(default)]
    pub source_sandbox: Option<String>,
    /// When it was built on this machine; one that needs no building was not.
    pub built_at: Option<Timestamp>,
}

/// The template that needs no building.
pub fn base() -> Template {
    Template {
        id: "base".into(),
        name: "base".into(),
        aliases: vec!["default".into()],
        description: "the host's own programs (python, node, git …) under a private root, home and network".into(),
        note: None,
        missing: false,
        image: Image::default(),
        limits: Limits::default(),
        env: BTreeMap::new(),
        user: "user".into(),
        cwd: None,
        start: None,
        ready: None,
        isolation: None,
        interpreter: false,
        organisation: None,
        visibility: Visibility::Public,
        provider: None,
        build: None,
        source_sandbox: None,
        built_at: None,
    }
}

/// The templates that a machine has without asking a server: `base`, and what its server built for everybody. Recipes that
/// are not built are among them, and say so. `data` is the server's data directory.
pub fn built_in(data: &Path) -> Vec<Template> {
    let recipes = Recipes::load(&data.join("recipes"));
    let mut all = vec![base()];
    for recipe in recipes.all.values() {
        let mut template = Template::of_recipe(recipe);
        match Built::load(data, &recipe.name) {
            Ok(built) => built.describe(&mut template),
            Err(unusable) => template.lacks(recipe, &unusable),
        }
        all.push(template);
    }
    // What was built stays usable without its recipe.
    for name in Built::names(data) {
        if recipes.all.contains_key(&name) {
            continue;
        }
        if let Ok(built) = Built::load(data, &name) {
            let mut template = Template { id: name.clone(), name, aliases: Vec::new(), ..base() };
            built.describe(&mut template);
            all.push(template);
        }
    }
    all
}

impl Template {
    /// What a recipe makes, before it is built.
    pub(crate) fn of_recipe(recipe: &Recipe) -> Template {
        Template {
            id: recipe.name.clone(),
            name: recipe.name.clone(),
            aliases: recipe.aliases.clone(),
            description: recipe.description.clone(),
            interpreter: recipe.interpreter,
            ..base()
        }
    }

    /// It cannot be had as it is described, for this reason.
    pub(crate) fn lacks(&mut self, recipe: &Recipe, unusable: &Unusable) {
        let until = if recipe.until_built { "; until then its sandboxes have base alone" } else { "" };
        self.note = Some(format!("{unusable}{until}"));
        self.missing = !recipe.until_built;
    }

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
    use cove_protocol::LayerId;

    use super::*;
    use crate::provider::{Root, Under};

    const NAME: &str = "code-interpreter";

    fn find(data: &Path, name: &str) -> Template {
        built_in(data).into_iter().find(|template| template.answers_to(name)).unwrap()
    }

    #[test]
    fn the_sdks_default_name_works_before_anything_is_built_and_says_what_to_do() {
        let data = tempfile::tempdir().unwrap();
        let found = find(data.path(), "code-interpreter-v1");
        assert_eq!((found.image.clone(), found.missing), (Image::default(), false));
        assert!(found.note.as_ref().unwrap().contains("cove template build code-interpreter"), "{:?}", found.note);
        assert!(!found.is_ready());
        // A name that nobody relies on is not something else until it is built.
        let node = find(data.path(), "node");
        assert!(node.missing && node.note.unwrap().contains("cove template build node"));
        assert!(find(data.path(), "base").is_ready());
    }

    #[test]
    fn a_built_template_lies_over_base_and_one_that_lost_its_layer_says_so() {
        let data = tempfile::tempdir().unwrap();
        let layer: LayerId = "ab".repeat(32).parse().unwrap();
        let built = Built {
            layers: vec![layer],
            packages: vec!["numpy".into()],
            env: [("A".into(), "b".into())].into(),
            bytes: 1,
            built_at: "2026-01-01T00:00:00Z".into(),
            ..Built::default()
        };
        built.save(data.path(), NAME).unwrap();
        assert!(find(data.path(), NAME).note.unwrap().contains("is missing"));
        // Where earlier versions kept them, and a server that starts finds them.
        std::fs::create_dir_all(data.path().join("layers").join(layer.to_string()).join("usr")).unwrap();
        let template = find(data.path(), NAME);
        let root = Root { under: Under::Host, over: vec![layer] };
        assert_eq!((template.image, template.note), (root.into(), None));
        assert_eq!(template.env["A"], "b");
        assert!(template.description.contains("numpy"));
    }

    #[test]
    fn a_note_outlives_its_recipe() {
        let data = tempfile::tempdir().unwrap();
        let layer: LayerId = "cd".repeat(32).parse().unwrap();
        std::fs::create_dir_all(data.path().join("layers").join(layer.to_string()).join("usr")).unwrap();
        let built = Built {
            layers: vec![layer],
            aliases: vec!["tools-v1".into()],
            description: Some("tools".into()),
            user: Some("ada".into()),
            ..Built::default()
        };
        built.save(data.path(), "tools").unwrap();
        let found = find(data.path(), "tools-v1");
        assert_eq!((found.name.as_str(), found.user.as_str(), found.missing), ("tools", "ada", false));
        assert_eq!(found.description, "tools");
    }
}
