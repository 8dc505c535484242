//! Without root: the same stories as an ordinary user, and what is refused.

use std::ffi::OsString;
use std::io::{BufRead, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use cove_testkit::ordinary::{self, Ids, OrdinaryUser};
use cove_testkit::program::Cove;
use cove_testkit::wait::{LIMIT, until_some};
use cove_testkit::{Need, skip};
use serde_json::{Value, json};

#[test]
fn output_exit_code_and_user_are_as_with_root() {
    let user = OrdinaryUser::new();
    let script = "id -un; pwd; echo x > file && cat file; hostname; exit 3";
    let finished = user.cove(["run", "--name", "box", "--", "sh", "-c", script]).finish().expect_code(3);
    assert_eq!(finished.stdout, "user\n/home/user\nx\nbox\n");
    let finished = user.cove(["run", "--user", "root", "--", "sh", "-c", "id -u; echo x > /etc/x && cat /etc/x"]);
    assert_eq!(finished.finish().expect_success().stdout, "0\nx\n");
    let finished = user.cove(["run", "--workdir", "/w/deep", "--", "sh", "-c", "touch x && pwd"]).finish();
    assert_eq!(finished.expect_success().stdout, "/w/deep\n");
    user.cove(["run", "--timeout", "200ms", "--", "sleep", "60"]).finish().expect_code(124);
}

#[test]
fn another_user_than_the_one_there_is_is_refused() {
    let user = OrdinaryUser::new();
    let finished = user.cove(["run", "--user", "33", "--", "true"]).finish().expect_code(125);
    assert!(finished.stderr.contains("has no place for this id: this sandbox has one user id"), "{}", finished.stderr);
}

#[test]
fn what_is_weaker_is_told_once_and_can_be_silenced() {
    let user = OrdinaryUser::new();
    let finished = user.cove(["run", "--", "true"]).finish().expect_success();
    assert_eq!(finished.stderr.matches("no limit on cpus and memory").count(), 1, "{}", finished.stderr);
    let finished = user.cove(["run", "--", "true"]).env("COVE_QUIET", "1").finish().expect_success();
    assert_eq!(finished.stderr, "");
}

#[test]
fn a_limit_that_cannot_be_held_is_refused_with_the_way_to_get_it() {
    let user = OrdinaryUser::new();
    for (flag, value, name) in [("--memory", "256M", "memory"), ("--cpus", "0.5", "cpus")] {
        let finished = user.cove(["run", flag, value, "--", "touch", "/tmp/ran"]).finish().expect_code(125);
        assert!(finished.stderr.contains(&format!("{name} limit cannot be held")), "{}", finished.stderr);
        assert!(finished.stderr.contains("hint: "), "{}", finished.stderr);
    }
}

/// Counts how many of 60 processes could be started.
const FORKS: &str = "import os, time
made = 0
for _ in range(60):
    try:
        if os.fork() == 0: time.sleep(30); os._exit(0)
        made += 1
    except OSError: break
print(made, flush=True)
import sys; sys.stdin.read()";

#[test]
fn the_limit_on_processes_holds_without_control_groups_and_for_each_sandbox_alone() {
    let user = OrdinaryUser::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let full = user.cove(["run", "--pids", "20", "--", "python3", "-c", FORKS]).input_from(reader);
    let mut full = full.env("COVE_QUIET", "1").spawn();
    let mut first = [0_u8; 3];
    full.child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    let made: u32 = String::from_utf8_lossy(&first).trim().parse().unwrap();
    assert!((10..20).contains(&made), "{made} processes and the guest's");
    // While that one is full, another of the same user has room for all of its own.
    let finished = user.cove(["run", "--pids", "100", "--", "python3", "-c", FORKS]).finish().expect_success();
    assert_eq!(finished.stdout, "60\n");
    drop(writer);
    assert_eq!(full.finish().code, 0);
}

/// The index is not there: what counts is that the recipe runs, without the limits that cannot be held here.
#[test]
fn a_template_is_built_with_the_limits_that_hold() {
    let server = ordinary::serve();
    let build = || {
        let build = server.cove(["template", "build", "code-interpreter", "--small"]);
        let build = build.env("PIP_INDEX_URL", "http://127.0.0.1:9/simple").env("PIP_DEFAULT_TIMEOUT", "1");
        build.within(Duration::from_secs(120))
    };
    let built = build().finish();
    assert_eq!(built.code, 1, "the recipe's own failure, not that of a limit: {}", built.stderr);
    assert!(
        built.stderr.contains("installing ") && built.stderr.contains("No matching distribution"),
        "{}",
        built.stderr
    );
    // Ctrl-C is no failure of the recipe.
    let mut interrupted = build().spawn();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(interrupted.child.stderr.as_mut().unwrap());
    while !said.contains("installing ") {
        assert_ne!(lines.read_line(&mut said).unwrap(), 0, "{said}");
    }
    interrupted.signal(rustix::process::Signal::INT);
    let ended = interrupted.finish().expect_code(130);
    assert!(ended.stderr.contains("the build is cancelled"), "{}", ended.stderr);
    // What takes no index is built.
    let build = ["template", "build", "tools", "--from", "base", "--run", "echo made > /opt/made"];
    server.cove(build).finish().expect_success();
    server.cove(["create", "--name", "box", "--template", "tools"]).finish().expect_success();
    assert_eq!(server.cove(["exec", "box", "--", "cat", "/opt/made"]).finish().expect_success().stdout, "made\n");
    server.cove(["rm", "box"]).finish().expect_success();
}

#[test]
fn a_disk_limit_holds_in_memory() {
    let user = OrdinaryUser::new();
    let arguments = ["run", "--disk", "20M", "--", "sh", "-c", "head -c 40M /dev/zero > big; stat -c %s big"];
    let finished = user.cove(arguments).finish().expect_success();
    assert!(finished.stderr.contains("No space left on device"), "{}", finished.stderr);
    assert!(finished.stdout.trim().parse::<u64>().unwrap() <= 20 << 20, "{}", finished.stdout);
}

/// Also one that lies among Cove's own files: `data` is where these users' templates are.
#[test]
fn folders_are_the_users_own_to_read_or_to_write() {
    for (ids, name) in [(Ids::Single, "mine"), (Ids::Range, "mine"), (Ids::Range, "data")] {
        let user = OrdinaryUser::with(ids);
        let folder = user.folder(name);
        std::fs::write(folder.join("there"), "hello").unwrap();
        let (read, write) = (format!("{}:/data", folder.display()), format!("{}:/data:rw", folder.display()));
        let script = "cat /data/there; touch /data/x 2>/dev/null || echo no";
        let finished = user.cove(["run", "--mount", &read, "--", "sh", "-c", script]).finish().expect_success();
        assert_eq!(finished.stdout, "hellono\n");
        let script = "echo new > /data/made && echo h > ~/home && cat ~/home";
        let finished = user.cove(["run", "--mount", &write, "--", "sh", "-c", script]).finish().expect_success();
        assert_eq!(finished.stdout, "h\n");
        let made = folder.join("made").metadata().unwrap();
        assert_eq!((made.uid(), made.len()), (user.uid, 4), "{ids:?} {name}");
    }
}

#[test]
fn what_belongs_to_others_stays_closed() {
    let user = OrdinaryUser::new();
    let secret = user.place.path().join("secret");
    std::fs::write(&secret, "roots").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let mount = format!("{}:/secret", secret.display());
    let finished = user.cove(["run", "--user", "root", "--mount", &mount, "--", "cat", "/secret"]).finish();
    assert_eq!((finished.code, finished.stdout.as_str()), (1, ""), "{}", finished.stderr);
}

#[test]
fn memory_holds_where_root_handed_control_groups_over() {
    let user = OrdinaryUser::new();
    let refused = user.cove(["run", "--memory", "64M", "--", "true"]).finish();
    assert_ne!(refused.code, 0, "nothing was handed over yet");
    let realm = std::fs::read_to_string(user.place.data().join("run/realm")).unwrap();
    if !Path::new("/sys/fs/cgroup/memory/tasks").exists() {
        return skip(Need::ControlGroupsV1, "there is no /sys/fs/cgroup/memory/tasks");
    }
    // The hint is two commands, with whole paths.
    let group = format!("/sys/fs/cgroup/memory/{}", realm.trim());
    for part in ["type as root: mkdir -p ", &group, &format!(" && chown -R {} ", user.uid)] {
        assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
    }
    let doctor = user.cove(["doctor"]).finish();
    assert!(doctor.stdout.contains(&group) && !doctor.stdout.contains("cove-doctor-"), "{}", doctor.stdout);
    let trees = ["memory", "cpu", "pids", "cpuset", "freezer", "cpuacct", "unified"];
    let handed = trees.map(|tree| Path::new("/sys/fs/cgroup").join(tree)).into_iter().filter(|tree| tree.exists());
    let handed: Vec<_> = handed.map(|tree| tree.join(realm.trim())).collect();
    for directory in &handed {
        std::fs::create_dir(directory).unwrap();
        let owner = format!("{0}:{0}", user.uid);
        assert!(Command::new("chown").args(["-R", &owner]).arg(directory).status().unwrap().success());
    }
    let eat = ["run", "--memory", "64M", "--cpus", "0.5", "--", "python3", "-c", "b = bytearray(300 << 20)"];
    let finished = user.cove(eat).finish();
    let plain = user.cove(["run", "--memory", "64M", "--", "grep", "MemTotal", "/proc/meminfo"]).finish();
    let doctor = user.cove(["doctor"]).finish();
    for directory in &handed {
        // What the program itself could not take away from root's directories.
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir())
        {
            let _ = std::fs::remove_dir(entry.path());
        }
        let _ = std::fs::remove_dir(directory);
    }
    assert!(finished.code == 137 && finished.stderr.contains("out of memory"), "{finished:?}");
    assert!(plain.expect_success().stdout.contains("65536 kB"));
    let groups = doctor.stdout.lines().find(|line| line.starts_with("control groups")).unwrap_or_default();
    assert!(groups.contains("ok") && groups.contains("version 1"), "{}", doctor.stdout);
    assert!(handed.iter().all(|directory| !directory.exists()));
}

