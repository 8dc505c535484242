//! Snapshots and forks of a sandbox that has written nothing, much, and many files.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::super::super::Bench;
use super::super::super::contest::{Contest, milliseconds};
use super::super::super::peers::ContainerEngine;
use super::{Filling, Other, Others};
use crate::measure::api::{Api, Trouble, text_of};
use crate::measure::report::{Suite, Unit};

#[derive(Debug, Clone, Copy)]
struct Copied {
    snapshot: Duration,
    fork: Duration,
}

pub async fn measure(bench: &Bench, api: &Api, others: &Others<'_>) -> Suite {
    let (large, many) =
        (Filling::Large { mib: bench.effort.large_mib }, Filling::Many { files: bench.effort.many_files });
    let mut suite = Suite::new(
        "copies",
        "Snapshots and forks",
        &format!(
            "A running sandbox of an image has written nothing, {} in files of 16 MiB, or {} of a few bytes, and is at rest. \"snapshot\" is \
             from the call until its files are kept; \"fork\" until a copy of it runs. Others: `commit`, with the container paused, and \
             `commit` and `run` of what came of it. One sample of each in turn. Where sandboxes are kept on btrfs, neither should depend on \
             what was written.",
            large.name(),
            many.name()
        ),
    );
    let mut plots = Vec::new();
    for filling in [Filling::Nothing, large, many] {
        plots.extend(of_filling(bench, api, others, filling, &mut suite).await);
    }
    for (step, filling) in
        ["snapshot", "fork"].into_iter().flat_map(|step| [large, many].map(|filling| (step, filling)))
    {
        suite.compare(&format!("cove, {step}, {}", filling.name()), &format!("cove, {step}, nothing"));
    }
    suite.distribution("Milliseconds of a snapshot and of a fork, every sample", &plots);
    others.tell_absent(&mut suite);
    suite
}

/// Rows of one filling; returns what a plot shows of them.
async fn of_filling(
    bench: &Bench,
    api: &Api,
    others: &Others<'_>,
    filling: Filling,
    suite: &mut Suite,
) -> Vec<(String, Vec<f64>)> {
    let name = filling.name();
    bench.bar.set_message(format!("a sandbox with {name}"));
    let mut contest: Contest<'_, Copied> = Contest::new();
    let ours = filling.sandbox(api).await;
    match &ours {
        Ok(id) => {
            let id = Arc::new(id.clone());
            contest.add("cove", bench.effort.copies, move || {
                let id = Arc::clone(&id);
                async move { copy(api, &id).await.map_err(|trouble| trouble.to_string()) }
            });
        }
        Err(trouble) => suite.absent(&format!("cove, {name}"), trouble.to_string()),
    }
    let container = ContainerEngine::image_name("source");
    for other in others.here.iter().copied() {
        bench.bar.set_message(format!("{} with {name}", other.name));
        match tokio::task::block_in_place(|| filling.container(&other, &container)) {
            Ok(()) => {
                let container = container.clone();
                contest.add_blocking(other.name, bench.effort.slow_copies, move || commit(&other, &container));
            }
            Err(why) => suite.absent(&format!("{}, {name}", other.name), why),
        }
    }
    contest.hold(&bench.bar, &format!("snapshots and forks of {name}")).await;
    let mut plots = Vec::new();
    for contender in &contest.contenders {
        let of = |take: fn(&Copied) -> Duration| -> Vec<f64> {
            contender.samples.iter().map(|copied| milliseconds(take(copied))).collect()
        };
        for (step, values) in [("snapshot", of(|copied| copied.snapshot)), ("fork", of(|copied| copied.fork))] {
            let who = format!("{}, {step}, {name}", contender.name);
            suite.row(&who, Unit::Milliseconds, &values);
            if contender.name != "cove" {
                suite.compare(&who, &format!("cove, {step}, {name}"));
            }
            plots.push((who, values));
        }
        if let Some(why) = &contender.failed {
            suite.absent(&format!("{}, {name}", contender.name), why.clone());
        }
    }
    drop(contest);
    if let Ok(id) = ours {
        // Also removed at the end, should this fail.
        drop(api.delete(&id).await);
    }
    tokio::task::block_in_place(|| others.here.iter().for_each(|other| other.engine.clear(other.ground)));
    plots
}

async fn copy(api: &Api, id: &str) -> Result<Copied, Trouble> {
    let began = Instant::now();
    let taken = api.call(Method::POST, &format!("/api/sandboxes/{id}/snapshots"), Some(json!({}))).await?;
    let snapshot = began.elapsed();
    let began = Instant::now();
    let forked = api.call(Method::POST, &format!("/api/sandboxes/{id}/fork"), Some(json!({ "count": 1 }))).await?;
    let fork = began.elapsed();
    api.delete(&text_of(&forked["forks"][0]["sandbox"], "id")?).await?;
    api.call(Method::DELETE, &format!("/api/snapshots/{}", text_of(&taken, "id")?), None).await?;
    Ok(Copied { snapshot, fork })
}

/// What is nearest to it elsewhere: an image of the container, and another container of that image.
fn commit(other: &Other<'_>, container: &str) -> Result<Copied, String> {
    let (image, copy) = (ContainerEngine::image_name("copy"), format!("{container}-copy"));
    let snapshot = other.timed(&other.engine.commit(container, &image))?;
    let started = other.timed(&other.engine.start_image(Some(&copy), &image))?;
    other.run(&other.engine.remove(&copy))?;
    other.run(&other.engine.remove_image(&image))?;
    Ok(Copied { snapshot, fork: snapshot + started })
}
