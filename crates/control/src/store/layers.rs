//! Layers, who needs them, and images in the store.
//!
//! A user writes its uses in its own transaction. Where a layer is no longer ready, the statement has nothing to put into
//! a column that must not be null, and the whole transaction fails ([`is_gone`]). PostgreSQL holds the layer's row from
//! there to the commit; whoever lets a layer go locks the row first and looks for uses after that. So of the two, one
//! sees the other. SQLite has one writer.
//!
//! A use takes the weakest lock there is, which only the locker that lets a layer go conflicts with: nobody who notes a time of
//! use waits for a user, or the other way round. Where several rows are noted at once, they are locked in one order.
//!
//! A draft is its maker's: the work that holds it. One that no work holds is nobody's and goes. What a server that died held
//! is let go by the others after a while ([`Store::end_all_work`]); it may come back later, and finds that what it was at has no
//! effect: a draft that was given up is not sealed, and a use of a layer that went is refused.

use sqlx::Row;
use sqlx::any::AnyRow;
use sqlx::error::ErrorKind;

use super::change::{Change, Lasting, Statement};
use super::{Dialect, Store, Written, from_body, to_body};
use crate::Error;
use crate::clock::{Timestamp, from_millisecond};
use crate::image::{Layer, LayerKind, LayerState, NewLayer, Pulled, User};
use crate::provider::LayerId;

const COLUMNS: &str = "id, kind, organisation, bytes, files, state, created_at, last_used_at";

fn read(row: &AnyRow) -> Result<Layer, Error> {
    let wrong = |what: &str, text: &str| Error::internal(format!("store: a layer with {what} {text:?}"));
    let (id, kind, state): (String, String, String) = (row.try_get("id")?, row.try_get("kind")?, row.try_get("state")?);
    Ok(Layer {
        id: id.parse().map_err(|_| wrong("id", &id))?,
        kind: LayerKind::parse(&kind).ok_or_else(|| wrong("kind", &kind))?,
        organisation: row.try_get("organisation")?,
        bytes: row.try_get::<i64, _>("bytes")?.unsigned_abs(),
        files: row.try_get::<i64, _>("files")?.unsigned_abs(),
        state: LayerState::parse(&state).ok_or_else(|| wrong("state", &state))?,
        created_at: from_millisecond(row.try_get("created_at")?),
        last_used_at: from_millisecond(row.try_get("last_used_at")?),
    })
}

/// Uses of layers by one user. The transaction fails where one of them is not ready.
pub(super) fn uses(dialect: Dialect, user: User<'_>, layers: &[LayerId]) -> Vec<Statement> {
    const SQLITE: &str = "INSERT INTO layer_uses (layer, user_kind, user_id) \
         VALUES ((SELECT id FROM layers WHERE id = $1 AND state = 'ready'), $2, $3) ON CONFLICT DO NOTHING";
    const POSTGRES: &str = "INSERT INTO layer_uses (layer, user_kind, user_id) \
         VALUES ((SELECT id FROM layers WHERE id = $1 AND state = 'ready' FOR KEY SHARE), $2, $3) ON CONFLICT DO NOTHING";
    let text = match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
    };
    let one =
        |layer: &LayerId| Statement::other(text, [layer.to_string().into(), user.kind().into(), user.id().into()]);
    layers.iter().map(one).collect()
}

/// A user needs none any more.
pub(super) fn release(user: User<'_>) -> Statement {
    const SQL: &str = "DELETE FROM layer_uses WHERE user_kind = $1 AND user_id = $2";
    Statement::other(SQL, [user.kind().into(), user.id().into()])
}

/// Whether a transaction failed because what it wanted to use is going, or is not there.
pub(super) fn is_gone(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Database(database) if matches!(database.kind(), ErrorKind::NotNullViolation))
}

/// The sentence for a caller.
pub(super) fn gone() -> Error {
    Error::Conflict("what it is made of was just deleted; try again".into())
}

/// What became of the beginning of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// Its row is there: it is to be made.
    New,
    /// It is there already, and held.
    Ready,
    /// Somebody makes it, or it is being removed.
    Busy,
}

