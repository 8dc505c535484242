//! `cove bench`: how fast and how small sandboxes are on this machine, beside the other programs that are installed.
//!
//! Everybody does the same work on the same files in turns, so that a busy moment of the machine hits all alike: the ratios
//! within a run are what counts. A server of its own, on a directory of its own, is measured and removed again.
//!
//! # Layout
//! * [`suites`]: one file for each thing that is measured; [`contest`]: taking turns
//! * [`peers`]: the others; [`ours`]: our own ways to run a command; [`engine`]: the one without HTTP, in a process of its own
//! * [`promises`]: what is said of this product, held against the numbers

mod contest;
mod engine;
mod ours;
mod peers;
mod promises;
mod suites;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use cove_terminal::complaint::{Complaint, doing};
use cove_terminal::render::{print_json, say};
pub use engine::{WORD as ENGINE, at_home as engine_at_home};
use indicatif::{ProgressBar, ProgressStyle};
use peers::Peer;
use reqwest::Method;
use suites::SuiteName;

use crate::measure::interrupt::until_interrupted;
use crate::measure::machine::{Machine, is_debug_build, version_of};
use crate::measure::output::{can_write_to, write_to};
use crate::measure::own_directory::OwnDirectory;
use crate::measure::own_server::OwnServer;
use crate::measure::report::{Absent, Report, Suite, VERSION};
use crate::measure::{markdown, page, terminal};

/// Measure sandboxes on this machine, beside other programs that are installed
///
/// Starts a server of its own on a directory of its own and leaves nothing behind. Numbers of a busy machine are noise; their
/// ratios within one run are not.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove bench --quick
  cove bench --out report            # report/bench.json, bench.html and bench.md
  cove bench --only cold,throughput
  cove bench --only images --quick
  cove bench --only providers --quick
  cove bench --from report/bench.json --markdown docs/PERFORMANCE.md

Environment:
  COVE_BENCH_TEMPLATES       the data directory of `cove template build code-interpreter`: its first cells are measured too
  COVE_BENCH_KERNEL_PYTHON   a python3 with ipykernel and jupyter_client, to be measured beside the interpreter")]
pub struct Arguments {
    /// Fewer rounds and smaller sizes: under five minutes on two processors
    #[arg(long)]
    quick: bool,
    /// Only these
    #[arg(long, value_enum, value_delimiter = ',', value_name = "SUITE,…")]
    only: Vec<SuiteName>,
    /// How many sandboxes live at once in the suites `density` and `restart` [default: 1000, with --quick 200]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=20_000))]
    alive: Option<u32>,
    /// Write all forms to this directory: bench.json, bench.html, bench.md
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Write JSON; `-` for standard output, instead of the tables
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Put the tables into this document, between the lines `<!-- cove bench -->` and `<!-- /cove bench -->`
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Measure nothing: take the numbers of an earlier run's JSON
    #[arg(long, value_name = "FILE", conflicts_with_all = ["quick", "only", "alive"])]
    from: Option<PathBuf>,
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    pub rounds: usize,
    pub slow_rounds: usize,
    pub throughput_samples: usize,
    /// Of each of them.
    pub throughput_time: Duration,
    pub sequential: usize,
    pub burst: usize,
    pub file_mib: usize,
    pub clients: u32,
    pub alive: u32,
    /// Pulls and builds.
    pub image_rounds: usize,
    pub image_mib: usize,
    /// Snapshots and forks of ours, and of those who take seconds for each.
    pub copies: usize,
    pub slow_copies: usize,
    /// What a sandbox that is copied has written.
    pub large_mib: usize,
    pub many_files: usize,
    /// Copies at once.
    pub forks: usize,
}

impl Effort {
    fn of(arguments: &Arguments) -> Effort {
        if arguments.quick {
            let alive = arguments.alive.unwrap_or(200);
            Effort {
                rounds: 25,
                slow_rounds: 3,
                throughput_samples: 3,
                throughput_time: Duration::from_millis(400),
                sequential: 25,
                burst: 100,
                file_mib: 64,
                clients: 200,
                alive,
                image_rounds: 2,
                image_mib: 16,
                copies: 10,
                slow_copies: 1,
                large_mib: 64,
                many_files: 5000,
                forks: 20,
            }
        } else {
            let alive = arguments.alive.unwrap_or(1000);
            Effort {
                rounds: 150,
                slow_rounds: 12,
                throughput_samples: 7,
                throughput_time: Duration::from_millis(1000),
                sequential: 100,
                burst: 100,
                file_mib: 256,
                clients: 200,
                alive,
                image_rounds: 5,
                image_mib: 128,
                copies: 30,
                slow_copies: 3,
                large_mib: 1024,
                many_files: 100_000,
                forks: 100,
            }
        }
    }
}

