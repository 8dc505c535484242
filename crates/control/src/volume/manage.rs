//! Making, resizing, listing and deleting volumes.
//!
//! The row first, as everywhere: `creating` before the provider makes it, `deleting` before it removes it. A server that
//! dies in between finds the row and finishes. Whoever makes, resizes or removes a volume holds its lock: what is looked
//! for now and then is what nobody is at.

use std::str::FromStr as _;

use super::{State, Volume};
use crate::event::{Kind, NewEvent};
use crate::provider::images::VolumeUsage;
use crate::provider::{Ability, VolumeId};
use crate::right::Right;
use crate::store::Written;
use crate::store::layers::Stored;
use crate::store::templates::Beside;
use crate::{App, Caller, Error, Scope, random, right};

/// Room that a volume has where nobody says how much.
const DEFAULT_BYTES: u64 = 10 << 30;
const LEAST_BYTES: u64 = 1 << 20;
const NAME_MAX: usize = 128;
/// Volumes of one organisation.
const VOLUMES_MAX: usize = 10_000;
/// Layers of one organisation.
const LAYERS_MAX: u64 = 100_000;

#[derive(Debug, Clone, Default)]
pub struct NewVolume {
    pub name: String,
    /// Bytes that it may hold.
    pub size: Option<u64>,
    pub provider: Option<String>,
}

/// Which volumes a list is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VolumeFilter {
    #[default]
    Existing,
    /// Those that are gone, too.
    WithDeleted,
}

impl App {
    pub async fn create_volume(&self, caller: &Caller, new: NewVolume) -> Result<Volume, Error> {
        caller.require(Scope::Write)?;
        check_name(&new.name)?;
        let provider = new.provider.unwrap_or_else(|| self.default_provider().to_owned());
        self.require(&provider, Ability::Volumes)?;
        if new.size.is_some() {
            self.check_size_held(&provider)?;
        }
        let size_limit = new.size.unwrap_or(DEFAULT_BYTES);
        check_size(size_limit)?;
        if self.store().volumes(&caller.organisation, false).await?.len() >= VOLUMES_MAX {
            return Err(Error::Quota {
                message: format!("the organisation has its maximum of {VOLUMES_MAX} volumes; delete some"),
            });
        }
        self.check_storage(&caller.organisation, size_limit).await?;
        self.check_disk(&provider)?;
        let now = self.now();
        let volume = Volume {
            id: random::volume_id(),
            organisation: caller.organisation.clone(),
            name: new.name,
            state: State::Creating,
            server: self.server().to_owned(),
            provider,
            size_limit,
            token: random::token(),
            created_at: now,
            updated_at: now,
            last_used_at: None,
            deleted_at: None,
        };
        let lock = self.volume_locks().lock(&volume.id).await;
        let asked = self.audit_entry(caller, "volume.create", volume.id.as_str());
        if !self.store().insert_volume(&volume, Beside { audit: Some(&asked), event: None }).await? {
            return Err(Error::Conflict(format!("a volume named {:?} is there already", volume.name)));
        }
        let app = self.clone();
        self.detached(async move {
            let _lock = lock;
            app.finish_volume(volume).await
        })
        .await
    }

    /// From its row on.
    async fn finish_volume(&self, mut volume: Volume) -> Result<Volume, Error> {
        // Of several that are made at once each has passed the first look. This one sees the rows of the others.
        let made = match self.check_storage(&volume.organisation, 0).await {
            Ok(()) => {
                let volumes = self.provider(&volume.provider)?.volumes();
                volumes.make_volume(&volume.id, volume.size_limit).await.map_err(Error::from)
            }
            Err(error) => Err(error),
        };
        if let Err(error) = made {
            let was = std::mem::replace(&mut volume.state, State::Deleting);
            let _or_by_another = self.store().update_volume(&volume, was, Beside::default()).await?;
            self.remove_volume_files(volume).await?;
            return Err(error);
        }
        volume.state = State::Ready;
        let event = self.volume_event(&volume, Kind::VolumeCreated);
        let beside = Beside { audit: None, event: Some(&event) };
        match self.store().update_volume(&volume, State::Creating, beside).await? {
            Written::Done => Ok(volume),
            Written::Overtaken => Err(Error::Conflict(format!("volume {} was changed while it was made", volume.name))),
        }
    }

    pub async fn list_volumes(&self, caller: &Caller, filter: VolumeFilter) -> Result<Vec<Volume>, Error> {
        self.store().volumes(&caller.organisation, filter == VolumeFilter::WithDeleted).await
    }

    /// By id or name.
    pub async fn volume(&self, caller: &Caller, id_or_name: &str) -> Result<Volume, Error> {
        let found = self.store().volume(&caller.organisation, id_or_name).await?;
        found.ok_or_else(|| Error::not_found("volume", id_or_name))
    }

