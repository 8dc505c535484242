//! A cold start from an image, beside one of `base`, which shows this machine's own files.

use std::time::{Duration, Instant};

use serde_json::json;

use super::super::super::Bench;
use super::super::super::contest::Contest;
use super::super::super::ours::BASE;
use super::super::super::peers::{ContainerEngine, run_timed};
use super::{IMAGE, Others, TEMPLATE};
use crate::measure::api::{Api, Trouble};
use crate::measure::report::Suite;

const WORDS: [&str; 3] = ["/bin/sh", "-c", "echo ready"];

pub async fn measure(bench: &Bench, api: &Api, others: &Others<'_>) -> Suite {
    let mut suite = Suite::new(
        "image",
        "A cold start from an image",
        "`sh -c 'echo ready'` in a fresh sandbox whose files are an image's, from the call to its output; beside one of `base`, and beside \
         containers of the same image. The image is here already, and its shell is this machine's: all run the same program. One sample of \
         each in turn.",
    );
    let mut contest: Contest<'_, Duration> = Contest::new();
    for (who, template) in [("cove over HTTP, base", BASE), ("cove over HTTP, image", TEMPLATE)] {
        contest.add(who, bench.effort.rounds, move || async move {
            once(api, template).await.map_err(|trouble| trouble.to_string())
        });
    }
    for other in others.here.iter().copied() {
        let line = other.engine.run_image(&ContainerEngine::image_name(IMAGE), &WORDS);
        contest.add_blocking(&format!("{}, image", other.name), bench.effort.slow_rounds, move || {
            run_timed(&line, other.ground).map(|timed| timed.first)
        });
    }
    contest.hold(&bench.bar, "cold starts from an image").await;
    contest.tell(&mut suite, "Milliseconds to the first output from an image, every sample", |took| *took);
    suite.compare_to(&["cove over HTTP, base"]);
    others.tell_absent(&mut suite);
    suite
}

async fn once(api: &Api, template: &str) -> Result<Duration, Trouble> {
    let timers = json!({ "lifetime_seconds": 3600, "ephemeral": true });
    let began = Instant::now();
    let id = api.create_with(json!({ "template": template, "timers": timers })).await?;
    let told = api.exec(&id, &WORDS).await;
    let took = began.elapsed();
    api.delete(&id).await?;
    told.map(|_| took)
}
