//! Images of several organisations: what they share, what each has alone, and for whom it counts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cove_control::build::{Build, Confidential, Credentials, Habits, Recipe, Request, State};
use cove_control::key::Scope;
use cove_control::provider::images::Volumes as _;
use cove_control::template::NewTemplate;
use cove_control::volume::{NewVolume, VolumeFilter};
use cove_control::{Caller, Error};
use tokio::io::AsyncWriteExt as _;

use crate::harness::eventually;
use crate::shelf::Item;
use crate::templates::{Workbench, steps};

async fn stranger(w: &Workbench) -> Caller {
    w.t.app.create_organisation(&w.t.caller, "stranger", "stranger").await.unwrap();
    Caller { organisation: "stranger".into(), key: "k".into(), scopes: vec![Scope::Admin] }
}

fn of(recipe: Recipe) -> Request {
    Request { recipe, habits: Habits::OfTheImage, ..steps(Vec::new()) }
}

fn image(reference: &str) -> Request {
    of(Recipe::Image { reference: reference.into() })
}

async fn built(w: &Workbench, caller: &Caller, name: &str, request: Request, who: Option<Credentials>) -> Build {
    let new = NewTemplate { name: name.into(), ..NewTemplate::default() };
    let (_, build) = w.t.app.create_template(caller, new).await.unwrap();
    let confidential = Confidential { registry: who, ..Confidential::default() };
    w.t.app.start_build(caller, &build.template, &build.id, request, confidential).await.unwrap();
    w.ended(&build).await
}

#[tokio::test]
async fn an_image_is_nobodys_by_its_digests_alone() {
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let files = vec![("/etc/passwd", ""), ("/srv/secret", "of the first")];
    let private = Item { files: files.clone(), password: Some("pull-me"), ..Item::default() };
    w.shelf.put("private.example/app:1", private);
    let who = || Some(Credentials { username: "ada".into(), password: "pull-me".into() });
    let first = built(&w, &w.t.caller, "app", image("private.example/app:1"), who()).await;
    assert_eq!(first.state, State::Ready);
    // A registry of one's own says that its image has the same layers, and has others.
    let claims = Some(files.clone());
    let hostile = Item { files: vec![("/nothing", "")], claims, ..Item::default() };
    w.shelf.put("hostile.example/app:1", hostile);
    let stolen = built(&w, &other, "stolen", image("hostile.example/app:1"), None).await;
    assert_eq!((stolen.state, stolen.image.root.over.len()), (State::Error, 0));
    assert!(stolen.failure.unwrap().message.contains("something else"));
    assert_eq!((w.shelf.fetched.load(Ordering::SeqCst), w.shelf.proved.load(Ordering::SeqCst)), (1, 1));
    // One that really has them is compared, and not unpacked a second time.
    w.shelf.put("mirror.example/app:1", Item { files, ..Item::default() });
    let shared = built(&w, &other, "shared", image("mirror.example/app:1"), None).await;
    assert_eq!((shared.state, shared.image.clone()), (State::Ready, first.image.clone()));
    assert_eq!((w.shelf.fetched.load(Ordering::SeqCst), w.shelf.proved.load(Ordering::SeqCst)), (1, 2));
    // The registry that has named it before has seen to who may have it.
    let refused = built(&w, &other, "refused", image("private.example/app:1"), None).await;
    assert_eq!(refused.state, State::Error);
    let allowed = built(&w, &other, "allowed", image("private.example/app:1"), who()).await;
    assert_eq!((allowed.state, allowed.image.clone()), (State::Ready, first.image));
    assert_eq!(w.shelf.proved.load(Ordering::SeqCst), 2, "it is not fetched again");
}

