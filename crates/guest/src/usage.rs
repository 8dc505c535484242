//! What the sandbox uses, as seen from inside.

use cove_protocol::Reply;
use cove_protocol::message::Usage;
use rustix::fs::statvfs;

use crate::connection::Connection;
use crate::failure::{During, Result};

pub fn usage(connection: &mut Connection) -> Result<()> {
    let disk = statvfs("/").during("look at the disk")?;
    let processes = std::fs::read_dir("/proc").map_or(0, |entries| {
        entries
            .flatten()
            .filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()))
            .count()
    });
    let usage = Usage {
        disk_used: disk.f_blocks.saturating_sub(disk.f_bfree).saturating_mul(disk.f_frsize),
        disk_total: disk.f_blocks.saturating_mul(disk.f_frsize),
        inodes_used: disk.f_files.saturating_sub(disk.f_ffree),
        inodes_total: disk.f_files,
        processes: u32::try_from(processes).unwrap_or(u32::MAX),
    };
    connection.reply(&Reply::Usage { usage })
}
