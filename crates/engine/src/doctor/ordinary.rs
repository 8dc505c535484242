//! What works without root. Everything is tried in a child that enters its home (see [`crate::privilege`]).

use std::fs;
use std::io;

use cove_sys::probe::{become_user, in_child, leave};
use rustix::thread::UnshareFlags;

use super::{Finding, is_root};
use crate::kernel::{self, COUNTS_BY_NAMESPACE};
use crate::privilege::{self, Ids, Privilege, Subordinate};
use crate::user_namespace::RANGE;

/// Does something in a child that has moved home. The child has one thread, as this process must have.
pub(super) fn at_home(work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    in_child(|| {
        privilege::enter(None).map_err(|error| match error {
            crate::Error::Refused(refused) => io::Error::from_raw_os_error(refused.errno),
            other => io::Error::other(other.to_string()),
        })?;
        work()
    })
}

pub(super) fn examine() -> Vec<Finding> {
    if is_root() {
        return vec![allowed()];
    }
    vec![home(), ids(), processes(), namespaces_left()]
}

/// As root: whether others could.
fn allowed() -> Finding {
    let name = "ordinary users";
    let attempt = in_child(|| {
        become_user(65_534)?;
        leave(UnshareFlags::NEWUSER)?;
        // Some distributions let a user namespace be made and then give no rights in it.
        leave(UnshareFlags::NEWNS)
    });
    match attempt {
        Ok(()) => Finding::ok(name, "can run sandboxes too: `cove doctor` tells them what is weaker"),
        Err(error) => {
            Finding::weaker(name, format!("only root can run sandboxes: {error}"), super::namespaces::remedy(&error))
        }
    }
}

fn home() -> Finding {
    let name = "without root";
    match at_home(|| Ok(())) {
        Ok(()) => Finding::ok(name, "the engine is root of a user namespace, and you outside of it"),
        Err(error) => Finding::missing(
            name,
            format!("no user namespace with rights in it: {error}"),
            super::namespaces::remedy(&error),
        ),
    }
    .required()
}

fn ids() -> Finding {
    let name = "user ids";
    let ranged = at_home(|| match privilege::held() {
        Some(Privilege::User(Ids::Range)) => Ok(()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    });
    if ranged.is_ok() {
        let detail = "sandboxes have 65,536 ids, the same for all of yours: they share your kernel limits";
        return Finding::weaker(name, detail, "run as root to give each a range of its own");
    }
    let user = rustix::process::getuid().as_raw();
    let who = privilege::user_names(user).swap_remove(0);
    let (why, remedy) = if privilege::helper("newuidmap").is_none() || privilege::helper("newgidmap").is_none() {
        ("newuidmap is not installed", "install newuidmap and newgidmap (Debian: apt-get install uidmap)".to_owned())
    } else if Subordinate::find(user).is_none() {
        let (first, last) = free_range();
        (
            "you have no range of 65,536 in /etc/subuid and /etc/subgid",
            format!("as root: usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {who}"),
        )
    } else {
        (
            "newuidmap refuses your range",
            "see that newuidmap is setuid root and you run without no_new_privs".to_owned(),
        )
    };
    let detail = format!(
        "{why}: a sandbox has one id, yours, as `user` or as `root`; no other user, no sudo, and your groups are kept"
    );
    Finding::weaker(name, detail, remedy)
}

/// A range that nobody has: two users with the same ids would own each other's files.
fn free_range() -> (u32, u32) {
    let taken = ["/etc/subuid", "/etc/subgid"].map(|path| fs::read_to_string(path).unwrap_or_default());
    let first = first_free(&taken.join("\n"));
    (first, first.saturating_add(RANGE - 1))
}

/// Behind all that are listed, in the form of subuid(5).
fn first_free(text: &str) -> u32 {
    let end = |line: &str| {
        let mut fields = line.trim().split(':').skip(1).map(|field| field.parse::<u32>().ok());
        fields.next()??.checked_add(fields.next()??)
    };
    text.lines().filter_map(end).max().unwrap_or(0).max(100_000)
}

fn processes() -> Finding {
    let name = "limits on processes";
    if kernel::has(COUNTS_BY_NAMESPACE) {
        return Finding::ok(name, "hold without control groups: RLIMIT_NPROC of a user namespace around each sandbox");
    }
    Finding::weaker(name, "need a control group on this kernel", "Linux 5.14, or a delegated control group")
}

fn namespaces_left() -> Finding {
    let name = "user namespaces left";
    let most = fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    match most.trim().parse::<u64>() {
        Ok(most) if most < 1000 => Finding::weaker(
            name,
            format!("{most} for all your sandboxes, each takes two"),
            "sysctl -w user.max_user_namespaces=100000",
        ),
        _ => Finding::ok(name, "enough: each sandbox takes two"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_that_is_proposed_belongs_to_nobody() {
        assert_eq!(first_free(""), 100_000);
        assert_eq!(first_free("ann:100000:65536\nbob:165536:65536\n"), 231_072);
        assert_eq!(first_free("ann:100000:65536\nnonsense\nsmall:1000:10\n"), 165_536);
    }
}