#[tokio::test]
async fn the_password_of_a_build_goes_to_one_registry() {
    let w = Workbench::new().await;
    let item = || Item { files: vec![("/etc/passwd", ""), ("/a", "a")], ..Item::default() };
    let mut leads_away = item();
    leads_away.config.on_build = vec!["COPY --from=hostile.example/x:1 /a /b".into()];
    w.shelf.put("private.example/app:1", Item { password: Some("pull-me"), ..leads_away });
    for name in ["docker.io/library/debian:12", "public.example/tool:1", "hostile.example/x:1"] {
        w.shelf.put(name, item());
    }
    let who = || Some(Credentials { username: "ada".into(), password: "pull-me".into() });
    let dockerfile = |text: &str| {
        let (text, contexts) = (text.to_owned(), Vec::new());
        of(Recipe::Dockerfile { text, contexts, target: None, arguments: Default::default() })
    };
    let text = "FROM docker.io/library/debian:12 AS tools\nFROM private.example/app:1\n\
        COPY --from=tools /a /c\nCOPY --from=public.example/tool:1 /a /d\n";
    let done = built(&w, &w.t.caller, "app", dockerfile(text), who()).await;
    assert_eq!((done.state, done.failure), (State::Ready, None));
    let shown = std::mem::take(&mut *w.shelf.shown.lock().unwrap());
    assert!(!shown.is_empty() && shown.iter().all(|name| name == "private.example/app:1"), "{shown:?}");
    // Where nothing else is named, it is for the usual registry.
    w.shelf.put("docker.io/team/app:1", Item { password: Some("pull-me"), ..item() });
    let done = built(&w, &w.t.caller, "usual", image("docker.io/team/app:1"), who()).await;
    assert_eq!((done.state, done.failure), (State::Ready, None));
    assert_eq!(*w.shelf.shown.lock().unwrap(), ["docker.io/team/app:1"]);
}

#[tokio::test]
async fn what_an_archive_brings_is_its_organisations_own() {
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let hash = "ef".repeat(32);
    let archive = || of(Recipe::Archive { hash: hash.clone(), name: None });
    let mut roots = Vec::new();
    for caller in [&w.t.caller, &other] {
        w.t.app.put_build_file(caller, &hash, &b"image of a test"[..]).await.unwrap();
        let made = built(&w, caller, "archived", archive(), None).await;
        assert_eq!(made.state, State::Ready);
        roots.push(made.image.root);
        let kept = w.t.app.store().stored_bytes(&caller.organisation).await.unwrap();
        assert!(kept.layers > 0, "it counts for whoever sent it");
    }
    assert_ne!(roots[0], roots[1], "the same bytes, and neither finds the other's");
    // Of one organisation it is one layer, however often it is sent.
    let again = built(&w, &other, "again", archive(), None).await;
    assert_eq!(again.image.root, roots[1]);
}

#[tokio::test]
async fn images_count_for_those_who_ask_for_them_until_nothing_stands_on_them() {
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let app = &w.t.app;
    let megabyte: &'static str = Box::leak("x".repeat(1_000_000).into_boxed_str());
    for (name, file) in [("big.example/a:1", "/a"), ("big.example/b:1", "/b")] {
        w.shelf.put(name, Item { files: vec![(file, megabyte)], ..Item::default() });
    }
    let mut quota = app.quota("stranger").await.unwrap();
    quota.storage_bytes = 1_500_000;
    app.set_quota(&w.t.caller, "stranger", quota).await.unwrap();
    assert_eq!(built(&w, &other, "a", image("big.example/a:1"), None).await.state, State::Ready);
    assert!(app.store().stored_bytes("stranger").await.unwrap().images >= 1_000_000);
    let too_much = built(&w, &other, "b", image("big.example/b:1"), None).await;
    assert!(too_much.failure.unwrap().message.contains("may keep"));
    // Without the first template there is room, although its image is still here.
    app.delete_template(&other, "a").await.unwrap();
    let new = NewTemplate { name: "c".into(), ..NewTemplate::default() };
    let (_, waiting) = app.create_template(&other, new).await.unwrap();
    eventually("images that nothing stands on make room", || async {
        let request = image("big.example/b:1");
        app.start_build(&other, &waiting.template, &waiting.id, request, Confidential::default()).await.is_ok()
    })
    .await;
    assert_eq!(w.ended(&waiting).await.state, State::Ready);
    assert_eq!(app.store().stored_bytes("default").await.unwrap().images, 0, "others do not pay for it");
}

#[tokio::test]
async fn archives_that_come_at_once_have_one_room_together() {
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let mut quota = w.t.app.quota("stranger").await.unwrap();
    quota.storage_bytes = 1000;
    w.t.app.set_quota(&w.t.caller, "stranger", quota).await.unwrap();
    let send = |hash: String| {
        // So small that whoever writes knows that it was read.
        let (near, far) = tokio::io::duplex(16);
        let (app, caller) = (w.t.app.clone(), other.clone());
        (near, tokio::spawn(async move { app.put_build_file(&caller, &hash, far).await }))
    };
    let ((mut one, first), (mut two, second)) = (send("ab".repeat(32)), send("cd".repeat(32)));
    for near in [&mut one, &mut two] {
        near.write_all(&[7; 300]).await.unwrap();
    }
    // Both are under way. Each alone has room, and both together have not.
    for near in [&mut one, &mut two] {
        let _or_refused = near.write_all(&[7; 300]).await;
    }
    drop((one, two));
    let done = [first.await.unwrap().is_ok(), second.await.unwrap().is_ok()];
    assert!(!(done[0] && done[1]), "{done:?}");
    assert!(w.t.app.store().build_file_bytes("stranger").await.unwrap() <= 1000);
}

