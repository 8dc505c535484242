//! What `cove run` can be asked, and how its values are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use cove_engine::Limit;
use cove_engine::spec::{Access, Egress, Mount, Network, Target, Verdict};

use crate::complaint::Complaint;
use crate::quantity::{parse_cpus, parse_duration, parse_size};
use crate::reachable::Reachable;

/// Run a command in a fresh sandbox that is gone again when the command ends
///
/// The command sees the host's /usr read-only, files of its own everywhere else, and nobody else's processes. It has no
/// network unless --network or --allow gives it one. Its exit
/// code is the exit code of `cove run`; 124 means that --timeout had passed, 125 that the sandbox could not be made,
/// 126 and 127 that the program cannot be run or is not there, 128 + N that signal N ended it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove run -- python3 -c 'print(6*7)'
  cove run -it -- bash
  cove run --memory 256M --timeout 30s --mount ./data:/data -- sh /data/job.sh
  cove run --allow example.com:443 -- curl -s https://example.com
  cove run --json -- uname -a")]
pub struct Arguments {
    /// Let the command read the keyboard. A pipe or a file on standard input is always passed on
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal: resizing, Ctrl-C, job control, full-screen programs
    #[arg(short, long)]
    pub tty: bool,

    /// Set a variable; NAME alone takes its value from here
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub env: Vec<String>,
    /// Set the variables of a file: NAME=VALUE on each line, # begins a comment
    #[arg(long, value_name = "FILE")]
    pub env_file: Vec<PathBuf>,
    /// Start in this directory, which is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// Run as this user: `user` (the default), `root`, a number, or NUMBER:NUMBER with a group
    #[arg(short, long, value_name = "USER")]
    pub user: Option<String>,
    /// The sandbox's host name
    #[arg(long, value_name = "NAME", value_parser = parse_hostname)]
    pub name: Option<String>,
    /// What the sandbox starts from
    #[arg(long, value_name = "NAME", default_value = "base")]
    pub template: String,

    /// Processors; 0.5 is half of one [default: 1]
    #[arg(long, value_name = "N", value_parser = parse_cpus, help_heading = "Limits")]
    pub cpus: Option<f64>,
    /// Memory, files that the command writes included unless --disk is given [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub memory: Option<u64>,
    /// Keep written files on disk instead of in memory, at most this much (in memory all the same for an ordinary user)
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Limits")]
    pub disk: Option<u64>,
    /// Processes and threads
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..), default_value = "512", help_heading = "Limits")]
    pub pids: u32,
    /// End the command after this time, with exit code 124
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    pub timeout: Option<Duration>,

    /// Who can be reached: nobody, or the internet (private addresses and the host stay out of reach)
    #[arg(long, value_name = "KIND", value_enum, help_heading = "Borders")]
    pub network: Option<NetworkKind>,
    /// Let this be reached; without --network full, nobody else. A name counts as the addresses it has now
    #[arg(long, value_name = "HOST|CIDR[:PORT]", help_heading = "Borders")]
    pub allow: Vec<String>,
    /// Show a host folder or file inside, read-only unless `:rw`
    #[arg(long, short = 'v', value_name = "HOST:INSIDE[:ro|rw]", value_parser = parse_mount, help_heading = "Borders")]
    pub mount: Vec<Mount>,

    /// Print what came of it as JSON, instead of its output as it comes
    #[arg(long, conflicts_with = "tty")]
    pub json: bool,

    /// Keep what is needed in this directory [default: in memory, below /run or /dev/shm, or below your home]
    #[arg(long, value_name = "DIR", hide = true)]
    pub data: Option<PathBuf>,

    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum NetworkKind {
    /// Loopback only (the default)
    None,
    /// TCP and DNS to public addresses
    Full,
}

impl Arguments {
    /// Limits that nobody asked for.
    pub fn waived(&self) -> Vec<Limit> {
        let (cpus, memory, disk) = (self.cpus.is_some(), self.memory.is_some(), self.disk.is_some());
        let given = [(Limit::Cpus, cpus), (Limit::Memory, memory), (Limit::Disk, disk)];
        given.into_iter().filter(|(_, given)| !given).map(|(limit, _)| limit).collect()
    }

    pub fn network(&self, reachable: &Reachable) -> Result<Network, Complaint> {
        let allow = reachable.targets.clone();
        match (self.network, allow.is_empty()) {
            (None, true) | (Some(NetworkKind::None), true) => Ok(Network::None),
            (Some(NetworkKind::None), false) => {
                Err(Complaint::usage("--allow needs a network, and --network none has none")
                    .hint("leave out --network: only what --allow names can be reached then"))
            }
            (Some(NetworkKind::Full), _) => Ok(Network::Full(Egress { allow, ..Egress::default() })),
            (None, false) => Ok(Network::Full(Egress { allow, otherwise: Verdict::Deny, ..Egress::default() })),
        }
    }

