//! Templates and snapshots as images that other programs load.
//!
//! ```text
//!   layer ─▶ tar.gz in a spool file ┐
//!   layer ─▶ tar.gz in a spool file ┼─▶ one tar, streamed: an OCI layout, and what `docker load` reads
//!   defaults ─▶ the image's config  ┘
//! ```
//!
//! An archive needs a layer's size and digest before its content, so layers are packed into files first. The files have
//! no name: whatever happens, nothing of them is left. To pack takes a turn of the server's; to read does not, however
//! slow the reader is ([`super::outlet`]).
//!
//! A layer has what was in it when it was made, also what a later one took away. That is its owner's business: of layers
//! that another organisation made public, the files go out as a sandbox sees them, in one layer.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use cove_image::config::{Config, Run};
use cove_image::export::{self, Compression, Image, Part, Written};
use rustix::fs::{Mode, OFlags, openat};
use tokio::sync::Semaphore;

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
        if template.image.root.under == Under::Host {
            return Err(Error::Unsupported(format!(
                "template {} shows this machine's own programs, which are no part of it: only what stands on an image \
                 can be exported",
                template.name
            )));
        }
        let provider = template.provider.clone().unwrap_or_else(|| self.default_provider().to_owned());
        self.check_disk(&provider)?;
        let place = self.exports().take(&caller.organisation)?;
        let turn = TURNS.acquire().await.map_err(|_| Error::exhausted("the server ends"))?;
        // Held until they are open: an open layer stays for as long as its descriptor.
        let work = Work::begin(self);
        if !work.hold(&template.image.root.over).await? {
            return Err(Error::Conflict(format!("template {} was just deleted", template.name)));
        }
        self.bring_layers(&work, &provider, &template.image.root).await?;
        let layers = self.provider(&provider)?.layers();
        let mut opened = Vec::new();
        // Lowest first.
        for layer in template.image.root.over.iter().rev() {
            opened.push(layers.open_layer(*layer).await?);
        }
        work.end().await?;
        let shape = self.shape_for(caller, &template).await?;
        let files = match shape {
            Shape::Layers => opened.len(),
            Shape::Flat => 1,
        };
        let mut spool = (0..files).map(|_| self.nameless_file()).collect::<Result<Vec<File>, Error>>()?;
        self.audit(caller, "template.export", &template.id).await?;
        let config = config(&template, &self.now().to_string());
        let names = vec![called(&template, name)];
        let (outlet, archive) = outlet::open();
        let room = self.disk_check(self.provider(&provider)?);
        tokio::task::spawn_blocking(move || {
            let _place = place;
            let packed = pack(opened, &mut spool, (&outlet, &*room), shape);
            // What follows goes at the reader's own pace: nobody waits for that.
            drop(turn);
            if let Err(error) = packed.and_then(|layers| write(&layers, spool, &config, &names, outlet)) {
                tracing::warn!(template = template.name, %error, "export a template");
            }
        });
        Ok(archive)
    }

    /// Whether all layers of a template are the caller's own, or images of registries.
    async fn shape_for(&self, caller: &Caller, template: &Template) -> Result<Shape, Error> {
        for layer in &template.image.root.over {
            let owner = self.store().layer(*layer).await?.and_then(|layer| layer.organisation);
            if owner.is_some_and(|owner| owner != caller.organisation) {
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

/// How an export shows layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Each as it is.
    Layers,
    /// As they look from above.
    Flat,
}

/// Packs layers (lowest first) into files: each into its own, or all into the first. Ends where the reader has gone, or
/// the disk has no room.
fn pack(
    layers: Vec<OwnedFd>,
    spool: &mut [File],
    (outlet, room): (&Outlet, &(dyn Fn() -> Result<(), Error> + Send + Sync)),
    shape: Shape,
) -> io::Result<Vec<Written>> {
    let mut parts = Vec::new();
    // They stay open until all is packed: a layer may go when nobody has it open.
    for layer in &layers {
        // What lies on an image is below `root` in its layer.
        let root = openat(layer, "root", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        parts.push(vec![Part::new(root)]);
    }
    let limits = export::Limits::default();
    let files = spool.iter_mut().map(|file| Watched { file, outlet, room, written: 0 });
    let written: Result<Vec<Written>, export::Error> = match shape {
        Shape::Flat => files.take(1).map(|file| export::flat(&parts, file, Compression::Gzip, &limits)).collect(),
        Shape::Layers => {
            let each = parts.iter().zip(files);
            each.map(|(part, file)| export::layer(part, file, Compression::Gzip, &limits)).collect()
        }
    };
    written.map_err(io::Error::other)
}

/// A file that is packed for a reader. One that has gone is not worked for, and the disk is others' too.
struct Watched<'a> {
    file: &'a mut File,
    outlet: &'a Outlet,
    room: &'a (dyn Fn() -> Result<(), Error> + Send + Sync),
    /// Bytes since the disk was looked at.
    written: usize,
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.outlet.is_left() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "nobody waits for the archive any more"));
        }
        let count = self.file.write(bytes)?;
        self.written += count;
        if self.written >= LOOK {
            self.written = 0;
            (self.room)().map_err(|full| io::Error::new(io::ErrorKind::StorageFull, full.to_string()))?;
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
        let (outlet, _archive) = outlet::open();
        let packed = |shape: Shape, files: usize| -> Vec<String> {
            let mut spool: Vec<File> = (0..files).map(|_| tempfile::tempfile().unwrap()).collect();
            let opened = [&lower, &upper].map(|path| OwnedFd::from(File::open(path).unwrap()));
            let watch: (&Outlet, &(dyn Fn() -> Result<(), Error> + Send + Sync)) = (&outlet, &|| Ok(()));
            assert_eq!(pack(opened.into(), &mut spool, watch, shape).unwrap().len(), files);
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

    #[tokio::test]
    async fn nobody_is_worked_for_who_has_gone() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        let (outlet, archive) = outlet::open();
        drop(archive);
        let mut spool = [tempfile::tempfile().unwrap()];
        let opened = vec![OwnedFd::from(File::open(folder.path()).unwrap())];
        assert!(pack(opened, &mut spool, (&outlet, &|| Ok(())), Shape::Layers).is_err());
        assert_eq!(spool[0].metadata().unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_full_disk_ends_what_is_packed() {
        let (outlet, _archive) = outlet::open();
        let mut file = tempfile::tempfile().unwrap();
        let full = || Err(Error::Full("no room".into()));
        let mut watched = Watched { file: &mut file, outlet: &outlet, room: &full, written: 0 };
        watched.write_all(&[0; 1000]).unwrap();
        let error = watched.write_all(&vec![0; LOOK]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
