//! What a registry or an archive says an image consists of: an index of platforms, and manifests of config and layers.
//!
//! OCI's and Docker's forms are the same but for their media types. Refused with their name: Docker's schema 1, layers
//! that lie elsewhere (`urls`), artifacts that are no images, manifests over 4 MiB. Attestations (`unknown/unknown`) are
//! passed over.

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

pub const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

/// What is asked for. A registry of version 2.8 answers 404 to an OCI image that is asked for without OCI's types.
pub const ACCEPTED: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];

/// The largest manifest, index or config.
pub const LARGEST: u64 = 4 << 20;
/// As many layers as an image may have; Docker itself stops at 127.
const LAYERS: usize = 512;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub urls: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Annotations::is_empty", deserialize_with = "or_nothing")]
    pub annotations: Annotations,
}

pub type Annotations = std::collections::BTreeMap<String, String>;

impl Descriptor {
    pub fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let (urls, annotations) = (Vec::new(), Annotations::new());
        Descriptor { media_type: media_type.to_owned(), digest, size, urls, platform: None, annotations }
    }
}

/// `null` where an object or list is expected: what Go programs write for an empty one.
pub(crate) fn or_nothing<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
}

impl Platform {
    /// Of this machine.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            "x86" => "386",
            other => other,
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// `linux/arm64/v8`, as `--platform` has it.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let (os, architecture) = (parts.next()?, parts.next()?);
        let variant = parts.next().map(str::to_owned);
        let good =
            |part: &str| !part.is_empty() && part.len() <= 32 && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let all_good = good(os) && good(architecture) && variant.as_deref().is_none_or(good) && parts.next().is_none();
        all_good.then(|| Platform { os: os.into(), architecture: architecture.into(), variant })
    }

    /// How well an image for `other` runs here, 0 best; `None` if it does not.
    fn fits(&self, other: &Platform) -> Option<u32> {
        if self.os != other.os || self.architecture != other.architecture {
            return None;
        }
        // `v8` is what every arm64 has, `v1` what every amd64 has.
        let number = |platform: &Platform| match platform.variant.as_deref() {
            None | Some("") => match platform.architecture.as_str() {
                "arm64" => Some(8),
                "arm" => Some(7),
                _ => Some(1),
            },
            Some(variant) => variant.strip_prefix('v').and_then(|digits| digits.parse::<u32>().ok()),
        };
        number(self)?.checked_sub(number(other)?)
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub media_type: Option<String>,
    pub manifests: Vec<Descriptor>,
}

/// What a manifest's bytes are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    Index(Index),
    Manifest(Manifest),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the manifest has {0} bytes, more than 4 MiB")]
    TooLarge(u64),
    #[error("the manifest is no image manifest: {0}")]
    NotUnderstood(String),
    #[error("the image is in Docker's old schema 1, which has no digests to check: push it again with a newer program")]
    SchemaOne,
    #[error("it is no image: its config is {0}")]
    NoImage(String),
    #[error("its layer {0} lies outside of the registry (urls), where nothing is fetched from")]
    Foreign(Digest),
    #[error("its layer {0} is {1}, which is no tar")]
    NoLayer(Digest, String),
    #[error("it has {0} layers, more than {LAYERS}")]
    TooManyLayers(usize),
    #[error("it has no image for {wanted}; there are: {there}")]
    NoPlatform { wanted: Platform, there: String },
}

/// Reads a manifest or index, whatever its `Content-Type` was: both forms look different enough.
pub fn parse(bytes: &[u8]) -> Result<Document, Refused> {
    if bytes.len() as u64 > LARGEST {
        return Err(Refused::TooLarge(bytes.len() as u64));
    }
    // serde would take a list for the fields in their order.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(Refused::NotUnderstood("it is no JSON object".into()));
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape {
        schema_version: Option<u32>,
        manifests: Option<serde::de::IgnoredAny>,
        layers: Option<serde::de::IgnoredAny>,
    }
    let wrong = |error: serde_json::Error| Refused::NotUnderstood(error.to_string());
    let shape: Shape = serde_json::from_slice(bytes).map_err(wrong)?;
    match (shape.schema_version, shape.manifests.is_some(), shape.layers.is_some()) {
        (Some(1), ..) => Err(Refused::SchemaOne),
        // Both at once: two programs would see two images.
        (_, true, true) => Err(Refused::NotUnderstood("it is an index and a manifest at once".into())),
        (_, true, false) => Ok(Document::Index(serde_json::from_slice(bytes).map_err(wrong)?)),
        _ => {
            let manifest: Manifest = serde_json::from_slice(bytes).map_err(wrong)?;
            manifest.check()?;
            Ok(Document::Manifest(manifest))
        }
    }
}

