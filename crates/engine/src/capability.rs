//! What root of a sandbox may do, in its own user namespace only.
//!
//! Docker's default set without CAP_SYS_CHROOT (see docs/adr/0001-entering-the-root.md) and CAP_MKNOD (means nothing
//! outside the host's user namespace). The bounding set is what no process inside can exceed, setuid programs included.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::refused::{Refused, Step};

/// Held by PID 1 and by every process of the sandbox's root.
pub const GRANTED: CapabilitySet = CapabilitySet::AUDIT_WRITE // sudo and sshd write to the audit log
    .union(CapabilitySet::CHOWN) // install, tar and package managers
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL) // the guest ends other users' processes
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID) // su, sudo, the guest
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID);

/// Removes everything else from the bounding set.
pub fn bound() -> Result<(), Refused> {
    for number in 0..64 {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if GRANTED.contains(capability) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The first number beyond the kernel's last capability.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(Refused::new(format!("bound capability {number}"), errno)),
        }
    }
    Ok(())
}

/// Keeps what is granted and gives up the rest.
pub fn drop() -> Result<(), Refused> {
    let sets = CapabilitySets { effective: GRANTED, permitted: GRANTED, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).step("drop capabilities")
}
