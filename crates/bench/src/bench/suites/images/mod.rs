//! Images: pulled, started from, built; and what sandboxes of them have written, kept and copied.
//!
//! Everything is made here ([`material`]); nothing comes from elsewhere. Others take part as far as they are installed and
//! have a word for it: podman and docker, skopeo with umoci, buildah.
//!
//! # Layout
//! * [`pull`], from a [`registry`] of our own; [`start`]; [`build`]
//! * [`copies`]: snapshots and forks of a sandbox that has written little, much, and many files
//! * [`crowd`]: many forks at once, and what they take on the [`disk`]

mod build;
mod copies;
mod crowd;
mod disk;
mod material;
mod pull;
mod registry;
mod start;

use std::path::Path;
use std::time::{Duration, Instant};

pub use material::Material;
use reqwest::{Body, Method};
use serde_json::{Value, json};

use super::super::Bench;
use super::super::peers::{ContainerEngine, Ground, Peer, run_to_end};
use crate::measure::api::{Api, Trouble, lost, text_of};
use crate::measure::report::{Absent, Suite};

/// Programs that take part in no other group.
pub const PROGRAMS: [&str; 4] = ["skopeo", "umoci", "buildah", "docker-registry"];

/// Those among the peers that have images.
const ENGINES: [&str; 2] = ["podman", "docker"];

/// What everything but a pull and a build starts from, at ours and at others.
const TEMPLATE: &str = "bench-image";
const IMAGE: &str = "root";

pub async fn measure(bench: &Bench) -> Vec<Suite> {
    bench.bar.set_message("files for images");
    let made = tokio::task::block_in_place(|| Material::make(&bench.home.path().join("images")));
    let others = Others::of(bench);
    let material = match made {
        Ok(material) => material,
        Err(why) => return vec![not_measured("images", &format!("files for images: {why}"))],
    };
    let mut suites =
        vec![pull::measure(bench, &others, &material).await, build::measure(bench, &others, &material).await];
    let Some(server) = &bench.server else { return suites };
    match import(&server.api, &material.archive()).await {
        Ok(()) => {
            let others = tokio::task::block_in_place(|| others.with_image(&material.archive()));
            suites.push(start::measure(bench, &server.api, &others).await);
            suites.push(crowd::measure(bench, server, &others).await);
            suites.push(copies::measure(bench, &server.api, &others).await);
        }
        Err(trouble) => suites.push(not_measured("image", &format!("import an image: {trouble}"))),
    }
    suites
}

fn not_measured(name: &str, why: &str) -> Suite {
    let mut suite = Suite::new(name, "Images", "");
    suite.absent("cove", why);
    suite
}

/// The tar of a root becomes our template, by the API.
async fn import(api: &Api, archive: &Path) -> Result<(), Trouble> {
    let bytes = tokio::fs::read(archive).await.map_err(|error| Trouble::Wrong(error.to_string()))?;
    let request = api.request(Method::POST, &format!("/api/images/import?name={TEMPLATE}")).body(Body::from(bytes));
    let started: Value = api.send(request).await?.json().await.map_err(lost)?;
    let build = format!("/api/templates/{TEMPLATE}/builds/{}", text_of(&started["build"], "id")?);
    // The stream ends with the build.
    api.call_text(&format!("{build}/logs/follow")).await?;
    let ended = api.call(Method::GET, &build, None).await?;
    if ended["state"] == "ready" { Ok(()) } else { Err(Trouble::Wrong(format!("the build ended as {ended}"))) }
}

/// What a caller of ours needs to speak to the server by the command line.
fn variables(api: &Api) -> [(&str, &str); 2] {
    [("COVE_URL", api.url.as_str()), ("COVE_API_KEY", api.key.as_str())]
}

/// `cove template build`.
fn build_line(bench: &Bench, template: &str, words: &[&str]) -> Vec<String> {
    let program = bench.program.display().to_string();
    let own = [program.as_str(), "template", "build", template];
    own.into_iter().chain(words.iter().copied()).map(str::to_owned).collect()
}

/// Container engines beside us, and why some are not.
struct Others<'a> {
    here: Vec<Other<'a>>,
    absent: Vec<Absent>,
}

#[derive(Debug, Clone, Copy)]
struct Other<'a> {
    name: &'static str,
    engine: &'a ContainerEngine,
    ground: Ground,
}

impl<'a> Others<'a> {
    fn of(bench: &'a Bench) -> Others<'a> {
        let other = |peer: &'a Peer| {
            let engine = peer.container_engine()?;
            Some(Other { name: peer.name, engine, ground: peer.ground })
        };
        let absent = bench.absent.iter().filter(|absent| ENGINES.contains(&absent.who.as_str()));
        Others { here: bench.peers.iter().filter_map(other).collect(), absent: absent.cloned().collect() }
    }

    /// Those that have the image afterwards.
    fn with_image(self, archive: &Path) -> Others<'a> {
        let (mut here, mut absent) = (Vec::new(), self.absent);
        for other in self.here {
            match other.run(&other.engine.import(archive, &ContainerEngine::image_name(IMAGE))) {
                Ok(()) => here.push(other),
                Err(why) => absent.push(Absent { who: other.name.to_owned(), why }),
            }
        }
        Others { here, absent }
    }

    fn tell_absent(&self, suite: &mut Suite) {
        suite.absent.extend(self.absent.iter().cloned());
    }
}

