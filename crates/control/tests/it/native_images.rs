//! Templates, snapshots, forks and volumes by the native API, as far as no files are needed: what is refused, and that
//! nothing is left of it.

use axum::body::Body;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::api::{Answer, ask, call};
use crate::harness::TestApp;
use crate::templates::Workbench;

fn message(answer: &Answer) -> String {
    answer.json()["message"].as_str().unwrap_or_default().to_owned()
}

async fn names(t: &TestApp) -> Vec<String> {
    let listed = ask(t, "GET", "/api/templates", Value::Null).await.json();
    listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
}

async fn stranger(t: &TestApp) -> String {
    ask(t, "POST", "/api/organisations", json!({"id": "strangers", "name": "Strangers"})).await;
    let made = ask(t, "POST", "/api/keys", json!({"name": "k", "organisation": "strangers", "scope": "write"})).await;
    made.json()["secret"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_build_that_cannot_be_started_leaves_no_template() {
    let t = TestApp::new().await;
    let hash = "a".repeat(64);
    let copy = json!({"steps": [{"copy": {"files": hash, "source": ".", "destination": "/x"}}]});
    let refused = ask(&t, "POST", "/api/templates", json!({"name": "half", "from": copy})).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
    assert!(message(&refused).contains("were never sent"), "{}", message(&refused));
    assert_eq!(names(&t).await, ["base", "code-interpreter"]);
    // The name is free.
    let image = json!({"image": "127.0.0.1:1/nothing:1"});
    let begun = ask(&t, "POST", "/api/templates", json!({"name": "half", "from": image})).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    assert_eq!(names(&t).await, ["base", "code-interpreter", "half"]);
}

#[tokio::test]
async fn a_template_is_refused_by_the_field_that_is_wrong() {
    let t = TestApp::new().await;
    let image = json!({"image": "x"});
    for (body, status, expected) in [
        (json!({"name": "base", "from": image}), 409, "built-in"),
        (json!({"name": "a b", "from": image}), 400, "template"),
        (json!({"name": "t", "from": {"image": "x", "template": "y"}}), 400, "from: image and template"),
        (json!({"name": "t", "from": image, "tags": ["a b"]}), 400, "tag"),
        (json!({"name": "t", "from": image, "limits": {"cpus": 64.0}}), 400, "limits.cpus"),
        (json!({"name": "t", "from": image, "isolation": "microvm"}), 400, "microvm"),
        (json!({"name": "t", "from": image, "secrets": {"a/b": "eA=="}}), 400, "secrets"),
        (json!({"name": "t", "from": {"steps": [{"user": {"name": "a:0"}}]}}), 400, "user"),
        (json!({"name": "t", "from": image, "provider": "moon"}), 400, "provider"),
    ] {
        let refused = ask(&t, "POST", "/api/templates", body.clone()).await;
        assert_eq!(refused.status.as_u16(), status, "{body}: {}", refused.text());
        assert!(message(&refused).contains(expected), "{body}: {}", message(&refused));
    }
    assert_eq!(names(&t).await, ["base", "code-interpreter"]);
}

#[tokio::test]
async fn a_build_is_followed_to_its_end() {
    let t = TestApp::new().await;
    t.app.begin();
    let body = json!({"name": "t", "from": {"image": "127.0.0.1:1/nothing:1"}});
    let begun = ask(&t, "POST", "/api/templates", body).await.json();
    // The template is shown as it is when the answer is written: by then the build may have failed.
    assert_eq!(begun["build"]["state"], "building", "{begun}");
    let build = begun["build"]["id"].as_str().unwrap();
    let base = format!("/api/templates/t/builds/{build}");
    let told = ask(&t, "GET", &format!("{base}/logs/follow?for_seconds=60"), Value::Null).await.text();
    let end = told.split("event: end\n").nth(1).unwrap_or_else(|| panic!("no end in {told}"));
    let end: Value = serde_json::from_str(end.trim().trim_start_matches("data: ")).unwrap();
    assert_eq!((&end["id"], &end["state"]), (&json!(build), &json!("error")), "{end}");
    let failure = end["failure"]["message"].as_str().unwrap();
    assert!(told.contains(&failure.replace('"', "\\\"")), "the log has the reason too: {told}");
    let read = ask(&t, "GET", &base, Value::Null).await.json();
    assert_eq!(read, end);
    // What is finished stays so.
    assert_eq!(ask(&t, "POST", &format!("{base}/cancel"), Value::Null).await.json()["state"], "error");
    let unusable = ask(&t, "POST", "/api/sandboxes", json!({"template": "t"})).await;
    assert_eq!(unusable.status, StatusCode::CONFLICT, "{}", unusable.text());
    assert!(unusable.text().contains("the build of template t failed"), "{}", unusable.text());
}

#[tokio::test]
async fn another_organisation_sees_no_template_and_no_file() {
    let t = TestApp::new().await;
    let other = stranger(&t).await;
    let hash = "b".repeat(64);
    let sent = call(&t, &t.key, "POST", &format!("/api/build-files/{hash}"), "tar").await;
    assert_eq!((sent.status, sent.json()["bytes"].as_u64()), (StatusCode::CREATED, Some(3)));
    let present = |key: String| {
        let (t, path) = (&t, format!("/api/build-files/{hash}"));
        async move { call(t, &key, "GET", &path, Body::empty()).await.json()["present"].clone() }
    };
    assert_eq!(present(t.key.clone()).await, true);
    assert_eq!(present(other.clone()).await, false);
    let body = json!({"name": "mine", "from": {"image": "127.0.0.1:1/x"}});
    let begun = ask(&t, "POST", "/api/templates", body).await.json();
    let (id, build) = (begun["template"]["id"].as_str().unwrap(), begun["build"]["id"].as_str().unwrap());
    for path in
        [format!("/api/templates/{id}"), format!("/api/templates/{id}/builds/{build}"), "/api/templates/mine".into()]
    {
        let seen = call(&t, &other, "GET", &path, Body::empty()).await;
        assert_eq!(seen.status, StatusCode::NOT_FOUND, "{path}: {}", seen.text());
    }
    for (method, path) in
        [("DELETE", format!("/api/templates/{id}")), ("POST", format!("/api/templates/{id}/builds/{build}/cancel"))]
    {
        let refused = call(&t, &other, method, &path, Body::empty()).await;
        assert_eq!(refused.status, StatusCode::NOT_FOUND, "{path}: {}", refused.text());
    }
}

#[tokio::test]
async fn a_template_is_renamed_hidden_and_deleted() {
    let t = TestApp::new().await;
    let body = json!({"name": "one", "from": {"image": "127.0.0.1:1/x"}, "description": "first"});
    ask(&t, "POST", "/api/templates", body).await;
    let change = json!({"name": "two", "aliases": ["deux"], "public": true, "active": false});
    let changed = ask(&t, "PATCH", "/api/templates/one", change).await.json();
    assert_eq!(
        (&changed["name"], &changed["public"], &changed["active"]),
        (&json!("two"), &json!(true), &json!(false))
    );
    assert_eq!(changed["description"], "first");
    assert_eq!(ask(&t, "GET", "/api/templates/one", Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&t, "GET", "/api/templates/deux", Value::Null).await.json()["name"], "two");
    assert_eq!(ask(&t, "PATCH", "/api/templates/base", json!({"name": "x"})).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&t, "DELETE", "/api/templates/two", Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(&t, "DELETE", "/api/templates/two", Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(names(&t).await, ["base", "code-interpreter"]);
}

#[tokio::test]
async fn names_and_copies_of_a_fork_agree() {
    let t = TestApp::new().await;
    ask(&t, "POST", "/api/sandboxes", json!({"name": "box"})).await;
    for (body, expected) in [
        (json!({"count": 0}), "count: 1 to 100"),
        (json!({"count": 101}), "count: 1 to 100"),
        (json!({"count": 1, "names": ["a", "b"]}), "names: there are more names"),
        (json!({"name": "a"}), "unknown field `name`"),
    ] {
        let refused = ask(&t, "POST", "/api/sandboxes/box/fork", body.clone()).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{body}");
        assert!(message(&refused).contains(expected), "{body}: {}", message(&refused));
    }
    let nobody = ask(&t, "POST", "/api/sandboxes/nothing/fork", json!({})).await;
    assert_eq!(nobody.status, StatusCode::NOT_FOUND);
    let lineage = ask(&t, "GET", "/api/sandboxes/box/lineage", Value::Null).await.json();
    assert_eq!(lineage, json!({"parent": null, "ancestors": [], "forks": []}));
}

/// A template of the shelf's image, built.
async fn built(w: &Workbench, name: &str) {
    w.t.app.begin();
    let steps = json!([{"run": {"command": "echo step > /etc/step"}}]);
    let body = json!({"name": name, "from": {"image": "debian:12", "steps": steps}, "env": {"WHO": "ada"}});
    let begun = ask(&w.t, "POST", "/api/templates", body).await;
    assert_eq!(begun.status, StatusCode::ACCEPTED, "{}", begun.text());
    let path = format!("/api/templates/{name}/builds/{}/logs/follow", begun.json()["build"]["id"].as_str().unwrap());
    let told = ask(&w.t, "GET", &path, Value::Null).await.text();
    assert!(told.contains("\"state\":\"ready\""), "{told}");
}

async fn run(w: &Workbench, sandbox: &str, line: &str) -> String {
    let ran = ask(&w.t, "POST", &format!("/api/sandboxes/{sandbox}/exec"), json!({"shell": line})).await.json();
    ran["stdout"].as_str().unwrap_or_else(|| panic!("{ran}")).to_owned()
}

#[tokio::test]
async fn a_template_is_built_read_tagged_and_used() {
    let w = Workbench::new().await;
    built(&w, "app:v1").await;
    let read = ask(&w.t, "GET", "/api/templates/app:v1", Value::Null).await.json();
    assert_eq!((&read["env"]["WHO"], &read["state"], &read["builds"]), (&json!("ada"), &json!("ready"), &json!(1)));
    let tagged =
        ask(&w.t, "POST", "/api/templates/app/tags", json!({"tags": ["default", "Stable"], "build": "v1"})).await;
    assert_eq!(tagged.status, StatusCode::OK, "{}", tagged.text());
    let tags = ask(&w.t, "GET", "/api/templates/app/tags", Value::Null).await.json();
    assert_eq!(tags.as_array().unwrap().len(), 3, "{tags}");
    let made = ask(&w.t, "POST", "/api/sandboxes", json!({"name": "box", "template": "app:stable"})).await.json();
    assert_eq!(made["build"], read["build"], "{made}");
    assert_eq!(run(&w, "box", "cat /etc/step; printenv WHO").await, "step\nada\n");
    let gone = ask(&w.t, "DELETE", "/api/templates/app/tags/stable", Value::Null).await;
    assert_eq!(gone.status, StatusCode::NO_CONTENT);
    let unknown = ask(&w.t, "POST", "/api/sandboxes", json!({"template": "app:stable"})).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let builds = ask(&w.t, "GET", "/api/templates/app/builds?limit=1", Value::Null).await.json();
    assert_eq!((&builds["items"][0]["kind"], &builds["next_cursor"]), (&json!("steps"), &Value::Null));
    // Everybody may start from what is public; its environment is its owner's.
    let other = stranger(&w.t).await;
    let path = format!("/api/templates/{}", read["id"].as_str().unwrap());
    assert_eq!(call(&w.t, &other, "GET", &path, Body::empty()).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&w.t, "PATCH", &path, json!({"public": true})).await.json()["env"]["WHO"], "ada");
    let seen = call(&w.t, &other, "GET", &path, Body::empty()).await.json();
    assert_eq!((&seen["public"], &seen["env"]), (&json!(true), &json!({})), "{seen}");
    let by_tag = call(&w.t, &other, "GET", &format!("{path}:v1"), Body::empty()).await.json();
    assert_eq!((&by_tag["build"], &by_tag["env"]), (&read["build"], &json!({})), "{by_tag}");
    let taken = call(&w.t, &other, "PATCH", &path, json!({"public": false}).to_string()).await;
    assert_eq!(taken.status, StatusCode::NOT_FOUND, "{}", taken.text());
    // How it was made, and what was said meanwhile, is its owner's too.
    let builds = format!("{path}/builds");
    let build = format!("{builds}/{}", read["build"].as_str().unwrap());
    for path in [builds, build.clone(), format!("{build}/logs"), format!("{build}/logs/follow?for_seconds=1")] {
        let own = ask(&w.t, "GET", &path, Value::Null).await;
        assert_eq!(own.status, StatusCode::OK, "{path}: {}", own.text());
        let seen = call(&w.t, &other, "GET", &path, Body::empty()).await;
        assert_eq!(seen.status, StatusCode::NOT_FOUND, "{path}: {}", seen.text());
    }
}

#[tokio::test]
async fn a_moment_is_kept_gone_back_to_and_branched_from() {
    let w = Workbench::new().await;
    let sandbox = ask(&w.t, "POST", "/api/sandboxes", json!({"name": "box"})).await.json();
    run(&w, "box", "echo one > /home/user/f").await;
    let taken = ask(&w.t, "POST", "/api/sandboxes/box/snapshots", json!({"name": "before", "note": "a word"})).await;
    assert_eq!((taken.status, &taken.json()["note"]), (StatusCode::CREATED, &json!("a word")));
    run(&w, "box", "echo two > /home/user/f").await;
    let point = ask(&w.t, "POST", "/api/sandboxes/box/checkpoints", json!({"note": "mine"})).await.json();
    let back = ask(&w.t, "POST", "/api/sandboxes/box/rollback", json!({"snapshot": "before"})).await;
    assert_eq!((back.status, &back.json()["sandbox"]["id"]), (StatusCode::OK, &sandbox["id"]), "{}", back.text());
    assert_eq!(run(&w, "box", "cat /home/user/f").await, "one\n");
    let points = ask(&w.t, "GET", "/api/sandboxes/box/checkpoints", Value::Null).await.json();
    let ids: Vec<&Value> = points.as_array().unwrap().iter().map(|one| &one["id"]).collect();
    assert!(ids.contains(&&point["id"]) && ids.contains(&&back.json()["replaced"]["id"]), "{points}");
    ask(&w.t, "POST", "/api/sandboxes/box/rollback", json!({"snapshot": point["id"]})).await;
    assert_eq!(run(&w, "box", "cat /home/user/f").await, "two\n");

    let body = json!({"names": ["left", "box"], "count": 3, "labels": {"of": "box"}});
    let forked = ask(&w.t, "POST", "/api/sandboxes/box/fork", body).await.json();
    let forks = forked["forks"].as_array().unwrap();
    assert_eq!((&forks[0]["sandbox"]["name"], &forks[0]["sandbox"]["parent"]), (&json!("left"), &sandbox["id"]));
    assert_eq!(forks[1]["error"]["code"], "conflict", "its own name is taken: {forked}");
    assert_eq!((&forks[2]["sandbox"]["name"], &forks[2]["sandbox"]["labels"]["of"]), (&Value::Null, &json!("box")));
    assert_eq!(run(&w, "left", "cat /home/user/f").await, "two\n");
    let lineage = ask(&w.t, "GET", "/api/sandboxes/left/lineage", Value::Null).await.json();
    assert_eq!(lineage["parent"]["id"], sandbox["id"]);
    let all_taken = ask(&w.t, "POST", "/api/sandboxes/box/fork", json!({"names": ["left"]})).await;
    assert_eq!(all_taken.status, StatusCode::CONFLICT, "{}", all_taken.text());

    let listed = ask(&w.t, "GET", "/api/snapshots", Value::Null).await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(ask(&w.t, "GET", "/api/snapshots/base", Value::Null).await.status, StatusCode::NOT_FOUND);
    assert_eq!(ask(&w.t, "DELETE", "/api/snapshots/before", Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(&w.t, "GET", "/api/snapshots/before", Value::Null).await.status, StatusCode::NOT_FOUND);
    let audit = ask(&w.t, "GET", "/api/audit?limit=100", Value::Null).await.text();
    for action in ["snapshot.create", "sandbox.rollback", "sandbox.checkpoint", "sandbox.fork", "snapshot.delete"] {
        assert!(audit.contains(action), "{action} is not in {audit}");
    }
}

#[tokio::test]
async fn a_rule_makes_checkpoints_until_it_is_dropped() {
    let w = Workbench::new().await;
    let made = ask(&w.t, "POST", "/api/sandboxes", json!({"name": "box", "checkpoints": {"keep": 2}})).await.json();
    assert_eq!(made["checkpoints"]["keep"], 2);
    let set = ask(&w.t, "PUT", "/api/sandboxes/box/checkpoints", json!({"keep": 5, "keep_seconds": 60})).await.json();
    assert_eq!(set["checkpoints"], json!({"keep": 5, "keep_seconds": 60}));
    let refused = ask(&w.t, "PUT", "/api/sandboxes/box/checkpoints", json!({"keep": 0})).await;
    assert!(message(&refused).contains("checkpoints.keep"), "{}", refused.text());
    let dropped = ask(&w.t, "DELETE", "/api/sandboxes/box/checkpoints", Value::Null).await.json();
    assert_eq!(dropped["checkpoints"], Value::Null);
}

#[tokio::test]
async fn a_volume_is_made_filled_mounted_resized_and_deleted() {
    let w = Workbench::new().await;
    let t = &w.t;
    let made = ask(t, "POST", "/api/volumes", json!({"name": "data", "size": 64 << 20})).await;
    assert_eq!((made.status, &made.json()["state"]), (StatusCode::CREATED, &json!("ready")), "{}", made.text());
    let files = "/api/volumes/data/files";
    let written = call(t, &t.key, "PUT", &format!("{files}/content?path=/deep/f&mode=600"), "hello").await;
    assert_eq!((written.status, &written.json()["mode"]), (StatusCode::OK, &json!("0600")), "{}", written.text());
    let again = call(t, &t.key, "PUT", &format!("{files}/content?path=/deep/f&only_new=true"), "x").await;
    assert_eq!(again.status, StatusCode::CONFLICT, "{}", again.text());
    assert_eq!(ask(t, "GET", &format!("{files}/content?path=deep/f"), Value::Null).await.text(), "hello");
    ask(t, "POST", &format!("{files}/directory"), json!({"path": "/other"})).await;
    let moved = ask(t, "POST", &format!("{files}/move"), json!({"from": "/deep/f", "to": "/other/g"})).await.json();
    assert_eq!(moved["path"], "/other/g");
    let listed = ask(t, "GET", &format!("{files}?depth=3"), Value::Null).await.json();
    let paths: Vec<&str> = listed.as_array().unwrap().iter().filter_map(|one| one["path"].as_str()).collect();
    assert!(paths.contains(&"/other/g") && paths.contains(&"/deep"), "{paths:?}");
    for path in ["../x", "/deep/../../x"] {
        let out = ask(t, "GET", &format!("{files}/stat?path={path}"), Value::Null).await;
        assert_eq!(out.status, StatusCode::BAD_REQUEST, "{path}");
    }
    let mount = json!({"volume": "data", "path": "/data", "read_only": true, "subpath": "other"});
    let sandbox = ask(t, "POST", "/api/sandboxes", json!({"name": "box", "volumes": [mount]})).await;
    assert_eq!(sandbox.status, StatusCode::CREATED, "{}", sandbox.text());
    let shown = &sandbox.json()["volumes"][0];
    assert_eq!(
        (&shown["path"], &shown["read_only"], &shown["subpath"]),
        (&json!("/data"), &json!(true), &json!("other"))
    );
    let read = ask(t, "GET", "/api/volumes/data", Value::Null).await.json();
    assert_eq!(read["sandboxes"], json!([sandbox.json()["id"]]), "{read}");
    assert!(read["used"].is_u64(), "{read}");
    let busy = ask(t, "DELETE", "/api/volumes/data", Value::Null).await;
    assert_eq!(busy.status, StatusCode::CONFLICT, "{}", busy.text());
    let larger = ask(t, "PATCH", "/api/volumes/data", json!({"size": 128 << 20})).await.json();
    assert_eq!(larger["size"], 128 << 20);
    ask(t, "DELETE", "/api/sandboxes/box", Value::Null).await;
    assert_eq!(ask(t, "DELETE", &format!("{files}?path=/other"), Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(t, "DELETE", "/api/volumes/data", Value::Null).await.status, StatusCode::NO_CONTENT);
    assert_eq!(ask(t, "GET", "/api/volumes", Value::Null).await.json(), json!([]));
    let gone = ask(t, "GET", "/api/volumes?deleted=true", Value::Null).await.json();
    assert_eq!(gone[0]["state"], "deleted", "{gone}");
    let other = stranger(t).await;
    ask(t, "POST", "/api/volumes", json!({"name": "mine"})).await;
    let seen = call(t, &other, "GET", "/api/volumes/mine/files", Body::empty()).await;
    assert_eq!(seen.status, StatusCode::NOT_FOUND, "{}", seen.text());
}