/// A host with v2 alone, and a subtree of it that was delegated without controllers: sandboxes are born in groups there.
#[test]
fn a_delegated_v2_subtree_is_used_also_without_controllers() {
    let user = OrdinaryUser::new();
    let unit = Path::new("/sys/fs/cgroup/unified").join(format!("cove-test-unit-{}", user.uid));
    if std::fs::create_dir(&unit).is_err() {
        return skip(Need::BareControlGroupsV2, "/sys/fs/cgroup/unified is not there or not ours");
    }
    assert!(Command::new("chown").args(["-R", &format!("{0}:{0}", user.uid)]).arg(&unit).status().unwrap().success());
    let enter = format!(
        "for tree in /sys/fs/cgroup/*/tasks; do umount \"${{tree%/tasks}}\"; done; echo 0 > {}/cgroup.procs; exec \"$@\"",
        unit.display()
    );
    let words = ["unshare", "--mount", "sh", "-ec", &enter, "sh"].map(OsString::from).into_iter();
    let words: Vec<OsString> = words.chain(user.words()).chain([user.program().into()]).collect();
    let cove = || Cove::by(&words, &user.place.data()).env("COVE_QUIET", "1");
    let script = "until [ -e /tmp/never ] || [ $((i += 1)) -gt 40 ]; do sleep 0.1; done; echo here";
    let (ended, seen) = std::thread::scope(|scope| {
        let run = scope.spawn(|| cove().args(["run", "--", "sh", "-c", script]).finish());
        let mut seen = 0;
        while !run.is_finished() {
            // unit/realm/sandbox
            let below = |path: &Path| -> Vec<_> {
                std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
            };
            let groups = below(&unit).into_iter().flat_map(|realm| below(&realm));
            let counts = groups.map(|group| std::fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default());
            seen = counts.map(|pids| pids.lines().count()).max().unwrap_or(0).max(seen);
            std::thread::sleep(Duration::from_millis(20));
        }
        (run.join().unwrap(), seen)
    });
    let refused = cove().args(["run", "--memory", "64M", "--", "true"]).finish();
    let removed = std::fs::remove_dir(&unit);
    assert_eq!(ended.expect_success().stdout, "here\n");
    assert!(seen >= 2, "the guest and its command were in a group of the subtree, {seen} at most");
    assert!(refused.code != 0 && refused.stderr.contains("memory controller was not delegated"), "{}", refused.stderr);
    removed.expect("nothing is left in it");
}

