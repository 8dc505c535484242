//! What the kernel's release tells, where a try would cost more. Distributions carry some things back to older ones: who goes
//! by the release does without them there.

use std::sync::OnceLock;

use rustix::system::uname;

/// (major, minor)
pub type Release = (u32, u32);

/// RLIMIT_NPROC counts by user namespace; before, all processes of a user were counted together.
pub const COUNTS_BY_NAMESPACE: Release = (5, 14);
/// Overlays over id-mapped mounts: what a sandbox's root is when root runs it.
pub const OVERLAYS_OF_ID_MAPS: Release = (5, 19);
/// Id-mapped mounts of tmpfs.
pub const TMPFS_ID_MAPS: Release = (6, 3);
/// Overlays take their layers by descriptor.
pub const LAYERS_BY_DESCRIPTOR: Release = (6, 13);
/// `user.` attributes on tmpfs: without them an overlay over it cannot remove or rename a directory of the layers below.
pub const TMPFS_ATTRIBUTES: Release = (6, 6);

pub fn has(since: Release) -> bool {
    static RUNNING: OnceLock<Release> = OnceLock::new();
    *RUNNING.get_or_init(|| parse(&uname().release().to_string_lossy())) >= since
}

fn parse(release: &str) -> Release {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(|text| text.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_distributions_are_understood() {
        assert_eq!(parse("6.1.0-28-amd64"), (6, 1));
        assert_eq!(parse("5.14.0-503.el9.x86_64"), (5, 14));
        assert_eq!(parse("6.18"), (6, 18));
        assert!(parse("5.9.16") < OVERLAYS_OF_ID_MAPS && parse("10.0-rc1") > TMPFS_ID_MAPS);
    }
}
