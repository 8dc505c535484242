//! New sandboxes with the files of another.
//!
//! ```text
//!   each: admitted ─▶ the source stands still: all clones at once ─▶ each: written down, and the ordinary launch
//! ```
//! The files come first: a record without files would be started with none by whoever finds it after a crash, while files
//! without a record are whole, and are either started again or swept.
//!
//! Snapshots that are made at once share the filesystem's commit: thirty take little longer than one. Where each would be a
//! copy, the source stands still for the first one alone, and the others are copies of that.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};

use super::bring_up::{Begun, Greeting};
use super::capture::files_in_memory;
use super::{Fresh, House};
use crate::birth::{HOSTS, hosts, identity_files};
use crate::error::Error;
use crate::life::Live;
use crate::reaper::{Reaper, Task};
use crate::spec::{SandboxId, Spec, Storage};
use crate::state::Running;
use crate::storage::Upper;
use crate::turns::Turn;

/// An upper, and files to be written into it.
type Cloned = (Upper, Vec<(String, String)>);

/// How many are cloned or launched side by side.
const AT_ONCE: usize = 8;

impl House {
    pub fn forks(&self, reaper: &Reaper, from: &SandboxId, specs: &[Spec]) -> Vec<Result<Running, Error>> {
        let (mut jobs, mut forked) = (VecDeque::new(), Vec::new());
        forked.resize_with(specs.len(), || None);
        let mut prepared = Vec::new();
        for (number, spec) in specs.iter().enumerate() {
            match self.prepare(from, spec) {
                Ok(turn) => prepared.push((number, turn)),
                Err(error) => forked[number] = Some(Err(error)),
            }
        }
        let wanted: Vec<&Spec> = prepared.iter().map(|(number, _)| &specs[*number]).collect();
        let cloned = self.clones(reaper, from, &wanted);
        for ((number, turn), cloned) in prepared.into_iter().zip(cloned) {
            let spec = &specs[number];
            let begun = cloned.and_then(|(upper, files)| {
                let nest = self.write_down(spec, Fresh::Yes)?;
                Ok(Begun { fresh: Fresh::Yes, nest, upper, files })
            });
            match begun {
                Ok(begun) => jobs.push_back((number, turn, begun)),
                Err(error) => {
                    self.undo(reaper, &spec.id, Fresh::Yes);
                    forked[number] = Some(Err(error));
                }
            }
        }
        let started = side_by_side(jobs, |(number, _turn, begun)| {
            let spec = &specs[number];
            let started = self.bring_up(reaper, spec, begun, Greeting::Awaited);
            if started.is_err() {
                self.undo(reaper, &spec.id, Fresh::Yes);
            }
            (number, started)
        });
        for (number, started) in started {
            forked[number] = Some(started);
        }
        forked.into_iter().map(|forked| forked.unwrap_or_else(|| Err(Error::NotFound(from.clone())))).collect()
    }

