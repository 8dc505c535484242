//! Steps that were done before, found by what they were made of.
//!
//! A step's key is made of the organisation, the key of the step before it, and everything that decides what it does; the
//! first of them is the base by its digest, not by its name. So a base that moved, another order of steps or a changed
//! file is another key, and no organisation finds what another has built.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::plan::Context;
use crate::provider::Root;

/// Rises when what a step leaves behind is made in another way.
const VERSION: &str = "cove step 1";

/// A step that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    pub key: String,
    /// What the next step starts from.
    pub root: Root,
    pub context: Context,
    /// Bytes of the layer that it brought.
    #[serde(default)]
    pub bytes: u64,
}

/// A key in the making: parts are told apart by their lengths.
#[derive(Clone)]
pub struct Key(Sha256);

impl Key {
    pub fn of_base(organisation: &str, base: &str) -> Key {
        let mut key = Key(Sha256::new());
        key.part(VERSION).part(organisation).part(base);
        key
    }

    pub fn after(parent: &str) -> Key {
        let mut key = Key(Sha256::new());
        key.part(parent);
        key
    }

    pub fn part(&mut self, part: &str) -> &mut Key {
        self.0.update((part.len() as u64).to_be_bytes());
        self.0.update(part.as_bytes());
        self
    }

    pub fn parts<'a>(&mut self, parts: impl IntoIterator<Item = &'a str>) -> &mut Key {
        for part in parts {
            self.part(part);
        }
        self
    }

    pub fn end(&self) -> String {
        hex::encode(self.0.clone().finalize())
    }
}

/// Steps under way: whoever comes to the same one waits for the first, and finds it done, or does it.
#[derive(Default)]
pub struct Flights {
    under_way: Mutex<HashMap<String, Weak<AsyncMutex<()>>>>,
}

impl Flights {
    pub async fn join(&self, organisation: &str, key: &str) -> OwnedMutexGuard<()> {
        let name = format!("{organisation}/{key}");
        let lock = {
            let mut under_way = self.under_way.lock().expect("no panic while held");
            under_way.retain(|_, lock| lock.strong_count() > 0);
            match under_way.get(&name).and_then(Weak::upgrade) {
                Some(lock) => lock,
                None => {
                    let lock = Arc::new(AsyncMutex::new(()));
                    under_way.insert(name, Arc::downgrade(&lock));
                    lock
                }
            }
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_tells_everything_apart_that_makes_a_difference() {
        let base = |organisation, base| Key::of_base(organisation, base).end();
        assert_ne!(base("a", "sha256:1"), base("a", "sha256:2"));
        assert_ne!(base("a", "b"), base("ab", ""));
        let run = |parts: &[&str]| Key::after("p").parts(parts.iter().copied()).end();
        assert_ne!(run(&["a b"]), run(&["a", "b"]));
        assert_ne!(run(&["a", ""]), run(&["a"]));
        assert_eq!(run(&["a", "b"]), run(&["a", "b"]));
    }

    #[tokio::test]
    async fn the_second_waits_until_the_first_has_ended_however_it_ends() {
        let flights = Arc::new(Flights::default());
        let first = flights.join("o", "k").await;
        let other = flights.join("p", "k").await;
        let waiting = tokio::spawn({
            let flights = Arc::clone(&flights);
            async move { drop(flights.join("o", "k").await) }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop((first, other));
        waiting.await.unwrap();
    }
}
