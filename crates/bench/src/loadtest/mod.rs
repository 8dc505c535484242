//! `cove loadtest`: what a server does when many people use it at once.
//!
//! Every user is a task that does what people do: makes a sandbox, runs commands, moves files, looks at a web page that
//! runs inside, runs cells of code, thinks in between, and cleans up. What a server refuses for want of room (429, 503)
//! is no error: the user comes again after the time that the answer names. Everything else that is not what was asked for is.
//!
//! # Layout
//! * [`user`]: one user's day; [`tally`]: what became of each step; [`report`]: how it is printed

mod report;
mod tally;
mod user;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use cove_terminal::complaint::{Complaint, code};
use cove_terminal::quantity::parse_duration;
use cove_terminal::render::{print, print_json, say};
use indicatif::{ProgressBar, ProgressStyle};
pub use report::suite as suite_of;
pub use tally::{Step, Tally};
pub use user::Habits;

use crate::measure::api::{Api, Trouble};
use crate::measure::interrupt::until_interrupted;
use crate::measure::machine::Machine;
use crate::measure::output::{can_write_to, write_to};
use crate::measure::own_server::{OwnServer, remove};
use crate::measure::report::{Mishap, Report};
use crate::measure::{page, terminal};

/// Use a server as many people would, and say how it did
///
/// Without --url it starts a server of its own on a directory of its own and removes both again. The exit code is 0 when
/// there was no error; answers that say "no room, come again" are counted apart.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove loadtest --users 200 --duration 30s
  cove loadtest --users 1000 --duration 5m --url https://cove.example.com --html load.html
  cove loadtest --users 200 --think 0 --mix exec,files --csv load.csv")]
pub struct Arguments {
    /// People at once
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    users: u32,
    /// For how long they come back with something new
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    duration: Duration,
    /// The server; one of its own where absent
    #[arg(long, value_name = "URL", env = "COVE_URL")]
    url: Option<String>,
    /// An API key of that server
    #[arg(long, value_name = "KEY", env = "COVE_API_KEY", hide_env_values = true)]
    key: Option<String>,
    /// What they do, besides making a sandbox and removing it
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Deed::Exec, Deed::Files, Deed::Preview, Deed::Interpreter])]
    mix: Vec<Deed>,
    /// How long a user thinks between two steps, on average; 0 for not at all
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_think)]
    think: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Write a table for a spreadsheet
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Deed {
    Exec,
    Files,
    Preview,
    Interpreter,
}

fn parse_think(text: &str) -> Result<Duration, String> {
    if text == "0" { Ok(Duration::ZERO) } else { parse_duration(text) }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    runtime.block_on(whole(arguments))
}

async fn whole(arguments: &Arguments) -> Result<u8, Complaint> {
    can_write_to([&arguments.csv, &arguments.html].into_iter().flatten())?;
    let machine = Machine::look();
    let load = Load {
        users: arguments.users,
        habits: Habits {
            deeds: arguments.mix.clone(),
            think: arguments.think,
            until: Until::After(arguments.duration),
        },
    };
    match arguments.url.as_deref().filter(|url| !url.is_empty()) {
        Some(url) => {
            let key = arguments.key.as_deref().unwrap_or_default();
            let api = Api::new(url, key)?;
            reach(&api).await?;
            let done = until_interrupted(load.put_on(&api, &bar(arguments))).await;
            // Also what users had when they were interrupted.
            say("removing what is left …");
            let cleared = clear(&api).await;
            let code = tell(arguments, machine, done?.flatten_interrupted()?, url)?;
            cleared.map(|()| code)
        }
        None => {
            let server = OwnServer::start(&cove_terminal::program()?).await?;
            let done = until_interrupted(load.put_on(&server.api.clone(), &bar(arguments))).await;
            let finished = server.finish().await;
            let code = tell(arguments, machine, done?.flatten_interrupted()?, "a server of its own")?;
            finished.map(|()| code)
        }
    }
}

trait FlattenInterrupted<T> {
    fn flatten_interrupted(self) -> Result<T, Complaint>;
}

impl<T> FlattenInterrupted<T> for Option<T> {
    fn flatten_interrupted(self) -> Result<T, Complaint> {
        self.ok_or_else(|| Complaint::failed("interrupted; everything was removed").with_code(130))
    }
}

