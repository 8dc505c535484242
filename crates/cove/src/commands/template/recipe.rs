//! `cove template recipes`: templates that the server can build by their name, and what of this person's environment they
//! ask for.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::client::{Client, segment};
use crate::complaint::Complaint;
use crate::render::{List, Tone, print, print_json, say, word};

/// The argument that `--package` adds to.
pub const EXTRA: &str = "EXTRA_PACKAGES";

/// The recipe of a name or an alias, as the server tells of it.
pub async fn find(client: &Client, name: &str) -> Result<Value, Complaint> {
    let all: Vec<Value> = client.get("/recipes").await?;
    let found = all.iter().find(|recipe| answers_to(recipe, name));
    let Some(found) = found else {
        let known: Vec<&str> = all.iter().map(|recipe| word(recipe, "name")).collect();
        return Err(Complaint::usage(format!("there is no recipe for a template `{name}`"))
            .hint("say what it is made of: --image REF, a folder with a Dockerfile, or --from base --run COMMAND")
            .hint(format!("there are recipes for {}", known.join(", "))));
    };
    if let Some(problem) = found["problem"].as_str() {
        let file = found["path"].as_str().unwrap_or(name);
        return Err(Complaint::failed(format!("{file}: {problem}")));
    }
    Ok(found.clone())
}

fn answers_to(recipe: &Value, name: &str) -> bool {
    let mut aliases = recipe["aliases"].as_array().into_iter().flatten();
    word(recipe, "name") == name || aliases.any(|alias| alias == name)
}

/// Variables of this person's that the recipe's commands may read: where packages come from, and through which proxy.
pub fn environment(recipe: &Value, set: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    let secrets = recipe["secrets"].as_array().into_iter().flatten();
    let variables = secrets.filter_map(|secret| secret["variable"].as_str());
    let mut found = Vec::new();
    for variable in variables {
        // Many programs read either spelling.
        let value = set(variable).or_else(|| set(&variable.to_lowercase())).filter(|value| !value.is_empty());
        let Some(value) = value else { continue };
        if variable.ends_with("_PROXY") && is_loopback(&value) {
            say(&format!(
                "hint: {variable} names this machine itself, which a build cannot reach: it is not passed on"
            ));
            continue;
        }
        found.push((variable.to_owned(), value));
    }
    found
}