impl Manifest {
    fn check(&self) -> Result<(), Refused> {
        if !matches!(self.config.media_type.as_str(), OCI_CONFIG | DOCKER_CONFIG) {
            return Err(Refused::NoImage(self.config.media_type.chars().take(200).collect()));
        }
        if self.config.size > LARGEST {
            return Err(Refused::TooLarge(self.config.size));
        }
        if self.layers.len() > LAYERS {
            return Err(Refused::TooManyLayers(self.layers.len()));
        }
        for layer in &self.layers {
            if !layer.urls.is_empty() || layer.media_type.contains(".foreign.") {
                return Err(Refused::Foreign(layer.digest));
            }
            // Which compression it has is seen in its first bytes.
            let is_layer = ["application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.diff.tar"]
                .iter()
                .any(|prefix| layer.media_type.starts_with(prefix));
            if !is_layer || layer.media_type.contains("encrypted") {
                return Err(Refused::NoLayer(layer.digest, layer.media_type.chars().take(200).collect()));
            }
        }
        Ok(())
    }

    /// All layers together, as they are transferred.
    pub fn bytes(&self) -> u64 {
        self.layers.iter().fold(self.config.size, |sum, layer| sum.saturating_add(layer.size))
    }
}

impl Index {
    /// The manifest (or inner index) for a platform: the best variant that runs there.
    pub fn choose(&self, platform: &Platform) -> Result<&Descriptor, Refused> {
        let images = || {
            self.manifests.iter().filter(|entry| {
                matches!(entry.media_type.as_str(), OCI_MANIFEST | DOCKER_MANIFEST | OCI_INDEX | DOCKER_INDEX)
                    && entry.platform.as_ref().is_none_or(|platform| platform.os != "unknown")
            })
        };
        let fitting = images().filter_map(|entry| Some((platform.fits(entry.platform.as_ref()?)?, entry)));
        if let Some((_, best)) = fitting.min_by_key(|(distance, _)| *distance) {
            return Ok(best);
        }
        // An index of one image that says nothing of its platform, as `skopeo` and `umoci` write: its config will.
        let mut unnamed = images().filter(|entry| entry.platform.is_none());
        if let (Some(only), None) = (unnamed.next(), unnamed.next()) {
            return Ok(only);
        }
        let there: Vec<String> =
            images().filter_map(|entry| Some(entry.platform.as_ref()?.to_string())).take(32).collect();
        let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
        Err(Refused::NoPlatform { wanted: platform.clone(), there })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn descriptor(media_type: &str) -> serde_json::Value {
        json!({"mediaType": media_type, "digest": Digest::of(b"x"), "size": 1})
    }

    fn parsed(value: serde_json::Value) -> Result<Document, Refused> {
        parse(value.to_string().as_bytes())
    }

    fn entry(name: &str, platform: Option<&str>) -> Descriptor {
        let platform = platform.map(|text| Platform::parse(text).unwrap());
        Descriptor { platform, ..Descriptor::new(OCI_MANIFEST, Digest::of(name.as_bytes()), 1) }
    }

    fn index(entries: &[(&str, Option<&str>)]) -> Index {
        let manifests = entries.iter().map(|(name, platform)| entry(name, *platform)).collect();
        Index { schema_version: 2, media_type: None, manifests }
    }

    fn chosen(entries: &[(&str, Option<&str>)], platform: &str) -> Result<Digest, Refused> {
        index(entries).choose(&Platform::parse(platform).unwrap()).map(|entry| entry.digest)
    }

    #[test]
    fn both_kinds_of_manifest_are_read() {
        for (config, layer) in [
            (OCI_CONFIG, OCI_LAYER_GZIP),
            (OCI_CONFIG, "application/vnd.oci.image.layer.v1.tar+zstd"),
            (DOCKER_CONFIG, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
        ] {
            let manifest = parsed(
                json!({"schemaVersion": 2, "config": descriptor(config), "layers": [descriptor(layer)], "annotations": null}),
            );
            assert!(matches!(manifest, Ok(Document::Manifest(manifest)) if manifest.bytes() == 2));
        }
        let index = parsed(json!({"schemaVersion": 2, "manifests": [descriptor(OCI_MANIFEST)]}));
        assert!(matches!(index, Ok(Document::Index(_))));
    }

    #[test]
    fn what_is_no_image_is_refused_by_name() {
        let layers =
            |layer: serde_json::Value| json!({"schemaVersion": 2, "config": descriptor(OCI_CONFIG), "layers": [layer]});
        assert_eq!(parsed(json!({"schemaVersion": 1, "fsLayers": []})), Err(Refused::SchemaOne));
        let artifact = parsed(
            json!({"schemaVersion": 2, "config": descriptor("application/vnd.cncf.helm.config.v1+json"), "layers": []}),
        );
        assert!(matches!(artifact, Err(Refused::NoImage(_))));
        let mut foreign = descriptor(OCI_LAYER);
        foreign["urls"] = json!(["https://elsewhere.example/layer"]);
        assert!(matches!(parsed(layers(foreign)), Err(Refused::Foreign(_))));
        let foreign = descriptor("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip");
        assert!(matches!(parsed(layers(foreign)), Err(Refused::Foreign(_))));
        assert!(matches!(parsed(layers(descriptor("text/plain"))), Err(Refused::NoLayer(..))));
        let both = json!({"schemaVersion": 2, "config": descriptor(OCI_CONFIG), "layers": [], "manifests": []});
        assert!(matches!(parsed(both), Err(Refused::NotUnderstood(_))));
        assert!(matches!(parse(&vec![b' '; (4 << 20) + 1]), Err(Refused::TooLarge(_))));
        assert!(matches!(parse(b"<html>"), Err(Refused::NotUnderstood(_))));
        assert!(matches!(parse(b"[2, null, {}, []]"), Err(Refused::NotUnderstood(_))));
        let many: Vec<_> = (0..513).map(|_| descriptor(OCI_LAYER)).collect();
        let many = json!({"schemaVersion": 2, "config": descriptor(OCI_CONFIG), "layers": many});
        assert_eq!(parsed(many), Err(Refused::TooManyLayers(513)));
        // Nesting deeper than the parser's stack.
        assert!(parse("[".repeat(100_000).as_bytes()).is_err());
    }

    #[test]
    fn the_platform_is_chosen_with_the_best_variant() {
        let of = |name: &str| Ok(Digest::of(name.as_bytes()));
        let many = [
            ("unknown", Some("unknown/unknown")),
            ("windows", Some("windows/amd64")),
            ("v3", Some("linux/amd64/v3")),
            ("plain", Some("linux/amd64")),
            ("arm", Some("linux/arm64/v8")),
            ("newer", Some("linux/arm64/v9")),
        ];
        assert_eq!(chosen(&many, "linux/amd64"), of("plain"));
        assert_eq!(chosen(&many, "linux/amd64/v4"), of("v3"));
        assert_eq!(chosen(&many, "linux/amd64/v2"), of("plain"));
        assert_eq!(chosen(&many, "linux/arm64"), of("arm"));
        assert_eq!(chosen(&[("a", None)], "linux/amd64"), of("a"));
        let missing = chosen(&many[..2], "linux/amd64").unwrap_err().to_string();
        assert_eq!(missing, "it has no image for linux/amd64; there are: windows/amd64");
        assert!(chosen(&[("a", None), ("b", None)], "linux/amd64").is_err());
    }
}
