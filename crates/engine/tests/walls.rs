//! The walls, tried from inside and, where a wall lies behind another, with more rights than a sandbox ever has.

mod house;

use std::process::Command;

use house::House;

/// Runs Python inside as root of the sandbox; it must say `ok`.
fn says_ok(house: &House, id: &cove_engine::SandboxId, script: &str) {
    let ran = house.run_as(id, Some("root"), &format!("python3 - <<'END'\n{script}\nEND"));
    assert_eq!(ran.stdout.trim(), "ok", "{ran:?}");
}

#[test]
fn cannot_leave_by_chroot() {
    let house = House::open();
    let running = house.engine.launch(&house.spec()).unwrap();
    says_ok(
        &house,
        &running.id,
        "import os\ntry:\n    os.chroot('/tmp')\n    print('changed')\nexcept PermissionError:\n    print('ok')",
    );
    // The same with every capability of the host: ".." ends at the sandbox's root, and nothing lies beneath it.
    let escape = "import os\nos.chroot('/opt')\n\
        for _ in range(64): os.chdir('..')\nos.chroot('.')\nprint(' '.join(sorted(os.listdir('/'))))";
    let output = Command::new("nsenter")
        .args(["--target", &running.pid.to_string(), "--mount", "/usr/bin/python3", "-c", escape])
        .output()
        .unwrap();
    let seen = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    assert!(seen.contains("workspace") && !seen.contains("layers"), "reached {seen}");
    house.engine.destroy(&running.id).unwrap();
    house.assert_empty();
}

