//! Many forks at once, and the bytes that each takes on the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};

use super::super::super::Bench;
use super::super::super::contest::{Contest, milliseconds};
use super::super::super::peers::ContainerEngine;
use super::{Filling, Other, Others, disk};
use crate::measure::api::{Api, Trouble, lost, text_of};
use crate::measure::own_server::OwnServer;
use crate::measure::report::{Suite, Unit};

/// What the source has written.
const WRITTEN: Filling = Filling::Large { mib: 16 };
const ROUNDS: usize = 3;
/// Of programs that are started for each copy.
const AT_ONCE: usize = 8;
const MADE_WITHIN: Duration = Duration::from_secs(300);
const MIB: f64 = 1024.0 * 1024.0;

#[derive(Debug, Clone)]
struct Crowd {
    took: Duration,
    /// Bytes for each, or why they were not counted.
    each: Result<f64, String>,
}

pub async fn measure(bench: &Bench, server: &OwnServer, others: &Others<'_>) -> Suite {
    let forks = bench.effort.forks;
    let mut suite = Suite::new(
        "forks",
        "Many forks at once",
        &format!(
            "{forks} copies of a sandbox that has written {}, by one call, until all of them run. Others: one `commit`, then {forks} times `run` \
             of what came of it, {AT_ONCE} at a time. On the disk: what the filesystem of our sandboxes has more in use afterwards, written \
             out and at rest; and what the folders of others have more. Each is divided by the copies.",
            WRITTEN.name()
        ),
    );
    let api = &server.api;
    bench.bar.set_message(format!("a sandbox with {}", WRITTEN.name()));
    let mut contest: Contest<'_, Crowd> = Contest::without_warming();
    let ours = WRITTEN.sandbox(api).await;
    match &ours {
        Ok(id) => {
            let (id, place) = (Arc::new(id.clone()), Arc::new(super::super::files::beside_sandboxes(&server.data())));
            contest.add("cove", ROUNDS, move || {
                let (id, place) = (Arc::clone(&id), Arc::clone(&place));
                async move { fork(api, &id, forks, &place).await.map_err(|trouble| trouble.to_string()) }
            });
        }
        Err(trouble) => suite.absent("cove", trouble.to_string()),
    }
    let container = ContainerEngine::image_name("source");
    for other in others.here.iter().copied() {
        match tokio::task::block_in_place(|| WRITTEN.container(&other, &container)) {
            Ok(()) => {
                let container = container.clone();
                contest.add_blocking(other.name, 1, move || commit(&other, &container, forks));
            }
            Err(why) => suite.absent(other.name, why),
        }
    }
    contest.hold(&bench.bar, &format!("{forks} forks at once")).await;
    tell(&contest, &mut suite, forks);
    drop(contest);
    if let Ok(id) = ours {
        // Also removed at the end, should this fail.
        drop(api.delete(&id).await);
    }
    tokio::task::block_in_place(|| others.here.iter().for_each(|other| other.engine.clear(other.ground)));
    others.tell_absent(&mut suite);
    suite
}

fn tell(contest: &Contest<'_, Crowd>, suite: &mut Suite, forks: usize) {
    for contender in &contest.contenders {
        let name = &contender.name;
        let took: Vec<f64> = contender.samples.iter().map(|crowd| milliseconds(crowd.took)).collect();
        let per_copy: Vec<f64> = took.iter().map(|took| took / forks as f64).collect();
        let (counted, not): (Vec<_>, Vec<_>) =
            contender.samples.iter().map(|crowd| &crowd.each).partition(|each| each.is_ok());
        let bytes: Vec<f64> = counted.into_iter().flatten().map(|bytes| bytes / MIB).collect();
        for (what, unit, values) in [
            ("all of them", Unit::Milliseconds, took),
            ("each", Unit::Milliseconds, per_copy),
            ("on disk, each", Unit::Mebibytes, bytes),
        ] {
            suite.row(&format!("{name}, {what}"), unit, &values);
            if name != "cove" {
                suite.compare(&format!("{name}, {what}"), &format!("cove, {what}"));
            }
        }
        if let Some(Err(why)) = not.first() {
            suite.absent(&format!("{name}, on disk"), why.clone());
        }
        if let Some(why) = &contender.failed {
            suite.absent(name, why.clone());
        }
    }
}

