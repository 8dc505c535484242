//! From the name of an image to a layer.
//!
//! ```text
//!   name ──aliases──▶ full name ──asked within 10 min?──▶ digest ──known?──▶ layer
//!                                    │ no                    │ no
//!                                    └─ registry: HEAD       └─ registry: fetch, compare, unpack
//! ```
//!
//! What a name means is remembered for each organisation: each asks the registry with its own right before it gets what
//! another has pulled.
//!
//! A tree is named by digests that an image says of itself, and anybody can have a registry that says the digests of
//! somebody else's private image. So a tree that is here counts for an organisation only where the *same* registry has
//! named the same manifest before, which is as good as a right to its layers. Elsewhere the layers are fetched and
//! compared all the same ([`Source::prove`](super::source::Source::prove)), and only not unpacked.

use std::time::Duration;

use super::source::{Found, Meant, Progress, SourceError, Tenths};
use super::work::{Made, Work};
use super::{Config, LayerKind, Pulled};
use crate::build::Credentials;
use crate::provider::{LayerId, ProviderError, Root, Under};
use crate::{App, Error};

/// How long a registry's answer holds.
const ASKED_MS: i64 = 10 * 60 * 1000;
/// How often the disk is looked at while an image comes.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes that a layer has in any case: its directory.
const SMALLEST: u64 = 1 << 20;

/// What names of the same registry begin with.
pub(crate) fn registry_of(reference: &str) -> &str {
    match reference.find('/') {
        Some(slash) => &reference[..=slash],
        None => reference,
    }
}

/// A name that means one image for ever.
fn fixed(reference: &str, digest: &str) -> String {
    format!("{}@{digest}", reference.split('@').next().unwrap_or(reference))
}

/// Who wants an image, and with which right.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub organisation: &'a str,
    pub provider: &'a str,
    pub name: &'a str,
    pub credentials: Option<&'a Credentials>,
}

/// What a name led to.
#[derive(Debug, Clone, PartialEq)]
pub enum Origin {
    Image(Box<Pulled>),
    /// The operator has a template for it.
    Template(String),
}

impl Pulled {
    pub fn root(&self) -> Root {
        Root { under: Under::Nothing, over: vec![self.layer] }
    }
}

impl App {
    /// An image, pulled where it is not there, and held by `work`.
    pub async fn pull(
        &self,
        work: &Work,
        wanted: Wanted<'_>,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<Origin, Error> {
        let reference = match self.builds().source().meaning(wanted.name)? {
            Meant::Template(template) => return Ok(Origin::Template(template)),
            Meant::Image(reference) => reference,
        };
        if let Some(pulled) = self.known(work, wanted, &reference).await? {
            return Ok(Origin::Image(Box::new(pulled)));
        }
        let found = self.builds().source().resolve(&reference, wanted.credentials).await?;
        let limit = self.config().builds.image_bytes;
        if found.bytes > limit {
            return Err(Error::invalid(
                "image",
                format!("{reference} has {} MiB, and at most {} MiB are taken", found.bytes >> 20, limit >> 20),
            ));
        }
        let now = self.now().as_millisecond();
        let held = match self.store().is_image_of(registry_of(&reference), &found.digest).await? {
            true => self.held(work, wanted.provider, &found.digest).await?,
            false => None,
        };
        let pulled = match held {
            Some(pulled) => pulled,
            None => {
                say(format!("pull {} ({:.1} MiB)", found.reference, found.bytes as f64 / f64::from(1u32 << 20)));
                let image = self.fetch(work, wanted, &found, say).await?;
                self.keep_image(&found, image).await?
            }
        };
        // By its digest too: a name that moves on leaves an image here that the organisation has asked for.
        for name in [reference.as_str(), &fixed(&reference, &found.digest)] {
            self.store().put_image_name(wanted.organisation, name, &found.digest, now).await?;
        }
        Ok(Origin::Image(Box::new(pulled)))
    }

    /// What the organisation was told about the name a moment ago.
    async fn known(&self, work: &Work, wanted: Wanted<'_>, reference: &str) -> Result<Option<Pulled>, Error> {
        let Some((digest, asked)) = self.store().image_name(wanted.organisation, reference).await? else {
            return Ok(None);
        };
        let fixed = reference.contains('@');
        if !fixed && self.now().as_millisecond() - asked.as_millisecond() > ASKED_MS {
            return Ok(None);
        }
        self.held(work, wanted.provider, &digest).await
    }

    /// An image that is here.
    async fn held(&self, work: &Work, provider: &str, digest: &str) -> Result<Option<Pulled>, Error> {
        let Some(pulled) = self.store().image(digest).await? else { return Ok(None) };
        if !work.hold(&[pulled.layer]).await? {
            return Ok(None);
        }
        if self.provider(provider)?.layers().layer(pulled.layer).await?.is_none() {
            return Ok(None);
        }
        self.store().touch_image(digest, self.now().as_millisecond()).await?;
        Ok(Some(pulled))
    }

