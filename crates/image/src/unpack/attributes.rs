//! Which extended attributes of a layer a tree keeps.
//!
//! `user.*` are the image's own. `user.overlay.*` are not: sandboxes mount their overlays with `userxattr`, which would obey
//! a `redirect`, `metacopy` or `opaque` that a stranger wrote. `security.capability` gives a program its rights inside the
//! sandbox, in the form without an owner (version 2); version 3 names a host's user namespace and is kept only where that
//! is root's. Everything else (`trusted.*`, `security.*`, ACLs) means something to a host, and none of it to ours.

/// linux/capability.h: `VFS_CAP_REVISION_2` and `_3`, in the upper byte of the first word.
const REVISION_MASK: u32 = 0xff00_0000;
const REVISION_2: u32 = 0x0200_0000;
const REVISION_3: u32 = 0x0300_0000;
const SIZE_2: usize = 20;
const SIZE_3: usize = 24;
/// xattr(7): `XATTR_SIZE_MAX` and `XATTR_NAME_MAX`.
const LARGEST: usize = 65_536;
const LONGEST: usize = 255;

pub(super) const CAPABILITY: &str = "security.capability";

/// What is set; `None` for what is left out.
pub(super) fn kept<'a>(name: &str, value: &'a [u8]) -> Option<std::borrow::Cow<'a, [u8]>> {
    if name == CAPABILITY {
        return capability(value).map(Into::into);
    }
    let is_users = name.strip_prefix("user.").is_some_and(|rest| !rest.is_empty() && !rest.starts_with("overlay."));
    let fits = value.len() <= LARGEST && name.len() <= LONGEST && !name.contains('\0');
    (is_users && fits).then_some(value.into())
}

/// As version 2, or nothing.
fn capability(value: &[u8]) -> Option<Vec<u8>> {
    let first = u32::from_le_bytes(*value.first_chunk::<4>()?);
    match (first & REVISION_MASK, value.len()) {
        (REVISION_2, SIZE_2) => Some(value.to_vec()),
        (REVISION_3, SIZE_3) => {
            let (rights, root) = value.split_at(SIZE_2);
            if root != [0; 4] {
                return None;
            }
            let first = first & !REVISION_MASK | REVISION_2;
            Some([&first.to_le_bytes()[..], rights.get(4..)?].concat())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capability_of(revision: u32, root: &[u8]) -> Vec<u8> {
        // cap_net_raw+ep
        [&(revision | 1).to_le_bytes()[..], &(1_u32 << 13).to_le_bytes(), &[0; 12], root].concat()
    }

    #[test]
    fn only_what_is_the_images_own_is_kept() {
        for name in ["user.a", "user.mime_type", "user.overlayed"] {
            assert!(kept(name, b"x").is_some(), "{name}");
        }
        for name in [
            "user.overlay.opaque",
            "user.overlay.redirect",
            "user.overlay.metacopy",
            "user.overlay.",
            "user.",
            "user",
            "trusted.overlay.opaque",
            "security.selinux",
            "security.ima",
            "system.posix_acl_access",
            "",
        ] {
            assert!(kept(name, b"x").is_none(), "{name}");
        }
        assert!(kept("user.a", &[0; LARGEST + 1]).is_none());
        assert!(kept(&format!("user.{}", "a".repeat(300)), b"").is_none());
    }

    #[test]
    fn a_capability_is_kept_without_its_owner() {
        let second = capability_of(REVISION_2, b"");
        assert_eq!(kept(CAPABILITY, &second).as_deref(), Some(&second[..]));
        assert_eq!(kept(CAPABILITY, &capability_of(REVISION_3, &[0; 4])).as_deref(), Some(&second[..]));
        assert_eq!(kept(CAPABILITY, &capability_of(REVISION_3, &[1, 0, 0, 0])), None, "another namespace's root");
        for wrong in
            [&b""[..], b"abc", &second[..19], &capability_of(0x0100_0000, b""), &capability_of(REVISION_2, &[0; 4])]
        {
            assert_eq!(kept(CAPABILITY, wrong), None);
        }
    }
}
