//! Images for tests: a source that has what the test put on it.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use async_trait::async_trait;
use cove_control::build::Credentials;
use cove_control::image::export::Packed;
use cove_control::image::source::{Config, Found, Meant, Outward, Room, Source, SourceError, Tell};
use cove_control::provider::LayerId;
use cove_control::provider::images::Fill;
use cove_control::provider::stop::Stop;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

#[derive(Default)]
pub struct Shelf {
    images: Mutex<BTreeMap<String, Item>>,
    aliases: Mutex<BTreeMap<String, String>>,
    pub fetched: AtomicUsize,
    pub resolved: AtomicUsize,
    pub proved: AtomicUsize,
    /// Names that somebody showed a password for.
    pub shown: Mutex<Vec<String>>,
    held: Mutex<Option<Held>>,
}

/// The next image to be unpacked tells that it is reached, and waits.
type Held = (oneshot::Sender<()>, mpsc::Receiver<()>);

#[derive(Clone, Default)]
pub struct Item {
    pub files: Vec<(&'static str, &'static str)>,
    pub config: Config,
    /// Who may pull it; everybody where absent.
    pub password: Option<&'static str>,
    /// Files that it says it has, as a registry of somebody else's can: its digests are theirs.
    pub claims: Option<Vec<(&'static str, &'static str)>>,
}

impl Shelf {
    pub fn put(&self, name: &str, item: Item) {
        self.images.lock().unwrap().insert(name.to_owned(), item);
    }

    /// The next image that is fetched takes as long to unpack as the test likes: until it sends a word.
    pub fn hold_next_fill(&self) -> (oneshot::Receiver<()>, mpsc::Sender<()>) {
        let ((tell, reached), (pass, passed)) = (oneshot::channel(), mpsc::channel());
        *self.held.lock().unwrap() = Some((tell, passed));
        (reached, pass)
    }

    /// The name of an image's tree.
    pub fn layer(&self, name: &str) -> LayerId {
        LayerId::new(digest(&self.images.lock().unwrap()[name].files))
    }

    pub fn alias(&self, name: &str, template: &str) {
        self.aliases.lock().unwrap().insert(name.to_owned(), template.to_owned());
    }
}

fn digest(files: &[(&str, &str)]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for (path, content) in files {
        hash.update(format!("{} {path} {} {content} ", path.len(), content.len()));
    }
    hash.finalize().into()
}

fn fill(files: Vec<(&'static str, &'static str)>, held: Option<Held>) -> Fill {
    Box::new(move |directory: OwnedFd, _: &Stop| {
        if let Some((tell, passed)) = held {
            let _nobody_waits = tell.send(());
            let _or_dropped = passed.recv();
        }
        // The test's own directory: nothing hostile is in it.
        let top = std::path::PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        for (path, content) in files {
            let path = top.join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap())?;
            std::fs::write(path, content)?;
        }
        Ok(())
    })
}

#[async_trait]
impl Source for Shelf {
    fn meaning(&self, name: &str) -> Result<Meant, SourceError> {
        Ok(match self.aliases.lock().unwrap().get(name) {
            Some(template) => Meant::Template(template.clone()),
            None => Meant::Image(name.to_owned()),
        })
    }

    async fn resolve(&self, reference: &str, who: Option<&Credentials>) -> Result<Found, SourceError> {
        self.resolved.fetch_add(1, Ordering::SeqCst);
        if who.is_some() {
            self.shown.lock().unwrap().push(reference.to_owned());
        }
        let item = self.images.lock().unwrap().get(reference).cloned();
        let item = item.ok_or_else(|| SourceError::NotFound(format!("{reference}: there is no such image")))?;
        if let Some(password) = item.password
            && who.is_none_or(|who| who.password != password)
        {
            return Err(SourceError::Refused(format!("{reference}: the registry refuses")));
        }
        let digest = digest(item.claims.as_ref().unwrap_or(&item.files));
        Ok(Found {
            reference: reference.to_owned(),
            digest: format!("sha256:{}", hex::encode(digest)),
            layer: LayerId::new(digest),
            config: item.config,
            bytes: 1,
        })
    }

    async fn fetch(&self, found: &Found, _who: Option<&Credentials>, _tell: Tell<'_>) -> Result<Fill, SourceError> {
        self.fetched.fetch_add(1, Ordering::SeqCst);
        let item = self.images.lock().unwrap().get(&found.reference).cloned();
        let item = item.ok_or_else(|| SourceError::NotFound("gone".into()))?;
        Ok(fill(item.files, self.held.lock().unwrap().take()))
    }

    async fn prove(&self, found: &Found, _who: Option<&Credentials>, _tell: Tell<'_>) -> Result<(), SourceError> {
        self.proved.fetch_add(1, Ordering::SeqCst);
        let item = self.images.lock().unwrap().get(&found.reference).cloned();
        match item.map(|item| LayerId::new(digest(&item.files))) {
            Some(layer) if layer == found.layer => Ok(()),
            _ => Err(SourceError::Invalid("the layers unpack to something else".into())),
        }
    }

    async fn open(&self, archive: &Path, _name: Option<&str>, _room: Room) -> Result<(Found, Fill), SourceError> {
        let text = std::fs::read_to_string(archive).map_err(|error| SourceError::Disk(error.to_string()))?;
        if !text.starts_with("image ") {
            return Err(SourceError::Invalid("not an image".into()));
        }
        let found = Found {
            reference: "archive".into(),
            digest: format!("sha256:{}", hex::encode(Sha256::digest(&text))),
            layer: LayerId::new(Sha256::digest(&text).into()),
            config: Config { workdir: Some("/srv".into()), ..Config::default() },
            bytes: text.len() as u64,
        };
        Ok((found, fill(vec![("/srv/from-archive", "yes")], None)))
    }

    fn target(&self, name: &str) -> Result<String, SourceError> {
        match name.contains(' ') {
            true => Err(SourceError::NotFound(format!("{name} is no image reference"))),
            false => Ok(name.to_owned()),
        }
    }

    async fn push(&self, packed: &Packed, to: Outward<'_>, _tell: Tell<'_>) -> Result<String, SourceError> {
        Err(SourceError::Refused(format!("{}: this shelf takes nothing of {} bytes", to.target, packed.bytes())))
    }
}
