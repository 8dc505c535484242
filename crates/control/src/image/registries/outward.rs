//! Images to a registry, by our own client.
//!
//! The addresses are judged as those of pulls. But a mirror is there for everybody: whoever could write to it would write
//! what others pull. So mirrors are none of the places that the operator has opened, and what a mirror serves is refused by
//! its name. What the operator is at registries (`images.credentials`) counts for operators alone.

use std::collections::HashMap;
use std::sync::Mutex;

use cove_image::registry;
use cove_image::{Digest, Reference};

use super::{HUB, HUB_ENDPOINT, Registries, View, refused};
use crate::image::export::Packed;
use crate::image::source::{Outward, Progress, SourceError, Tell};

impl Registries {
    /// Aliases say what others are called that are pulled: they do not count here.
    pub(super) fn outward(&self, name: &str) -> Result<Reference, SourceError> {
        let reference = self.reference(name)?;
        if reference.digest().is_some() {
            let why = format!("{name}: an image is pushed under a tag; its digest is told afterwards");
            return Err(SourceError::Invalid(why));
        }
        let repository = format!("{}/{}", reference.registry(), reference.name());
        let serves = |mirror: &String| {
            let rest = repository.strip_prefix(mirror.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.mirrors.iter().find(|mirror| serves(mirror)) {
            Some(mirror) => {
                let why = format!(
                    "{name}: {mirror} is a mirror of this server's, which others pull from; push to its registry"
                );
                Err(SourceError::Refused(why))
            }
            None => Ok(reference),
        }
    }

    pub(super) async fn push_image(
        &self,
        packed: &Packed,
        to: Outward<'_>,
        tell: Tell<'_>,
    ) -> Result<String, SourceError> {
        let named = self.outward(to.target)?;
        let registry = self.registry(&named, to.who, if to.as_operator { View::Operators } else { View::Tenants });
        // The largest one answers under another name than it has in references.
        let host = if named.registry() == HUB { HUB_ENDPOINT } else { named.registry() };
        let reference = Reference::at(host, named.name(), named.tag(), None);
        let reference = reference.map_err(|error| SourceError::Invalid(error.to_string()))?;
        let (bytes, done): (u64, Mutex<HashMap<Digest, u64>>) = (packed.bytes(), Mutex::default());
        let progress = |progress: registry::Progress| {
            let mut done = done.lock().expect("no panic while held");
            done.insert(progress.layer, progress.done);
            tell(Progress { done: done.values().sum(), bytes });
        };
        let pushed = registry.push(&reference, &packed.manifest, &packed.blobs, None, progress).await;
        Ok(pushed.map_err(refused)?.manifest.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Images};

    fn registries(images: Images) -> Registries {
        Registries::new(&Config { images, ..Config::default() }).unwrap()
    }

    #[test]
    fn an_image_goes_to_a_tag_of_a_registry_and_never_to_a_mirror() {
        let mirrors = "docker.io=mirror.local:5000/hub, other.example=cache.local".to_owned();
        let aliases = "team/app=template:base".to_owned();
        let all = registries(Images { mirrors, aliases, ..Images::default() });
        let told = |name: &str| all.outward(name).map(|reference| reference.to_string()).map_err(|e| e.to_string());
        assert_eq!(told("registry.example/team/app").unwrap(), "registry.example/team/app:latest");
        assert_eq!(told("team/app:v2").unwrap(), "docker.io/team/app:v2", "an alias is for pulls");
        assert_eq!(told("mirror.local:5000/hubs/app:1").unwrap(), "mirror.local:5000/hubs/app:1");
        for name in ["mirror.local:5000/hub/library/debian:12", "MIRROR.local:5000/hub:1", "cache.local/x:1"] {
            assert!(told(name).unwrap_err().contains("mirror of this server's"), "{name}");
        }
        let fixed = format!("a.example/x@sha256:{}", "ab".repeat(32));
        assert!(told(&fixed).unwrap_err().contains("under a tag"));
        assert!(told("not a name").is_err());
    }

    #[tokio::test]
    async fn what_is_open_for_pulls_from_a_mirror_is_not_for_pushes() {
        let _chosen = rustls::crypto::ring::default_provider().install_default();
        let packed = Packed {
            manifest: cove_image::manifest::Manifest {
                schema_version: 2,
                media_type: None,
                config: cove_image::manifest::Descriptor::new("x", Digest::of(b""), 0),
                layers: Vec::new(),
            },
            blobs: [(Digest::of(b""), std::sync::Arc::new(tempfile::tempfile().unwrap()))].into(),
        };
        let all = registries(Images { mirrors: "docker.io=127.0.0.1:5055/hub".into(), ..Images::default() });
        for target in ["127.0.0.1:5055/other/x:1", "127.0.0.1:5000/x:1", "169.254.169.254/x:1", "10.0.0.1/x:1"] {
            let to = Outward { target, who: None, as_operator: true };
            let refused = all.push_image(&packed, to, &|_| {}).await;
            assert!(matches!(refused, Err(SourceError::Refused(_))), "{target}: {refused:?}");
        }
    }
}
