//! What a new sandbox starts from, where the caller's word is not simply a template: an environment that people know by
//! name, or an image of a registry.
//!
//! ```text
//!   environment ──▶ a template of that name ─▶ else a known name ─▶ else an image, where it is written like one
//!   image ────────▶ a provider with layers: a template of the image, built if need be
//!                   one that fetches images itself: the reference alone
//! ```

use std::time::Duration;

use super::{Template, base};
use crate::build::request::{Confidential, Habits, Recipe, Request};
use crate::build::{Build, Kind as BuildKind, State};
use crate::image::source::Meant;
use crate::provider::{Image, Supply};
use crate::sandbox::NewSandbox;
use crate::store::builds::Unfinished;
use crate::template::NewTemplate;
use crate::template::name::Reference;
use crate::{App, Caller, Error};

/// How long the template of an image is taken without asking the registry again what its name means.
const FRESH_MS: i64 = 10 * 60 * 1000;
/// How long a build is waited for at one time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of a template's name.
const NAME: usize = 120;

/// A name that people know.
struct Known {
    names: &'static [&'static str],
    /// Where sandboxes are made of layers.
    template: &'static str,
    /// Where the provider fetches images itself.
    image: &'static str,
}

const KNOWN: [Known; 2] = [
    Known { names: &["python3", "python", "python-data-science"], template: "code-interpreter", image: "python:3" },
    Known { names: &["node", "nodejs", "javascript"], template: "node", image: "node:22" },
];

/// `NAME-VERSION` is the image `IMAGE:VERSION`.
const VERSIONED: [(&str, &str); 12] = [
    ("alpine", "alpine"),
    ("debian", "debian"),
    ("go", "golang"),
    ("golang", "golang"),
    ("java", "eclipse-temurin"),
    ("node", "node"),
    ("perl", "perl"),
    ("php", "php"),
    ("python", "python"),
    ("ruby", "ruby"),
    ("rust", "rust"),
    ("ubuntu", "ubuntu"),
];

/// What a name means that is no template.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Meaning {
    Known { template: &'static str, image: &'static str },
    Image(String),
}

/// `python-3.11` and the like, and the names above.
fn meaning(word: &str) -> Option<Meaning> {
    let word = word.trim().to_lowercase();
    if let Some(known) = KNOWN.iter().find(|known| known.names.contains(&word.as_str())) {
        return Some(Meaning::Known { template: known.template, image: known.image });
    }
    let (name, version) = word.split_once('-')?;
    let (_, image) = VERSIONED.iter().find(|(known, _)| *known == name)?;
    let fits = version.starts_with(|letter: char| letter.is_ascii_digit())
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    fits.then(|| Meaning::Image(format!("{image}:{version}")))
}

/// Whether a word is written like the name of an image: with a tag, a digest or a path.
fn is_like_an_image(word: &str) -> bool {
    word.contains([':', '/', '@'])
}

impl NewSandbox {
    /// What it starts from, as the caller wrote it.
    pub(crate) fn origin(&self) -> &str {
        self.template.as_deref().or(self.environment.as_deref()).or(self.image.as_deref()).unwrap_or("base")
    }
}

impl App {
    /// What a new sandbox starts from at a provider; at the one that it would go to where none is named. An image that is
    /// not here yet is fetched first.
    pub(crate) async fn origin_of(
        &self,
        caller: &Caller,
        new: &NewSandbox,
        provider: Option<&str>,
    ) -> Result<Template, Error> {
        let provider = provider.unwrap_or_else(|| self.default_provider());
        if let Some(image) = &new.image {
            return self.template_of_image(caller, provider, image).await;
        }
        let word = new.origin();
        let supply = self.provider(provider)?.supply();
        // Such a provider has no use for templates of layers that happen to have a known name.
        if supply != Supply::Layers
            && let Some(meaning) = meaning(word)
        {
            return self.template_of_meaning(caller, provider, supply, meaning).await;
        }
        let unknown = match self.template(caller, word).await {
            Err(error @ Error::NotFound { kind: "template", .. }) => error,
            found => return found,
        };
        match meaning(word) {
            Some(meaning) => self.template_of_meaning(caller, provider, supply, meaning).await,
            None if new.environment.is_some() && is_like_an_image(word) => {
                self.template_of_image(caller, provider, word).await
            }
            None if new.environment.is_some() && supply == Supply::Templates => {
                Ok(referred(provider, word, Some(word.to_owned())))
            }
            None => Err(unknown),
        }
    }

