//! Changes of a sandbox's row, each only where its generation is still the one that was read.

use cove_protocol::SandboxId;

use super::{Along, disk, due_at, held_name, insert_labels};
use crate::Error;
use crate::event::NewEvent;
use crate::image::User;
use crate::ledger;
use crate::sandbox::{Sandbox, State};
use crate::store::change::{Change, Lasting, Statement};
use crate::store::room::{Room, Wanted};
use crate::store::{AT_ONCE, Store, Written, is_unique_violation, layers, to_body, volumes};

impl Store {
    /// Writes the sandbox where its generation is still the one that was read, and raises it.
    pub async fn update_sandbox(&self, sandbox: &mut Sandbox, event: Option<&NewEvent>) -> Result<Written, Error> {
        self.update_sandbox_along(sandbox, Along { event, ..Along::default() }).await
    }

    /// As [`Store::update_sandbox`], with all that belongs to the change.
    pub async fn update_sandbox_along(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Written, Error> {
        Ok(self.raise(sandbox, along).await??)
    }

    async fn raise(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Result<Written, sqlx::Error>, Error> {
        let change = Change::new(update_row(sandbox)?)
            .with(let_go(sandbox))
            .with(along.insert(self.dialect)?)
            .lasting(along.lasting);
        let Some(quota) = along.starts_within else { return Ok(self.write_raised(change, sandbox).await) };
        sandbox.generation += 1;
        // One that comes out of the archive has no disk yet.
        let disk = if sandbox.state == State::Restoring { ledger::disk_of(sandbox) } else { 0 };
        let room = Room { organisation: &sandbox.organisation, quota, wanted: Wanted::Start { disk } };
        let written = self.write_within(change, Some(sandbox), Some(room)).await;
        if !matches!(written, Ok(Ok(Written::Done))) {
            sandbox.generation -= 1;
        }
        written
    }

    /// Carries out a change that raises the sandbox's generation in the store, and here where it was done: whoever tries again
    /// tries from what is in the store.
    pub(super) async fn write_raised(&self, change: Change, sandbox: &mut Sandbox) -> Result<Written, sqlx::Error> {
        sandbox.generation += 1;
        let written = self.write(change, Some(sandbox)).await;
        if !matches!(written, Ok(Written::Done)) {
            sandbox.generation -= 1;
        }
        written
    }

    /// Replaces the labels as well.
    pub async fn update_labels(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Written, Error> {
        const CLEAR: &str = "DELETE FROM sandbox_labels WHERE sandbox = $1";
        let change = Change::new(update_row(sandbox)?)
            .with([Statement::other(CLEAR, [sandbox.id.as_str().into()])])
            .with(insert_labels(sandbox))
            .with(along.insert(self.dialect)?);
        Ok(self.write_raised(change, sandbox).await?)
    }

    /// Whether a name became free to take: `Ok(None)` where another bears it.
    pub async fn rename_sandbox(&self, sandbox: &mut Sandbox, along: Along<'_>) -> Result<Option<Written>, Error> {
        match self.raise(sandbox, along).await? {
            Err(error) if is_unique_violation(&error) => Ok(None),
            written => Ok(Some(written?)),
        }
    }

    /// Looks at its timers again at that time; no change of the sandbox itself.
    pub async fn put_off(&self, id: &SandboxId, due_at: Option<i64>) -> Result<(), Error> {
        self.execute_soon(Statement::other(
            "UPDATE sandboxes SET due_at = $1 WHERE id = $2",
            [due_at.into(), id.as_str().into()],
        ))
        .await?;
        Ok(())
    }

    /// Activity since the last time, many sandboxes at once; never moves a time back.
    pub async fn note_activity(&self, activity: &[(SandboxId, i64)]) -> Result<(), Error> {
        const SQL: &str = "UPDATE sandboxes SET last_activity_at = $1 WHERE id = $2 AND last_activity_at < $1";
        for some in activity.chunks(AT_ONCE) {
            let note = |(id, at): &(SandboxId, i64)| Statement::other(SQL, [(*at).into(), id.as_str().into()]);
            self.carry_out(Change::all(some.iter().map(note).collect()).lasting(Lasting::Soon), None).await?;
            for (id, at) in some {
                self.recent.touch(id, *at);
            }
        }
        Ok(())
    }
}

/// What a sandbox that is gone no longer needs.
fn let_go(sandbox: &Sandbox) -> Vec<Statement> {
    if sandbox.state != State::Destroyed {
        return Vec::new();
    }
    let layers = (!sandbox.image.root.over.is_empty()).then(|| layers::release(User::Sandbox(sandbox.id.as_str())));
    let mounts = (!sandbox.volumes.is_empty()).then(|| volumes::unmount(sandbox.id.as_str()));
    layers.into_iter().chain(mounts).collect()
}

/// The row as the sandbox is, with the next generation; that in the body counts for nothing.
fn update_row(sandbox: &Sandbox) -> Result<Statement, Error> {
    const SQL: &str = "UPDATE sandboxes SET organisation = $1, name = $2, owner = $3, server = $4, state = $5, pool = $6, \
         generation = $7, last_activity_at = $8, due_at = $9, body = $10, destroyed_at = $11, disk = $12 \
         WHERE id = $13 AND generation = $14";
    let destroyed_at = (sandbox.state == State::Destroyed).then(|| sandbox.state_since.as_millisecond());
    let values = [
        sandbox.organisation.as_str().into(),
        held_name(sandbox).into(),
        sandbox.owner.as_deref().into(),
        sandbox.server.as_str().into(),
        sandbox.state.as_str().into(),
        sandbox.pool.as_deref().into(),
        (sandbox.generation + 1).into(),
        sandbox.last_activity_at.as_millisecond().into(),
        due_at(sandbox).into(),
        to_body(sandbox)?.into(),
        destroyed_at.into(),
        disk(sandbox).into(),
        sandbox.id.as_str().into(),
        sandbox.generation.into(),
    ];
    Ok(Statement::other(SQL, values))
}
