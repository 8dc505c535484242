//! A provider, and all that it needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cove_control::config::{Config, Section};
use cove_control::provider::{self, Durability, Image, Limits, Network, Order, Provider};
use cove_control::random;
use cove_testkit::dockerd::Dockerd;
use cove_testkit::program::cove_path;
use cove_testkit::{Need, TestServer, need, skip};

/// In the daemon of the tests, and in no registry.
pub const SMALL: (&str, &str) = ("cove-test/small", "1");

pub struct Place {
    config: Config,
    pub image: Image,
    /// Where sandboxes are containers.
    pub docker: Option<Dockerd>,
    /// Where they are another server's, which is reached by a service's own API.
    pub far: Option<TestServer>,
    /// Dropped last.
    data: tempfile::TempDir,
}

impl Place {
    /// `None` only where a skip is allowed; so are the others.
    pub fn local() -> Option<Place> {
        if !need::root() {
            return None;
        }
        let pool = ["/usr/sbin/mkfs.btrfs", "/sbin/mkfs.btrfs"].iter().any(|path| Path::new(path).exists());
        if !pool {
            skip(Need::Pool, "mkfs.btrfs is not installed");
            return None;
        }
        Some(Place::of("local", toml::Table::new(), Image::default(), None))
    }

    pub fn docker() -> Option<Place> {
        let docker = daemon()?;
        let keys = toml::Table::from_iter([("host".to_owned(), docker.host().into())]);
        Some(Place::of("docker", keys, small(), Some(docker)))
    }

    pub fn docker_by_network() -> Option<Place> {
        let docker = daemon()?;
        let keys = toml::Table::from_iter([("host".to_owned(), docker.by_network().into())]);
        Some(Place::of("docker", keys, small(), Some(docker)))
    }

    fn of(kind: &str, keys: toml::Table, image: Image, docker: Option<Dockerd>) -> Place {
        let data = tempfile::Builder::new().prefix("cove-place-").tempdir().expect("make a directory");
        let section = Section { kind: kind.to_owned(), keys };
        let config = Config {
            data: data.path().to_owned(),
            provider: kind.to_owned(),
            providers: BTreeMap::from([(kind.to_owned(), section)]),
            ..Config::default()
        };
        Place { config, image, docker, far: None, data }
    }

    /// The sandboxes of a second server of ours, by the door of a service. `keys` are those of the section beside the key.
    pub fn far(kind: &str, keys: impl FnOnce(&str) -> Vec<(&'static str, toml::Value)>) -> Option<Place> {
        if !need::root() {
            return None;
        }
        let server = TestServer::start();
        let keys = keys(&server.url()).into_iter().chain([("api_key", server.key().into())]);
        let keys = keys.map(|(name, value)| (name.to_owned(), value)).collect();
        let mut place = Place::of(kind, keys, Image::default(), None);
        place.far = Some(server);
        Some(place)
    }

    /// As a server that starts does; the one before must have been dropped.
    pub fn open(&self) -> Arc<dyn Provider> {
        let mut all = provider::configured(&self.config, &cove_path()).expect("open the provider");
        all.pop().expect("one section, one provider")
    }

    /// A server with this provider and no other.
    pub fn serve(&self) -> TestServer {
        let Section { kind, keys } = &self.config.providers[&self.config.provider];
        let mut section = keys.clone();
        section.insert("kind".into(), kind.clone().into());
        if let Some(reference) = &self.image.reference {
            section.insert("image".into(), reference.clone().into());
        }
        let all = toml::Table::from_iter([(kind.clone(), section.into())]);
        let whole =
            toml::Table::from_iter([("provider".into(), kind.clone().into()), ("providers".into(), all.into())]);
        let file = self.data.path().join("cove.toml");
        std::fs::write(&file, whole.to_string()).expect("write a configuration");
        TestServer::start_with(&["--config", file.to_str().expect("a path of words")])
    }

    /// As if what opens the provider were the far server itself.
    pub fn call_it_the_far_one(&self) {
        let far = self.far.as_ref().expect("there is a far server").data();
        std::fs::copy(far.join("server-id"), self.data.path().join("server-id")).expect("copy the name of the server");
    }

    pub fn order(&self) -> Order {
        Order {
            id: random::sandbox_id(),
            earlier: None,
            image: self.image.clone(),
            durability: Durability::Durable,
            limits: Limits { memory: 256 << 20, pids: 128, disk: None, ..Limits::default() },
            network: Network::None,
            volumes: Vec::new(),
            hostname: "story".into(),
            env: BTreeMap::new(),
            user: "user".into(),
            cwd: None,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What a story that failed has left of our own engine's.
        if self.docker.is_none() && self.far.is_none() && std::thread::panicking() {
            cove_testkit::reboot::reboot(self.data.path());
        }
    }
}

fn daemon() -> Option<Dockerd> {
    let docker = Dockerd::start()?;
    docker.import_small_image(SMALL.0, SMALL.1);
    Some(docker)
}

fn small() -> Image {
    Image { reference: Some(format!("{}:{}", SMALL.0, SMALL.1)), ..Image::default() }
}
