//! From a connection to the operation it asks for.

use std::sync::Arc;

use cove_protocol::{Failure, FailureKind, Reply, Request, VERSION};

use crate::connection::Connection;
use crate::failure::Result;
use crate::guest::Guest;

/// Serves one connection to its end, in a thread of its own.
pub fn serve(guest: &Arc<Guest>, mut connection: Connection) {
    let outcome = match connection.request() {
        Ok(Some(request)) => answer(guest, &mut connection, request),
        Ok(None) => return,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = outcome {
        connection.fail(&failure);
    }
}

fn answer(guest: &Arc<Guest>, connection: &mut Connection, request: Request) -> Result<()> {
    match request {
        Request::Ping => connection.reply(&Reply::Pong { version: VERSION, uptime_ms: guest.uptime_ms() }),
        _ => Err(Failure::new(FailureKind::Unsupported, "not yet")),
    }
}
