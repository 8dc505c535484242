//! Names that a call does not know, at every door: refused by name, with the one that was probably meant.
//!
//! An option that is misspelled, or that this server cannot serve, must never be taken for one that was served. Bodies
//! are typed and know their fields (`deny_unknown_fields`), queries are checked against a list; the sentence about a
//! stranger is the same for both.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::nearest::nearest;

/// A query parameter that a call does not have.
pub fn unknown_parameter(name: &str, known: &[&str]) -> String {
    sentence(&format!("unknown query parameter `{name}`"), name, known)
}

/// A field that a call's body does not have.
pub fn unknown_field(name: &str, known: &[&str]) -> String {
    sentence(&format!("unknown field `{name}`"), name, known)
}

fn sentence(subject: &str, name: &str, known: &[&str]) -> String {
    let listed = || known.iter().map(|one| format!("`{one}`")).collect::<Vec<_>>().join(", ");
    match nearest(name, known.iter().copied()) {
        _ if known.is_empty() => format!("{subject}: this call takes none"),
        Some(meant) => format!("{subject}: did you mean `{meant}`? Known are {}", listed()),
        None => format!("{subject}: known are {}", listed()),
    }
}

/// What is wrong with a body, as serde says it, with the name that was probably meant.
pub fn explained(error: &str) -> String {
    // "unknown field `nmae`, expected one of `name`, `labels` at line 1 column 7"
    let kinds = ["unknown field `", "unknown variant `"];
    let Some((before, kind, after)) =
        kinds.iter().find_map(|kind| error.split_once(kind).map(|(before, after)| (before, *kind, after)))
    else {
        return error.to_owned();
    };
    let Some((name, rest)) = after.split_once('`') else { return error.to_owned() };
    // Every second piece stands between backticks.
    let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
    format!("{before}{}", sentence(&format!("{kind}{name}`"), name, &known))
}

/// The name of the field that serde does not know, where that is what is wrong.
fn unknown_in(error: &str) -> Option<&str> {
    error.split_once("unknown field `")?.1.split_once('`').map(|(name, _)| name)
}

/// A field that no SDK has is refused by name. One that is `null` says nothing, so it is let pass: a later SDK may have it.
pub fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    let error = match serde_json::from_slice(text) {
        Ok(read) => return Ok(read),
        Err(error) => error.to_string(),
    };
    if unknown_in(&error).is_none() {
        return Err(error);
    }
    let mut fields: serde_json::Map<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    fields.retain(|_, value| !value.is_null());
    serde_json::from_value(Value::Object(fields)).map_err(|error| explained(&error.to_string()))
}

/// Whether a value asks for something: not the default of its kind.
pub fn says_something(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(fields)) => !fields.is_empty(),
    }
}

/// The names in a query string, decoded, each once.
pub fn parameters(query: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let name = pair.split('=').next().unwrap_or_default().replace('+', " ");
        let name = percent_encoding::percent_decode_str(&name).decode_utf8_lossy().into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only what serde says of it is looked at")]
    struct Pair {
        name: String,
        labels: u8,
        kind: Option<Kind>,
    }

    #[derive(Debug, serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Open,
        Closed,
    }

    fn said(json: &str) -> String {
        explained(&serde_json::from_str::<Pair>(json).unwrap_err().to_string())
    }

    #[test]
    fn an_unknown_name_is_told_with_the_one_that_was_meant() {
        assert_eq!(
            said(r#"{"nmae": 1}"#),
            "unknown field `nmae`: did you mean `name`? Known are `name`, `labels`, `kind`"
        );
        assert_eq!(said(r#"{"colour": 1}"#), "unknown field `colour`: known are `name`, `labels`, `kind`");
        assert_eq!(
            said(r#"{"kind": "Opened"}"#),
            "unknown variant `Opened`: did you mean `open`? Known are `open`, `closed`"
        );
        assert_eq!(said(r#"{"name": 1}"#), "invalid type: integer `1`, expected a string at line 1 column 10");
    }

    #[test]
    fn the_name_that_serde_does_not_know_is_found() {
        let error = serde_json::from_str::<Pair>(r#"{"x y": 1}"#).unwrap_err().to_string();
        assert_eq!(unknown_in(&error), Some("x y"));
        assert_eq!(unknown_in("missing field `name`"), None);
    }

    #[test]
    fn names_of_a_query_are_decoded_and_come_once() {
        assert_eq!(parameters("a=1&b%5B%5D=2&a=3&&c"), ["a", "b[]", "c"]);
        assert_eq!(unknown_parameter("x", &[]), "unknown query parameter `x`: this call takes none");
    }

    #[test]
    fn a_field_that_nobody_knows_is_named_unless_it_says_nothing() {
        #[derive(Debug, Default, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct Named {
            name: Option<String>,
        }
        assert_eq!(read::<Named>(br#"{"name": "a", "fromTheFuture": null}"#).unwrap().name.as_deref(), Some("a"));
        let error = read::<Named>(br#"{"nmae": "a"}"#).unwrap_err();
        assert_eq!(error, "unknown field `nmae`: did you mean `name`? Known are `name`");
    }
}