    async fn template_of_meaning(
        &self,
        caller: &Caller,
        provider: &str,
        supply: Supply,
        meaning: Meaning,
    ) -> Result<Template, Error> {
        match (meaning, supply) {
            (Meaning::Known { template, .. }, Supply::Layers) => self.template(caller, template).await,
            (Meaning::Known { image, .. }, Supply::Images) => self.template_of_image(caller, provider, image).await,
            // What it starts from by itself has the usual languages.
            (Meaning::Known { template, .. }, Supply::Templates) => Ok(referred(provider, template, None)),
            (Meaning::Image(image), _) => self.template_of_image(caller, provider, &image).await,
        }
    }

    /// A template of an image: its reference for a provider that fetches images itself, else one that is built.
    async fn template_of_image(&self, caller: &Caller, provider: &str, image: &str) -> Result<Template, Error> {
        let reference = match self.builds().source().meaning(image)? {
            Meant::Template(template) => return self.template(caller, &template).await,
            Meant::Image(reference) => reference,
        };
        match self.provider(provider)?.supply() {
            Supply::Layers => {
                let build = self.build_of_image(caller, provider, image).await?;
                self.template(caller, &format!("{}:{}", build.template, build.id)).await
            }
            Supply::Images => Ok(referred(provider, image, Some(reference))),
            Supply::Templates => Err(Error::Unsupported(format!(
                "provider {provider} starts from templates of its own, and cannot start from the image {image}; name one of \
                 them as `environment`, or another provider"
            ))),
        }
    }

    /// A build of the image that is ready: one of a moment ago, one that is under way, or a new one.
    async fn build_of_image(&self, caller: &Caller, provider: &str, image: &str) -> Result<Build, Error> {
        let name = name_of_image(image);
        let reference = Reference::parse(&name)?;
        if let Some(record) = self.store().template_by_name(&caller.organisation, &reference.name).await? {
            let fixed = image.contains('@');
            let now = self.now().as_millisecond();
            let is_fresh = |build: &Build| {
                let ended = build.finished_at.map_or(i64::MIN, |at| at.as_millisecond());
                build.provider == provider && build.kind == BuildKind::Image && (fixed || now - ended < FRESH_MS)
            };
            if let Some(build) = self.chosen_build(&record, &reference.chosen).await?.filter(is_fresh) {
                return Ok(build);
            }
            let tag = reference.chosen.tag().unwrap_or(super::DEFAULT_TAG);
            let under_way = self.store().unfinished_builds(Unfinished::OfTemplate(&record.id)).await?;
            let same = |build: &Build| {
                build.state == State::Building
                    && build.kind == BuildKind::Image
                    && build.provider == provider
                    && build.tags.iter().any(|own| own == tag)
            };
            if let Some(build) = under_way.into_iter().find(same) {
                return self.ready_build(&build.id, image).await;
            }
        }
        let new = NewTemplate {
            name,
            description: Some(format!("the image {image}")),
            provider: Some(provider.to_owned()),
            ..NewTemplate::default()
        };
        let (record, build) = self.create_template(caller, new).await?;
        let request = Request {
            recipe: Recipe::Image { reference: image.to_owned() },
            start: None,
            ready: None,
            force: false,
            habits: Habits::OfTheImage,
            is_confidential: false,
            allow: Vec::new(),
        };
        self.start_build(caller, &record.id, &build.id, request, Confidential::default()).await?;
        self.ready_build(&build.id, image).await
    }

