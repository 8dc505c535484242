//! What an organisation has that does not go with it.
//!
//! Rows about the past (usage, audit, journals) stay under its id, which nobody gets again. What has files must go first:
//! the operator is told what there is, and may have it deleted by force. Sandboxes are destroyed by name alone.

use crate::store::templates::TemplateFilter;
use crate::template::{Kind, Record};
use crate::{App, Caller, Error};

/// Names of each kind that a refusal tells.
const TOLD: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Belongings {
    pub sandboxes: Vec<String>,
    pub templates: Vec<String>,
    pub snapshots: Vec<String>,
    pub volumes: Vec<String>,
}

impl Belongings {
    /// Why the organisation cannot go, and what to do about it.
    pub fn refusal(&self, organisation: &str) -> String {
        let kinds = [
            ("sandbox", "sandboxes", &self.sandboxes),
            ("template", "templates", &self.templates),
            ("snapshot", "snapshots", &self.snapshots),
            ("volume", "volumes", &self.volumes),
        ];
        let told: Vec<String> = kinds.into_iter().filter_map(|(one, many, names)| told(one, many, names)).collect();
        let what = if told.is_empty() { "something that was just made".to_owned() } else { told.join(", ") };
        let remedy = match self.sandboxes.is_empty() {
            true => "delete them, or delete the organisation with force=true, which deletes them too",
            false => "destroy its sandboxes first",
        };
        format!("organisation {organisation} has {what}; {remedy}")
    }
}

/// "2 volumes (data, cache)"; `None` where there are none.
fn told(one: &str, many: &str, names: &[String]) -> Option<String> {
    let noun = match names.len() {
        0 => return None,
        1 => one,
        _ => many,
    };
    let more = if names.len() > TOLD { ", …" } else { "" };
    let first: Vec<&str> = names.iter().take(TOLD).map(String::as_str).collect();
    Some(format!("{} {noun} ({}{more})", names.len(), first.join(", ")))
}

impl App {
    pub(super) async fn belongings(&self, organisation: &str) -> Result<Belongings, Error> {
        let titles =
            |records: Vec<Record>| -> Vec<String> { records.iter().map(|record| record.title().to_owned()).collect() };
        let volumes = self.store().volumes(organisation, false).await?;
        Ok(Belongings {
            sandboxes: self.store().sandbox_titles(organisation).await?,
            templates: titles(self.records(organisation, Kind::Built).await?),
            snapshots: titles(self.records(organisation, Kind::Snapshot).await?),
            volumes: volumes.into_iter().map(|volume| volume.name).collect(),
        })
    }

    /// Deletes templates, snapshots and volumes, as one of the organisation's own keys would. Nothing is deleted while there
    /// are sandboxes.
    pub(super) async fn delete_belongings(&self, operator: &Caller, organisation: &str) -> Result<(), Error> {
        let sandboxes = self.store().sandbox_titles(organisation).await?;
        if !sandboxes.is_empty() {
            return Err(Error::Conflict(Belongings { sandboxes, ..Belongings::default() }.refusal(organisation)));
        }
        // Its audit log says who did it.
        let caller = Caller { organisation: organisation.to_owned(), ..operator.clone() };
        for kind in [Kind::Built, Kind::Snapshot] {
            for record in self.records(organisation, kind).await? {
                unless_gone(self.delete_record(&caller, &record).await)?;
            }
        }
        for volume in self.store().volumes(organisation, false).await? {
            unless_gone(self.delete_volume(&caller, volume.id.as_str()).await)?;
        }
        Ok(())
    }

    /// All of the organisation's own.
    async fn records(&self, organisation: &str, kind: Kind) -> Result<Vec<Record>, Error> {
        let filter = TemplateFilter { kind, ..TemplateFilter::default() };
        let (mut all, mut cursor): (Vec<Record>, Option<String>) = (Vec::new(), None);
        loop {
            let page = self.store().list_templates(organisation, &filter, cursor.as_deref(), 1000).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => cursor = Some(next),
                None => return Ok(all),
            }
        }
    }
}

/// Somebody else may have been quicker.
fn unless_gone(done: Result<(), Error>) -> Result<(), Error> {
    match done {
        Err(Error::NotFound { .. }) => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_refusal_names_what_there_is_and_what_to_do() {
        let volumes = names(&["a", "b", "c", "d"]);
        let kept = Belongings { templates: names(&["web"]), volumes, ..Belongings::default() };
        assert_eq!(
            kept.refusal("acme"),
            "organisation acme has 1 template (web), 4 volumes (a, b, c, …); delete them, or delete the organisation \
             with force=true, which deletes them too"
        );
        let running = Belongings { sandboxes: names(&["box", "other"]), ..kept }.refusal("acme");
        assert!(running.starts_with("organisation acme has 2 sandboxes (box, other), 1 template (web)"), "{running}");
        assert!(running.ends_with("; destroy its sandboxes first"), "{running}");
    }
}
