//! What is cleared away after a run, of its own and of earlier ones that were killed half-way.
//!
//! A run that is killed leaves no process (its sandbox hangs on a leash) but a directory and empty control groups. The next
//! run on the same data removes them, after its own command has ended: nobody waits for it.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use cove_engine::{Engine, SandboxId};

use super::sandbox;
use crate::complaint::Complaint;

/// Younger ones may be in the making by another run, which has not come to binding its socket.
const SURELY_STARTED: Duration = Duration::from_secs(5);

pub fn clean(engine: Engine, data: &Path) -> Result<(), Complaint> {
    let directory = data.join("sandboxes");
    let others = std::fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some());
    if others {
        let keep = |id: &SandboxId| is_young(&directory.join(id.as_str())) || is_alive(&engine, id);
        engine.sweep(&keep).map_err(sandbox::complaint)?;
    }
    // Ends the engine's threads, which empty the trash first, and unmounts the disk pool if nobody else uses it.
    drop(engine);
    Ok(())
}

fn is_young(directory: &Path) -> bool {
    let made = directory.metadata().and_then(|metadata| metadata.modified());
    made.is_ok_and(|made| SystemTime::now().duration_since(made).is_ok_and(|age| age < SURELY_STARTED))
}

/// A guest that is gone refuses the connection.
fn is_alive(engine: &Engine, id: &SandboxId) -> bool {
    UnixStream::connect(engine.socket(id)).is_ok()
}
