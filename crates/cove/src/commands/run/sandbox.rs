//! What sandbox `cove run` makes of its flags.

use std::path::Path;

use cove_control::{provider, template};
use cove_engine::kernel::{self, TMPFS_ATTRIBUTES};
use cove_engine::privilege::Privilege;
use cove_engine::spec::{Durability, Limits, Root, Storage};
use cove_engine::{Engine, Error, SandboxId, Spec};

use super::Arguments;
use crate::complaint::Complaint;
use crate::place::{Files, is_root};
use crate::quantity::show_size;
use crate::reachable::Reachable;
use crate::render::{enumerated, say};

pub const DEFAULT_USER: &str = "user";

pub const DEFAULT_MEMORY: u64 = 1 << 30;

/// Set by those who know.
const QUIET: &str = "COVE_QUIET";

/// Less than this holds no guest and no command.
const LEAST_MEMORY: u64 = 8 << 20;

/// Less than this holds not even the sandbox's own directories.
const LEAST_DISK: u64 = 1 << 20;

/// A sandbox has 65,536 ids.
const LAST_ID: u64 = 65_535;

pub fn spec(arguments: &Arguments, reachable: &Reachable, root: Root) -> Result<Spec, Complaint> {
    check(arguments)?;
    let id = new_id()?;
    let storage = match files(arguments) {
        Files::OnDisk => Storage::Disk,
        Files::InMemory => Storage::Memory,
    };
    let memory = arguments.memory.unwrap_or(DEFAULT_MEMORY);
    Ok(Spec {
        hostname: arguments.name.clone().unwrap_or_else(|| id.to_string()),
        id,
        root,
        storage,
        durability: Durability::Volatile,
        limits: Limits {
            cpus: arguments.cpus.unwrap_or(1.0),
            memory,
            pids: arguments.pids,
            disk: Some(arguments.disk.unwrap_or(memory)),
            inodes: None,
        },
        network: arguments.network(reachable)?,
        mounts: arguments.mount.clone(),
        env: Default::default(),
        // Whose files the folders that are shown belong to.
        default_user: user(arguments).to_owned(),
        default_cwd: None,
    })
}

/// An ordinary user has no quotas: a limit holds in memory alone. Before Linux 6.6 files in memory are no full file system.
pub fn files(arguments: &Arguments) -> Files {
    if arguments.disk.is_some() && is_root() || !kernel::has(TMPFS_ATTRIBUTES) {
        Files::OnDisk
    } else {
        Files::InMemory
    }
}

/// Who the command runs as, without a group.
pub fn user(arguments: &Arguments) -> &str {
    let named = arguments.user.as_deref().unwrap_or(DEFAULT_USER);
    named.split_once(':').map_or(named, |(user, _)| user)
}

/// Once, and only where something differs from what root has.
pub fn tell_what_is_weaker(engine: &Engine, spec: &Spec) {
    let Privilege::User(_) = engine.privilege() else { return };
    let dropped: Vec<String> = engine.hold().unheld(spec.storage).map(|unheld| unheld.limit.to_string()).collect();
    if !dropped.is_empty() && std::env::var_os(QUIET).is_none() {
        say(&format!("cove: as an ordinary user without control groups: no limit on {}", enumerated(&dropped)));
        say(&format!("hint: `cove doctor` tells how to get one; {QUIET}=1 silences this"));
    }
}

/// What a template of the server on this machine starts from; `data` is where its templates are built.
pub fn root(data: &Path, name: &str) -> Result<provider::Root, Complaint> {
    // The usual one needs no file to be read.
    let base = template::base();
    if base.answers_to(name) {
        return Ok(base.image.root);
    }
    let Some(template) = template::built_in(data).into_iter().find(|template| template.answers_to(name)) else {
        return Err(Complaint::usage(format!("there is no template `{name}`"))
            .hint("`base` is there: this machine's /usr, with files of its own everywhere else"));
    };
    match &template.note {
        Some(note) if template.missing => {
            return Err(Complaint::usage(format!("template `{name}` is {note}"))
                .hint("the server of this machine builds it: `cove serve` starts one"));
        }
        Some(note) => say(&format!("hint: {name} is {note}")),
        None => {}
    }
    Ok(template.image.root)
}

/// What no kernel is needed to refuse.
fn check(arguments: &Arguments) -> Result<(), Complaint> {
    if let Some(memory) = arguments.memory.filter(|memory| *memory < LEAST_MEMORY) {
        let (asked, least) = (show_size(memory), show_size(LEAST_MEMORY));
        return Err(Complaint::usage(format!("--memory {asked} is too little for any command: at least {least}"))
            .hint("sizes without a unit are bytes; write 256M for 256 MiB"));
    }
    if let Some(disk) = arguments.disk.filter(|disk| *disk < LEAST_DISK) {
        let (asked, least) = (show_size(disk), show_size(LEAST_DISK));
        return Err(Complaint::usage(format!("--disk {asked} is too little for any command: at least {least}"))
            .hint("sizes without a unit are bytes; write 256M for 256 MiB"));
    }
    if let Some(id) = user(arguments).parse::<u64>().ok().filter(|id| *id > LAST_ID) {
        return Err(Complaint::usage(format!("--user {id}: ids inside go from 0 to {LAST_ID}"))
            .hint("`user` (1000) and `root` (0) have names"));
    }
    if let Some(path) = arguments.workdir.as_deref().filter(|path| !path.starts_with('/')) {
        return Err(Complaint::usage(format!("--workdir {path} is not an absolute path"))
            .hint(format!("inside, commands start in /home/user: write --workdir /home/user/{path}")));
    }
    Ok(())
}

pub fn new_id() -> Result<SandboxId, Complaint> {
    // 32 letters and digits that are not mistaken for each other: five bits of each byte.
    const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bytes = [0u8; SandboxId::LENGTH];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Complaint::engine(format!("make an id: {error}")))?;
    let text: String = bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect();
    Ok(text.parse().expect("letters and digits of the right number"))
}

/// The engine's error, with the way to learn more.
pub fn complaint(error: Error) -> Complaint {
    let complaint = Complaint::engine(error.to_string());
    if let Error::Unheld(unheld) = &error {
        return complaint.hint(unheld.remedy.clone());
    }
    if error.is_full() {
        return complaint.hint("make room on that disk, or keep files on another: COVE_DATA=DIR");
    }
    if is_root() {
        complaint.hint("`cove doctor` tells what this machine lacks")
    } else {
        complaint.hint("`cove doctor` tells what this machine lacks, and what needs root")
    }
}
