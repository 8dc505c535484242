//! What happens to a sandbox when `cove run` itself gets a signal.

use std::io::{BufRead, BufReader};

use cove_testkit::program::Running;
use cove_testkit::server::TestDirectory;
use cove_testkit::{LeakCheck, wait};
use rustix::process::Signal;

/// A command that says when it is ready, and its program.
fn started(place: &TestDirectory, script: &str) -> Running {
    let mut running = place.cove(["run", "--", "sh", "-c", script]).spawn();
    let mut reader = BufReader::new(running.child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    // The pipe stays open: a closed one would end the command by itself.
    running.child.stdout = Some(reader.into_inner());
    running
}

#[test]
fn interrupt_reaches_the_command_which_may_clean_up() {
    let place = TestDirectory::new();
    let mut running = started(&place, "trap 'echo cleaned; exit 5' INT; echo ready; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    let finished = running.finish().expect_code(5);
    assert_eq!(finished.stdout, "cleaned\n");
}

#[test]
fn a_command_that_ends_by_the_signal_gives_128_and_its_number() {
    let place = TestDirectory::new();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129), (Signal::QUIT, 131)] {
        let mut running = started(&place, "echo ready; exec sleep 60");
        running.signal(signal);
        running.finish().expect_code(code);
    }
}

#[test]
fn a_second_interrupt_ends_a_command_that_ignores_the_first() {
    let place = TestDirectory::new();
    let mut running = started(&place, "trap 'echo no' INT; echo ready; while :; do sleep 0.05; done");
    running.signal(Signal::INT);
    let mut reader = BufReader::new(running.child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "no\n");
    running.child.stdout = Some(reader.into_inner());
    running.signal(Signal::INT);
    running.finish().expect_code(130);
}

#[test]
fn input_that_nobody_reads_does_not_hold_back_a_signal() {
    let place = TestDirectory::new();
    let mut running = {
        let endless = std::fs::File::open("/dev/zero").unwrap();
        place.cove(["run", "--", "sh", "-c", "echo ready; exec sleep 60"]).input_from(endless).spawn()
    };
    let mut reader = BufReader::new(running.child.stdout.take().unwrap());
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    running.child.stdout = Some(reader.into_inner());
    running.signal(Signal::TERM);
    running.finish().expect_code(143);
}

#[test]
fn nothing_of_a_killed_run_lives_on() {
    let place = TestDirectory::new();
    let mut running = started(&place, "echo ready; exec sleep 600");
    running.signal(Signal::KILL);
    running.finish().expect_code(137);
    // The leash ends the sandbox; a later run sweeps what is left of its files and groups.
    let check = LeakCheck::new(place.path());
    wait::until("a later run to sweep", wait::LIMIT, || {
        place.cove(["run", "--", "true"]).finish().expect_success();
        check.traces().is_empty()
    });
}

#[test]
fn an_interrupted_red_team_takes_its_bait_along() {
    let place = TestDirectory::new();
    let home = place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let entries = |folder: &std::path::Path| std::fs::read_dir(folder).map_or(0, Iterator::count);
    for signal in [Signal::INT, Signal::TERM] {
        let mut running = place.cove(["redteam"]).env("HOME", &home).spawn();
        wait::until("its first sandbox", wait::LIMIT, || entries(&place.data().join("run/sandboxes")) > 0);
        assert_eq!(entries(&home), 1);
        running.signal(signal);
        let finished = running.finish().expect_code(130);
        assert!(finished.stderr.contains("interrupted; everything was removed"), "{}", finished.stderr);
        assert_eq!(entries(&home), 0);
    }
}
