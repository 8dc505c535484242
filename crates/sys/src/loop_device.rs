//! Loop devices: a file as a block device.
//!
//! Numbers and structures are those of the kernel's `include/uapi/linux/loop.h`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

const CONFIGURE: libc::Ioctl = 0x4C0A;
const SET_CAPACITY: libc::Ioctl = 0x4C07;
const GET_STATUS64: libc::Ioctl = 0x4C05;
const CONTROL_GET_FREE: libc::Ioctl = 0x4C82;
/// The device releases the file when its last user is gone.
const AUTOCLEAR: u32 = 4;
/// Bypasses the host's page cache: data in the loop is cached once, above it.
const DIRECT_IO: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    own_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

impl Info {
    fn with_flags(flags: u32) -> Info {
        Info {
            device: 0,
            inode: 0,
            own_device: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encryption: [0; 2],
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

/// A loop device with a file behind it. The device lives until this and every mount of it is gone.
#[derive(Debug)]
pub struct LoopDevice {
    pub path: PathBuf,
    device: File,
}

impl LoopDevice {
    /// The device that already has `file` behind it, from this process or an earlier one.
    pub fn find(file: &File) -> io::Result<Option<LoopDevice>> {
        let wanted = file.metadata()?;
        for entry in std::fs::read_dir("/sys/block")?.flatten() {
            let name = entry.file_name();
            if !name.as_encoded_bytes().starts_with(b"loop") || !entry.path().join("loop/backing_file").exists() {
                continue;
            }
            let path = PathBuf::from("/dev").join(name);
            let Ok(device) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            let mut info = Info::with_flags(0);
            // ENXIO: released between the two calls.
            if status(&device, &mut info).is_ok()
                && info.inode == wanted.ino()
                && same_device(info.device, wanted.dev())
            {
                return Ok(Some(LoopDevice { path, device }));
            }
        }
        Ok(None)
    }

    /// Puts `file` behind a free device.
    pub fn attach(file: &File) -> io::Result<LoopDevice> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        // Another program may take the free device first; then the kernel offers another one.
        for _ in 0..64 {
            let path = PathBuf::from(format!("/dev/loop{}", free_number(&control)?));
            let device = OpenOptions::new().read(true).write(true).open(&path)?;
            match configure(&device, file, AUTOCLEAR | DIRECT_IO) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
                // The filesystem below does not support direct I/O.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => configure(&device, file, AUTOCLEAR)?,
                other => other?,
            }
            return Ok(LoopDevice { path, device });
        }
        Err(io::Error::other("every free loop device was taken by others"))
    }

    /// Nobody gives blocks of the file back through this device any more: not the filesystem on it, not `fstrim`. Where the
    /// kernel does not let itself be told, they may.
    pub fn keep_blocks(&self) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default();
        std::fs::write(PathBuf::from("/sys/block").join(name).join("queue/discard_max_bytes"), "0")
    }

    /// Takes over the file's new size.
    pub fn refresh_size(&self) -> io::Result<()> {
        // SAFETY: LOOP_SET_CAPACITY takes no argument; the descriptor is open as long as `self`.
        let result = unsafe { libc::ioctl(self.device.as_raw_fd(), SET_CAPACITY, 0) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The kernel reports the device in its older encoding.
fn same_device(told: u64, wanted: u64) -> bool {
    let (major, minor) = (libc::major(wanted), libc::minor(wanted));
    let old = u64::from(minor & 0xff) | (u64::from(major) << 8) | (u64::from(minor & !0xff) << 12);
    told == wanted || told == old
}

fn free_number(control: &File) -> io::Result<i32> {
    // SAFETY: LOOP_CTL_GET_FREE takes no argument and answers the number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), CONTROL_GET_FREE) };
    if number < 0 { Err(io::Error::last_os_error()) } else { Ok(number) }
}

fn configure(device: &File, file: &File, flags: u32) -> io::Result<()> {
    let file = file.as_fd().as_raw_fd() as u32;
    let configuration = Configuration { file, block_size: 0, info: Info::with_flags(flags), reserved: [0; 8] };
    // SAFETY: LOOP_CONFIGURE reads one `loop_config`, which `Configuration` mirrors and which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, std::ptr::from_ref(&configuration)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn status(device: &File, info: &mut Info) -> io::Result<()> {
    // SAFETY: LOOP_GET_STATUS64 writes one `loop_info64`, which `Info` mirrors and which outlives the call.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS64, std::ptr::from_mut(info)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernels_size() {
        assert_eq!(size_of::<Info>(), 232);
        assert_eq!(size_of::<Configuration>(), 304);
    }

    #[test]
    fn a_file_behind_no_device_is_not_found() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(LoopDevice::find(&file).unwrap().is_none());
    }
}
