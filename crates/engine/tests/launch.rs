//! A sandbox is born, answers, and leaves nothing.

mod house;

use std::time::Duration;

use house::House;

#[test]
fn a_sandbox_starts_answers_and_is_gone() {
    let house = House::open();
    let running = house.engine.launch(&house.spec()).unwrap();
    assert!(house.answers(&running.id));
    house.engine.stop(&running.id, Duration::from_secs(2)).unwrap();
    assert!(!house.answers(&running.id));
    house.engine.destroy(&running.id).unwrap();
    house.assert_empty();
}

#[test]
fn destroying_a_running_sandbox_leaves_nothing() {
    let house = House::open();
    let running = house.engine.launch(&house.spec()).unwrap();
    house.engine.destroy(&running.id).unwrap();
    house.assert_empty();
}
