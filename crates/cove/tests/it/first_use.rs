//! What a new user sees.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;

use cove_testkit::TestServer;
use cove_testkit::server::TestDirectory;
use rustix::process::Signal;

#[test]
fn help_of_a_verb_is_asked_for_in_both_ways() {
    let place = TestDirectory::new();
    let all = place.cove(["help"]).finish().expect_success().stdout;
    for word in ["Without a server:", "Their settings:", "Start here:", "cove help VERB", "130"] {
        assert!(all.contains(word), "{word}: {all}");
    }
    let one = place.cove(["help", "run"]).finish().expect_success().stdout;
    assert_eq!(one, place.cove(["run", "--help"]).finish().expect_success().stdout);
    let wrong = place.cove(["help", "lst"]).finish().expect_code(2);
    assert!(wrong.stderr.contains("hint: "), "{}", wrong.stderr);
}

#[test]
fn a_second_server_on_a_directory_says_who_has_it_and_nothing_else() {
    let server = TestServer::start();
    let data = server.data();
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let second = server.cove(arguments).env_remove("COVE_URL").finish().expect_code(1);
    assert_eq!(second.stdout, "", "no banner of a server that does not serve");
    assert!(second.stderr.contains(&format!("process {}", server.pid())), "{}", second.stderr);
    assert!(second.stderr.contains("hint: "), "{}", second.stderr);
}

/// Such a server could start, and then no sandbox could.
#[test]
fn a_server_whose_files_cannot_be_shown_with_other_ids_does_not_start_and_says_why() {
    if !cove_testkit::need::root() {
        return;
    }
    let place = TestDirectory::new();
    let data = place.data();
    // An overlay, as the root of a container is, in a mount namespace that ends with the program.
    let script = "mkdir -p \"$1\"; mount -t tmpfs tmpfs /mnt; mkdir /mnt/lower /mnt/upper /mnt/work
        mount -t overlay overlay -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work \"$1\"
        shift; exec \"$@\"";
    let mut words = ["unshare", "--mount", "sh", "-ec", script, "sh"].map(std::ffi::OsString::from).to_vec();
    words.push(data.clone().into());
    words.push(cove_testkit::program::cove_path().into());
    let cove = |arguments: &[&str]| cove_testkit::Cove::by(&words, &data).args(arguments).finish();

    let refused = cove(&["serve", "--listen", "127.0.0.1:0"]).expect_code(1);
    assert_eq!(refused.stdout, "", "no banner of a server that does not serve");
    assert!(refused.stderr.contains("filesystem without id-mapped mounts"), "{}", refused.stderr);
    assert!(refused.stderr.contains("\nhint: `cove doctor`"), "{}", refused.stderr);
    let doctor = cove(&["doctor"]).expect_code(1);
    let is_missing = |line: &str| line.starts_with("idmapped data directory") && line.contains("MISSING");
    assert!(doctor.stdout.lines().any(is_missing), "{}", doctor.stdout);
    let run = cove(&["run", "--", "true"]).expect_code(125);
    assert!(run.stderr.contains("filesystem without id-mapped mounts"), "{}", run.stderr);
}

/// The server's log until it says that it is ready, started with an address of its own choosing.
fn log_of_a_server_on(address: &str) -> String {
    let place = TestDirectory::new();
    let data = place.data();
    let arguments = ["serve", "--listen", address, "--data", data.to_str().unwrap()];
    let mut server = place.cove(arguments).env("COVE_API_KEY", cove_testkit::server::KEY).spawn();
    let mut log = String::new();
    for line in BufReader::new(server.child.stderr.take().unwrap()).lines() {
        log.push_str(&line.unwrap());
        if log.contains("reconciled") {
            break;
        }
    }
    server.signal(Signal::TERM);
    server.finish().expect_success();
    log
}

#[test]
fn a_server_that_strangers_can_reach_says_so() {
    let open = log_of_a_server_on("0.0.0.0:0");
    assert!(open.contains("can be reached from other machines without TLS"), "{open}");
    let own = log_of_a_server_on("127.0.0.1:0");
    assert!(!own.contains("without TLS"), "{own}");
}

/// With the data directory alone, whatever port it listens on.
#[test]
fn the_verbs_find_the_server_of_their_data_directory() {
    let mut server = TestServer::start();
    let (data, address, key) = (server.data(), server.address().to_owned(), server.key());
    let cove = |verb: &str| cove_testkit::Cove::new(&data).env("COVE_API_KEY", key).args([verb]).finish();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    assert!(cove("ls").expect_success().stdout.contains("box"));
    server.kill();
    let lost = cove("ls").expect_code(1);
    assert!(lost.stderr.contains(&format!("no server answers at http://{address}")), "{}", lost.stderr);
    server.restart();
    cove("ls").expect_success();
}