    /// By id alone, for those who prove their right by the volume's token, which `opens` looks at. What they are let in
    /// with ends with the volume. Without the token it does not exist.
    pub(crate) async fn volume_of_anybody(&self, id: &str, opens: impl Fn(&Volume) -> bool) -> Result<Volume, Error> {
        let unknown = || Error::not_found("volume", id);
        let wanted = VolumeId::from_str(id).map_err(|_| unknown())?;
        loop {
            let ends = self.rights().ends();
            let found = self.store().volume_by_id(&wanted).await?;
            let found = found.filter(|volume| volume.state == State::Ready && opens(volume));
            let volume = found.ok_or_else(unknown)?;
            // Whose organisation was deleted is nobody's.
            if self.store().organisation(&volume.organisation).await?.is_none() {
                return Err(unknown());
            }
            right::hold_volume(&volume.id, &volume.organisation)?;
            // Its row says that it goes before what is held ends: either this check or that end sees the other.
            if self.rights().ends() == ends {
                return Ok(volume);
            }
        }
    }

    pub async fn volume_usage(&self, volume: &Volume) -> Result<VolumeUsage, Error> {
        self.check_volume_here(volume)?;
        Ok(self.provider(&volume.provider)?.volumes().volume_usage(&volume.id).await?)
    }

    /// More room, or less, as long as what it holds has room.
    pub async fn resize_volume(&self, caller: &Caller, id_or_name: &str, size: u64) -> Result<Volume, Error> {
        caller.require(Scope::Write)?;
        check_size(size)?;
        let volume = self.volume(caller, id_or_name).await?;
        let (app, caller) = (self.clone(), caller.clone());
        // A caller that goes in the middle must not leave a provider that holds another size than the row says.
        self.detached(async move {
            // Of two at once the one would have the last word with the provider, and the other in the row that is counted.
            let _lock = app.volume_locks().lock(&volume.id).await;
            app.resize_locked(&caller, volume.id.as_str(), size).await
        })
        .await
    }

    async fn resize_locked(&self, caller: &Caller, id: &str, size: u64) -> Result<Volume, Error> {
        let mut volume = self.volume(caller, id).await?;
        self.check_volume_here(&volume)?;
        self.check_size_held(&volume.provider)?;
        if size > volume.size_limit {
            self.check_storage(&caller.organisation, size - volume.size_limit).await?;
        }
        let volumes = self.provider(&volume.provider)?.volumes();
        let used = volumes.volume_usage(&volume.id).await?.bytes;
        if size < used {
            let holds = used.div_ceil(1 << 20);
            return Err(Error::invalid("size", format!("the volume holds {holds} MiB; remove files first")));
        }
        let before = std::mem::replace(&mut volume.size_limit, size);
        volume.updated_at = self.now();
        volumes.resize_volume(&volume.id, size).await?;
        let asked = self.audit_entry(caller, "volume.resize", volume.id.as_str());
        let beside = Beside { audit: Some(&asked), event: None };
        let written = self.store().update_volume(&volume, State::Ready, beside).await;
        if !matches!(written, Ok(Written::Done)) {
            // What could not be written must not hold either.
            volumes.resize_volume(&volume.id, before).await?;
            let _gone = written?;
            return Err(Error::not_found("volume", id));
        }
        // Of several that grow at once each has passed the first look.
        if size > before
            && let Err(error) = self.check_storage(&caller.organisation, 0).await
        {
            volumes.resize_volume(&volume.id, before).await?;
            volume.size_limit = before;
            let _or_by_another = self.store().update_volume(&volume, State::Ready, Beside::default()).await?;
            return Err(error);
        }
        Ok(volume)
    }

    /// Refused while a sandbox has it. What its token has opened ends.
    pub async fn delete_volume(&self, caller: &Caller, id_or_name: &str) -> Result<(), Error> {
        caller.require(Scope::Write)?;
        let mut volume = self.volume(caller, id_or_name).await?;
        self.check_volume_here(&volume)?;
        let lock = self.volume_locks().lock(&volume.id).await;
        volume.state = State::Deleting;
        volume.updated_at = self.now();
        let asked = self.audit_entry(caller, "volume.delete", volume.id.as_str());
        let beside = Beside { audit: Some(&asked), event: None };
        if self.store().begin_to_delete_volume(&volume, beside).await? == Written::Overtaken {
            let users = self.store().sandboxes_with_volume(&volume.id).await?;
            let Some(first) = users.first() else { return Err(Error::not_found("volume", id_or_name)) };
            let more = if users.len() > 1 { format!(" and {} more", users.len() - 1) } else { String::new() };
            return Err(Error::Conflict(format!(
                "volume {0} is in use by sandbox {first}{more}; remove them first; hint: cove volume show {0} names them",
                volume.name
            )));
        }
        let app = self.clone();
        self.detached(async move {
            let _lock = lock;
            // Its row says that it goes: whoever comes from now on is not let in.
            app.rights().end(&Right::Volume(volume.id.clone()));
            app.store().note_rights_changed().await?;
            app.remove_volume_files(volume).await
        })
        .await
    }

