//! What a template is made of, as a caller writes it.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::extract::object;
use super::files::parse_mode;
use crate::Error;
use crate::build::{Act, Base, Confidential, Credentials, Habits, NewStep, Recipe, Request, SecretMount};
use crate::provider::Isolation;
use crate::recipe::{Recipes, Wishes};
use crate::sandbox::LimitsChange;
use crate::template::name::Reference;
use crate::template::{NewTemplate, Visibility};

/// What steps begin with where nothing is named.
const USUAL: &str = "base";

/// A template to be built. One of yours that has the name gets another build.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateTemplate {
    /// `name` or `name:tag`.
    name: String,
    #[serde(deserialize_with = "object")]
    from: FromBody,
    /// A command that runs from the start of every sandbox on; the image's own where absent.
    #[serde(default)]
    start: Option<String>,
    /// A command that succeeds once the start command has done its work.
    #[serde(default)]
    ready: Option<String>,
    /// What every process inherits, beside what the image sets.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// The user of commands that name none; the image's own where absent.
    #[serde(default)]
    user: Option<String>,
    /// Where a command starts that names no directory; the image's own where absent.
    #[serde(default)]
    cwd: Option<String>,
    /// What its sandboxes get unless they ask for other limits.
    #[serde(default, deserialize_with = "object")]
    limits: LimitsChange,
    /// The weakest isolation that its sandboxes may have.
    #[serde(default)]
    isolation: Option<Isolation>,
    /// Words that lead to this build once it is ready; `default` where there are none.
    #[serde(default)]
    tags: Vec<String>,
    /// Other names.
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    description: Option<String>,
    /// Everybody of this installation may start sandboxes from it.
    #[serde(default)]
    public: Option<bool>,
    /// Where it is built; the server's default where absent.
    #[serde(default)]
    provider: Option<String>,
    /// Do every step anew, whatever was built before.
    #[serde(default)]
    force: bool,
    /// Who may pull the image. Of a Dockerfile's images those of one registry: the first that it names beside the server's
    /// usual one. Kept in memory until the build ends.
    #[serde(default)]
    registry: Option<RegistryBody>,
    /// For `RUN --mount=type=secret`, for steps that mount them, and for recipes that know them: values by name, in Base64.
    /// Kept in memory until the build ends, and in no layer.
    #[serde(default)]
    secrets: BTreeMap<String, String>,
    /// Private addresses that its commands may reach beside the internet, such as `10.1.2.3:443`: a package index of your
    /// own. Only an operator's key may open them, or the server's `private_targets`.
    #[serde(default)]
    allow: Vec<String>,
}

/// Exactly one of `image`, `template`, `dockerfile`, `archive` and `recipe`; or `steps` alone, which then begin with `base`.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FromBody {
    /// An image of a registry: name, tag or digest.
    image: Option<String>,
    /// Another template: name, tag or id.
    template: Option<String>,
    /// The text of a Dockerfile.
    dockerfile: Option<String>,
    /// An archive that was sent to `/build-files`: as `docker save` and OCI layouts have it, or the tar of a root.
    archive: Option<String>,
    /// With `archive`: of several images the one with this name.
    archive_name: Option<String>,
    /// With `dockerfile`: archives that were sent to `/build-files`; all of them together are the context.
    files: Vec<String>,
    /// With `dockerfile`: the stage that is wanted; the last where absent.
    target: Option<String>,
    /// A recipe of this server. Under the recipe's own name an operator builds it for everybody, others for themselves.
    recipe: Option<String>,
    /// With `recipe`: which of its variants.
    variant: Option<String>,
    /// With `dockerfile`: values of its `ARG`s. With `recipe`: values of its arguments.
    arguments: BTreeMap<String, String>,
    /// With `image` or `template`: what is done, one after the other.
    steps: Vec<StepBody>,
}

/// One step: an object with one field, which says what is done.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StepBody {
    Run(RunStep),
    Copy(CopyStep),
    File(FileStep),
    /// Variables for the steps that follow, and for the sandboxes.
    Env(BTreeMap<String, String>),
    /// Variables for the commands that follow, and for no sandbox.
    Arg(BTreeMap<String, String>),
    /// The directory of the steps that follow, and of the sandboxes; made if it is not there.
    Workdir(String),
    User(UserStep),
}

