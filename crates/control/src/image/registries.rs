//! Registries and archives, by our own client (`cove-image`).
//!
//! Tenants name registries, so every address is judged as if a tenant's webhook asked for it: private, link-local and
//! metadata addresses are refused, except for hosts that the operator named as mirrors, registries or targets. What is
//! fetched lies in the spool of the data directory until it is unpacked; its digests are compared before and while.
//!
//! * [`outward`]: images that are pushed; [`credentials`]: who the operator is at registries

mod credentials;
mod outward;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use cove_image::archive::{self, Archive};
use cove_image::config::Defaults;
use cove_image::reference::{self, Alias, Names};
use cove_image::registry::{self, Credentials as Password, Inspected, Options, Registry};
use cove_image::unpack::{self, Limit, Limits, Timed, Tree};
use cove_image::{Digest, Platform, Reference, chain};
use cove_policy::Target;
use sha2::{Digest as _, Sha256};

use super::export::Packed;
use super::source::{Config, Found, Meant, Outward, Progress, Room, Source, SourceError, Tell};
use crate::build::Credentials;
use crate::config;
use crate::provider::LayerId;
use crate::provider::images::Fill;
use crate::provider::stop::Stop;
use crate::{Error, neighbourhood, random};

/// What the largest public registry is called in references, its other names, and where it answers.
const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 2] = ["index.docker.io", "registry-1.docker.io"];
const HUB_ENDPOINT: &str = "registry-1.docker.io";

/// Bytes that are read at a time.
const BUFFER: usize = 64 << 10;

/// An alias with this before it names a template.
const TEMPLATE: &str = "template:";

pub struct Registries {
    names: Names,
    /// Hosts that the operator named, each with its port; without one, every port of it. Not the host alone: on that of a
    /// mirror there are other programs, which were never meant for tenants.
    trusted: BTreeSet<Place>,
    /// The same without mirrors.
    trusted_outward: BTreeSet<Place>,
    /// `host[:port][/prefix]`, as the operator wrote them.
    mirrors: Vec<String>,
    /// By host: as whom the server pulls where nobody is named, and pushes for operators.
    credentials: BTreeMap<String, Password>,
    insecure: Vec<String>,
    /// Private targets that tenants may reach.
    open: Vec<Target>,
    spool: PathBuf,
    /// Bytes of an image as it is fetched.
    largest: u64,
    unpacking: Unpacking,
}

/// What bounds the unpacking of one image.
#[derive(Debug, Clone, Copy)]
struct Unpacking {
    bytes: u64,
    within: Duration,
}

impl Unpacking {
    /// Its time begins now.
    fn begin(self) -> Limits {
        Limits { bytes: self.bytes, deadline: Instant::now().checked_add(self.within), ..Limits::default() }
    }

    fn took_too_long(self) -> String {
        format!("the image was not unpacked within {} s, which is builds.unpack_seconds", self.within.as_secs())
    }

    /// Whose fault it is decides who reads the sentence.
    fn failed(self, error: unpack::Error) -> io::Error {
        let message = error.to_string();
        match error {
            unpack::Error::Full { errno, .. } => io::Error::new(io::Error::from(errno).kind(), message),
            unpack::Error::Host { .. } => io::Error::other(message),
            unpack::Error::Limit(Limit::Time) => io::Error::new(io::ErrorKind::InvalidData, self.took_too_long()),
            _ => io::Error::new(io::ErrorKind::InvalidData, message),
        }
    }

    /// The same of an archive that is read.
    fn unreadable(self, error: archive::Error) -> SourceError {
        match error {
            archive::Error::Io(error) if is_late(&error) => SourceError::Invalid(self.took_too_long()),
            archive::Error::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
                SourceError::Disk(error.to_string())
            }
            archive::Error::Io(_) => SourceError::Invalid(error.to_string()),
            archive::Error::NotThere { .. } | archive::Error::Several(_) => SourceError::NotFound(error.to_string()),
            error => SourceError::Invalid(error.to_string()),
        }
    }
}

/// Whether a read failed because its time was over.
fn is_late(error: &io::Error) -> bool {
    matches!(error.get_ref().and_then(|inner| inner.downcast_ref::<Limit>()), Some(Limit::Time))
}

