//! What a person wants built, as a request to the server: a recipe, an image, a Dockerfile with its files, an archive, or
//! steps.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use cove_engine::spec::Target;
use reqwest::{Body, Method};
use serde_json::{Map, Value, json};
use tokio_util::io::ReaderStream;

use super::context::Context;
use super::follow::{judge, or_cancelled, path};
use super::recipe;
use crate::client::{Client, block_on, query_string};
use crate::commands::create::parse_variable;
use crate::commands::resize::Limits;
use crate::commands::run::parse_target;
use crate::complaint::Complaint;
use crate::progress::Bytes;
use crate::render::{print, print_json, say, word};

/// Bytes of a Dockerfile at most; the server takes no larger one.
const DOCKERFILE: u64 = 1 << 20;
/// Characters of a template's name.
const NAME: usize = 128;

#[derive(Debug, Args)]
pub struct Order {
    /// The folder whose files a Dockerfile may copy; `.dockerignore` counts
    #[arg(value_name = "CONTEXT")]
    context: Option<PathBuf>,
    /// Build on this image of a registry: name, tag or digest
    #[arg(long, value_name = "REF", conflicts_with_all = ["from", "file", "archive", "devcontainer", "context"])]
    image: Option<String>,
    /// Build on this template
    #[arg(
        long,
        value_name = "TEMPLATE",
        conflicts_with_all = ["file", "archive", "devcontainer", "context"],
        add = crate::complete::templates()
    )]
    from: Option<String>,
    /// Build by this Dockerfile [default: CONTEXT/Dockerfile]
    #[arg(short, long, value_name = "DOCKERFILE", conflicts_with_all = ["archive", "devcontainer"])]
    file: Option<PathBuf>,
    /// Take the image in this file: from `docker save`, an OCI layout as a tar, or the tar of a root; `-` is stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["devcontainer", "context"])]
    archive: Option<PathBuf>,
    /// Build what the devcontainer.json of this folder describes
    #[arg(long, value_name = "DIR", conflicts_with = "context")]
    devcontainer: Option<PathBuf>,
    /// With --image or --from: run this command; can be repeated
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["file", "archive", "devcontainer", "context"])]
    run: Vec<String>,
    /// Build by this recipe [default: the one that the template is called after, where nothing else is named]
    #[arg(
        long,
        value_name = "RECIPE",
        conflicts_with_all = ["image", "from", "file", "archive", "devcontainer", "context", "run", "target"],
        add = crate::complete::recipes()
    )]
    recipe: Option<String>,
    /// Of a recipe: another form of it
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,
    /// Of a recipe: `--variant small`
    #[arg(long, hide = true, conflicts_with_all = ["variant", "full"])]
    small: bool,
    /// Of a recipe: `--variant full`
    #[arg(long, hide = true, conflicts_with = "variant")]
    full: bool,
    /// Of a recipe: with this package too, as its package manager names it; can be repeated
    #[arg(long, value_name = "PACKAGE")]
    package: Vec<String>,
    /// Let commands reach this private address: a package index of your own; can be repeated
    #[arg(long, value_name = "CIDR[:PORT]", value_parser = parse_target)]
    allow: Vec<Target>,
    /// A value for an ARG of the Dockerfile, or of a recipe; NAME alone takes its value from here; can be repeated
    #[arg(
        long,
        value_name = "NAME[=VALUE]",
        value_parser = parse_variable,
        conflicts_with_all = ["image", "from", "archive", "devcontainer", "run"]
    )]
    build_arg: Vec<(String, String)>,
    /// A secret for RUN --mount=type=secret, or of a recipe, in no layer and no log; can be repeated
    #[arg(long, value_name = "id=NAME,src=FILE", value_parser = parse_secret)]
    secret: Vec<Secret>,
    /// The stage of the Dockerfile that is wanted
    #[arg(long, value_name = "STAGE", conflicts_with_all = ["image", "from", "archive", "devcontainer", "run"])]
    target: Option<String>,
    /// Do every step anew
    #[arg(long)]
    no_cache: bool,
    /// A tag that leads to this build; can be repeated
    #[arg(short, long, value_name = "TAG")]
    tag: Vec<String>,
    /// A command that runs from the start of every sandbox on
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// A command that succeeds once the start command has done its work
    #[arg(long, value_name = "COMMAND")]
    ready: Option<String>,
    /// A variable for all commands; NAME alone takes its value from here; can be repeated
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// The user of commands in its sandboxes that name none; nothing changes for the steps
    #[arg(short, long, value_name = "USER")]
    user: Option<String>,
    /// Where commands start
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// The weakest isolation that its sandboxes may have: namespaces, gvisor or microvm
    #[arg(long, value_name = "RUNG")]
    isolation: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Everybody of the installation may use it
    #[arg(long)]
    public: bool,
    /// Who pulls the images; the password is read from COVE_REGISTRY_PASSWORD
    #[arg(long, value_name = "USER")]
    registry_user: Option<String>,
    /// Print the build's id and leave; it goes on
    #[arg(short, long)]
    detach: bool,
    #[command(flatten)]
    limits: Limits,
}

