//! Tags: words that lead to one of a template's builds.

use super::name::{self, DEFAULT_TAG, Reference, TAGS_MAX};
use super::record::{Record, Tag};
use crate::build::Build;
use crate::{App, Caller, Error, Scope};

impl App {
    /// A template's tags, the newest first.
    pub async fn template_tags(&self, caller: &Caller, name: &str) -> Result<(Record, Vec<Tag>), Error> {
        let record = self.template_record(caller, name).await?;
        let tags = self.store().tags(&record.id).await?;
        Ok((record, tags))
    }

    /// The tags lead to the build that `target` (`name:tag`, `name:BUILD`) means. Returns them and the build.
    pub async fn assign_tags(
        &self,
        caller: &Caller,
        target: &str,
        tags: Vec<String>,
    ) -> Result<(Vec<String>, Build), Error> {
        caller.require(Scope::Write)?;
        // Said before it is looked for: a tag that is none is the caller's fault whatever the target is.
        let reference = Reference::parse(target)?;
        if tags.is_empty() {
            return Err(Error::invalid("tags", "at least one"));
        }
        let tags = name::tags(tags)?;
        let record = self.own_template(caller, target).await?;
        let build = self.chosen_build(&record, &reference.chosen).await?;
        let build = build.ok_or_else(|| Error::not_found("template", target))?;
        let there = self.store().tags(&record.id).await?;
        let new = tags.iter().filter(|tag| there.iter().all(|old| old.tag != **tag)).count();
        if there.len() + new > TAGS_MAX {
            return Err(Error::Quota { message: format!("a template has at most {TAGS_MAX} tags; remove some") });
        }
        let asked = self.audit_entry(caller, "template.tag", &record.id);
        self.store().assign_tags(&build, &tags, self.now().as_millisecond(), &asked).await?;
        Ok((tags, build))
    }

    /// The build stays; `default` stays too.
    pub async fn remove_tags(&self, caller: &Caller, name: &str, tags: Vec<String>) -> Result<(), Error> {
        caller.require(Scope::Write)?;
        if tags.is_empty() {
            return Err(Error::invalid("tags", "at least one"));
        }
        let tags = name::tags(tags)?;
        if tags.iter().any(|tag| tag == DEFAULT_TAG) {
            return Err(Error::invalid("tags", "the tag \"default\" cannot be removed"));
        }
        let record = self.own_template(caller, name).await?;
        let asked = self.audit_entry(caller, "template.untag", &record.id);
        self.store().remove_tags(&record.id, &tags, &asked).await
    }

    /// The tag, and its build where nothing else leads to it: no other tag, and no sandbox that was started from it.
    pub(super) async fn delete_tag(&self, caller: &Caller, record: &Record, tag: &str) -> Result<(), Error> {
        let unknown = || Error::not_found("template", format!("{}:{tag}", record.title()));
        let build = self.store().tagged(&record.id, tag).await?.ok_or_else(unknown)?;
        let asked = self.audit_entry(caller, "template.untag", &record.id);
        self.store().remove_tags(&record.id, &[tag.to_owned()], &asked).await?;
        let is_tagged = self.store().tags(&record.id).await?.iter().any(|other| other.build == build);
        if is_tagged || self.store().count_sandboxes_of_build(&build).await? > 0 {
            return Ok(());
        }
        self.forget_build(caller, record, &build).await
    }

    /// One build with its tags and its log. A sandbox that starts again looks for its start command there.
    pub(super) async fn delete_build(&self, caller: &Caller, record: &Record, id: &str) -> Result<(), Error> {
        let unknown = || Error::not_found("template", format!("{}:{id}", record.title()));
        let build = self.store().build(id).await?.filter(|build| build.template == record.id).ok_or_else(unknown)?;
        let users = self.store().count_sandboxes_of_build(&build.id).await?;
        if users > 0 {
            return Err(Error::Conflict(format!(
                "sandboxes that were started from build {id}: {users}; delete them first"
            )));
        }
        if !build.state.is_final() {
            self.end_build(&build.id, "it was deleted").await?;
        }
        self.forget_build(caller, record, &build.id).await
    }

    /// The template goes with its last build.
    async fn forget_build(&self, caller: &Caller, record: &Record, id: &str) -> Result<(), Error> {
        self.audit(caller, "template.delete_build", id).await?;
        self.store().remove_build(id).await?;
        match self.store().count_builds(&record.id).await? {
            0 => self.delete_record(caller, record).await,
            _ => Ok(()),
        }
    }
}
