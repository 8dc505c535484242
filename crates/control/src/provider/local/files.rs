//! Layers and volumes of this machine, by the engine.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use async_trait::async_trait;
use cove_engine::{Engine, Error as EngineError, Spec, spec, storage};
use cove_protocol::SandboxId;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::Instrument as _;

use super::{Local, engine_root, id_of, refused, transfer};
use crate::provider::images::{Fill, LayerInfo, Layers, Removed, VolumeUsage, Volumes};
use crate::provider::stop::Stop;
use crate::provider::{Access, Handle, LayerId, Order, ProviderError, Root, VolumeId, VolumeMount};
use crate::trace::effect;

#[async_trait]
impl Layers for Local {
    async fn capture(&self, from: &Handle, layer: LayerId) -> Result<LayerInfo, ProviderError> {
        let span = effect!("capture", from);
        let id = id_of(from)?;
        self.call_on(layer, move |engine| engine.capture(&id, &layer)).instrument(span).await.map(info)
    }

    async fn forks(&self, from: &Handle, orders: &[Order]) -> Vec<Result<Handle, ProviderError>> {
        let span = effect!("fork", from);
        let asked = id_of(from).and_then(|from| {
            let specs = orders.iter().map(|order| self.spec(order)).collect::<Result<Vec<Spec>, _>>()?;
            Ok((from, specs))
        });
        let forked = match asked {
            Ok((from, specs)) => self.call(move |engine| Ok(fork_all(engine, &from, specs))).instrument(span).await,
            Err(error) => Err(error),
        };
        forked.unwrap_or_else(|error| vec![Err(error); orders.len()])
    }

    async fn rollback(&self, of: &Handle, to: LayerId, kept: LayerId) -> Result<LayerInfo, ProviderError> {
        let span = effect!("rollback", of);
        let id = id_of(of)?;
        let done = self.call_on(kept, move |engine| {
            engine.rollback(&id, &to, &kept)?;
            engine.layer(&kept)?.ok_or(EngineError::LayerMissing(kept))
        });
        done.instrument(span).await.map(info)
    }

    async fn make_layer(&self, layer: LayerId, limit: u64, fill: Fill) -> Result<LayerInfo, ProviderError> {
        let stop = Stop::default();
        let _waiting = stop.unless_waited_for();
        let done = self.call_on(layer, move |engine| {
            if let Some(made) = engine.layer(&layer)? {
                return Ok(made);
            }
            let draft = draft(engine, limit)?;
            let root = draft.root().map_err(EngineError::from)?;
            fill(root, &stop).map_err(|error| match error.kind() {
                // The fault of what was to be written: whoever sent it reads this.
                std::io::ErrorKind::InvalidData => EngineError::Invalid(error.to_string()),
                _ => EngineError::file("fill", "a layer")(error),
            })?;
            Ok(draft.seal(&layer)?)
        });
        done.await.map(info)
    }

    async fn merge(&self, layers: &[LayerId], beneath: &Root, into: LayerId) -> Result<LayerInfo, ProviderError> {
        let (layers, beneath) = (layers.to_vec(), engine_root(beneath));
        let done = self.call_on(into, move |engine| {
            if let Some(made) = engine.layer(&into)? {
                return Ok(made);
            }
            engine.flatten(&layers, &beneath, &into)
        });
        done.await.map(info)
    }

    async fn open_layer(&self, layer: LayerId) -> Result<OwnedFd, ProviderError> {
        self.call(move |engine| Ok(engine.hold_layer(&layer)?.into_directory())).await
    }

    async fn send(&self, layer: LayerId, to: &mut (dyn AsyncWrite + Send + Unpin)) -> Result<(), ProviderError> {
        let span = effect!("send layer", layer);
        transfer::send(self, layer, to).instrument(span).await
    }

    async fn receive(
        &self,
        layer: LayerId,
        limit: u64,
        from: &mut (dyn AsyncRead + Send + Unpin),
    ) -> Result<LayerInfo, ProviderError> {
        let span = effect!("receive layer", layer);
        transfer::receive(self, layer, limit, from).instrument(span).await
    }

    async fn layer(&self, layer: LayerId) -> Result<Option<LayerInfo>, ProviderError> {
        Ok(self.call(move |engine| engine.layer(&layer)).await?.map(info))
    }

    async fn layers(&self) -> Result<Vec<LayerId>, ProviderError> {
        self.call(|engine| engine.layers()).await
    }

    async fn remove_layer(&self, layer: LayerId) -> Result<Removed, ProviderError> {
        self.call_on(layer, move |engine| match engine.remove_layer(&layer) {
            Ok(()) => Ok(Removed::Gone),
            Err(EngineError::LayerInUse(_)) => Ok(Removed::InUse),
            Err(error) => Err(error),
        })
        .await
    }
}

