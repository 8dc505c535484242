//! Many idle sandboxes at once: what they cost, and whether a server that is killed finds them all again.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cove_terminal::complaint::Complaint;
use futures::StreamExt;
use serde_json::{Value, json};

use super::super::Bench;
use super::super::contest::milliseconds;
use super::SuiteName;
use crate::measure::memory::{Memory, settle};
use crate::measure::report::{Series, Suite, Unit, figure};

const STEPS: u32 = 10;
const AT_ONCE: usize = 8;
const FOUND_WITHIN: Duration = Duration::from_secs(120);
/// How long the machine may take to come to rest before a look at its memory.
const RESTED_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug, Clone, Copy)]
struct Look {
    count: u32,
    /// MiB that the machine has less than before.
    machine: f64,
    guests: f64,
    server: f64,
}

/// The suites `density` and `restart`, as far as they are wanted; both are about the same sandboxes.
pub async fn measure(bench: &mut Bench, wanted: &[SuiteName]) -> Vec<Suite> {
    let wanted = |name| wanted.contains(&name);
    if !wanted(SuiteName::Density) && !wanted(SuiteName::Restart) {
        return Vec::new();
    }
    let alive = bench.effort.alive;
    let mut density = Suite::new(
        "density",
        "Memory of idle sandboxes",
        "Sandboxes are made over HTTP and left alone. \"all in\" is kernel, guests and server together: what the machine's available memory \
         has shrunk by, or what its counters of memory in use have grown by, whichever is more, before the first and after the last, each \
         time with the machine come to rest. What else runs on the machine is in it too. Guests are counted by their proportional share (PSS).",
    );
    let mut restart = Suite::new(
        "restart",
        "The server killed and started again",
        &format!(
            "SIGKILL to a server with {alive} sandboxes alive, then the program started again: until it answers, and until all of them are told as \
             running; then a command in one of them."
        ),
    );
    if bench.server.is_none() {
        bench.note_absent(&mut density);
        bench.note_absent(&mut restart);
        return told(wanted, density, restart);
    }
    match fill(bench, alive).await {
        Ok((looks, seconds)) => tell(&mut density, &looks, seconds),
        Err(why) => density.absent("cove", why),
    }
    if wanted(SuiteName::Restart)
        && let Err(complaint) = kill_and_find(bench, &mut restart).await
    {
        restart.absent("cove", complaint.to_string());
    }
    if let Some(server) = &bench.server {
        bench.bar.set_message("removing idle sandboxes");
        match server.empty().await {
            Ok(0) => settle(RESTED_WITHIN).await,
            Ok(left) => density.absent("their removal", format!("{left} sandboxes were still there")),
            Err(complaint) => density.absent("their removal", complaint.to_string()),
        }
    }
    told(wanted, density, restart)
}

fn told(wanted: impl Fn(SuiteName) -> bool, density: Suite, restart: Suite) -> Vec<Suite> {
    let both = [(SuiteName::Density, density), (SuiteName::Restart, restart)];
    both.into_iter().filter_map(|(name, suite)| wanted(name).then_some(suite)).collect()
}

async fn fill(bench: &Bench, alive: u32) -> Result<(Vec<Look>, f64), String> {
    let server = bench.server.as_ref().ok_or("no server")?;
    bench.bar.set_message("waiting for the machine to come to rest");
    settle(RESTED_WITHIN).await;
    let before = Memory::look().ok_or("no /proc/meminfo")?;
    let look = |count: u32| Look {
        count,
        machine: Memory::look().map_or(0, |now| now.growth_since(&before)) as f64 / 1024.0,
        guests: guests_kib(&server.data()) as f64 / 1024.0,
        server: server.pid().map_or(0.0, |pid| resident_kib(pid) as f64 / 1024.0),
    };
    bench.bar.set_message(format!("{alive} idle sandboxes"));
    bench.bar.set_length(u64::from(alive));
    bench.bar.set_position(0);
    let mut looks = vec![look(0)];
    let (mut made, mut seconds) = (0, 0.0);
    for step in 1..=STEPS {
        let until = alive * step / STEPS;
        let began = Instant::now();
        let batch = futures::stream::iter(made..until).map(|_| server.api.create(json!({}))).buffer_unordered(AT_ONCE);
        let outcomes: Vec<_> = batch.collect().await;
        seconds += began.elapsed().as_secs_f64();
        if let Some(trouble) = outcomes.into_iter().find_map(Result::err) {
            return Err(format!("after {made}: {trouble}"));
        }
        made = until;
        bench.bar.set_position(u64::from(made));
        if step == STEPS {
            settle(RESTED_WITHIN).await;
        }
        looks.push(tokio::task::block_in_place(|| look(made)));
    }
    Ok((looks, seconds))
}

