//! How templates are called: `name`, `organisation/name`, `name:tag`, `name:BUILD`, or an id.

use crate::Error;

/// The tag of references that name none.
pub const DEFAULT_TAG: &str = "default";

const NAME_MAX: usize = 128;
const TAG_MAX: usize = 128;
/// Tags that one template may have, and that one request may name.
pub const TAGS_MAX: usize = 128;

/// A reference, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The organisation before the slash.
    pub organisation: Option<String>,
    /// A name, an alias or an id.
    pub name: String,
    pub chosen: Chosen,
}

/// Which of a template's builds is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Chosen {
    /// None was named.
    Default,
    Tag(String),
    /// By its id.
    Build(String),
}

impl Chosen {
    /// The tag to look for, unless a build is meant.
    pub fn tag(&self) -> Option<&str> {
        match self {
            Chosen::Default => Some(DEFAULT_TAG),
            Chosen::Tag(tag) => Some(tag),
            Chosen::Build(_) => None,
        }
    }
}

impl Reference {
    /// Letters count as lower case, as E2B counts them.
    pub fn parse(text: &str) -> Result<Reference, Error> {
        let text = text.trim().to_lowercase();
        let (path, chosen) = match text.split_once(':') {
            None => (text.as_str(), Chosen::Default),
            Some((path, word)) if is_uuid(word) => (path, Chosen::Build(word.to_owned())),
            Some((path, word)) => {
                check_tag(word)?;
                (path, Chosen::Tag(word.to_owned()))
            }
        };
        let (organisation, name) = match path.split_once('/') {
            None => (None, path),
            Some((organisation, name)) => (Some(organisation), name),
        };
        check_name(name)?;
        if let Some(organisation) = organisation {
            check_name(organisation)?;
        }
        Ok(Reference { organisation: organisation.map(ToOwned::to_owned), name: name.to_owned(), chosen })
    }
}

pub fn check_name(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
    if fits {
        return Ok(());
    }
    Err(Error::invalid(
        "template",
        format!(
            "{:?}: a name has 1 to {NAME_MAX} letters, digits, '-', '_' and '.', and begins with none of '-' and '.'",
            name.chars().take(64).collect::<String>()
        ),
    ))
}

/// A tag may not look like a build's id: `name:ID` names a build.
pub fn check_tag(tag: &str) -> Result<(), Error> {
    let fits = !tag.is_empty()
        && tag.len() <= TAG_MAX
        && tag.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.".contains(&b));
    if !fits {
        return Err(Error::invalid("tag", format!("1 to {TAG_MAX} letters, digits, '-', '_' and '.'")));
    }
    if is_uuid(tag) {
        return Err(Error::invalid("tag", "a UUID names a build; choose another word"));
    }
    Ok(())
}

/// Tags as a request has them: lower case, each once, `default` where there are none.
pub fn tags(asked: impl IntoIterator<Item = String>) -> Result<Vec<String>, Error> {
    let mut tags: Vec<String> = Vec::new();
    for tag in asked {
        let tag = tag.trim().to_lowercase();
        check_tag(&tag)?;
        if !tags.contains(&tag) {
            tags.push(tag);
        }
    }
    if tags.len() > TAGS_MAX {
        return Err(Error::invalid("tags", format!("at most {TAGS_MAX}")));
    }
    if tags.is_empty() {
        tags.push(DEFAULT_TAG.to_owned());
    }
    Ok(tags)
}

/// Whether a text has the form of a UUID.
pub fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn a_reference_has_an_organisation_a_name_and_what_follows_the_colon() {
        assert_eq!(
            parse("Acme/My-Tpl:V1"),
            Reference { organisation: Some("acme".into()), name: "my-tpl".into(), chosen: Chosen::Tag("v1".into()) }
        );
        assert_eq!(parse("base").chosen, Chosen::Default);
        let id = "6f3a1c1e-0000-4000-8000-00000000abcd";
        assert_eq!(parse(&format!("base:{id}")).chosen, Chosen::Build(id.into()));
        for wrong in ["", ":x", "name:", "a/b/c", "a b", "-a", "a:b:c", "a/", "/a", "ä", &"a".repeat(129)] {
            assert!(Reference::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn tags_are_each_once_and_never_look_like_a_build() {
        assert_eq!(tags(["B".into(), "a".into(), "b".into()]).unwrap(), ["b", "a"]);
        assert_eq!(tags([]).unwrap(), ["default"]);
        assert!(tags(["6f3a1c1e-0000-4000-8000-00000000abcd".into()]).is_err());
        assert!(tags(["".into()]).is_err());
        assert!(tags((0..129).map(|n| format!("t{n}"))).is_err());
    }
}
