//! What becomes of launches when a spawner dies. Alone in its process: it kills every spawner that it finds there.

mod house;

use house::House;

#[test]
fn a_spawner_that_is_killed_is_replaced() {
    let house = House::open();
    for spawner in children_named("cove-spawner") {
        rustix::process::kill_process(spawner, rustix::process::Signal::KILL).unwrap();
    }
    // The request that meets the dead one is lost and says so.
    let spec = house.spec();
    let error = house.engine.launch(&spec).map(|running| running.pid);
    assert!(error.as_ref().is_err_and(|error| error.to_string().contains("spawner")), "{error:?}");
    house.engine.launch(&spec).unwrap();
    assert!(house.answers(&spec.id));
    house.engine.destroy(&spec.id).unwrap();
    house.assert_empty();
}

fn children_named(name: &str) -> Vec<rustix::process::Pid> {
    let children =
        std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).unwrap_or_default();
    let own = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path().join("children"));
    let all: String = own.map(|path| std::fs::read_to_string(path).unwrap_or_default() + " ").collect();
    (children + &all)
        .split_whitespace()
        .filter(|pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name))
        .filter_map(|pid| rustix::process::Pid::from_raw(pid.parse().ok()?))
        .collect()
}
