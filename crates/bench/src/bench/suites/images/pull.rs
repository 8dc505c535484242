//! An image from a registry: fetched, compared with its digests, and unpacked so that something could start from it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::Method;

use super::super::super::Bench;
use super::super::super::contest::Contest;
use super::super::super::peers::{Ground, cautious_ground, run_to_end, run_with};
use super::material::{LAYERS, Material};
use super::registry::Registry;
use super::{Others, build_line, variables};
use crate::measure::api::Api;
use crate::measure::machine::version_of;
use crate::measure::report::Suite;

const TEMPLATE: &str = "bench-pull";
const TOOLS: &str = "skopeo and umoci";

pub async fn measure(bench: &Bench, others: &Others<'_>, material: &Material) -> Suite {
    let (rounds, mib) = (bench.effort.image_rounds, bench.effort.image_mib);
    let mut suite = Suite::new(
        "pull",
        "An image from a registry",
        &format!(
            "An image of {mib} MiB in {LAYERS} layers from a registry on this machine, until it is unpacked: `cove template build --image`, \
             `podman pull`, `docker pull`, `buildah pull`, `skopeo copy` and `umoci unpack`. Programs are timed from their start to their \
             end. In each round all pull the same image, and none of its layers was there before. One sample of each in turn."
        ),
    );
    let Some(server) = &bench.server else { return suite };
    bench.bar.set_message("images for a registry");
    let registry = match Registry::start(&bench.home.path().join("registry")).await {
        Ok(registry) => registry,
        Err(why) => {
            suite.absent("registry", why);
            return suite;
        }
    };
    // One of them for the round that does not count.
    let images = match fill(&registry, material, mib, rounds + 1).await {
        Ok(images) => images,
        Err(why) => {
            suite.absent("registry", why);
            return suite;
        }
    };
    let mut contest: Contest<'_, Duration> = Contest::warmed_once();
    let (api, next) = (&server.api, in_order(&images));
    contest.add("cove", rounds, move || {
        let image = next();
        async move { ours(bench, api, &image).await }
    });
    for other in others.here.iter().copied() {
        let next = in_order(&images);
        contest.add_blocking(other.name, rounds, move || {
            let image = next();
            let took = other.timed(&other.engine.pull(&image))?;
            other.run(&other.engine.remove_image(&image)).map(|()| took)
        });
    }
    others.tell_absent(&mut suite);
    for (name, program) in [(TOOLS, "skopeo"), (TOOLS, "umoci"), ("buildah", "buildah")] {
        if version_of(program).is_none() {
            suite.absent(name, format!("{program} is not installed"));
        }
    }
    let home = bench.home.path();
    if version_of("skopeo").is_some() && version_of("umoci").is_some() {
        let (next, place) = (in_order(&images), home.join("skopeo"));
        contest.add_blocking(TOOLS, rounds, move || by_tools(&next(), &place));
    }
    if version_of("buildah").is_some() {
        let (next, line, ground) = (in_order(&images), buildah(home), cautious_ground());
        contest.add_blocking("buildah", rounds, move || {
            let image = next();
            let with = |words: &[&str]| -> Vec<String> {
                line.iter().cloned().chain(words.iter().map(|&word| word.to_owned())).collect()
            };
            let began = Instant::now();
            run_to_end(&with(&["pull", "--quiet", "--tls-verify=false", &image]), ground)?;
            let took = began.elapsed();
            run_to_end(&with(&["rmi", "--force", &image]), ground).map(|()| took)
        });
    }
    contest.hold(&bench.bar, "pulls").await;
    contest.tell(&mut suite, "Milliseconds of a pull, every sample", |took| *took);
    suite.compare_to(&["cove"]);
    suite
}

/// Its own storage, below our directory.
pub fn buildah(home: &Path) -> Vec<String> {
    let place = |name: &str| home.join(name).display().to_string();
    let line = ["buildah", "--root", &place("buildah-storage"), "--runroot", &place("buildah-run")];
    line.map(str::to_owned).to_vec()
}

/// As many images as there are rounds, all different.
async fn fill(registry: &Registry, material: &Material, mib: usize, rounds: usize) -> Result<Vec<String>, String> {
    tokio::task::block_in_place(|| material.make_layers(mib)).map_err(|error| error.to_string())?;
    let mut images = Vec::new();
    for round in 0..rounds {
        let make = || (0..LAYERS).map(|number| material.layer(number, round)).collect::<Result<Vec<_>, _>>();
        let layers = tokio::task::block_in_place(make)?;
        images.push(registry.push(&format!("r{round}"), layers).await.map_err(|trouble| trouble.to_string())?);
    }
    Ok(images)
}

/// Every contender gets all of them in their order.
fn in_order(images: &[String]) -> impl Fn() -> String + Clone + Send {
    let next = Arc::new(AtomicUsize::new(0));
    move || images[next.fetch_add(1, Ordering::Relaxed) % images.len()].clone()
}

async fn ours(bench: &Bench, api: &Api, image: &str) -> Result<Duration, String> {
    let line = build_line(bench, TEMPLATE, &["--image", image]);
    let began = Instant::now();
    tokio::task::block_in_place(|| run_with(&line, &variables(api)))?;
    let took = began.elapsed();
    let removed = api.call(Method::DELETE, &format!("/api/templates/{TEMPLATE}"), None).await;
    removed.map(|_| took).map_err(|trouble| trouble.to_string())
}

fn by_tools(image: &str, place: &Path) -> Result<Duration, String> {
    let (layout, bundle) = (place.join("layout"), place.join("bundle"));
    std::fs::create_dir_all(place).map_err(|error| error.to_string())?;
    let [source, layout] = [format!("docker://{image}"), format!("{}:pulled", layout.display())];
    let copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", &source];
    let copy: Vec<String> = copy.map(str::to_owned).into_iter().chain([format!("oci:{layout}")]).collect();
    let bundle = bundle.display().to_string();
    let rootless: &[&str] = if cove_engine::privilege::is_host_root() { &[] } else { &["--rootless"] };
    // Its flags stand before what they are about.
    let mut unpack = vec!["umoci", "unpack"];
    unpack.extend(rootless);
    unpack.extend(["--image", &layout, &bundle]);
    let unpack: Vec<String> = unpack.into_iter().map(str::to_owned).collect();
    let began = Instant::now();
    run_to_end(&copy, Ground::Plain)?;
    run_to_end(&unpack, Ground::Plain)?;
    let took = began.elapsed();
    std::fs::remove_dir_all(place).map(|()| took).map_err(|error| format!("remove {}: {error}", place.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_gets_the_same_images_in_the_same_order() {
        let images = ["a", "b", "c"].map(str::to_owned);
        let (first, second) = (in_order(&images), in_order(&images));
        // A contest clones what it calls; the order goes on.
        let copy = first.clone();
        assert_eq!([first(), copy(), first()], ["a", "b", "c"]);
        assert_eq!([second(), second()], ["a", "b"]);
    }
}
