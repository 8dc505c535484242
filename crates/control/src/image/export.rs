//! Templates and snapshots as images that other programs load.
//!
//! ```text
//!   layer ─▶ tar.gz in a spool file ┐
//!   layer ─▶ tar.gz in a spool file ┼─▶ one tar, streamed: an OCI layout, and what `docker load` reads
//!   defaults ─▶ the image's config  ┘     or blob by blob to a registry (`push`)
//! ```
//!
//! An archive needs a layer's size and digest before its content, so layers are packed into files first. The files have
//! no name: whatever happens, nothing of them is left. To pack takes a turn of the server's; to read does not, however
//! slow the reader is ([`super::outlet`]).
//!
//! A layer has what was in it when it was made, also what a later one took away. That is its owner's business: of layers
//! that another organisation made public, the files go out as a sandbox sees them, in one layer.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cove_image::Digest;
use cove_image::config::{Config, Run};
use cove_image::export::{self, Compression, Image, Part, Written};
use cove_image::manifest::Manifest;
use rustix::fs::{Mode, OFlags, openat};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::outlet::{self, Archive, Outlet};
use crate::image::work::Work;
use crate::provider::Under;
use crate::template::name::{Chosen, Reference};
use crate::template::{DEFAULT_TAG, Template};
use crate::{App, Caller, Error, random};

/// Bytes that are packed between two looks at the disk.
const LOOK: usize = 16 << 20;

/// Exports that are packed at one time: each takes a processor.
static TURNS: Semaphore = Semaphore::const_new(2);

impl App {
    /// A template or snapshot as one archive: an OCI layout that `docker load` reads, too. `name` may have a tag.
    pub async fn export_template(&self, caller: &Caller, name: &str) -> Result<Archive, Error> {
        let template = self.template(caller, name).await?;
        check_exportable(&template)?;
        self.check_disk(&self.provider_of(&template))?;
        let place = self.exports().take(&caller.organisation)?;
        let open = self.open_layers_of(&caller.organisation, &template).await?;
        self.audit(caller, "template.export", &template.id).await?;
        let config = config(&template, &self.now().to_string());
        let names = vec![called(&template, name)];
        let (outlet, archive) = outlet::open();
        tokio::task::spawn_blocking(move || {
            let _place = place;
            let Open { turn, layers, mut spool, shape, room } = open;
            let watch = Watch { is_left: &|| outlet.is_left(), room: &*room };
            let packed = pack(&layers, &mut spool, watch, shape).map_err(io::Error::other);
            // What follows goes at the reader's own pace: nobody waits for that.
            drop((turn, layers));
            if let Err(error) = packed.and_then(|layers| write(&layers, spool, &config, &names, outlet)) {
                tracing::warn!(template = template.name, %error, "export a template");
            }
        });
        Ok(archive)
    }

    /// A template or snapshot as the blobs of an image, in files without a name. Ends where nobody waits for it.
    pub(crate) async fn pack_template(&self, organisation: &str, template: &Template) -> Result<Packed, Error> {
        check_exportable(template)?;
        self.check_disk(&self.provider_of(template))?;
        let open = self.open_layers_of(organisation, template).await?;
        let (config, config_file) = (config(template, &self.now().to_string()), self.nameless_file()?);
        let left = CancellationToken::new();
        let _left_when_dropped = left.clone().drop_guard();
        let packing = tokio::task::spawn_blocking(move || {
            let Open { turn, layers, mut spool, shape, room } = open;
            let _turn = turn;
            let written = pack(&layers, &mut spool, Watch { is_left: &|| left.is_cancelled(), room: &*room }, shape)?;
            Packed::of(&config, &written, spool, config_file)
        });
        let packed = packing.await.map_err(|error| Error::internal(format!("pack a template: {error}")))?;
        packed.map_err(|error| match error {
            export::Error::Refused { .. } => Error::invalid("template", error.to_string()),
            export::Error::Write(ref full) if full.kind() == io::ErrorKind::StorageFull => {
                Error::Full(full.to_string())
            }
            error => Error::internal(format!("pack template {}: {error}", template.id)),
        })
    }

    fn provider_of(&self, template: &Template) -> String {
        template.provider.clone().unwrap_or_else(|| self.default_provider().to_owned())
    }

    /// The layers of a template, open, when it is their turn to be packed.
    async fn open_layers_of(&self, organisation: &str, template: &Template) -> Result<Open, Error> {
        let provider = self.provider_of(template);
        let turn = TURNS.acquire().await.map_err(|_| Error::exhausted("the server ends"))?;
        // Held until they are open: an open layer stays for as long as its descriptor.
        let work = Work::begin(self);
        if !work.hold(&template.image.root.over).await? {
            return Err(Error::Conflict(format!("template {} was just deleted", template.name)));
        }
        self.bring_layers(&work, &provider, &template.image.root).await?;
        let opener = self.provider(&provider)?.layers();
        let mut layers = Vec::new();
        // Lowest first.
        for layer in template.image.root.over.iter().rev() {
            layers.push(opener.open_layer(*layer).await?);
        }
        work.end().await?;
        let shape = self.shape_for(organisation, template).await?;
        let files = match shape {
            Shape::Layers => layers.len(),
            Shape::Flat => 1,
        };
        let spool = (0..files).map(|_| self.nameless_file()).collect::<Result<Vec<File>, Error>>()?;
        let room = self.disk_check(self.provider(&provider)?);
        Ok(Open { turn, layers, spool, shape, room })
    }