    async fn fetch(
        &self,
        work: &Work,
        wanted: Wanted<'_>,
        found: &Found,
        say: &(dyn Fn(String) + Send + Sync),
    ) -> Result<(u64, LayerId), Error> {
        let tenths = Tenths::default();
        let tell = |progress: Progress| {
            if let Some(percent) = tenths.next(progress) {
                say(format!("pulled {percent} %"));
            }
        };
        let layers = self.provider(wanted.provider)?.layers();
        self.check_disk(wanted.provider)?;
        let limit = self.image_limit(wanted.organisation, found.bytes).await?;
        let make = || async {
            let source = self.builds().source();
            let fill =
                self.while_there_is_room(wanted.provider, source.fetch(found, wanted.credentials, &tell)).await?;
            say("unpack".to_owned());
            layers.make_layer(found.layer, limit, fill).await.map_err(|error| self.no_room(error, limit))
        };
        let made = work.make(found.layer, LayerKind::Image, None, wanted.provider, make).await?;
        let bytes = match made {
            Made::Now(info) => info.bytes,
            Made::Found => {
                let source = self.builds().source();
                self.while_there_is_room(wanted.provider, source.prove(found, wanted.credentials, &tell)).await?;
                self.store().layer(found.layer).await?.map_or(0, |layer| layer.bytes)
            }
        };
        Ok((bytes, found.layer))
    }

    /// What is fetched lies on this server's own disk until it is unpacked. It ends before that is full.
    async fn while_there_is_room<T>(
        &self,
        provider: &str,
        fetching: impl Future<Output = Result<T, SourceError>>,
    ) -> Result<T, Error> {
        let full = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Err(error) = self.check_disk(provider) {
                    return error;
                }
            }
        };
        tokio::select! {
            fetched = fetching => Ok(fetched?),
            error = full => Err(error),
        }
    }

    /// Bytes that any image may have when it is unpacked.
    fn most_unpacked(&self) -> u64 {
        self.config().builds.image_bytes.saturating_mul(4).max(SMALLEST)
    }

    /// Bytes that an image may have when it is unpacked: no more than the organisation may still keep.
    pub(super) async fn image_limit(&self, organisation: &str, fetched: u64) -> Result<u64, Error> {
        self.check_storage(organisation, fetched).await?;
        Ok(self.storage_left(organisation).await?.clamp(SMALLEST, self.most_unpacked()))
    }

    /// Why a layer could not be made. One that is larger than what its organisation may still keep is not the server's fault.
    pub(super) fn no_room(&self, error: ProviderError, limit: u64) -> Error {
        match super::work::trouble(error) {
            Error::Full(_) if limit < self.most_unpacked() => Error::Quota {
                message:
                    "the image is larger than what the organisation may still keep; delete templates, snapshots or \
                          volumes"
                        .into(),
            },
            error => error,
        }
    }

    pub(crate) async fn keep_image(&self, found: &Found, (bytes, layer): (u64, LayerId)) -> Result<Pulled, Error> {
        let pulled =
            Pulled { digest: found.digest.clone(), layer, config: found.config.clone(), bytes, pulled_at: self.now() };
        if !self.store().put_image(&pulled).await? {
            return Err(Error::exhausted("the image was just removed; try again"));
        }
        Ok(pulled)
    }
}

/// Bytes of an image's command, user and directory together.
const WORDS_MAX: usize = 128 << 10;

impl Config {
    /// As the beginning of a build's context. An image that no process could be started from is refused here, and not by each
    /// of its sandboxes.
    pub fn context(&self) -> Result<crate::build::plan::Context, Error> {
        if crate::sandbox::create::check_env(&self.env).is_err() {
            return Err(Error::invalid("image", "the environment of the image is larger than a process can be given"));
        }
        let words =
            self.entrypoint.iter().chain(&self.command).chain(&self.shell).chain(&self.user).chain(&self.workdir);
        if words.map(|word| word.len() + 1).sum::<usize>() > WORDS_MAX {
            return Err(Error::invalid("image", "the command of the image is longer than a process can be given"));
        }
        Ok(crate::build::plan::Context {
            as_root: false,
            arguments: Default::default(),
            env: self.env.clone(),
            user: self.user.clone().unwrap_or_default(),
            cwd: self.workdir.clone().filter(|path| !path.is_empty()),
            shell: self.shell.clone(),
            entrypoint: self.entrypoint.clone(),
            command: self.command.clone(),
            on_build: self.on_build.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_their_registry_and_can_be_fixed() {
        assert_eq!(registry_of("docker.io/library/x:1"), "docker.io/");
        assert_eq!(registry_of("127.0.0.1:5000/x"), "127.0.0.1:5000/");
        assert_eq!(fixed("a.example/x:1", "sha256:2"), "a.example/x:1@sha256:2");
        assert_eq!(fixed("a.example/x:1@sha256:1", "sha256:2"), "a.example/x:1@sha256:2");
    }

    #[test]
    fn an_image_that_no_process_could_be_started_from_is_refused() {
        let usual = Config { env: [("PATH".to_owned(), "/bin".to_owned())].into(), ..Config::default() };
        assert_eq!(usual.context().unwrap().env.len(), 1);
        let env = (0..10_000).map(|number| (format!("V{number}"), "x".repeat(20))).collect();
        let refused = Config { env, ..Config::default() }.context().unwrap_err().to_string();
        assert!(refused.contains("environment of the image"), "{refused}");
        let command = vec!["x".repeat(WORDS_MAX)];
        assert!(Config { command, ..Config::default() }.context().is_err());
    }
}
