//! COPY, done: the archive is made anew on the host and unpacked in the sandbox.

use std::io::{ErrorKind, Read};

use cove_protocol::file::FileKind;
use cove_protocol::{FailureKind, Reply, Request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_util::io::SyncIoBridge;

use super::Build;
use super::copy::{self, Allowance, Shape, Survey, Target};
use super::execute::{absolute, owner_of};
use super::people;
use super::plan::{Context, Copy, From, Patterns};
use super::request::Habits;
use super::workshop::Workshop;
use crate::guest::{Guest, GuestError, Item};
use crate::provider::Root;
use crate::provider::stop::Stop;
use crate::{App, Error};

/// The pipe between the thread that packs and the sandbox.
const PIPE: usize = 256 << 10;

/// A COPY that was looked at: what it brings, and where.
#[derive(Clone)]
pub struct Copying {
    copy: Copy,
    survey: Option<Survey>,
    destination: String,
    owner: String,
    /// Whoever owns a directory that has to be made for it.
    organisation: String,
}

impl Copying {
    pub fn digest(&self) -> &str {
        self.survey.as_ref().map_or("", |survey| &survey.digest)
    }

    pub fn from(&self) -> &From {
        &self.copy.from
    }

    pub fn destination(&self) -> &str {
        &self.destination
    }

    pub fn owner(&self) -> &str {
        &self.owner
    }
}

type Readers = Vec<Box<dyn Read + Send>>;

impl App {
    /// Finds out what a COPY brings, before anything is done.
    pub(super) async fn look_at(
        &self,
        build: &Build,
        copy: &Copy,
        context: &Context,
        habits: Habits,
    ) -> Result<Copying, Error> {
        let owner = copy.owner.clone().unwrap_or_else(|| match habits {
            Habits::OfE2b => context.user().to_owned(),
            Habits::OfTheImage => "root".to_owned(),
        });
        let destination = absolute(&super::plan::expand(&copy.destination, &context.env)?, context);
        let mut copying =
            Copying { copy: copy.clone(), survey: None, destination, owner, organisation: build.organisation.clone() };
        if matches!(copy.from, From::Files(_) | From::Here(_)) {
            let readers = self.archives(&build.organisation, copy).await?;
            let (rules, most) = (copy.clone(), self.config().builds.disk);
            let survey = blocking(most, move |allowance| copy::survey(readers, &rules, allowance)).await?;
            if survey.shape == Shape::Nothing {
                let sources = copy.sources.join(" ");
                let why = "no such files were sent: they are not in the folder, or .dockerignore leaves them out";
                return Err(Error::invalid("copy", format!("{sources:?}: {why}")));
            }
            copying.survey = Some(survey);
        }
        Ok(copying)
    }

    async fn archives(&self, organisation: &str, copy: &Copy) -> Result<Readers, Error> {
        let mut readers: Readers = Vec::new();
        match &copy.from {
            From::Files(hashes) => {
                for hash in hashes {
                    let reader = self.read_build_file(organisation, hash).await?;
                    readers.push(Box::new(SyncIoBridge::new(reader)));
                }
            }
            From::Here(files) => readers.push(Box::new(std::io::Cursor::new(packed(files)?))),
            From::Stage(_) | From::Image(_) => {}
        }
        Ok(readers)
    }
}

/// Texts of a Dockerfile as an archive.
fn packed(files: &[(String, Vec<u8>)]) -> Result<Vec<u8>, Error> {
    let mut builder = tar::Builder::new(Vec::new());
    let trouble = |error: std::io::Error| Error::invalid("copy", error.to_string());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, content.as_slice()).map_err(trouble)?;
    }
    builder.into_inner().map_err(trouble)
}

/// Work on a thread that reads at most so many bytes. It comes to its end when the build does: that may be cancelled at any
/// moment, or take too long.
async fn blocking<T: Send + 'static>(
    most: u64,
    work: impl FnOnce(&Allowance) -> std::io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    let stop = Stop::default();
    let _waiting = stop.unless_waited_for();
    let allowance = Allowance::new(most, stop);
    let done = tokio::task::spawn_blocking(move || work(&allowance)).await;
    let done = done.map_err(|error| Error::internal(format!("read an archive: {error}")))?;
    done.map_err(|error| Error::invalid("copy", error.to_string()))
}

/// COPY from another root: both are open, and an archive goes from one to the other, source by source.
pub(super) async fn take_from(
    app: &App,
    build: &Build,
    root: &Root,
    workshop: &Workshop,
    copying: &Copying,
) -> Result<(), Error> {
    let other = Workshop::open(app, build, root, &Context::default(), &[]).await?;
    let taken = async {
        for source in &copying.copy.sources {
            let (shape, rules, reader) = pack(&other, source, &copying.copy).await?;
            let target = target(workshop, copying, shape).await?;
            let one = Copying { copy: rules, ..copying.clone() };
            send(workshop.guest(), &one, target, vec![reader], app.config().builds.disk).await?;
        }
        Ok(())
    };
    let taken: Result<(), Error> = taken.await;
    other.close().await?;
    taken
}

