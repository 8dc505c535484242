//! Manifests of this machine's sandboxes and layers, by the engine.

use std::num::NonZeroUsize;
use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use cove_engine::{Engine, Error as EngineError, storage};
use tokio::sync::Semaphore;
use tracing::Instrument as _;

use super::{Local, id_of, refused};
use crate::provider::manifest::{Against, Checked, How, Manifests, Problem, ProblemKind, Pulse, Sealed, Thing};
use crate::provider::{Handle, ProviderError};
use crate::trace::effect;

/// Reading everything takes the disk and a processor, however many want it at once.
static TURNS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, NonZeroUsize::get)));

#[async_trait]
impl Manifests for Local {
    async fn seal(&self, handle: &Handle, pulse: Arc<Pulse>) -> Result<Sealed, ProviderError> {
        let span = effect!("seal", handle);
        let id = id_of(handle)?;
        let sealed = self.read(move |engine| engine.seal(&id, &|files, bytes| pulse.beat(files, bytes)));
        let sealed = sealed.instrument(span).await?;
        Ok(Sealed { digest: sealed.digest.to_string(), files: sealed.files, bytes: sealed.bytes })
    }

    async fn check(&self, thing: Thing, pulse: Arc<Pulse>) -> Result<Checked, ProviderError> {
        let digest_of = |text: &str| {
            let wrong = |_| ProviderError::Refused(format!("{text:?} is no digest of a manifest"));
            text.parse::<storage::Digest>().map_err(wrong)
        };
        let checked = match thing {
            Thing::Sandbox { handle, digest } => {
                let (id, digest) = (id_of(&handle)?, digest.as_deref().map(digest_of).transpose()?);
                let watched =
                    move |engine: &Engine| engine.check(&id, digest.as_ref(), &|files, bytes| pulse.beat(files, bytes));
                self.read(watched).await?
            }
            Thing::Layer { layer, against } => {
                let against = match against {
                    Against::Manifest(digest) => storage::Against::Manifest(digest_of(&digest)?),
                    Against::Own => storage::Against::Own,
                    Against::Name => storage::Against::Name,
                };
                let watched = move |engine: &Engine| {
                    engine.check_layer(&layer, against, &|files, bytes| pulse.beat(files, bytes))
                };
                self.read(watched).await?
            }
            Thing::Volume(volume) => {
                let watched =
                    move |engine: &Engine| engine.check_volume(&volume, &|files, bytes| pulse.beat(files, bytes));
                self.read(watched).await?
            }
        };
        Ok(told(checked))
    }
}

impl Local {
    /// On a thread for blocking work, in its turn.
    async fn read<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Engine) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<T, ProviderError> {
        // The semaphore is never closed.
        let _turn = TURNS.acquire().await;
        let engine = Arc::clone(&self.engine);
        let done = tokio::task::spawn_blocking(move || act(&engine)).await;
        let done = done.map_err(|error| ProviderError::Failed(format!("the engine's thread ended: {error}")))?;
        done.map_err(|error| match error {
            EngineError::AlreadyRunning(_) | EngineError::Storage(storage::Error::Interrupted) => {
                ProviderError::Exhausted(error.to_string())
            }
            EngineError::Storage(storage::Error::Manifest { .. }) => ProviderError::Refused(error.to_string()),
            error => refused(error),
        })
    }
}

fn told(checked: storage::Checked) -> Checked {
    let problem = |problem: storage::Problem| Problem {
        kind: match problem.kind {
            storage::ProblemKind::Missing => ProblemKind::Missing,
            storage::ProblemKind::Added => ProblemKind::Added,
            storage::ProblemKind::Changed => ProblemKind::Changed,
            storage::ProblemKind::Unreadable => ProblemKind::Unreadable,
            storage::ProblemKind::Manifest => ProblemKind::Manifest,
        },
        path: problem.path,
        detail: problem.detail,
    };
    Checked {
        how: match checked.how {
            storage::How::Manifest => How::Manifest,
            storage::How::Name => How::Name,
            storage::How::Read => How::Read,
            storage::How::Names => How::Names,
        },
        files: checked.files,
        bytes: checked.bytes,
        missing: checked.missing,
        added: checked.added,
        changed: checked.changed,
        unreadable: checked.unreadable,
        problems: checked.problems.into_iter().map(problem).collect(),
        layers: checked.layers.into_iter().map(|(layer, digest)| (layer, digest.to_string())).collect(),
    }
}