#[async_trait]
impl Volumes for Local {
    async fn make_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError> {
        let volume = volume.clone();
        self.call(move |engine| match engine.make_volume(&volume, held(engine, limit)) {
            Err(EngineError::VolumeExists(_)) => Ok(()),
            done => done,
        })
        .await
    }

    async fn resize_volume(&self, volume: &VolumeId, limit: u64) -> Result<(), ProviderError> {
        let volume = volume.clone();
        self.call(move |engine| engine.resize_volume(&volume, held(engine, limit))).await
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let volume = volume.clone();
        self.call(move |engine| engine.remove_volume(&volume)).await
    }

    async fn volume_usage(&self, volume: &VolumeId) -> Result<VolumeUsage, ProviderError> {
        let volume = volume.clone();
        let used = self.call(move |engine| engine.volume_usage(&volume)).await?;
        Ok(VolumeUsage { bytes: used.bytes, limit: 0 })
    }

    async fn volumes(&self) -> Result<Vec<VolumeId>, ProviderError> {
        self.call(|engine| engine.volumes()).await
    }

    async fn open_volume(&self, volume: &VolumeId) -> Result<OwnedFd, ProviderError> {
        let volume = volume.clone();
        self.call(move |engine| engine.volume_root(&volume)).await
    }
}

/// One that was forked before its server died is there, with files of its own: then this is a start.
fn fork_all(engine: &Engine, from: &SandboxId, specs: Vec<Spec>) -> Vec<Result<Handle, ProviderError>> {
    let ids: Vec<SandboxId> = specs.iter().map(|spec| spec.id.clone()).collect();
    let (mut done, mut new) = (HashMap::new(), Vec::new());
    for spec in specs {
        match engine.find(&spec.id) {
            Ok(None) => new.push(spec),
            Ok(Some(_)) => {
                let started = engine.launch(&spec).map(drop);
                done.insert(spec.id, started);
            }
            Err(error) => {
                done.insert(spec.id, Err(error));
            }
        }
    }
    let forked = engine.forks(from, &new);
    done.extend(new.into_iter().zip(forked).map(|(spec, forked)| (spec.id, forked.map(drop))));
    let outcome = |id: &SandboxId| match done.remove(id) {
        Some(Ok(()) | Err(EngineError::AlreadyRunning(_))) => Ok(Handle::from(id)),
        Some(Err(error)) => Err(refused(error)),
        None => Err(ProviderError::Refused(format!("sandbox {id} was asked for twice"))),
    };
    ids.iter().map(outcome).collect()
}

/// With a limit, or without where the host cannot count: it takes what the one who fills it lets through.
pub(super) fn draft(engine: &Engine, limit: u64) -> Result<storage::Draft, EngineError> {
    match engine.draft(Some(limit)) {
        Err(EngineError::Unheld(_) | EngineError::Storage(storage::Error::NoLimits { .. })) => engine.draft(None),
        other => other,
    }
}

/// A volume's limit; none where nothing here holds one, which the provider says (`unheld`).
fn held(engine: &Engine, limit: u64) -> Option<u64> {
    let mut unheld = engine.hold().unheld(spec::Storage::Disk);
    let is_lost = unheld.any(|unheld| unheld.limit == cove_engine::Limit::Disk);
    (!is_lost).then_some(limit)
}

pub(super) fn info(made: storage::LayerInfo) -> LayerInfo {
    LayerInfo { id: made.id, bytes: made.bytes, files: made.files.unwrap_or(0) }
}

/// A volume as the engine mounts it.
pub(super) fn mount(volume: &VolumeMount) -> spec::Mount {
    spec::Mount {
        source: spec::Source::Volume {
            volume: volume.volume.clone(),
            subpath: volume.subpath.as_ref().filter(|path| !path.is_empty()).map(Into::into),
        },
        target: volume.target.clone().into(),
        access: match volume.access {
            Access::ReadOnly => spec::Access::ReadOnly,
            Access::ReadWrite => spec::Access::ReadWrite,
        },
    }
}

/// The reverse; a folder of the host is no volume.
pub(super) fn volume_of(mount: &spec::Mount) -> Option<VolumeMount> {
    let spec::Source::Volume { volume, subpath } = &mount.source else { return None };
    Some(VolumeMount {
        volume: volume.clone(),
        subpath: subpath.as_ref().map(|path| path.to_string_lossy().into_owned()),
        target: mount.target.to_string_lossy().into_owned(),
        access: match mount.access {
            spec::Access::ReadOnly => Access::ReadOnly,
            spec::Access::ReadWrite => Access::ReadWrite,
        },
    })
}
