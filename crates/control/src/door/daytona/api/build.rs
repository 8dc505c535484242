//! What a `buildInfo` asks for.
//!
//! The SDKs send every image as a Dockerfile. `image="name"` is one with nothing but `FROM name`: that needs no build.

use serde::{Deserialize, Serialize};

use crate::build::plan::quoted;
use crate::build::{Confidential, Habits, Recipe, Request};
use crate::door::daytona::problem::{Answer, Problem};
use crate::template::Record;
use crate::{App, Caller, Error};

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct BuildInfo {
    pub dockerfile_content: String,
    /// Archives in the object store whose union is the context.
    pub context_hashes: Option<Vec<String>>,
}

impl BuildInfo {
    pub fn contexts(&self) -> &[String] {
        self.context_hashes.as_deref().unwrap_or_default()
    }

    /// The image of a Dockerfile that does nothing but name one.
    pub fn plain_image(&self) -> Option<&str> {
        plain_image(&self.dockerfile_content).filter(|_| self.contexts().is_empty())
    }

    pub fn recipe(&self) -> Answer<Recipe> {
        if self.dockerfile_content.trim().is_empty() {
            return Err(Problem::bad_request("buildInfo.dockerfileContent must not be empty"));
        }
        Ok(match self.plain_image() {
            Some(image) => Recipe::Image { reference: image.to_owned() },
            None => Recipe::Dockerfile {
                text: self.dockerfile_content.clone(),
                contexts: self.contexts().to_vec(),
                target: None,
                arguments: std::collections::BTreeMap::new(),
            },
        })
    }
}

/// Starts the build of a template that was just made. One that is not even begun leaves nothing.
pub async fn start(
    app: &App,
    caller: &Caller,
    (record, build): (&Record, &str),
    recipe: Recipe,
    entrypoint: Option<&[String]>,
) -> Result<(), Error> {
    let request = Request {
        recipe,
        start: entrypoint.filter(|words| !words.is_empty()).map(as_line),
        ready: None,
        force: false,
        habits: Habits::OfTheImage,
        is_confidential: false,
        allow: Vec::new(),
    };
    let started = app.start_build(caller, &record.id, build, request, Confidential::default()).await;
    if started.is_err() {
        app.delete_template(caller, &record.id).await?;
    }
    started.map(drop)
}

/// The words of a command as a line for a shell.
fn as_line(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

fn plain_image(dockerfile: &str) -> Option<&str> {
    let mut lines = dockerfile.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (word, image) = lines.next()?.split_once(char::is_whitespace)?;
    let image = image.trim();
    let is_name = !image.contains(char::is_whitespace) && !image.starts_with("--") && !image.contains('$');
    (word.eq_ignore_ascii_case("FROM") && is_name && lines.next().is_none()).then_some(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_name_is_told_from_a_build() {
        assert_eq!(plain_image("FROM python:3.12\n"), Some("python:3.12"));
        assert_eq!(plain_image("# mine\nfrom base\n\n"), Some("base"));
        for build in ["FROM python:3.12\nRUN pip install numpy\n", "FROM a AS b", "FROM $BASE", "", "FROM", "RUN x"] {
            assert_eq!(plain_image(build), None, "{build:?}");
        }
    }

    #[test]
    fn a_context_makes_it_a_build() {
        let mut info = BuildInfo { dockerfile_content: "FROM base\n".into(), context_hashes: Some(vec![]) };
        assert_eq!(info.recipe().unwrap(), Recipe::Image { reference: "base".into() });
        info.context_hashes = Some(vec!["0".repeat(32)]);
        assert!(matches!(info.recipe().unwrap(), Recipe::Dockerfile { contexts, .. } if contexts.len() == 1));
        assert!(BuildInfo::default().recipe().is_err());
    }

    #[test]
    fn a_command_keeps_its_words() {
        assert_eq!(as_line(&["sh".into(), "-c".into(), "echo a b".into()]), "sh -c 'echo a b'");
    }
}
