//! From a connection to the operation it asks for.

use std::sync::Arc;
use std::time::Duration;

use cove_protocol::{Failure, FailureKind, Reply, Request, VERSION};

use crate::connection::Connection;
use crate::failure::Result;
use crate::file::entry::Follow;
use crate::file::remove::Extent;
use crate::file::tar::{pack, unpack};
use crate::file::watch::Depth;
use crate::file::write::Parents;
use crate::file::{
    attributes, entry, find, grep, list as files, make_directory, metadata, read, remove, rename, replace, watch, write,
};
use crate::guest::Guest;
use crate::port::{dial, list as ports};
use crate::process::signal::Target;
use crate::process::{input, list, signal, start, stream, wait};
use crate::usage;

/// How long the supervisor listens to a host when there is no thread for it.
const AT_ONCE: Duration = Duration::from_millis(250);

/// Serves one connection to its end, in a thread of its own.
pub fn serve(guest: &Arc<Guest>, mut connection: Connection) {
    let outcome = match connection.request(guest.token.as_ref()) {
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
    let outcome = match connection.request_within(AT_ONCE, guest.token.as_ref()) {
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
            if default_cwd.is_some() {
                configuration.default_cwd = default_cwd;
                configuration.make_default_cwd();
            }
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
        Request::Move { from, to, user } => rename::rename(guest, connection, &from, &to, user.as_deref()),
        Request::Remove { path, user, recursive } => {
            remove::remove(guest, connection, &path, user.as_deref(), Extent::of(recursive))
        }
        Request::Symlink { path, target, user } => rename::symlink(guest, connection, &path, &target, user.as_deref()),
        Request::Find { path, pattern, user, limit } => {
            find::find(guest, connection, &path, &pattern, user.as_deref(), limit)
        }
        Request::Grep { path, pattern, user, limit } => {
            grep::grep(guest, connection, &path, &pattern, user.as_deref(), limit)
        }
        Request::Replace { paths, pattern, replacement, user } => {
            replace::replace(guest, connection, &paths, &pattern, &replacement, user.as_deref())
        }
        Request::Watch { path, user, recursive } => {
            watch::watch(guest, connection, &path, user.as_deref(), Depth::of(recursive))
        }
        Request::TarOut { path, user } => pack::pack(guest, connection, &path, user.as_deref()),
        Request::TarIn { path, user } => unpack::unpack(guest, connection, &path, user.as_deref()),

        Request::Dial { port } => dial::dial(connection, port),
        Request::Ports => ports::list(connection),
        Request::Usage => usage::usage(connection),
    }
}