/// Run a command with the shell.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunStep {
    command: String,
    /// The user that an earlier step set where absent.
    #[serde(default)]
    user: Option<String>,
    /// Secrets of the request that the command may read.
    #[serde(default)]
    mounts: Vec<SecretBody>,
    /// Do it anew, although it was done before.
    #[serde(default)]
    force: bool,
}

/// A secret that one command may read, and that is in no layer.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SecretBody {
    /// Its name among `secrets`.
    name: String,
    /// Where the command finds it; `/run/secrets/NAME` where absent and no variable has it.
    #[serde(default)]
    path: Option<String>,
    /// The variable that has it.
    #[serde(default)]
    variable: Option<String>,
    /// Without it the step fails.
    #[serde(default)]
    required: bool,
}

impl From<SecretBody> for SecretMount {
    fn from(body: SecretBody) -> Self {
        SecretMount { name: body.name, path: body.path, variable: body.variable, required: body.required }
    }
}

/// Copy files of an archive that was sent to `/build-files`.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyStep {
    /// The archive.
    files: String,
    /// A path in it.
    source: String,
    destination: String,
    /// `user`, `user:group`, or numbers.
    #[serde(default)]
    owner: Option<String>,
    /// Permissions, octal such as `755`.
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    force: bool,
}

/// Write a text into a file.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FileStep {
    path: String,
    /// At most 1 MiB.
    content: String,
    /// `user`, `user:group`, or numbers.
    #[serde(default)]
    owner: Option<String>,
    /// Permissions, octal such as `755`.
    #[serde(default)]
    mode: Option<String>,
    #[serde(default)]
    force: bool,
}

/// The user of the steps that follow, and of the sandboxes; made if the image does not have it.
#[derive(Debug, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UserStep {
    name: String,
    /// May use sudo without a password.
    #[serde(default)]
    sudo: bool,
}

/// Who may pull, or push.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegistryBody {
    username: String,
    password: String,
}

impl From<RegistryBody> for Credentials {
    fn from(body: RegistryBody) -> Self {
        Credentials { username: body.username, password: body.password }
    }
}

impl std::fmt::Debug for RegistryBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RegistryBody({:?})", self.username)
    }
}

impl CreateTemplate {
    /// `recipes` are the server's.
    pub fn into_domain(self, recipes: &Recipes) -> Result<(NewTemplate, Request, Confidential), Error> {
        let own = own_steps(self.env, self.user, self.cwd);
        let recipe = self.from.recipe.as_deref().map(|name| recipes.wanted(name)).transpose()?;
        let (start, ready) = recipe.map(|recipe| (recipe.start.clone(), recipe.ready.clone())).unwrap_or_default();
        let (made_of, description) = self.from.into_domain(own, recipes)?;
        let request = Request {
            recipe: made_of,
            start: self.start.or(start),
            ready: self.ready.or(ready),
            force: self.force,
            habits: Habits::OfTheImage,
            is_confidential: false,
            allow: self.allow,
        };
        let registry = self.registry.map(Into::into);
        let secrets = self.secrets.into_iter().map(|(name, value)| {
            let value = STANDARD.decode(value);
            let value = value.map_err(|_| Error::invalid(format!("secrets.{name}"), "the value is not Base64"))?;
            Ok((name, value))
        });
        let confidential = Confidential { registry, secrets: secrets.collect::<Result<_, Error>>()? };
        let visibility = |public| if public { Visibility::Public } else { Visibility::Private };
        let mut template = NewTemplate {
            name: self.name,
            tags: self.tags,
            aliases: self.aliases,
            description: self.description.clone().or_else(|| description.clone()),
            visibility: self.public.map(visibility),
            limits: self.limits,
            isolation: self.isolation,
            provider: self.provider,
            // A recipe's build says what it is: the template's own description stays from its first build.
            note: description.map(|made| self.description.unwrap_or(made)),
            ..NewTemplate::default()
        };
        if let Some(recipe) = recipe {
            recipe.check_secrets(&confidential)?;
            template.name = recipe.template_name(&template.name)?;
            template.usual_limits = recipe.limits;
            template.isolation = template.isolation.or(recipe.isolation);
            template.interpreter = recipe.interpreter;
            template.host_python = recipe.host_python;
            template.recipe = Some(recipe.name.clone());
            // Under the recipe's own name it has the recipe's other names, too.
            if Reference::parse(&template.name)?.name == recipe.name {
                template.aliases.extend(recipe.aliases.iter().cloned());
            }
        }
        Ok((template, request, confidential))
    }
}

