//! A Dockerfile, built anew and built again.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::super::Bench;
use super::super::super::contest::{Contest, milliseconds};
use super::super::super::peers::{Cache, ContainerEngine, cautious_ground, run_to_end, run_with};
use super::material::Material;
use super::pull::buildah;
use super::{Others, build_line, variables};
use crate::measure::api::Api;
use crate::measure::machine::version_of;
use crate::measure::report::{Suite, Unit};

const TEMPLATE: &str = "bench-build";

#[derive(Debug, Clone, Copy)]
struct Built {
    /// Every step done.
    anew: Duration,
    /// Every step found.
    again: Duration,
}

impl Built {
    /// Both, by what does one.
    fn by(build: impl Fn(Cache) -> Result<(), String>) -> Result<Built, String> {
        let timed = |cache| {
            let began = Instant::now();
            build(cache).map(|()| began.elapsed())
        };
        Ok(Built { anew: timed(Cache::Ignored)?, again: timed(Cache::Used)? })
    }
}

pub async fn measure(bench: &Bench, others: &Others<'_>, material: &Material) -> Suite {
    let mut suite = Suite::new(
        "build",
        "A Dockerfile",
        "From nothing: a root of a few programs and a folder of 500 files are copied, 500 files are written, the folder is copied; without \
         the cache, and a second time with it. `cove template build`, `podman build`, `docker build`, `buildah build --layers`, all without a \
         network, from the start of the program to its end, files sent and all. One sample of each in turn.",
    );
    let Some(server) = &bench.server else { return suite };
    let (rounds, context) = (bench.effort.image_rounds, material.context());
    let image = ContainerEngine::image_name("build");
    let mut contest: Contest<'_, Built> = Contest::without_warming();
    let (api, folder) = (&server.api, context.clone());
    contest.add_blocking("cove", rounds, move || Built::by(|cache| ours(bench, api, &folder, cache)));
    for other in others.here.iter().copied() {
        let (image, context) = (image.clone(), context.clone());
        contest.add_blocking(other.name, rounds, move || {
            Built::by(|cache| other.run(&other.engine.build(&image, &context, cache)))
        });
    }
    others.tell_absent(&mut suite);
    match version_of("buildah") {
        Some(_) => {
            let (line, ground) = (buildah(bench.home.path()), cautious_ground());
            contest.add_blocking("buildah", rounds, move || {
                Built::by(|cache| {
                    let verb = ["build", "--quiet", "--layers", "--network", "none", "--tag", &image];
                    let words = verb.iter().chain(cache.flags()).map(|&word| word.to_owned());
                    let words = words.chain([context.display().to_string()]);
                    run_to_end(&line.iter().cloned().chain(words).collect::<Vec<_>>(), ground)
                })
            });
        }
        None => suite.absent("buildah", "not installed"),
    }
    contest.hold(&bench.bar, "builds").await;
    tell(&contest, &mut suite);
    suite
}

fn tell(contest: &Contest<'_, Built>, suite: &mut Suite) {
    let mut plots = Vec::new();
    for contender in &contest.contenders {
        let of = |take: fn(&Built) -> Duration| -> Vec<f64> {
            contender.samples.iter().map(|built| milliseconds(take(built))).collect()
        };
        for (how, values) in [("without cache", of(|built| built.anew)), ("with cache", of(|built| built.again))] {
            let who = format!("{}, {how}", contender.name);
            suite.row(&who, Unit::Milliseconds, &values);
            if contender.name != "cove" {
                suite.compare(&who, &format!("cove, {how}"));
            }
            plots.push((who, values));
        }
        if let Some(why) = &contender.failed {
            suite.absent(&contender.name, why.clone());
        }
    }
    suite.distribution("Milliseconds of a build, every sample", &plots);
}

fn ours(bench: &Bench, api: &Api, context: &Path, cache: Cache) -> Result<(), String> {
    let folder = context.display().to_string();
    let words: Vec<&str> = [folder.as_str()].into_iter().chain(cache.flags().iter().copied()).collect();
    run_with(&build_line(bench, TEMPLATE, &words), &variables(api))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn the_second_build_is_the_one_with_the_cache() {
        let seen = RefCell::new(Vec::new());
        let built = Built::by(|cache| {
            seen.borrow_mut().push(cache);
            if cache == Cache::Ignored {
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let built = built.unwrap();
        assert_eq!(*seen.borrow(), [Cache::Ignored, Cache::Used]);
        assert!(built.anew >= Duration::from_millis(20) && built.again < built.anew, "{built:?}");
        assert!(Built::by(|_| Err("no".to_owned())).is_err());
    }
}
