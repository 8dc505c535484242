//! A recipe with what a caller wishes, as a build like any other.

use std::collections::BTreeMap;

use super::Recipe;
use crate::Error;
use crate::build::{Act, Base, Confidential, NewStep};
use crate::nearest::nearest;
use crate::template::name::Reference;

/// What a caller may choose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Another form of the template.
    pub variant: Option<String>,
    /// Values of arguments; the variant's, or the recipe's own, where absent.
    pub arguments: BTreeMap<String, String>,
}

/// What is to be built.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordered {
    pub base: Base,
    pub steps: Vec<NewStep>,
    /// What this build is, in the words that people choose a template by.
    pub description: String,
}

impl Recipe {
    pub fn order(&self, wishes: &Wishes) -> Result<Ordered, Error> {
        let variant = match &wishes.variant {
            None => None,
            Some(name) => {
                Some(self.variants.get(name).ok_or_else(|| self.unknown("variant", name, self.variants.keys()))?)
            }
        };
        if let Some(stranger) = wishes.arguments.keys().find(|name| !self.arguments.contains_key(*name)) {
            return Err(self.unknown("argument", stranger, self.arguments.keys()));
        }
        let mut values = Vec::new();
        for (name, argument) in &self.arguments {
            let value = match wishes.arguments.get(name) {
                Some(value) => {
                    let judged = argument.kind.judge(value);
                    judged.map_err(|why| Error::invalid(format!("from.arguments.{name}"), why))?
                }
                None => {
                    let of_variant = variant.and_then(|variant| variant.arguments.get(name));
                    of_variant.unwrap_or(&argument.default).clone()
                }
            };
            values.push((name.clone(), value));
        }
        let arguments = (!values.is_empty()).then_some(Act::Arg { values });
        let steps = arguments.into_iter().chain(self.steps.iter().cloned());
        Ok(Ordered {
            base: variant.and_then(|variant| variant.base.clone()).unwrap_or_else(|| self.base.clone()),
            steps: steps.map(|act| NewStep { act, force: false }).collect(),
            description: self.describe(variant.and_then(|variant| variant.description.as_deref()), wishes),
        })
    }

    fn describe(&self, variant: Option<&str>, wishes: &Wishes) -> String {
        let chosen = wishes.arguments.iter().filter(|(_, value)| !value.trim().is_empty());
        let chosen: Vec<String> = chosen.map(|(name, value)| format!("{name}={}", value.trim())).collect();
        let said = variant.unwrap_or(&self.description);
        let whole = if chosen.is_empty() { said.to_owned() } else { format!("{said}; {}", chosen.join(", ")) };
        // Of a template's description; a list of packages may be longer.
        whole.chars().take(1000).collect()
    }

    /// Refuses secrets that the recipe does not know: whoever gives one expects it to be read.
    pub fn check_secrets(&self, confidential: &Confidential) -> Result<(), Error> {
        match confidential.secrets.keys().find(|name| !self.secrets.contains_key(*name)) {
            Some(stranger) => Err(self.unknown("secret", stranger, self.secrets.keys())),
            None => Ok(()),
        }
    }

    /// The name of the template: the recipe's own where one of its other names is given.
    pub fn template_name(&self, asked: &str) -> Result<String, Error> {
        let reference = Reference::parse(asked)?;
        if !self.answers_to(&reference.name) {
            return Ok(asked.to_owned());
        }
        let before = reference.organisation.map(|organisation| format!("{organisation}/")).unwrap_or_default();
        let after = asked.split_once(':').map(|(_, word)| format!(":{word}")).unwrap_or_default();
        Ok(format!("{before}{}{after}", self.name))
    }

