//! WebSockets that this server speaks itself: a message of theirs is held until it is whole, so it has a bound, and what is
//! not whole yet is counted for its organisation and has a deadline (`connection/meter.rs`).

use axum::extract::ws::WebSocketUpgrade;

use crate::right;

/// Input to a process, keys, sizes: longer input comes in several messages.
pub const SHORT: usize = 1 << 20;
/// Code to run.
pub const LONG: usize = 4 << 20;

/// Takes messages of at most so many bytes.
pub fn bounded(upgrade: WebSocketUpgrade, most: usize) -> WebSocketUpgrade {
    if let Some(admission) = right::current() {
        admission.assembles();
    }
    upgrade.max_message_size(most).max_frame_size(most)
}