    /// Whether all layers of a template are the organisation's own, or images of registries.
    async fn shape_for(&self, organisation: &str, template: &Template) -> Result<Shape, Error> {
        for layer in &template.image.root.over {
            let owner = self.store().layer(*layer).await?.and_then(|layer| layer.organisation);
            if owner.is_some_and(|owner| owner != organisation) {
                return Ok(Shape::Flat);
            }
        }
        Ok(Shape::Layers)
    }

    /// A file in the spool directory that is gone with its descriptor.
    fn nameless_file(&self) -> Result<File, Error> {
        let folder = self.config().data.join("spool");
        let trouble = |error: io::Error| Error::internal(format!("{}: {error}", folder.display()));
        crate::app::make_private_directory(&folder).map_err(trouble)?;
        let path = folder.join(random::hex(16));
        let file = File::options().read(true).write(true).create_new(true).open(&path).map_err(trouble)?;
        std::fs::remove_file(&path).map_err(trouble)?;
        Ok(file)
    }
}

/// Refuses what has nothing that runs elsewhere.
pub(crate) fn check_exportable(template: &Template) -> Result<(), Error> {
    match template.image.root.under {
        Under::Nothing => Ok(()),
        Under::Host => Err(Error::Unsupported(format!(
            "template {} shows this machine's own programs, which are no part of it: only what stands on an image can be \
             exported",
            template.name
        ))),
    }
}

/// What is packed, and the turn to do it.
struct Open {
    turn: SemaphorePermit<'static>,
    /// Lowest first. They stay open until all is packed: a layer may go when nobody has it open.
    layers: Vec<OwnedFd>,
    spool: Vec<File>,
    shape: Shape,
    room: Arc<dyn Fn() -> Result<(), Error> + Send + Sync>,
}

/// An image in files: what it consists of, and its blobs (config and layers) by their digests.
pub struct Packed {
    pub manifest: Manifest,
    pub blobs: BTreeMap<Digest, Arc<File>>,
}

impl Packed {
    fn of(config: &Config, layers: &[Written], spool: Vec<File>, mut file: File) -> Result<Packed, export::Error> {
        let Image { manifest, config, .. } = Image::new(config, layers)?;
        file.write_all(&config)?;
        let layers = layers.iter().zip(spool).map(|(layer, file)| (layer.descriptor.digest, Arc::new(file)));
        let blobs = layers.chain([(manifest.config.digest, Arc::new(file))]).collect();
        Ok(Packed { manifest, blobs })
    }

    /// Bytes of all blobs.
    pub fn bytes(&self) -> u64 {
        self.manifest.bytes()
    }
}

/// How an export shows layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Each as it is.
    Layers,
    /// As they look from above.
    Flat,
}

/// What is looked at while layers are packed.
#[derive(Clone, Copy)]
struct Watch<'a> {
    /// Nobody waits for it any more.
    is_left: &'a dyn Fn() -> bool,
    /// Whether the disk still has room.
    room: &'a (dyn Fn() -> Result<(), Error> + Send + Sync),
}

