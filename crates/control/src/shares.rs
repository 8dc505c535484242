//! Work that takes long and that every organisation may ask for: each has so many places, and all of them together no more
//! than the server does at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Debug)]
pub struct Shares {
    server: Arc<Semaphore>,
    /// Places of each organisation that has or wants one.
    of: Mutex<HashMap<String, Arc<Semaphore>>>,
    each: usize,
}

/// A place to work: one of the server's, and one of the organisation's.
pub struct Share {
    _organisation: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl Shares {
    pub fn new(all: usize, each: usize) -> Shares {
        Shares { server: Arc::new(Semaphore::new(all)), of: Mutex::default(), each }
    }

    /// Waits for a place. The organisation's comes first: those who wait for their own keep nobody else waiting.
    pub async fn take(&self, organisation: &str) -> Share {
        let own = {
            let mut of = self.of.lock().expect("no panic while held");
            of.retain(|_, own| Arc::strong_count(own) > 1 || own.available_permits() < self.each);
            let new = || Arc::new(Semaphore::new(self.each));
            Arc::clone(of.entry(organisation.to_owned()).or_insert_with(new))
        };
        let organisation = own.acquire_owned().await.expect("never closed");
        let server = Arc::clone(&self.server).acquire_owned().await.expect("never closed");
        Share { _organisation: organisation, _server: server }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_place_of_its_own_keeps_nobody_else_waiting() {
        let shares = Shares::new(2, 1);
        let first = shares.take("a").await;
        assert!(shares.take("a").now_or_never().is_none(), "it has one");
        let other = shares.take("b").now_or_never().expect("the server has another");
        assert!(shares.take("c").now_or_never().is_none(), "the server has no third");
        drop((first, other));
        drop(shares.take("c").now_or_never().expect("given back"));
        drop(shares.take("a").now_or_never().expect("given back"));
        assert_eq!(shares.of.lock().unwrap().len(), 1, "nobody's are forgotten");
    }
}
