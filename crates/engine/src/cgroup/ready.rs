//! Groups of the first version that are made before anybody needs them.
//!
//! Making one costs a launch a quarter of a millisecond; giving one a name costs a tenth of that (rename(2) of a group
//! works in v1 only: a v2 tree beside them is made for its sandbox). A group that is ready is called `ready-` and a
//! mark of the process that made it: no sandbox has such a name, and a later engine sees whether that process still
//! lives.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use super::{Opened, subdirectories};
use crate::process;

const PREFIX: &str = "ready-";

#[derive(Debug)]
pub(super) struct Ready {
    groups: Mutex<Vec<(String, Opened)>>,
    cleared: Once,
}

impl Default for Ready {
    fn default() -> Ready {
        Ready { groups: Mutex::default(), cleared: Once::new() }
    }
}

impl Ready {
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn next_name() -> String {
        format!("{PREFIX}{}", process::mark())
    }

    pub(super) fn add(&self, name: String, opened: Opened) {
        self.lock().push((name, opened));
    }

    /// Renames a ready group. `None` where there is none, or the name is taken: then making a new one reports why.
    pub(super) fn take(&self, bases: &[&PathBuf], name: &str) -> Option<Opened> {
        let (ready, opened) = self.lock().pop()?;
        let named = bases.iter().take_while(|base| fs::rename(base.join(&ready), base.join(name)).is_ok()).count();
        if named == bases.len() {
            return Some(opened);
        }
        for (at, base) in bases.iter().enumerate() {
            // The sweep or the next engine finds what cannot be removed.
            let _ = fs::remove_dir(base.join(if at < named { name } else { ready.as_str() }));
        }
        None
    }

    pub(super) fn clear(&self, bases: &[&PathBuf]) {
        for (name, _) in self.lock().drain(..) {
            for base in bases {
                // Empty: nobody ever joined it. The next engine finds what stays.
                let _ = fs::remove_dir(base.join(&name));
            }
        }
    }

    /// Removes, once, groups that killed engines had made ahead.
    pub(super) fn clear_of_the_dead(&self, bases: &[&PathBuf]) {
        self.cleared.call_once(|| {
            for base in bases {
                for name in subdirectories(base).into_iter().filter(|name| is_of_the_dead(name)) {
                    let _ = fs::remove_dir(base.join(name));
                }
            }
        });
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Opened)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_of_the_dead(name: &str) -> bool {
    name.strip_prefix(PREFIX).is_some_and(process::is_of_the_dead)
}
