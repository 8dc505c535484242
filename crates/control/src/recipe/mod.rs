//! Recipes: templates as data. A recipe says what a template stands on, the steps that make it, and what its sandboxes have
//! by default; the server builds it like every other template.
//!
//! ```text
//!   recipes/NAME/recipe.toml ──file──▶ Recipe ──order──▶ NewTemplate + Request ──▶ a build (`build/`)
//!         ▲ built in, or in a folder of the operator's
//! ```
//!
//! * [`file`]: a recipe as it is written; what is not understood is refused with its line
//! * [`order`]: a recipe with a caller's wishes, as a build
//! * [`shelf`]: which recipes there are, and whether they are built

mod file;
mod order;
mod shelf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

pub use self::file::Problem;
pub use self::order::{Ordered, Wishes};
pub use self::shelf::Listed;
use crate::build::{Act, Base};
use crate::provider::Isolation;
use crate::sandbox::LimitsChange;
use crate::template::name::check_name;
use crate::{App, Error};

/// The file of a recipe that is a folder.
const FILE: &str = "recipe.toml";
/// Recipes of one folder.
const MOST: usize = 256;

/// The recipes of every installation: their names, and the files of their folders.
const BUILT_IN: [(&str, &[(&str, &str)]); 4] = [
    (
        "code-interpreter",
        &[
            (FILE, include_str!("../../recipes/code-interpreter/recipe.toml")),
            ("install.sh", include_str!("../../recipes/code-interpreter/install.sh")),
        ],
    ),
    (
        "node",
        &[
            (FILE, include_str!("../../recipes/node/recipe.toml")),
            ("install.sh", include_str!("../../recipes/node/install.sh")),
        ],
    ),
    (
        "desktop",
        &[
            (FILE, include_str!("../../recipes/desktop/recipe.toml")),
            ("install.sh", include_str!("../../recipes/desktop/install.sh")),
            ("cove-desktop", include_str!("../../recipes/desktop/cove-desktop")),
            ("index.html", include_str!("../../recipes/desktop/index.html")),
        ],
    ),
    (
        "agents",
        &[
            (FILE, include_str!("../../recipes/agents/recipe.toml")),
            ("install.sh", include_str!("../../recipes/agents/install.sh")),
        ],
    ),
];

/// Those of [`BUILT_IN`], read once.
static READ: LazyLock<Recipes> = LazyLock::new(|| {
    let mut recipes = Recipes::default();
    for (name, files) in BUILT_IN {
        let find = |wanted: &str| files.iter().find(|(file, _)| *file == wanted).map(|(_, text)| (*text).to_owned());
        let read = |wanted: &str| find(wanted).ok_or_else(|| format!("there is no file {wanted:?}"));
        recipes.take(name, None, read(FILE).map_err(Problem::from).and_then(|text| file::read(name, &text, &read)));
    }
    recipes
});

/// A template that can be built.
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    /// Of the template too.
    pub name: String,
    /// Other names of the template.
    pub aliases: Vec<String>,
    pub description: String,
    /// What it needs of the machine or of the network, in plain words.
    pub needs: Vec<String>,
    pub base: Base,
    /// A command that runs from the start of every sandbox on.
    pub start: Option<String>,
    /// Succeeds once the start command has done its work.
    pub ready: Option<String>,
    /// What its sandboxes get unless they ask for other limits.
    pub limits: LimitsChange,
    /// The weakest isolation that its sandboxes may have.
    pub isolation: Option<Isolation>,
    /// For cells: its sandboxes start their interpreter ahead.
    pub interpreter: bool,
    /// Until it is built its sandboxes are those of `base`, so that its name always works.
    pub until_built: bool,
    /// Its files are for the version of Python that the machine has.
    pub host_python: bool,
    pub arguments: BTreeMap<String, Argument>,
    pub secrets: BTreeMap<String, Secret>,
    pub variants: BTreeMap<String, Variant>,
    pub steps: Vec<Act>,
    /// The file as it is written.
    pub text: String,
    /// Where it lies; nowhere where it is built in.
    pub path: Option<PathBuf>,
}

/// A value that a caller may choose. Commands of the recipe have it as a variable, sandboxes do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub description: String,
    pub kind: Kind,
    pub default: String,
}

