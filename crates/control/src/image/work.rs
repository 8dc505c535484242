//! Layers that something under way needs: held from the moment that they are chosen until their user has its own row.
//!
//! A creation that is about to use a layer writes its use with its row. A build needs the layers of its steps for
//! minutes before it has a row for them: meanwhile its [`Work`] holds them. Work ends with its server.
//!
//! ```text
//!   wanted ─▶ no row ────────────────▶ draft, ours ─▶ make ─▶ ready
//!          ├▶ ready ─── not here ────▶ make it here too
//!          ├▶ going ─── here ────────▶ remove it now, begin anew
//!          │         └─ on a server that is away ─▶ begin anew
//!          └▶ draft ─── of another ──▶ wait; where its maker is dead, it is given up
//! ```

use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::image::{LayerKind, LayerState, NewLayer};
use crate::provider::images::LayerInfo;
use crate::provider::{LayerId, ProviderError};
use crate::store::layers::Begun;
use crate::{App, Error, random};

/// How long a layer that somebody else makes or removes is waited for.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(100);

/// Something under way that needs layers. Ended by [`Work::end`]; one that is dropped ends in the background.
pub struct Work {
    app: App,
    name: String,
    ended: bool,
}

impl Work {
    pub(crate) fn begin(app: &App) -> Work {
        let name = format!("{}/{}", app.server(), random::hex(8));
        Work { app: app.clone(), name, ended: false }
    }

    /// Keeps layers that are there. `false` where one of them is going or gone.
    pub async fn hold(&self, layers: &[LayerId]) -> Result<bool, Error> {
        if layers.is_empty() {
            return Ok(true);
        }
        self.app.store().hold_layers(layers, &self.name).await
    }

    /// Makes a layer, or finds it made, and holds it. `make` is called where it is to be made.
    pub async fn make<F>(
        &self,
        id: LayerId,
        kind: LayerKind,
        organisation: Option<&str>,
        provider: &str,
        make: impl FnOnce() -> F,
    ) -> Result<Made, Error>
    where
        F: Future<Output = Result<LayerInfo, Error>>,
    {
        let store = self.app.store();
        let new = NewLayer { id, kind, organisation, server: self.app.server(), provider };
        let turn = self.app.layer_turns().take(id).await;
        let begun = tokio::time::Instant::now();
        loop {
            match store.begin_layer(new, &self.name, self.app.now().as_millisecond()).await? {
                Begun::New => break,
                Begun::Ready => return self.make_here(id, provider, make).await,
                Begun::Busy if begun.elapsed() > PATIENCE => {
                    return Err(Error::exhausted("somebody else makes the same layer, and does not come to an end"));
                }
                Begun::Busy => {}
            }
            if self.clear_the_way(new).await? {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        let mut draft = Draft { app: self.app.clone(), work: self.name.clone(), layer: Some(id), turn: Some(turn) };
        let info = make().await?;
        if !store.seal_layer(id, info.bytes, info.files, self.app.now().as_millisecond()).await? {
            return Err(Error::exhausted("what was made was given up meanwhile: the server was away; try again"));
        }
        draft.layer = None;
        Ok(Made::Now(info))
    }

    /// Sees to it that nobody waits for the next sweep, or for a maker that is dead. Returns whether the layer is this work's
    /// to make now. For those who have its turn.
    async fn clear_the_way(&self, new: NewLayer<'_>) -> Result<bool, Error> {
        let (app, store) = (&self.app, self.app.store());
        let Some(layer) = store.layer(new.id).await? else { return Ok(false) };
        match layer.state {
            LayerState::Ready => Ok(false),
            LayerState::Going => {
                app.remove_here(new.id).await?;
                store.revive_layer(new, &self.name, app.now().as_millisecond(), app.alive_since()).await
            }
            LayerState::Draft => {
                let maker = store.maker_of_layer(new.id).await?;
                let is_nobodys = match &maker {
                    Some(maker) => app.is_work_of_the_dead(maker).await?,
                    // It went away while the draft was written down.
                    None => true,
                };
                if is_nobodys {
                    store.give_up_layer(new.id, maker.as_deref().unwrap_or(&self.name)).await?;
                }
                Ok(false)
            }
        }
    }

    /// A layer that the store knows: found at this provider, or made there too.
    async fn make_here<F>(&self, id: LayerId, provider: &str, make: impl FnOnce() -> F) -> Result<Made, Error>
    where
        F: Future<Output = Result<LayerInfo, Error>>,
    {
        let (store, server) = (self.app.store(), self.app.server());
        if self.app.provider(provider)?.layers().layer(id).await?.is_some() {
            return Ok(Made::Found);
        }
        // First: what a crash leaves has a row that says where it is.
        store.add_layer_place(id, server, provider).await?;
        match make().await {
            Ok(info) => Ok(Made::Now(info)),
            Err(error) => {
                // The first error is the one to tell. A place without files is looked at in vain, and nothing worse.
                if let Err(error) = store.layer_is_gone(id, server, provider).await {
                    tracing::debug!(layer = %id, %error, "forget the place of a layer that was not made");
                }
                Err(error)
            }
        }
    }

    pub async fn end(mut self) -> Result<(), Error> {
        self.app.store().end_work(&self.name, self.app.now().as_millisecond()).await?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let name = self.name.clone();
        self.app.insist_behind("end the hold on layers", move |app| {
            let name = name.clone();
            async move { app.store().end_work(&name, app.now().as_millisecond()).await }
        });
    }
}

/// What became of a layer that was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    Now(LayerInfo),
    /// It was there.
    Found,
}

/// A layer that is being made. Dropped before it is whole, it goes, and takes its turn along until it is gone: its
/// provider may still be at it, and whoever wants the layer next begins after that.
struct Draft {
    app: App,
    work: String,
    layer: Option<LayerId>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Drop for Draft {
    fn drop(&mut self) {
        let Some(layer) = self.layer.take() else { return };
        let (app, work, turn) = (self.app.clone(), std::mem::take(&mut self.work), self.turn.take());
        self.app.tasks().spawn(async move {
            let _turn = turn;
            let given_up = app.insist("give up a layer", || app.store().give_up_layer(layer, &work)).await;
            let removed = match given_up {
                Ok(()) => app.remove_here(layer).await,
                not => not,
            };
            if let Err(error) = removed {
                tracing::warn!(%layer, %error, detail = error.detail(), "remove a layer; the next sweep does");
            }
        });
    }
}

/// The sentence for a caller where a provider could not make a layer.
pub(crate) fn trouble(error: ProviderError) -> Error {
    match error {
        ProviderError::Full(message) => Error::Full(message),
        error => error.into(),
    }
}
