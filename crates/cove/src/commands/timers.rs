//! `cove timers`.

use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::{Value, json};

use super::change::{Target, object_of};
use crate::client::{Client, block_on};
use crate::complaint::Complaint;
use crate::quantity::{Span, parse_span, show_duration};
use crate::render::{Rows, Tone, moment, print_json, say, word};

/// Show or change when a sandbox ends by itself
///
/// Other timers stay as they are; `never` switches a timer off.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove timers box                                  # show them
  cove timers box --idle never                     # it runs until somebody stops it
  cove timers box --idle-counts requests           # a job in the background does not keep it awake
  cove timers box --timeout 2h --at-timeout pause
  cove timers box --archive-after 1d --delete-after 30d")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    timers: Timers,
}

/// The same for `create` and `timers`.
#[derive(Debug, Args)]
pub struct Timers {
    /// End it after this time from now, whatever it does; or `never`
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Timers")]
    timeout: Option<Span>,
    /// What happens then
    #[arg(long, value_name = "ACT", value_enum, help_heading = "Timers")]
    at_timeout: Option<Act>,
    /// Act when it was idle for this time; or `never`
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Timers")]
    idle: Option<Span>,
    /// What happens then
    #[arg(long, value_name = "ACT", value_enum, help_heading = "Timers")]
    at_idle: Option<Act>,
    /// What counts as activity beside requests [default: work]
    #[arg(long, value_name = "WHAT", value_enum, help_heading = "Timers")]
    idle_counts: Option<Counts>,
    /// Archive it this long after it stopped; or `never`
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Timers")]
    archive_after: Option<Span>,
    /// Remove it this long after it stopped; or `never`
    #[arg(long, value_name = "TIME", value_parser = parse_span, help_heading = "Timers")]
    delete_after: Option<Span>,
    /// Wake it when a request comes
    #[arg(long, value_name = "YES|NO", value_parser = parse_yes, help_heading = "Timers")]
    auto_resume: Option<bool>,
    /// Remove it when it stops
    #[arg(long, value_name = "YES|NO", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
        value_parser = parse_yes, help_heading = "Timers")]
    ephemeral: Option<bool>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Act {
    /// End its processes, keep its files
    Stop,
    /// Keep its processes in memory, frozen
    Pause,
    /// Remove it
    Destroy,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Counts {
    /// Nothing else
    Requests,
    /// A process that uses the processor or moves data; not a daemon that waits
    Work,
    /// Every process that was started through the API and still runs
    Processes,
}

impl Counts {
    /// As the API names it.
    fn measure(self) -> &'static str {
        match self {
            Counts::Requests => "requests",
            Counts::Work => "requests_and_work",
            Counts::Processes => "requests_and_processes",
        }
    }
}

fn parse_yes(text: &str) -> Result<bool, String> {
    match text {
        "yes" | "true" => Ok(true),
        "no" | "false" => Ok(false),
        _ => Err("neither yes nor no; write yes or no".into()),
    }
}

impl Timers {
    /// `None` where no flag was given. `null` switches a timer off.
    pub fn body(&self) -> Option<Value> {
        let act = |act: Act| act.to_possible_value().map_or(Value::Null, |value| json!(value.get_name()));
        object_of([
            ("lifetime_seconds", self.timeout.map(Span::seconds)),
            ("at_deadline", self.at_timeout.map(act)),
            ("idle_seconds", self.idle.map(Span::seconds)),
            ("at_idle", self.at_idle.map(act)),
            ("idle_measure", self.idle_counts.map(|counts| json!(counts.measure()))),
            ("archive_after_seconds", self.archive_after.map(Span::seconds)),
            ("delete_after_seconds", self.delete_after.map(Span::seconds)),
            ("auto_resume", self.auto_resume.map(|yes| json!(yes))),
            ("ephemeral", self.ephemeral.map(|yes| json!(yes))),
        ])
    }
}

/// Where a server cannot pause, a timer stops instead: whoever asks for a pause should know.
pub async fn tell_of_pauses(client: &Client, timers: &Timers, sandbox: &Value) {
    if ![timers.at_timeout, timers.at_idle].iter().any(|act| matches!(act, Some(Act::Pause))) {
        return;
    }
    // The timers are set; without an answer there is nothing to add.
    let Ok(providers) = client.get::<Vec<Value>>("/providers").await else { return };
    let provider = word(sandbox, "provider");
    if providers.iter().any(|one| word(one, "name") == provider && one["pause"] == false) {
        say(&format!("cove: provider {provider} cannot pause here: the sandbox is stopped instead"));
        say("hint: `cove doctor` on the server's machine shows what is missing");
    }
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let target = &arguments.target;
    let sandbox: Value = block_on(async {
        let sandbox = match arguments.timers.body() {
            Some(body) => client.set(&target.sandbox, Method::PATCH, "timers", &body).await?,
            None => client.sandbox(&target.sandbox).await?,
        };
        tell_of_pauses(&client, &arguments.timers, &sandbox).await;
        Ok(sandbox)
    })?;
    let timers = &sandbox["timers"];
    if target.json {
        print_json(timers)?;
        return Ok(0);
    }
    let after = |name: &str| {
        let seconds = timers[name].as_u64().map(std::time::Duration::from_secs);
        seconds.map_or("never".to_owned(), |time| format!("after {}", show_duration(time)))
    };
    let deadline = match timers["deadline"].as_str() {
        Some(_) => moment(timers, "deadline"),
        None => "never".to_owned(),
    };
    let yes = |name: &str| if timers[name] == true { "yes" } else { "no" };
    let mut rows = Rows::new(&["timer", "when", "then"]);
    rows.add(&[("lifetime", Tone::Plain), (&deadline, Tone::Plain), (word(timers, "at_deadline"), Tone::Plain)]);
    rows.add(&[("idle", Tone::Plain), (&after("idle_seconds"), Tone::Plain), (word(timers, "at_idle"), Tone::Plain)]);
    let counts = word(timers, "idle_measure").replace('_', " ");
    rows.add(&[("", Tone::Plain), (&counts, Tone::Plain), ("count as activity", Tone::Faint)]);
    for (name, field, then) in
        [("stopped", "archive_after_seconds", "archive"), ("stopped", "delete_after_seconds", "destroy")]
    {
        rows.add(&[(name, Tone::Plain), (&after(field), Tone::Plain), (then, Tone::Plain)]);
    }
    rows.add(&[("ephemeral", Tone::Plain), (yes("ephemeral"), Tone::Plain), ("a stop destroys it", Tone::Faint)]);
    rows.add(&[("auto-resume", Tone::Plain), (yes("auto_resume"), Tone::Plain), ("a call wakes it", Tone::Faint)]);
    rows.print()?;
    Ok(0)
}
