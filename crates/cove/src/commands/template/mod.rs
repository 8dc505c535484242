//! `cove template`: what sandboxes start from.

mod build;
mod context;
mod devcontainer;
pub mod export;
pub mod follow;
pub mod order;
pub mod push;
mod recipe;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use reqwest::Method;
use serde_json::{Value, json};

use self::follow::Lines;
use crate::client::{Client, block_on, query_string, segment};
use crate::commands::change::each_of;
use crate::complaint::Complaint;
use crate::quantity::show_size;
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Build, list and tag templates
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove template build tools --from base --run 'echo hello > /etc/motd'
  cove template recipes
  cove template recipes node
  cove template ls
  cove template show tools
  cove template tag tools stable
  cove template logs tools
  cove template push tools registry.example/team/tools:v1
  cove template rm tools:stable
  cove template rm tools")]
pub struct Arguments {
    #[command(subcommand)]
    act: Act,
}

#[derive(Debug, Subcommand)]
enum Act {
    Build(Box<build::Arguments>),
    /// List recipes, or print one: templates that are built by their name alone
    Recipes {
        /// Print this one as it is written
        #[arg(value_name = "RECIPE", add = crate::complete::recipes())]
        name: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the server's templates, and recipes that are not built yet
    Ls {
        /// Only names that begin with this
        #[arg(long, value_name = "NAME")]
        name: Option<String>,
        /// Those that other organisations have made public, too
        #[arg(long)]
        others: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show a template with its builds
    Show {
        /// Its name, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::templates())]
        template: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete templates, or single tags and builds of them; their sandboxes keep their files
    Rm {
        /// Names; with `:TAG` or `:BUILD` that one alone
        #[arg(required_unless_present = "failed", value_name = "TEMPLATE", add = crate::complete::templates())]
        templates: Vec<String>,
        /// All that nothing can be started from, because no build of them succeeded
        #[arg(long, conflicts_with = "templates")]
        failed: bool,
        /// Print JSON, one object on each line
        #[arg(long)]
        json: bool,
    },
    /// Make tags lead to a build
    Tag {
        /// Its name; `NAME:TAG` or `NAME:BUILD` for another build than the usual one
        #[arg(add = crate::complete::templates())]
        template: String,
        /// The tags
        #[arg(required = true)]
        tags: Vec<String>,
        /// Take the tags away instead
        #[arg(long)]
        remove: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the log of a build
    Logs {
        /// Its name, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::templates())]
        template: String,
        /// The build's id [default: the newest]
        build: Option<String>,
        /// Continue until the build ends; a build that failed ends with code 1
        #[arg(short, long)]
        follow: bool,
        /// Print JSON, one line of the log on each line
        #[arg(long)]
        json: bool,
    },
    /// Write a template as an image in a file, for `docker load` and for whoever reads OCI layouts
    Export {
        /// Its name, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::templates())]
        template: String,
        /// The file; `-` is standard output
        file: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Push a template as an image to a registry
    ///
    /// The server pushes, and this program shows how far it is; Ctrl-C cancels the push. Prints what the registry has then,
    /// by its digest.
    #[command(after_help = "\
Examples:
  cove template push web registry.example/team/web:v2
  COVE_REGISTRY_PASSWORD=… cove template push web registry.example/team/web:v2 --registry-user ada")]
    Push {
        /// Its name, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::templates())]
        template: String,
        #[command(flatten)]
        to: push::To,
    },
    /// List the latest pushes, or cancel one
    Pushes {
        /// Cancel this one
        #[arg(long, value_name = "PUSH")]
        cancel: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Cancel a build
    Cancel {
        /// Its name, with `:TAG` or `:BUILD`
        #[arg(add = crate::complete::templates())]
        template: String,
        /// The build's id [default: the newest]
        build: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    if let Act::Build(arguments) = &arguments.act {
        return build::run(arguments);
    }
    let client = Client::from_environment()?;
    block_on(async {
        match &arguments.act {
            Act::Build(_) => Ok(0),
            Act::Recipes { name: None, json } => recipe::list(&client, *json).await,
            Act::Recipes { name: Some(name), json } => recipe::print_one(&client, name, *json).await,
            Act::Ls { name, others, json } => list(&client, name.as_deref(), *others, *json).await,
            Act::Show { template, json } => show(&client, template, *json).await,
            Act::Rm { templates, failed: false, json } => remove(&client, templates, *json).await,
            Act::Rm { failed: true, json, .. } => remove(&client, &never_built(&client).await?, *json).await,
            Act::Tag { template, tags, remove, json } => match remove {
                true => untag(&client, template, tags, *json).await,
                false => tag(&client, template, tags, *json).await,
            },
            Act::Logs { template, build, follow, json } => {
                logs(&client, template, build.as_deref(), *follow, *json).await
            }
            Act::Export { template, file, json } => export::run(&client, &path(template), file, *json).await,
            Act::Push { template, to } => push::run(&client, &path(template), to).await,
            Act::Pushes { cancel: None, json } => push::list(&client, *json).await,
            Act::Pushes { cancel: Some(push), json } => push::cancel(&client, push, *json).await,
            Act::Cancel { template, build, json } => cancel(&client, template, build.as_deref(), *json).await,
        }
    })
}

async fn list(client: &Client, name: Option<&str>, others: bool, as_json: bool) -> Result<u8, Complaint> {
    let mut pairs: Vec<(&str, &str)> = name.map(|name| ("name", name)).into_iter().collect();
    pairs.extend(others.then_some(("others", "true")));
    let mut templates: Vec<Value> = client.get(&format!("/templates{}", query_string(&pairs))).await?;
    let recipes: Vec<Value> = client.get("/recipes").await?;
    recipe::add_unbuilt(&mut templates, &recipes, name);
    let list = List { headings: ["name", "aliases", "state", "tags", "built", "description"], empty: "no templates" };
    list.show(&templates, as_json, |template| {
        let (told, tone) = match template["note"].as_str() {
            Some(note) => (note, Tone::Faint),
            None => (word(template, "description"), Tone::Plain),
        };
        let state = word(template, "state");
        [
            (word(template, "name").to_owned(), Tone::Plain),
            (joined(&template["aliases"]), Tone::Faint),
            (state_of(template), tone_of(if is_usable(template) { "ready" } else { state })),
            (tags_of(template), Tone::Faint),
            (moment(template, "built_at"), Tone::Faint),
            (told.to_owned(), tone),
        ]
    })
}

/// What can be used is ready, whatever became of the newest build, which is named after it.
fn state_of(template: &Value) -> String {
    let state = word(template, "state").replace('_', " ");
    let usable = is_usable(template);
    match state.as_str() {
        "" => "-".to_owned(),
        "ready" => state,
        _ if usable => format!("ready, newest {state}"),
        _ => state,
    }
}

/// Whether something can be started from it, by its name or by a tag.
fn is_usable(template: &Value) -> bool {
    template["build"].is_string() || template["tags"].as_array().is_some_and(|tags| !tags.is_empty())
}

/// The tags of a template or a snapshot; `default` is what its name alone leads to.
pub fn tags_of(one: &Value) -> String {
    let tags = one["tags"].as_array().into_iter().flatten().map(|tag| word(tag, "tag"));
    tags.filter(|tag| *tag != "default").collect::<Vec<_>>().join(", ")
}

/// Templates of the caller's own that have nothing to start from, and are not being built.
async fn never_built(client: &Client) -> Result<Vec<String>, Complaint> {
    let all: Vec<Value> = client.get("/templates").await?;
    let is_one = |template: &&Value| {
        template["created_at"].is_string()
            && !is_usable(template)
            && matches!(word(template, "state"), "error" | "cancelled")
    };
    Ok(all.iter().filter(is_one).map(|template| word(template, "name").to_owned()).collect())
}

fn joined(words: &Value) -> String {
    words.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
}

fn tone_of(state: &str) -> Tone {
    match state {
        "ready" => Tone::Good,
        "error" => Tone::Bad,
        "waiting" | "building" => Tone::Warning,
        _ => Tone::Faint,
    }
}

fn path(template: &str) -> String {
    format!("/templates/{}", segment(template))
}

/// Without what follows the colon.
fn name_alone(template: &str) -> &str {
    template.split(':').next().unwrap_or(template)
}

async fn builds(client: &Client, template: &str, limit: &str) -> Result<Vec<Value>, Complaint> {
    let query = query_string(&[("limit", limit)]);
    let mut page: Value = client.get(&format!("{}/builds{query}", path(name_alone(template)))).await?;
    Ok(serde_json::from_value(page["items"].take()).unwrap_or_default())
}

async fn show(client: &Client, template: &str, as_json: bool) -> Result<u8, Complaint> {
    let mut shown: Value = match client.get(&path(template)).await {
        Ok(shown) => shown,
        // A recipe that is not built is no template yet.
        Err(refused) => return recipe::show(client, template, as_json).await.unwrap_or(Err(refused)),
    };
    // A built-in one has builds that operators see.
    let mut builds = match shown["created_at"].is_null() {
        true => builds(client, template, "20").await.unwrap_or_default(),
        false => builds(client, template, "20").await?,
    };
    // With a tag or a build that one is meant.
    let only = template.contains(':').then(|| word(&shown, "build").to_owned());
    if let Some(only) = &only {
        builds.retain(|build| word(build, "id") == only);
    }
    if as_json {
        shown["latest_builds"] = json!(builds);
        print_json(&shown)?;
        return Ok(0);
    }
    let mut lines =
        vec![format!("{:<12} {}", "name", word(&shown, "name")), format!("{:<12} {}", "id", word(&shown, "id"))];
    let mut line = |name: &str, value: String| {
        if !value.is_empty() && value != "-" {
            lines.push(format!("{name:<12} {value}"));
        }
    };
    line("aliases", joined(&shown["aliases"]));
    line("description", word(&shown, "description").to_owned());
    line("note", word(&shown, "note").to_owned());
    line("user", word(&shown, "user").to_owned());
    line("directory", word(&shown, "cwd").to_owned());
    line("start", word(&shown, "start").to_owned());
    line("ready", word(&shown, "ready").to_owned());
    line("isolation", word(&shown, "isolation").to_owned());
    line("public", if shown["public"] == true { "yes".to_owned() } else { String::new() });
    for (name, value) in shown["env"].as_object().into_iter().flatten() {
        line("variable", format!("{name}={}", value.as_str().unwrap_or_default()));
    }
    let tags = shown["tags"].as_array().into_iter().flatten();
    for tag in tags.filter(|tag| only.as_deref().is_none_or(|only| word(tag, "build") == only)) {
        line("tag", format!("{} → {}", word(tag, "tag"), word(tag, "build")));
    }
    line("built", if shown["built"] == false { "no".to_owned() } else { moment(&shown, "built_at") });
    print(&lines.join("\n"))?;
    if builds.is_empty() {
        return Ok(0);
    }
    print("")?;
    let list = List { headings: ["build", "state", "kind", "size", "created", "why"], empty: "" };
    list.show(&builds, false, |build| {
        let size = build["bytes"].as_u64().map_or_else(|| "-".to_owned(), show_size);
        [
            (word(build, "id").to_owned(), Tone::Plain),
            (word(build, "state").to_owned(), tone_of(word(build, "state"))),
            (word(build, "kind").to_owned(), Tone::Plain),
            (size, Tone::Plain),
            (moment(build, "created_at"), Tone::Faint),
            (word(&build["failure"], "message").to_owned(), Tone::Faint),
        ]
    })
}

async fn remove(client: &Client, templates: &[String], as_json: bool) -> Result<u8, Complaint> {
    each_of(client, templates, async |client, template| {
        client.delete(&path(template)).await?;
        match as_json {
            true => print(&json!({ "template": template, "state": "deleted" }).to_string()),
            false => print(template),
        }
    })
    .await
}

async fn tag(client: &Client, template: &str, tags: &[String], as_json: bool) -> Result<u8, Complaint> {
    let mut body = json!({ "tags": tags });
    if let Some((_, build)) = template.split_once(':') {
        body["build"] = json!(build);
    }
    let build: Value = client.post(&format!("{}/tags", path(name_alone(template))), &body).await?;
    match as_json {
        true => print_json(&build)?,
        false => print(&format!("{} → {}", tags.join(" "), word(&build, "id")))?,
    }
    Ok(0)
}

async fn untag(client: &Client, template: &str, tags: &[String], as_json: bool) -> Result<u8, Complaint> {
    for tag in tags {
        client.send(client.request(Method::DELETE, &format!("{}/tags/{}", path(template), segment(tag)))).await?;
    }
    match as_json {
        true => print_json(&json!({ "template": template, "removed": tags })),
        false => print(&tags.join(" ")),
    }?;
    Ok(0)
}

/// The build that is meant: the newest where none is named.
async fn chosen(client: &Client, template: &str, build: Option<&str>) -> Result<String, Complaint> {
    if let Some(build) = build {
        return Ok(follow::path(name_alone(template), build));
    }
    if let Some((_, wanted)) = template.split_once(':') {
        return Ok(follow::path(name_alone(template), &named(client, template, wanted).await?));
    }
    let newest = builds(client, template, "1").await?;
    let newest = newest.first().ok_or_else(|| Complaint::failed(format!("template {template} has no builds")))?;
    Ok(follow::path(name_alone(template), word(newest, "id")))
}

/// The build of `NAME:TAG` or `NAME:BUILD`. One that is under way comes first: no tag leads to it before it is ready.
/// One that failed has no tag either.
async fn named(client: &Client, template: &str, wanted: &str) -> Result<String, Complaint> {
    if is_id(wanted) {
        return Ok(wanted.to_owned());
    }
    let all = builds(client, template, "100").await?;
    let wanted = json!(wanted.to_lowercase());
    let mut tagged = all.iter().filter(|build| build["tags"].as_array().is_some_and(|tags| tags.contains(&wanted)));
    let mut under_way = tagged.clone().filter(|build| matches!(word(build, "state"), "waiting" | "building"));
    if let Some(build) = under_way.next() {
        return Ok(word(build, "id").to_owned());
    }
    match client.get::<Value>(&path(template)).await {
        Ok(shown) => Ok(word(&shown, "build").to_owned()),
        Err(refused) => tagged.next().map(|build| word(build, "id").to_owned()).ok_or(refused),
    }
}

/// Whether a word is the id of a build: a UUID.
fn is_id(text: &str) -> bool {
    text.len() == 36 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
}

async fn logs(
    client: &Client,
    template: &str,
    build: Option<&str>,
    follow: bool,
    as_json: bool,
) -> Result<u8, Complaint> {
    let build = chosen(client, template, build).await?;
    let how = if as_json { Lines::Json } else { Lines::Printed };
    if follow {
        follow::judge(&follow::to_the_end(client, &build, 0, how).await?)?;
        return Ok(0);
    }
    let mut after = 0;
    loop {
        let lines: Vec<Value> = client.get(&format!("{build}/logs?after={after}")).await?;
        let Some(last) = lines.last() else { return Ok(0) };
        after = last["seq"].as_u64().unwrap_or(u64::MAX);
        lines.iter().try_for_each(|line| follow::show(line, how))?;
    }
}

async fn cancel(client: &Client, template: &str, build: Option<&str>, as_json: bool) -> Result<u8, Complaint> {
    let build = chosen(client, template, build).await?;
    let ended: Value = client.post(&format!("{build}/cancel"), &json!({})).await?;
    match as_json {
        true => print_json(&ended)?,
        false => print(&format!("{} {}", word(&ended, "id"), word(&ended, "state")))?,
    }
    if word(&ended, "state") == "ready" {
        say("hint: it was finished before; `cove template rm` deletes the template");
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_used_is_ready_whatever_became_of_the_newest_build() {
        let of =
            |state: &str, build: Value, tags: Value| state_of(&json!({ "state": state, "build": build, "tags": tags }));
        assert_eq!(of("ready", json!("b"), json!([])), "ready");
        assert_eq!(of("error", json!("b"), json!([])), "ready, newest error");
        assert_eq!(of("waiting", Value::Null, json!([{ "tag": "v1", "build": "b" }])), "ready, newest waiting");
        assert_eq!(of("error", Value::Null, json!([])), "error");
        assert_eq!(of("not_built", Value::Null, Value::Null), "not built");
    }

    #[test]
    fn an_id_is_told_from_a_tag() {
        assert!(is_id("6f3a1c1e-0000-4000-8000-00000000abcd"));
        assert!(!is_id("v1") && !is_id("default") && !is_id(""));
    }
}