    /// Waits for a build. It goes on where nobody waits: the same request finds it again.
    async fn ready_build(&self, id: &str, image: &str) -> Result<Build, Error> {
        let mut lines = 0;
        loop {
            let status = self.follow_build(id, lines, PATIENCE).await?;
            lines += status.lines.len() as i64;
            let why = || status.build.failure.as_ref().map_or_else(String::new, |failure| failure.message.clone());
            match status.build.state {
                State::Ready => return Ok(status.build),
                State::Error | State::Cancelled => {
                    return Err(Error::invalid("image", format!("{image} could not be had: {}", why())));
                }
                State::Waiting | State::Building => {}
            }
        }
    }
}

/// What a provider knows by a reference of its own kind; what it starts from by itself where there is none.
fn referred(provider: &str, name: &str, reference: Option<String>) -> Template {
    Template {
        id: name.to_owned(),
        name: name.to_owned(),
        aliases: Vec::new(),
        description: format!("{name}, as provider {provider} has it"),
        // An image has users of its own, and every one has this one.
        user: if reference.is_some() { "root".into() } else { base().user },
        image: Image { reference, ..Image::default() },
        provider: Some(provider.to_owned()),
        ..base()
    }
}

/// The template of an image: `debian:12` is `image-debian:12`. As `cove create --image` calls it.
fn name_of_image(reference: &str) -> String {
    let (path, word) = match reference.split_once('@') {
        Some((path, digest)) => (path, digest.rsplit(':').next().unwrap_or(digest).chars().take(12).collect()),
        None => match reference.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, tag.to_owned()),
            _ => (reference, String::new()),
        },
    };
    let plain = |text: &str| -> String {
        let kept = |letter: char| if letter.is_ascii_alphanumeric() || "._".contains(letter) { letter } else { '-' };
        text.to_lowercase().chars().map(kept).collect()
    };
    let name: String = format!("image-{}", plain(path)).chars().take(NAME).collect();
    if word.is_empty() { name } else { format!("{name}:{}", plain(&word)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::name::Chosen;

    #[test]
    fn names_that_people_know_mean_a_template_or_an_image() {
        let known = |word: &str| match meaning(word) {
            Some(Meaning::Known { template, image }) => format!("{template} {image}"),
            Some(Meaning::Image(image)) => image,
            None => String::new(),
        };
        assert_eq!(known("Python3"), "code-interpreter python:3");
        assert_eq!(known("Node"), "node node:22");
        assert_eq!(known("python-3.11"), "python:3.11");
        assert_eq!(known("java-21-jre"), "eclipse-temurin:21-jre");
        for word in ["base", "python-latest", "my-template-1", "go", "python-3;rm", "moon-1"] {
            assert_eq!(known(word), "", "{word}");
        }
    }

    #[test]
    fn the_template_of_an_image_has_a_name_that_templates_can_have() {
        assert_eq!(name_of_image("debian:12"), "image-debian:12");
        assert_eq!(name_of_image("127.0.0.1:5000/a/b"), "image-127.0.0.1-5000-a-b");
        let digest = format!("debian@sha256:{}", "ab".repeat(32));
        assert_eq!(name_of_image(&digest), "image-debian:abababababab");
        for image in ["debian:12", "docker.io/library/python:3.11-slim", &digest] {
            assert!(Reference::parse(&name_of_image(image)).is_ok(), "{image}");
        }
        assert!(!matches!(Reference::parse(&name_of_image("debian:12")).unwrap().chosen, Chosen::Build(_)));
    }

    #[test]
    fn a_word_is_an_image_only_where_it_is_written_like_one() {
        assert!(["python:latest", "ghcr.io/a/b", "x@sha256:1"].iter().all(|word| is_like_an_image(word)));
        assert!(["python", "no-such-template"].iter().all(|word| !is_like_an_image(word)));
    }
}
