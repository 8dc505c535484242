//! Recipes: templates as data, built like any other, for everybody or for one organisation, and never called ready before.

use axum::http::StatusCode;
use cove_control::build::State;
use cove_control::template::Built;
use serde_json::{Value, json};

use crate::api::{Answer, ask, call};
use crate::harness::{TestApp, eventually};
use crate::templates::Workbench;

const TOOLS: &str = r#"
description = "tools"
aliases = ["tools-v1"]
needs = ["nothing"]
image = "debian:12"

[limits]
memory = 536870912

[arguments.WORD]
description = "a word"
kind = "word"
default = "first"

[variants.other]
description = "other tools"
arguments.WORD = "second"

[secrets]
TOKEN = { description = "a token" }

[[steps]]
run.script = "make.sh"

[[steps]]
copy.source = "note"
copy.destination = "/etc/note"

[[steps]]
env.KEPT = "yes"

[[steps]]
user.name = "ada"
"#;

/// The built-in recipe of the same name, with what takes no package index.
const CELLS: &str = r#"
description = "cells"
aliases = ["code-interpreter-v1"]
until_built = "base"

[[steps]]
run.command = "echo cells > /opt/cells"
"#;

fn write(t: &TestApp, files: &[(&str, &str)]) {
    for (path, text) in files {
        let path = t.app.config().data.join("recipes").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

fn tools(t: &TestApp) {
    let script = "echo made > /opt/made; printenv WORD; printenv TOKEN\n";
    write(t, &[("tools/recipe.toml", TOOLS), ("tools/make.sh", script), ("tools/note", "hello")]);
}

/// A key of another organisation.
async fn stranger(t: &TestApp) -> String {
    ask(t, "POST", "/api/organisations", json!({"id": "strangers", "name": "Strangers"})).await;
    let made = ask(t, "POST", "/api/keys", json!({"name": "k", "organisation": "strangers", "scope": "admin"})).await;
    made.json()["secret"].as_str().unwrap().to_owned()
}

fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

/// The state that a build of this answer comes to, and what it said.
async fn ended(t: &TestApp, begun: &Answer) -> (State, Vec<String>) {
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    let id = begun.json()["build"]["id"].as_str().unwrap().to_owned();
    eventually("the build ends", || async { t.app.store().build(&id).await.unwrap().unwrap().state.is_final() }).await;
    let lines = t.app.store().build_logs(&id, cove_control::build::Level::Debug, 0, 1000).await.unwrap();
    let state = t.app.store().build(&id).await.unwrap().unwrap().state;
    (state, lines.into_iter().map(|line| line.message).collect())
}

async fn output(t: &TestApp, key: &str, sandbox: &str, line: &str) -> String {
    let path = format!("/api/sandboxes/{sandbox}/exec");
    let ran = call(t, key, "POST", &path, json!({"shell": line}).to_string()).await;
    ran.json()["stdout"].as_str().unwrap_or_else(|| panic!("{}", ran.text())).to_owned()
}

fn named<'a>(list: &'a Value, name: &str) -> &'a Value {
    let found = list.as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {list}"))
}