#[test]
fn cannot_make_a_namespace() {
    let house = House::open();
    let id = house.launch();
    for flags in ["--user", "--mount", "--net", "--pid --fork", "--user --map-root-user"] {
        let ran = house.run_as(&id, Some("root"), &format!("unshare {flags} true"));
        assert_ne!(ran.code, 0, "unshare {flags}: {ran:?}");
    }
    assert_eq!(house.output(&id, "cat /proc/sys/user/max_user_namespaces"), "0");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn cannot_starve_another_sandbox_of_inotify() {
    let house = House::open();
    let (greedy, modest) = (house.launch(), house.launch());
    let take =
        "import ctypes\nlibc = ctypes.CDLL(None)\nheld = 0\nwhile libc.inotify_init1(0) >= 0: held += 1\nprint(held)";
    let hold = format!("{take}\nimport sys, time\nsys.stdout.flush()\ntime.sleep(1000)");
    house.output(&greedy, &format!("(python3 - > /tmp/held <<'END'\n{hold}\nEND\n) >/dev/null 2>&1 &"));
    house::eventually("the greedy one has taken all", || !house.output(&greedy, "cat /tmp/held").is_empty());
    let held: u32 = house.output(&modest, &format!("python3 - <<'END'\n{take}\nEND")).parse().unwrap();
    assert!(held >= 64, "only {held} instances were left for the neighbour");
    for id in [greedy, modest] {
        house.engine.destroy(&id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn cannot_hold_more_socket_memory_than_the_limit_allows() {
    let house = House::open();
    let mut spec = house.spec();
    spec.limits.memory = 128 << 20;
    let id = house.engine.launch(&spec).unwrap().id;
    // Datagrams and streams that nobody reads. Either the kernel takes no more of them, or the sandbox is over its limit.
    let hoard = "import socket, time\nend, taken, kept = time.time() + 4, 0, []\n\
        listener = socket.create_server(('127.0.0.1', 0))\n\
        while time.time() < end and taken < 1 << 30 and len(kept) < 1000:\n\
        \x20   a = socket.create_connection(listener.getsockname())\n    b, _ = listener.accept()\n    kept += [a, b]\n    a.setblocking(False)\n\
        \x20   try:\n        while True: taken += a.send(bytes(65536))\n    except BlockingIOError: pass\n\
        print(taken >> 20)";
    let ran = house.run(&id, &format!("python3 - <<'END'\n{hoard}\nEND"));
    let held: u64 = ran.stdout.trim().parse().unwrap_or(0);
    assert!(held <= 128, "{held} MiB in sockets of a sandbox with 128 MiB: {ran:?}");
    if house.engine.destroy(&id).is_ok() {
        house.assert_empty();
    }
}

#[test]
fn cannot_leave_a_set_user_id_program_in_a_folder_of_the_host() {
    use std::os::unix::fs::PermissionsExt as _;
    let house = House::open();
    let folder = tempfile::tempdir().unwrap();
    let mut spec = house.spec();
    let (source, target) = (folder.path().into(), "/shared".into());
    spec.mounts = vec![cove_engine::spec::Mount { source, target, access: cove_engine::spec::Access::ReadWrite }];
    let id = house.engine.launch(&spec).unwrap().id;
    for attempt in [
        "cp /bin/true /shared/a && chmod 4755 /shared/a",
        "cp /bin/true /shared/b && chmod g+s /shared/b",
        "python3 -c \"import os; os.open('/shared/c', os.O_CREAT | os.O_WRONLY, 0o6755)\"",
        "python3 -c \"import os; os.mknod('/shared/d', 0o106755)\"",
    ] {
        let ran = house.run(&id, attempt);
        assert_ne!(ran.code, 0, "{attempt}: {ran:?}");
    }
    assert_eq!(
        house.output(&id, "chmod 700 /shared/a; install -m 755 /bin/true /shared/e; stat -c %a /shared/e"),
        "755"
    );
    for made in std::fs::read_dir(folder.path()).unwrap() {
        let made = made.unwrap();
        assert_eq!(made.metadata().unwrap().permissions().mode() & 0o6000, 0, "{}", made.path().display());
    }
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn no_two_sandboxes_have_one_range_of_ids_and_none_has_the_hosts() {
    let house = House::open();
    let ids = [house.launch(), house.launch(), house.launch()];
    let maps: Vec<u64> =
        ids.iter().map(|id| house.output(id, "awk '{print $2}' /proc/self/uid_map").parse().unwrap()).collect();
    assert!(maps.iter().all(|first| *first >= 0x7000_0000), "{maps:?}");
    assert!(maps[0] != maps[1] && maps[1] != maps[2] && maps[0] != maps[2], "{maps:?}");
    for id in ids {
        house.engine.destroy(&id).unwrap();
    }
    house.assert_empty();
}

#[test]
fn cannot_see_the_host_in_proc_sys_or_dev() {
    let house = House::open();
    let id = house.launch();
    assert_eq!(house.output(&id, "ls -A /sys | wc -l"), "0");
    assert_eq!(
        house.output(&id, "ls -A /dev | sort | tr '\\n' ' '").trim(),
        "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
    );
    for file in
        ["kcore", "keys", "timer_list", "config.gz", "kallsyms", "partitions", "interrupts", "cmdline", "diskstats"]
    {
        let ran = house.run_as(&id, Some("root"), &format!("wc -c < /proc/{file}"));
        assert!(ran.code != 0 || ran.stdout.trim() == "0", "/proc/{file}: {ran:?}");
    }
    for file in ["sys/kernel/core_pattern", "sys/vm/drop_caches", "sysrq-trigger", "irq/default_smp_affinity"] {
        let ran = house.run_as(&id, Some("root"), &format!("echo 1 > /proc/{file}"));
        assert!(ran.code != 0, "/proc/{file}: {ran:?}");
    }
    let mounts = house.output(&id, "cat /proc/self/mountinfo");
    let data = house.data.path().file_name().unwrap().to_str().unwrap();
    assert!(!mounts.contains(data) || mounts.matches(data).count() <= 1, "{mounts}");
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn cannot_reach_the_guest_or_leave_with_its_descriptors() {
    let house = House::open();
    let id = house.launch();
    for attempt in ["cat /proc/1/environ", "cat /proc/1/maps", "ls -l /proc/1/fd/", "cat /proc/1/mem"] {
        let ran = house.run(&id, attempt);
        assert_ne!(ran.code, 0, "{attempt}: {ran:?}");
    }
    assert_eq!(house.output(&id, "ls /proc/self/fd | tr '\\n' ' '").trim(), "0 1 2 3");
    let ran = house.run_as(&id, Some("root"), "echo x > /proc/1/exe; echo y >> /proc/1/exe");
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(house.answers(&id));
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}

#[test]
fn cannot_dump_core_to_the_host_or_run_32_bit_calls() {
    let house = House::open();
    let id = house.launch();
    assert_eq!(house.output(&id, "ulimit -Hc"), "0");
    says_ok(
        &house,
        &id,
        "import ctypes, mmap, os, signal\n\
         code = bytes([0x53, 0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0x5b, 0xc3])\n\
         page = mmap.mmap(-1, 4096, prot=7)\npage.write(code)\n\
         pid = os.fork()\n\
         if pid == 0:\n    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\n    os._exit(0)\n\
         print('ok' if os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSYS else 'ran')",
    );
    house.engine.destroy(&id).unwrap();
    house.assert_empty();
}