/// The operator's lists, read. The error names the key.
pub fn names(images: &config::Images) -> Result<Names, (&'static str, String)> {
    let mut names = Names {
        default_registry: images.registry.trim().to_owned(),
        same: HUB_NAMES.into_iter().map(|name| (name.to_owned(), HUB.to_owned())).collect(),
        ..Names::default()
    };
    if names.default_registry.is_empty() || names.default_registry.contains(['/', ' ', ',']) {
        return Err(("images.registry", format!("{:?} is not the name of a registry", images.registry)));
    }
    for (registry, mirror) in pairs(&images.mirrors).map_err(|message| ("images.mirrors", message))? {
        names.mirrors.entry(registry).or_default().push(mirror);
    }
    names.mirrors.entry(HUB.to_owned()).or_default().push(HUB_ENDPOINT.to_owned());
    for (name, target) in pairs(&images.aliases).map_err(|message| ("images.aliases", message))? {
        let alias = match target.strip_prefix(TEMPLATE) {
            Some(template) => Alias::Own(template.to_owned()),
            None => Alias::Image(target),
        };
        let parsed = Reference::parse(&name, &names).map(drop);
        parsed.map_err(|error| ("images.aliases", error.to_string()))?;
        names.aliases.insert(name, alias);
    }
    Ok(names)
}

fn pairs(list: &str) -> Result<Vec<(String, String)>, String> {
    let entries = list.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    let pair = |entry: &str| match entry.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("{entry:?} is not NAME=VALUE")),
    };
    entries.map(pair).collect()
}

/// What is done at a registry, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum View {
    /// Whoever pulls may use what the operator has configured.
    Pulls,
    /// A push of somebody who may use it.
    Operators,
    /// A push of anybody else.
    Tenants,
}

/// A host, and a port of it.
type Place = (String, Option<u16>);

/// The port of registries that say none.
const USUAL_PORT: u16 = 443;

/// Host and port of `host[:port][/prefix]`.
fn place(text: &str) -> Place {
    let text = text.split('/').next().unwrap_or_default();
    // The colons of an address without brackets are its own.
    let is_host = |host: &str| !host.contains(':') || host.ends_with(']');
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) => (host, port.parse().ok()),
        _ => (text, None),
    };
    (host.trim_matches(['[', ']']).to_lowercase(), port)
}

impl Registries {
    pub fn new(config: &config::Config) -> Result<Registries, Error> {
        let names = names(&config.images).map_err(|(key, message)| Error::invalid(key, message))?;
        let insecure = config.images.insecure.split(',').map(str::trim).filter(|host| !host.is_empty());
        let insecure: Vec<String> = insecure.map(ToOwned::to_owned).collect();
        let usual = |(host, port): Place| (host, port.or(Some(USUAL_PORT)));
        let own = [usual(place(&names.default_registry))].into_iter().chain(insecure.iter().map(|text| place(text)));
        let trusted_outward: BTreeSet<Place> = own.collect();
        let mirrors = names.mirrors.values().flatten().map(|text| usual(place(text)));
        let trusted = mirrors.chain(trusted_outward.iter().cloned()).collect();
        let mirrors = names.mirrors.values().flatten().filter(|mirror| *mirror != HUB_ENDPOINT);
        let mirrors = mirrors.map(|mirror| mirror.to_lowercase()).collect();
        let credentials = match &config.images.credentials {
            Some(path) => credentials::read(path).map_err(|why| Error::invalid("images.credentials", why))?,
            None => BTreeMap::new(),
        };
        Ok(Registries {
            names,
            trusted,
            trusted_outward,
            mirrors,
            credentials,
            insecure,
            open: config.private_targets.clone(),
            spool: config.data.join("spool"),
            largest: config.builds.image_bytes,
            unpacking: Unpacking {
                bytes: config.builds.image_bytes.saturating_mul(4),
                within: Duration::from_secs(config.builds.unpack_seconds),
            },
        })
    }