#[tokio::test]
async fn an_operator_builds_a_recipe_for_everybody() {
    let Workbench { t, .. } = Workbench::new().await;
    let other = stranger(&t).await;
    tools(&t);
    let body = json!({
        "name": "tools", "from": {"recipe": "tools", "variant": "other"}, "secrets": {"TOKEN": "czNjcmV0LXZhbHVl"},
    });
    let begun = ask(&t, "POST", "/api/templates", body).await;
    assert_eq!(
        (&begun.json()["template"]["built_in"], &begun.json()["template"]["id"]),
        (&json!(true), &json!("tools"))
    );
    let (state, log) = ended(&t, &begun).await;
    assert_eq!(state, State::Ready, "{log:?}");
    assert!(log.iter().any(|line| line == "second") && log.iter().any(|line| line == "***"), "{log:?}");
    assert!(!log.iter().any(|line| line.contains("s3cret")), "{log:?}");
    assert!(!t.fake.is_in_a_layer(b"s3cret-value"));

    // Everybody starts from it, by each of its names.
    let told = call(&t, &other, "GET", "/api/templates/tools-v1", "").await.json();
    assert_eq!((&told["name"], &told["built"], &told["built_in"]), (&json!("tools"), &json!(true), &json!(true)));
    assert_eq!((&told["description"], &told["user"]), (&json!("other tools"), &json!("ada")));
    assert_eq!(told["limits"]["memory"], 512 << 20);
    let made = call(&t, &other, "POST", "/api/sandboxes", json!({"template": "tools-v1"}).to_string()).await.json();
    let id = made["id"].as_str().unwrap_or_else(|| panic!("{made}"));
    assert_eq!(output(&t, &other, id, "cat /opt/made; cat /etc/note; printenv KEPT").await, "made\nhelloyes\n");
    // What the recipe's commands had is not the sandboxes'.
    assert_eq!(output(&t, &other, id, "printenv WORD; printenv TOKEN").await, "\n\n");
    let listed = ask(&t, "GET", "/api/templates", Value::Null).await.json();
    assert_eq!(named(&listed, "tools")["built"], true);

    // How it was made is the operator's to see, and its end the operator's to bring.
    let build = begun.json()["build"]["id"].as_str().unwrap().to_owned();
    let path = format!("/api/templates/tools/builds/{build}");
    assert_eq!(ask(&t, "GET", &path, Value::Null).await.json()["state"], "ready");
    for (method, path) in [("GET", path.clone()), ("GET", format!("{path}/logs")), ("POST", format!("{path}/cancel"))] {
        let refused = call(&t, &other, method, &path, "").await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{method} {path}: {}", refused.text());
    }
    let stays = call(&t, &other, "DELETE", "/api/templates/tools", "").await;
    assert_eq!(stays.status, StatusCode::CONFLICT, "{}", stays.text());
    // `cove run` finds it by its note.
    let note = t.app.config().data.join("templates/tools.json");
    let written: Built = serde_json::from_slice(&std::fs::read(&note).unwrap()).unwrap();
    assert_eq!((written.build, written.user.as_deref()), (Some(build), Some("ada")));
    assert_eq!(ask(&t, "DELETE", "/api/templates/tools", Value::Null).await.status, StatusCode::NO_CONTENT);
    assert!(!note.exists());
    let refused = call(&t, &other, "POST", "/api/sandboxes", json!({"template": "tools"}).to_string()).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    assert_eq!(output(&t, &other, id, "cat /opt/made").await, "made\n", "a sandbox keeps its files");
}

#[tokio::test]
async fn the_second_build_of_a_recipe_finds_its_steps_done_and_replaces_the_first() {
    let Workbench { t, .. } = Workbench::new().await;
    tools(&t);
    let body = json!({"name": "tools", "from": {"recipe": "tools"}});
    let (_, first) = ended(&t, &ask(&t, "POST", "/api/templates", body.clone()).await).await;
    assert!(first.iter().any(|line| line == "first") && !first.iter().any(|line| line.contains("CACHED")), "{first:?}");
    t.clock.advance(std::time::Duration::from_secs(1));
    let (state, second) = ended(&t, &ask(&t, "POST", "/api/templates", body).await).await;
    assert_eq!(state, State::Ready);
    assert!(second.iter().any(|line| line.starts_with("CACHED") && line.contains("RUN")), "{second:?}");
    let builds = ask(&t, "GET", "/api/templates/tools/builds", Value::Null).await.json();
    eventually("the first is gone", || async {
        ask(&t, "GET", "/api/templates/tools/builds", Value::Null).await.json()["items"].as_array().map(Vec::len)
            == Some(1)
    })
    .await;
    assert!(builds["items"][0]["state"] == "ready", "{builds}");
    // Another argument is another step.
    let body = json!({"name": "tools", "from": {"recipe": "tools", "arguments": {"WORD": "third"}}});
    let (_, third) = ended(&t, &ask(&t, "POST", "/api/templates", body).await).await;
    assert!(third.iter().any(|line| line == "third"), "{third:?}");
}

