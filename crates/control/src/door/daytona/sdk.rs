//! Which SDK asks, where the answer depends on it.
//!
//! Session output changed its shape twice; the version that a client names in `X-Daytona-SDK-Version` (or, from a
//! browser, in a WebSocket subprotocol) says which one it can read.

use axum::http::HeaderMap;

/// How a client wants session output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputShape {
    /// JSON with stdout and stderr apart.
    Apart,
    /// Text with a marker before each stream's bytes; the client sorts.
    Marked,
    /// Text, both streams together.
    Together,
}

pub const SUBPROTOCOL: &str = "X-Daytona-SDK-Version~";

impl OutputShape {
    pub fn wanted(headers: &HeaderMap) -> Self {
        let split = headers.get("x-daytona-split-output").is_some_and(|value| value == "true");
        match version(headers) {
            Some(version) if version >= (0, 167, 0) || version == (0, 0, 0) => OutputShape::Apart,
            Some(version) if version >= (0, 27, 0) => OutputShape::Marked,
            None if split => OutputShape::Marked,
            _ => OutputShape::Together,
        }
    }
}

/// The states that a client has words for: one it does not know makes an old SDK fail on the whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    All,
    /// From before sandboxes could be paused.
    WithoutPause,
}

impl Words {
    pub fn known_to(headers: &HeaderMap) -> Self {
        match version(headers) {
            Some(version) if version < (0, 190, 0) && version != (0, 0, 0) => Words::WithoutPause,
            _ => Words::All,
        }
    }
}

/// What a client that asks `GET /sandbox` can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListShape {
    /// A page with a cursor.
    Page,
    /// All of them, in a bare array: before there were pages.
    Bare,
}

impl ListShape {
    pub fn wanted(headers: &HeaderMap) -> Self {
        match version(headers) {
            Some(version) if version < (0, 171, 0) && version != (0, 0, 0) => ListShape::Bare,
            _ => ListShape::Page,
        }
    }
}

/// What a client makes of a sandbox that is not there any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterDelete {
    /// It takes 404 for the end.
    Gone,
    /// It reads the sandbox once more after the delete and fails on 404.
    Looks,
}

impl AfterDelete {
    pub fn of(headers: &HeaderMap) -> Self {
        match version(headers) {
            Some(version) if version < (0, 150, 0) && version != (0, 0, 0) => AfterDelete::Looks,
            _ => AfterDelete::Gone,
        }
    }
}

/// `0.0.0-dev` is how an unreleased SDK calls itself: the newest.
fn version(headers: &HeaderMap) -> Option<(u32, u32, u32)> {
    let text = headers.get("x-daytona-sdk-version").and_then(|value| value.to_str().ok())?;
    let mut numbers = text.split(['.', '-', '+', 'a', 'b', 'r']).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(version: &'static str) -> OutputShape {
        let mut headers = HeaderMap::new();
        headers.insert("x-daytona-sdk-version", version.parse().unwrap());
        OutputShape::wanted(&headers)
    }

    #[test]
    fn each_generation_gets_the_shape_it_can_read() {
        assert_eq!(wanted("0.226.1"), OutputShape::Apart);
        assert_eq!(wanted("0.167.0"), OutputShape::Apart);
        assert_eq!(wanted("0.166.3"), OutputShape::Marked);
        assert_eq!(wanted("0.155.0a2"), OutputShape::Marked);
        assert_eq!(wanted("0.26.9"), OutputShape::Together);
        assert_eq!(wanted("0.0.0-dev"), OutputShape::Apart);
        assert_eq!(OutputShape::wanted(&HeaderMap::new()), OutputShape::Together);
    }
}
