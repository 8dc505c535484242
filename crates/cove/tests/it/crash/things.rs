//! What lasts beside sandboxes, and what a client knows of it: snapshots, templates, volumes.

use std::collections::BTreeMap;

use super::facts::{Either, Files};

/// A snapshot, with all files that its sandbox had.
#[derive(Debug)]
pub struct Moment {
    pub name: String,
    /// Of the record; known once it was acknowledged.
    pub id: Option<String>,
    /// The sandbox that it is of.
    pub sandbox: String,
    pub there: Either<bool>,
    pub files: Files,
}

/// A template with one step, which writes a word.
#[derive(Debug)]
pub struct Template {
    pub name: String,
    pub id: Option<String>,
    pub word: String,
    pub there: Either<bool>,
    pub stage: Stage,
}

/// What was acknowledged of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing yet.
    Asked,
    /// It is under way: the server comes to its end with it, however often it is killed.
    Begun,
    Ready,
}

#[derive(Debug)]
pub struct Volume {
    pub name: String,
    pub id: Option<String>,
    pub there: Either<bool>,
    /// Contents by path; all of them are on the disk when they are acknowledged.
    pub files: BTreeMap<String, Either<Option<Vec<u8>>>>,
}
