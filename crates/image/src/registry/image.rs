//! From a reference to what the image consists of, for one platform.
//!
//! A tag is asked for with HEAD first: the largest public registry counts GET of manifests against its limit, not HEAD. The
//! manifest is then fetched by digest, so a tag that moves in between changes nothing.

use std::os::fd::OwnedFd;

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Method, Url};

use super::send::{Call, limited};
use super::{Endpoint, Error, Progress, Registry};
use crate::config::Config;
use crate::digest::Digest;
use crate::manifest::{self, ACCEPTED, Descriptor, Document, LARGEST, Manifest, Platform};
use crate::reference::Reference;

/// An index may lead to an index, and that to a manifest.
const NESTED: usize = 3;

/// An image whose parts are known, and nothing fetched but its manifest and config.
#[derive(Debug, Clone)]
pub struct Inspected {
    pub reference: Reference,
    /// What the reference means: an index, or the manifest itself. A tag is remembered with it.
    pub digest: Digest,
    /// The manifest for the platform.
    pub manifest_digest: Digest,
    pub manifest: Manifest,
    pub config: Config,
    /// Where it was found: mirrors after it are not asked.
    pub(super) endpoint: usize,
}

/// One layer of it, lowest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// As it is transferred.
    pub digest: Digest,
    pub bytes: u64,
    /// What it unpacks to.
    pub diff_id: Digest,
}

impl Inspected {
    pub fn layers(&self) -> Vec<Layer> {
        let both = self.manifest.layers.iter().zip(&self.config.rootfs.diff_ids);
        both.map(|(layer, diff_id)| Layer { digest: layer.digest, bytes: layer.size, diff_id: *diff_id }).collect()
    }
}

impl Registry {
    /// Which digest a reference has now.
    pub async fn resolve(&self, reference: &Reference) -> Result<Digest, Error> {
        if let Some(digest) = reference.digest() {
            return Ok(*digest);
        }
        let target = reference.target();
        self.somewhere(reference, |endpoint, _| {
            let target = target.clone();
            async move { self.digest_of(&endpoint, &target).await }
        })
        .await
    }

    /// What the image consists of.
    pub async fn inspect(&self, reference: &Reference, platform: &Platform) -> Result<Inspected, Error> {
        self.somewhere(reference, |endpoint, number| async move {
            self.inspect_at(&endpoint, number, reference, platform).await
        })
        .await
    }

    /// [`Registry::inspect`], and all layers into the directory. [`super::open_layer`] opens each.
    pub async fn pull(
        &self,
        reference: &Reference,
        platform: &Platform,
        into: &OwnedFd,
        progress: impl Fn(Progress) + Sync,
    ) -> Result<Inspected, Error> {
        let image = self.inspect(reference, platform).await?;
        self.fetch(&image, 0..image.manifest.layers.len(), into, progress).await?;
        Ok(image)
    }