/// Packs layers (lowest first) into files: each into its own, or all into the first. Ends where nobody waits for it, or the
/// disk has no room.
fn pack(layers: &[OwnedFd], spool: &mut [File], watch: Watch<'_>, shape: Shape) -> Result<Vec<Written>, export::Error> {
    let mut parts = Vec::new();
    for layer in layers {
        // What lies on an image is below `root` in its layer.
        let root = openat(layer, "root", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(|errno| export::Error::Read { path: "/".into(), errno })?;
        parts.push(vec![Part::new(root)]);
    }
    let limits = export::Limits::default();
    let files = spool.iter_mut().map(|file| Watched { file, watch, written: 0 });
    match shape {
        Shape::Flat => files.take(1).map(|file| export::flat(&parts, file, Compression::Gzip, &limits)).collect(),
        Shape::Layers => {
            let each = parts.iter().zip(files);
            each.map(|(part, file)| export::layer(part, file, Compression::Gzip, &limits)).collect()
        }
    }
}

/// A file that is packed for somebody. One who has gone is not worked for, and the disk is others' too.
struct Watched<'a> {
    file: &'a mut File,
    watch: Watch<'a>,
    /// Bytes since the disk was looked at.
    written: usize,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.watch.is_left)() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "nobody waits for it any more"));
        }
        let count = self.file.write(bytes)?;
        self.written += count;
        if self.written >= LOOK {
            self.written = 0;
            (self.watch.room)().map_err(|full| io::Error::new(io::ErrorKind::StorageFull, full.to_string()))?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn write(
    layers: &[Written],
    mut spool: Vec<File>,
    config: &Config,
    names: &[String],
    mut outlet: Outlet,
) -> io::Result<()> {
    let image = Image::new(config, layers).map_err(io::Error::other)?;
    export::archive(&image, &mut spool, names, &mut outlet).map_err(io::Error::other)?;
    outlet.end()
}

/// What other programs call it: `web:latest` for a template's usual build.
fn called(template: &Template, asked: &str) -> String {
    let chosen = Reference::parse(asked).map(|reference| reference.chosen).unwrap_or(Chosen::Default);
    match chosen {
        Chosen::Tag(tag) if tag != DEFAULT_TAG => format!("{}:{tag}", template.name),
        Chosen::Tag(_) | Chosen::Default => format!("{}:latest", template.name),
        Chosen::Build(id) => format!("{}:{id}", template.name),
    }
}

/// The template's defaults with an image's words.
fn config(template: &Template, now: &str) -> Config {
    let command = template.start.as_ref().map(|line| vec!["/bin/sh".to_owned(), "-c".to_owned(), line.clone()]);
    let config = Run {
        user: template.user.clone(),
        env: template.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        cmd: command.unwrap_or_default(),
        working_dir: template.cwd.clone().unwrap_or_default(),
        ..Run::default()
    };
    Config { created: Some(now.to_owned()), config, ..Config::default() }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Seek as _, SeekFrom};

    use rustix::fs::{XattrFlags, fsetxattr};

    use super::*;

    /// Somebody waits, and there is room.
    fn waits() -> Watch<'static> {
        Watch { is_left: &|| false, room: &|| Ok(()) }
    }

    #[tokio::test]
    async fn from_above_nothing_is_seen_that_was_taken_away() {
        let folder = tempfile::tempdir().unwrap();
        let layer = |name: &str, file: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.join("root/d")).unwrap();
            fs::write(path.join("root/d").join(file), "x").unwrap();
            path
        };
        let (lower, upper) = (layer("lower", "secret"), layer("upper", "kept"));
        // As an overlay marks a directory that replaces the one below.
        let replaced = File::open(upper.join("root/d")).unwrap();
        fsetxattr(&replaced, "user.overlay.opaque", b"y", XattrFlags::empty()).unwrap();
        let packed = |shape: Shape, files: usize| -> Vec<String> {
            let mut spool: Vec<File> = (0..files).map(|_| tempfile::tempfile().unwrap()).collect();
            let opened = [&lower, &upper].map(|path| OwnedFd::from(File::open(path).unwrap()));
            assert_eq!(pack(&opened, &mut spool, waits(), shape).unwrap().len(), files);
            let mut names = Vec::new();
            for mut file in spool {
                file.seek(SeekFrom::Start(0)).unwrap();
                for entry in tar::Archive::new(flate2::read::GzDecoder::new(file)).entries().unwrap() {
                    names.push(entry.unwrap().path().unwrap().to_string_lossy().into_owned());
                }
            }
            names
        };
        let has = |names: &[String], file: &str| names.iter().any(|name| name.ends_with(file));
        let layers = packed(Shape::Layers, 2);
        assert!(has(&layers, "d/secret") && has(&layers, "d/kept"), "{layers:?}");
        let flat = packed(Shape::Flat, 1);
        assert!(!has(&flat, "d/secret") && has(&flat, "d/kept"), "{flat:?}");
    }

    #[test]
    fn an_image_in_files_has_all_of_its_blobs() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        fs::write(folder.path().join("root/file"), "x").unwrap();
        let (opened, mut spool) =
            ([OwnedFd::from(File::open(folder.path()).unwrap())], vec![tempfile::tempfile().unwrap()]);
        let written = pack(&opened, &mut spool, waits(), Shape::Layers).unwrap();
        let packed = Packed::of(&Config::default(), &written, spool, tempfile::tempfile().unwrap()).unwrap();
        let mut bytes = 0;
        for part in packed.manifest.layers.iter().chain([&packed.manifest.config]) {
            let length = packed.blobs[&part.digest].metadata().unwrap().len();
            assert_eq!(length, part.size);
            bytes += length;
        }
        assert_eq!((packed.blobs.len(), packed.bytes()), (2, bytes));
    }

    #[tokio::test]
    async fn nobody_is_worked_for_who_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        let (outlet, archive) = outlet::open();
        drop(archive);
        let mut spool = [tempfile::tempfile().unwrap()];
        let opened = [OwnedFd::from(File::open(folder.path()).unwrap())];
        let watch = Watch { is_left: &|| outlet.is_left(), ..waits() };
        assert!(pack(&opened, &mut spool, watch, Shape::Layers).is_err());
        assert_eq!(spool[0].metadata().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_full_disk_ends_what_is_packed() {
        let mut file = tempfile::tempfile().unwrap();
        let full = || Err(Error::Full("no room".into()));
        let mut watched = Watched { file: &mut file, watch: Watch { room: &full, ..waits() }, written: 0 };
        watched.write_all(&[0; 1000]).unwrap();
        let error = watched.write_all(&vec![0; LOOK]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
