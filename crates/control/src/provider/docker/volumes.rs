//! Volumes as volumes of the daemon's.
//!
//! Their sizes are not enforced: the daemon's own driver has no such thing, whatever its storage counts for containers. So a
//! size that a caller asks for is refused before ([`crate::provider::Provider::unheld_volumes`]). Their files are read and
//! written from outside only where the daemon is on this machine.

use std::collections::HashMap;
use std::ffi::CString;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use async_trait::async_trait;
use bollard::models::VolumeCreateRequest;
use bollard::query_parameters::{ListVolumesOptionsBuilder, RemoveVolumeOptions};
use cove_protocol::VolumeId;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};

use super::client::{during, unless_absent};
use super::container::{INSTALLATION, volume_name};
use super::{Docker, Inner};
use crate::provider::images::{VolumeUsage, Volumes};
use crate::provider::{Limit, ProviderError, Unheld};

/// Directories within each other that are counted.
const DEPTH: usize = 256;

pub fn unheld() -> Unheld {
    Unheld {
        limit: Limit::Disk,
        why: "docker does not limit the size of its volumes".into(),
        remedy: "give docker's data a disk of its own, or make the volume at a provider of kind local".into(),
    }
}

#[async_trait]
impl Volumes for Docker {
    async fn make_volume(&self, volume: &VolumeId, _limit: u64) -> Result<(), ProviderError> {
        let docker = self.inner.client.docker().await?;
        let request = VolumeCreateRequest {
            name: Some(volume_name(volume)),
            driver: Some("local".to_owned()),
            labels: Some(HashMap::from([(INSTALLATION.to_owned(), self.inner.installation.clone())])),
            ..VolumeCreateRequest::default()
        };
        // One that is there is the answer, too.
        docker.create_volume(request).await.map(drop).map_err(during(format!("make volume {volume}")))
    }

    async fn resize_volume(&self, _volume: &VolumeId, _limit: u64) -> Result<(), ProviderError> {
        Err(ProviderError::Unsupported(unheld().why))
    }

    async fn remove_volume(&self, volume: &VolumeId) -> Result<(), ProviderError> {
        let docker = self.inner.client.docker().await?;
        let removed = docker.remove_volume(&volume_name(volume), None::<RemoveVolumeOptions>).await;
        unless_absent(removed).map(drop).map_err(during(format!("remove volume {volume}")))
    }

    async fn volume_usage(&self, volume: &VolumeId) -> Result<VolumeUsage, ProviderError> {
        let root = self.inner.open_volume(volume).await?;
        let failed = |error: String| ProviderError::Failed(format!("measure volume {volume}: {error}"));
        let counted = tokio::task::spawn_blocking(move || size_below(&root, DEPTH)).await;
        let bytes = counted.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))?;
        Ok(VolumeUsage { bytes, limit: 0 })
    }

    async fn volumes(&self) -> Result<Vec<VolumeId>, ProviderError> {
        let docker = self.inner.client.docker().await?;
        let label = format!("{INSTALLATION}={}", self.inner.installation);
        let filters = HashMap::from([("label", vec![label.as_str()])]);
        let options = ListVolumesOptionsBuilder::new().filters(&filters).build();
        let listed = docker.list_volumes(Some(options)).await.map_err(during("list volumes"))?;
        let id = |name: &str| name.strip_prefix("cove-")?.parse().ok();
        Ok(listed.volumes.unwrap_or_default().iter().filter_map(|volume| id(&volume.name)).collect())
    }

    async fn open_volume(&self, volume: &VolumeId) -> Result<OwnedFd, ProviderError> {
        self.inner.open_volume(volume).await
    }
}

impl Inner {
    async fn open_volume(&self, volume: &VolumeId) -> Result<OwnedFd, ProviderError> {
        if let Some(why) = &self.client.facts().await?.far {
            return Err(ProviderError::Unsupported(format!(
                "files of a volume are reached through a sandbox that has it, and not from here: {why}"
            )));
        }
        let docker = self.client.docker().await?;
        let told = unless_absent(docker.inspect_volume(&volume_name(volume)).await);
        let told = told.map_err(during(format!("look at volume {volume}")))?;
        let gone = || ProviderError::Refused(format!("volume {volume} is not at provider {}", self.name));
        let path = told.ok_or_else(gone)?.mountpoint;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty())
            .map_err(|error| ProviderError::Failed(format!("open volume {volume}: {error}")))
    }
}

/// Bytes of all that is below. Sandboxes may change it meanwhile: a link is never followed, and what is gone is nothing.
fn size_below(directory: &OwnedFd, depth: usize) -> io::Result<u64> {
    use std::os::fd::AsFd as _;
    count(directory.as_fd(), depth)
}

fn count(directory: BorrowedFd<'_>, depth: usize) -> io::Result<u64> {
    let mut bytes = 0u64;
    for name in names(directory)? {
        let Ok(told) = rustix::fs::statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        bytes = bytes.saturating_add(u64::try_from(told.st_blocks).unwrap_or(0).saturating_mul(512));
        if FileType::from_raw_mode(told.st_mode) == FileType::Directory && depth > 0 {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let Ok(below) = rustix::fs::openat(directory, &name, flags, Mode::empty()) else { continue };
            bytes = bytes.saturating_add(size_below(&below, depth - 1)?);
        }
    }
    Ok(bytes)
}

fn names(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if ![c".", c".."].contains(&name.as_c_str()) {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_is_counted_and_no_link_is_followed() {
        let room = tempfile::tempdir().unwrap();
        let folder = room.path().join("volume");
        std::fs::create_dir_all(folder.join("deep")).unwrap();
        std::fs::write(folder.join("deep/file"), vec![1; 300_000]).unwrap();
        std::fs::write(room.path().join("outside"), vec![1; 9_000_000]).unwrap();
        std::os::unix::fs::symlink(room.path(), folder.join("way-out")).unwrap();
        let bytes = size_below(&std::fs::File::open(&folder).unwrap().into(), DEPTH).unwrap();
        assert!((300_000..2_000_000).contains(&bytes), "{bytes}");
    }
}
