//! SIGTERM and SIGINT of a server, on a thread of their own: busy workers do not delay the end.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::complaint::{Complaint, doing};

/// An orderly end takes about a second, and three at most. A server that has not ended by then cannot end in order.
const LIMIT: Duration = Duration::from_secs(5);

/// The exit code then: as a shell reports SIGTERM.
const STUCK: i32 = 128 + 15;

/// Returns when the server should end. A second signal, or an end that takes too long, ends the process at once; the
/// next server finds what was under way.
pub fn told_to_end() -> Result<impl Future<Output = ()> + Send + 'static, Complaint> {
    let told = CancellationToken::new();
    let tells = told.clone();
    let ears = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ears = ears.map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    // Before anything is served: from now on signals are handled.
    let entered = ears.enter();
    let catch = |kind| signal(kind).map_err(doing("catch signals"));
    let (mut term, mut interrupt) = (catch(SignalKind::terminate())?, catch(SignalKind::interrupt())?);
    drop(entered);
    let listens = move || {
        ears.block_on(async {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            tells.cancel();
            let why = tokio::select! {
                _ = term.recv() => "a second signal",
                _ = interrupt.recv() => "a second signal",
                () = tokio::time::sleep(LIMIT) => "the end takes too long",
            };
            eprintln!("cove: {why}: ending at once; sandboxes go on");
            std::process::exit(STUCK);
        })
    };
    std::thread::Builder::new().name("signals".into()).spawn(listens).map_err(doing("start a thread"))?;
    Ok(async move {
        told.cancelled().await;
        tracing::info!("ending; sandboxes go on");
    })
}