fn tell(suite: &mut Suite, looks: &[Look], seconds: f64) {
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return };
    let count = f64::from(last.count.max(1));
    suite.row("alive at once", Unit::Count, &[count]);
    match all_in(first, last) {
        Ok(all_in) => suite.row("all in, per sandbox", Unit::Mebibytes, &[all_in]),
        Err(why) => suite.absent("all in, per sandbox", why),
    }
    suite.row("guest, per sandbox", Unit::Mebibytes, &[(last.guests - first.guests) / count]);
    suite.row("server, per sandbox", Unit::Mebibytes, &[(last.server - first.server) / count]);
    suite.row("server, before the first", Unit::Mebibytes, &[first.server]);
    suite.row("made a second, 8 at once", Unit::PerSecond, &[count / seconds.max(0.001)]);
    let line = |name: &str, take: &dyn Fn(&Look) -> f64| Series {
        name: name.to_owned(),
        points: looks.iter().map(|look| (f64::from(look.count), take(look).max(0.0))).collect(),
    };
    suite.lines(
        "Memory that came with idle sandboxes",
        "sandboxes",
        "MiB",
        vec![
            line("all in", &|look| look.machine - first.machine),
            line("guests", &|look| look.guests - first.guests),
            line("server", &|look| look.server - first.server),
        ],
    );
}

/// A sum that is less than its parts is no measurement: somebody else gave memory back meanwhile.
fn all_in(first: &Look, last: &Look) -> Result<f64, String> {
    let count = f64::from(last.count.max(1));
    let whole = (last.machine - first.machine) / count;
    let parts = (last.guests - first.guests + (last.server - first.server).max(0.0)) / count;
    if whole > parts {
        return Ok(whole);
    }
    Err(format!(
        "{} MiB is less than guests and server have alone ({} MiB): other programs gave memory back meanwhile",
        figure(whole),
        figure(parts)
    ))
}

async fn kill_and_find(bench: &mut Bench, suite: &mut Suite) -> Result<(), Complaint> {
    let bar = bench.bar.clone();
    let Some(server) = &mut bench.server else { return Ok(()) };
    let before = server.api.sandboxes("", Some("running")).await?;
    bar.set_message(format!("restart with {} sandboxes", before.len()));
    server.kill();
    let began = Instant::now();
    server.launch().await?;
    let answers = began.elapsed();
    while server.api.sandboxes("", Some("running")).await?.len() < before.len() {
        if began.elapsed() > FOUND_WITHIN {
            return Err(Complaint::failed(format!("not all of {} were found within {FOUND_WITHIN:?}", before.len())));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let found = began.elapsed();
    if let Some(id) = before.last() {
        server.api.exec(id, &["/bin/true"]).await?;
    }
    suite.row("cove, until it answers", Unit::Milliseconds, &[milliseconds(answers)]);
    suite.row("cove, until all are found", Unit::Milliseconds, &[milliseconds(found)]);
    suite.row("cove, until a command has run", Unit::Milliseconds, &[milliseconds(began.elapsed())]);
    suite.row("sandboxes found", Unit::Count, &[before.len() as f64]);
    Ok(())
}

/// Of the guests' processes, by the engine's own records.
fn guests_kib(data: &Path) -> u64 {
    let records = fs::read_dir(data.join("sandboxes")).into_iter().flatten().flatten();
    let pids = records.filter_map(|entry| {
        let text = fs::read(entry.path().join("running.json")).ok()?;
        let record: Value = serde_json::from_slice(&text).ok()?;
        record["pid"].as_u64()
    });
    pids.filter_map(|pid| field_kib(&format!("/proc/{pid}/smaps_rollup"), "Pss:")).sum()
}

fn resident_kib(pid: u32) -> u64 {
    field_kib(&format!("/proc/{pid}/status"), "VmRSS:").unwrap_or(0)
}

fn field_kib(path: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_smaller_than_its_parts_is_refused() {
        let first = Look { count: 0, machine: 0.0, guests: 0.0, server: 70.0 };
        let told = all_in(&first, &Look { count: 100, machine: 150.0, guests: 5.0, server: 71.0 });
        assert_eq!(told, Ok(1.5));
        let refused = all_in(&first, &Look { count: 100, machine: 4.0, guests: 5.0, server: 69.0 }).unwrap_err();
        assert!(refused.starts_with("0.040 MiB is less than guests and server have alone (0.050 MiB)"), "{refused}");
    }
}