/// What the suites work with.
pub struct Bench {
    pub program: PathBuf,
    pub effort: Effort,
    pub home: OwnDirectory,
    /// Of `cove run`: in memory, as it is where nobody says otherwise.
    run_home: Option<OwnDirectory>,
    pub server: Option<OwnServer>,
    /// One whose providers the first one plays; ends before it.
    pub front: Option<OwnServer>,
    pub peers: Vec<Peer>,
    /// Peers that do not work here, and why.
    pub absent: Vec<Absent>,
    pub bar: ProgressBar,
}

/// `runs` tells where `cove run` keeps its files in memory; it is asked only where something is measured.
pub fn run(arguments: &Arguments, runs: impl FnOnce() -> PathBuf) -> Result<u8, Complaint> {
    check_places(arguments)?;
    let report = match &arguments.from {
        Some(path) => read(path)?,
        None => {
            if is_debug_build() {
                say("warning: this is a debug build; its numbers say nothing about a release");
                say("hint: make bench");
            }
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
            runtime.block_on(measure(arguments, &runs()))?
        }
    };
    tell(arguments, &report)?;
    Ok(0)
}

fn read(path: &Path) -> Result<Report, Complaint> {
    let trouble = |why: String| {
        Complaint::failed(format!("{}: {why}", path.display())).hint("`cove bench --json FILE` writes one")
    };
    let text = std::fs::read_to_string(path).map_err(|error| trouble(error.to_string()))?;
    let report: Report = serde_json::from_str(&text).map_err(|error| trouble(error.to_string()))?;
    // Today's promises: numbers last longer than what is said of them.
    Ok(Report { promises: promises::hold_against(&report), ..report })
}

async fn measure(arguments: &Arguments, runs: &Path) -> Result<Report, Complaint> {
    let (began, mut machine) = (Instant::now(), Machine::look());
    let wanted = SuiteName::wanted(&arguments.only);
    let mut bench = Bench::new(arguments, runs)?;
    let work = async {
        bench.set_up(&wanted).await?;
        if let Some(unheld) = bench.unheld().await? {
            machine.user = format!("{} without limits on {unheld}", machine.user);
        }
        machine.versions = bench.peers.iter().map(|peer| (peer.name.to_owned(), peer.version.clone())).collect();
        let others: &[&str] = if wanted.contains(&SuiteName::Images) { &suites::OF_IMAGES } else { &[] };
        for &program in others.iter().chain(&["node", "python3"]) {
            machine.versions.extend(version_of(program).map(|version| (program.to_owned(), version)));
        }
        Ok::<_, Complaint>(suites::measure(&mut bench, &wanted).await)
    };
    let measured = until_interrupted(work).await;
    let left = bench.clear().await;
    let suites = measured?.ok_or_else(|| Complaint::failed("interrupted; everything was removed").with_code(130))??;
    left?;
    let mut report = Report {
        version: VERSION,
        kind: if arguments.quick { "bench --quick" } else { "bench" }.to_owned(),
        title: "Cove, measured".to_owned(),
        machine,
        seconds: began.elapsed().as_secs_f64(),
        promises: Vec::new(),
        verdict: None,
        mishaps: Vec::new(),
        suites,
    };
    report.promises = promises::hold_against(&report);
    Ok(report)
}