#[tokio::test]
async fn archives_that_no_build_has_used_for_a_while_make_room() {
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let app = &w.t.app;
    let mut quota = app.quota("stranger").await.unwrap();
    quota.storage_bytes = 1000;
    app.set_quota(&w.t.caller, "stranger", quota).await.unwrap();
    let (old, new) = ("ab".repeat(32), "cd".repeat(32));
    let bytes = [7_u8; 600];
    app.put_build_file(&other, &old, &bytes[..]).await.unwrap();
    assert!(matches!(app.put_build_file(&other, &new, &bytes[..]).await, Err(Error::Quota { .. })));
    w.t.clock.advance(Duration::from_secs(2 * 3600));
    app.put_build_file(&other, &new, &bytes[..]).await.unwrap();
    assert!(!app.has_build_file(&other, &old).await.unwrap() && app.has_build_file(&other, &new).await.unwrap());
}

#[tokio::test]
async fn an_archive_of_one_build_goes_with_it_or_after_an_hour() {
    let w = Workbench::new().await;
    let app = &w.t.app;
    let kept = || async { app.store().build_file_bytes(&w.t.caller.organisation).await.unwrap() };
    let archive = |hash: &str| of(Recipe::Archive { hash: hash.into(), name: None });
    for (hash, bytes, state) in
        [("ab".repeat(32), &b"image of a test"[..], State::Ready), ("cd".repeat(32), &b"nonsense"[..], State::Error)]
    {
        app.put_archive_of_one_build(&w.t.caller, &hash, bytes).await.unwrap();
        assert_eq!(built(&w, &w.t.caller, "archived", archive(&hash), None).await.state, state);
        eventually("the archive is gone", || async { kept().await == 0 }).await;
    }
    // One that no build was begun with, as where its sender goes away in the middle.
    let hash = "ef".repeat(32);
    app.put_archive_of_one_build(&w.t.caller, &hash, &b"image of a test"[..]).await.unwrap();
    w.t.clock.advance(Duration::from_secs(3500));
    app.sweep_layers().await.unwrap();
    assert_eq!(kept().await, 15, "somebody may be about to begin");
    w.t.clock.advance(Duration::from_secs(200));
    app.sweep_layers().await.unwrap();
    assert_eq!(kept().await, 0, "nobody did");
    // What other builds may use stays.
    app.put_build_file(&w.t.caller, &hash, &b"image of a test"[..]).await.unwrap();
    assert_eq!(built(&w, &w.t.caller, "archived", archive(&hash), None).await.state, State::Ready);
    app.sweep_layers().await.unwrap();
    assert_eq!(kept().await, 15);
}

#[tokio::test]
async fn volumes_that_are_made_or_grow_at_once_have_one_room_together() {
    const MIB: u64 = 1 << 20;
    let w = Workbench::new().await;
    let other = stranger(&w).await;
    let app = &w.t.app;
    let mut quota = app.quota("stranger").await.unwrap();
    quota.storage_bytes = 3 * MIB;
    app.set_quota(&w.t.caller, "stranger", quota).await.unwrap();
    let make = |number: u32| {
        let new = NewVolume { name: format!("v{number}"), size: Some(MIB), provider: None };
        app.create_volume(&other, new)
    };
    futures::future::join_all((0..8).map(make)).await;
    assert!(app.store().stored_bytes("stranger").await.unwrap().volumes <= 3 * MIB);
    for volume in app.list_volumes(&other, VolumeFilter::Existing).await.unwrap() {
        app.delete_volume(&other, volume.id.as_str()).await.unwrap();
    }
    // Whoever asks last has the last word, with the provider and in the row.
    let volume = make(9).await.unwrap();
    let sizes = [3 * MIB, MIB, 2 * MIB, MIB, 3 * MIB, MIB];
    futures::future::join_all(sizes.map(|size| app.resize_volume(&other, "v9", size))).await;
    let row = app.volume(&other, "v9").await.unwrap();
    assert_eq!(w.t.fake.volume_usage(&volume.id).await.unwrap().limit, row.size_limit);
}
