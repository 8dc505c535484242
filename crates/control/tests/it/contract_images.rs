//! What a store must do with layers, templates, builds and volumes; run on both databases by `contract`.

use std::collections::BTreeMap;
use std::sync::Arc;

use cove_control::Error;
use cove_control::audit::Entry;
use cove_control::build::plan::Context;
use cove_control::build::{
    Base, Build, BuildFile, Defaults, Habits, Kind as BuildKind, Level, LogEntry, Meant, Origin, Recipe, Request,
    State as BuildState, Step,
};
use cove_control::clock::from_millisecond;
use cove_control::event::{EventFilter, Kind as EventKind, NewEvent};
use cove_control::image::{Config, LayerKind, LayerState, NewLayer, Pulled, User};
use cove_control::key::Quota;
use cove_control::provider::{Access, Image, LayerId, Root, Under, VolumeMount};
use cove_control::push::{Push, State as PushState};
use cove_control::sandbox::{Sandbox, State};
use cove_control::store::builds::Unfinished;
use cove_control::store::layers::Begun;
use cove_control::store::sandboxes::Inserted;
use cove_control::store::templates::{Around, Beside, TemplateFilter};
use cove_control::store::{Dialect, Store, Written};
use cove_control::template::{Kind, Record, Visibility};
use cove_control::volume::{State as VolumeState, Volume};

use crate::contract::sandbox;

fn layer(number: u8) -> LayerId {
    LayerId::new([number; 32])
}

fn new_layer<'a>(id: LayerId, organisation: Option<&'a str>, server: &'a str) -> NewLayer<'a> {
    NewLayer { id, kind: LayerKind::Delta, organisation, server, provider: "fake" }
}

fn root(layers: &[LayerId]) -> Root {
    Root { under: Under::Nothing, over: layers.to_vec() }
}

fn record(id: &str, organisation: &str, names: &[&str], created: i64) -> Record {
    Record {
        id: id.into(),
        organisation: organisation.into(),
        kind: Kind::Built,
        names: names.iter().map(|name| (*name).to_owned()).collect(),
        visibility: Visibility::Private,
        description: "d".into(),
        source_sandbox: None,
        inactive: false,
        door: serde_json::json!({"x": 1}),
        created_at: from_millisecond(created),
        updated_at: from_millisecond(created),
        deleted_at: None,
    }
}

fn build(template: &Record, created: i64) -> Build {
    Build {
        id: cove_control::random::uuid(),
        template: template.id.clone(),
        organisation: template.organisation.clone(),
        kind: BuildKind::Steps,
        state: BuildState::Waiting,
        server: "s".into(),
        provider: "fake".into(),
        tags: vec!["default".into()],
        image: Image::default(),
        delta: None,
        defaults: Defaults::default(),
        source_sandbox: None,
        parent_build: None,
        origin: Origin::Asked,
        note: None,
        bytes: 0,
        failure: None,
        created_at: from_millisecond(created),
        started_at: None,
        finished_at: None,
        last_used_at: None,
        generation: 0,
    }
}

fn entry(subject: &str) -> Entry {
    Entry {
        seq: 0,
        organisation: "images".into(),
        key: "k".into(),
        action: "a".into(),
        subject: subject.into(),
        at: from_millisecond(1),
    }
}

async fn a_layer_is_made_once_held_by_work_and_goes_when_nobody_needs_it(store: &Store) {
    let id = layer(1);
    let new = new_layer(id, Some("layers"), "s");
    assert_eq!(store.begin_layer(new, "s/w1", 100).await.unwrap(), Begun::New);
    assert_eq!(store.begin_layer(new, "s/w2", 100).await.unwrap(), Begun::Busy, "somebody makes it");
    assert!(!store.hold_layers(&[id], "s/w2").await.unwrap(), "a draft is nobody's");
    store.seal_layer(id, 70, 7, 110).await.unwrap();
    let sealed = store.layer(id).await.unwrap().unwrap();
    assert_eq!((sealed.state, sealed.bytes, sealed.files), (LayerState::Ready, 70, 7));
    assert_eq!(store.begin_layer(new, "s/w2", 100).await.unwrap(), Begun::Ready);
    assert_eq!(store.count_uses(id).await.unwrap(), 2);
    assert_eq!(store.stored_bytes("layers").await.unwrap().layers, 70);
    assert_eq!(store.servers_of_layer(id).await.unwrap(), ["s"]);

    store.end_work("s/w1", 120).await.unwrap();
    assert!(!store.let_layer_go(id, 9999).await.unwrap(), "the other work needs it");
    store.end_work("s/w2", 130).await.unwrap();
    assert!(!store.let_layer_go(id, 130).await.unwrap(), "it was used just now");
    assert!(store.unused_layers(130, 10).await.unwrap().is_empty());
    assert_eq!(store.unused_layers(131, 10).await.unwrap(), [id]);
    assert!(store.let_layer_go(id, 131).await.unwrap());
    assert_eq!(store.layer(id).await.unwrap().unwrap().state, LayerState::Going);
    assert!(!store.hold_layers(&[id], "s/w3").await.unwrap(), "nobody begins to use it");
    assert_eq!(store.begin_layer(new, "s/w3", 140).await.unwrap(), Begun::Busy);
    assert_eq!(store.stored_bytes("layers").await.unwrap().layers, 0);

    store.add_layer_place(id, "s2", "fake").await.unwrap();
    assert_eq!(store.going_layers("s", "fake", 10).await.unwrap(), [id]);
    assert!(store.going_layers("s", "other", 10).await.unwrap().is_empty());
    store.layer_is_gone(id, "s", "fake").await.unwrap();
    assert!(store.layer(id).await.unwrap().is_some(), "another server has it");
    store.layer_is_gone(id, "s2", "fake").await.unwrap();
    assert!(store.layer(id).await.unwrap().is_none());
    assert_eq!(store.begin_layer(new, "s/w3", 150).await.unwrap(), Begun::New, "the name is free");
    store.give_up_layer(id, "s/w3").await.unwrap();
    assert_eq!(store.layer(id).await.unwrap().unwrap().state, LayerState::Going);
    store.layer_is_gone(id, "s", "fake").await.unwrap();
    store.end_work("s/w3", 160).await.unwrap();
}