impl Bench {
    fn new(arguments: &Arguments, runs: &Path) -> Result<Bench, Complaint> {
        let home = OwnDirectory::new("cove-bench-")?;
        // Other runtimes look at their root with the ids of the sandbox.
        std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755))
            .map_err(doing(format!("open {} to others", home.path().display())))?;
        let run_home = OwnDirectory::below(runs.parent().unwrap_or(runs), "cove-bench-").ok();
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:30} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        Ok(Bench {
            program: cove_terminal::program()?,
            effort: Effort::of(arguments),
            home,
            run_home,
            server: None,
            front: None,
            peers: Vec::new(),
            absent: Vec::new(),
            bar,
        })
    }

    /// The others and the server, as far as they are needed.
    async fn set_up(&mut self, wanted: &[SuiteName]) -> Result<(), Complaint> {
        if wanted.iter().any(|suite| suite.has_peers()) {
            self.bar.set_message("looking for others");
            // Here and not elsewhere: whoever is interrupted knows whom to clear away.
            (self.peers, self.absent) = tokio::task::block_in_place(|| peers::find(self.home.path()));
        }
        self.bar.set_message("starting a server");
        let templates = std::env::var_os("COVE_BENCH_TEMPLATES").map(PathBuf::from);
        self.server = Some(OwnServer::start_with(&self.program, templates.as_deref(), &SETTINGS).await?);
        Ok(())
    }

    /// What sandboxes go without here belongs beside their numbers.
    async fn unheld(&self) -> Result<Option<String>, Complaint> {
        let Some(server) = self.server.as_ref().filter(|_| !cove_engine::privilege::is_host_root()) else {
            return Ok(None);
        };
        let id = server.api.create(serde_json::json!({})).await?;
        let told = server.api.call(Method::GET, &format!("/api/sandboxes/{id}"), None).await?;
        server.api.delete(&id).await?;
        let names: Vec<_> = told["unheld"].as_array().into_iter().flatten().filter_map(|name| name.as_str()).collect();
        Ok((!names.is_empty()).then(|| names.join(", ")))
    }

    /// Nothing stays, however we came here.
    async fn clear(mut self) -> Result<(), Complaint> {
        self.bar.finish_and_clear();
        let first = match self.front.take() {
            Some(front) => front.finish().await,
            None => Ok(()),
        };
        tokio::task::block_in_place(|| self.peers.iter().for_each(Peer::leave));
        let finished = match self.server.take() {
            Some(server) => server.finish().await,
            None => Ok(()),
        };
        let unmounted = unmount_below(self.home.path());
        let removed = self.run_home.map_or(Ok(()), OwnDirectory::remove).and(self.home.remove());
        first.and(finished).and(unmounted).and(removed)
    }
}

/// podman leaves its storage mounted onto itself.
fn unmount_below(directory: &Path) -> Result<(), Complaint> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(doing("read /proc/self/mountinfo"))?;
    let below =
        mounts.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| Path::new(path).starts_with(directory));
    // The newest first: one may lie on another.
    for path in below.collect::<Vec<_>>().into_iter().rev() {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH)
            .map_err(|error| Complaint::failed(format!("unmount {path}: {error}")))?;
    }
    Ok(())
}

/// Before the first minute of measuring, not after the last.
fn check_places(arguments: &Arguments) -> Result<(), Complaint> {
    if let Some(directory) = &arguments.out {
        std::fs::create_dir_all(directory).map_err(|error| {
            Complaint::usage(format!("--out {}: {error}", directory.display()))
                .hint("name a folder that you can write to")
        })?;
    }
    if let Some(document) = &arguments.markdown {
        markdown::check(document, MARK)?;
    }
    let forms = ["bench.json", "bench.html", "bench.md"];
    let below = arguments.out.iter().flat_map(|directory| forms.map(|form| directory.join(form)));
    let named = [&arguments.html, &arguments.json, &arguments.markdown].into_iter().flatten();
    can_write_to(below.chain(named.filter(|path| path.as_os_str() != "-").cloned()))
}

/// Of the server: images may come from a registry on this machine, which the group `images` starts.
static SETTINGS: [(&str, &str); 1] = [("COVE_IMAGES_INSECURE", "127.0.0.1")];

/// The name of the tables' place in a document.
const MARK: &str = "cove bench";

/// Who reads the tables has them, also where a file cannot be written.
fn tell(arguments: &Arguments, report: &Report) -> Result<(), Complaint> {
    let json = || serde_json::to_string_pretty(report).unwrap_or_default() + "\n";
    match arguments.json.as_deref() {
        Some(path) if path == Path::new("-") => print_json(report)?,
        path => {
            terminal::show(report)?;
            write_to(path, json)?;
        }
    }
    if let Some(directory) = &arguments.out {
        write_to(Some(&directory.join("bench.json")), json)?;
        write_to(Some(&directory.join("bench.html")), || page::render(report))?;
        write_to(Some(&directory.join("bench.md")), || format!("# {}\n\n{}", report.title, markdown::render(report)))?;
    }
    write_to(arguments.html.as_deref(), || page::render(report))?;
    match &arguments.markdown {
        Some(document) => markdown::replace_in(document, MARK, &markdown::render(report)),
        None => Ok(()),
    }
}

impl Bench {
    pub fn run_data(&self) -> PathBuf {
        self.run_home.as_ref().map_or_else(|| self.home.path().join("run"), |home| home.path().join("run"))
    }

    /// The peers' absence belongs into every suite that they would take part in.
    pub fn note_absent(&self, suite: &mut Suite) {
        suite.absent.extend(self.absent.iter().cloned());
    }
}