    /// Files first, then `--env`, so that the command line wins.
    pub fn environment(&self) -> Result<BTreeMap<String, String>, Complaint> {
        let mut env = BTreeMap::new();
        for file in &self.env_file {
            let text = std::fs::read_to_string(file)
                .map_err(|error| Complaint::usage(format!("read --env-file {}: {error}", file.display())))?;
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                set_variable(&mut env, line).map_err(|why| {
                    Complaint::usage(format!("{}:{}: {why}", file.display(), number + 1))
                        .hint("each line is NAME=VALUE, or NAME to take the value from here")
                })?;
            }
        }
        for variable in &self.env {
            set_variable(&mut env, variable)
                .map_err(|why| Complaint::usage(format!("--env: {why}")).hint("write --env NAME=VALUE"))?;
        }
        Ok(env)
    }
}

/// Whether a variable can have this name: what no shell can read is a mistake.
pub fn is_variable(name: &str) -> bool {
    let first_fits = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first_fits && !name.bytes().any(|b| b == b'\0' || b.is_ascii_whitespace())
}

fn set_variable(env: &mut BTreeMap<String, String>, text: &str) -> Result<(), String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var(text).ok()),
    };
    if !is_variable(name) {
        return Err(format!("`{name}` is no name of a variable"));
    }
    // A variable that is not set here stays unset inside, as with env(1).
    if let Some(value) = value {
        if value.contains('\0') {
            return Err(format!("the value of {name} holds a zero byte"));
        }
        env.insert(name.to_owned(), value);
    }
    Ok(())
}

fn parse_hostname(text: &str) -> Result<String, String> {
    let label = |part: &str| {
        (1..=63).contains(&part.len())
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    // HOST_NAME_MAX of Linux.
    if text.len() <= 64 && text.split('.').all(label) {
        Ok(text.to_owned())
    } else {
        Err("a host name is letters, digits and `-`, at most 64 of them".into())
    }
}

/// As everywhere; a name gets a sentence of its own, since people try one first.
pub fn parse_target(text: &str) -> Result<Target, String> {
    const EXAMPLE: &str = "write an address with its prefix and port, for example 10.0.0.0/8 or 10.1.2.3:5432";
    if text.bytes().any(|b| b.is_ascii_alphabetic()) && text.matches(':').count() < 2 {
        return Err(format!("that is a name, and only addresses can be allowed here; {EXAMPLE}"));
    }
    text.parse::<Target>().map_err(|error| error.to_string())
}

/// `./data:/data:ro`. The source is made absolute here, where the person stands.
pub fn parse_mount(text: &str) -> Result<Mount, String> {
    const EXAMPLE: &str = "write HOST:INSIDE, for example ./data:/data or ./out:/out:rw";
    let (paths, access) = match text.rsplit_once(':') {
        Some((paths, "ro")) => (paths, Access::ReadOnly),
        Some((paths, "rw")) => (paths, Access::ReadWrite),
        _ => (text, Access::ReadOnly),
    };
    let (source, target) = paths.split_once(':').ok_or(EXAMPLE)?;
    if source.is_empty() || target.is_empty() {
        return Err(EXAMPLE.into());
    }
    if let Some((_, mode)) = target.split_once(':') {
        return Err(format!("`{mode}` is no way to mount; write `ro` or `rw`"));
    }
    let target = PathBuf::from(target);
    if !target.is_absolute() || target.components().any(|part| part.as_os_str() == "..") || target == Path::new("/") {
        return Err("the place inside must be an absolute path, not / itself, without `..`".into());
    }
    let source = std::fs::canonicalize(source).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("there is no `{source}` on this machine; {EXAMPLE}"),
        _ => format!("`{source}` on this machine: {error}"),
    })?;
    Ok(Mount { source: source.into(), target, access })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_names_a_folder_that_is_there_and_a_place_inside() {
        let mount = parse_mount("/usr:/data:rw").unwrap();
        assert_eq!((mount.target, mount.access), (PathBuf::from("/data"), Access::ReadWrite));
        assert_eq!(parse_mount("/usr:/data").unwrap().access, Access::ReadOnly);
        for text in
            ["", "/usr", "/usr:", ":/data", "/usr:data", "/usr:/", "/usr:/a/../b", "/usr:/data:rx", "/nowhere:/x"]
        {
            assert!(parse_mount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_variable_without_a_value_is_taken_from_here() {
        let mut env = BTreeMap::new();
        set_variable(&mut env, "A=b=c").unwrap();
        set_variable(&mut env, "COVE_TEST_SURELY_UNSET").unwrap();
        assert_eq!(env, BTreeMap::from([("A".into(), "b=c".into())]));
        for text in ["=x", "1A=x", "A B=x", ""] {
            assert!(set_variable(&mut env, text).is_err(), "{text}");
        }
    }
}
