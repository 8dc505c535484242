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

/// Every file that a client writes in a sandbox: others are not there.
pub const NAMES: [&str; 3] = ["/home/user/file0", "/home/user/file1", "/home/user/file2"];

/// The contents of all of them at one moment; `None` is no file.
pub type Files = BTreeMap<String, Option<Vec<u8>>>;

#[derive(Debug)]
pub struct Facts {
    /// Its id; a name until the id is known.
    pub id: String,
    /// The header that it was made with; copies have none.
    pub key: Option<String>,
    pub state: Either<&'static str>,
    /// Contents by path; `None` is no file. A path that is not here was never written, or is among the `lost`.
    pub files: BTreeMap<String, Either<Option<Vec<u8>>>>,
    /// Those whose contents a power cut has left open.
    pub lost: BTreeSet<String>,
    /// Those of the files that a power cut cannot take: synced, and not written since.
    pub synced: BTreeSet<String>,
    /// What it has instead, all of it, if a rollback that was not answered was done.
    pub rolled: Option<Files>,
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
            key: Some(key),
            state: Either::surely("running"),
            files: BTreeMap::new(),
            lost: BTreeSet::new(),
            synced: BTreeSet::new(),
            rolled: None,
            exits: BTreeMap::new(),
            counting: None,
            session: None,
        }
    }

    /// A copy of it, which may or may not come to be: its files and nothing else.
    pub fn copy(&self, name: String) -> Facts {
        Facts {
            key: None,
            state: Either(vec!["running", GONE]),
            files: self.files.clone(),
            lost: self.lost.clone(),
            synced: self.synced.clone(),
            ..Facts::new(name, String::new())
        }
    }

    /// All its files, where all of them are known.
    pub fn known_files(&self) -> Option<Files> {
        let one = |name: &str| match self.files.get(name) {
            _ if self.lost.contains(name) || self.rolled.is_some() => None,
            None => Some(None),
            Some(contents) => contents.known().cloned(),
        };
        NAMES.into_iter().map(|name| Some((name.to_owned(), one(name)?))).collect()
    }

    /// From now on it has these, and no others.
    pub fn has(&mut self, files: &Files) {
        self.files = files.iter().map(|(path, contents)| (path.clone(), Either::surely(contents.clone()))).collect();
        self.lost.clear();
        self.rolled = None;
        self.synced.retain(|path| files.contains_key(path));
    }

    /// Whether what was found is what it was asked to have, whatever became of requests that were not answered.
    pub fn allows(&self, found: &Files) -> bool {
        let fits = |(path, contents): (&String, &Option<Vec<u8>>)| match self.files.get(path) {
            Some(known) => known.0.contains(contents),
            None => self.lost.contains(path) || contents.is_none(),
        };
        found.iter().all(fits) || self.rolled.as_ref() == Some(found)
    }

    /// Its processes ended: what they left in memory is no fact any more.
    pub fn end_of_life(&mut self) {
        self.exits.clear();
        self.counting = None;
    }

    pub fn is_synced(&mut self, path: &str) {
        self.synced.insert(path.to_owned());
    }

    /// A stop brings everything to the disk, and so does a rollback.
    pub fn all_is_synced(&mut self) {
        self.synced = self.files.keys().cloned().collect();
    }

    /// No process outlives it, and of files only those that were synced.
    pub fn lose_power(&mut self) {
        let after = |state: &&'static str| if matches!(*state, "running" | "paused") { "stopped" } else { *state };
        let mut states: BTreeSet<&'static str> = self.state.0.iter().map(after).collect();
        // A start that was asked for and not answered may be finished by the next server.
        let may = |state| self.state.0.contains(&state);
        if may("running") && (may("stopped") || may("archived")) {
            states.insert("running");
        }
        self.state = Either(states.into_iter().collect());
        self.end_of_life();
        let synced = std::mem::take(&mut self.synced);
        for (path, contents) in std::mem::take(&mut self.files) {
            let lasts = match contents.known() {
                // Nobody removes a file: one that is not there does not come back.
                Some(None) => true,
                Some(Some(_)) => synced.contains(&path),
                None => false,
            };
            if lasts {
                self.synced.insert(path.clone());
                self.files.insert(path, contents);
            } else {
                self.lost.insert(path);
            }
        }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/api/sandboxes/{}{rest}", self.id)
    }
}