async fn fork(api: &Api, id: &str, count: usize, place: &Path) -> Result<Crowd, Trouble> {
    let before = disk::used_at_rest(place).await;
    let began = Instant::now();
    let request = api.request(Method::POST, &format!("/api/sandboxes/{id}/fork")).json(&json!({ "count": count }));
    let forked: Value = api.send(request.timeout(MADE_WITHIN)).await?.json().await.map_err(lost)?;
    let took = began.elapsed();
    let made = forked["forks"].as_array().map(Vec::as_slice).unwrap_or_default();
    if let Some(failed) = made.iter().find(|fork| fork["sandbox"].is_null()) {
        return Err(Trouble::Wrong(format!("a copy failed: {}", failed["error"])));
    }
    let ids = made.iter().map(|fork| text_of(&fork["sandbox"], "id")).collect::<Result<Vec<String>, Trouble>>()?;
    if ids.len() != count {
        return Err(Trouble::Wrong(format!("{} of {count} copies came", ids.len())));
    }
    let after = disk::used_at_rest(place).await;
    for id in &ids {
        api.delete(id).await?;
    }
    Ok(Crowd { took, each: each(before, after, count) })
}

fn commit(other: &Other<'_>, container: &str, count: usize) -> Result<Crowd, String> {
    let image = ContainerEngine::image_name("crowd");
    let commit = other.timed(&other.engine.commit(container, &image))?;
    let used = |storage: Option<PathBuf>| match storage {
        Some(folder) => disk::below(&folder),
        None => Err("it does not tell where it keeps containers".to_owned()),
    };
    let storage = || other.engine.storage().map(Path::to_owned);
    let before = used(storage());
    let began = Instant::now();
    let line = other.engine.start_image(None, &image);
    at_once(count, &|| other.run(&line))?;
    let took = commit + began.elapsed();
    let after = used(storage());
    other.engine.clear(other.ground);
    other.run(&other.engine.remove_image(&image))?;
    Ok(Crowd { took, each: each(before, after, count) })
}

/// So often, some at a time.
fn at_once(count: usize, act: &(dyn Fn() -> Result<(), String> + Sync)) -> Result<(), String> {
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> Result<(), String> {
            while begun.fetch_add(1, Ordering::Relaxed) < count {
                act()?;
            }
            Ok(())
        };
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        let ended =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a thread ended early".into())));
        ended.collect()
    })
}

/// Bytes for each copy. Less than nothing is no measurement: something else was removed meanwhile.
fn each(before: Result<u64, String>, after: Result<u64, String>, count: usize) -> Result<f64, String> {
    let (before, after) = (before?, after?);
    let more = after.checked_sub(before).ok_or("something else was removed from that disk meanwhile")?;
    Ok(more as f64 / count.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_divided_and_never_less_than_nothing() {
        assert_eq!(each(Ok(1000), Ok(3000), 4), Ok(500.0));
        assert!(each(Ok(3000), Ok(1000), 4).unwrap_err().contains("removed"));
        assert_eq!(each(Err("why".into()), Ok(1), 1), Err("why".into()));
    }

    #[test]
    fn everything_is_done_as_often_as_asked_and_a_failure_is_told() {
        let done = AtomicUsize::new(0);
        let act = || -> Result<(), String> {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        at_once(20, &act).unwrap();
        assert_eq!(done.load(Ordering::Relaxed), 20);
        assert_eq!(at_once(3, &|| Err("no".to_owned())), Err("no".to_owned()));
    }
}
