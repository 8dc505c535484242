//! One change of a sandbox, or of a volume, at a time in this process. The generation of a sandbox in the store does the same
//! between servers; a volume is one server's.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, Weak};

use cove_protocol::SandboxId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

pub struct Locks<K = SandboxId> {
    held: Mutex<HashMap<K, Weak<AsyncMutex<()>>>>,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Locks { held: Mutex::default() }
    }
}

/// Dead entries are swept when the map has grown to this and doubled since.
const SWEEP_ABOVE: usize = 1024;

impl<K: Eq + Hash + Clone> Locks<K> {
    /// Waits until nobody else changes it.
    pub async fn lock(&self, id: &K) -> OwnedMutexGuard<()> {
        self.of(id).lock_owned().await
    }

    /// `None` where somebody works on it.
    pub fn try_lock(&self, id: &K) -> Option<OwnedMutexGuard<()>> {
        self.of(id).try_lock_owned().ok()
    }

    fn of(&self, id: &K) -> Arc<AsyncMutex<()>> {
        let mut held = self.held.lock().expect("no panic while held");
        if held.len() > SWEEP_ABOVE && held.len() == held.capacity() {
            held.retain(|_, lock| lock.strong_count() > 0);
        }
        match held.get(id).and_then(Weak::upgrade) {
            Some(lock) => lock,
            None => {
                let lock = Arc::new(AsyncMutex::new(()));
                held.insert(id.clone(), Arc::downgrade(&lock));
                lock
            }
        }
    }
}