#[derive(Debug, Clone)]
pub struct Secret {
    name: String,
    from: SecretFrom,
}

#[derive(Debug, Clone)]
enum SecretFrom {
    File(PathBuf),
    Variable(String),
}

/// Who pulls or pushes, as the server is told. The password is no flag's: others of this machine see those.
pub fn registry(user: Option<&str>) -> Result<Option<Value>, Complaint> {
    let Some(user) = user else { return Ok(None) };
    let password = std::env::var("COVE_REGISTRY_PASSWORD").map_err(|_| {
        Complaint::usage("--registry-user needs a password").hint("set COVE_REGISTRY_PASSWORD for this command")
    })?;
    Ok(Some(json!({ "username": user, "password": password })))
}

/// `id=NAME`, `id=NAME,src=FILE` or `id=NAME,env=VARIABLE`, as Docker writes it.
fn parse_secret(text: &str) -> Result<Secret, String> {
    const HOW: &str = "write id=NAME,src=FILE or id=NAME,env=VARIABLE";
    let (mut name, mut from) = (None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("id", value)) => name = Some(value.to_owned()),
            Some(("src" | "source", value)) => from = Some(SecretFrom::File(value.into())),
            Some(("env", value)) => from = Some(SecretFrom::Variable(value.to_owned())),
            Some(("type", "file" | "env")) => {}
            _ => return Err(format!("`{part}` is not understood; {HOW}")),
        }
    }
    let name = name.filter(|name| !name.is_empty()).ok_or(HOW)?;
    let from = from.unwrap_or_else(|| SecretFrom::Variable(name.clone()));
    Ok(Secret { name, from })
}