/// Environment, user and directory of the template, as the last steps of its build.
fn own_steps(env: BTreeMap<String, String>, user: Option<String>, cwd: Option<String>) -> Vec<NewStep> {
    let env = (!env.is_empty()).then(|| Act::Env { values: env.into_iter().collect() });
    let user = user.map(|name| Act::User { name, sudo: false });
    let cwd = cwd.map(|path| Act::Workdir { path });
    env.into_iter().chain(user).chain(cwd).map(|act| NewStep { act, force: false }).collect()
}

impl FromBody {
    /// `own` are steps that follow those of the body. Of a recipe, what it makes is told as well.
    fn into_domain(self, own: Vec<NewStep>, recipes: &Recipes) -> Result<(Recipe, Option<String>), Error> {
        let named = [
            ("image", self.image.is_some()),
            ("template", self.template.is_some()),
            ("dockerfile", self.dockerfile.is_some()),
            ("archive", self.archive.is_some()),
            ("recipe", self.recipe.is_some()),
        ];
        let named: Vec<&str> = named.into_iter().filter_map(|(name, given)| given.then_some(name)).collect();
        if named.len() > 1 {
            return Err(Error::invalid("from", format!("{} exclude each other: name one", named.join(" and "))));
        }
        self.check_company(named.first().copied().unwrap_or("steps"))?;
        if let Some(text) = self.dockerfile {
            if !own.is_empty() {
                return Err(Error::invalid(
                    "from.dockerfile",
                    "env, user and cwd are its ENV, USER and WORKDIR: write them there",
                ));
            }
            let (contexts, target, arguments) = (self.files, self.target, self.arguments);
            return Ok((Recipe::Dockerfile { text, contexts, target, arguments }, None));
        }
        if let Some(hash) = self.archive {
            if !own.is_empty() {
                let remedy =
                    "an archive brings its own env, user and cwd; build another template from this one to change them";
                return Err(Error::invalid("from.archive", remedy));
            }
            return Ok((Recipe::Archive { hash, name: self.archive_name }, None));
        }
        if let Some(name) = self.recipe {
            let wishes = Wishes { variant: self.variant, arguments: self.arguments };
            let mut ordered = recipes.wanted(&name)?.order(&wishes)?;
            ordered.steps.extend(own);
            return Ok((Recipe::Steps { base: ordered.base, steps: ordered.steps }, Some(ordered.description)));
        }
        let mut steps = self.steps.into_iter().map(StepBody::into_domain).collect::<Result<Vec<_>, Error>>()?;
        steps.extend(own);
        let recipe = match (self.image, self.template) {
            (Some(reference), _) if steps.is_empty() => Recipe::Image { reference },
            (Some(reference), _) => Recipe::Steps { base: Base::Image(reference), steps },
            (None, Some(template)) => Recipe::Steps { base: Base::Template(template), steps },
            (None, None) if steps.is_empty() => {
                let message = "name one of image, template, dockerfile, archive, recipe and steps";
                return Err(Error::invalid("from", message));
            }
            (None, None) => Recipe::Steps { base: Base::Template(USUAL.to_owned()), steps },
        };
        Ok((recipe, None))
    }

    /// Refuses fields that mean nothing beside the one that was named.
    fn check_company(&self, named: &str) -> Result<(), Error> {
        let strangers: [(&str, bool, &[&str]); 5] = [
            ("files", !self.files.is_empty(), &["dockerfile"]),
            ("target", self.target.is_some(), &["dockerfile"]),
            ("arguments", !self.arguments.is_empty(), &["dockerfile", "recipe"]),
            ("variant", self.variant.is_some(), &["recipe"]),
            ("archive_name", self.archive_name.is_some(), &["archive"]),
        ];
        for (field, given, company) in strangers {
            if given && !company.contains(&named) {
                let company = company.join(" and from.");
                return Err(Error::invalid(format!("from.{field}"), format!("goes with from.{company} alone")));
            }
        }
        if !self.steps.is_empty() && matches!(named, "dockerfile" | "archive" | "recipe") {
            return Err(Error::invalid("from.steps", "go with from.image and from.template alone"));
        }
        Ok(())
    }
}

