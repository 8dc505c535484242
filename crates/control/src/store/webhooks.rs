//! Webhooks in the store, and up to which event they are done.

use super::change::{Change, Statement};
use super::{Store, Written, from_body, to_body};
use crate::Error;
use crate::job::DELIVERY;
use crate::webhook::Webhook;

impl Store {
    pub async fn insert_webhook(&self, webhook: &Webhook) -> Result<(), Error> {
        self.execute(Statement::other(
            "INSERT INTO webhooks (id, organisation, created_at, body) VALUES ($1, $2, $3, $4)",
            [
                (&webhook.id).into(),
                (&webhook.organisation).into(),
                webhook.created_at.as_millisecond().into(),
                to_body(webhook)?.into(),
            ],
        ))
        .await?;
        Ok(())
    }

    /// The webhooks of one organisation, or of all.
    pub async fn webhooks(&self, organisation: Option<&str>) -> Result<Vec<Webhook>, Error> {
        let bodies: Vec<String> = match organisation {
            Some(organisation) => {
                sqlx::query_scalar("SELECT body FROM webhooks WHERE organisation = $1 ORDER BY created_at, id")
                    .bind(organisation)
                    .fetch_all(&self.reads)
                    .await?
            }
            None => {
                sqlx::query_scalar("SELECT body FROM webhooks ORDER BY created_at, id").fetch_all(&self.reads).await?
            }
        };
        bodies.iter().map(|body| from_body(body)).collect()
    }

    pub async fn webhook(&self, id: &str) -> Result<Option<Webhook>, Error> {
        let body: Option<String> =
            sqlx::query_scalar("SELECT body FROM webhooks WHERE id = $1").bind(id).fetch_optional(&self.reads).await?;
        body.as_deref().map(from_body).transpose()
    }

    /// With the deliveries to it that wait, for the first time or again. One that is under way finds no webhook when it is
    /// tried again.
    pub async fn delete_webhook(&self, organisation: &str, id: &str) -> Result<bool, Error> {
        const ROW: &str = "DELETE FROM webhooks WHERE organisation = $1 AND id = $2";
        const WAITING: &str =
            "DELETE FROM jobs WHERE kind = $1 AND state = 'queued' AND organisation = $2 AND subject = $3";
        let waiting = Statement::other(WAITING, [DELIVERY.into(), organisation.into(), id.into()]);
        let change = Change::new(Statement::other(ROW, [organisation.into(), id.into()])).with([waiting]);
        Ok(self.write(change, None).await? == Written::Done)
    }

    pub async fn cursor(&self, name: &str) -> Result<Option<i64>, Error> {
        Ok(sqlx::query_scalar("SELECT seq FROM cursors WHERE name = $1").bind(name).fetch_optional(&self.reads).await?)
    }

    /// Never moves back: of two servers the one that is further wins.
    pub async fn set_cursor(&self, name: &str, seq: i64) -> Result<(), Error> {
        self.execute(Statement::other(
            "INSERT INTO cursors (name, seq) VALUES ($1, $2) \
             ON CONFLICT (name) DO UPDATE SET seq = EXCLUDED.seq WHERE cursors.seq < EXCLUDED.seq",
            [name.into(), seq.into()],
        ))
        .await?;
        Ok(())
    }
}