    /// One tenant's view: nothing of it is kept.
    fn registry(&self, reference: &Reference, who: Option<&Credentials>, view: View) -> Registry {
        let trusted = match view {
            View::Pulls => &self.trusted,
            View::Operators | View::Tenants => &self.trusted_outward,
        };
        let (open, trusted) = (self.open.clone(), trusted.clone());
        let judge = move |name: &str, address: SocketAddr| -> Result<(), String> {
            let (host, _) = place(name);
            if trusted.contains(&(host.clone(), Some(address.port()))) || trusted.contains(&(host, None)) {
                return Ok(());
            }
            match neighbourhood::refused(&open, address.ip(), address.port()) {
                None => Ok(()),
                Some(class) => Err(format!("{} is {class}", address.ip())),
            }
        };
        let mut options = Options::new(self.names.clone(), Arc::new(judge));
        options.insecure.clone_from(&self.insecure);
        options.largest = self.largest;
        if view != View::Tenants {
            options.credentials.clone_from(&self.credentials);
        }
        if let Some(Credentials { username, password }) = who {
            let password = Password::Password { user: username.clone(), password: password.clone() };
            // Mirrors are the operator's: a tenant's password is for the registry that it named.
            options.credentials.insert(reference.registry().to_owned(), password.clone());
            if reference.registry() == HUB {
                options.credentials.insert(HUB_ENDPOINT.to_owned(), password);
            }
        }
        Registry::new(options)
    }

    fn reference(&self, text: &str) -> Result<Reference, SourceError> {
        Reference::parse(text, &self.names).map_err(|error| SourceError::NotFound(error.to_string()))
    }

    async fn inspect(
        &self,
        reference: &Reference,
        who: Option<&Credentials>,
    ) -> Result<(Registry, Inspected), SourceError> {
        let registry = self.registry(reference, who, View::Pulls);
        let inspected = registry.inspect(reference, &Platform::host()).await.map_err(refused)?;
        Ok((registry, inspected))
    }

    /// A directory of its own, gone when it is dropped.
    fn folder(&self) -> Result<Folder, SourceError> {
        let path = self.spool.join(random::hex(16));
        let made = crate::app::make_private_directory(&path).and_then(|()| File::open(&path));
        let opened = made.map_err(|error| SourceError::Disk(format!("{}: {error}", path.display())))?;
        Ok(Folder { path, opened: opened.into() })
    }
}

struct Folder {
    path: PathBuf,
    opened: OwnedFd,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, "remove what was fetched of an image; the next start removes it");
        }
    }
}

impl Registries {
    async fn fetch_layers(
        &self,
        found: &Found,
        who: Option<&Credentials>,
        tell: Tell<'_>,
    ) -> Result<Fetched, SourceError> {
        let digest = found.digest.parse().map_err(|_| SourceError::Invalid("a digest that is none".into()))?;
        let reference = self.reference(&found.reference)?.with_digest(digest);
        let (registry, inspected) = self.inspect(&reference, who).await?;
        if tree(&inspected.config.rootfs.diff_ids) != found.layer {
            return Err(SourceError::Invalid(format!("{reference}: its content changed while it was fetched")));
        }
        let layers = inspected.layers();
        let folder = self.folder()?;
        let bytes = inspected.manifest.bytes();
        let done: Mutex<HashMap<Digest, u64>> = Mutex::default();
        let progress = |progress: registry::Progress| {
            let mut done = done.lock().expect("no panic while held");
            done.insert(progress.layer, progress.done);
            tell(Progress { done: done.values().sum(), bytes });
        };
        registry.fetch(&inspected, 0..layers.len(), &folder.opened, progress).await.map_err(refused)?;
        Ok(Fetched { folder, layers })
    }
}

/// The layers of an image as they were sent, lowest first. Each has the digest that the manifest says.
struct Fetched {
    folder: Folder,
    layers: Vec<registry::Layer>,
}

impl Fetched {
    /// How its layers come onto a tree.
    fn fill(self, unpacking: Unpacking) -> Fill {
        let Fetched { folder, layers } = self;
        Box::new(move |root: OwnedFd, stop: &Stop| {
            let failed = |error| unpacking.failed(error);
            let mut tree = Tree::new(root, unpacking.begin()).map_err(failed)?;
            for layer in layers {
                let file = registry::open_layer(&folder.opened, &layer.digest)?;
                tree.apply(stop.before(file), Some(&layer.diff_id)).map_err(failed)?;
            }
            Ok(())
        })
    }

