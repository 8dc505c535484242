//! Over capacity, on the real engine: a clear refusal with the time to come again, never a hang, and a place that
//! becomes free can be had at once.

use std::time::{Duration, Instant};

use cove_testkit::TestServer;
use cove_testkit::guests::guests;
use cove_testkit::http::Answer;
use cove_testkit::wait::{LIMIT, until};
use serde_json::json;

fn create(server: &TestServer) -> Answer {
    server.request("POST", "/api/sandboxes", Some(&json!({})))
}

fn made(answer: Answer) -> String {
    answer.expect_status(201).json()["id"].as_str().unwrap().to_owned()
}

fn refused(answer: Answer) -> String {
    let answer = answer.expect_status(503);
    let seconds: u64 = answer.header("retry-after").expect("when to come again").parse().unwrap();
    assert!((1..=60).contains(&seconds));
    assert_eq!(answer.json()["code"], "no_capacity");
    answer.json()["message"].as_str().unwrap().to_owned()
}

#[test]
fn a_full_server_refuses_at_once_and_a_free_place_is_usable_at_once() {
    let server = TestServer::start_in(&[], &[("COVE_CAPACITY_SANDBOXES", "2")]);
    let (one, two) = (made(create(&server)), made(create(&server)));
    let asked = Instant::now();
    assert!(refused(create(&server)).contains("maximum of 2 sandboxes"));
    // Sooner than the patience of those who wait for a launch.
    assert!(asked.elapsed() < Duration::from_secs(20), "a refusal took {:?}", asked.elapsed());
    assert_eq!(guests(&server.data()).len(), 2);

    // Removed, stopped, or dead by itself: each makes room.
    server.request("DELETE", &format!("/api/sandboxes/{one}"), None).expect_status(204);
    let three = made(create(&server));
    server.request("POST", &format!("/api/sandboxes/{two}/stop"), None).expect_status(200);
    let four = made(create(&server));
    refused(server.request("POST", &format!("/api/sandboxes/{two}/start"), None));
    let pid = i32::try_from(guests(&server.data())[&three][0]).unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    until("the place of one that died", LIMIT, || create(&server).status == 201);
    refused(create(&server));

    // What runs is not disturbed by any of it.
    let line = json!({"shell": "echo still here"});
    let said = server.request("POST", &format!("/api/sandboxes/{four}/exec"), Some(&line)).expect_status(200).json();
    assert_eq!(said["stdout"], "still here\n");
    let listed = server.request("GET", "/api/sandboxes", None).expect_status(200).json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 4, "refusals leave no row: {listed}");
}

#[test]
fn of_many_at_once_as_many_are_taken_as_fit_and_nobody_hangs() {
    let server = TestServer::start_in(
        &[],
        &[
            ("COVE_CAPACITY_SANDBOXES", "6"),
            ("COVE_CAPACITY_LAUNCHES", "2"),
            ("COVE_CAPACITY_WAITING", "8"),
            ("COVE_CAPACITY_PATIENCE_SECONDS", "10"),
        ],
    );
    let asked = Instant::now();
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..24).map(|_| scope.spawn(|| create(&server))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(asked.elapsed() < Duration::from_secs(45), "somebody was left waiting: {:?}", asked.elapsed());
    let (taken, sent_away): (Vec<Answer>, Vec<Answer>) = answers.into_iter().partition(|answer| answer.status == 201);
    assert!((1..=6).contains(&taken.len()), "{} were taken", taken.len());
    sent_away.into_iter().for_each(|answer| drop(refused(answer)));
    assert_eq!(guests(&server.data()).len(), taken.len(), "what runs is what was told");
    let first = made(taken.into_iter().next().unwrap());
    server.request("DELETE", &format!("/api/sandboxes/{first}"), None).expect_status(204);
    made(create(&server));
}

#[test]
fn memory_is_given_out_once() {
    let limit = (256u64 << 20).to_string();
    let server = TestServer::start_in(&[], &[("COVE_CAPACITY_MEMORY", limit.as_str())]);
    let sized = |mebibytes: u64| {
        server.request("POST", "/api/sandboxes", Some(&json!({"limits": {"memory": mebibytes << 20}})))
    };
    let first = made(sized(160));
    assert!(refused(sized(128)).contains("160 MiB of 256 MiB"));
    made(sized(96));
    server.request("DELETE", &format!("/api/sandboxes/{first}"), None).expect_status(204);
    made(sized(160));
}
