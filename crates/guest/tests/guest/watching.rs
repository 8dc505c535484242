use std::os::unix::fs::PermissionsExt;

use cove_protocol::file::{Change, ChangeKind, WriteMode};
use cove_protocol::{Event, FailureKind, Reply, Request};

use crate::client::{Guest, Host, argv};
use crate::files::put;

fn watch(guest: &Guest, path: &str, recursive: bool) -> Host {
    let (reply, host) = guest.open(&Request::Watch { path: guest.path(path), user: None, recursive });
    assert_eq!(reply, Reply::Done);
    host
}

/// Reads until the change has been told.
fn until(host: &mut Host, path: &str, kind: ChangeKind) -> Vec<Change> {
    let seen = host.until(|seen| changes(&seen.events).iter().any(|change| change.path == path && change.kind == kind));
    changes(&seen.events)
}

fn changes(events: &[Event]) -> Vec<Change> {
    let all = events.iter().flat_map(|event| match event {
        Event::Changes { changes } => changes.clone(),
        other => panic!("{other:?}"),
    });
    all.collect()
}

#[test]
fn what_happens_in_a_directory_is_told_as_it_happens() {
    let guest = Guest::start();
    std::fs::create_dir(guest.path("d")).unwrap();
    let mut host = watch(&guest, "d", false);
    std::fs::write(guest.path("d/file"), "text").unwrap();
    let told = until(&mut host, "file", ChangeKind::Write);
    assert_eq!(told[0].kind, ChangeKind::Create);
    assert_eq!(told.last().unwrap().entry.as_ref().unwrap().path, guest.path("d/file"));
    std::fs::set_permissions(guest.path("d/file"), PermissionsExt::from_mode(0o600)).unwrap();
    let told = until(&mut host, "file", ChangeKind::Chmod);
    assert_eq!(told.last().unwrap().entry.as_ref().unwrap().mode, 0o600);
    std::fs::rename(guest.path("d/file"), guest.path("d/other")).unwrap();
    let told = until(&mut host, "other", ChangeKind::Create);
    assert!(told.iter().any(|change| change.path == "file" && change.kind == ChangeKind::Rename), "{told:?}");
    std::fs::remove_file(guest.path("d/other")).unwrap();
    until(&mut host, "other", ChangeKind::Remove);
    std::fs::create_dir(guest.path("d/sub")).unwrap();
    std::fs::write(guest.path("d/sub/below"), "").unwrap();
    std::fs::write(guest.path("d/end"), "").unwrap();
    let told = until(&mut host, "end", ChangeKind::Create);
    assert!(told.iter().all(|change| change.path != "sub/below"), "not asked for: {told:?}");
}

#[test]
fn files_made_in_new_directories_are_not_missed_and_not_told_twice() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("d/old")).unwrap();
    let mut host = watch(&guest, "d", true);
    let script = "cd $1; for i in $(seq 40); do mkdir -p old/$i/a/b && echo x > old/$i/a/b/file; done; echo > old/end";
    let made = guest.run(argv(&["bash", "-c", script, "-", &guest.path("d")]));
    assert_eq!(made.code(), Some(0));
    let told = until(&mut host, "old/end", ChangeKind::Write);
    for number in 1..=40 {
        for path in [format!("old/{number}"), format!("old/{number}/a"), format!("old/{number}/a/b/file")] {
            let count = told.iter().filter(|change| change.path == path && change.kind == ChangeKind::Create).count();
            assert_eq!(count, 1, "{path}");
        }
    }
    std::fs::write(guest.path("d/old/7/a/b/file"), "later").unwrap();
    until(&mut host, "old/7/a/b/file", ChangeKind::Write);
}

#[test]
fn a_renamed_directory_is_followed_under_its_new_name_and_out_of_the_tree_not_at_all() {
    let guest = Guest::start();
    std::fs::create_dir_all(guest.path("d/before/sub")).unwrap();
    let mut host = watch(&guest, "d", true);
    std::fs::rename(guest.path("d/before"), guest.path("d/after")).unwrap();
    until(&mut host, "after", ChangeKind::Create);
    std::fs::write(guest.path("d/after/sub/file"), "").unwrap();
    until(&mut host, "after/sub/file", ChangeKind::Create);
    std::fs::rename(guest.path("d/after"), guest.path("gone")).unwrap();
    until(&mut host, "after", ChangeKind::Rename);
    std::fs::write(guest.path("d/mark"), "").unwrap();
    until(&mut host, "mark", ChangeKind::Create);
    std::fs::write(guest.path("gone/sub/unseen"), "").unwrap();
    std::fs::write(guest.path("d/end"), "").unwrap();
    let told = until(&mut host, "end", ChangeKind::Create);
    assert!(told.iter().all(|change| !change.path.contains("unseen")), "{told:?}");
    std::fs::rename(guest.path("gone"), guest.path("d/back")).unwrap();
    until(&mut host, "back/sub/unseen", ChangeKind::Create);
}

#[test]
fn the_guests_own_writes_look_like_writes() {
    let guest = Guest::start();
    std::fs::create_dir(guest.path("d")).unwrap();
    let mut host = watch(&guest, "d", true);
    let write = |how| Request::Write { path: guest.path("d/file"), user: None, how, mode: None, parents: false };
    put(&guest, &write(WriteMode::Replace), b"new").unwrap();
    let told = until(&mut host, "file", ChangeKind::Write);
    assert_eq!(told.iter().map(|change| change.kind).collect::<Vec<_>>(), [ChangeKind::Create, ChangeKind::Write]);
    put(&guest, &write(WriteMode::Replace), b"replaced").unwrap();
    let told = until(&mut host, "file", ChangeKind::Write);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].entry.as_ref().unwrap().size, 8);
    put(&guest, &write(WriteMode::InPlace), b"x").unwrap();
    until(&mut host, "file", ChangeKind::Write);
}

#[test]
fn more_changes_than_the_kernel_keeps_are_told_as_an_overflow() {
    let guest = Guest::start();
    std::fs::create_dir(guest.path("d")).unwrap();
    let mut host = watch(&guest, "d", true);
    // Nothing is read meanwhile, so the guest waits for the host and the kernel's queue fills.
    for number in 0..15_000 {
        std::fs::write(guest.path(&format!("d/{number}")), "").unwrap();
        std::fs::remove_file(guest.path(&format!("d/{number}"))).unwrap();
    }
    host.until(|seen| seen.events.contains(&Event::Overflow));
    std::fs::write(guest.path("d/after the flood"), "").unwrap();
    host.until(|seen| {
        let mut all = seen.events.iter().filter_map(|event| match event {
            Event::Changes { changes } => Some(changes),
            _ => None,
        });
        all.any(|changes| changes.iter().any(|change| change.path == "after the flood"))
    });
}

#[test]
fn only_a_directory_can_be_watched() {
    let guest = Guest::start();
    std::fs::write(guest.path("file"), "").unwrap();
    let watch = |path: &str| guest.call(&Request::Watch { path: guest.path(path), user: None, recursive: true });
    assert_eq!(watch("file").unwrap_err().kind, FailureKind::NotADirectory);
    assert_eq!(watch("none").unwrap_err().kind, FailureKind::NotFound);
}