    /// Whether each unpacks to what the config says, within what bounds the unpacking. Blocking.
    fn check(&self, unpacking: Unpacking, stop: &Stop) -> Result<(), SourceError> {
        let Limits { bytes: mut most, deadline, .. } = unpacking.begin();
        for layer in &self.layers {
            let unreadable = |error: io::Error| match is_late(&error) {
                true => SourceError::Invalid(unpacking.took_too_long()),
                false => SourceError::Invalid(format!("the layer {}: {error}", layer.digest)),
            };
            let file = registry::open_layer(&self.folder.opened, &layer.digest)
                .map_err(|error| SourceError::Disk(format!("open a layer: {error}")))?;
            let (found, bytes) = digest_of(Timed::new(stop.before(file), deadline), most).map_err(unreadable)?;
            most = most.saturating_sub(bytes);
            if found != layer.diff_id {
                let (layer, said) = (&layer.digest, &layer.diff_id);
                return Err(SourceError::Invalid(format!(
                    "the layer {layer} unpacks to {found}, its image says {said}"
                )));
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Source for Registries {
    fn meaning(&self, name: &str) -> Result<Meant, SourceError> {
        match self.names.resolve(name) {
            Ok(reference::Meant::Image(reference)) => Ok(Meant::Image(reference.to_string())),
            Ok(reference::Meant::Own(template)) => Ok(Meant::Template(template)),
            Err(error) => Err(SourceError::NotFound(error.to_string())),
        }
    }

    async fn resolve(&self, reference: &str, who: Option<&Credentials>) -> Result<Found, SourceError> {
        let reference = self.reference(reference)?;
        let (_, inspected) = self.inspect(&reference, who).await?;
        Ok(Found {
            reference: reference.to_string(),
            digest: inspected.manifest_digest.to_string(),
            layer: tree(&inspected.config.rootfs.diff_ids),
            config: config_of(inspected.config.defaults()),
            bytes: inspected.manifest.bytes(),
        })
    }

    async fn prove(&self, found: &Found, who: Option<&Credentials>, tell: Tell<'_>) -> Result<(), SourceError> {
        let (fetched, unpacking) = (self.fetch_layers(found, who, tell).await?, self.unpacking);
        let stop = Stop::default();
        let _waiting = stop.unless_waited_for();
        let checked = tokio::task::spawn_blocking(move || fetched.check(unpacking, &stop)).await;
        checked.map_err(|error| SourceError::Disk(format!("compare layers: {error}")))?
    }

    async fn fetch(&self, found: &Found, who: Option<&Credentials>, tell: Tell<'_>) -> Result<Fill, SourceError> {
        Ok(self.fetch_layers(found, who, tell).await?.fill(self.unpacking))
    }

    async fn open(&self, path: &Path, name: Option<&str>, room: Room) -> Result<(Found, Fill), SourceError> {
        let (folder, stop) = (self.folder()?, Stop::default());
        let _waiting = stop.unless_waited_for();
        let unpacking = Unpacking { bytes: self.unpacking.bytes.min(room.bytes), ..self.unpacking };
        let (path, name) = (path.to_owned(), name.map(ToOwned::to_owned));
        let go_on = move || match stop.is_asked_for() {
            true => Err(io::Error::other("nobody waits for it any more")),
            false => (room.check)().map_err(|full| io::Error::new(io::ErrorKind::StorageFull, full.to_string())),
        };
        let read = move || read_archive(&path, name.as_deref(), folder, unpacking, &go_on);
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| SourceError::Disk(format!("read an archive: {error}")))?
    }

    fn target(&self, name: &str) -> Result<String, SourceError> {
        Ok(self.outward(name)?.to_string())
    }

    async fn push(&self, packed: &Packed, to: Outward<'_>, tell: Tell<'_>) -> Result<String, SourceError> {
        self.push_image(packed, to, tell).await
    }
}

/// What an archive has, and how it is unpacked. Blocking.
fn read_archive(
    path: &Path,
    name: Option<&str>,
    folder: Folder,
    unpacking: Unpacking,
    go_on: &dyn Fn() -> io::Result<()>,
) -> Result<(Found, Fill), SourceError> {
    let limits = unpacking.begin();
    let unreadable = |error| unpacking.unreadable(error);
    let disk = |error: io::Error| SourceError::Disk(format!("read an archive: {error}"));
    let scratch = || File::options().read(true).write(true).create_new(true).open(folder.path.join("decoded"));
    let file = File::open(path).map_err(disk)?;
    let archive = Archive::open_while(file, scratch, &limits, go_on).map_err(unreadable)?;
    let image = archive.image(name, &Platform::host()).map_err(unreadable)?;
    let mut diff_ids = Vec::new();
    for layer in &image.layers {
        diff_ids.push(match layer.diff_id {
            Some(digest) => digest,
            // A plain tar is named by what is in it.
            None => {
                let digest = digest_of(Timed::new(layer.open(), limits.deadline), limits.bytes);
                let failed = |error: io::Error| match is_late(&error) {
                    true => SourceError::Invalid(unpacking.took_too_long()),
                    false => disk(error),
                };
                digest.map_err(failed)?.0
            }
        });
    }
    let layer = tree(&diff_ids);
    let digest = image.digest.unwrap_or_else(|| Digest::of(layer.as_bytes()));
    let found = Found {
        reference: image.names.first().cloned().unwrap_or_else(|| "archive".to_owned()),
        digest: digest.to_string(),
        layer,
        config: config_of(image.config.defaults()),
        bytes: image.layers.iter().map(archive::Layer::bytes).sum(),
    };
    let fill: Fill = Box::new(move |root: OwnedFd, stop: &Stop| {
        // Its files are needed until here.
        let _folder = folder;
        let failed = |error| unpacking.failed(error);
        let mut tree = Tree::new(root, unpacking.begin()).map_err(failed)?;
        for (layer, diff_id) in image.layers.iter().zip(&diff_ids) {
            tree.apply(stop.before(layer.open()), Some(diff_id)).map_err(failed)?;
        }
        Ok(())
    });
    Ok((found, fill))
}

/// Of the bytes when they are unpacked, and how many these are. A few bytes can be packed that make millions.
fn digest_of(from: impl Read, most: u64) -> io::Result<(Digest, u64)> {
    let mut from = unpack::Decoder::new(from)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BUFFER];
    let mut bytes = 0;
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok((Digest::from_bytes(hash.finalize().into()), bytes));
        }
        bytes += count as u64;
        if bytes > most {
            return Err(io::Error::other(format!("it is larger than {most} bytes when unpacked")));
        }
        hash.update(&buffer[..count]);
    }
}

