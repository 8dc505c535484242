//! What one sandbox must be like, after all requests and answers.

use std::collections::{BTreeMap, BTreeSet};

/// A thing that may be one of several: what it was, and what it was asked to become when the server died.
#[derive(Debug, Clone)]
pub struct Either<T>(pub Vec<T>);

impl<T: PartialEq + Clone> Either<T> {
    pub fn surely(value: T) -> Self {
        Either(vec![value])
    }

    pub fn or(&mut self, value: T) {
        if !self.0.contains(&value) {
            self.0.push(value);
        }
    }

    pub fn known(&self) -> Option<&T> {
        (self.0.len() == 1).then(|| &self.0[0])
    }
}

/// The API's names; the last is not a state but 404.
pub const GONE: &str = "gone";

#[derive(Debug)]
pub struct Facts {
    pub id: String,
    /// The header that it was made with.
    pub key: String,
    pub state: Either<&'static str>,
    /// Contents by path; `None` is no file.
    pub files: BTreeMap<String, Either<Option<Vec<u8>>>>,
    /// Those of them that a power cut cannot take: synced, and not written since.
    pub synced: BTreeSet<String>,
    /// Acknowledged exits of this life, by the process's tag.
    pub exits: BTreeMap<String, i64>,
    /// A command that goes on, by its tag; whether its start was acknowledged.
    pub counting: Option<(String, bool)>,
    /// A session on it, and what its journal must hold.
    pub session: Option<(String, Vec<String>)>,
}

impl Facts {
    pub fn new(id: String, key: String) -> Facts {
        Facts {
            id,
            key,
            state: Either::surely("running"),
            files: BTreeMap::new(),
            synced: BTreeSet::new(),
            exits: BTreeMap::new(),
            counting: None,
            session: None,
        }
    }

    /// Its processes ended: what they left in memory is no fact any more.
    pub fn end_of_life(&mut self) {
        self.exits.clear();
        self.counting = None;
    }

    pub fn is_synced(&mut self, path: &str) {
        self.synced.insert(path.to_owned());
    }

    /// A stop brings everything to the disk.
    pub fn all_is_synced(&mut self) {
        self.synced = self.files.keys().cloned().collect();
    }

    /// No process outlives it, and of files only those that were synced.
    pub fn lose_power(&mut self) {
        let after = |state: &&'static str| if matches!(*state, "running" | "paused") { "stopped" } else { *state };
        let states: BTreeSet<&'static str> = self.state.0.iter().map(after).collect();
        self.state = Either(states.into_iter().collect());
        self.end_of_life();
        let synced = std::mem::take(&mut self.synced);
        self.files.retain(|path, contents| synced.contains(path) && contents.known().is_some());
        self.synced = self.files.keys().cloned().collect();
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/api/sandboxes/{}{rest}", self.id)
    }
}