    fn unknown<'a>(&self, what: &str, name: &str, known: impl Iterator<Item = &'a String>) -> Error {
        let known: Vec<&str> = known.map(String::as_str).collect();
        let field = if what == "secret" { "secrets".to_owned() } else { format!("from.{what}") };
        let field = if what == "argument" { "from.arguments".to_owned() } else { field };
        let has = match (nearest(name, known.iter().copied()), known.as_slice()) {
            (Some(near), _) => format!("is {near} meant?"),
            (None, []) => "it has none".to_owned(),
            (None, known) => format!("it has {}", known.join(", ")),
        };
        Error::invalid(field, format!("recipe {} has no {what} {name:?}; {has}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Recipes;
    use super::*;

    fn ordered(name: &str, variant: Option<&str>, arguments: &[(&str, &str)]) -> Result<Ordered, Error> {
        let arguments = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let wishes = Wishes { variant: variant.map(ToOwned::to_owned), arguments };
        Recipes::built_in().find(name).unwrap().order(&wishes)
    }

    fn value(ordered: &Ordered, name: &str) -> String {
        let Act::Arg { values } = &ordered.steps[0].act else { panic!("{:?}", ordered.steps[0]) };
        values.iter().find(|(one, _)| one == name).unwrap().1.clone()
    }

    #[test]
    fn a_wish_comes_before_the_variant_and_the_variant_before_the_recipe() {
        let usual = ordered("code-interpreter", None, &[]).unwrap();
        assert!(value(&usual, "PACKAGES").contains("scipy") && value(&usual, "EXTRA_PACKAGES").is_empty());
        assert_eq!(usual.base, Base::Template("base".into()));
        let small = ordered("code-interpreter", Some("small"), &[("EXTRA_PACKAGES", "polars  duckdb")]).unwrap();
        assert!(!value(&small, "PACKAGES").contains("scipy"));
        assert_eq!(value(&small, "EXTRA_PACKAGES"), "polars duckdb");
        assert!(small.description.contains("alone") && small.description.ends_with("EXTRA_PACKAGES=polars  duckdb"));
        let own = ordered("code-interpreter", Some("small"), &[("PACKAGES", "ipython")]).unwrap();
        assert_eq!(value(&own, "PACKAGES"), "ipython");
        let debian = ordered("desktop", Some("debian"), &[]).unwrap();
        assert_eq!(debian.base, Base::Image("debian:12".into()));
    }

    #[test]
    fn what_the_recipe_does_not_know_is_refused_with_what_it_knows() {
        let error = ordered("code-interpreter", Some("smal"), &[]).unwrap_err().to_string();
        assert!(error.starts_with("from.variant: ") && error.contains("is small meant?"), "{error}");
        let error = ordered("node", Some("tiny"), &[]).unwrap_err().to_string();
        assert!(error.contains("it has none"), "{error}");
        let error = ordered("node", None, &[("XYZ_UNLIKE", "1")]).unwrap_err().to_string();
        assert!(error.starts_with("from.arguments: ") && error.contains("it has EXTRA_PACKAGES"), "{error}");
        let error = ordered("node", None, &[("PACKAGES", "x; rm -rf /")]).unwrap_err().to_string();
        assert!(error.starts_with("from.arguments.PACKAGES: "), "{error}");
        let confidential =
            Confidential { secrets: [("TOKEN".to_owned(), b"x".to_vec())].into(), ..Confidential::default() };
        let error = Recipes::built_in().find("node").unwrap().check_secrets(&confidential).unwrap_err().to_string();
        assert!(error.starts_with("secrets: recipe node has no secret \"TOKEN\""), "{error}");
    }

    #[test]
    fn another_name_of_a_recipe_means_its_own_template() {
        let recipes = Recipes::built_in();
        let recipe = recipes.find("code-interpreter").unwrap();
        for (asked, meant) in [
            ("code-interpreter-v1", "code-interpreter"),
            ("acme/code-interpreter-v1:v2", "acme/code-interpreter:v2"),
            ("mine:v1", "mine:v1"),
        ] {
            assert_eq!(recipe.template_name(asked).unwrap(), meant);
        }
    }
}