/// The name of the tree that layers make together.
fn tree(diff_ids: &[Digest]) -> LayerId {
    let chain = chain::id(diff_ids).unwrap_or_else(|| Digest::of(b"an image without layers"));
    LayerId::new(chain::layer_id(&chain))
}

fn config_of(defaults: Defaults) -> Config {
    Config {
        env: defaults.env.into_iter().collect::<BTreeMap<_, _>>(),
        user: defaults.user,
        workdir: defaults.workdir,
        entrypoint: defaults.entrypoint,
        command: defaults.command,
        shell: defaults.shell,
        on_build: defaults.on_build,
    }
}

fn refused(error: registry::Error) -> SourceError {
    use registry::Error as E;
    let message = error.to_string();
    match error {
        E::NotFound { .. } => SourceError::NotFound(message),
        E::Forbidden { .. } | E::Insecure { .. } | E::Unauthorized { .. } => SourceError::Refused(message),
        E::Unreachable { .. } | E::Busy { .. } => SourceError::Unreachable(message),
        E::Answer { status, .. } if status >= 500 => SourceError::Unreachable(message),
        E::Answer { .. } => SourceError::Refused(message),
        E::Content { .. } | E::TooLarge { .. } | E::Manifest { .. } | E::Config { .. } => SourceError::Invalid(message),
        E::Disk(_) => SourceError::Disk(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Images;

    fn images(mirrors: &str, aliases: &str) -> Images {
        Images { mirrors: mirrors.into(), aliases: aliases.into(), ..Images::default() }
    }

    fn registries(images: Images) -> Registries {
        let config = config::Config { images, ..config::Config::default() };
        Registries::new(&config).unwrap()
    }

    #[test]
    fn names_lead_where_the_operator_says() {
        let all =
            registries(images("docker.io=mirror.local:5000/hub", "ubuntu:22.04=template:base, e2bdev/base=debian:12"));
        assert_eq!(all.meaning("ubuntu:22.04").unwrap(), Meant::Template("base".into()));
        assert_eq!(all.meaning("e2bdev/base").unwrap(), Meant::Image("docker.io/library/debian:12".into()));
        assert_eq!(all.meaning("ubuntu:24.04").unwrap(), Meant::Image("docker.io/library/ubuntu:24.04".into()));
        assert!(matches!(all.meaning("not a name"), Err(SourceError::NotFound(_))));
        assert_eq!(all.names.endpoints("docker.io")[..2], ["mirror.local:5000/hub", "registry-1.docker.io"]);
        assert!(all.trusted.contains(&("mirror.local".into(), Some(5000))));
        assert!(all.trusted.contains(&("docker.io".into(), Some(443))));
    }

    #[test]
    fn a_place_has_a_host_and_perhaps_a_port() {
        for (text, host, port) in [
            ("Mirror.Local:5000/hub", "mirror.local", Some(5000)),
            ("mirror.local/hub", "mirror.local", None),
            ("127.0.0.1", "127.0.0.1", None),
            ("[::1]:5000", "::1", Some(5000)),
            ("[::1]", "::1", None),
            ("::1", "::1", None),
        ] {
            assert_eq!(place(text), (host.to_owned(), port), "{text}");
        }
    }

    #[tokio::test]
    async fn beside_a_registry_of_the_operators_no_other_port_of_its_host_is_reached() {
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let named = if port == 5055 { 5056 } else { 5055 };
        let all = registries(Images { insecure: format!("127.0.0.1:{named}"), ..Images::default() });
        for name in [format!("127.0.0.1:{port}/x:1"), format!("127.1:{port}/x:1"), format!("2130706433:{port}/x:1")] {
            let Meant::Image(reference) = all.meaning(&name).unwrap() else { panic!("{name}") };
            let refused = all.resolve(&reference, None).await;
            assert!(matches!(refused, Err(SourceError::Refused(_))), "{name}: {refused:?}");
        }
    }

    #[test]
    fn layers_are_compared_with_what_their_config_says() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = b"a layer as it was sent";
        let digest = Digest::of(bytes);
        let checked = |diff_id: Digest, unpacking: Unpacking| {
            let path = folder.path().join(random::hex(8));
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join(digest.hex()), bytes).unwrap();
            let opened = File::open(&path).unwrap().into();
            let layers = vec![registry::Layer { digest, bytes: bytes.len() as u64, diff_id }];
            Fetched { folder: Folder { path, opened }, layers }.check(unpacking, &Stop::default())
        };
        let usual = Unpacking { bytes: 1 << 20, within: Duration::from_secs(600) };
        checked(digest, usual).unwrap();
        assert!(matches!(checked(Digest::of(b"another"), usual), Err(SourceError::Invalid(_))));
        let small = Unpacking { bytes: 3, ..usual };
        assert!(matches!(checked(digest, small), Err(SourceError::Invalid(_))), "more than is allowed");
        let late = checked(digest, Unpacking { within: Duration::ZERO, ..usual }).unwrap_err();
        assert!(matches!(&late, SourceError::Invalid(why) if why.contains("builds.unpack_seconds")), "{late:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    /// The layers of an image with one file.
    fn fetched(folder: &Path) -> Fetched {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        builder.append_data(&mut header, "hello", &b"hello"[..]).unwrap();
        let bytes = builder.into_inner().unwrap();
        let digest = Digest::of(&bytes);
        let path = folder.join("spooled");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join(digest.hex()), &bytes).unwrap();
        let opened = File::open(&path).unwrap().into();
        let layers = vec![registry::Layer { digest, bytes: bytes.len() as u64, diff_id: digest }];
        Fetched { folder: Folder { path, opened }, layers }
    }

    #[test]
    fn an_image_that_takes_too_long_to_unpack_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::fs::create_dir(&target).unwrap();
        let filled = |within: Duration| {
            let fill = fetched(folder.path()).fill(Unpacking { bytes: 1 << 20, within });
            fill(File::open(&target).unwrap().into(), &Stop::default())
        };
        let late = filled(Duration::ZERO).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::InvalidData);
        assert!(late.to_string().contains("builds.unpack_seconds"), "{late}");
        assert!(!target.join("hello").exists() && !folder.path().join("spooled").exists(), "nothing is left");
        filled(Duration::from_secs(600)).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("hello")).unwrap(), "hello");
    }

    #[tokio::test]
    async fn an_archive_that_takes_too_long_to_read_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let builds = config::Builds { unpack_seconds: 0, ..config::Builds::default() };
        let config = config::Config { data: folder.path().to_owned(), builds, ..config::Config::default() };
        let all = Registries::new(&config).unwrap();
        let path = folder.path().join("image.tar");
        for bytes in [vec![0; 10_240], zstd::encode_all(&[0_u8; 10_240][..], 3).unwrap()] {
            std::fs::write(&path, bytes).unwrap();
            let late = all.open(&path, None, room(1 << 30)).await.err().expect("there is no time at all");
            assert!(matches!(&late, SourceError::Invalid(why) if why.contains("builds.unpack_seconds")), "{late:?}");
        }
        assert_eq!(std::fs::read_dir(folder.path().join("spool")).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn lists_that_cannot_be_read_are_named_by_their_key() {
        for (mirrors, aliases, key) in
            [("nonsense", "", "images.mirrors"), ("", "a=", "images.aliases"), ("", "A B=c", "images.aliases")]
        {
            assert_eq!(names(&images(mirrors, aliases)).unwrap_err().0, key);
        }
        let wrong = Images { registry: "a/b".into(), ..Images::default() };
        assert_eq!(names(&wrong).unwrap_err().0, "images.registry");
    }

    #[tokio::test]
    async fn a_tenant_reaches_no_registry_of_the_neighbourhood() {
        // Another test may have chosen it before; it is the same one.
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let all = registries(Images::default());
        for name in ["127.0.0.1:5000/x:1", "169.254.169.254/x:1", "10.0.0.1/x:1"] {
            let Meant::Image(reference) = all.meaning(name).unwrap() else { panic!("{name}") };
            let refused = all.resolve(&reference, None).await;
            assert!(matches!(refused, Err(SourceError::Refused(_))), "{name}: {refused:?}");
        }
    }

    fn room(bytes: u64) -> Room {
        Room { bytes, check: Arc::new(|| Ok(())) }
    }

    #[tokio::test]
    async fn an_archive_that_grows_ends_with_the_room_that_there_is() {
        let folder = tempfile::tempdir().unwrap();
        let config = config::Config { data: folder.path().to_owned(), ..config::Config::default() };
        let all = Registries::new(&config).unwrap();
        let path = folder.path().join("bomb.tar.zst");
        std::fs::write(&path, zstd::encode_all(io::repeat(0).take(64 << 20), 3).unwrap()).unwrap();
        let refused = all.open(&path, None, room(1 << 20)).await.err().expect("larger than what may be kept");
        assert!(matches!(refused, SourceError::Invalid(_)), "{refused:?}");
        let full = Room { bytes: 1 << 30, check: Arc::new(|| Err(Error::Full("no room".into()))) };
        let refused = all.open(&path, None, full).await.err().expect("the disk is full");
        assert!(matches!(refused, SourceError::Disk(_)), "{refused:?}");
        assert_eq!(std::fs::read_dir(folder.path().join("spool")).unwrap().count(), 0, "nothing is left");
    }

    #[tokio::test]
    async fn the_tar_of_a_tree_is_an_image_and_nonsense_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let config = config::Config { data: folder.path().to_owned(), ..config::Config::default() };
        let all = Registries::new(&config).unwrap();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(5);
        header.set_mode(0o644);
        builder.append_data(&mut header, "etc/hello", &b"hello"[..]).unwrap();
        let path = folder.path().join("root.tar");
        std::fs::write(&path, builder.into_inner().unwrap()).unwrap();
        let (found, fill) = all.open(&path, None, room(1 << 30)).await.unwrap();
        let target = folder.path().join("target");
        std::fs::create_dir(&target).unwrap();
        fill(File::open(&target).unwrap().into(), &Stop::default()).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("etc/hello")).unwrap(), "hello");
        assert_eq!(
            all.open(&path, None, room(1 << 30)).await.unwrap().0.layer,
            found.layer,
            "the same content has the same name"
        );
        assert_eq!(std::fs::read_dir(folder.path().join("spool")).unwrap().count(), 0, "nothing is left");
        std::fs::write(&path, b"nonsense".repeat(200)).unwrap();
        let refused = match all.open(&path, None, room(1 << 30)).await {
            Ok((_, fill)) => {
                let filled = fill(File::open(&target).unwrap().into(), &Stop::default());
                filled.unwrap_err().kind() == io::ErrorKind::InvalidData
            }
            Err(error) => matches!(error, SourceError::Invalid(_)),
        };
        assert!(refused);
    }
}