/// What the value of an argument may be. Scripts use it without quotes where it is several words, so it has no letter that
/// would mean something else there, and no word that a package manager would take for a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = RecipeArgumentKind)]
pub enum Kind {
    /// Any text of one line.
    #[default]
    Line,
    /// Letters, digits, '.', '_', '-' and '+'.
    Word,
    /// Names of packages, with versions where wanted, separated by spaces.
    Packages,
}

/// Something of the caller's that commands of the recipe may read, and that is in no layer, no log and no database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub description: String,
    /// The file that has it; otherwise a variable of its name.
    pub path: Option<String>,
}

/// Another form of the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variant {
    pub description: Option<String>,
    /// What it stands on, where that is another.
    pub base: Option<Base>,
    pub arguments: BTreeMap<String, String>,
}

impl Recipe {
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }
}

/// A file that is no recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bad {
    /// The name that it would have.
    pub name: String,
    pub path: Option<PathBuf>,
    pub problem: Problem,
}

impl std::fmt::Display for Bad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.path {
            Some(path) => write!(f, "{}: {}", path.display(), self.problem),
            None => write!(f, "recipe {}: {}", self.name, self.problem),
        }
    }
}

/// All that there are.
#[derive(Debug, Clone, Default)]
pub struct Recipes {
    /// By name.
    pub all: BTreeMap<String, Arc<Recipe>>,
    pub bad: Vec<Bad>,
}

impl Recipes {
    /// Those that every installation has.
    pub fn built_in() -> Recipes {
        READ.clone()
    }

    /// With those of a folder, each `NAME/recipe.toml` or `NAME.toml`, which count before built-in ones of the same name. A
    /// folder that is not there has none.
    pub fn load(folder: &Path) -> Recipes {
        let mut recipes = Recipes::built_in();
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return recipes,
            Err(error) => {
                let problem = Problem::whole(error.to_string());
                recipes.bad.push(Bad { name: String::new(), path: Some(folder.to_owned()), problem });
                return recipes;
            }
        };
        let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths.into_iter().take(MOST) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            if path.is_dir() {
                let (name, file) = (name.to_owned(), path.join(FILE));
                let beside = |wanted: &str| text(&path.join(wanted));
                let read = beside(FILE).map_err(Problem::from).and_then(|text| file::read(&name, &text, &beside));
                recipes.take(&name, Some(file), read);
            } else if let Some(name) = name.strip_suffix(".toml").map(ToOwned::to_owned) {
                let alone = |wanted: &str| -> Result<String, String> {
                    Err(format!("{wanted:?}: a recipe of one file has none beside it; make it a folder, {name}/{FILE}"))
                };
                let read = text(&path).map_err(Problem::from).and_then(|text| file::read(&name, &text, &alone));
                recipes.take(&name, Some(path.clone()), read);
            }
        }
        recipes
    }

    fn take(&mut self, name: &str, path: Option<PathBuf>, read: Result<Recipe, Problem>) {
        let named = || match check_name(name) {
            Ok(()) if ["base", "default"].contains(&name) => {
                Err(Problem::whole("base is no recipe: choose another name"))
            }
            Ok(()) => Ok(()),
            Err(error) => Err(Problem::whole(error.to_string())),
        };
        match named().and(read) {
            Ok(recipe) => {
                self.all.insert(name.to_owned(), Arc::new(Recipe { path, ..recipe }));
            }
            Err(problem) => self.bad.push(Bad { name: name.to_owned(), path, problem }),
        }
    }

    /// By name or alias.
    pub fn find(&self, name: &str) -> Option<&Arc<Recipe>> {
        self.all.get(name).or_else(|| self.all.values().find(|recipe| recipe.answers_to(name)))
    }

    /// One that is to be built. A file that cannot be read is never passed over for a built-in one of the same name.
    pub fn wanted(&self, name: &str) -> Result<&Arc<Recipe>, Error> {
        if let Some(bad) = self.bad.iter().find(|bad| bad.name == name) {
            return Err(Error::Conflict(format!("recipe {name} of this server cannot be read: {}", bad.problem)));
        }
        self.find(name).ok_or_else(|| Error::not_found("recipe", name))
    }
}

/// A text of a file, if it is not too long.
fn text(path: &Path) -> Result<String, String> {
    use std::io::Read as _;
    let most = crate::build::request::TEXT_MAX as u64;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(most + 1).read_to_string(&mut text));
    match read {
        Ok(length) if length as u64 > most => Err(format!("{name}: more than {} KiB", most >> 10)),
        Ok(_) => Ok(text),
        Err(error) => Err(format!("{name}: {error}")),
    }
}