impl StepBody {
    fn into_domain(self) -> Result<NewStep, Error> {
        let (act, force) = match self {
            StepBody::Run(RunStep { command, user, mounts, force }) => {
                (Act::Run { command, user, secrets: mounts.into_iter().map(Into::into).collect() }, force)
            }
            StepBody::Copy(step) => {
                let mode = step.mode.as_deref().map(parse_mode).transpose()?;
                let CopyStep { files, source, destination, owner, force, .. } = step;
                (Act::Copy { hash: files, source, destination, owner, mode }, force)
            }
            StepBody::File(FileStep { path, content, owner, mode, force }) => {
                let mode = mode.as_deref().map(parse_mode).transpose()?;
                (Act::File { path, content, owner, mode }, force)
            }
            StepBody::Env(values) => (Act::Env { values: values.into_iter().collect() }, false),
            StepBody::Arg(values) => (Act::Arg { values: values.into_iter().collect() }, false),
            StepBody::Workdir(path) => (Act::Workdir { path }, false),
            StepBody::User(step) => (Act::User { name: step.name, sudo: step.sudo }, false),
        };
        Ok(NewStep { act, force })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: serde_json::Value) -> Result<(NewTemplate, Request, Confidential), Error> {
        serde_json::from_value::<CreateTemplate>(body).unwrap().into_domain(&Recipes::built_in())
    }

    fn recipe(from: serde_json::Value) -> Recipe {
        read(json!({ "name": "t", "from": from })).unwrap().1.recipe
    }

    #[test]
    fn each_source_is_its_own_recipe() {
        assert_eq!(recipe(json!({ "image": "debian:12" })), Recipe::Image { reference: "debian:12".into() });
        let Recipe::Steps { base, steps } = recipe(json!({ "steps": [{ "run": { "command": "true" } }] })) else {
            panic!("steps alone are steps")
        };
        assert_eq!((base, steps.len()), (Base::Template("base".into()), 1));
        let hash = "a".repeat(64);
        let archive = recipe(json!({ "archive": hash, "archive_name": "x:1" }));
        assert_eq!(archive, Recipe::Archive { hash: hash.clone(), name: Some("x:1".into()) });
        let docker = recipe(json!({ "dockerfile": "FROM x", "files": [hash], "arguments": { "A": "1" } }));
        assert!(matches!(docker, Recipe::Dockerfile { contexts, .. } if contexts == [hash]));
    }

    #[test]
    fn the_templates_own_settings_follow_its_steps() {
        let body = json!({
            "name": "t", "env": { "A": "1" }, "user": "ada", "cwd": "/srv",
            "from": { "image": "x", "steps": [
                { "copy": { "files": "b".repeat(32), "source": ".", "destination": "/srv", "mode": "755" } },
            ] },
        });
        let Recipe::Steps { base: Base::Image(image), steps } = read(body).unwrap().1.recipe else { panic!() };
        assert_eq!(image, "x");
        let acts: Vec<Act> = steps.into_iter().map(|step| step.act).collect();
        assert!(matches!(&acts[0], Act::Copy { mode: Some(0o755), .. }), "{acts:?}");
        assert_eq!(acts[1], Act::Env { values: vec![("A".into(), "1".into())] });
        assert_eq!(acts[2], Act::User { name: "ada".into(), sudo: false });
        assert_eq!(acts[3], Act::Workdir { path: "/srv".into() });
    }