impl Store {
    /// Notes a layer that is about to be made, held by `work` from now on.
    pub async fn begin_layer(&self, new: NewLayer<'_>, work: &str, now: i64) -> Result<Begun, Error> {
        const ROW: &str = "INSERT INTO layers (id, kind, organisation, bytes, files, state, created_at, last_used_at) \
             VALUES ($1, $2, $3, 0, 0, 'draft', $4, $4) ON CONFLICT DO NOTHING";
        let id = new.id.to_string();
        let row =
            Statement::other(ROW, [id.as_str().into(), new.kind.as_str().into(), new.organisation.into(), now.into()]);
        let held = [id.as_str().into(), User::Work(work).kind().into(), work.into()];
        let change = Change::new(row).with([
            place(&id, new.server, new.provider),
            Statement::insert("layer_uses", "layer, user_kind, user_id", held),
        ]);
        if self.write(change, None).await? == Written::Done {
            return Ok(Begun::New);
        }
        Ok(if self.hold_layers(&[new.id], work).await? { Begun::Ready } else { Begun::Busy })
    }

    /// Keeps layers while work goes on. `false` where one of them is not ready.
    pub async fn hold_layers(&self, layers: &[LayerId], work: &str) -> Result<bool, Error> {
        let statements = uses(self.dialect, User::Work(work), layers);
        match self.carry_out(Change::all(statements), None).await {
            Ok(_) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The layer is whole. `false` where it was given up meanwhile: whoever made it has nothing.
    pub async fn seal_layer(&self, layer: LayerId, bytes: u64, files: u64, now: i64) -> Result<bool, Error> {
        const SQL: &str = "UPDATE layers SET state = 'ready', bytes = $1, files = $2, last_used_at = $3 \
             WHERE id = $4 AND state = 'draft'";
        let values = [number(bytes).into(), number(files).into(), now.into(), layer.to_string().into()];
        if self.execute(Statement::other(SQL, values)).await? > 0 {
            return Ok(true);
        }
        Ok(self.layer(layer).await?.is_some_and(|layer| layer.state == LayerState::Ready))
    }

    /// It was not made: what there is of it goes, where it is still the work's, or nobody's.
    pub async fn give_up_layer(&self, layer: LayerId, work: &str) -> Result<(), Error> {
        const SQL: &str = "UPDATE layers SET state = 'going' WHERE id = $1 AND state = 'draft' AND NOT EXISTS \
             (SELECT 1 FROM layer_uses WHERE layer = $1 AND user_kind = 'work' AND user_id <> $2)";
        self.execute(Statement::other(SQL, [layer.to_string().into(), work.into()])).await?;
        Ok(())
    }

    /// Drafts whose makers are gone without a word. Returns how many.
    pub async fn give_up_drafts_of_nobody(&self) -> Result<u64, Error> {
        const SQL: &str = "UPDATE layers SET state = 'going' WHERE state = 'draft' AND NOT EXISTS \
             (SELECT 1 FROM layer_uses WHERE layer_uses.layer = layers.id AND layer_uses.user_kind = 'work')";
        self.execute_soon(Statement::other(SQL, [])).await
    }

    /// The work that makes a draft.
    pub async fn maker_of_layer(&self, layer: LayerId) -> Result<Option<String>, Error> {
        const SQL: &str =
            "SELECT user_id FROM layer_uses WHERE layer = $1 AND user_kind = 'work' ORDER BY user_id LIMIT 1";
        Ok(sqlx::query_scalar(SQL).bind(layer.to_string()).fetch_optional(&self.reads).await?)
    }

    /// Begins a layer anew that is going, where nobody is about to remove it: neither this server nor one that was heard of since
    /// `alive_since`. What a server that is away has of it is whole or nothing, so it may stay. `false` where somebody is.
    pub async fn revive_layer(&self, new: NewLayer<'_>, work: &str, now: i64, alive_since: i64) -> Result<bool, Error> {
        const ROW: &str = "UPDATE layers SET state = 'draft', kind = $1, organisation = $2, bytes = 0, files = 0, \
             created_at = $3, last_used_at = $3 WHERE id = $4 AND state = 'going' AND NOT EXISTS \
             (SELECT 1 FROM layer_places p WHERE p.layer = $4 AND (p.server = $5 OR EXISTS \
             (SELECT 1 FROM servers s WHERE s.id = p.server AND s.seen_at >= $6)))";
        const MAKERS: &str = "DELETE FROM layer_uses WHERE layer = $1 AND user_kind = 'work'";
        const HELD: &str = "INSERT INTO layer_uses (layer, user_kind, user_id) VALUES ($1, 'work', $2)";
        let id = new.id.to_string();
        let values = [
            new.kind.as_str().into(),
            new.organisation.into(),
            now.into(),
            id.as_str().into(),
            new.server.into(),
            alive_since.into(),
        ];
        let change = Change::new(Statement::other(ROW, values)).with([
            Statement::other(MAKERS, [id.as_str().into()]),
            place(&id, new.server, new.provider),
            Statement::other(HELD, [id.as_str().into(), work.into()]),
        ]);
        Ok(self.write(change, None).await? == Written::Done)
    }

    /// A layer that a provider has and that is whole, such as one from before there were rows.
    pub async fn adopt_layer(&self, new: NewLayer<'_>, bytes: u64, files: u64, now: i64) -> Result<(), Error> {
        const ROW: &str = "INSERT INTO layers (id, kind, organisation, bytes, files, state, created_at, last_used_at) \
             VALUES ($1, $2, $3, $4, $5, 'ready', $6, $6) ON CONFLICT DO NOTHING";
        let id = new.id.to_string();
        let row = Statement::other(
            ROW,
            [
                id.as_str().into(),
                new.kind.as_str().into(),
                new.organisation.into(),
                number(bytes).into(),
                number(files).into(),
                now.into(),
            ],
        );
        self.carry_out(Change::all(vec![row, place(&id, new.server, new.provider)]), None).await?;
        Ok(())
    }

    /// A provider has it as well.
    pub async fn add_layer_place(&self, layer: LayerId, server: &str, provider: &str) -> Result<(), Error> {
        self.execute(place(&layer.to_string(), server, provider)).await?;
        Ok(())
    }

    /// Uses that were never written with their user.
    pub async fn add_uses(&self, user: User<'_>, layers: &[LayerId]) -> Result<(), Error> {
        match self.carry_out(Change::all(uses(self.dialect, user, layers)), None).await {
            Ok(_) => Ok(()),
            Err(error) if is_gone(&error) => Err(gone()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the sandboxes of a server from before layers were counted have their uses.
    pub async fn layers_are_counted(&self, server: &str) -> Result<bool, Error> {
        const SQL: &str = "SELECT seq FROM cursors WHERE name = $1";
        let seq: Option<i64> = sqlx::query_scalar(SQL).bind(counted(server)).fetch_optional(&self.reads).await?;
        Ok(seq.is_some())
    }

    pub async fn note_layers_counted(&self, server: &str) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO cursors (name, seq) VALUES ($1, 1) ON CONFLICT DO NOTHING";
        self.execute(Statement::other(SQL, [counted(server).into()])).await?;
        Ok(())
    }

    /// What was held for work goes free. Layers that nobody else needs go later.
    pub async fn end_work(&self, work: &str, now: i64) -> Result<(), Error> {
        const LOCK: &str = "SELECT id FROM layers WHERE id IN \
             (SELECT layer FROM layer_uses WHERE user_kind = 'work' AND user_id = $1) ORDER BY id FOR NO KEY UPDATE";
        const TOUCH: &str = "UPDATE layers SET last_used_at = $1 WHERE id IN \
             (SELECT layer FROM layer_uses WHERE user_kind = 'work' AND user_id = $2)";
        let mut statements = vec![Statement::other(TOUCH, [now.into(), work.into()]), release(User::Work(work))];
        if self.dialect == Dialect::Postgres {
            statements.insert(0, Statement::other(LOCK, [work.into()]));
        }
        self.carry_out(Change::all(statements).lasting(Lasting::Soon), None).await?;
        Ok(())
    }

    /// Work of a server that died, and what it was making. Returns how many layers it was making.
    pub async fn end_all_work(&self, server: &str) -> Result<u64, Error> {
        const DRAFTS: &str = "UPDATE layers SET state = 'going' WHERE state = 'draft' AND EXISTS \
             (SELECT 1 FROM layer_uses WHERE layer_uses.layer = layers.id AND layer_uses.user_kind = 'work' \
             AND SUBSTR(layer_uses.user_id, 1, LENGTH($1)) = $1)";
        const WORK: &str = "DELETE FROM layer_uses WHERE user_kind = 'work' AND SUBSTR(user_id, 1, LENGTH($1)) = $1";
        let begins = format!("{server}/");
        let drafts = Statement::other(DRAFTS, [begins.as_str().into()]);
        let work = Statement::other(WORK, [begins.as_str().into()]);
        Ok(self.carry_out(Change::all(vec![drafts, work]), None).await?)
    }

    /// Servers that were not heard of since a time and whose work still holds layers.
    pub async fn silent_servers_at_work(&self, since: i64) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT id FROM servers WHERE seen_at < $1 AND EXISTS (SELECT 1 FROM layer_uses \
             WHERE layer_uses.user_kind = 'work' \
             AND SUBSTR(layer_uses.user_id, 1, LENGTH(servers.id) + 1) = servers.id || '/') ORDER BY id";
        Ok(sqlx::query_scalar(SQL).bind(since).fetch_all(&self.reads).await?)
    }

    pub async fn layer(&self, layer: LayerId) -> Result<Option<Layer>, Error> {
        let sql = format!("SELECT {COLUMNS} FROM layers WHERE id = $1");
        let row = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(layer.to_string()).fetch_optional(&self.reads).await?;
        row.as_ref().map(read).transpose()
    }

    /// The servers that have a layer.
    pub async fn servers_of_layer(&self, layer: LayerId) -> Result<Vec<String>, Error> {
        const SQL: &str = "SELECT DISTINCT server FROM layer_places WHERE layer = $1 ORDER BY server";
        Ok(sqlx::query_scalar(SQL).bind(layer.to_string()).fetch_all(&self.reads).await?)
    }

    /// The same with the provider of each that has it.
    pub async fn places_of_layer(&self, layer: LayerId) -> Result<Vec<(String, String)>, Error> {
        const SQL: &str = "SELECT server, provider FROM layer_places WHERE layer = $1 ORDER BY server, provider";
        let rows = sqlx::query(SQL).bind(layer.to_string()).fetch_all(&self.reads).await?;
        rows.iter().map(|row| Ok((row.try_get("server")?, row.try_get("provider")?))).collect()
    }

    /// How many users a layer has.
    pub async fn count_uses(&self, layer: LayerId) -> Result<i64, Error> {
        const SQL: &str = "SELECT COUNT(*) FROM layer_uses WHERE layer = $1";
        Ok(sqlx::query_scalar(SQL).bind(layer.to_string()).fetch_one(&self.reads).await?)
    }

    /// Layers that nobody has used since a time, and that nobody needs; some of them.
    pub async fn unused_layers(&self, before: i64, limit: i64) -> Result<Vec<LayerId>, Error> {
        const SQL: &str = "SELECT id FROM layers WHERE state = 'ready' AND last_used_at < $1 AND NOT EXISTS \
             (SELECT 1 FROM layer_uses WHERE layer_uses.layer = layers.id) ORDER BY last_used_at LIMIT $2";
        let ids: Vec<String> = sqlx::query_scalar(SQL).bind(before).bind(limit).fetch_all(&self.reads).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// From now on nobody begins to use the layer. `false` where somebody needs it after all.
    pub async fn let_layer_go(&self, layer: LayerId, before: i64) -> Result<bool, Error> {
        const LOCK: &str = "SELECT id FROM layers WHERE id = $1 FOR UPDATE";
        const GO: &str = "UPDATE layers SET state = 'going' WHERE id = $1 AND state = 'ready' AND last_used_at < $2 \
             AND NOT EXISTS (SELECT 1 FROM layer_uses WHERE layer_uses.layer = $1)";
        let go = Statement::other(GO, [layer.to_string().into(), before.into()]);
        let statements = match self.dialect {
            Dialect::Sqlite => vec![go],
            Dialect::Postgres => vec![Statement::other(LOCK, [layer.to_string().into()]), go],
        };
        self.carry_out(Change::all(statements), None).await?;
        Ok(self.layer(layer).await?.is_none_or(|layer| layer.state == LayerState::Going))
    }

    /// Layers of one provider of one server that are to be removed.
    pub async fn going_layers(&self, server: &str, provider: &str, limit: i64) -> Result<Vec<LayerId>, Error> {
        const SQL: &str = "SELECT layers.id FROM layers JOIN layer_places ON layer_places.layer = layers.id \
             WHERE layers.state = 'going' AND layer_places.server = $1 AND layer_places.provider = $2 \
             ORDER BY layers.last_used_at LIMIT $3";
        let query = sqlx::query_scalar(SQL).bind(server).bind(provider).bind(limit);
        let ids: Vec<String> = query.fetch_all(&self.reads).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// A provider has it no more. Its row goes with the last place.
    pub async fn layer_is_gone(&self, layer: LayerId, server: &str, provider: &str) -> Result<(), Error> {
        const PLACE: &str = "DELETE FROM layer_places WHERE layer = $1 AND server = $2 AND provider = $3";
        const ROW: &str = "DELETE FROM layers WHERE id = $1 AND state = 'going' AND NOT EXISTS \
             (SELECT 1 FROM layer_places WHERE layer_places.layer = $1)";
        let id = layer.to_string();
        let statements = vec![
            Statement::other(PLACE, [id.as_str().into(), server.into(), provider.into()]),
            Statement::other(ROW, [id.as_str().into()]),
        ];
        self.carry_out(Change::all(statements), None).await?;
        Ok(())
    }

    /// Rows of layers that are going and that nobody has. Returns how many.
    pub async fn forget_layers_of_nobody(&self) -> Result<u64, Error> {
        const SQL: &str = "DELETE FROM layers WHERE state = 'going' AND NOT EXISTS \
             (SELECT 1 FROM layer_places WHERE layer_places.layer = layers.id)";
        self.execute_soon(Statement::other(SQL, [])).await
    }

    /// Bytes of an organisation's layers and of the images that it asked for, and the room that its volumes have. An image
    /// that several asked for counts for each of them.
    pub async fn stored_bytes(&self, organisation: &str) -> Result<Stored, Error> {
        const LAYERS: &str = "SELECT CAST(SUM(bytes) AS BIGINT) AS bytes, COUNT(*) AS layers FROM layers \
             WHERE organisation = $1 AND state <> 'going'";
        const IMAGES: &str = "SELECT CAST(SUM(bytes) AS BIGINT) FROM layers \
             WHERE organisation IS NULL AND state <> 'going' AND id IN (SELECT images.layer FROM images \
             JOIN image_names ON image_names.digest = images.digest WHERE image_names.organisation = $1)";
        const VOLUMES: &str =
            "SELECT CAST(SUM(size_limit) AS BIGINT) FROM volumes WHERE organisation = $1 AND state <> 'deleted'";
        let own = sqlx::query(LAYERS).bind(organisation).fetch_one(&self.reads).await?;
        let (layers, count): (Option<i64>, i64) = (own.try_get("bytes")?, own.try_get("layers")?);
        let images: Option<i64> = sqlx::query_scalar(IMAGES).bind(organisation).fetch_one(&self.reads).await?;
        let volumes: Option<i64> = sqlx::query_scalar(VOLUMES).bind(organisation).fetch_one(&self.reads).await?;
        let bytes = |sum: Option<i64>| sum.unwrap_or(0).unsigned_abs();
        let (layers, images, volumes) = (bytes(layers), bytes(images), bytes(volumes));
        Ok(Stored { count: count.unsigned_abs(), layers, images, volumes })
    }

    /// Forgets that an organisation asked for images that nothing of its own stands on, and images that nobody has asked for
    /// any more. Their layers go when the next sweep finds them.
    pub async fn forget_idle_images(&self, organisation: &str) -> Result<(), Error> {
        // Work, steps and sandboxes may be anybody's: they keep the name, for as long as they last.
        const NAMES: &str = "DELETE FROM image_names WHERE organisation = $1 AND NOT EXISTS (SELECT 1 FROM images \
             JOIN layer_uses ON layer_uses.layer = images.layer WHERE images.digest = image_names.digest \
             AND (layer_uses.user_kind IN ('work', 'step', 'sandbox') OR layer_uses.user_kind = 'build' \
             AND layer_uses.user_id IN (SELECT id FROM builds WHERE builds.organisation = $1)))";
        const NOBODYS: &str = "SELECT digest FROM images WHERE NOT EXISTS \
             (SELECT 1 FROM image_names WHERE image_names.digest = images.digest) ORDER BY last_used_at LIMIT 64";
        self.execute(Statement::other(NAMES, [organisation.into()])).await?;
        let digests: Vec<String> = sqlx::query_scalar(NOBODYS).fetch_all(&self.reads).await?;
        for digest in &digests {
            const ROW: &str = "DELETE FROM images WHERE digest = $1 AND NOT EXISTS \
                 (SELECT 1 FROM image_names WHERE image_names.digest = $1)";
            let change = Change::new(Statement::other(ROW, [digest.into()])).with([release(User::Image(digest))]);
            let _or_asked_for_meanwhile = self.write(change, None).await?;
        }
        Ok(())
    }

    /// Whether a registry has named this image to any organisation. `registry` is what names of it begin with.
    pub async fn is_image_of(&self, registry: &str, digest: &str) -> Result<bool, Error> {
        const SQL: &str =
            "SELECT COUNT(*) FROM image_names WHERE digest = $1 AND SUBSTR(reference, 1, LENGTH($2)) = $2";
        let count: i64 = sqlx::query_scalar(SQL).bind(digest).bind(registry).fetch_one(&self.reads).await?;
        Ok(count > 0)
    }

    /// An image that was pulled, with the use of its layer. `false` where the layer is going.
    pub async fn put_image(&self, image: &Pulled) -> Result<bool, Error> {
        const SQL: &str = "INSERT INTO images (digest, layer, bytes, pulled_at, last_used_at, body) \
             VALUES ($1, $2, $3, $4, $4, $5) ON CONFLICT (digest) DO UPDATE SET last_used_at = EXCLUDED.last_used_at";
        let values = [
            (&image.digest).into(),
            image.layer.to_string().into(),
            number(image.bytes).into(),
            image.pulled_at.as_millisecond().into(),
            to_body(image)?.into(),
        ];
        let used = uses(self.dialect, User::Image(&image.digest), &[image.layer]);
        let change = Change::all(Vec::from_iter([Statement::other(SQL, values)].into_iter().chain(used)));
        match self.carry_out(change, None).await {
            Ok(_) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub async fn image(&self, digest: &str) -> Result<Option<Pulled>, Error> {
        let body: Option<String> = sqlx::query_scalar("SELECT body FROM images WHERE digest = $1")
            .bind(digest)
            .fetch_optional(&self.reads)
            .await?;
        body.as_deref().map(from_body).transpose()
    }

    pub async fn touch_image(&self, digest: &str, now: i64) -> Result<(), Error> {
        const SQL: &str = "UPDATE images SET last_used_at = $1 WHERE digest = $2";
        self.execute_soon(Statement::other(SQL, [now.into(), digest.into()])).await?;
        Ok(())
    }

    /// Images that nobody has asked for since a time; some of them.
    pub async fn remove_old_images(&self, before: i64) -> Result<u64, Error> {
        const OLD: &str = "SELECT digest FROM images WHERE last_used_at < $1 ORDER BY last_used_at LIMIT 64";
        let digests: Vec<String> = sqlx::query_scalar(OLD).bind(before).fetch_all(&self.reads).await?;
        for digest in &digests {
            const ROW: &str = "DELETE FROM images WHERE digest = $1 AND last_used_at < $2";
            const NAMES: &str = "DELETE FROM image_names WHERE digest = $1";
            let change = Change::new(Statement::other(ROW, [digest.into(), before.into()]))
                .with([Statement::other(NAMES, [digest.into()]), release(User::Image(digest))]);
            let _or_used_meanwhile = self.write(change, None).await?;
        }
        Ok(digests.len() as u64)
    }

    /// What a name of a registry meant when it was last asked.
    pub async fn put_image_name(
        &self,
        organisation: &str,
        reference: &str,
        digest: &str,
        now: i64,
    ) -> Result<(), Error> {
        const SQL: &str = "INSERT INTO image_names (organisation, reference, digest, checked_at) \
             VALUES ($1, $2, $3, $4) ON CONFLICT (organisation, reference) \
             DO UPDATE SET digest = EXCLUDED.digest, checked_at = EXCLUDED.checked_at";
        let values = [organisation.into(), reference.into(), digest.into(), now.into()];
        self.execute(Statement::other(SQL, values)).await?;
        Ok(())
    }

    /// The digest, and when the registry was asked for it.
    pub async fn image_name(&self, organisation: &str, reference: &str) -> Result<Option<(String, Timestamp)>, Error> {
        const SQL: &str = "SELECT digest, checked_at FROM image_names WHERE organisation = $1 AND reference = $2";
        let row = sqlx::query(SQL).bind(organisation).bind(reference).fetch_optional(&self.reads).await?;
        row.map(|row| Ok((row.try_get("digest")?, from_millisecond(row.try_get("checked_at")?)))).transpose()
    }
}

/// What an organisation keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stored {
    /// How many layers of its own it has.
    pub count: u64,
    /// Bytes of templates, snapshots and the steps of builds.
    pub layers: u64,
    /// Bytes of images of registries.
    pub images: u64,
    /// Bytes that its volumes may hold.
    pub volumes: u64,
}

impl Stored {
    pub fn all(&self) -> u64 {
        self.layers.saturating_add(self.images).saturating_add(self.volumes)
    }
}

fn place(layer: &str, server: &str, provider: &str) -> Statement {
    const SQL: &str = "INSERT INTO layer_places (layer, server, provider) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING";
    Statement::other(SQL, [layer.into(), server.into(), provider.into()])
}

fn counted(server: &str) -> String {
    format!("layers counted/{server}")
}

fn number(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
