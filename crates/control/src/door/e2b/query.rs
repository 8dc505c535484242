//! Query strings, decoded once, in order.

use http::Uri;
use percent_encoding::percent_decode_str;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of(uri: &Uri) -> Self {
        Query::parse(uri.query().unwrap_or_default())
    }

    pub fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            (decode(name), decode(value))
        });
        Query(pairs.collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The first of these names that comes more than once: two readers could each believe another value.
    pub fn repeated<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        names.iter().copied().find(|name| self.0.iter().filter(|(key, _)| key == name).nth(1).is_some())
    }

    /// Every value of a name, whether it came repeated or joined by commas.
    pub fn list(&self, name: &str) -> Vec<&str> {
        let values = self.0.iter().filter(|(key, _)| key == name);
        values.flat_map(|(_, value)| value.split(',')).filter(|value| !value.is_empty()).collect()
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_once() {
        let query = Query::parse("path=%2Ftmp%2Fa+b.txt&empty=&state=running%2Cpaused&state=x&%61=%2525");
        assert_eq!(query.get("path"), Some("/tmp/a b.txt"));
        assert_eq!(query.get("empty"), Some(""));
        assert_eq!(query.list("state"), ["running", "paused", "x"]);
        assert_eq!(query.get("a"), Some("%25"));
        assert_eq!(query.get("b"), None);
        assert_eq!(query.repeated(&["path", "state"]), Some("state"));
        assert_eq!(query.repeated(&["path", "a"]), None);
        assert_eq!(Query::parse("path=a&%70ath=b").repeated(&["path"]), Some("path"));
    }
}