    /// Refuses what cannot be, and marks a launch.
    fn prepare(&self, from: &SandboxId, spec: &Spec) -> Result<Turn<'_>, Error> {
        let source = self.spec(from)?;
        if source.root != spec.root {
            return Err(Error::Invalid(format!("a fork of sandbox {from} stands on the same root as it")));
        }
        if spec.storage == Storage::Memory {
            return Err(Error::Invalid("a fork has its files on disk".into()));
        }
        // Not waiting: another may wait for one that we have.
        let exists = || Error::Invalid(format!("sandbox {} exists already", spec.id));
        let turn = self.turns.try_take(&spec.id).filter(|_| spec.id != *from).ok_or_else(exists)?;
        if self.store.has(&spec.id)? {
            return Err(exists());
        }
        if self.admit(spec)? == Fresh::No {
            self.lock().remove(&spec.id);
            return Err(exists());
        }
        Ok(turn)
    }

    /// The files of each, and what is written into them, all as the source is at one instant.
    fn clones(&self, reaper: &Reaper, from: &SandboxId, specs: &[&Spec]) -> Vec<Result<Cloned, Error>> {
        let all = || -> Result<Vec<Result<Cloned, Error>>, Error> {
            let _turn = self.turns.take(from);
            let source = self.spec(from)?;
            let hosts = self.hosts_to_replace(&source)?;
            // What is copied file by file is copied once while the source stands still.
            let at_once = if self.shares(&source)? { specs.len() } else { 1 };
            let (first, others) = specs.split_at(at_once);
            let mut cloned = self.while_still(&source, |live| {
                let jobs: VecDeque<_> = first.iter().copied().enumerate().collect();
                Ok(in_order(side_by_side(jobs, |(number, spec)| (number, self.clone_one(live, &source, spec)))))
            })?;
            let rest = self.copies_of_the_first(reaper, first[0], &cloned[0], others);
            cloned.extend(rest);
            let cloned = self.accepted(cloned, specs);
            // Where all were refused nobody has anything of the source.
            if source.storage == Storage::Disk && cloned.iter().any(Result::is_ok) {
                self.store.pin(from, &self.limits(&source))?;
            }
            let files = |spec: &Spec| {
                let all = identity_files(spec);
                all.into_iter().filter(|(path, _)| path == "etc/hostname" || hosts && path == HOSTS).collect()
            };
            Ok(cloned.into_iter().zip(specs).map(|(upper, spec)| Ok((upper?, files(spec)))).collect())
        };
        if specs.is_empty() {
            return Vec::new();
        }
        match all() {
            Ok(cloned) => {
                reaper.give(Task::Recount(from.clone()));
                cloned
            }
            Err(error) => specs.iter().map(|_| Err(error.again())).collect(),
        }
    }

    /// Clones that may have what they begin with. All have the same files: they are counted once.
    fn accepted(&self, cloned: Vec<Result<Upper, Error>>, specs: &[&Spec]) -> Vec<Result<Upper, Error>> {
        let mut counted = None;
        let accept = |(upper, spec): (Result<Upper, Error>, &&Spec)| -> Result<Upper, Error> {
            let upper = upper?;
            self.store.accept_heritage(&spec.id, &self.limits(spec), &mut counted)?;
            Ok(upper)
        };
        cloned.into_iter().zip(specs).map(accept).collect()
    }

    /// Whether any number of clones costs the source the time of one.
    fn shares(&self, source: &Spec) -> Result<bool, Error> {
        Ok(source.storage == Storage::Disk && self.store.makes_snapshots()?)
    }

    /// Clones of a clone that nobody has started: all of the same instant.
    fn copies_of_the_first(
        &self,
        reaper: &Reaper,
        first: &Spec,
        made: &Result<Upper, Error>,
        others: &[&Spec],
    ) -> Vec<Result<Upper, Error>> {
        if others.is_empty() {
            return Vec::new();
        }
        if let Err(error) = made {
            return others.iter().map(|_| Err(error.again())).collect();
        }
        let jobs: VecDeque<_> = others.iter().copied().enumerate().collect();
        let cloned = in_order(side_by_side(jobs, |(number, spec)| {
            let limits = self.limits(spec);
            (number, self.store.clone_upper(&first.id, &spec.id, &limits).map_err(Error::from))
        }));
        // It has paid for what they share. Where that cannot be noted it has less room, and nothing is lost.
        if self.store.pin(&first.id, &self.limits(first)).is_ok() {
            reaper.give(Task::Recount(first.id.clone()));
        }
        cloned
    }

    fn clone_one(&self, live: Option<&Live>, source: &Spec, spec: &Spec) -> Result<Upper, Error> {
        let limits = self.limits(spec);
        match source.storage {
            Storage::Disk => Ok(self.store.clone_upper(&source.id, &spec.id, &limits)?),
            Storage::Memory => {
                let files = files_in_memory(live, &source.id)?;
                Ok(self.store.clone_files(files.as_fd(), &spec.id, &limits)?)
            }
        }
    }

    /// Whether `/etc/hosts` is as the engine wrote it: then a fork's has the fork's name. One that was changed inside is kept.
    fn hosts_to_replace(&self, source: &Spec) -> Result<bool, Error> {
        if source.storage == Storage::Memory {
            return Ok(true);
        }
        let written = hosts(&source.hostname);
        Ok(self.store.read_small(&source.id, HOSTS, 1 << 16)?.is_none_or(|text| text == written.as_bytes()))
    }
}

/// As they were asked for.
fn in_order<T>(mut done: Vec<(usize, T)>) -> Vec<T> {
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, one)| one).collect()
}

/// Does all jobs, some at a time, in any order.
fn side_by_side<J: Send, T: Send>(jobs: VecDeque<J>, act: impl Fn(J) -> T + Sync) -> Vec<T> {
    if jobs.len() < 2 {
        return jobs.into_iter().map(act).collect();
    }
    let threads = jobs.len().min(AT_ONCE);
    let (jobs, done) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = next() {
                    let result = act(job);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push(result);
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