    /// Tries the mirrors and the registry in their order. The last error is what is reported.
    async fn somewhere<T, F>(&self, reference: &Reference, try_at: impl Fn(Endpoint, usize) -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut last = Error::NotFound { what: reference.to_string() };
        for (number, endpoint) in self.endpoints(reference).into_iter().enumerate() {
            match try_at(endpoint, number).await {
                Ok(found) => return Ok(found),
                Err(error) if error.is_ours() => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "try the next place");
                    last = error;
                }
            }
        }
        Err(last)
    }

    async fn inspect_at(
        &self,
        endpoint: &Endpoint,
        number: usize,
        reference: &Reference,
        platform: &Platform,
    ) -> Result<Inspected, Error> {
        let what = endpoint.what(&reference.target());
        let refused = |why| Error::Manifest { what: what.clone(), why };
        let digest = match reference.digest() {
            Some(digest) => *digest,
            None => self.digest_of(endpoint, &reference.target()).await?,
        };
        let mut wanted = digest;
        for _ in 0..NESTED {
            let bytes = self.manifest_bytes(endpoint, &wanted.to_string(), Some(&wanted)).await?;
            match manifest::parse(&bytes).map_err(&refused)? {
                Document::Index(index) => wanted = index.choose(platform).map_err(&refused)?.digest,
                Document::Manifest(manifest) => {
                    let size = manifest.bytes();
                    if size > self.options().largest {
                        let why = format!("it has {size} bytes; {} are allowed", self.options().largest);
                        return Err(Error::TooLarge { what, why });
                    }
                    let bytes = self.config_bytes(endpoint, &manifest.config).await?;
                    let refused = |why| Error::Config { what: what.clone(), why };
                    let config = Config::parse(&bytes).map_err(refused)?;
                    config.check_layers(manifest.layers.len()).map_err(refused)?;
                    config.check_platform(platform).map_err(refused)?;
                    let reference = reference.clone();
                    return Ok(Inspected {
                        reference,
                        digest,
                        manifest_digest: wanted,
                        manifest,
                        config,
                        endpoint: number,
                    });
                }
            }
        }
        Err(Error::Content { what, why: "its indexes lead to more indexes".into() })
    }

    /// By HEAD; by GET where the registry does not say it there.
    async fn digest_of(&self, endpoint: &Endpoint, target: &str) -> Result<Digest, Error> {
        let mut call =
            Call::new(Method::HEAD, self.manifest_url(endpoint, target).await?, endpoint, endpoint.what(target));
        call.headers = accepted();
        match self.send(&call).await {
            Ok(response) => {
                let told = response.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
                if let Some(digest) = told.and_then(|text| text.parse().ok()) {
                    return Ok(digest);
                }
            }
            // Some have no HEAD.
            Err(Error::Answer { status: 405 | 501, .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Digest::of(&self.manifest_bytes(endpoint, target, None).await?))
    }

    /// A manifest, compared with its digest where that is known.
    pub(super) async fn manifest_bytes(
        &self,
        endpoint: &Endpoint,
        target: &str,
        expected: Option<&Digest>,
    ) -> Result<Vec<u8>, Error> {
        let what = endpoint.what(target);
        let mut call = Call::new(Method::GET, self.manifest_url(endpoint, target).await?, endpoint, what.clone());
        call.headers = accepted();
        let bytes = limited(self.send(&call).await?, LARGEST, &what).await?;
        let found = Digest::of(&bytes);
        match expected {
            Some(expected) if *expected != found => {
                Err(Error::Content { what, why: format!("the manifest has another content: {found}") })
            }
            _ => Ok(bytes),
        }
    }

    /// Small enough to be kept in memory.
    async fn config_bytes(&self, endpoint: &Endpoint, config: &Descriptor) -> Result<Vec<u8>, Error> {
        let what = endpoint.blob(&config.digest);
        let url = self.url(endpoint, &format!("blobs/{}", config.digest)).await?;
        let response = self.send(&Call::new(Method::GET, url, endpoint, what.clone())).await?;
        let bytes = limited(response, LARGEST, &what).await?;
        if bytes.len() as u64 != config.size {
            let why = format!("the config has {} bytes, the manifest says {}", bytes.len(), config.size);
            return Err(Error::Content { what, why });
        }
        match Digest::of(&bytes) {
            found if found == config.digest => Ok(bytes),
            found => Err(Error::Content { what, why: format!("the config has another content: {found}") }),
        }
    }

    pub(super) async fn manifest_url(&self, endpoint: &Endpoint, target: &str) -> Result<Url, Error> {
        self.url(endpoint, &format!("manifests/{target}")).await
    }

    /// Below the repository.
    pub(super) async fn url(&self, endpoint: &Endpoint, rest: &str) -> Result<Url, Error> {
        let base = self.base(&endpoint.host).await?;
        let wrong = |_| Error::Unreachable { what: endpoint.host.clone(), why: "it is no host name".into() };
        base.join(&format!("{}/{rest}", endpoint.repository)).map_err(wrong)
    }
}

fn accepted() -> HeaderMap {
    let mut headers = HeaderMap::new();
    for media_type in ACCEPTED {
        headers.append(ACCEPT, HeaderValue::from_static(media_type));
    }
    headers
}