async fn what_a_dead_server_was_making_goes_and_what_others_make_stays(store: &Store) {
    let (mine, theirs, ready) = (layer(2), layer(3), layer(4));
    store.begin_layer(new_layer(mine, None, "dies"), "dies/w", 1).await.unwrap();
    store.begin_layer(new_layer(theirs, None, "lives"), "lives/w", 1).await.unwrap();
    store.begin_layer(new_layer(ready, None, "dies"), "dies/w", 1).await.unwrap();
    store.seal_layer(ready, 1, 1, 2).await.unwrap();
    assert_eq!(store.end_all_work("dies").await.unwrap(), 1);
    assert_eq!(store.layer(mine).await.unwrap().unwrap().state, LayerState::Going);
    assert_eq!(store.layer(theirs).await.unwrap().unwrap().state, LayerState::Draft);
    assert_eq!(store.layer(ready).await.unwrap().unwrap().state, LayerState::Ready);
    assert_eq!((store.count_uses(ready).await.unwrap(), store.count_uses(theirs).await.unwrap()), (0, 1));
    // A server whose name begins like another's is another.
    assert_eq!(store.end_all_work("live").await.unwrap(), 0);
    assert_eq!(store.count_uses(theirs).await.unwrap(), 1);
    store.layer_is_gone(mine, "dies", "fake").await.unwrap();
    store.give_up_layer(theirs, "lives/w").await.unwrap();
    store.layer_is_gone(theirs, "lives", "fake").await.unwrap();
}

async fn a_draft_is_its_makers_and_one_that_was_given_up_is_made_by_another(store: &Store) {
    let id = layer(40);
    let (first, second) = (new_layer(id, None, "one"), new_layer(id, None, "two"));
    store.note_server("one", None, 1_000).await.unwrap();
    store.note_server("two", None, 100_000).await.unwrap();
    assert_eq!(store.begin_layer(first, "one/w", 1_000).await.unwrap(), Begun::New);
    assert_eq!(store.maker_of_layer(id).await.unwrap().as_deref(), Some("one/w"));
    // Nobody gives up what another makes.
    store.give_up_layer(id, "two/w").await.unwrap();
    assert_eq!(store.layer(id).await.unwrap().unwrap().state, LayerState::Draft);
    assert_eq!(store.give_up_drafts_of_nobody().await.unwrap(), 0);
    assert_eq!(store.silent_servers_at_work(50_000).await.unwrap(), ["one"]);
    assert!(store.silent_servers_at_work(500).await.unwrap().is_empty());
    store.give_up_layer(id, "one/w").await.unwrap();
    // It is going, on a server that is away: whoever else wants it makes it anew.
    assert_eq!(store.begin_layer(second, "two/w", 100_000).await.unwrap(), Begun::Busy);
    assert!(!store.revive_layer(second, "two/w", 100_000, 500).await.unwrap(), "that server may be removing it");
    assert!(!store.revive_layer(first, "one/v", 100_000, 50_000).await.unwrap(), "a server first removes its own");
    assert!(store.revive_layer(second, "two/w", 100_000, 50_000).await.unwrap());
    assert!(!store.revive_layer(second, "two/v", 100_000, 50_000).await.unwrap(), "one of two");
    let told = store.layer(id).await.unwrap().unwrap();
    assert_eq!((told.state, told.last_used_at), (LayerState::Draft, from_millisecond(100_000)));
    assert_eq!(store.places_of_layer(id).await.unwrap().len(), 2, "what is there may stay");
    // The server that was away comes back in the middle of what it was at.
    store.give_up_layer(id, "one/w").await.unwrap();
    assert_eq!(store.end_all_work("one").await.unwrap(), 0);
    assert_eq!(store.layer(id).await.unwrap().unwrap().state, LayerState::Draft, "it is another's by now");
    store.layer_is_gone(id, "one", "fake").await.unwrap();
    assert!(store.seal_layer(id, 1, 1, 100_001).await.unwrap());
    assert!(store.seal_layer(id, 2, 2, 100_002).await.unwrap(), "it is whole, whoever says so");
    assert_eq!(store.layer(id).await.unwrap().unwrap().bytes, 1);
    store.end_work("two/w", 100_003).await.unwrap();
    assert!(store.let_layer_go(id, 200_000).await.unwrap());
    assert!(!store.seal_layer(id, 1, 1, 100_004).await.unwrap(), "what goes is not made");
    store.layer_is_gone(id, "two", "fake").await.unwrap();
    assert!(store.layer(id).await.unwrap().is_none());

    // A draft whose work has ended is nobody's.
    assert_eq!(store.begin_layer(second, "two/x", 100_005).await.unwrap(), Begun::New);
    store.end_work("two/x", 100_006).await.unwrap();
    assert_eq!(store.give_up_drafts_of_nobody().await.unwrap(), 1);
    assert_eq!(store.layer(id).await.unwrap().unwrap().state, LayerState::Going);
    store.layer_is_gone(id, "two", "fake").await.unwrap();
}

async fn who_uses_and_who_notes_the_use_do_not_wait_for_each_other(store: &Store) {
    let ids: Vec<LayerId> = (50..58).map(layer).collect();
    for id in &ids {
        store.adopt_layer(new_layer(*id, None, "s"), 1, 1, 1).await.unwrap();
    }
    // Each in another order: where two waited for each other, the database would end one of them.
    let mut rounds = Vec::new();
    for number in 0..8_usize {
        let (store, mut layers) = (store.clone(), ids.clone());
        layers.rotate_left(number);
        if number % 2 == 1 {
            layers.reverse();
        }
        rounds.push(tokio::spawn(async move {
            for round in 0..10 {
                let work = format!("s/crowd-{number}-{round}");
                assert!(store.hold_layers(&layers, &work).await.unwrap());
                let made = Sandbox { image: root(&layers).into(), ..sandbox(None, 5) };
                assert_eq!(store.insert_sandbox(&made, None).await.unwrap(), Inserted::New);
                store.end_work(&work, 10 + round).await.unwrap();
                let gone = Sandbox { state: State::Destroyed, ..made };
                assert_eq!(store.update_sandbox(&mut gone.clone(), None).await.unwrap(), Written::Done);
            }
        }));
    }
    for round in rounds {
        round.await.unwrap();
    }
    for id in ids {
        assert_eq!(store.count_uses(id).await.unwrap(), 0);
        assert!(store.let_layer_go(id, 9999).await.unwrap());
        store.layer_is_gone(id, "s", "fake").await.unwrap();
    }
}

