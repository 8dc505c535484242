//! The sockets: listeners and a stop signal come from outside.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::door::entrance;
use crate::{App, Error, connection, door, tls};

/// How long streams may take to close when the server ends.
const GOODBYE: Duration = Duration::from_millis(300);
/// How long requests under way may take when the server ends.
const GRACE: Duration = Duration::from_secs(1);

/// Where the server listens: in the clear, and with TLS where it has a certificate. Every door is on both.
pub struct Sockets {
    pub plain: TcpListener,
    pub secure: Option<(TcpListener, Arc<tls::Keeper>)>,
    /// The locked data directory, if the caller has locked it already.
    pub held: Option<Held>,
}

impl From<TcpListener> for Sockets {
    fn from(plain: TcpListener) -> Self {
        Sockets { plain, secure: None, held: None }
    }
}

/// Reconciles, starts the loops and serves until the server ends; then finishes what is under way. Sandboxes go on.
pub async fn run(
    sockets: impl Into<Sockets>,
    app: App,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), Error> {
    let Sockets { plain, secure, held } = sockets.into();
    let _held = match held {
        Some(held) => held,
        None => alone(&app.config().data)?,
    };
    if let Ok(address) = plain.local_addr() {
        app.listens_on(address);
    }
    app.say_alive().await?;
    let jobs = app.take_up_jobs().await?;
    app.take_up_builds().await?;
    app.take_up_pushes().await?;
    let reconciled = app.reconcile().await?;
    tracing::info!(
        sandboxes = reconciled.sandboxes,
        changed = reconciled.changed,
        orphans = reconciled.orphans,
        aside = reconciled.aside,
        jobs,
        "reconciled"
    );
    app.recount().await?;
    app.reckon_room().await?;
    app.remove_workshops().await?;
    app.look_at_recipes().await?;
    app.readopt_pools().await?;
    app.begin();
    let router = door::router(app.clone());
    let told = app.ending().clone();
    let ending = app.ending().clone();
    if let Some((listener, keeper)) = secure {
        app.tasks().spawn(keeper.clone().keep(app.clock().clone(), app.ending().clone()));
        let config = keeper.config().map_err(|error| Error::internal(format!("serve with TLS: {error}")))?;
        let guarded = entrance::guard(tls::host::guard(router.clone(), keeper), app.clone());
        app.tasks().spawn(connection::serve(
            listener,
            Some(config),
            guarded,
            app.rights().clone(),
            app.ending().clone(),
        ));
    }
    tokio::spawn(async move {
        shutdown.await;
        told.cancel();
    });
    let router = entrance::guard(router, app.clone());
    let serving = connection::serve(plain, None, router, app.rights().clone(), app.ending().clone());
    let late = async {
        ending.cancelled().await;
        tokio::time::sleep(GOODBYE).await;
        app.rights().end_streams();
        tokio::time::sleep(GRACE.saturating_sub(GOODBYE)).await;
    };
    tokio::select! {
        () = serving => {}
        () = late => tracing::warn!("some requests were still under way at the end"),
    }
    app.rights().end_streams();
    app.shutdown().await;
    Ok(())
}

/// A data directory that this process has locked; dropping it releases the lock.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "the kernel lets go of the lock when the file is closed")] std::fs::File);

/// Two servers on one data directory would both believe that its sandboxes are theirs. The kernel releases the lock
/// when the process ends, however it ends. The file contains the process id, so that the second server can name the
/// first.
pub fn alone(data: &std::path::Path) -> Result<Held, Error> {
    use std::io::{Read, Seek, Write};
    let path = data.join("lock");
    let trouble = |error: std::io::Error| Error::internal(format!("lock {}: {error}", path.display()));
    let opened = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = opened.map_err(trouble)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).and_then(|()| file.rewind()).map_err(trouble)?;
            writeln!(file, "{}", std::process::id()).map_err(trouble)?;
            Ok(Held(file))
        }
        Err(std::fs::TryLockError::WouldBlock) => {
            let mut text = String::new();
            // The owner may not have written its process id yet.
            let known = file.take(32).read_to_string(&mut text).is_ok();
            let who = match text.trim().parse::<u32>() {
                Ok(pid) if known => format!("another server (process {pid})"),
                _ => "another server".to_owned(),
            };
            Err(Error::Conflict(format!("{who} has the data directory {}", data.display())))
        }
        Err(std::fs::TryLockError::Error(error)) => Err(trouble(error)),
    }
}
