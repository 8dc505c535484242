//! Work in the background outlives the server, and can be looked at.

use cove_testkit::TestServer;
use cove_testkit::receiver::Receiver;
use cove_testkit::wait::{LIMIT, until, until_some};
use serde_json::{Value, json};

fn deliveries(server: &TestServer) -> Vec<Value> {
    let jobs = server.request("GET", "/api/jobs", None).expect_status(200).json();
    jobs.as_array().unwrap().iter().filter(|job| job["kind"] == "webhook.deliver").cloned().collect()
}

#[test]
fn a_delivery_that_fails_is_tried_again_after_a_crash_until_it_is_taken() {
    let mut server = TestServer::start();
    // A port that is closed for now.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let hook = json!({"url": format!("http://{free}/"), "kinds": ["sandbox.created"]});
    server.request("POST", "/api/webhooks", Some(&hook)).expect_status(201);
    let made = server.request("POST", "/api/sandboxes", Some(&json!({}))).expect_status(201).json();
    let failed = until_some("a failed attempt", LIMIT, || {
        deliveries(&server).into_iter().find(|job| job["state"] == "queued" && job["attempts"].as_i64() >= Some(1))
    });
    assert!(failed["error"].as_str().unwrap().contains(&free), "the reason is told: {failed}");
    assert!(failed["run_at"].as_str() > failed["created_at"].as_str(), "a pause before the next: {failed}");

    server.restart();
    let after = deliveries(&server);
    assert_eq!((after.len(), &after[0]["id"]), (1, &failed["id"]), "the same job, after the crash");
    assert!(after[0]["attempts"].as_i64() >= failed["attempts"].as_i64(), "attempts go on counting: {after:?}");

    let receiver = Receiver::at(&free);
    until("the delivery", LIMIT, || !receiver.taken().is_empty());
    until("the note of it", LIMIT, || deliveries(&server)[0]["state"] == "done");
    let taken = receiver.taken();
    assert_eq!((taken.len(), &taken[0]["sandbox"]), (1, &made["id"]), "once, and for this sandbox");
}
