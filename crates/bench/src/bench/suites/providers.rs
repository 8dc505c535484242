//! The same sandbox at every provider: made, and a command in it.
//!
//! A second server has them all. The services are played by the first one, through its doors of their dialects: what is
//! measured is our way there and not theirs. docker is measured where a daemon answers.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use super::super::Bench;
use super::super::contest::Contest;
use super::super::peers::{ContainerEngine, Peer, run_to_end};
use super::images::Material;
use crate::measure::api::{Api, Trouble};
use crate::measure::own_server::OwnServer;
use crate::measure::report::Suite;

const LOCAL: &str = "local";
const DOCKER: &str = "docker";
/// Services, by the first server's doors.
const SERVICES: [&str; 3] = ["e2b", "daytona", "vercel"];
const IMAGE: &str = "provider";
const WORDS: [&str; 1] = ["/bin/true"];

pub async fn measure(bench: &mut Bench) -> Vec<Suite> {
    let mut made = Suite::new(
        "providers-create",
        "A sandbox at each provider",
        "From the call to the first answer of what runs inside, over HTTP. Services are played by a second server of ours on this machine. \
         One sample of each in turn.",
    );
    let mut ran = Suite::new(
        "providers-exec",
        "A command at each provider",
        "`/bin/true` in a sandbox that lives, over HTTP, from the call to its exit status. One sample of each in turn.",
    );
    let docker = match tokio::task::block_in_place(|| with_image(bench)) {
        Ok(image) => Some(image),
        Err(why) => {
            made.absent(DOCKER, why.clone());
            ran.absent(DOCKER, why);
            None
        }
    };
    if let Err(why) = start(bench, docker.as_deref()).await {
        made.absent("cove", why.clone());
        ran.absent("cove", why);
        return vec![made, ran];
    }
    let Some(front) = &bench.front else { return vec![made, ran] };
    let names: Vec<&str> = [LOCAL].into_iter().chain(docker.is_some().then_some(DOCKER)).chain(SERVICES).collect();
    let rounds = |name: &str| if name == LOCAL { bench.effort.rounds } else { bench.effort.slow_rounds };

    let api = &front.api;
    let mut contest: Contest<'_, Duration> = Contest::warmed_once();
    for &name in &names {
        contest.add(name, rounds(name), move || async move {
            let began = Instant::now();
            let id = create(api, name).await.map_err(|trouble| trouble.to_string())?;
            let took = began.elapsed();
            api.delete(&id).await.map_err(|trouble| trouble.to_string())?;
            Ok(took)
        });
    }
    contest.hold(&bench.bar, "sandboxes of each provider").await;
    contest.tell(&mut made, "Milliseconds to a sandbox, every sample", |took| *took);

    let mut alive = Vec::new();
    for &name in &names {
        match create(api, name).await {
            Ok(id) => alive.push((name, id)),
            Err(trouble) => ran.absent(name, trouble.to_string()),
        }
    }
    let mut contest: Contest<'_, Duration> = Contest::new();
    for (name, id) in &alive {
        contest.add(name, bench.effort.rounds, move || async move {
            let began = Instant::now();
            api.exec(id, &WORDS).await.map_err(|trouble| trouble.to_string())?;
            Ok(began.elapsed())
        });
    }
    contest.hold(&bench.bar, "commands at each provider").await;
    contest.tell(&mut ran, "Milliseconds for a command, every sample", |took| *took);
    drop(contest);
    for (_, id) in &alive {
        // Also removed at the end, should this fail.
        drop(api.delete(id).await);
    }
    made.compare_to(&[LOCAL]);
    ran.compare_to(&[LOCAL]);
    vec![made, ran]
}

async fn create(api: &Api, provider: &str) -> Result<String, Trouble> {
    let timers = json!({ "lifetime_seconds": 3600, "ephemeral": true });
    api.create_with(json!({ "provider": provider, "timers": timers, "network": { "access": "closed" } })).await
}

/// The image that docker's sandboxes start from, made of programs of this machine; it goes with the peer.
fn with_image(bench: &Bench) -> Result<String, String> {
    let of_docker = |peer: &&Peer| peer.name == DOCKER;
    let Some(peer) = bench.peers.iter().find(of_docker) else {
        let absent = bench.absent.iter().find(|absent| absent.who == DOCKER);
        return Err(absent.map_or_else(|| "it is not here".to_owned(), |absent| absent.why.clone()));
    };
    let engine = peer.container_engine().ok_or("it has no images")?;
    let material = Material::make(&bench.home.path().join("provider"))?;
    let image = ContainerEngine::image_name(IMAGE);
    run_to_end(&engine.import(&material.archive(), &image), peer.ground)?;
    Ok(image)
}

/// A server that has them all.
async fn start(bench: &mut Bench, image: Option<&str>) -> Result<(), String> {
    let far = &bench.server.as_ref().ok_or("there is no first server")?.api;
    let file = bench.home.path().join("providers.toml");
    write(&file, &settings(&far.url, &far.key, image)).map_err(|error| format!("write {}: {error}", file.display()))?;
    let words = vec![OsString::from("--config"), file.into_os_string()];
    bench.front = Some(OwnServer::start_by(&bench.program, words).await.map_err(|complaint| complaint.to_string())?);
    Ok(())
}

/// The key is in it.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    std::fs::File::options().write(true).create_new(true).mode(0o600).open(file)?.write_all(text.as_bytes())
}

fn settings(url: &str, key: &str, image: Option<&str>) -> String {
    let mut text = format!("provider = \"{LOCAL}\"\n[providers.{LOCAL}]\nkind = \"{LOCAL}\"\n");
    if let Some(image) = image {
        text.push_str(&format!("[providers.{DOCKER}]\nkind = \"{DOCKER}\"\nimage = \"{image}\"\n"));
    }
    for service in SERVICES {
        text.push_str(&format!("[providers.{service}]\nkind = \"{service}\"\napi_key = \"{key}\"\n"));
        text.push_str(&match service {
            "e2b" => format!("url = \"{url}/e2b\"\nsandbox_url = \"{url}/e2b\"\n"),
            "daytona" => format!("url = \"{url}/daytona/api\"\n"),
            _ => format!("url = \"{url}/vercel/api\"\nteam = \"team_1\"\nproject = \"prj_1\"\n"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_for_each() {
        let text = settings("http://127.0.0.1:1", "k", Some("image"));
        for name in [LOCAL, DOCKER].into_iter().chain(SERVICES) {
            assert_eq!(text.matches(&format!("[providers.{name}]\nkind = \"{name}\"\n")).count(), 1, "{text}");
        }
        assert!(!settings("http://127.0.0.1:1", "k", None).contains(DOCKER));
    }
}
