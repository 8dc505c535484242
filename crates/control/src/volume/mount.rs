//! Volumes that a new sandbox asks for.

use super::{State, Volume};
use crate::provider::{Ability, Access, VolumeMount};
use crate::{App, Caller, Error};

/// Volumes of one sandbox.
const MOUNTS_MAX: usize = 32;
const PATH_MAX: usize = 1024;

/// A volume that a caller wants in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// By id or name.
    pub volume: String,
    /// Where it is in the sandbox; absolute.
    pub path: String,
    /// The directory of the volume that is shown there; made if it is not there.
    pub subpath: Option<String>,
    pub access: Access,
}

impl App {
    /// Finds the volumes of a new sandbox. They are counted with its row.
    pub(crate) async fn find_mounts(
        &self,
        caller: &Caller,
        provider: &str,
        wanted: &[Mount],
    ) -> Result<Vec<VolumeMount>, Error> {
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        self.require(provider, Ability::Volumes)?;
        if wanted.len() > MOUNTS_MAX {
            return Err(Error::invalid("volumes", format!("at most {MOUNTS_MAX}")));
        }
        let mut found: Vec<VolumeMount> = Vec::new();
        for mount in wanted {
            let target = place(&mount.path)?;
            let subpath = mount.subpath.as_deref().map(beneath).transpose()?.filter(|path| !path.is_empty());
            if found.iter().any(|other| within(&other.target, &target) || within(&target, &other.target)) {
                return Err(Error::invalid("volumes", format!("{target} and another mount lie one in the other")));
            }
            let volume = self.volume(caller, &mount.volume).await?;
            check_usable(&volume, provider, self.server())?;
            found.push(VolumeMount { volume: volume.id, subpath, target, access: mount.access });
        }
        Ok(found)
    }
}

fn check_usable(volume: &Volume, provider: &str, server: &str) -> Result<(), Error> {
    if volume.state != State::Ready {
        return Err(Error::Conflict(format!("volume {} is {}", volume.name, volume.state.as_str())));
    }
    if volume.provider != provider {
        return Err(Error::invalid(
            "volumes",
            format!("volume {} is of provider {}, the sandbox of {provider}", volume.name, volume.provider),
        ));
    }
    if volume.server != server {
        return Err(Error::exhausted(format!(
            "volume {} is on server {}: make the sandbox there",
            volume.name, volume.server
        )));
    }
    Ok(())
}

/// Places that are the system's own.
const RESERVED: [&str; 8] = ["/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/lib", "/sbin"];

/// An absolute path without `.`, `..` and double slashes, not the root and nothing of the system's.
fn place(path: &str) -> Result<String, Error> {
    let wrong = |why: &str| Err(Error::invalid("volumes.path", format!("{why}: {path:?}")));
    if !path.starts_with('/') || path.len() > PATH_MAX || path.chars().any(char::is_control) {
        return wrong("an absolute path is needed");
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    if parts.iter().any(|part| *part == "." || *part == "..") {
        return wrong("no '.' and '..' in a path");
    }
    let clean = format!("/{}", parts.join("/"));
    if clean == "/" || RESERVED.iter().any(|reserved| within(&clean, reserved)) {
        return wrong("nothing can be mounted there");
    }
    Ok(clean)
}

/// A relative path that stays where it begins.
pub(super) fn beneath(path: &str) -> Result<String, Error> {
    if path.len() > PATH_MAX || path.chars().any(char::is_control) {
        return Err(Error::invalid("path", format!("at most {PATH_MAX} characters, and no control characters")));
    }
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(Error::invalid("path", format!("no '..' in a path: {path:?}")));
    }
    Ok(parts.join("/"))
}

/// Whether a path is the other one, or below it.
fn within(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_lies_where_it_harms_nobody() {
        assert_eq!(place("/data//a/").unwrap(), "/data/a");
        for wrong in ["", "data", "/", "/proc", "/proc/x", "/etc", "/usr/lib", "/a/../etc", "/a/.", "/a\nb"] {
            assert!(place(wrong).is_err(), "{wrong:?}");
        }
        assert_eq!(place("/devices").unwrap(), "/devices");
    }

    #[test]
    fn a_subpath_stays_in_its_volume() {
        assert_eq!(beneath("/a//b/./c/").unwrap(), "a/b/c");
        assert_eq!(beneath("").unwrap(), "");
        for wrong in ["..", "a/../..", "a/..", "../a"] {
            assert!(beneath(wrong).is_err(), "{wrong:?}");
        }
    }
}
