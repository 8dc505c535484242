//! Work that cleans up when the person interrupts it: Ctrl-C, a closed terminal, `kill`.
//!
//! A signal ends the work at its next wait: its values are dropped, and with them unfinished drafts. The exit code is
//! the one that a shell shows for a program that the signal ended.

use tokio::signal::unix::{SignalKind, signal};

use crate::complaint::{Complaint, code};

/// Nothing to say: the person knows. The code is a shell's for a program that the signal ended.
pub fn interrupted_by(signal: i32) -> Complaint {
    Complaint::silent().with_code(u8::try_from(128 + signal).unwrap_or(code::FAILED))
}

/// The work's result, or a silent complaint with 128 + the signal's number.
pub async fn or_interrupted<T>(work: impl Future<Output = Result<T, Complaint>>) -> Result<T, Complaint> {
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    let mut signals = kinds.map(signal);
    let arrivals = signals.iter_mut().zip(kinds).map(|(signal, kind)| {
        Box::pin(async move {
            match signal {
                Ok(signal) => signal.recv().await,
                // If the signal cannot be caught, it ends the program, which is its default.
                Err(_) => std::future::pending().await,
            };
            kind
        })
    });
    let interrupted = futures::future::select_all(arrivals);
    tokio::select! {
        done = work => done,
        (kind, _, _) = interrupted => Err(interrupted_by(kind.as_raw_value())),
    }
}
