//! PID 1 of every sandbox: processes, terminals, files, ports.
//!
//! ```text
//!   cove-guest                    as PID 1: fd 3 is the listening socket, fd 4 (where open) the leash, fd 5 the
//!                                 kernel's count of those it killed here for want of memory
//!   cove-guest --socket PATH      by itself: binds PATH; with --leash, standard input is the leash
//! ```
//!
//! # Layout
//! * [`supervisor`]: the one thread that is always there. Accepts, pumps output, reaps, keeps time
//! * [`serve`]: one thread per connection, from the request to its end
//! * [`process`], [`file`], [`port`]: the requests, a file for each
//! * [`guest`]: what they share

#![forbid(unsafe_code)]

mod connection;
mod failure;
mod file;
mod guest;
mod init;
mod port;
mod process;
mod serve;
mod shutdown;
mod supervisor;
mod usage;
mod users;

use std::process::ExitCode;

fn main() -> ExitCode {
    match init::start().and_then(supervisor::Supervisor::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cove-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