#[test]
fn a_terminal_works() {
    let user = OrdinaryUser::new();
    let mut terminal = user.terminal(["run", "-it", "--", "bash", "--norc"]);
    terminal.sees("$ ");
    terminal.types("stty size; echo don''e\n");
    terminal.sees("24 80");
    terminal.sees("done");
    terminal.types("exit 7\n");
    assert_eq!(terminal.ends(), 7);
}

/// A host with a page at a public and at a private address, and the program run there.
const WORLD: &str = "ip link set lo up && ip address add 203.0.113.7/32 dev lo && ip address add 10.0.0.5/32 dev lo && cd \"$1\" && shift
python3 -m http.server --bind 0.0.0.0 8000 >/dev/null 2>&1 & server=$!
curl -s --retry 50 --retry-connrefused --retry-delay 1 -o /dev/null http://203.0.113.7:8000/ || exit 98
\"$@\"; code=$?; kill $server; exit $code";

#[test]
fn egress_goes_through_the_proxy_and_nowhere_else() {
    let user = OrdinaryUser::new();
    let folder = user.folder("page");
    std::fs::write(folder.join("page"), "reached").unwrap();
    let words = ["unshare", "--net", "sh", "-c", WORLD, "sh"].map(OsString::from).into_iter();
    let words = words.chain([folder.into()]).chain(user.words()).chain([user.program().into()]);
    let words: Vec<OsString> = words.collect();
    let fetch = |network: &[&str], address: &str| {
        let cove = Cove::by(&words, &user.place.data()).env("COVE_QUIET", "1").args(["run"]).args(network);
        cove.args(["--", "curl", "-sS", "--max-time", "10", &format!("http://{address}:8000/page")]).finish()
    };
    let open = ["--network", "full", "--allow", "203.0.113.7:8000"];
    assert_eq!(fetch(&open, "203.0.113.7").expect_success().stdout, "reached");
    assert_ne!(fetch(&open, "10.0.0.5").code, 0, "refused like anybody's");
    assert_ne!(fetch(&["--network", "none"], "203.0.113.7").code, 0);
    assert_ne!(fetch(&["--allow", "203.0.113.8"], "203.0.113.7").code, 0);
}