    async fn remove_volume_files(&self, mut volume: Volume) -> Result<(), Error> {
        self.provider(&volume.provider)?.volumes().remove_volume(&volume.id).await?;
        volume.state = State::Deleted;
        volume.deleted_at = Some(self.now());
        let event = self.volume_event(&volume, Kind::VolumeDeleted);
        let beside = Beside { audit: None, event: Some(&event) };
        let _or_by_another = self.store().update_volume(&volume, State::Deleting, beside).await?;
        Ok(())
    }

    /// What a server was at when it died, and what it could not write.
    pub(crate) async fn finish_volumes(&self) -> Result<(), Error> {
        for Volume { id, .. } in self.store().unfinished_volumes(self.server()).await? {
            // Somebody makes or removes it at this moment.
            let Some(_lock) = self.volume_locks().try_lock(&id) else { continue };
            if let Err(error) = self.remove_unfinished(&id).await {
                tracing::warn!(volume = %id, %error, detail = error.detail(), "finish a volume, will be tried again");
            }
        }
        Ok(())
    }

    /// For those who have its lock: as its row is now, which may be another than when it was looked for.
    async fn remove_unfinished(&self, id: &VolumeId) -> Result<(), Error> {
        let Some(mut volume) = self.store().volume_by_id(id).await? else { return Ok(()) };
        match volume.state {
            State::Ready | State::Deleted => return Ok(()),
            State::Deleting => {}
            // Nobody was told of it.
            State::Creating => {
                volume.state = State::Deleting;
                let going = self.store().update_volume(&volume, State::Creating, Beside::default()).await?;
                if going == Written::Overtaken {
                    return Ok(());
                }
            }
        }
        self.remove_volume_files(volume).await
    }

    pub(super) fn check_volume_here(&self, volume: &Volume) -> Result<(), Error> {
        if volume.server == self.server() {
            return Ok(());
        }
        Err(Error::exhausted(format!("volume {} is on server {}: ask that one", volume.name, volume.server)))
    }

    /// Bytes that the organisation may still keep.
    pub(crate) async fn storage_left(&self, organisation: &str) -> Result<u64, Error> {
        let quota = self.quota(organisation).await?.storage_bytes;
        Ok(quota.saturating_sub(self.store().stored_bytes(organisation).await?.all()))
    }

    /// Refuses what would be more than the organisation may keep. Images that nothing of its own stands on go first.
    pub(crate) async fn check_storage(&self, organisation: &str, more: u64) -> Result<(), Error> {
        let quota = self.quota(organisation).await?.storage_bytes;
        let fits = |stored: &Stored| stored.all().saturating_add(more) <= quota;
        let mut stored = self.store().stored_bytes(organisation).await?;
        if !fits(&stored) && stored.images > 0 {
            self.store().forget_idle_images(organisation).await?;
            stored = self.store().stored_bytes(organisation).await?;
        }
        // Empty ones take no room of their own, and the disk has to know each of them all the same.
        if stored.count >= LAYERS_MAX {
            return Err(Error::Quota {
                message: format!(
                    "the organisation has {LAYERS_MAX} layers of templates, snapshots and checkpoints, and may have no \
                     more; delete some"
                ),
            });
        }
        if fits(&stored) {
            return Ok(());
        }
        let gib = |bytes: u64| bytes as f64 / f64::from(1u32 << 30);
        Err(Error::Quota {
            message: format!(
                "the organisation keeps {:.1} GiB of templates, snapshots and images and {:.1} GiB of volumes, and may keep \
                 {:.1} GiB in all; delete some",
                gib(stored.layers.saturating_add(stored.images)),
                gib(stored.volumes),
                gib(quota)
            ),
        })
    }

    fn volume_event(&self, volume: &Volume, kind: Kind) -> NewEvent {
        NewEvent {
            organisation: volume.organisation.clone(),
            sandbox: None,
            kind,
            at: self.now(),
            data: serde_json::json!({ "volume": volume.id, "name": volume.name, "size": volume.size_limit }),
        }
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits {
        return Ok(());
    }
    Err(Error::invalid("name", "1 to 128 letters, digits, '-', '_' and '.', not beginning with '-' or '.'"))
}

fn check_size(size: u64) -> Result<(), Error> {
    if size < LEAST_BYTES || i64::try_from(size).is_err() {
        return Err(Error::invalid("size", format!("at least {} MiB", LEAST_BYTES >> 20)));
    }
    Ok(())
}