/// Removes this run's sandboxes, those too whose making was under way when it was interrupted.
async fn clear(api: &Api) -> Result<(), Complaint> {
    const WITHIN: Duration = Duration::from_secs(60);
    let (ours, began) = (format!("&label=loadtest%3D{}", load_name()), Instant::now());
    let mut empty_looks = 0;
    while empty_looks < 2 {
        let left = api.sandboxes(&ours, None).await.map_err(|trouble| {
            Complaint::failed(format!("sandboxes of this test may be left on {}: {trouble}", api.url)).hint(format!(
                "they end by themselves within an hour; `cove ls --label loadtest={}` shows them",
                load_name()
            ))
        })?;
        empty_looks = if left.is_empty() { empty_looks + 1 } else { 0 };
        if began.elapsed() > WITHIN {
            return Err(Complaint::failed(format!("{} sandboxes of this test are still there", left.len()))
                .hint(format!("`cove ls --label loadtest={}` shows them", load_name())));
        }
        remove(api, left).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// A wrong address or key is one clear sentence, not a thousand errors.
async fn reach(api: &Api) -> Result<(), Complaint> {
    if reqwest::Url::parse(&api.url).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
        let answer = api.call(reqwest::Method::GET, "/api/whoami", None).await;
        return answer.map(drop).map_err(|trouble| match trouble {
            Trouble::Refused { status: 401 | 403, message, .. } => Complaint::failed(format!("{}: {message}", api.url))
                .hint("--key or COVE_API_KEY holds a key of that server"),
            Trouble::Refused { status: 404, .. } | Trouble::Wrong(_) => {
                Complaint::failed(format!("{}: something answers there, and it is no Cove", api.url)).hint(WHICH)
            }
            other => Complaint::failed(format!("{}: {other}", api.url)).hint(WHICH),
        });
    }
    Err(Complaint::usage(format!("--url {} is no address of a server", api.url))
        .hint("write it with http:// or https://, for example --url http://127.0.0.1:7070"))
}

const WHICH: &str = "--url and --key (or COVE_URL and COVE_API_KEY) name the server to test; is it up?";

/// What is put on a server.
#[derive(Debug, Clone)]
pub struct Load {
    pub users: u32,
    pub habits: Habits,
}

#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// Nobody begins anew after this.
    After(Duration),
    /// Everybody does everything once.
    Once,
}

impl Load {
    /// Everybody at work; returns when the last one is done.
    pub async fn put_on(&self, api: &Api, bar: &ProgressBar) -> Tally {
        let tally = Arc::new(Tally::new());
        let began = Instant::now();
        let end = match self.habits.until {
            Until::After(duration) => Some(began + duration),
            Until::Once => None,
        };
        let mut users = tokio::task::JoinSet::new();
        for _ in 0..self.users {
            let (api, tally, habits) = (api.clone(), Arc::clone(&tally), self.habits.clone());
            users.spawn(async move { user::live(&api, &habits, end, &tally).await });
        }
        let shown = Arc::clone(&tally);
        let ticker = bar.clone();
        let watch = async move {
            loop {
                tokio::time::sleep(Duration::from_millis(200)).await;
                ticker.set_position(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
                ticker.set_message(shown.line());
            }
        };
        tokio::select! {
            () = watch => {}
            () = async { while users.join_next().await.is_some() {} } => {}
        }
        bar.finish_and_clear();
        tally.close();
        Arc::into_inner(tally).unwrap_or_default()
    }
}

/// The label by which this run's sandboxes are found again.
pub fn load_name() -> String {
    static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    NAME.get_or_init(|| format!("run-{:016x}", rand::random::<u64>())).clone()
}

fn bar(arguments: &Arguments) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(arguments.duration.as_millis()).unwrap_or(u64::MAX));
    let style = ProgressStyle::with_template("{bar:30} {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar
}

fn tell(arguments: &Arguments, machine: Machine, tally: Tally, whom: &str) -> Result<u8, Complaint> {
    let report: Report = report::make(machine, arguments.users, arguments.think, &tally, whom);
    let written = write_to(arguments.csv.as_deref(), || report::csv(&tally))
        .and(write_to(arguments.html.as_deref(), || page::render(&report)));
    let errors = tally.errors();
    if arguments.json {
        print_json(&report::json(&report, &tally))?;
    } else {
        terminal::show(&report)?;
        print(&format!("\n{}", report::sentence(&tally)))?;
        for Mishap { step, count, example, .. } in &report.mishaps {
            print(&format!("  {count} × {step}: {example}"))?;
        }
    }
    written?;
    Ok(if errors == 0 { 0 } else { code::FAILED })
}
