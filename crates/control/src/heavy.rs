//! Work that takes the processor for longer than a moment, kept off the few threads that serve everybody.
//!
//! An async worker that parses 16 MiB answers nobody else meanwhile. What is small is done at once; the rest goes to
//! threads of its own, as many at a time as there are processors.

use std::sync::LazyLock;
use std::thread;

use tokio::sync::Semaphore;

/// From so many bytes on, reading a text takes more than about a millisecond.
pub const SMALL: usize = 64 << 10;

static TURNS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(thread::available_parallelism().map_or(2, |processors| processors.get().max(2))));

/// Does `work`, whose effort grows with `size`: at once where that is at most `small`, elsewhere in turn otherwise.
pub async fn run<T: Send + 'static>(size: usize, small: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if size <= small {
        return work();
    }
    // The semaphore is never closed.
    let _turn = TURNS.acquire().await;
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the runtime ended while a request was served: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn others_are_served_while_heavy_work_goes_on() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let heavy = tokio::spawn(run(SMALL + 1, SMALL, move || wait.recv().is_ok()));
        // On this runtime's only thread: would the work be done on it, this sleep never ended.
        tokio::time::sleep(Duration::from_millis(10)).await;
        done.send(()).unwrap();
        assert!(heavy.await.unwrap());
        assert_eq!(run(1, SMALL, || 7).await, 7);
    }
}
