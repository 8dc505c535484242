//! Acting as a user.

use cove_protocol::{Failure, FailureKind};
use cove_sys::file_identity;
use rustix::process::{Gid, getuid};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_thread_groups};

use crate::failure::{During, Result, invalid};
use crate::guest::{Guest, ONE_ID};
use crate::users::{User, Users};

/// The user this thread has become, and the names of the others.
pub struct Actor {
    pub user: User,
    pub users: Users,
}

impl Actor {
    /// Gives the calling thread the user's rights over files, for good, and no other rights.
    pub fn become_user(guest: &Guest, wanted: Option<&str>) -> Result<Actor> {
        let users = Users::load();
        let user = guest.user(&users, wanted)?;
        // With a single id its owner has all the rights there are; root's are those.
        let alone = !getuid().is_root() && user.uid == 0;
        if let Some(identity) = guest.identity(&user).filter(|_| !alone) {
            let step = format!("act as user {} ({})", user.name, user.uid);
            if !getuid().is_root() {
                return Err(Failure::new(FailureKind::PermissionDenied, format!("{step}: {}", ONE_ID)));
            }
            if let Some(groups) = &identity.groups {
                let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
                set_thread_groups(&groups).during(&step)?;
            }
            file_identity::set_group(identity.gid).during(&step)?;
            file_identity::set_user(identity.uid).during(&step)?;
            if identity.uid != 0 {
                let none = CapabilitySet::empty();
                let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
                set_capabilities(None, sets).during(&step)?;
            }
        }
        Ok(Actor { user, users })
    }

    /// The path as the user means it. Absolute, without a zero byte.
    pub fn absolute(&self, path: &str) -> Result<String> {
        if path.contains('\0') {
            return Err(invalid(format!("path {:?} holds a zero byte", path.replace('\0', "\\0"))));
        }
        Ok(self.user.absolute(path))
    }
}
