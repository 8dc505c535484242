//! Project quotas of ext4 and xfs: a number on a directory that its files inherit, and a limit per number.
//!
//! Numbers and structures are those of the kernel's `include/uapi/linux/fs.h` and `quota.h`.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

const GET_ATTRIBUTES: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
const SET_ATTRIBUTES: libc::Ioctl = 0x401c_5820_u32 as libc::Ioctl;
/// New files in the directory get its project.
const INHERIT: u32 = 0x200;
const PROJECT: u32 = 2;
const GET_QUOTA: u32 = 0x80_0007;
const SET_QUOTA: u32 = 0x80_0008;
/// Limits on blocks and on inodes are the ones that count in `dqb_valid`.
const LIMITS: u32 = 1 | 4;
/// Limits are in blocks of this size, usage is in bytes.
const BLOCK: u64 = 1024;

#[repr(C)]
#[derive(Default)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    padding: [u8; 8],
}

/// What a project uses and may use; 0 is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    pub bytes: u64,
    pub inodes: u64,
    pub most_bytes: u64,
    pub most_inodes: u64,
}

/// The project of a file or directory; 0 is none.
pub fn project_of(file: impl AsFd) -> io::Result<u32> {
    let mut attributes = Attributes::default();
    get_attributes(file, &mut attributes)?;
    Ok(attributes.project)
}

/// Gives a directory to a project, with everything that will be made in it. Only the initial user namespace may do
/// this: a sandbox cannot leave its project. EOPNOTSUPP where the filesystem was made without the feature.
pub fn set_project(directory: impl AsFd, project: u32) -> io::Result<()> {
    let mut attributes = Attributes::default();
    get_attributes(directory.as_fd(), &mut attributes)?;
    attributes.project = project;
    attributes.flags |= INHERIT;
    // SAFETY: FS_IOC_FSSETXATTR reads one `fsxattr`, which `Attributes` mirrors and which outlives the call.
    let result = unsafe { libc::ioctl(directory.as_fd().as_raw_fd(), SET_ATTRIBUTES, std::ptr::from_ref(&attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn get_attributes(file: impl AsFd, attributes: &mut Attributes) -> io::Result<()> {
    // SAFETY: FS_IOC_FSGETXATTR writes one `fsxattr`, which `Attributes` mirrors and which outlives the call.
    let result = unsafe { libc::ioctl(file.as_fd().as_raw_fd(), GET_ATTRIBUTES, std::ptr::from_mut(attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// What a project uses on the filesystem of `file`. ESRCH where quotas are off, ENOSYS before Linux 5.14.
pub fn get(file: impl AsFd, project: u32) -> io::Result<Quota> {
    let mut told = empty();
    control(file, GET_QUOTA, project, &mut told)?;
    Ok(Quota {
        bytes: told.dqb_curspace,
        inodes: told.dqb_curinodes,
        most_bytes: told.dqb_bhardlimit * BLOCK,
        most_inodes: told.dqb_ihardlimit,
    })
}

/// Sets a project's limits; 0 removes a limit.
pub fn set(file: impl AsFd, project: u32, most_bytes: u64, most_inodes: u64) -> io::Result<()> {
    let mut wanted = empty();
    (wanted.dqb_bhardlimit, wanted.dqb_bsoftlimit) = (most_bytes.div_ceil(BLOCK), most_bytes.div_ceil(BLOCK));
    (wanted.dqb_ihardlimit, wanted.dqb_isoftlimit) = (most_inodes, most_inodes);
    wanted.dqb_valid = LIMITS;
    control(file, SET_QUOTA, project, &mut wanted)
}

fn control(file: impl AsFd, command: u32, project: u32, quota: &mut libc::dqblk) -> io::Result<()> {
    // SAFETY: Q_GETQUOTA and Q_SETQUOTA, the only commands passed, write and read one `if_dqblk`, which `libc::dqblk`
    // mirrors and which outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_quotactl_fd,
            file.as_fd().as_raw_fd(),
            (command << 8) | PROJECT,
            project,
            std::ptr::from_mut(quota),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn empty() -> libc::dqblk {
    libc::dqblk {
        dqb_bhardlimit: 0,
        dqb_bsoftlimit: 0,
        dqb_curspace: 0,
        dqb_ihardlimit: 0,
        dqb_isoftlimit: 0,
        dqb_curinodes: 0,
        dqb_btime: 0,
        dqb_itime: 0,
        dqb_valid: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!(size_of::<Attributes>(), 28);
        assert_eq!(size_of::<libc::dqblk>(), 72);
    }

    #[test]
    fn a_filesystem_without_quotas_says_so() {
        let proc = std::fs::File::open("/proc").unwrap();
        assert!(get(&proc, 7).is_err());
        assert!(project_of(&proc).is_err());
    }
}
