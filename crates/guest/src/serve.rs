//! From a connection to the operation it asks for.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::{Failure, FailureKind, Reply, Request, VERSION};

use crate::connection::Connection;
use crate::failure::Result;
use crate::file::entry::Follow;
use crate::file::write::Parents;
use crate::file::{attributes, entry, list as files, make_directory, metadata, read, write};
use crate::guest::Guest;
use crate::process::signal::Target;
use crate::process::{input, list, signal, start, stream, wait};

/// How long the supervisor listens to a host when there is no thread for it.
const AT_ONCE: Duration = Duration::from_millis(250);

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

/// Serves what helps a sandbox that has no thread left, and refuses the rest.
pub fn serve_at_once(guest: &Arc<Guest>, mut connection: Connection) {
    let _ = connection.socket.set_write_timeout(Some(AT_ONCE));
    let outcome = match connection.request_within(AT_ONCE) {
        Ok(Some(
            request @ (Request::Ping
            | Request::Processes
            | Request::Signal { .. }
            | Request::Forget { .. }
            | Request::Shutdown { .. }),
        )) => answer(guest, &mut connection, request),
        Ok(Some(_)) => Err(Failure::new(
            FailureKind::Exhausted,
            "the sandbox has no thread left for this: end processes or close connections first",
        )),
        Ok(None) => return,
        Err(failure) => Err(failure),
    };
    if let Err(failure) = outcome {
        connection.refuse(&failure);
    }
}

fn answer(guest: &Arc<Guest>, connection: &mut Connection, request: Request) -> Result<()> {
    match request {
        Request::Ping => connection.reply(&Reply::Pong { version: VERSION, uptime_ms: guest.uptime_ms() }),
        Request::Configure { env, default_user, default_cwd } => {
            let mut configuration = guest.configuration();
            if let Some(env) = env {
                configuration.env = env;
            }
            configuration.default_user = default_user.or(configuration.default_user.take());
            configuration.default_cwd = default_cwd.or(configuration.default_cwd.take());
            drop(configuration);
            connection.reply(&Reply::Done)
        }
        Request::Shutdown { grace_ms } => {
            let told = connection.reply(&Reply::Done);
            guest.end(Duration::from_millis(grace_ms));
            told
        }

        Request::Start(spec) => start::start(guest, connection, spec),
        Request::Attach { process, from } => stream::attach(guest, connection, &process, from),
        Request::Processes => list::list(guest, connection),
        Request::Signal { process, signal, group } => {
            signal::signal(guest, connection, &process, signal, Target::of(group))
        }
        Request::Input { process } => input::write(guest, connection, &process),
        Request::CloseStdin { process } => input::close(guest, connection, &process),
        Request::Resize { process, size } => signal::resize(guest, connection, &process, size),
        Request::Wait { process } => wait::wait(guest, connection, &process),
        Request::Forget { process } => wait::forget(guest, connection, &process),

        Request::Stat { path, user, follow } => {
            entry::stat(guest, connection, &path, user.as_deref(), Follow::of(follow))
        }
        Request::List { path, user, depth } => files::list(guest, connection, &path, user.as_deref(), depth),
        Request::Read { path, user, offset, length } => {
            read::read(guest, connection, &path, user.as_deref(), offset, length)
        }
        Request::Write { path, user, how, mode, parents } => {
            let (user, parents) = (user.as_deref(), Parents::of(parents));
            write::write(guest, connection, &write::Wanted { path: &path, user, how, mode, parents })
        }
        Request::MakeDirectory { path, user, mode } => {
            make_directory::make_directory(guest, connection, &path, user.as_deref(), mode)
        }
        Request::SetAttributes { path, user, mode, owner, group } => {
            let (user, owner, group) = (user.as_deref(), owner.as_deref(), group.as_deref());
            attributes::set(guest, connection, &attributes::Wanted { path: &path, user, mode, owner, group })
        }
        Request::SetMetadata { path, user, prefix, values } => {
            metadata::replace(guest, connection, &path, user.as_deref(), &prefix, &values)
        }
        _ => Err(Failure::new(FailureKind::Unsupported, "this guest does not know the request")),
    }
}