#[test]
fn with_a_range_a_sandbox_has_all_ids_and_its_users_are_not_the_caller() {
    let user = OrdinaryUser::with(Ids::Range);
    let script =
        "cat /proc/self/uid_map; touch a && chown 33:33 a && stat -c %u a; su user -s /bin/sh -c 'id -u; touch ~/mine'";
    let finished = user.cove(["run", "--user", "root", "--", "sh", "-c", script]).finish().expect_success();
    let words: Vec<&str> = finished.stdout.split_whitespace().collect();
    assert_eq!(words, ["0", "0", "1", "1", "1", "65535", "33", "1000"], "{}", finished.stderr);
    let finished = user.cove(["run", "--", "sh", "-c", "id -un; touch x && stat -c %U x"]).finish().expect_success();
    assert_eq!(finished.stdout, "user\nuser\n");
}

#[test]
fn the_doctor_tells_what_holds_and_what_would_help() {
    let user = OrdinaryUser::new();
    let finished = user.cove(["doctor", "--json"]).finish().expect_success();
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    let finding = |name: &str| {
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("no {name} in {report}"))
    };
    assert_eq!(finding("without root")["verdict"], "ok");
    // Without groups of its own the host's controllers are of no use to this user.
    if finding("control groups")["verdict"] != "ok" {
        assert_ne!(finding("controller memory")["verdict"], "ok", "{report}");
    }
    assert_eq!(finding("nftables")["verdict"], "ok", "{}", finding("nftables"));
    assert_eq!(finding("limits on processes")["verdict"], "ok");
    assert!(finding("user ids")["remedy"].as_str().unwrap().contains("subuids"), "{}", finding("user ids"));
    assert_eq!(finding("control groups")["verdict"], "missing");
    let ranged = OrdinaryUser::with(Ids::Range);
    let told = ranged.cove(["doctor"]).finish().expect_success().stdout;
    assert!(told.contains("65,536 ids"), "{told}");
}

