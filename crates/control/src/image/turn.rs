//! One at a time for each layer on this server: whoever makes it, fetches it or removes it.
//!
//! The store decides who may; the turn keeps a decision true until its files have followed. Without it, one who found a
//! layer to be going could remove the files of another who has made it anew meanwhile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::provider::LayerId;

#[derive(Default)]
pub struct Turns {
    taken: Mutex<HashMap<LayerId, Weak<AsyncMutex<()>>>>,
}

impl Turns {
    /// Waits for whoever has it.
    pub async fn take(&self, layer: LayerId) -> OwnedMutexGuard<()> {
        self.of(layer).lock_owned().await
    }

    /// `None` where somebody has it.
    pub fn try_take(&self, layer: LayerId) -> Option<OwnedMutexGuard<()>> {
        self.of(layer).try_lock_owned().ok()
    }

    fn of(&self, layer: LayerId) -> Arc<AsyncMutex<()>> {
        let mut taken = self.taken.lock().expect("no panic while held");
        taken.retain(|_, turn| turn.strong_count() > 0);
        match taken.get(&layer).and_then(Weak::upgrade) {
            Some(turn) => turn,
            None => {
                let turn = Arc::new(AsyncMutex::new(()));
                taken.insert(layer, Arc::downgrade(&turn));
                turn
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_layer_has_one_turn_and_another_its_own() {
        let turns = Turns::default();
        let (one, other) = (LayerId::new([1; 32]), LayerId::new([2; 32]));
        let first = turns.take(one).await;
        assert!(turns.try_take(one).is_none());
        drop(turns.take(other).await);
        drop(first);
        drop(turns.try_take(one).expect("given back"));
        drop(turns.take(other).await);
        assert_eq!(turns.taken.lock().unwrap().len(), 1, "nobody's are forgotten");
    }
}
