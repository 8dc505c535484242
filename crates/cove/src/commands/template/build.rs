//! `cove template build`: runs a recipe in a sandbox; its result becomes a layer.
//!
//! The recipe is ours, the packages are not: it runs with the same isolation as any sandbox. The result is checked and
//! gets neutral owners (`cove_engine::layer`) before it gets its name.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use cove_control::clock::Clock;
use cove_control::template::{Built, CODE_INTERPRETER, ROOM, layers_of};
use cove_engine::Spec;
use cove_engine::layer::{self, Sealed};
use cove_engine::spec::{Access, Durability, Egress, Limits, Mount, Network, Root, Storage, Target};
use cove_protocol::process::{Command, OnDisconnect, Spec as Process};

use crate::commands::run::{self, Outcome};
use crate::complaint::Complaint;
use crate::place::Place;
use crate::quantity::{show_duration, show_size};
use crate::render::{print, print_json, say};

const RECIPE: &str = include_str!("code-interpreter.sh");

/// The packages for cells. matplotlib 3.11 removed arguments that much code still uses (`boxplot(labels=…)`).
const SMALL: [&str; 7] = ["ipython", "numpy", "pandas", "matplotlib<3.11", "pillow", "requests", "jupyter-client"];

/// What people who come from E2B have there beside it.
const USUAL: [&str; 23] = [
    "scipy",
    "scikit-learn",
    "seaborn",
    "plotly",
    "sympy",
    "openpyxl",
    "xlrd",
    "python-docx",
    "beautifulsoup4",
    "lxml",
    "aiohttp",
    "bokeh",
    "xarray",
    "imageio",
    "scikit-image",
    "opencv-python-headless",
    "nltk",
    "textblob",
    "orjson",
    "pytz",
    "joblib",
    "pytest",
    "tornado",
];

/// Also there, large, and rarely used: sound, language models, compilers. kaleido since 1.0 wants a browser of the host's.
const LARGE: [&str; 6] = ["gensim", "kaleido<1", "librosa", "numba", "soundfile", "spacy"];

/// The caller's settings of pip that the recipe's pip gets too.
const PASSED_ON: [&str; 4] = ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_DEFAULT_TIMEOUT"];

/// Build a template from its recipe
///
/// `code-interpreter` gets IPython, numpy, pandas, matplotlib, scipy, scikit-learn, seaborn, plotly, openpyxl and what
/// else E2B's template has from the package index into a layer over this machine's /usr. The next sandbox has it; a
/// running server needs no restart.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove template build code-interpreter
  cove template build code-interpreter --package polars
  cove template build code-interpreter --small")]
pub struct Arguments {
    /// The template: `code-interpreter`
    name: String,
    /// With librosa, spacy, gensim, numba and kaleido too, which are large
    #[arg(long, conflicts_with = "small")]
    full: bool,
    /// With IPython, numpy, pandas, matplotlib, pillow and requests alone
    #[arg(long)]
    small: bool,
    /// With this package too, as pip names it
    #[arg(long, value_name = "PACKAGE")]
    package: Vec<String>,
    /// Allow these private addresses: a package index of your own
    #[arg(long, value_name = "CIDR[:PORT]", value_parser = run::parse_target)]
    allow: Vec<Target>,
    /// The server's data directory [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    if arguments.name != CODE_INTERPRETER {
        return Err(Complaint::usage(format!("there is no recipe for a template `{}`", arguments.name))
            .hint(format!("there is one for `{CODE_INTERPRETER}`")));
    }
    let packages = packages(arguments)?;
    let began = Instant::now();
    let data = Place::new(arguments.data.clone()).data();
    let workshop = data.join("build");
    let draft = workshop.join(format!("draft-{}", std::process::id()));
    make(&draft)?;
    let sealed = follow(arguments, &workshop, &draft, &packages).and_then(|()| finish(&draft, &data, &packages));
    if draft.exists() {
        fs::remove_dir_all(&draft)?;
    }
    let (sealed, built) = sealed?;
    if arguments.json {
        print_json(&serde_json::json!({ "name": CODE_INTERPRETER, "files": sealed.files, "built": built }))?;
        return Ok(0);
    }
    print(&format!(
        "{CODE_INTERPRETER}: {} files, {}, for Python {}, in {}",
        sealed.files,
        show_size(sealed.bytes),
        built.python,
        show_duration(std::time::Duration::from_secs(began.elapsed().as_secs())),
    ))?;
    say(&format!("hint: cove create --template {CODE_INTERPRETER}; E2B's Sandbox.create() takes it by itself"));
    Ok(0)
}

fn packages(arguments: &Arguments) -> Result<Vec<String>, Complaint> {
    let mut all: Vec<String> = SMALL.map(str::to_owned).to_vec();
    if !arguments.small {
        all.extend(USUAL.map(str::to_owned));
    }
    if arguments.full {
        all.extend(LARGE.map(str::to_owned));
    }
    // A name could be a flag of pip, and the list is split at spaces.
    let fits = |name: &String| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.[],=<>!~".contains(letter))
    };
    if let Some(odd) = arguments.package.iter().find(|name| !fits(name)) {
        return Err(Complaint::usage(format!("--package {odd:?} is not a package name"))
            .hint("write a name, with a version if need be: --package polars==1.0"));
    }
    all.extend(arguments.package.iter().cloned());
    Ok(all)
}