/// The archive of one source, and how it is to be read.
async fn pack(other: &Workshop, source: &str, copy: &Copy) -> Result<(Shape, Copy, Box<dyn Read + Send>), Error> {
    let path = format!("/{}", source.trim_matches('/'));
    if path.contains(['*', '?', '[']) {
        return Err(Error::invalid("copy", format!("{source}: patterns are for files that are sent with the build")));
    }
    let kind = kind_of(other, &path).await?;
    let kind = kind.ok_or_else(|| Error::invalid("copy", format!("{source}: there is no such file")))?;
    let (shape, name) = match kind {
        FileKind::Directory => (Shape::Tree, "."),
        _ => (if copy.sources.len() == 1 { Shape::File } else { Shape::Tree }, path.rsplit('/').next().unwrap_or(".")),
    };
    let rules = Copy { sources: vec![name.to_owned()], unpack: false, patterns: Patterns::Match, ..copy.clone() };
    let (reply, mut operation) = other.guest().open(&Request::TarOut { path, user: Some("root".into()) }).await?;
    if reply != Reply::Done {
        return Err(GuestError::Protocol(format!("pack answered {reply:?}")).into());
    }
    let (near, mut far) = tokio::io::duplex(PIPE);
    tokio::spawn(async move {
        // Whoever reads notices an end that comes too early: an archive has one of its own.
        while let Ok(Some(item)) = operation.from.next().await {
            if let Item::Data(bytes) = item
                && far.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
    });
    Ok((shape, rules, Box::new(SyncIoBridge::new(near))))
}

/// Unpacks the files of a COPY in the sandbox.
pub(super) async fn unpack(app: &App, workshop: &Workshop, copying: &Copying) -> Result<(), Error> {
    let Some(survey) = &copying.survey else { return Err(Error::internal("a COPY that nobody looked at")) };
    let target = target(workshop, copying, survey.shape).await?;
    let readers = app.archives(&copying.organisation, &copying.copy).await?;
    send(workshop.guest(), copying, target, readers, app.config().builds.disk).await
}

async fn target(workshop: &Workshop, copying: &Copying, shape: Shape) -> Result<Target, Error> {
    let is_directory = kind_of(workshop, &copying.destination).await? == Some(FileKind::Directory);
    let owner = owner_of(workshop, &copying.owner).await?;
    let target = Target::new(&copying.destination, shape, is_directory, owner, copying.copy.mode);
    // One that is there stays as it is.
    if kind_of(workshop, &target.directory).await?.is_none()
        && people::make_directory(workshop, &target.directory).await?
    {
        people::set_owner(workshop, &target.directory, owner.0, owner.1).await?;
    }
    Ok(target)
}

async fn kind_of(workshop: &Workshop, path: &str) -> Result<Option<FileKind>, Error> {
    let stat = Request::Stat { path: path.into(), user: Some("root".into()), follow: true };
    match workshop.guest().call(&stat).await {
        Ok(Reply::Entry { entry }) => Ok(Some(entry.kind)),
        Ok(other) => Err(GuestError::Protocol(format!("stat answered {other:?}")).into()),
        Err(GuestError::Failed(failure))
            if matches!(failure.kind, FailureKind::NotFound | FailureKind::NotADirectory) =>
        {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Packs on a thread and sends as it comes.
async fn send(guest: &Guest, copying: &Copying, target: Target, readers: Readers, most: u64) -> Result<(), Error> {
    let (near, mut far) = tokio::io::duplex(PIPE);
    let (copy, directory) = (copying.copy.clone(), target.directory.clone());
    let packing = blocking(most, move |allowance| {
        match copy::repack(readers, &copy, &target, allowance, SyncIoBridge::new(near)) {
            // Nobody reads any more: the sandbox refused the rest, and sending says why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            packed => packed,
        }
    });
    // It owns the end of the pipe: where sending fails, whoever packs must not wait for a reader.
    let sending = async move {
        let mut operation = guest.send(&Request::TarIn { path: directory, user: Some("root".into()) }).await?;
        let mut buffer = vec![0; PIPE];
        loop {
            let count = far.read(&mut buffer).await.map_err(|error| Error::internal(format!("pack files: {error}")))?;
            if count == 0 {
                break;
            }
            operation.to.data(&buffer[..count]).await?;
        }
        operation.to.end().await?;
        operation.reply().await?;
        Ok::<(), Error>(())
    };
    let (packed, sent) = tokio::join!(packing, sending);
    // Where packing failed the sandbox got half an archive, and says so in its own words.
    packed?;
    sent
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::guest::{Connect, Pipe};

    /// A sandbox that has ended.
    struct Gone;

    #[async_trait]
    impl Connect for Gone {
        async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
            Err(GuestError::Unreachable("not running".into()))
        }
    }

    #[tokio::test]
    async fn whoever_packs_does_not_wait_for_a_sandbox_that_has_ended() {
        let copy = Copy {
            from: From::Files(Vec::new()),
            sources: vec![".".into()],
            destination: "/app".into(),
            owner: None,
            mode: None,
            unpack: false,
            patterns: Patterns::Match,
            exclude: Vec::new(),
        };
        let target = Target { directory: "/app".into(), name: None, uid: 0, gid: 0, mode: None };
        // More than the pipe holds.
        let archive = packed(&[("large".into(), vec![7; 4 * PIPE])]).unwrap();
        let readers: Readers = vec![Box::new(std::io::Cursor::new(archive))];
        let copying = Copying {
            copy,
            survey: None,
            destination: "/app".into(),
            owner: "root".into(),
            organisation: "default".into(),
        };
        let guest = Guest::new(Arc::new(Gone));
        let sending = send(&guest, &copying, target, readers, 64 << 20);
        let sent = tokio::time::timeout(Duration::from_secs(10), sending).await.expect("it comes to an end");
        assert!(matches!(sent, Err(Error::Guest(GuestError::Unreachable(_)))), "{sent:?}");
    }
}