/// Whether a URL, or a host with a port, leads to the machine that asks.
fn is_loopback(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', ',']).next().unwrap_or_default();
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Recipes whose template is not in the list of templates, as rows of it; and `not_built` where that is so. `prefix` is what
/// names shall begin with.
pub fn add_unbuilt(templates: &mut Vec<Value>, recipes: &[Value], prefix: Option<&str>) {
    for template in templates.iter_mut().filter(|template| template["built"] == false && template["state"].is_null()) {
        let recipe = recipes.iter().find(|recipe| recipe["name"] == template["name"]);
        template["state"] = state(recipe.unwrap_or(&Value::Null));
    }
    for recipe in recipes {
        let name = word(recipe, "name");
        let is_there = templates.iter().any(|template| template["name"] == recipe["name"]);
        if is_there || prefix.is_some_and(|prefix| !name.starts_with(prefix)) || name.is_empty() {
            continue;
        }
        templates.push(json!({
            "name": name,
            "aliases": recipe["aliases"],
            "state": state(recipe),
            "built": false,
            "built_at": null,
            "description": recipe["description"],
            "note": match recipe["problem"].as_str() {
                Some(problem) => format!("the recipe cannot be read: {problem}"),
                None => format!("{}: cove template build {name}", word(recipe, "description")),
            },
        }));
    }
}

/// Of one that is not built: its build that is under way, or that nothing is.
fn state(recipe: &Value) -> Value {
    match word(recipe, "state") {
        state @ ("waiting" | "building") => json!(state),
        _ => json!("not_built"),
    }
}

pub async fn list(client: &Client, as_json: bool) -> Result<u8, Complaint> {
    let recipes: Vec<Value> = client.get("/recipes").await?;
    let list = List { headings: ["name", "state", "variants", "description"], empty: "no recipes" };
    list.show(&recipes, as_json, |recipe| {
        let variants = recipe["variants"].as_array().into_iter().flatten();
        let variants: Vec<&str> = variants.map(|variant| word(variant, "name")).collect();
        let (told, tone) = match recipe["problem"].as_str() {
            Some(problem) => (format!("{}: {problem}", word(recipe, "path")), Tone::Bad),
            None => (word(recipe, "description").to_owned(), Tone::Plain),
        };
        [
            (word(recipe, "name").to_owned(), Tone::Plain),
            (told_state(recipe), if recipe["built"] == true { Tone::Good } else { Tone::Faint }),
            (variants.join(", "), Tone::Faint),
            (told, tone),
        ]
    })
}

fn told_state(recipe: &Value) -> String {
    match recipe["built"] == true {
        true => "built".to_owned(),
        false => word(&json!({ "state": state(recipe) }), "state").replace('_', " "),
    }
}

/// The file as it is written.
pub async fn print_one(client: &Client, name: &str, as_json: bool) -> Result<u8, Complaint> {
    let recipe: Value = client.get(&format!("/recipes/{}", segment(name))).await?;
    match as_json {
        true => print_json(&recipe)?,
        false => print(word(&recipe, "text").trim_end())?,
    }
    Ok(0)
}

/// What `cove template show` tells of a recipe that is not built; `None` where there is no such recipe.
pub async fn show(client: &Client, name: &str, as_json: bool) -> Option<Result<u8, Complaint>> {
    let all: Vec<Value> = client.get("/recipes").await.ok()?;
    let recipe = all.iter().find(|recipe| answers_to(recipe, name) && recipe["problem"].is_null())?;
    Some(show_one(recipe, as_json))
}

fn show_one(recipe: &Value, as_json: bool) -> Result<u8, Complaint> {
    if as_json {
        print_json(recipe)?;
        return Ok(0);
    }
    let mut lines = vec![format!("{:<12} {}", "name", word(recipe, "name"))];
    let mut line = |name: &str, value: &str| lines.push(format!("{name:<12} {value}"));
    line("state", &told_state(recipe));
    line("description", word(recipe, "description"));
    for need in recipe["needs"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        line("needs", need);
    }
    for variant in recipe["variants"].as_array().into_iter().flatten() {
        line("variant", &format!("{}: {}", word(variant, "name"), word(variant, "description")));
    }
    for argument in recipe["arguments"].as_array().into_iter().flatten() {
        line("argument", &format!("{}: {}", word(argument, "name"), word(argument, "description")));
    }
    for secret in recipe["secrets"].as_array().into_iter().flatten() {
        line("secret", &format!("{}: {}", word(secret, "name"), word(secret, "description")));
    }
    print(&lines.join("\n"))?;
    say(&format!("hint: cove template build {}", word(recipe, "name")));
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> Value {
        json!({
            "name": "node", "aliases": ["node-v1"], "description": "base with Node", "state": null, "built": false,
            "secrets": [
                { "name": "PIP_INDEX_URL", "variable": "PIP_INDEX_URL" },
                { "name": "HTTPS_PROXY", "variable": "HTTPS_PROXY" },
                { "name": "npmrc", "variable": null },
            ],
        })
    }

    #[test]
    fn variables_that_a_recipe_asks_for_are_passed_on() {
        let set = |variable: &str| match variable {
            "PIP_INDEX_URL" => Some("http://127.0.0.1:9/simple".to_owned()),
            "https_proxy" => Some("http://proxy.example:3128".to_owned()),
            "npmrc" | "HOME" => Some("x".to_owned()),
            _ => None,
        };
        let found = environment(&recipe(), set);
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["PIP_INDEX_URL", "HTTPS_PROXY"]);
    }

    #[test]
    fn a_proxy_of_this_machine_itself_is_none_for_a_build() {
        for url in ["http://127.0.0.1:3128", "http://user:pass@localhost:1/", "127.1.2.3:80", "http://[::1]:8080"] {
            assert!(is_loopback(url), "{url}");
        }
        for url in ["http://proxy.example:3128", "http://localhost.example/", "http://10.0.0.1:3128", ""] {
            assert!(!is_loopback(url), "{url}");
        }
        assert!(environment(&recipe(), |name| (name == "HTTPS_PROXY").then(|| "http://[::1]:1".to_owned())).is_empty());
    }

    #[test]
    fn what_is_not_built_is_listed_as_such() {
        let mut templates = vec![
            json!({ "name": "base", "built": true, "state": null }),
            json!({ "name": "code-interpreter", "built": false, "state": null }),
        ];
        let recipes = [json!({ "name": "code-interpreter", "state": "building" }), recipe()];
        add_unbuilt(&mut templates, &recipes, None);
        let told: Vec<(&str, &str)> = templates.iter().map(|one| (word(one, "name"), word(one, "state"))).collect();
        assert_eq!(told, [("base", ""), ("code-interpreter", "building"), ("node", "not_built")]);
        let mut none = Vec::new();
        add_unbuilt(&mut none, &recipes, Some("co"));
        assert_eq!(none.len(), 1);
        assert!(answers_to(&recipes[1], "node-v1") && !answers_to(&recipes[1], "node-v2"));
    }
}