async fn several_sandboxes_are_written_together_or_not_at_all(store: &Store) {
    let quota = Quota { sandboxes: 5, running_sandboxes: 5, ..Quota::default() };
    let of = |name: Option<&str>| Sandbox { organisation: "together".into(), ..sandbox(name, 1) };
    let all = vec![of(Some("a")), of(None), of(None)];
    let asked: Vec<Entry> = all.iter().map(|one| entry(one.id.as_str())).collect();
    assert_eq!(store.insert_sandboxes(&all, &asked, &quota).await.unwrap(), Inserted::New);
    assert!(store.is_audited("a", all[2].id.as_str()).await.unwrap());
    let taken = vec![of(None), of(Some("a"))];
    assert_eq!(store.insert_sandboxes(&taken, &[], &quota).await.unwrap(), Inserted::NameTaken);
    assert!(store.sandbox_by_id(&taken[0].id).await.unwrap().is_none(), "nothing of it is left");
    let going = vec![of(None), Sandbox { image: root(&[layer(200)]).into(), ..of(None) }];
    let refused = store.insert_sandboxes(&going, &[], &quota).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    assert!(store.sandbox_by_id(&going[0].id).await.unwrap().is_none());
    // With one server its own count decides (`ledger`).
    if store.dialect() == Dialect::Postgres {
        let many = vec![of(None), of(None), of(None)];
        let refused = store.insert_sandboxes(&many, &[], &quota).await;
        assert!(matches!(refused, Err(Error::Quota { .. })), "three more of five: {refused:?}");
        assert!(store.sandbox_by_id(&many[0].id).await.unwrap().is_none());
    }
    assert_eq!(store.insert_sandboxes(&[of(None), of(None)], &[], &quota).await.unwrap(), Inserted::New);
    assert_eq!(store.insert_sandboxes(&[], &[], &quota).await.unwrap(), Inserted::New);
}

async fn a_sandbox_keeps_what_it_stands_on_until_it_is_gone(store: &Store) {
    let id = layer(5);
    let on_it = |created| Sandbox { image: root(&[id]).into(), ..sandbox(None, created) };
    let refused = store.insert_sandbox(&on_it(1), None).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    store.adopt_layer(new_layer(id, None, "s"), 5, 1, 1).await.unwrap();
    let mut made = on_it(2);
    assert_eq!(store.insert_sandbox(&made, Some("layer key")).await.unwrap(), Inserted::New);
    assert!(!store.let_layer_go(id, 9999).await.unwrap());
    for state in [State::Stopped, State::Archived, State::Destroying] {
        made.state = state;
        assert_eq!(store.update_sandbox(&mut made, None).await.unwrap(), Written::Done);
        assert_eq!(store.count_uses(id).await.unwrap(), 1, "{state}");
    }
    made.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut made, None).await.unwrap(), Written::Done);
    assert_eq!(store.count_uses(id).await.unwrap(), 0);
    assert!(store.let_layer_go(id, 9999).await.unwrap());
    let refused = store.insert_sandbox(&on_it(3), Some("another key")).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "{refused:?}");
    // Nothing of the refused one is left, its key neither.
    store.layer_is_gone(id, "s", "fake").await.unwrap();
    assert_eq!(store.insert_sandbox(&sandbox(None, 4), Some("another key")).await.unwrap(), Inserted::New);
    // Rows from before layers were counted.
    assert!(!store.layers_are_counted("s").await.unwrap());
    store.note_layers_counted("s").await.unwrap();
    assert!(store.layers_are_counted("s").await.unwrap() && !store.layers_are_counted("other").await.unwrap());
}

async fn of_a_creation_and_a_sweep_at_once_one_sees_the_other(store: &Store) {
    for round in 0..20_u8 {
        let id = layer(100 + round);
        store.adopt_layer(new_layer(id, None, "s"), 1, 1, 1).await.unwrap();
        let made = Sandbox { image: root(&[id]).into(), ..sandbox(None, 5) };
        let store = Arc::new(store.clone());
        let creating = tokio::spawn({
            let (store, made) = (Arc::clone(&store), made.clone());
            async move { store.insert_sandbox(&made, None).await }
        });
        let sweeping = tokio::spawn({
            let store = Arc::clone(&store);
            async move { store.let_layer_go(id, 9999).await }
        });
        let (created, swept) = (creating.await.unwrap(), sweeping.await.unwrap().unwrap());
        match (&created, swept) {
            (Ok(Inserted::New), false) | (Err(Error::Conflict(_)), true) => {}
            other => panic!("round {round}: {other:?}"),
        }
        if swept {
            store.layer_is_gone(id, "s", "fake").await.unwrap();
        }
    }
}

