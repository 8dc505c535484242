//! One change of a sandbox at a time in this process. The generation in the store does the same between servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use cove_engine::SandboxId;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

#[derive(Default)]
pub struct Locks {
    held: Mutex<HashMap<SandboxId, Weak<AsyncMutex<()>>>>,
}

/// Dead entries are swept when the map has grown to this and doubled since.
const SWEEP_ABOVE: usize = 1024;

impl Locks {
    /// Waits until nobody else changes the sandbox.
    pub async fn lock(&self, id: &SandboxId) -> OwnedMutexGuard<()> {
        self.of(id).lock_owned().await
    }

    /// `None` where somebody works on the sandbox.
    pub fn try_lock(&self, id: &SandboxId) -> Option<OwnedMutexGuard<()>> {
        self.of(id).try_lock_owned().ok()
    }

    fn of(&self, id: &SandboxId) -> Arc<AsyncMutex<()>> {
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
