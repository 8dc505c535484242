//! Ctrl-C ends the work, not the cleaning up.

use std::future::Future;

use cove_terminal::complaint::Complaint;
use tokio::signal::unix::{SignalKind, signal};

/// The work's result, or `None` when a signal came first. The work is dropped where it waits; who called cleans up.
pub async fn until_interrupted<T>(work: impl Future<Output = T>) -> Result<Option<T>, Complaint> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let [mut interrupt, mut terminate, mut hangup] = kinds.map(signal);
    let (interrupt, terminate, hangup) = (interrupt.as_mut(), terminate.as_mut(), hangup.as_mut());
    let (Ok(interrupt), Ok(terminate), Ok(hangup)) = (interrupt, terminate, hangup) else {
        return Err(Complaint::failed("listen for signals"));
    };
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(None),
        _ = terminate.recv() => Ok(None),
        _ = hangup.recv() => Ok(None),
        done = work => Ok(Some(done)),
    }
}