/// The name without its version.
fn name_alone(package: &str) -> &str {
    package.split(['<', '>', '=', '!', '~', '[']).next().unwrap_or(package)
}

fn make(draft: &Path) -> Result<(), Complaint> {
    if draft.exists() {
        fs::remove_dir_all(draft)?;
    }
    fs::create_dir_all(draft)
        .map_err(|error| Complaint::failed(format!("make {}: {error}", draft.display())).hint("choose another --data"))
}

/// Runs the recipe; what it makes is in the draft.
fn follow(arguments: &Arguments, workshop: &Path, draft: &Path, packages: &[String]) -> Result<(), Complaint> {
    let mut env: BTreeMap<String, String> =
        PASSED_ON.iter().filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?))).collect();
    env.insert("PACKAGES".into(), packages.join(" "));
    env.insert("TIME".into(), layer::TIME.to_string());
    let mut mounts = vec![Mount { source: draft.to_owned(), target: "/layer".into(), access: Access::ReadWrite }];
    if let Some(cache) = std::env::var_os("PIP_CACHE_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        fs::create_dir_all(&cache)?;
        mounts.push(Mount { source: cache, target: "/var/cache/pip".into(), access: Access::ReadWrite });
        env.insert("PIP_CACHE_DIR".into(), "/var/cache/pip".into());
    }
    let cpus = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let sandbox = Spec {
        id: run::new_id()?,
        root: Root::Base,
        storage: Storage::Memory,
        durability: Durability::default(),
        limits: Limits { cpus, memory: 3 << 30, disk: Some(1 << 30), ..Limits::default() },
        network: Network::Full(Egress { allow: arguments.allow.clone(), ..Egress::default() }),
        mounts,
        hostname: "template".into(),
        env: BTreeMap::new(),
        default_user: "root".into(),
        default_cwd: None,
    };
    let command = Process {
        env,
        on_disconnect: OnDisconnect::Kill,
        ..Process::new(Command::Argv(["sh", "-c", RECIPE].map(str::to_owned).to_vec()))
    };
    match run::once(workshop, &sandbox, command)? {
        Outcome::Exited(exit) if exit.status() == 0 => Ok(()),
        Outcome::Exited(exit) if exit.out_of_memory => {
            Err(Complaint::failed("the recipe ran out of memory: it may have 3 GiB"))
        }
        Outcome::Exited(exit) => Err(Complaint::failed(format!("the recipe ended with {}", exit.status()))
            .hint("see the error above; for a package index of your own use --allow and PIP_INDEX_URL")),
        Outcome::Interrupted(signal) => Err(Complaint::failed(format!("interrupted by signal {signal}"))),
        other => Err(Complaint::failed(format!("the recipe failed: {other:?}"))),
    }
}

fn finish(draft: &Path, data: &Path, packages: &[String]) -> Result<(Sealed, Built), Complaint> {
    let python = note(draft, "python")?;
    let sealed = layer::seal(draft, &layers_of(data)).map_err(|error| Complaint::failed(error.to_string()))?;
    let built = Built {
        layers: vec![sealed.name.clone()],
        python,
        packages: packages.iter().map(|name| name_alone(name).to_owned()).collect(),
        env: [("MPLCONFIGDIR".to_owned(), format!("/{ROOM}/matplotlib"))].into(),
        bytes: sealed.bytes,
        built_at: Clock::system().now().to_string(),
    };
    built
        .save(data, CODE_INTERPRETER)
        .map_err(|error| Complaint::failed(format!("write the template's note in {}: {error}", data.display())))?;
    Ok((sealed, built))
}

/// A line that the recipe left. It comes from the sandbox, so it is bounded and checked, and read from the draft alone:
/// a link in it could lead to any file of the host.
fn note(draft: &Path, name: &str) -> Result<String, Complaint> {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
    let path = draft.join(ROOM).join(name);
    let open = || {
        let top = openat(CWD, draft, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(top, Path::new(ROOM).join(name), flags, Mode::empty(), within).map_err(std::io::Error::from)
    };
    let mut text = String::new();
    let read = open().and_then(|file| fs::File::from(file).take(64).read_to_string(&mut text));
    read.map_err(|error| Complaint::failed(format!("read {}: {error}", path.display())))?;
    let text = text.trim();
    if text.is_empty() || !text.chars().all(|letter| letter.is_ascii_digit() || letter == '.') {
        return Err(Complaint::failed(format!("the recipe left {text:?} as the version of Python")));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipes_note_leads_nowhere_else() {
        let place = tempfile::tempdir().unwrap();
        let (draft, outside) = (place.path().join("draft"), place.path().join("outside"));
        fs::create_dir_all(draft.join(ROOM)).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("python"), "3.11").unwrap();
        fs::write(draft.join(ROOM).join("python"), "3.12\n").unwrap();
        assert_eq!(note(&draft, "python").unwrap(), "3.12");
        fs::remove_file(draft.join(ROOM).join("python")).unwrap();
        std::os::unix::fs::symlink(outside.join("python"), draft.join(ROOM).join("python")).unwrap();
        assert!(note(&draft, "python").is_err());
        fs::remove_dir_all(draft.join(ROOM)).unwrap();
        std::os::unix::fs::symlink(&outside, draft.join(ROOM)).unwrap();
        assert!(note(&draft, "python").is_err());
    }
}