#[test]
fn the_root_of_the_server_is_a_page_for_people() {
    let server = TestServer::start();
    let page = cove_testkit::http::request(server.address(), "GET", "/", &[], None).unwrap();
    assert_eq!(page.status, 200);
    let text = page.text();
    assert!(text.contains(&format!("COVE_URL={}", server.url())) && text.contains("/api/docs"), "{text}");
    assert!(!text.contains(server.key()), "a key is nobody's to see");
}

/// The same codes of `run` and `exec`, on every way to a command.
#[test]
fn exit_codes_are_the_same_everywhere() {
    let server = TestServer::start();
    server.cove(["create", "--name", "box"]).finish().expect_success();
    let folder = server.data().with_file_name("programs");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("plain"), "no program").unwrap();
    std::fs::set_permissions(folder.join("plain"), std::fs::Permissions::from_mode(0o644)).unwrap();
    server.cove(["cp", folder.join("plain").to_str().unwrap(), "box:/tmp/plain"]).finish().expect_success();
    let mount = format!("{}:/mnt", folder.display());
    for (code, inside, outside) in [(127, "/nothing", "/nothing"), (126, "/tmp/plain", "/mnt/plain")] {
        for ways in [&["exec", "box", "--"][..], &["exec", "--json", "box", "--"], &["exec", "-d", "box", "--"]] {
            let ended = server.cove(ways.iter().copied().chain([inside])).finish();
            assert_eq!(ended.code, code, "{ways:?} {inside}: {ended:?}");
        }
        for ways in [&["run", "--mount", &mount, "--"][..], &["run", "--json", "--mount", &mount, "--"]] {
            let ended = server.cove(ways.iter().copied().chain([outside])).finish();
            assert_eq!(ended.code, code, "{ways:?} {outside}: {ended:?}");
        }
    }
    server.cove(["exec", "--timeout", "200ms", "box", "--", "sleep", "60"]).finish().expect_code(124);
    server.cove(["run", "--timeout", "200ms", "--", "sleep", "60"]).finish().expect_code(124);
    // Ctrl-C, once the command runs.
    let command = ["--", "sh", "-c", "echo begun; exec sleep 60"];
    for way in [&["exec", "box"][..], &["run"]] {
        let mut waiting = server.cove(way.iter().copied().chain(command)).spawn();
        let mut begun = [0; 6];
        waiting.child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        waiting.signal(Signal::INT);
        assert_eq!(waiting.finish().code, 130, "{way:?}");
    }
}

#[test]
fn a_run_is_told_as_one_object() {
    let place = TestDirectory::new();
    let told =
        place.cove(["run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 4"]).finish().expect_code(4);
    let told: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    let wanted = serde_json::json!({ "exit_code": 4, "stdout": "out\n", "stderr": "err\n", "timed_out": false });
    for (field, value) in wanted.as_object().unwrap() {
        assert_eq!(&told[field], value, "{field} of {told}");
    }
}

/// The shell asks this program, which asks the server.
#[test]
fn a_shell_offers_sandboxes_verbs_and_flags() {
    let server = TestServer::start();
    server.cove(["create", "--name", "mybox"]).finish().expect_success();
    let script = server.cove(["completions", "bash"]).finish().expect_success().stdout;
    assert!(script.contains("COMPLETE") && script.contains("complete"), "{script}");
    let offered = |words: &[&str]| {
        let index = (words.len()).to_string();
        let asked = server
            .cove(["--", "cove"].into_iter().chain(words.iter().copied()))
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", &index)
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false")
            .env("_CLAP_IFS", "\n");
        asked.finish().expect_success().stdout
    };
    assert!(offered(&["exec", "my"]).contains("mybox"));
    assert!(offered(&["cp", "my"]).contains("mybox:"));
    assert!(offered(&["res"]).contains("resize"));
    assert!(offered(&["resize", "mybox", "--mem"]).contains("--memory"));
    // Without a server it is silent.
    let alone = TestDirectory::new();
    let quiet = alone
        .cove(["--", "cove", "exec", ""])
        .env("COVE_URL", "http://127.0.0.1:1")
        .env("COMPLETE", "bash")
        .env("_CLAP_COMPLETE_INDEX", "2")
        .env("_CLAP_IFS", "\n")
        .finish()
        .expect_success();
    assert!(!quiet.stdout.contains("error") && quiet.stderr.is_empty(), "{quiet:?}");
}