#[tokio::test]
async fn a_tenant_builds_a_recipe_for_itself_alone() {
    let Workbench { t, .. } = Workbench::new().await;
    let other = stranger(&t).await;
    write(&t, &[("code-interpreter.toml", CELLS)]);
    let body = json!({"name": "code-interpreter", "from": {"recipe": "code-interpreter"}}).to_string();
    let begun = call(&t, &other, "POST", "/api/templates", body).await;
    assert_eq!(begun.json()["template"]["built_in"], false);
    assert_eq!(ended(&t, &begun).await.0, State::Ready);
    // The SDKs' name for it leads to its own; everybody else's is as it was.
    let own = call(&t, &other, "GET", "/api/templates/code-interpreter-v1", "").await.json();
    assert_eq!((&own["built"], &own["built_in"]), (&json!(true), &json!(false)));
    let theirs = ask(&t, "GET", "/api/templates/code-interpreter-v1", Value::Null).await.json();
    assert_eq!((&theirs["built"], &theirs["built_in"]), (&json!(false), &json!(true)));
    let made = call(&t, &other, "POST", "/api/sandboxes", r#"{"template": "code-interpreter-v1"}"#).await.json();
    assert_eq!(output(&t, &other, made["id"].as_str().unwrap(), "cat /opt/cells").await, "cells\n");
    let recipes = call(&t, &other, "GET", "/api/recipes", "").await.json();
    let cells = named(&recipes, "code-interpreter");
    assert_eq!((&cells["built"], &cells["state"], &cells["path"]), (&json!(true), &json!("ready"), &Value::Null));
    let recipes = ask(&t, "GET", "/api/recipes", Value::Null).await.json();
    let cells = named(&recipes, "code-interpreter");
    assert_eq!((&cells["built"], &cells["state"]), (&json!(false), &Value::Null));
    assert!(cells["path"].as_str().unwrap().ends_with("recipes/code-interpreter.toml"), "{cells}");
}

#[tokio::test]
async fn what_is_not_built_is_ready_at_no_door() {
    let t = TestApp::new().await;
    let recipes = ask(&t, "GET", "/api/recipes", Value::Null).await.json();
    for name in ["agents", "code-interpreter", "desktop", "node"] {
        let recipe = named(&recipes, name);
        assert_eq!(
            (&recipe["built"], &recipe["state"], &recipe["built_in"]),
            (&json!(false), &Value::Null, &json!(true))
        );
        assert!(!recipe["needs"].as_array().unwrap().is_empty(), "{recipe}");
    }
    // The default name of E2B's SDKs always works, and says what it is.
    let listed = ask(&t, "GET", "/api/templates", Value::Null).await.json();
    let cells = named(&listed, "code-interpreter");
    assert_eq!((&cells["built"], &cells["state"]), (&json!(false), &Value::Null));
    assert!(cells["note"].as_str().unwrap().contains("cove template build code-interpreter"), "{cells}");
    assert_eq!(named(&listed, "base")["built"], true);
    // Others are no templates yet: nobody gets something else in their place.
    for path in ["/api/templates", "/e2b/templates", "/daytona/api/snapshots"] {
        let shown = ask(&t, "GET", path, Value::Null).await.text();
        assert!(!shown.contains("desktop") && shown.contains("code-interpreter"), "{path}: {shown}");
    }
    let refused = ask(&t, "POST", "/api/sandboxes", json!({"template": "node"})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    assert!(message(&refused).contains("`cove template build node` builds it"), "{}", message(&refused));
    // A build that fails leaves it so.
    write(&t, &[("node.toml", "description = \"n\"\n[[steps]]\nrun.command = \"exit 3\"\n")]);
    let begun = ask(&t, "POST", "/api/templates", json!({"name": "node", "from": {"recipe": "node"}})).await;
    assert_eq!(ended(&t, &begun).await.0, State::Error);
    let recipes = ask(&t, "GET", "/api/recipes", Value::Null).await.json();
    assert_eq!(
        (&named(&recipes, "node")["built"], &named(&recipes, "node")["state"]),
        (&json!(false), &json!("error"))
    );
    assert_eq!(ask(&t, "POST", "/api/sandboxes", json!({"template": "node"})).await.status, StatusCode::CONFLICT);
}

#[tokio::test]
async fn a_file_that_is_no_recipe_is_the_operators_to_see_and_nobodys_to_build() {
    let t = TestApp::new().await;
    let other = stranger(&t).await;
    write(&t, &[("node/recipe.toml", "description = \"n\"\nsteps = []\nuser = \"x\"\n")]);
    let problem = |list: &Value| {
        let bad = list.as_array().unwrap().iter().find(|one| one["problem"].is_string())?;
        Some((bad["name"].clone(), bad["problem"].as_str().unwrap().to_owned()))
    };
    let seen = problem(&ask(&t, "GET", "/api/recipes", Value::Null).await.json()).unwrap();
    assert_eq!(seen.0, "node");
    assert!(seen.1.starts_with("line 3: unknown field `user`"), "{}", seen.1);
    assert_eq!(problem(&call(&t, &other, "GET", "/api/recipes", "").await.json()), None);
    let refused = ask(&t, "POST", "/api/templates", json!({"name": "node", "from": {"recipe": "node"}})).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    assert!(message(&refused).contains("line 3"), "{}", message(&refused));
    let text = ask(&t, "GET", "/api/recipes/desktop", Value::Null).await.json();
    assert!(text["text"].as_str().unwrap().contains("[[steps]]"), "{text}");
    assert_eq!(ask(&t, "GET", "/api/recipes/nothing", Value::Null).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn wishes_that_a_recipe_does_not_know_are_refused() {
    let Workbench { t, .. } = Workbench::new().await;
    let other = stranger(&t).await;
    tools(&t);
    for (body, expected) in [
        (json!({"name": "tools", "from": {"recipe": "tools", "variant": "othr"}}), "is other meant?"),
        (json!({"name": "tools", "from": {"recipe": "tools", "arguments": {"WORT": "x"}}}), "is WORD meant?"),
        (json!({"name": "tools", "from": {"recipe": "tools", "arguments": {"WORD": "a b"}}}), "from.arguments.WORD"),
        (json!({"name": "tools", "from": {"recipe": "tools"}, "secrets": {"TOKN": "eA=="}}), "is TOKEN meant?"),
        (json!({"name": "tools:v1", "from": {"recipe": "tools"}}), "no tag but default"),
        (json!({"name": "tools", "from": {"recipe": "tools"}, "allow": ["10.0.0.0/99"]}), "network.allow"),
    ] {
        let refused = ask(&t, "POST", "/api/templates", body.clone()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}: {}", refused.text());
        assert!(message(&refused).contains(expected), "{body}: {}", message(&refused));
    }
    // A private address is an operator's to open.
    let body = json!({"name": "tools", "from": {"recipe": "tools"}, "allow": ["10.1.2.3:443"]});
    let refused = call(&t, &other, "POST", "/api/templates", body.to_string()).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.text());
    assert_eq!(ask(&t, "POST", "/api/templates", body).await.status, StatusCode::ACCEPTED);
    // An organisation may have a template of a recipe's name that is something else, but for names that always work.
    let image = json!({"image": "127.0.0.1:1/nothing:1"});
    let own = ask(&t, "POST", "/api/templates", json!({"name": "desktop", "from": image})).await;
    assert_eq!((own.status, &own.json()["template"]["built_in"]), (StatusCode::ACCEPTED, &json!(false)));
    let reserved = ask(&t, "POST", "/api/templates", json!({"name": "code-interpreter", "from": image})).await;
    assert_eq!(reserved.status, StatusCode::CONFLICT, "{}", reserved.text());
}
