//! Every example that people can copy runs: those of README.md and docs/, and those of `--help`.
//!
//! A fenced block without a language, or with `sh` or `bash`, is run by bash, all blocks of a document one after the other, in
//! a folder that has what they name, against a real server. `toml` is checked as a configuration. A block that cannot run
//! here says why in the line before it: `<!-- not run: REASON -->`. Drawings are `text`.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cove_testkit::TestServer;
use cove_testkit::program::Cove;
use cove_testkit::server::TestDirectory;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

struct Block {
    line: usize,
    language: String,
    not_run: Option<String>,
    text: String,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut open, mut before) = (false, "");
    for (number, line) in document.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if open => open = false,
            Some(language) => {
                open = true;
                let reason = before.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                blocks.push(Block {
                    line: number + 1,
                    language: language.trim().to_owned(),
                    not_run: reason.map(str::to_owned),
                    text: String::new(),
                });
            }
            None if open => {
                if let Some(block) = blocks.last_mut() {
                    let _ = writeln!(block.text, "{line}");
                }
            }
            None => {}
        }
        if !line.trim().is_empty() {
            before = line.trim();
        }
    }
    blocks
}

/// README.md and everything below docs/, except the records of decisions, which describe their own time.
fn documents() -> Vec<PathBuf> {
    let mut found = vec![Path::new(ROOT).join("README.md")];
    let mut folders = vec![Path::new(ROOT).join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            match path.extension() {
                _ if path.is_dir() && !path.ends_with("adr") => folders.push(path),
                Some(extension) if extension == "md" => found.push(path),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// What the examples name.
fn prepare(server: &TestServer) -> PathBuf {
    let folder = server.data().with_file_name("examples");
    for part in ["data", "project", "bin"] {
        fs::create_dir_all(folder.join(part)).unwrap();
    }
    let program = |path: &str, text: &str| {
        fs::write(folder.join(path), text).unwrap();
        fs::set_permissions(folder.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("job", "#!/bin/sh\necho done\n");
    program("data/job.sh", "#!/bin/sh\necho done\n");
    fs::write(folder.join("report.csv"), "a,b\n1,2\n").unwrap();
    fs::write(folder.join("project/main.py"), "print(6 * 7)\n").unwrap();
    fs::write(folder.join("cove.toml"), "listen = \"127.0.0.1:7070\"\n").unwrap();
    std::os::unix::fs::symlink(cove_testkit::program::cove_path(), folder.join("bin/cove")).ok();
    folder
}

/// Lines that need a terminal get one, with a person who leaves at once.
fn with_terminal(line: &str) -> String {
    let command = line.split("  #").next().unwrap_or_default().trim_end();
    if command.starts_with("cove ") && (command.contains(" -it ") || command.starts_with("cove shell ")) {
        return format!("(sleep 1; echo 'exit 0') | script -qefc {} /dev/null", quoted(command));
    }
    line.to_owned()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Runs a script in the folder; its last mark names the example that failed.
fn run(server: &TestServer, folder: &Path, script: &str) {
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let finished = Cove::by(["bash", "-e", "-o", "pipefail", "-c", script], &server.data().with_file_name("own"))
        .env("PATH", path)
        .env("HOME", folder)
        .env("COVE_URL", server.url())
        .env("COVE_API_KEY", server.key())
        .current_dir(folder)
        .within(Duration::from_secs(180))
        .finish();
    let last = finished.stderr.rsplit("@@ ").next().unwrap_or_default().to_owned();
    assert_eq!(finished.code, 0, "the example failed at {last}\n--- stdout\n{}", finished.stdout);
}

#[test]
fn every_example_of_the_documents_runs() {
    let server = TestServer::start();
    let folder = prepare(&server);
    for document in documents() {
        let name = document.strip_prefix(ROOT).unwrap_or(&document).display().to_string();
        let mut script = String::new();
        for block in blocks(&fs::read_to_string(&document).unwrap()) {
            if let Some(reason) = &block.not_run {
                assert!(reason.len() > 8, "{name}:{}: say why it is not run", block.line);
                continue;
            }
            match block.language.as_str() {
                "" | "sh" | "bash" => {
                    let _ = writeln!(script, "echo '@@ {name}:{}' >&2", block.line);
                    block.text.lines().for_each(|line| {
                        let _ = writeln!(script, "{}", with_terminal(line));
                    });
                }
                "toml" => {
                    let file = folder.join("from-the-document.toml");
                    fs::write(&file, &block.text).unwrap();
                    let checked = server.cove(["config", "check", file.to_str().unwrap()]).finish();
                    assert_eq!(checked.code, 0, "{name}:{}: {}", block.line, checked.stderr);
                }
                "json" => {
                    let read = serde_json::from_str::<serde_json::Value>(&block.text);
                    assert!(read.is_ok(), "{name}:{}: {read:?}", block.line);
                }
                // Shown, or run by the suites of the SDKs.
                "text" | "python" | "rust" | "yaml" | "ini" | "nginx" => {}
                other => panic!("{name}:{}: what is a block of `{other}`?", block.line),
            }
        }
        run(&server, &folder, &script);
        run(&server, &folder, "ids=$(cove ls -q); [ -z \"$ids\" ] || cove rm $ids >/dev/null");
    }
}

/// Verbs whose examples do not run here, and why.
const NOT_RUN: [(&str, &str); 11] = [
    ("setup", "writes the configuration of this machine; its own tests run it"),
    ("up", "starts a server that stays; its own tests run it"),
    ("down", "ends the server of this machine; its own tests run it"),
    ("status", "fails where no server is up; its own tests run it"),
    ("migrate", "needs a second server; its own tests run it"),
    ("bench", "takes minutes; its own tests run it"),
    ("loadtest", "takes minutes; its own tests run it"),
    ("redteam", "its own tests run every probe"),
    ("serve", "does not end; every test starts one"),
    ("reset", "asks, and removes all that this user keeps; its own tests run it"),
    ("recover", "needs a sandbox that failed"),
];

/// Parts of lines that cannot run here.
const NEEDS: [(&str, &str); 8] = [
    ("https://example.com/acme", "the internet"),
    (" ID", "stands for an id"),
    ("example.com:443", "the internet"),
    ("template build code-interpreter", "the package index"),
    ("--image ", "a registry"),
    ("registry.example/", "a registry"),
    ("completions zsh", "zsh"),
    ("completions fish", "fish"),
];

/// What a verb's examples find before them, besides a sandbox `box` that runs.
fn before(verb: &str) -> &'static str {
    match verb {
        "create" => "cove rm box",
        "resume" => "cove pause box",
        "start" => "cove stop box",
        "network" => "cove rm box; cove create --name box --network full",
        "ls" => "cove label box project=demo",
        "cp" => "cove exec box -- sh -c 'echo {} > /tmp/result.json; echo an error > /tmp/log'",
        _ => "true",
    }
}

#[test]
fn every_example_of_the_help_runs() {
    let server = TestServer::start();
    let folder = prepare(&server);
    let place = TestDirectory::new();
    let listed = place.cove(["help"]).finish().expect_success().stdout;
    let verbs: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with([' ', 'c'])))
        .chain(listed.lines().filter_map(|line| line.strip_prefix("  c").map(|_| &line[2..])))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "cove")
        .collect();
    assert!(verbs.len() > 40, "{verbs:?}");
    for verb in verbs {
        if NOT_RUN.iter().any(|(other, _)| *other == verb) {
            continue;
        }
        let help = place.cove(["help", verb]).finish().expect_success().stdout;
        let examples = help.lines().skip_while(|line| !line.starts_with("Example")).skip(1);
        let examples: Vec<&str> = examples.take_while(|line| line.starts_with("  ")).map(str::trim).collect();
        assert!(!examples.is_empty(), "{verb} has no example:\n{help}");
        let mut script = String::from("ids=$(cove ls -q); [ -z \"$ids\" ] || cove rm $ids; cove create --name box\n");
        let _ = writeln!(script, "{}", before(verb));
        for line in examples {
            if NEEDS.iter().any(|(part, _)| line.contains(part)) {
                continue;
            }
            let _ = writeln!(
                script,
                "echo {} >&2\n{}",
                quoted(&format!("@@ cove help {verb}: {line}")),
                with_terminal(line)
            );
        }
        run(&server, &folder, &script);
    }
}
