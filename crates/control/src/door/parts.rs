//! What stands before a body: the path, the query and the headers of a request to one of our own routes.
//!
//! Requests that are passed on to a port of a sandbox are not ours to judge and do not come here.

use std::borrow::Cow;

use axum::http::{HeaderMap, Uri};
use percent_encoding::percent_decode_str;

use crate::border::Excess;
use crate::border::field::{self, Characters};
use crate::border::shape::judge_text;

/// Characters of one part of a path.
pub const PART: usize = 512;
/// Parts of a path.
pub const PARTS: usize = 64;
/// Bytes of a query as it is written. The target of a request has at most 64 KiB in all.
pub const QUERY: usize = 32 << 10;
/// Names and values in a query.
pub const PAIRS: usize = 256;
/// Characters of a name in a query.
const NAME: usize = 128;
/// Bytes of one header.
pub const HEADER: usize = 16 << 10;

/// Refuses what no route of ours has a use for.
pub fn check(uri: &Uri, headers: &HeaderMap) -> Result<(), Excess> {
    path(uri.path())?;
    query(uri.query().unwrap_or_default())?;
    for (name, value) in headers {
        if value.len() > HEADER {
            return excess(name.as_str(), format!("a header of {} bytes; at most {HEADER}", value.len()));
        }
    }
    Ok(())
}

fn path(path: &str) -> Result<(), Excess> {
    if path.split('/').count() > PARTS + 1 {
        return excess("path", format!("more than {PARTS} parts"));
    }
    for part in path.split('/') {
        judge_text("path", &decoded("path", part)?, PART, Characters::Line)?;
    }
    Ok(())
}

/// Each value by the budget of the field that bears its name.
pub fn query(query: &str) -> Result<(), Excess> {
    if query.len() > QUERY {
        return excess("query", format!("{} bytes; at most {QUERY}", query.len()));
    }
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    for (place, pair) in pairs.enumerate() {
        if place >= PAIRS {
            return excess("query", format!("more than {PAIRS} values"));
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decoded("query", name)?;
        judge_text("query", &name, NAME, Characters::Line)?;
        let budget = field::of_parameter(name.strip_suffix("[]").unwrap_or(&name));
        let value = decoded(&name, value)?;
        judge_text(&name, &value, budget.length, Characters::NoNul)?;
    }
    Ok(())
}

/// Bytes that are no text are refused: every reader would make something else of them.
fn decoded<'a>(field: &str, text: &'a str) -> Result<Cow<'a, str>, Excess> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text),
        Err(_) => excess(field, "must be UTF-8".into()),
    }
}

fn excess<T>(field: &str, problem: String) -> Result<T, Excess> {
    Err(Excess { field: field.to_owned(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(target: &str) -> String {
        check(&target.parse().unwrap(), &HeaderMap::new()).expect_err(target).to_string()
    }

    #[test]
    fn ordinary_requests_pass() {
        for target in
            ["/", "/api/sandboxes/box/files?path=/tmp/a%0Ab&depth=2", "/x?label=a=b,c=d&flag", "/%E2%82%AC?a[]=1"]
        {
            assert_eq!(check(&target.parse().unwrap(), &HeaderMap::new()), Ok(()), "{target}");
        }
    }

    #[test]
    fn what_is_too_long_or_no_text_is_refused_by_name() {
        assert_eq!(refused(&format!("/api/sandboxes/{}", "x".repeat(600))), "path: 600 characters; at most 512");
        assert_eq!(refused("/api/sandboxes/a%00b"), "path: must not hold a NUL character");
        assert_eq!(refused("/api/sandboxes/a%0Ab"), "path: must not hold control characters");
        assert_eq!(refused("/x?owner=%ff"), "owner: must be UTF-8");
        assert_eq!(refused("/x?label=a%00=b"), "label: must not hold a NUL character");
        assert_eq!(refused(&format!("/x?owner={}", "x".repeat(256))), "owner: 256 characters; at most 255");
        assert_eq!(refused(&format!("/x?{}", "a=b&".repeat(300))), "query: more than 256 values");
        assert_eq!(refused(&format!("/x?a={}", "%20".repeat(11_000))), "query: 33002 bytes; at most 32768");
        assert_eq!(refused(&format!("/{}", "a/".repeat(70))), "path: more than 64 parts");
        let headers = HeaderMap::from_iter([("x-own".parse().unwrap(), "x".repeat(20_000).parse().unwrap())]);
        let error = check(&"/".parse().unwrap(), &headers).unwrap_err().to_string();
        assert_eq!(error, "x-own: a header of 20000 bytes; at most 16384");
    }
}