impl Other<'_> {
    fn run(&self, line: &[String]) -> Result<(), String> {
        run_to_end(line, self.ground)
    }

    fn timed(&self, line: &[String]) -> Result<Duration, String> {
        let began = Instant::now();
        self.run(line).map(|()| began.elapsed())
    }
}

/// What a sandbox or a container has written before it is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    Nothing,
    Large { mib: usize },
    Many { files: usize },
}

/// Large files have this size, and a directory has so many small ones.
const PIECE_MIB: usize = 16;
const IN_A_DIRECTORY: usize = 100;
/// Even on a slow disk.
const FILLED_WITHIN: Duration = Duration::from_secs(900);

impl Filling {
    fn name(self) -> String {
        match self {
            Filling::Nothing => "nothing".to_owned(),
            Filling::Large { mib } if mib % 1024 == 0 => format!("{} GiB", mib / 1024),
            Filling::Large { mib } => format!("{mib} MiB"),
            Filling::Many { files } => format!("{} files", in_thousands(files)),
        }
    }

    /// For the shell of the image. Bytes that no filesystem stores in less.
    fn script(self) -> Option<String> {
        let path = "PATH=/usr/bin:/bin; export PATH";
        match self {
            Filling::Nothing => None,
            Filling::Large { mib } => Some(format!(
                "{path}; mkdir /large && for n in $(seq {}); do head -c {} /dev/urandom > /large/$n || exit 1; done",
                mib / PIECE_MIB,
                PIECE_MIB << 20
            )),
            Filling::Many { files } => Some(format!(
                "{path}; for d in $(seq {}); do mkdir -p /many/$d || exit 1; \
                 for n in $(seq {IN_A_DIRECTORY}); do echo $n > /many/$d/$n || exit 1; done; done",
                files / IN_A_DIRECTORY
            )),
        }
    }

    /// A sandbox of ours that has written it, and keeps it like any other.
    async fn sandbox(self, api: &Api) -> Result<String, Trouble> {
        let room = match self {
            Filling::Large { mib } => (mib as u64) << 20,
            Filling::Nothing | Filling::Many { .. } => 0,
        };
        let (timers, limits) = (json!({ "lifetime_seconds": 3600 }), json!({ "disk": room + (2 << 30) }));
        let limited = json!({ "template": TEMPLATE, "timers": timers, "limits": limits });
        let id = match api.create_with(limited).await {
            // Without root there may be nothing that holds a limit.
            Err(Trouble::Refused { status: 400, .. }) => {
                api.create_with(json!({ "template": TEMPLATE, "timers": timers })).await?
            }
            made => made?,
        };
        if let Some(script) = self.script() {
            let body = json!({ "command": ["/bin/sh", "-c", script], "timeout_seconds": FILLED_WITHIN.as_secs() });
            let request = api.request(Method::POST, &format!("/api/sandboxes/{id}/exec")).json(&body);
            let done: Value = api.send(request.timeout(FILLED_WITHIN)).await?.json().await.map_err(lost)?;
            if done["exit"]["status"] != 0 {
                return Err(Trouble::Wrong(format!("files of a sandbox could not be written: {done}")));
            }
        }
        Ok(id)
    }

    /// The same in a container of the image that stays.
    fn container(self, other: &Other<'_>, name: &str) -> Result<(), String> {
        other.run(&other.engine.start_image(Some(name), &ContainerEngine::image_name(IMAGE)))?;
        match self.script() {
            Some(script) => other.run(&other.engine.exec(name, &["/bin/sh", "-c", &script])),
            None => Ok(()),
        }
    }
}

/// 100,000.
fn in_thousands(number: usize) -> String {
    let digits = number.to_string();
    let grouped: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    grouped.join(",")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn fillings_are_told_as_people_say_them() {
        let fillings = [Filling::Nothing, Filling::Large { mib: 1024 }, Filling::Large { mib: 64 }];
        assert_eq!(fillings.map(Filling::name), ["nothing", "1 GiB", "64 MiB"]);
        assert_eq!(Filling::Many { files: 100_000 }.name(), "100,000 files");
        assert_eq!([7, 999, 5000, 1_234_567].map(in_thousands), ["7", "999", "5,000", "1,234,567"]);
    }

    /// The scripts work in any shell, below another root.
    #[test]
    fn the_scripts_write_what_they_say() {
        let place = tempfile::tempdir().unwrap();
        let run = |filling: Filling, folder: &str| {
            let script = filling.script().unwrap().replace(folder, &place.path().join("x").display().to_string());
            assert!(Command::new("/bin/sh").args(["-c", &script]).status().unwrap().success());
            let count = |path: &Path| std::fs::read_dir(path).unwrap().count();
            let top = place.path().join("x");
            let counts = (count(&top), top.join("1").is_dir().then(|| count(&top.join("1"))));
            let first = std::fs::metadata(top.join("1")).unwrap().len();
            std::fs::remove_dir_all(&top).unwrap();
            (counts, first)
        };
        assert_eq!(run(Filling::Many { files: 300 }, "/many").0, (3, Some(100)));
        assert_eq!(run(Filling::Large { mib: 32 }, "/large"), ((2, None), 16 << 20));
    }
}
