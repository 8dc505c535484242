//! PID 1 of every sandbox: processes, terminals, files, ports.
//!
//! ```text
//!   cove-guest                    as PID 1: fd 3 is the listening socket, fd 4 (where open) the leash, fd 5 the
//!                                 kernel's count of those it killed here for want of memory
//!   cove-guest --socket PATH      by itself: binds PATH; with --leash, standard input is the leash; with --tunnel PORT, a
//!                                 way in by WebSocket as well, for whoever shows the token of COVE_TUNNEL_TOKEN.
//!                                 As PID 1 of a container it takes its socket back from an earlier life
//!   cove-guest --through PATH     carries standard input and output to the guest that listens there
//! ```
//!
//! # Layout
//! * [`supervisor`]: the one thread that is always there. Accepts, pumps output, reaps, keeps time
//! * [`serve`]: one thread per connection, from the request to its end
//! * [`process`], [`file`], [`port`]: the requests, a file for each
//! * [`guest`]: what they share; [`tunnel`]: the way in on machines of others; [`through`]: into a container; [`token`]: what
//!   a host shows there

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
mod through;
mod token;
mod tunnel;
mod usage;
mod users;

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let done = match (arguments.next(), arguments.next(), arguments.next()) {
        (Some(word), Some(path), None) if word == "--through" => through::carry(path.as_ref()),
        _ => init::start().and_then(supervisor::Supervisor::run),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cove-guest: {error}");
            ExitCode::FAILURE
        }
    }
}
