//! Query strings in which a name may come more than once.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;

use super::problem::Problem;
use crate::clock::Timestamp;

/// All pairs, in order.
#[derive(Debug, Default, Clone)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    pub fn parse(query: &str) -> Self {
        let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        });
        Pairs(pairs.collect())
    }

    /// The first of the name that is not empty.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, value)| is(key, name) && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// The only one of the name, in either spelling, empty or not. One that comes again is refused: two readers could each
    /// believe another value.
    pub fn sole(&self, name: &'static str) -> Result<Option<&str>, Problem> {
        let mut all = self.0.iter().filter(|(key, _)| is(key, name));
        let first = all.next().map(|(_, value)| value.as_str());
        match all.next() {
            Some(_) => Err(Problem::bad_request(format!("the query has more than one {name}"))),
            None => Ok(first),
        }
    }

    /// Every one of the name, also written `name[]`.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, value)| is(key, name) && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// A switch, which Python writes `True` and JavaScript `true`.
    pub fn switch(&self, name: &'static str) -> Result<Option<bool>, Problem> {
        match self.one(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(None),
            Some("true" | "1") => Ok(Some(true)),
            Some("false" | "0") => Ok(Some(false)),
            Some(other) => Err(Problem::bad_request(format!("{name} {other:?} is neither true nor false"))),
        }
    }

    /// A moment; one without a zone is in UTC.
    pub fn time(&self, name: &'static str) -> Result<Option<Timestamp>, Problem> {
        let Some(text) = self.one(name) else { return Ok(None) };
        let in_utc = || text.parse::<jiff::civil::DateTime>().ok()?.to_zoned(jiff::tz::TimeZone::UTC).ok();
        let moment = text.parse::<Timestamp>().ok().or_else(|| in_utc().map(|zoned| zoned.timestamp()));
        let wrong = || Problem::bad_request(format!("{name} {text:?} is not a time such as 2026-01-31T12:00:00Z"));
        moment.map(Some).ok_or_else(wrong)
    }

    /// A whole number.
    pub fn number<T: std::str::FromStr>(&self, name: &'static str) -> Result<Option<T>, Problem> {
        let Some(text) = self.one(name) else { return Ok(None) };
        // Python writes a number that is a float as 10.0.
        let whole = text.strip_suffix(".0").unwrap_or(text);
        whole.parse().map(Some).map_err(|_| Problem::bad_request(format!("{name} {text:?} is not a whole number")))
    }
}

fn is(key: &str, name: &str) -> bool {
    key == name || key.strip_suffix("[]") == Some(name)
}

impl<S: Send + Sync> FromRequestParts<S> for Pairs {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Pairs::parse(parts.uri.query().unwrap_or_default()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_come_again_and_in_both_spellings() {
        let pairs = Pairs::parse("states=started&states[]=stopped&labels=%7B%22a%22%3A%22b%22%7D&limit=10.0&name=");
        assert_eq!(pairs.all("states").collect::<Vec<_>>(), ["started", "stopped"]);
        assert_eq!(pairs.one("labels"), Some(r#"{"a":"b"}"#));
        assert_eq!(pairs.number::<u32>("limit").unwrap(), Some(10));
        assert_eq!(pairs.one("name"), None);
        assert!(pairs.sole("states").is_err());
        assert_eq!(pairs.sole("name").unwrap(), Some(""));
        for query in ["path[]=a&path=b", "path=a&path=", "path=a&%70ath=b", "path%5B%5D=a&path[]=a"] {
            assert!(Pairs::parse(query).sole("path").is_err(), "{query}");
        }
        assert!(Pairs::parse("limit=x").number::<u32>("limit").is_err());
    }

    #[test]
    fn times_are_read_as_every_sdk_writes_them() {
        let wanted: Timestamp = "2026-01-31T12:00:00.5Z".parse().unwrap();
        let written = ["2026-01-31T12:00:00.500Z", "2026-01-31T12:00:00.500000%2B0000", "2026-01-31T12:00:00.500000"];
        for text in written {
            assert_eq!(Pairs::parse(&format!("from={text}")).time("from").unwrap(), Some(wanted), "{text}");
        }
        assert!(Pairs::parse("from=yesterday").time("from").is_err());
        assert_eq!(Pairs::parse("force=True").switch("force").unwrap(), Some(true));
        assert!(Pairs::parse("force=maybe").switch("force").is_err());
    }
}