/// The whole battery; each verdict as with root.
#[test]
fn cannot_get_out_either() {
    for ids in [Ids::Single, Ids::Range] {
        let user = OrdinaryUser::with(ids);
        let finished = user.cove(["redteam", "--json", "engine"]).within(Duration::from_secs(180)).finish();
        let told: Vec<Value> =
            serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
        let lost: Vec<&Value> = told.iter().filter(|finding| finding["verdict"] == "not held").collect();
        assert!(lost.is_empty(), "{ids:?}: {lost:?}");
        assert_eq!((told.len(), finished.code), (cove_probe::all().count(), 0));
    }
}

#[test]
fn a_server_keeps_its_sandboxes_over_stop_start_and_its_own_death() {
    let mut server = ordinary::serve();
    let made = server.request("POST", "/api/sandboxes", Some(&json!({"name": "box"}))).expect_status(201).json();
    assert_eq!(made["unheld"], json!(["cpus", "memory", "disk"]));
    let top = server.cove(["top", "--once"]).finish().expect_success().stdout;
    assert!(top.contains(" -  "), "what nobody counts is not shown as nothing: {top}");
    let say = |server: &cove_testkit::TestServer, script: &str| {
        server.cove(["exec", "box", "--", "sh", "-c", script]).finish().expect_success().stdout
    };
    assert_eq!(say(&server, "id -un; echo kept > ~/file; (sleep 300 &) ; echo $(pgrep -c sleep)"), "user\n1\n");
    server.restart();
    assert_eq!(say(&server, "cat ~/file; pgrep -c sleep"), "kept\n1\n", "the same processes");
    server.cove(["stop", "box"]).finish().expect_success();
    server.cove(["start", "box"]).finish().expect_success();
    assert_eq!(say(&server, "cat ~/file; pgrep -c sleep || true"), "kept\n0\n", "the same files");
    server.restart();
    server.cove(["rm", "box"]).finish().expect_success();
    let mode = server.data().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Its files come back without the disk limit that cannot be held here, as they were made without.
#[test]
fn an_archived_sandbox_comes_back() {
    let user = OrdinaryUser::with(Ids::Range);
    for server in [ordinary::serve(), user.serve()] {
        server.cove(["create", "--name", "box"]).finish().expect_success();
        let script = "echo kept > note; mkdir -p deep/er; ln -s note link; chmod 600 note";
        server.cove(["exec", "box", "--", "sh", "-c", script]).finish().expect_success();
        server.cove(["stop", "box"]).finish().expect_success();
        server.cove(["archive", "box"]).finish().expect_success();
        let state = || server.request("GET", "/api/sandboxes/box", None).json()["state"].clone();
        until_some("it is archived", LIMIT, || (state() == "archived").then_some(()));
        server.cove(["start", "box"]).finish().expect_success();
        let found = server.cove(["exec", "box", "--", "sh", "-c", "cat link; stat -c %a note; ls deep"]).finish();
        assert_eq!(found.expect_success().stdout, "kept\n600\ner\n");
        server.cove(["rm", "box"]).finish().expect_success();
    }
}

#[test]
fn a_running_sandbox_has_its_network_again_when_the_server_comes_back() {
    let mut server = ordinary::serve();
    let asked = json!({"name": "box", "network": {"access": "open"}});
    server.request("POST", "/api/sandboxes", Some(&asked)).expect_status(201);
    // The proxy's listener inside accepts the connection and resets it, because the policy refuses it; without a
    // listener the kernel refuses.
    let dial = "import socket\ntry: socket.create_connection(('169.254.169.254', 80), 10)\n\
        except ConnectionResetError: pass\nprint('taken')";
    let said = |server: &cove_testkit::TestServer| server.cove(["exec", "box", "--", "python3", "-c", dial]).finish();
    assert_eq!(said(&server).expect_success().stdout, "taken\n");
    for _ in 0..2 {
        server.restart();
        assert_eq!(said(&server).expect_success().stdout, "taken\n");
    }
    server.cove(["rm", "box"]).finish().expect_success();
}

#[test]
fn a_server_refuses_what_it_cannot_hold() {
    let server = ordinary::serve();
    for (limit, value) in [("memory", json!(256 << 20)), ("cpus", json!(0.5)), ("disk", json!(1 << 30))] {
        let answer = server.request("POST", "/api/sandboxes", Some(&json!({"limits": {limit: value}})));
        let told = answer.expect_status(400).text();
        assert!(told.contains(&format!("limits.{limit} cannot be held")), "{told}");
    }
    // A person reads the remedy on a line of its own, and whose machine is meant.
    let refused = server.cove(["create", "--memory", "512M"]).finish().expect_code(1);
    assert!(!refused.stderr.lines().next().unwrap_or_default().contains("hint"), "{}", refused.stderr);
    assert!(refused.stderr.contains("\nhint: on the server's machine: "), "{}", refused.stderr);
    // Nothing can be frozen here: who asks for a pause hears what happens instead.
    let paused = server.cove(["create", "--name", "sleeper", "--at-idle", "pause"]).finish().expect_success();
    assert!(paused.stderr.contains("cannot pause here: the sandbox is stopped instead"), "{}", paused.stderr);
    let set = server.cove(["timers", "sleeper", "--at-idle", "pause"]).finish().expect_success();
    assert!(set.stderr.contains("cannot pause here"), "{}", set.stderr);
    let asked = json!({"name": "box", "limits": {"pids": 30}});
    server.request("POST", "/api/sandboxes", Some(&asked)).expect_status(201);
    let script = "for i in $(seq 60); do sleep 30 & done";
    assert_ne!(server.cove(["exec", "box", "--", "sh", "-c", script]).finish().code, 0, "30 processes hold");
    let finished = server.cove(["pause", "box"]).finish();
    assert!(finished.code != 0 && finished.stderr.contains("cannot pause"), "{}", finished.stderr);
    let changed = server.request("PATCH", "/api/sandboxes/box/limits", Some(&json!({"memory": 1 << 30})));
    assert!(changed.expect_status(400).text().contains("limits.memory cannot be held"));
    // What is shown is what holds.
    let providers = server.request("GET", "/api/providers", None).expect_status(200).json();
    assert_eq!(providers[0]["resize"], false, "{providers}");
    let changed = server.request("PATCH", "/api/sandboxes/box/limits", Some(&json!({"pids": 60})));
    assert!(changed.expect_status(400).text().contains("cannot resize a running sandbox"));
    server.cove(["stop", "box"]).finish().expect_success();
    server.request("PATCH", "/api/sandboxes/box/limits", Some(&json!({"pids": 60}))).expect_status(200);
}

/// Nothing can be frozen here: processes are stopped for a moment, and go on.
#[test]
fn templates_snapshots_forks_and_volumes_are_made_without_root() {
    let user = OrdinaryUser::with(Ids::Range);
    for (server, ids) in [(ordinary::serve(), Ids::Single), (user.serve(), Ids::Range)] {
        let told = |arguments: &[&str]| server.cove(arguments.iter().copied()).finish().expect_success();
        let inside = |sandbox: &str, line: &str| told(&["exec", sandbox, "--", "sh", "-c", line]).stdout;
        let template = match ids {
            Ids::Single => "base",
            // Steps are root's, who is another than the user of the sandbox.
            Ids::Range => {
                told(&["template", "build", "tools", "--from", "base", "--run", "echo made > /etc/made"]);
                told(&["template", "build", "more", "--from", "tools", "--run", "id -u > /etc/who"]);
                "more"
            }
        };
        told(&["create", "--name", "box", "--template", template, "--checkpoints", "3"]);
        if ids == Ids::Range {
            assert_eq!(inside("box", "cat /etc/made /etc/who"), "made\n0\n");
        }
        // What runs meanwhile goes on.
        inside("box", "echo one > ~/state; (sleep 300 > /dev/null 2>&1 &)");
        told(&["snapshot", "create", "box", "--name", "before"]);
        assert_eq!(inside("box", "echo two > ~/state; cut -d' ' -f3 /proc/$(pgrep -o sleep)/stat"), "S\n");
        told(&["fork", "box", "--name", "copy"]);
        assert_eq!(inside("copy", "cat ~/state"), "two\n");
        told(&["create", "--name", "again", "--template", "before"]);
        assert_eq!(inside("again", "cat ~/state"), "one\n");

        let refused = server.cove(["volume", "create", "data", "--size", "1G"]).finish().expect_code(1);
        assert!(refused.stderr.contains("size cannot be held"), "{}", refused.stderr);
        let made = told(&["volume", "create", "data"]);
        assert!(made.stderr.contains("nothing limits it"), "{}", made.stderr);
        assert!(told(&["volume", "show", "data"]).stdout.contains("without a limit"));
        assert!(told(&["volume", "ls"]).stdout.contains("no limit"));
        for name in ["writer", "reader"] {
            told(&["create", "--name", name, "--volume", "data:/data"]);
        }
        inside("writer", "echo shared > /data/file");
        assert_eq!(inside("reader", "cat /data/file"), "shared\n");
        told(&["rm", "box", "copy", "again", "writer", "reader"]);
        told(&["volume", "rm", "data"]);
    }
}

/// A measurement takes part as far as an ordinary user's rights go, says what does not, and leaves nothing.
#[test]
fn a_measurement_ends_well_and_leaves_nothing() {
    for (ids, suites) in [(Ids::Single, "restart"), (Ids::Range, "cold,restart,pause")] {
        let user = OrdinaryUser::with(ids);
        let temporary = user.folder("tmp");
        let finished = user
            .cove(["bench", "--quick", "--only", suites, "--alive", "2", "--json", "-"])
            .env("TMPDIR", &temporary)
            .within(Duration::from_secs(240))
            .finish()
            .expect_success();
        let report: Value = serde_json::from_str(&finished.stdout).unwrap();
        assert!(report["machine"]["user"].as_str().unwrap().contains("without limits on"), "{}", report["machine"]);
        let suite =
            |name: &str| report["suites"].as_array().unwrap().iter().find(|suite| suite["name"] == name).unwrap();
        let rows = |name: &str| -> Vec<&str> {
            suite(name)["rows"].as_array().unwrap().iter().map(|row| row["who"].as_str().unwrap()).collect()
        };
        assert!(rows("restart").contains(&"sandboxes found"), "{report}");
        if ids == Ids::Range {
            for who in ["cove run", "cove engine, in process", "cove over HTTP", "cove over HTTP, pool", "bubblewrap"] {
                assert!(rows("cold").contains(&who), "{who}: {}", suite("cold"));
            }
            let absent = suite("pause")["absent"].to_string();
            assert!(absent.contains("without root a server needs a delegated control group"), "{absent}");
        }
        assert_eq!(user.files(&temporary), Vec::<std::path::PathBuf>::new());
        assert_eq!(user.files(&user.place.path().join("home")), Vec::<std::path::PathBuf>::new());
        until_some("the end of its processes", LIMIT, || user.processes().is_empty().then_some(()));
    }
}

#[test]
fn an_interrupted_measurement_leaves_nothing_either() {
    let user = OrdinaryUser::with(Ids::Range);
    let temporary = user.folder("tmp");
    // While it starts, and with sandboxes alive.
    for sandboxes in [0, 3] {
        let bench = user.cove(["bench", "--quick", "--only", "density", "--alive", "5000"]);
        let mut running = bench.env("TMPDIR", &temporary).within(Duration::from_secs(120)).spawn();
        until_some("the server's directory", LIMIT, || {
            let mut entries = std::fs::read_dir(&temporary).ok()?.flatten();
            let measured = entries.find(|entry| entry.file_name().to_string_lossy().starts_with("cove-measure-"))?;
            let made = std::fs::read_dir(measured.path().join("data/sandboxes")).map_or(0, Iterator::count);
            (made >= sandboxes).then_some(())
        });
        running.signal(rustix::process::Signal::INT);
        let finished = running.finish().expect_code(130);
        assert!(finished.stderr.contains("interrupted; everything was removed"), "{}", finished.stderr);
        assert_eq!(user.files(&temporary), Vec::<std::path::PathBuf>::new());
        until_some("the end of its processes", LIMIT, || user.processes().is_empty().then_some(()));
    }
}
