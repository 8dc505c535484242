//! The program that becomes PID 1 of every sandbox, part of this one.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, Mode, SealFlags};

use crate::refused::{Refused, Step};

static BYTES: &[u8] = include_bytes!(env!("COVE_GUEST_BINARY"));

/// For sandboxes that others run: it is put into them as a file.
pub fn bytes() -> &'static [u8] {
    BYTES
}

/// A sealed copy in memory: it has no path in any sandbox, and nobody, not even through `/proc/1/exe` (CVE-2019-5736),
/// can change it.
pub fn sealed() -> Result<OwnedFd, Refused> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Hosts with vm.memfd_noexec demand the flag, kernels before 6.3 do not know it.
    let file = rustix::fs::memfd_create(c"cove-guest", flags | MemfdFlags::EXEC)
        .or_else(|_| rustix::fs::memfd_create(c"cove-guest", flags))
        .step("make a file in memory for the guest")?;
    let mut rest = BYTES;
    while !rest.is_empty() {
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, rest)).step("copy the guest")?;
        rest = &rest[written..];
    }
    rustix::fs::fchmod(&file, Mode::from_raw_mode(0o555)).step("make the guest executable")?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&file, seals).step("seal the guest")?;
    Ok(file)
}