impl App {
    /// The recipes of this server, as they are now.
    pub fn recipes(&self) -> Recipes {
        Recipes::load(&self.recipe_folder())
    }

    /// Where the operator's own recipes lie.
    pub fn recipe_folder(&self) -> PathBuf {
        let config = self.config();
        config.builds.recipes.clone().unwrap_or_else(|| config.data.join("recipes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_ones_can_be_read() {
        let recipes = Recipes::built_in();
        assert!(recipes.bad.is_empty(), "{:?}", recipes.bad);
        let names: Vec<&str> = recipes.all.keys().map(String::as_str).collect();
        assert_eq!(names, ["agents", "code-interpreter", "desktop", "node"]);
        assert_eq!(recipes.find("code-interpreter-v1").unwrap().name, "code-interpreter");
        for recipe in recipes.all.values() {
            assert!(!recipe.needs.is_empty() && !recipe.steps.is_empty(), "{}", recipe.name);
            // Each variant can be ordered.
            for variant in recipe.variants.keys().map(Some).chain([None]) {
                let wishes = Wishes { variant: variant.cloned(), ..Wishes::default() };
                assert!(recipe.order(&wishes).is_ok(), "{} {variant:?}", recipe.name);
            }
        }
    }

    #[test]
    fn code_interpreter_has_what_people_who_come_from_e2b_expect() {
        let recipes = Recipes::built_in();
        let recipe = recipes.find("code-interpreter").unwrap();
        let packages = &recipe.arguments["PACKAGES"].default;
        for package in ["ipython", "numpy", "pandas", "scipy", "scikit-learn", "seaborn", "plotly", "openpyxl"] {
            assert!(packages.split(' ').any(|one| one == package), "{package} in {packages}");
        }
        assert!(recipe.interpreter && recipe.until_built && recipe.host_python);
    }

    fn written(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_has_recipes_of_its_own_and_they_come_first() {
        let folder = written(&[
            ("tools/recipe.toml", "description = \"t\"\n[[steps]]\nrun.script = \"make.sh\"\n"),
            ("tools/make.sh", "# Makes it\ntrue\n"),
            ("node.toml", "description = \"mine\"\n[[steps]]\nrun.command = \"true\"\n"),
            ("notes.txt", "not a recipe"),
        ]);
        let recipes = Recipes::load(folder.path());
        assert!(recipes.bad.is_empty(), "{:?}", recipes.bad);
        assert_eq!(recipes.wanted("node").unwrap().description, "mine");
        let tools = recipes.wanted("tools").unwrap();
        assert_eq!(tools.path.as_deref(), Some(folder.path().join("tools/recipe.toml").as_path()));
        assert!(matches!(&tools.steps[0], Act::Run { command, .. } if command.starts_with("# Makes it")));
        assert!(matches!(recipes.wanted("nothing"), Err(Error::NotFound { .. })));
        assert_eq!(Recipes::load(Path::new("/nowhere/at/all")).all.len(), BUILT_IN.len());
    }

    #[test]
    fn one_that_cannot_be_read_is_named_and_none_takes_its_place() {
        let folder = written(&[
            ("node/recipe.toml", "description = \"n\"\nstep = 1\n"),
            ("base.toml", "description = \"b\"\n[[steps]]\nrun.command = \"true\"\n"),
            ("Big Name.toml", ""),
            ("lone.toml", "description = \"l\"\n[[steps]]\nrun.script = \"x.sh\"\n"),
            ("empty/other", ""),
        ]);
        let recipes = Recipes::load(folder.path());
        let told: Vec<String> = recipes.bad.iter().map(ToString::to_string).collect();
        let has = |name: &str, part: &str| told.iter().any(|one| one.contains(name) && one.contains(part));
        assert!(has("node/recipe.toml", "line 2: unknown field `step`"), "{told:?}");
        assert!(has("base.toml", "base is no recipe") && has("Big Name.toml", "a name has"), "{told:?}");
        assert!(has("lone.toml", "line 2") && has("lone.toml", "make it a folder"), "{told:?}");
        assert!(has("empty/recipe.toml", "No such file"), "{told:?}");
        // The built-in one is there for those who have built it, and not to be built instead.
        assert!(recipes.find("node").is_some());
        let error = recipes.wanted("node").unwrap_err().to_string();
        assert!(error.contains("line 2: unknown field `step`"), "{error}");
    }
}