    #[test]
    fn what_does_not_go_together_is_named() {
        for (from, named) in [
            (json!({}), "from"),
            (json!({ "image": "a", "template": "b" }), "image and template"),
            (json!({ "image": "a", "files": ["x"] }), "from.files"),
            (json!({ "template": "a", "target": "x" }), "from.target"),
            (json!({ "image": "a", "archive_name": "x" }), "from.archive_name"),
            (json!({ "dockerfile": "FROM x", "steps": [{ "workdir": "/x" }] }), "from.steps"),
            (json!({ "recipe": "node", "steps": [{ "workdir": "/x" }] }), "from.steps"),
            (json!({ "recipe": "node", "image": "x" }), "image and recipe"),
            (json!({ "image": "x", "variant": "small" }), "from.variant"),
            (json!({ "image": "x", "arguments": { "A": "1" } }), "from.arguments"),
            (json!({ "recipe": "nodde" }), "recipe nodde"),
            (json!({ "recipe": "node", "variant": "small" }), "no variant"),
            (json!({ "recipe": "node", "arguments": { "PACKAGES": "--global" } }), "from.arguments.PACKAGES"),
        ] {
            let error = read(json!({ "name": "t", "from": from })).unwrap_err().to_string();
            assert!(error.contains(named), "{named}: {error}");
        }
        let error = read(json!({ "name": "t", "from": { "dockerfile": "FROM x" }, "user": "x" })).unwrap_err();
        assert!(error.to_string().contains("USER"), "{error}");
        let error = read(json!({ "name": "t", "from": { "image": "x" }, "secrets": { "k": "???" } })).unwrap_err();
        assert!(error.to_string().contains("secrets.k"), "{error}");
    }

    #[test]
    fn a_recipe_is_steps_with_its_defaults() {
        let body =
            json!({ "name": "code-interpreter-v1", "from": { "recipe": "code-interpreter", "variant": "small" } });
        let (template, request, _) = read(body).unwrap();
        assert_eq!(
            (template.name.as_str(), template.recipe.as_deref()),
            ("code-interpreter", Some("code-interpreter"))
        );
        assert_eq!(template.aliases, ["code-interpreter-v1"]);
        assert!(template.interpreter && template.host_python && template.note.unwrap().contains("pandas"));
        let Recipe::Steps { base, steps } = request.recipe else { panic!("no steps") };
        assert_eq!(base, Base::Template("base".into()));
        assert!(matches!(&steps[0].act, Act::Arg { .. }), "{:?}", steps[0]);
        // Under another name it is a template like any other, with the recipe's commands and limits unless others are set.
        let body = json!({
            "name": "screen", "ready": "true", "env": { "A": "1" }, "limits": { "cpus": 1.0 },
            "from": { "recipe": "desktop" }, "secrets": { "PIP_INDEX_URL": "eA==" },
        });
        let (template, request, confidential) = read(body).unwrap();
        assert!(template.aliases.is_empty() && template.usual_limits.memory == Some(2 << 30));
        assert_eq!((request.start.as_deref(), request.ready.as_deref()), (Some("cove-desktop"), Some("true")));
        let Recipe::Steps { steps, .. } = request.recipe else { panic!("no steps") };
        assert!(matches!(&steps.last().unwrap().act, Act::Env { .. }));
        assert_eq!(confidential.secrets["PIP_INDEX_URL"], b"x");
        let body = json!({ "name": "x", "from": { "recipe": "node" }, "secrets": { "NPM_TOKEN": "eA==" } });
        assert!(read(body).unwrap_err().to_string().contains("no secret \"NPM_TOKEN\""));
    }

    #[test]
    fn unknown_fields_are_refused_by_name() {
        for body in [
            json!({ "name": "t", "from": { "image": "x" }, "stat": "x" }),
            json!({ "name": "t", "from": { "images": "x" } }),
            json!({ "name": "t", "from": { "steps": [{ "run": { "command": "x", "usr": "y" } }] } }),
            json!({ "name": "t", "from": { "steps": [{ "runs": { "command": "x" } }] } }),
            json!({ "name": "t", "from": ["debian"] }),
        ] {
            assert!(serde_json::from_value::<CreateTemplate>(body.clone()).is_err(), "{body}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let body =
            json!({ "name": "t", "from": { "image": "x" }, "registry": { "username": "a", "password": "hunter2" } });
        let body: CreateTemplate = serde_json::from_value(body).unwrap();
        assert!(!format!("{body:?}").contains("hunter2"));
    }
}
