//! What a store must do for durable pauses and checks; run on both databases by `contract`.

use cove_control::clock::from_millisecond;
use cove_control::image::{LayerKind, NewLayer, User};
use cove_control::job::{Line, NewJob};
use cove_control::provider::{LayerId, Root, Under};
use cove_control::sandbox::{Manifest, Sandbox, State};
use cove_control::store::{Lasting, Store, Written};
use serde_json::json;

use crate::contract::sandbox;

/// The row has the manifest as long as it is written with it, and never in part.
async fn a_manifest_goes_with_its_row(store: &Store) {
    let mut made = sandbox(Some("durable"), 70);
    store.insert_sandbox(&made, None).await.unwrap();
    let manifest = Manifest { digest: "ab".repeat(32), files: 7, bytes: 1 << 40, written_at: from_millisecond(71) };
    made.state = State::Paused;
    made.manifest = Some(manifest.clone());
    made.sealing = true;
    let mut overtaken = Sandbox { manifest: None, ..made.clone() };
    assert_eq!(store.update_sandbox(&mut made, None).await.unwrap(), Written::Done);
    assert_eq!(store.update_sandbox(&mut overtaken, None).await.unwrap(), Written::Overtaken);
    let read = store.sandbox_by_name("o", "durable").await.unwrap().unwrap();
    assert_eq!((read.manifest, read.sealing), (Some(manifest), true));
    made.manifest = None;
    made.sealing = false;
    assert_eq!(store.update_sandbox(&mut made, None).await.unwrap(), Written::Done);
    let read = store.sandbox_by_name("o", "durable").await.unwrap().unwrap();
    assert_eq!((read.manifest, read.sealing), (None, false));
}

async fn a_job_says_how_far_it_is_until_it_is_anothers(store: &Store) {
    let job = NewJob {
        kind: "check".into(),
        subject: "all".into(),
        organisation: "checked".into(),
        server: Some("checker".into()),
        unique_key: None,
        run_at: from_millisecond(1),
        payload: json!({"n": 0}),
    };
    store.add_job("check_contract", &job, 1).await.unwrap();
    let payload = async || store.job("check_contract").await.unwrap().unwrap().payload;
    store.note_job("check_contract", 0, &json!({"n": 1}), Lasting::Soon).await.unwrap();
    assert_eq!(payload().await, json!({"n": 0}), "it is not under way");
    let claimed = store.claim_jobs("checker", Line::Upkeep, 1, 50, 100).await.unwrap();
    let claimed = claimed.into_iter().find(|job| job.id == "check_contract").unwrap();
    for lasting in [Lasting::Soon, Lasting::Synced] {
        store.note_job(&claimed.id, claimed.attempts, &json!({"n": 2}), lasting).await.unwrap();
    }
    assert_eq!(payload().await, json!({"n": 2}));
    store.note_job(&claimed.id, claimed.attempts - 1, &json!({"n": 3}), Lasting::Synced).await.unwrap();
    assert_eq!(payload().await, json!({"n": 2}), "whose lease is over does not speak for it");
    store.finish_job(&claimed.id, claimed.attempts, 9).await.unwrap();
}

async fn what_an_organisation_needs_on_a_server_is_found(store: &Store) {
    let (used, unplaced, others) = (LayerId::new([71; 32]), LayerId::new([72; 32]), LayerId::new([73; 32]));
    let new = |id| NewLayer { id, kind: LayerKind::Delta, organisation: None, server: "here", provider: "local" };
    for layer in [used, unplaced, others] {
        store.adopt_layer(new(layer), 1, 1, 1).await.unwrap();
    }
    let standing = |organisation: &str, server: &str, layer: LayerId| Sandbox {
        organisation: organisation.into(),
        server: server.into(),
        image: Root { under: Under::Nothing, over: vec![layer] }.into(),
        ..sandbox(None, 80)
    };
    let mut mine = standing("needy", "here", used);
    store.insert_sandbox(&mine, None).await.unwrap();
    store.insert_sandbox(&standing("needy", "there", unplaced), None).await.unwrap();
    store.insert_sandbox(&standing("other", "here", others), None).await.unwrap();
    assert_eq!(store.servers_with_files("needy").await.unwrap(), ["here", "there"]);
    assert_eq!(store.layers_of("needy", "here").await.unwrap(), [(used, Some("local".to_owned()))]);
    assert_eq!(store.layers_of("needy", "there").await.unwrap(), [(unplaced, None)], "nobody there has it");
    // What is held for work alone is nobody's.
    store.add_uses(User::Work("here/x"), &[others]).await.unwrap();
    mine.state = State::Destroyed;
    assert_eq!(store.update_sandbox(&mut mine, None).await.unwrap(), Written::Done);
    assert!(store.layers_of("needy", "here").await.unwrap().is_empty());
    assert_eq!(store.servers_with_files("needy").await.unwrap(), ["there"]);
}

pub async fn whole(store: &Store) {
    a_manifest_goes_with_its_row(store).await;
    a_job_says_how_far_it_is_until_it_is_anothers(store).await;
    what_an_organisation_needs_on_a_server_is_found(store).await;
}
