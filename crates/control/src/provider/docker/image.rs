//! What a container starts from, as an image of the daemon's.
//!
//! ```text
//!   layers, top first ──▶ the image of the top one: it was made of a container that stood on the others
//!   a reference ────────▶ that image, pulled where it is missing
//!   neither ────────────▶ the image that the operator chose for `base`
//! ```

use std::collections::BTreeMap;

use bollard::errors::Error;
use bollard::models::ImageInspect;
use bollard::query_parameters::CreateImageOptionsBuilder;
use cove_image::reference::{Meant, Names};
use futures::TryStreamExt as _;

use super::Inner;
use super::client::{during, unless_absent};
use crate::provider::{Image, LayerId, ProviderError, Under};

/// An image that is at the daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ready {
    /// What the daemon knows it by.
    pub name: String,
    /// What its commands inherit.
    pub env: BTreeMap<String, String>,
    /// Where they start, where it says so.
    pub cwd: Option<String>,
}

/// The reference of a name that an operator wrote.
pub fn reference(name: &str, names: &Names) -> Result<String, String> {
    match names.resolve(name) {
        Ok(Meant::Image(reference)) => Ok(reference.to_string()),
        Ok(Meant::Own(template)) => Err(format!("{name} is the template {template}, and an image is wanted")),
        Err(error) => Err(error.to_string()),
    }
}

impl Inner {
    /// The name of a layer's image.
    pub fn layer_image(&self, layer: LayerId) -> String {
        format!("{}:{layer}", self.repository())
    }

    pub fn repository(&self) -> String {
        format!("cove/{}", self.installation)
    }

    /// The image of an order, fetched where need be.
    pub async fn image(&self, image: &Image) -> Result<Ready, ProviderError> {
        if let Some(top) = image.root.over.first() {
            let name = self.layer_image(*top);
            let gone = || ProviderError::Refused(format!("the files of layer {top} are not at provider {}", self.name));
            return Ok(ready(&name, self.inspect_image(&name).await?.ok_or_else(gone)?));
        }
        if image.root.under == Under::Nothing {
            return Err(ProviderError::Refused("a root without files has no image".into()));
        }
        let name = image.reference.as_deref().unwrap_or(&self.image);
        if let Some(found) = self.inspect_image(name).await? {
            return Ok(ready(name, found));
        }
        self.pull(name).await?;
        let gone = || ProviderError::Failed(format!("docker has pulled {name} and does not have it"));
        Ok(ready(name, self.inspect_image(name).await?.ok_or_else(gone)?))
    }

    pub async fn inspect_image(&self, name: &str) -> Result<Option<ImageInspect>, ProviderError> {
        let docker = self.client.docker().await?;
        unless_absent(docker.inspect_image(name).await).map_err(during(format!("look at image {name}")))
    }

    /// By the daemon itself, with its own mirrors and passwords. One at a time: many who want the same image at once wait for
    /// one pull, and different images share layers.
    async fn pull(&self, name: &str) -> Result<(), ProviderError> {
        let _turn = self.pulls.lock().await;
        if self.inspect_image(name).await?.is_some() {
            return Ok(());
        }
        let docker = self.client.docker().await?;
        let options = CreateImageOptionsBuilder::new().from_image(name).build();
        let pulled = docker.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) }).await;
        pulled.map_err(|error| match &error {
            // Nobody has it, or nobody here may: the caller's word, not a fault of the daemon.
            Error::DockerResponseServerError { status_code: 404 | 500, message } => {
                ProviderError::Refused(format!("image {name} could not be pulled: {}", message.trim()))
            }
            Error::DockerStreamError { error } => {
                ProviderError::Refused(format!("image {name} could not be pulled: {}", error.trim()))
            }
            _ => during(format!("pull image {name}"))(error),
        })
    }

    /// Removes an image that one sandbox has for itself. One that others stand on stays until they are gone.
    pub async fn drop_own_image(&self, image: &str) -> Result<(), ProviderError> {
        let docker = self.client.docker().await?;
        let options = None::<bollard::query_parameters::RemoveImageOptions>;
        match docker.remove_image(image, options, None).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(super::client::status(&error), Some(404 | 409)) => Ok(()),
            Err(error) => Err(during(format!("remove image {image}"))(error)),
        }
    }
}

/// What the daemon tells of it.
pub fn ready(name: &str, told: ImageInspect) -> Ready {
    let config = told.config.unwrap_or_default();
    let pairs = config.env.unwrap_or_default();
    let pairs = pairs.iter().filter_map(|entry| entry.split_once('='));
    // What our own containers have for our program alone.
    let pairs = pairs.filter(|(name, _)| !name.is_empty() && !name.starts_with("COVE_"));
    Ready {
        name: name.to_owned(),
        env: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        cwd: config.working_dir.filter(|path| path.starts_with('/') && path != "/"),
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ImageConfig;

    use super::*;

    #[test]
    fn an_image_gives_its_environment_and_nothing_of_ours() {
        let config = ImageConfig {
            env: Some(vec!["PATH=/usr/local/bin:/bin".into(), "COVE_GUEST={}".into(), "broken".into(), "A=b=c".into()]),
            working_dir: Some("/app".into()),
            ..ImageConfig::default()
        };
        let told = ready("x", ImageInspect { config: Some(config), ..ImageInspect::default() });
        let env: Vec<(&str, &str)> = told.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(env, [("A", "b=c"), ("PATH", "/usr/local/bin:/bin")]);
        assert_eq!(told.cwd.as_deref(), Some("/app"));
        assert_eq!(ready("x", ImageInspect::default()), Ready { name: "x".into(), ..Ready::default() });
    }

    #[test]
    fn a_name_of_the_operators_is_an_image() {
        let images = crate::config::Images { aliases: "own=template:base".into(), ..crate::config::Images::default() };
        let names = crate::image::registries::names(&images).unwrap();
        assert_eq!(reference("debian:12", &names).unwrap(), "docker.io/library/debian:12");
        assert!(reference("own", &names).unwrap_err().contains("is the template base"));
        assert!(reference("NO SUCH", &names).is_err());
    }
}