impl Secret {
    fn value(&self) -> Result<Vec<u8>, Complaint> {
        match &self.from {
            SecretFrom::File(path) => read(path),
            SecretFrom::Variable(variable) => std::env::var(variable).map(String::into_bytes).map_err(|_| {
                Complaint::usage(format!("secret {}: the variable {variable} is not set", self.name))
                    .hint(format!("--secret id={},src=FILE reads it from a file", self.name))
            }),
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Complaint> {
    fs::read(path).map_err(|error| Complaint::failed(format!("{}: {error}", path.display())))
}

impl Order {
    /// The recipe that is meant: one that is named, or the one of the template's name where nothing else is.
    fn recipe<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let other = self.context.is_some()
            || self.image.is_some()
            || self.from.is_some()
            || self.file.is_some()
            || self.archive.is_some()
            || self.devcontainer.is_some()
            || !self.run.is_empty();
        let of_the_name = || name.split(':').next().unwrap_or(name);
        self.recipe.as_deref().or_else(|| (!other).then(of_the_name))
    }

    /// Refuses what means something for recipes alone.
    fn check_without_recipe(&self) -> Result<(), Complaint> {
        let given =
            [("--variant", self.variant.is_some() || self.small || self.full), ("--package", !self.package.is_empty())];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => {
                Err(Complaint::usage(format!("{flag} is for recipes")).hint("`cove template recipes` lists them"))
            }
            None => Ok(()),
        }
    }

    pub fn run(&self, name: &str, as_json: bool) -> Result<u8, Complaint> {
        if self.recipe(name).is_none() {
            self.check_without_recipe()?;
        }
        let client = Client::from_environment()?;
        block_on(async {
            let started = match &self.archive {
                Some(archive) => self.import(&client, name, archive).await?,
                None => client.post("/templates", &self.body(&client, name).await?).await?,
            };
            let build = path(word(&started["template"], "id"), word(&started["build"], "id"));
            if self.detach {
                match as_json {
                    true => print_json(&started)?,
                    false => print(word(&started["build"], "id"))?,
                }
                say(&format!("hint: cove template logs {name} --follow"));
                return Ok(0);
            }
            let ended = or_cancelled(&client, &build).await?;
            judge(&ended)?;
            if as_json {
                let template: Value = client.get(&format!("/templates/{}", word(&started["template"], "id"))).await?;
                print_json(&json!({ "template": template, "build": ended }))?;
                return Ok(0);
            }
            let called = called(&started);
            print(&called)?;
            say(&format!("hint: cove create --template {called}"));
            Ok(0)
        })
    }

    /// An archive is sent as it is; what else is said of it has no place in that call.
    async fn import(&self, client: &Client, name: &str, archive: &Path) -> Result<Value, Complaint> {
        let plain = self.start.is_none()
            && self.ready.is_none()
            && self.env.is_empty()
            && self.user.is_none()
            && self.cwd.is_none()
            && self.isolation.is_none()
            && self.description.is_none()
            && self.registry_user.is_none()
            && self.secret.is_empty()
            && self.allow.is_empty()
            && !(self.public || self.no_cache)
            && self.limits.body().is_none();
        if !plain {
            return Err(Complaint::usage("an archive brings its own settings")
                .hint(format!("import it first, then: cove template build NAME --from {name} --start COMMAND …")));
        }
        let name = match self.tag.as_slice() {
            [] => name.to_owned(),
            [tag] => format!("{name}:{tag}"),
            _ => return Err(Complaint::usage("an archive gets one tag").hint("`cove template tag` sets more")),
        };
        send_archive(client, &name, archive).await
    }

    async fn body(&self, client: &Client, name: &str) -> Result<Value, Complaint> {
        let mut body = Map::new();
        body.insert("name".into(), json!(name));
        let mut set = |field: &str, value: Option<Value>| {
            if let Some(value) = value {
                body.insert(field.to_owned(), value);
            }
        };
        set("start", self.start.as_ref().map(|text| json!(text)));
        set("ready", self.ready.as_ref().map(|text| json!(text)));
        set("user", self.user.as_ref().map(|text| json!(text)));
        set("cwd", self.cwd.as_ref().map(|text| json!(text)));
        set("isolation", self.isolation.as_ref().map(|text| json!(text)));
        set("description", self.description.as_ref().map(|text| json!(text)));
        set("public", self.public.then_some(json!(true)));
        set("force", self.no_cache.then_some(json!(true)));
        set("limits", self.limits.body());
        set("tags", (!self.tag.is_empty()).then(|| json!(self.tag)));
        set("env", map_of(&self.env));
        set("registry", registry(self.registry_user.as_deref())?);
        let allow: Vec<String> = self.allow.iter().map(ToString::to_string).collect();
        set("allow", (!allow.is_empty()).then(|| json!(allow)));
        let mut secrets: BTreeMap<String, String> = self
            .secret
            .iter()
            .map(|secret| Ok((secret.name.clone(), STANDARD.encode(secret.value()?))))
            .collect::<Result<_, Complaint>>()?;
        let source = match self.recipe(name) {
            Some(recipe) => {
                let recipe = recipe::find(client, recipe).await?;
                for (variable, value) in recipe::environment(&recipe, |variable| std::env::var(variable).ok()) {
                    secrets.entry(variable).or_insert_with(|| STANDARD.encode(value));
                }
                self.order_recipe(&recipe)
            }
            None => self.source(client).await?,
        };
        set("secrets", (!secrets.is_empty()).then(|| json!(secrets)));
        set("from", Some(source));
        Ok(Value::Object(body))
    }

    fn order_recipe(&self, recipe: &Value) -> Value {
        let mut arguments: BTreeMap<String, String> = self.build_arg.iter().cloned().collect();
        if !self.package.is_empty() {
            let extra = arguments.entry(recipe::EXTRA.to_owned()).or_default();
            *extra = std::iter::once(extra.as_str())
                .chain(self.package.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join(" ");
        }
        let mut source = json!({ "recipe": word(recipe, "name"), "arguments": arguments });
        let variant = match (&self.variant, self.small, self.full) {
            (Some(variant), _, _) => Some(variant.as_str()),
            (None, true, _) => Some("small"),
            (None, false, true) => Some("full"),
            (None, false, false) => None,
        };
        if let Some(variant) = variant {
            source["variant"] = json!(variant);
        }
        source
    }

    async fn source(&self, client: &Client) -> Result<Value, Complaint> {
        let steps: Vec<Value> = self.run.iter().map(|command| json!({ "run": { "command": command } })).collect();
        if let Some(image) = &self.image {
            return Ok(json!({ "image": image, "steps": steps }));
        }
        if let Some(folder) = &self.devcontainer {
            return super::devcontainer::source(client, folder).await;
        }
        if self.file.is_some() || self.context.is_some() {
            return self.dockerfile(client).await;
        }
        Ok(json!({ "template": self.from.as_deref().unwrap_or("base"), "steps": steps }))
    }

    async fn dockerfile(&self, client: &Client) -> Result<Value, Complaint> {
        let file = match (&self.file, &self.context) {
            (Some(file), _) => file.clone(),
            (None, Some(context)) => context.join("Dockerfile"),
            (None, None) => PathBuf::from("Dockerfile"),
        };
        let text = dockerfile_text(&file)?;
        let arguments: BTreeMap<_, _> = self.build_arg.iter().cloned().collect();
        let files = match &self.context {
            Some(context) => vec![Context::of(context, Some(&file))?.send(client).await?],
            None => Vec::new(),
        };
        let mut source = json!({ "dockerfile": text, "files": files, "arguments": arguments });
        if let Some(target) = &self.target {
            source["target"] = json!(target);
        }
        Ok(source)
    }
}

/// What leads to a build that was started: the template's name, with a tag where the build does not become the usual one.
pub fn called(started: &Value) -> String {
    let name = word(&started["template"], "name");
    let tags: Vec<&str> = started["build"]["tags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    match tags.first() {
        Some(tag) if !tags.contains(&"default") => format!("{name}:{tag}"),
        _ => name.to_owned(),
    }
}

pub fn dockerfile_text(file: &Path) -> Result<String, Complaint> {
    let failed = |error: std::io::Error| {
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
        match (error.kind(), folder) {
            (std::io::ErrorKind::NotFound, Some(folder)) if !folder.exists() => {
                Complaint::failed(format!("{}: there is no such folder", folder.display()))
            }
            (std::io::ErrorKind::NotADirectory, Some(folder)) => {
                Complaint::failed(format!("{} is not a folder", folder.display()))
                    .hint(format!("--file {} names a Dockerfile; what it copies is in a folder", folder.display()))
            }
            (std::io::ErrorKind::NotFound, _) => {
                Complaint::failed(format!("{}: {error}", file.display())).hint("--file names the Dockerfile")
            }
            _ => Complaint::failed(format!("{}: {error}", file.display())),
        }
    };
    let mut text = String::new();
    fs::File::open(file).map_err(failed)?.take(DOCKERFILE + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > DOCKERFILE {
        return Err(Complaint::failed(format!("{}: more than {} KiB", file.display(), DOCKERFILE >> 10)));
    }
    Ok(text)
}

fn map_of(pairs: &[(String, String)]) -> Option<Value> {
    let map: BTreeMap<_, _> = pairs.iter().cloned().collect();
    (!map.is_empty()).then(|| json!(map))
}

/// Sends an image in a file; returns the template and its build, which is under way.
pub async fn send_archive(client: &Client, name: &str, archive: &Path) -> Result<Value, Complaint> {
    let failed = |error| Complaint::failed(format!("{}: {error}", archive.display()));
    if archive.is_dir() {
        return Err(Complaint::failed(format!("{} is a folder, and a file is wanted", archive.display()))
            .hint(format!("tar -C {} -cf - . | cove template build {name} --archive -", archive.display())));
    }
    // A server that refuses hangs up in the middle of what is sent, and nobody would read why.
    let _allowed: Value = client.get("/whoami").await?;
    let body = if archive == Path::new("-") {
        stream(tokio::io::stdin(), Bytes::new("sending the image", None))
    } else {
        let file = tokio::fs::File::open(archive).await.map_err(failed)?;
        let size = file.metadata().await.map_err(failed)?.len();
        stream(file, Bytes::new("sending the image", Some(size)))
    };
    let request = client.request(Method::POST, &format!("/images/import{}", query_string(&[("name", name)])));
    client.read(client.send(request.header("content-type", "application/x-tar").body(body)).await?).await
}

fn stream(source: impl tokio::io::AsyncRead + Send + 'static, seen: Bytes) -> Body {
    use futures::TryStreamExt;
    let stream = ReaderStream::with_capacity(source, 256 << 10);
    Body::wrap_stream(stream.inspect_ok(move |piece| seen.more(piece.len())))
}

/// For `cove create --image`: a template of that image, built if need be. Returns what names its build.
pub async fn from_image(client: &Client, reference: &str) -> Result<String, Complaint> {
    let body = json!({ "name": name_of(reference), "from": { "image": reference } });
    let started: Value = client.post("/templates", &body).await?;
    let (template, build) = (word(&started["template"], "id"), word(&started["build"], "id"));
    let ended = or_cancelled(client, &path(template, build)).await?;
    judge(&ended)?;
    Ok(format!("{template}:{build}"))
}

/// The template of an image: `debian:12` is `image-debian:12`.
fn name_of(reference: &str) -> String {
    let (path, word) = match reference.split_once('@') {
        Some((path, digest)) => (path, digest.rsplit(':').next().unwrap_or(digest).chars().take(12).collect()),
        None => match reference.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag.to_owned()),
            _ => (reference, String::new()),
        },
    };
    let plain = |text: &str| -> String {
        let kept = |letter: char| if letter.is_ascii_alphanumeric() || "._".contains(letter) { letter } else { '-' };
        text.to_lowercase().chars().map(kept).collect()
    };
    let name: String = format!("image-{}", plain(path)).chars().take(NAME).collect();
    if word.is_empty() { name } else { format!("{name}:{}", plain(&word)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_written_as_docker_writes_them() {
        let secret = parse_secret("id=token,src=./a,b").err();
        assert!(secret.is_some_and(|why| why.contains("`b`")));
        let file = parse_secret("id=token,src=./token.txt").unwrap();
        assert!(matches!(file.from, SecretFrom::File(path) if path == Path::new("./token.txt")));
        let variable = parse_secret("type=env,id=token,env=TOKEN").unwrap();
        assert!(matches!(variable.from, SecretFrom::Variable(name) if name == "TOKEN"));
        assert!(matches!(parse_secret("id=TOKEN").unwrap().from, SecretFrom::Variable(name) if name == "TOKEN"));
        for wrong in ["", "token", "src=x", "id="] {
            assert!(parse_secret(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_printed_leads_to_what_was_built() {
        let started = |tags: &[&str]| json!({ "template": { "name": "tools" }, "build": { "tags": tags } });
        assert_eq!(called(&started(&["default"])), "tools");
        assert_eq!(called(&started(&["v2", "stable"])), "tools:v2");
        assert_eq!(called(&started(&["v2", "default"])), "tools");
        assert_eq!(called(&started(&[])), "tools");
    }

    #[test]
    fn a_dockerfile_that_is_not_there_is_told_from_a_folder_that_is_not() {
        let here = tempfile::tempdir().unwrap();
        let told = |path: &str| dockerfile_text(&here.path().join(path)).unwrap_err().to_string();
        assert!(told("Dockerfile").contains("hint: --file names the Dockerfile"));
        assert!(told("nowhere/Dockerfile").contains("nowhere: there is no such folder"));
        fs::write(here.path().join("Dockerfile"), "FROM scratch\n").unwrap();
        assert!(told("Dockerfile/Dockerfile").contains("Dockerfile is not a folder"));
    }

    #[test]
    fn an_images_template_has_a_name_of_its_own() {
        for (reference, name) in [
            ("debian", "image-debian"),
            ("debian:12", "image-debian:12"),
            ("localhost:5000/My/App", "image-localhost-5000-my-app"),
            ("localhost:5000/my/app:V1", "image-localhost-5000-my-app:v1"),
            ("a/b@sha256:0123456789abcdef", "image-a-b:0123456789ab"),
        ] {
            assert_eq!(name_of(reference), name, "{reference}");
        }
    }
}