async fn an_image_is_found_by_its_digest_and_each_organisation_has_its_own_names(store: &Store) {
    let id = layer(6);
    let image = Pulled {
        digest: "sha256:1".into(),
        layer: id,
        config: Config { user: Some("ada".into()), ..Config::default() },
        bytes: 9,
        pulled_at: from_millisecond(100),
    };
    assert!(!store.put_image(&image).await.unwrap(), "its layer is not there");
    assert!(store.image("sha256:1").await.unwrap().is_none());
    store.adopt_layer(new_layer(id, None, "s"), 9, 1, 100).await.unwrap();
    assert!(store.put_image(&image).await.unwrap());
    assert!(store.put_image(&image).await.unwrap(), "again is fine");
    assert_eq!(store.image("sha256:1").await.unwrap(), Some(image));
    store.put_image_name("a", "docker.io/library/x:1", "sha256:1", 100).await.unwrap();
    store.put_image_name("a", "docker.io/library/x:1", "sha256:1", 200).await.unwrap();
    let found = store.image_name("a", "docker.io/library/x:1").await.unwrap();
    assert_eq!(found, Some(("sha256:1".into(), from_millisecond(200))));
    assert_eq!(store.image_name("b", "docker.io/library/x:1").await.unwrap(), None);
    for (registry, named) in [("docker.io/", true), ("docker.i/", false), ("other.example/", false)] {
        assert_eq!(store.is_image_of(registry, "sha256:1").await.unwrap(), named, "{registry}");
    }
    assert!(!store.is_image_of("docker.io/", "sha256:2").await.unwrap());
    // It counts for whoever asked for it, as long as something stands on it.
    store.put_image_name("a", "docker.io/library/x:1@sha256:1", "sha256:1", 200).await.unwrap();
    let images = |organisation: &'static str| async move { store.stored_bytes(organisation).await.unwrap().images };
    assert_eq!((images("a").await, images("b").await), (9, 0));
    assert!(store.hold_layers(&[id], "s/at-it").await.unwrap());
    store.forget_idle_images("a").await.unwrap();
    assert_eq!(images("a").await, 9, "somebody is at it");
    store.end_work("s/at-it", 250).await.unwrap();
    store.touch_image("sha256:1", 300).await.unwrap();
    store.remove_old_images(300).await.unwrap();
    assert!(store.image("sha256:1").await.unwrap().is_some());
    store.remove_old_images(301).await.unwrap();
    assert!(store.image("sha256:1").await.unwrap().is_none());
    assert_eq!(store.image_name("a", "docker.io/library/x:1").await.unwrap(), None);
    assert_eq!(store.count_uses(id).await.unwrap(), 0);
    // One that two have asked for, and neither needs, goes with the second.
    let id = layer(97);
    store.adopt_layer(new_layer(id, None, "s"), 9, 1, 100).await.unwrap();
    let (digest, pulled_at) = ("sha256:97".to_owned(), from_millisecond(100));
    let image = Pulled { digest, layer: id, config: Config::default(), bytes: 9, pulled_at };
    assert!(store.put_image(&image).await.unwrap());
    for organisation in ["a", "b"] {
        store.put_image_name(organisation, "docker.io/library/y:1", "sha256:97", 100).await.unwrap();
    }
    store.forget_idle_images("a").await.unwrap();
    assert!(store.image("sha256:97").await.unwrap().is_some());
    assert_eq!((images("a").await, images("b").await), (0, 9));
    store.forget_idle_images("b").await.unwrap();
    assert!(store.image("sha256:97").await.unwrap().is_none());
    assert_eq!(store.count_uses(id).await.unwrap(), 0);
}

async fn a_template_has_its_names_alone_until_it_is_deleted(store: &Store) {
    let first = record("t0000000000000000001", "t", &["one", "uno"], 10);
    let asked = entry(&first.id);
    let beside = Beside { audit: Some(&asked), event: None };
    let built = build(&first, 10);
    assert!(store.insert_template(&first, Some(&built), beside).await.unwrap());
    let twin = record("t0000000000000000002", "t", &["two", "uno"], 11);
    assert!(!store.insert_template(&twin, Some(&build(&twin, 11)), Beside::default()).await.unwrap());
    assert!(store.template_by_id(&twin.id).await.unwrap().is_none(), "nothing of it is left");
    let others = record("t0000000000000000003", "u", &["one"], 12);
    assert!(store.insert_template(&others, None, Beside::default()).await.unwrap(), "another organisation's");
    assert_eq!(store.template_by_name("t", "uno").await.unwrap(), Some(first.clone()));
    assert_eq!(store.template_by_id(&first.id).await.unwrap(), Some(first.clone()));
    assert_eq!(store.template_by_name("u", "uno").await.unwrap(), None);
    assert_eq!(store.count_builds(&first.id).await.unwrap(), 1);
    assert_eq!(store.count_templates("t").await.unwrap(), 1);

    let mut renamed = Record { names: vec!["eins".into()], visibility: Visibility::Public, ..first.clone() };
    renamed.updated_at = from_millisecond(20);
    assert_eq!(store.update_template(&renamed, Beside::default()).await.unwrap(), Some(Written::Done));
    assert_eq!(store.template_by_name("t", "eins").await.unwrap(), Some(renamed.clone()));
    assert_eq!(store.template_by_name("t", "one").await.unwrap(), None);
    let taken = record("t0000000000000000004", "t", &["zwei"], 21);
    assert!(store.insert_template(&taken, None, Beside::default()).await.unwrap());
    let clash = Record { names: vec!["zwei".into()], ..renamed.clone() };
    assert_eq!(store.update_template(&clash, Beside::default()).await.unwrap(), None);
    assert_eq!(store.template_by_name("t", "eins").await.unwrap(), Some(renamed.clone()), "as it was");

    // Those of others are listed where they are public and asked for.
    let names = async |organisation: &str, filter: TemplateFilter, cursor: Option<String>, limit: u32| {
        let page = store.list_templates(organisation, &filter, cursor.as_deref(), limit).await.unwrap();
        let names: Vec<String> = page.items.iter().map(|record| record.title().to_owned()).collect();
        (names, page.next)
    };
    assert_eq!(names("t", TemplateFilter::default(), None, 10).await.0, ["zwei", "eins"]);
    let with_others = TemplateFilter { others: true, ..TemplateFilter::default() };
    assert_eq!(names("u", with_others.clone(), None, 10).await.0, ["one", "eins"]);
    let prefix = TemplateFilter { name_prefix: Some("EI".into()), ..TemplateFilter::default() };
    assert_eq!(names("t", prefix, None, 10).await.0, ["eins"]);
    let (page, next) = names("t", TemplateFilter::default(), None, 1).await;
    assert_eq!(
        (page, names("t", TemplateFilter::default(), next, 1).await),
        (vec!["zwei".into()], (vec!["eins".into()], None))
    );

    assert_eq!(store.delete_template(&first.id, 50, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!(store.delete_template(&first.id, 51, Beside::default()).await.unwrap(), Written::Overtaken);
    assert_eq!(store.template_by_name("t", "eins").await.unwrap(), None);
    assert!(store.template_by_id(&first.id).await.unwrap().unwrap().deleted_at.is_some());
    assert_eq!(store.update_template(&renamed, Beside::default()).await.unwrap(), Some(Written::Overtaken));
    // Its row stays for a while, and for as long as a sandbox that was started from it exists.
    let mut started = Sandbox { build: Some(built.id.clone()), ..sandbox(None, 30) };
    assert_eq!(store.insert_sandbox(&started, None).await.unwrap(), Inserted::New);
    assert_eq!(store.remove_deleted_templates(50).await.unwrap(), 0, "not old enough");
    assert_eq!(store.remove_deleted_templates(51).await.unwrap(), 0, "a sandbox starts again from it");
    assert!(store.template_by_id(&first.id).await.unwrap().is_some());
    started.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut started, None).await.unwrap(), Written::Done);
    assert_eq!(store.remove_deleted_templates(51).await.unwrap(), 1);
    assert!(store.template_by_id(&first.id).await.unwrap().is_none());
    assert_eq!(store.count_builds(&first.id).await.unwrap(), 0);
}

