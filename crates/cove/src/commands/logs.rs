//! `cove logs`: the output of a process of a sandbox.

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use crate::client::conversation::{Input, Output, Until, converse};
use crate::client::sandbox::path;
use crate::client::transcript::Transcript;
use crate::client::{Client, block_on};
use crate::complaint::Complaint;

/// Show the output of a process of a sandbox
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove exec -d --tag job box -- sh -c 'echo begun; sleep 1'
  cove logs --follow box job

With --json one object comes, with --follow once the process has ended:
  {\"pid\", \"tag\", \"running\", \"exit_code\", \"timed_out\", \"out_of_memory\", \"stdout\", \"stderr\",
   \"lost_bytes\"}
exit_code is null while it runs; what a terminal showed is stdout.")]
pub struct Arguments {
    /// Follow it until it ends
    #[arg(short, long)]
    follow: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    /// The sandbox's name or id
    #[arg(add = crate::complete::sandboxes())]
    sandbox: String,
    /// Its process number or tag [default: the one that was started last]
    process: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Process {
    pid: u32,
    tag: Option<String>,
    started_at: jiff::Timestamp,
    exit: Option<serde_json::Value>,
    output_start: u64,
    output_end: u64,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    block_on(async {
        let listed = client.get(&format!("{}/processes", path(&arguments.sandbox)?)).await;
        let mut all: Vec<Process> = listed.map_err(|complaint| gone_with_it(complaint, &arguments.sandbox))?;
        all.sort_by_key(|process| process.started_at);
        let called = |process: &Process| match &arguments.process {
            Some(name) => process.pid.to_string() == *name || process.tag.as_deref() == Some(name),
            None => true,
        };
        let Some(process) = all.iter().rev().find(|process| called(process)) else {
            return Err(match &arguments.process {
                Some(name) => Complaint::failed(format!("there is no process `{name}` in {}", arguments.sandbox)),
                None => Complaint::failed(format!("nothing has been started in {}", arguments.sandbox)),
            });
        };
        let kept = process.output_end - process.output_start.min(process.output_end);
        let until = if arguments.follow || process.exit.is_some() { Until::Exit } else { Until::Bytes(kept) };
        let opening = json!({ "attach": { "pid": process.pid, "from": process.output_start } });
        let mut transcript = Transcript::of(process.pid);
        let output = if arguments.json { Output::Kept(&mut transcript) } else { Output::Shown };
        if until != Until::Bytes(0) {
            converse(&client, &arguments.sandbox, opening, Input::None, until, output).await?;
        }
        if arguments.json {
            let mut told = transcript.to_json();
            told["tag"] = json!(process.tag);
            told["running"] = json!(told["exit_code"].is_null());
            crate::render::print_json(&told)?;
        }
        // The verb succeeded, however the process ended.
        Ok(0)
    })
}

/// Starting a stopped sandbox again brings nothing back: output is kept with its process.
fn gone_with_it(complaint: Complaint, sandbox: &str) -> Complaint {
    if !complaint.message().contains(" is stopped ") {
        return complaint;
    }
    Complaint::failed(format!("sandbox {sandbox} is stopped: its processes are gone, and what they said with them"))
        .hint("have a command write to a file what must stay")
        .hint(format!("`cove timers {sandbox} --idle never` keeps it from being stopped while it waits"))
}
