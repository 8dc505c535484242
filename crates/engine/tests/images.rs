//! A sandbox whose root is a tree of its own: an image, with whatever it has and lacks.

mod house;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::Duration;

use cove_engine::spec::{Access, Mount, Network, Root, Under};
use cove_engine::{LayerId, Spec};
use house::{House, new_layer};

/// A small system of one static program, as small images have it.
fn busybox(root: &Path) {
    let host = ["/usr/bin/busybox", "/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let host = host.expect("busybox is missing; `scripts/setup test` installs it (package busybox-static)");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(host, root.join("bin/busybox")).unwrap();
    for name in [
        "sh", "cat", "echo", "ls", "id", "stat", "hostname", "mkdir", "touch", "rm", "readlink", "mount", "test",
        "env", "ps", "wc",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
}

fn image(house: &House, fill: impl FnOnce(&Path)) -> LayerId {
    let draft = house.engine.draft(Some(64 << 20)).unwrap();
    drop(draft.root().unwrap());
    let root = draft.path().join("root");
    busybox(&root);
    fill(&root);
    let layer = new_layer();
    draft.seal(&layer).unwrap();
    layer
}

fn spec(house: &House, layer: LayerId) -> Spec {
    Spec {
        root: Root { under: Under::Nothing, over: vec![layer] },
        default_user: "root".into(),
        env: [("PATH".to_owned(), "/bin".to_owned())].into(),
        ..house.on_disk()
    }
}

#[test]
fn an_image_without_anything_gets_what_every_system_has() {
    let house = House::open();
    let spec = spec(&house, image(&house, |_| {}));
    let id = house.engine.launch(&spec).unwrap().id;
    assert_eq!(house.output(&id, "id -u; hostname; cat /etc/hostname; pwd"), "0\nhouse\nhouse\n/");
    assert_eq!(house.output(&id, "ls /"), "bin\ndev\netc\nproc\nsys\ntmp");
    assert_eq!(house.output(&id, "stat -c %a /tmp; ls /proc/self/exe /dev/null /dev/shm/ -d | wc -l"), "1777\n3");
    assert!(house.output(&id, "cat /etc/hosts").contains("127.0.1.1\thouse"));
    assert!(house.output(&id, "cat /etc/resolv.conf").contains("nameserver"));
    assert_eq!(house.output(&id, "cat /proc/kallsyms | wc -c; cat /proc/1/comm"), "0\ncove-guest");
    assert_ne!(house.run(&id, "ls /usr/bin").code, 0, "nothing of the host");
    house.output(&id, "echo written > /file");
    house.engine.stop(&id, Duration::from_secs(5)).unwrap();
    house.engine.launch(&spec).unwrap();
    assert_eq!(house.output(&id, "cat /file"), "written");

    // Captured, it is a layer over the image.
    let delta = new_layer();
    house.engine.capture(&id, &delta).unwrap();
    let over = Root { under: Under::Nothing, over: vec![delta, spec.root.over[0]] };
    let other = house.engine.launch(&Spec { root: over.clone(), ..house.on_disk() }.with_root()).unwrap().id;
    assert_eq!(house.output(&other, "cat /file"), "written");
    // And merged with it, an image that stands alone.
    let flat = new_layer();
    let nothing = Root { under: Under::Nothing, over: Vec::new() };
    assert_eq!(house.engine.flatten(&over.over, &nothing, &flat).unwrap().beneath, None);
    let third = house.engine.launch(&self::spec(&house, flat)).unwrap().id;
    assert_eq!(house.output(&third, "cat /file; ls /"), "written\nbin\ndev\netc\nfile\nproc\nsys\ntmp");
    for id in [&id, &other, &third] {
        house.engine.destroy(id).unwrap();
    }
    house.assert_empty();
}

trait AsRoot {
    fn with_root(self) -> Self;
}

impl AsRoot for Spec {
    fn with_root(self) -> Spec {
        Spec { default_user: "root".into(), env: [("PATH".to_owned(), "/bin".to_owned())].into(), ..self }
    }
}

#[test]
fn what_an_image_has_in_place_of_a_mount_point_does_not_lead_anywhere() {
    let house = House::open();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("precious"), "untouched").unwrap();
    let layer = image(&house, |root| {
        symlink("/bin", root.join("proc")).unwrap();
        fs::write(root.join("dev"), "a file").unwrap();
        symlink(outside.path(), root.join("sys")).unwrap();
        symlink("var/tmp", root.join("tmp")).unwrap();
        fs::create_dir_all(root.join("var/tmp")).unwrap();
        fs::create_dir(root.join("etc")).unwrap();
        symlink(outside.path().join("precious"), root.join("etc/hosts")).unwrap();
        fs::create_dir(root.join("etc/hostname")).unwrap();
        symlink("../../../../../../etc/shadow", root.join("etc/resolv.conf")).unwrap();
        symlink("/nowhere/passwd", root.join("etc/passwd")).unwrap();
    });
    let id = house.engine.launch(&spec(&house, layer)).unwrap().id;
    assert_eq!(
        house.output(&id, "cat /proc/1/comm; test -c /dev/null && echo device; ls /sys | wc -l"),
        "cove-guest\ndevice\n0"
    );
    assert_eq!(house.output(&id, "cat /etc/hostname; readlink /etc/resolv.conf || echo a file"), "house\na file");
    assert_eq!(house.output(&id, "touch /tmp/x && ls /var/tmp"), "x");
    assert_eq!(fs::read_to_string(outside.path().join("precious")).unwrap(), "untouched");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn a_directory_of_the_system_may_be_a_link_wherever_it_leads() {
    let house = House::open();
    let outside = tempfile::tempdir().unwrap();
    // Nothing is there yet; by way of another link; upwards out of the root; a place that the host has, too.
    let leads =
        ["/conf", "conf/deep/er", "/missing/../conf", "usr/etc", "../../../..", outside.path().to_str().unwrap()];
    for target in leads {
        let layer = image(&house, |root| {
            symlink(target, root.join("etc")).unwrap();
            symlink("/new/usr", root.join("usr")).unwrap();
        });
        let id = house.engine.launch(&spec(&house, layer)).unwrap().id;
        assert_eq!(house.output(&id, "cat /etc/hostname; readlink /etc"), format!("house\n{target}"));
        house.engine.destroy(&id).unwrap();
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "a link led to the host");
    house.assert_empty();
}

#[test]
fn an_image_that_no_sandbox_can_be_made_of_is_refused_by_the_place_that_is_wrong() {
    let house = House::open();
    let wrong: [fn(&Path); 5] = [
        |root| fs::write(root.join("etc"), "a file").unwrap(),
        |root| symlink("etc", root.join("etc")).unwrap(),
        |root| symlink("bin/busybox", root.join("etc")).unwrap(),
        |root| symlink("a/".repeat(300), root.join("etc")).unwrap(),
        |root| fs::create_dir_all(root.join("etc/hostname/full")).unwrap(),
    ];
    for (number, fill) in wrong.into_iter().enumerate() {
        let error = house.engine.launch(&spec(&house, image(&house, fill))).unwrap_err();
        assert!(matches!(error, cove_engine::Error::Invalid(_)), "{number}: {error:?}");
        assert!(error.to_string().contains("/etc"), "{number}: {error}");
    }
    house.assert_empty();
}

#[test]
fn users_are_the_images_own_and_a_folder_belongs_to_the_one_that_is_named() {
    let house = House::open();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("given"), "x").unwrap();
    let layer = image(&house, |root| {
        fs::create_dir_all(root.join("home/node")).unwrap();
        fs::create_dir(root.join("etc")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nnode:x:4242:4243::/home/node:/bin/sh\n")
            .unwrap();
        fs::write(root.join("etc/group"), "node:x:4243:\n").unwrap();
        chown(root.join("home/node"), Some(4242), Some(4243)).unwrap();
        fs::copy(root.join("bin/busybox"), root.join("bin/setuid")).unwrap();
        fs::set_permissions(root.join("bin/setuid"), fs::Permissions::from_mode(0o4755)).unwrap();
    });
    let mounts = vec![Mount { source: folder.path().into(), target: "/data".into(), access: Access::ReadWrite }];
    let mut spec = Spec { default_user: "node".into(), mounts, ..spec(&house, layer) };
    let id = house.engine.launch(&spec).unwrap().id;
    assert_eq!(
        house.output(&id, "id -u; id -g; pwd; touch mine; stat -c %U mine /data/given"),
        "4242\n4243\n/home/node\nnode\nnode"
    );
    house.output(&id, "echo y > /data/made");
    assert_eq!(fs::read_to_string(folder.path().join("made")).unwrap(), "y\n");
    assert_eq!(house.run_as(&id, Some("root"), "id -u").stdout, "0\n");
    house.engine.destroy(&id).unwrap();
    (spec.default_user, spec.id) = ("stranger".into(), house::new_id());
    let error = house.engine.launch(&spec).unwrap_err().to_string();
    assert!(error.contains("stranger") && error.contains("/etc/passwd"), "{error}");
    house.assert_empty();
}

#[test]
fn a_mount_goes_where_the_images_links_lead_and_never_further() {
    let house = House::open();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("given"), "given\n").unwrap();
    let layer = image(&house, |root| {
        fs::create_dir_all(root.join("run")).unwrap();
        fs::create_dir(root.join("var")).unwrap();
        symlink("/run", root.join("var/run")).unwrap();
        symlink("/../../../../../tmp", root.join("up")).unwrap();
        symlink("/proc/self", root.join("self")).unwrap();
    });
    let mount = |target: &str| Mount { source: folder.path().into(), target: target.into(), access: Access::ReadOnly };
    let mounts = vec![mount("/var/run/deep/er"), mount("/up/there"), mount("/new/place")];
    let id = house.engine.launch(&Spec { mounts, ..spec(&house, layer) }).unwrap().id;
    assert_eq!(house.output(&id, "cat /run/deep/er/given /tmp/there/given /new/place/given"), "given\ngiven\ngiven");
    assert!(!Path::new("/tmp/there").exists(), "a link led to the host");
    house.engine.destroy(&id).unwrap();
    // A link into /proc leads below it: what the kernel shows there is not covered.
    let mounts = vec![mount("/self/fake")];
    let spec = Spec { mounts, network: Network::None, ..spec(&house, layer) };
    if let Ok(running) = house.engine.launch(&spec) {
        assert_eq!(house.output(&running.id, "ls /proc/self/fake 2>/dev/null | wc -l"), "0");
        house.engine.destroy(&running.id).unwrap();
    }
    house.assert_empty();
}