async fn a_tag_leads_to_the_newest_build_that_is_ready(store: &Store) {
    let template = record("g0000000000000000001", "g", &["tagged"], 1);
    assert!(store.insert_template(&template, None, Beside::default()).await.unwrap());
    let id = layer(7);
    store.adopt_layer(new_layer(id, Some("g"), "s"), 1, 1, 1).await.unwrap();
    let (mut older, mut newer) = (build(&template, 100), build(&template, 200));
    newer.tags = vec!["default".into(), "v2".into()];
    for one in [&older, &newer] {
        store.insert_build(one, Beside::default()).await.unwrap();
    }
    assert_eq!(store.tagged(&template.id, "default").await.unwrap(), None);
    let event = NewEvent {
        organisation: "g".into(),
        sandbox: None,
        kind: EventKind::TemplateBuilt,
        at: from_millisecond(1),
        data: serde_json::Value::Null,
    };
    for (one, at) in [(&mut newer, 300), (&mut older, 400)] {
        one.state = BuildState::Ready;
        one.image = root(&[id]).into();
        let beside = Beside { audit: None, event: Some(&event) };
        assert_eq!(store.finish_build(one, at, beside).await.unwrap(), Some(Written::Done));
    }
    assert_eq!(store.count_uses(id).await.unwrap(), 2);
    // The older one was ready later; the tag stays with the newer.
    assert_eq!(store.tagged(&template.id, "default").await.unwrap(), Some(newer.id.clone()));
    let told = EventFilter { organisation: Some("g".into()), ..EventFilter::default() };
    assert_eq!(store.events(&told, 0, 10).await.unwrap().len(), 2);

    store.assign_tags(&older, &["stable".into(), "v2".into()], 500, &entry(&template.id)).await.unwrap();
    let tags: BTreeMap<String, String> =
        store.tags(&template.id).await.unwrap().into_iter().map(|tag| (tag.tag, tag.build)).collect();
    let expected = [("default", &newer), ("stable", &older), ("v2", &older)];
    assert_eq!(tags, expected.into_iter().map(|(tag, one)| (tag.to_owned(), one.id.clone())).collect());
    store.remove_tags(&template.id, &["stable".into(), "none".into()], &entry(&template.id)).await.unwrap();
    assert_eq!(store.tags(&template.id).await.unwrap().len(), 2);

    // A build whose layer is going is not ready.
    let gone = layer(8);
    let mut late = Build { image: root(&[gone]).into(), ..build(&template, 600) };
    store.insert_build(&late, Beside::default()).await.unwrap();
    late.state = BuildState::Ready;
    assert_eq!(store.finish_build(&mut late, 600, Beside::default()).await.unwrap(), None);
    assert_eq!(store.build(&late.id).await.unwrap().unwrap().state, BuildState::Waiting);
    assert_eq!(store.tagged(&template.id, "default").await.unwrap(), Some(newer.id.clone()));

    // Many templates are asked for at once, in any order, with others that have nothing.
    let bare = record("g0000000000000000002", "g", &["bare"], 2);
    assert!(store.insert_template(&bare, None, Beside::default()).await.unwrap());
    let asked = [bare.id.as_str(), "nobodys", &template.id];
    let around = store.around_templates(&asked).await.unwrap();
    assert_eq!(around[..2], [Around::default(), Around::default()]);
    let [_, _, full]: [Around; 3] = around.try_into().unwrap();
    assert_eq!(full.tags, store.tags(&template.id).await.unwrap());
    let ids = [&full.current, &full.newest].map(|build| build.as_ref().map(|build| build.id.clone()));
    assert_eq!((ids, full.builds), ([Some(newer.id.clone()), Some(late.id.clone())], 3));
    let current = store.current_builds(&asked).await.unwrap();
    assert_eq!(
        current.iter().map(|build| build.as_ref().map(|build| &build.id)).collect::<Vec<_>>(),
        [None, None, Some(&newer.id)]
    );
    // A tag that leads to a build which is not ready leads nowhere.
    store.assign_tags(&late, &["default".into()], 700, &entry(&template.id)).await.unwrap();
    assert_eq!(store.around_templates(&[&template.id]).await.unwrap()[0].current, None);
    store.assign_tags(&newer, &["default".into()], 800, &entry(&template.id)).await.unwrap();
    assert!(store.around_templates(&[]).await.unwrap().is_empty());

    // With the template its builds need nothing more.
    assert_eq!(store.delete_template(&template.id, 700, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!((store.count_uses(id).await.unwrap(), store.tags(&template.id).await.unwrap().len()), (0, 0));
}

async fn a_build_is_written_by_who_read_it_last_and_goes_with_what_it_said(store: &Store) {
    let template = record("b0000000000000000001", "b", &["built"], 1);
    assert!(store.insert_template(&template, None, Beside::default()).await.unwrap());
    let mut mine = build(&template, 10);
    store.insert_build(&mine, Beside::default()).await.unwrap();
    let mut theirs = store.build(&mine.id).await.unwrap().unwrap();
    let request = Request {
        recipe: Recipe::Steps { base: Base::Nothing, steps: Vec::new() },
        start: None,
        ready: None,
        force: true,
        habits: Habits::OfE2b,
        is_confidential: false,
        allow: Vec::new(),
    };
    mine.state = BuildState::Building;
    assert_eq!(store.start_build(&mut mine, &request, Beside::default()).await.unwrap(), Written::Done);
    theirs.state = BuildState::Cancelled;
    assert_eq!(store.update_build(&mut theirs, Beside::default()).await.unwrap(), Written::Overtaken);
    assert_eq!(store.start_build(&mut theirs, &request, Beside::default()).await.unwrap(), Written::Overtaken);
    assert_eq!(store.build_request(&mine.id).await.unwrap(), Some(request));
    let read = store.build(&mine.id).await.unwrap().unwrap();
    assert_eq!((read.state, read.generation, mine.generation), (BuildState::Building, 1, 1));
    for of in [Unfinished::OfTemplate(&template.id), Unfinished::OfOrganisation("b")] {
        let unfinished = store.unfinished_builds(of).await.unwrap();
        assert_eq!(unfinished.iter().map(|build| &build.id).collect::<Vec<_>>(), [&mine.id]);
    }
    assert!(store.unfinished_builds(Unfinished::OfServer("s")).await.unwrap().iter().any(|build| build.id == mine.id));

    let line = |seq: i64, level: Level| LogEntry {
        seq,
        at: from_millisecond(seq),
        level,
        step: (seq > 1).then(|| "1".into()),
        message: format!("line {seq} ä"),
    };
    let lines: Vec<LogEntry> =
        (1..=600).map(|seq| line(seq, if seq % 100 == 0 { Level::Error } else { Level::Info })).collect();
    store.add_build_logs(&mine.id, &lines[..300]).await.unwrap();
    // Whoever does not know what became of the first half sends it again.
    store.add_build_logs(&mine.id, &lines).await.unwrap();
    assert_eq!(store.last_build_log(&mine.id).await.unwrap(), 600);
    assert_eq!(store.build_logs(&mine.id, Level::Debug, 0, 1000).await.unwrap().len(), 600);
    assert_eq!(store.build_logs(&mine.id, Level::Debug, 598, 10).await.unwrap(), lines[598..]);
    let errors = store.build_logs(&mine.id, Level::Error, 4, 10).await.unwrap();
    assert_eq!(errors.iter().map(|line| line.seq).collect::<Vec<_>>(), [500, 600]);
    assert!(store.build_logs(&mine.id, Level::Debug, 600, 10).await.unwrap().is_empty());

    store.touch_build(&mine.id, 500).await.unwrap();
    store.touch_build(&mine.id, 400).await.unwrap();
    assert_eq!(store.build(&mine.id).await.unwrap().unwrap().last_used_at, Some(from_millisecond(500)));
    let mut captured = Build { source_sandbox: Some("box".into()), ..build(&template, 20) };
    store.insert_build(&captured, Beside::default()).await.unwrap();
    captured.last_used_at = Some(captured.created_at);
    assert_eq!(store.builds_of_sandbox("b", "box", None, 10).await.unwrap().items, [captured.clone()]);
    assert!(store.builds_of_sandbox("other", "box", None, 10).await.unwrap().items.is_empty());
    let page = store.builds_of_template(&template.id, None, 1).await.unwrap();
    assert_eq!(page.items[0].id, captured.id);
    let page = store.builds_of_template(&template.id, page.next.as_deref(), 1).await.unwrap();
    assert_eq!((page.items[0].id.as_str(), page.next), (mine.id.as_str(), None));

    // What was to be done is forgotten when the build ends; what it said, when others have come after it.
    let is_old = |newest: u32| async move {
        let old = store.old_builds("b", newest).await.unwrap();
        old.into_iter().map(|build| build.id).collect::<Vec<_>>()
    };
    assert!(!is_old(0).await.contains(&mine.id), "it is under way");
    mine.state = BuildState::Error;
    assert_eq!(store.update_build(&mut mine, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!(store.build_request(&mine.id).await.unwrap(), None);
    assert!(is_old(0).await.contains(&mine.id) && is_old(100).await.is_empty());
    store.remove_build_logs(&mine.id).await.unwrap();
    assert_eq!(store.last_build_log(&mine.id).await.unwrap(), 0);
    assert!(store.build(&mine.id).await.unwrap().is_some());

    store.remove_build(&mine.id).await.unwrap();
    assert!(store.build(&mine.id).await.unwrap().is_none());
    assert_eq!(store.last_build_log(&mine.id).await.unwrap(), 0);
    assert_eq!(store.build_request(&mine.id).await.unwrap(), None);
}

async fn steps_and_files_belong_to_one_organisation(store: &Store) {
    let (old, new) = (layer(9), layer(10));
    for id in [old, new] {
        store.adopt_layer(new_layer(id, Some("p"), "s"), 1, 1, 1).await.unwrap();
    }
    let step = |id: LayerId| Step { key: "k".into(), root: root(&[id]), context: Context::default(), bytes: 1 };
    assert!(store.put_step("p", "s", &step(old), 100).await.unwrap());
    assert_eq!(store.step("p", "k", "s").await.unwrap(), Some(step(old)));
    assert_eq!(store.step("q", "k", "s").await.unwrap(), None, "another organisation never hits");
    assert_eq!(store.step("p", "k", "s2").await.unwrap(), None, "another server has not the files");
    assert!(store.put_step("p", "s", &step(new), 200).await.unwrap(), "done again: it is replaced");
    assert_eq!((store.count_uses(old).await.unwrap(), store.count_uses(new).await.unwrap()), (0, 1));
    assert!(!store.put_step("p", "s", &step(layer(11)), 300).await.unwrap());
    assert_eq!(store.step("p", "k", "s").await.unwrap(), Some(step(new)), "as it was");
    store.touch_step("p", "k", "s", 400).await.unwrap();
    store.remove_old_steps(Some("p"), 400).await.unwrap();
    assert!(store.step("p", "k", "s").await.unwrap().is_some());
    store.remove_old_steps(Some("q"), 401).await.unwrap();
    store.remove_old_steps(Some("p"), 401).await.unwrap();
    assert!(store.step("p", "k", "s").await.unwrap().is_none());
    assert_eq!(store.count_uses(new).await.unwrap(), 0);

    let file = BuildFile { organisation: "p".into(), hash: "a".repeat(64), bytes: 7 };
    store.put_build_file(&file, Meant::ForAny, 100).await.unwrap();
    store.put_build_file(&BuildFile { bytes: 9, ..file.clone() }, Meant::ForAny, 200).await.unwrap();
    assert_eq!(store.build_file("p", &file.hash).await.unwrap().unwrap().bytes, 9);
    assert_eq!(store.build_file("q", &file.hash).await.unwrap(), None);
    assert_eq!(store.build_file_bytes("p").await.unwrap(), 9);
    store.touch_build_file("p", &file.hash, 300).await.unwrap();
    assert!(store.old_build_files(None, 300).await.unwrap().is_empty());
    assert_eq!(store.old_build_files(None, 301).await.unwrap().len(), 1);
    assert!(store.old_build_files(Some("nobody"), 301).await.unwrap().is_empty());
    assert!(!store.remove_build_file(&file, 300).await.unwrap(), "it was used meanwhile");
    assert!(store.remove_build_file(&file, 301).await.unwrap());

    // Sent for one build: it goes when that has ended, or where it was never begun.
    store.put_build_file(&file, Meant::ForOne, 100).await.unwrap();
    assert!(store.old_build_files(None, 1000).await.unwrap().is_empty(), "it has an end of its own");
    assert!(store.spent_build_files(100).await.unwrap().is_empty());
    assert_eq!(store.spent_build_files(101).await.unwrap().len(), 1, "nobody began");
    let template = record("t-sole", "p", &["sole"], 1);
    let mut of_archive = build(&template, 1);
    assert!(store.insert_template(&template, Some(&of_archive), Beside::default()).await.unwrap());
    let request = Request {
        recipe: Recipe::Archive { hash: file.hash.clone(), name: None },
        start: None,
        ready: None,
        force: false,
        habits: Habits::OfTheImage,
        is_confidential: false,
        allow: Vec::new(),
    };
    of_archive.state = BuildState::Building;
    assert_eq!(store.start_build(&mut of_archive, &request, Beside::default()).await.unwrap(), Written::Done);
    assert!(store.spent_build_files(1000).await.unwrap().is_empty(), "its build is under way");
    assert_eq!(store.files_of_build(&of_archive.id).await.unwrap().len(), 1);
    of_archive.state = BuildState::Error;
    assert_eq!(store.update_build(&mut of_archive, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!(store.spent_build_files(0).await.unwrap().len(), 1, "its build is over");
    assert!(store.remove_build_file(&file, i64::MAX).await.unwrap());
    assert!(store.spent_build_files(1000).await.unwrap().is_empty());
}

fn push(id: &str, created: i64) -> Push {
    Push {
        id: id.into(),
        organisation: "pushes".into(),
        template: "t".into(),
        name: "t".into(),
        build: "b".into(),
        image: "registry.example/t:1".into(),
        state: PushState::Pushing,
        server: "s".into(),
        is_confidential: true,
        as_operator: false,
        digest: None,
        failure: None,
        created_at: from_millisecond(created),
        finished_at: None,
    }
}

async fn a_push_ends_once_and_goes_with_what_it_said(store: &Store) {
    let (first, second) = (push("push_1", 10), push("push_2", 20));
    for push in [&first, &second] {
        store.insert_push(push, Beside { audit: Some(&entry("push")), event: None }).await.unwrap();
    }
    assert_eq!(store.push("push_1").await.unwrap(), Some(first.clone()));
    assert_eq!(store.count_pushes_under_way("pushes").await.unwrap(), 2);
    assert_eq!(store.pushes_under_way("s").await.unwrap().len(), 2);
    assert!(store.pushes_under_way("s2").await.unwrap().is_empty());
    let done = Push { state: PushState::Done, digest: Some("sha256:x".into()), ..first.clone() };
    assert_eq!(store.end_push(&done).await.unwrap(), Written::Done);
    let late = Push { state: PushState::Cancelled, ..first };
    assert_eq!(store.end_push(&late).await.unwrap(), Written::Overtaken);
    assert_eq!(store.push("push_1").await.unwrap(), Some(done.clone()));
    let page = store.pushes("pushes", None, 1).await.unwrap();
    assert_eq!(page.items, [second]);
    assert_eq!(store.pushes("pushes", page.next.as_deref(), 1).await.unwrap().items, std::slice::from_ref(&done));
    assert!(store.pushes("others", None, 10).await.unwrap().items.is_empty());
    assert_eq!(store.old_pushes("pushes", 0).await.unwrap(), [done]);
    assert!(store.old_pushes("pushes", 1).await.unwrap().is_empty());
    let line = LogEntry { seq: 1, at: from_millisecond(1), level: Level::Info, step: None, message: "x".into() };
    store.add_build_logs("push_1", &[line]).await.unwrap();
    store.remove_push("push_1").await.unwrap();
    assert_eq!((store.push("push_1").await.unwrap(), store.last_build_log("push_1").await.unwrap()), (None, 0));
}

fn volume(name: &str, created: i64) -> Volume {
    Volume {
        id: cove_control::random::volume_id(),
        organisation: "o".into(),
        name: name.into(),
        state: VolumeState::Ready,
        server: "s".into(),
        provider: "fake".into(),
        size_limit: 1000,
        token: "t".into(),
        created_at: from_millisecond(created),
        updated_at: from_millisecond(created),
        last_used_at: None,
        deleted_at: None,
    }
}

async fn a_volume_stays_while_a_sandbox_has_it(store: &Store) {
    let mut kept = Volume { state: VolumeState::Creating, ..volume("kept", 1) };
    assert!(store.insert_volume(&kept, Beside::default()).await.unwrap());
    assert!(!store.insert_volume(&volume("kept", 2), Beside::default()).await.unwrap(), "the name is taken");
    let with_it = |created: i64, of: &Volume| Sandbox {
        volumes: vec![VolumeMount {
            volume: of.id.clone(),
            subpath: None,
            target: "/data".into(),
            access: Access::ReadWrite,
        }],
        ..sandbox(None, created)
    };
    let refused = store.insert_sandbox(&with_it(5, &kept), None).await;
    assert!(matches!(refused, Err(Error::Conflict(_))), "not ready: {refused:?}");
    kept.state = VolumeState::Ready;
    assert_eq!(store.update_volume(&kept, VolumeState::Creating, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!(store.update_volume(&kept, VolumeState::Creating, Beside::default()).await.unwrap(), Written::Overtaken);
    let anothers = Sandbox { organisation: "other".into(), ..with_it(6, &kept) };
    assert!(store.insert_sandbox(&anothers, None).await.is_err(), "another organisation's does not exist");
    let mut made = with_it(7, &kept);
    assert_eq!(store.insert_sandbox(&made, None).await.unwrap(), Inserted::New);
    assert_eq!(store.sandboxes_with_volume(&kept.id).await.unwrap(), [made.id.to_string()]);
    let found = store.volume("o", "kept").await.unwrap().unwrap();
    assert_eq!((found.id.clone(), found.last_used_at), (kept.id.clone(), Some(from_millisecond(7))));
    assert_eq!(store.volume("o", kept.id.as_str()).await.unwrap().unwrap().id, kept.id);
    assert!(store.volume("other", "kept").await.unwrap().is_none());
    assert_eq!(store.stored_bytes("o").await.unwrap().volumes, 1000);

    let going = Volume { state: VolumeState::Deleting, ..kept.clone() };
    assert_eq!(store.begin_to_delete_volume(&going, Beside::default()).await.unwrap(), Written::Overtaken);
    made.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut made, None).await.unwrap(), Written::Done);
    let asked = entry(kept.id.as_str());
    let beside = Beside { audit: Some(&asked), event: None };
    assert_eq!(store.begin_to_delete_volume(&going, beside).await.unwrap(), Written::Done);
    assert!(store.insert_sandbox(&with_it(8, &kept), None).await.is_err());
    assert!(store.insert_volume(&volume("kept", 9), Beside::default()).await.unwrap(), "the name is free");
    assert_eq!(store.unfinished_volumes("s").await.unwrap().len(), 1);
    let gone = Volume { state: VolumeState::Deleted, deleted_at: Some(from_millisecond(50)), ..going };
    assert_eq!(store.update_volume(&gone, VolumeState::Deleting, Beside::default()).await.unwrap(), Written::Done);
    assert_eq!(store.volumes("o", false).await.unwrap().len(), 1);
    assert_eq!(store.volumes("o", true).await.unwrap().len(), 2);
    store.remove_deleted_volumes(50).await.unwrap();
    assert_eq!(store.volumes("o", true).await.unwrap().len(), 2);
    store.remove_deleted_volumes(51).await.unwrap();
    assert_eq!(store.volumes("o", true).await.unwrap().len(), 1);

    for round in 0..20 {
        let contested = volume(&format!("contested{round}"), 60);
        assert!(store.insert_volume(&contested, Beside::default()).await.unwrap());
        let creating = tokio::spawn({
            let (store, made) = (store.clone(), with_it(61, &contested));
            async move { store.insert_sandbox(&made, None).await }
        });
        let deleting = tokio::spawn({
            let (store, going) = (store.clone(), Volume { state: VolumeState::Deleting, ..contested });
            async move { store.begin_to_delete_volume(&going, Beside::default()).await }
        });
        match (creating.await.unwrap(), deleting.await.unwrap().unwrap()) {
            (Ok(Inserted::New), Written::Overtaken) | (Err(Error::Conflict(_)), Written::Done) => {}
            other => panic!("round {round}: {other:?}"),
        }
    }
}

async fn a_copy_knows_what_it_came_from(store: &Store) {
    let first = Sandbox { organisation: "l".into(), ..sandbox(None, 1) };
    let child = Sandbox { parent: Some(first.id.clone()), organisation: "l".into(), ..sandbox(None, 2) };
    let template = Record {
        kind: Kind::Checkpoints,
        source_sandbox: Some(child.id.to_string()),
        ..record("l0000000000000000001", "l", &[], 3)
    };
    assert!(store.insert_template(&template, None, Beside::default()).await.unwrap());
    let captured = Build { source_sandbox: Some(child.id.to_string()), ..build(&template, 3) };
    store.insert_build(&captured, Beside::default()).await.unwrap();
    let grandchild = Sandbox { build: Some(captured.id.clone()), organisation: "l".into(), ..sandbox(None, 4) };
    for made in [&first, &child, &grandchild] {
        assert_eq!(store.insert_sandbox(made, None).await.unwrap(), Inserted::New);
    }
    let ancestors = store.ancestors_of("l", grandchild.id.as_str()).await.unwrap();
    assert_eq!(ancestors, [child.id.to_string(), first.id.to_string()]);
    assert!(store.ancestors_of("other", grandchild.id.as_str()).await.unwrap().is_empty());
    assert_eq!(store.forks_of("l", first.id.as_str(), false).await.unwrap(), [child.id.to_string()]);
    assert_eq!(store.count_sandboxes_of_build(&captured.id).await.unwrap(), 1);
    assert!(!store.checkpoints_of_destroyed().await.unwrap().contains(&template.id));
    let mut gone = Sandbox { state: State::Destroyed, ..child.clone() };
    assert_eq!(store.update_sandbox(&mut gone, None).await.unwrap(), Written::Done);
    assert!(store.forks_of("l", first.id.as_str(), false).await.unwrap().is_empty());
    assert_eq!(store.forks_of("l", first.id.as_str(), true).await.unwrap(), [child.id.to_string()]);
    assert!(store.checkpoints_of_destroyed().await.unwrap().contains(&template.id));
    assert_eq!(store.ancestors_of("l", grandchild.id.as_str()).await.unwrap().len(), 2);
    store.add_uses(User::Build(&captured.id), &[layer(200)]).await.unwrap_err();
}

pub async fn whole(store: &Store) {
    a_layer_is_made_once_held_by_work_and_goes_when_nobody_needs_it(store).await;
    what_a_dead_server_was_making_goes_and_what_others_make_stays(store).await;
    a_draft_is_its_makers_and_one_that_was_given_up_is_made_by_another(store).await;
    who_uses_and_who_notes_the_use_do_not_wait_for_each_other(store).await;
    several_sandboxes_are_written_together_or_not_at_all(store).await;
    a_sandbox_keeps_what_it_stands_on_until_it_is_gone(store).await;
    of_a_creation_and_a_sweep_at_once_one_sees_the_other(store).await;
    an_image_is_found_by_its_digest_and_each_organisation_has_its_own_names(store).await;
    a_template_has_its_names_alone_until_it_is_deleted(store).await;
    a_tag_leads_to_the_newest_build_that_is_ready(store).await;
    a_build_is_written_by_who_read_it_last_and_goes_with_what_it_said(store).await;
    steps_and_files_belong_to_one_organisation(store).await;
    a_push_ends_once_and_goes_with_what_it_said(store).await;
    a_volume_stays_while_a_sandbox_has_it(store).await;
    a_copy_knows_what_it_came_from(store).await;
}
