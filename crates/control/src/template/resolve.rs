//! From what a caller writes to what a sandbox starts from.
//!
//! ```text
//!   id ─────────────┐
//!   name, alias ────┼──▶ template ──tag──▶ build (ready) ──▶ image and defaults
//!   org/name ───────┘        └── name:BUILD ──▲
//! ```
//!
//! An organisation's own names come first, then the built-in ones. Another organisation's template is found by
//! `organisation/name` or by its id, if it is public; everything else does not exist.

use super::Template;
use super::name::{Chosen, Reference};
use super::record::{Kind, Record, Visibility};
use crate::build::{Build, Kind as BuildKind, State};
use crate::store::templates::TemplateFilter;
use crate::{App, Caller, Error, Scope};

/// Templates that a list without pages shows at most.
const LISTED: u32 = 1000;

impl App {
    /// What a sandbox starts from: a build that is ready, of a template that the caller may use.
    pub async fn template(&self, caller: &Caller, name: &str) -> Result<Template, Error> {
        let unknown = || Error::not_found("template", name);
        let reference = Reference::parse(name).map_err(|_| unknown())?;
        let Some(record) = self.find_template(caller, &reference).await? else {
            let built_in = self.built_in_template(&reference).await?.ok_or_else(unknown)?;
            if built_in.missing {
                let note = built_in.note.as_deref().unwrap_or_default();
                return Err(Error::Conflict(format!("template {} is {note}", built_in.name)));
            }
            return Ok(built_in);
        };
        let build = self.chosen_build(&record, &reference.chosen).await?.ok_or_else(unknown)?;
        let is_anothers_capture = build.kind == BuildKind::Capture && record.organisation != caller.organisation;
        let mut template = usable(&record, build)?;
        if is_anothers_capture {
            // Whoever shows a sandbox's files to everybody shows no secrets of its environment.
            template.env.clear();
        }
        Ok(template)
    }

    /// The template itself, whether it can be used or not; none that is built in.
    pub async fn template_record(&self, caller: &Caller, name: &str) -> Result<Record, Error> {
        let unknown = || Error::not_found("template", name);
        let reference = Reference::parse(name).map_err(|_| unknown())?;
        self.find_template(caller, &reference).await?.ok_or_else(unknown)
    }

    /// As [`App::own_template`]; operators may change what was built for everybody, too.
    pub(crate) async fn changeable_template(&self, caller: &Caller, name: &str) -> Result<Record, Error> {
        match self.own_template(caller, name).await {
            Err(Error::NotFound { .. }) if caller.may(Scope::Operator) => self.installed_record(name).await,
            found => found,
        }
    }

    /// As [`App::template_record`], of the caller's own alone.
    pub(crate) async fn own_template(&self, caller: &Caller, name: &str) -> Result<Record, Error> {
        let record = self.template_record(caller, name).await?;
        if record.organisation != caller.organisation {
            return Err(Error::not_found("template", name));
        }
        Ok(record)
    }

    /// For those who see a template in their list: in place of "does not exist", why nothing can be started from it, or
    /// that it is not theirs to change.
    pub(crate) async fn explained(&self, caller: &Caller, error: Error) -> Error {
        let Error::NotFound { kind: "template", id } = &error else { return error };
        let why = self.why_not(caller, id).await;
        match why {
            Ok(Some(why)) => Error::Conflict(why),
            _ => error,
        }
    }

    async fn why_not(&self, caller: &Caller, name: &str) -> Result<Option<String>, Error> {
        let Ok(reference) = Reference::parse(name) else { return Ok(None) };
        let Some(record) = self.find_template(caller, &reference).await? else {
            let built_in = self.built_in_template(&reference).await?;
            return Ok(built_in.map(|one| {
                format!("template {} is built in: it has no builds and no tags of yours, and stays", one.name)
            }));
        };
        let title = record.title();
        if record.organisation != caller.organisation || reference.chosen != Chosen::Default {
            return Ok(None);
        }
        let tags: Vec<String> = self.store().tags(&record.id).await?.into_iter().map(|tag| tag.tag).collect();
        if let Some(first) = tags.first() {
            return Ok(Some(format!(
                "template {title} has no tag `default`, and has {}; hint: write {title}:{first}",
                tags.join(", ")
            )));
        }
        let newest = self.store().builds_of_template(&record.id, None, 1).await?.items.pop();
        Ok(newest.and_then(|build| match build.state {
            State::Waiting | State::Building => {
                Some(format!("template {title} is being built; hint: cove template logs {title} --follow"))
            }
            State::Error => {
                let why = build.failure.map(|failure| format!(": {}", failure.message)).unwrap_or_default();
                Some(format!("the build of template {title} failed{why}; hint: cove template logs {title}"))
            }
            State::Cancelled => Some(format!("the build of template {title} was cancelled; build it again")),
            State::Ready => None,
        }))
    }

    /// Everything that the caller can start a sandbox from by its name alone.
    pub async fn list_templates(&self, caller: &Caller) -> Result<Vec<Template>, Error> {
        let mut all = Vec::new();
        let filter = TemplateFilter { kind: Kind::Built, ..TemplateFilter::default() };
        let records = self.store().list_templates(&caller.organisation, &filter, None, LISTED).await?.items;
        let ids: Vec<&str> = records.iter().map(|record| record.id.as_str()).collect();
        for (record, build) in records.iter().zip(self.store().current_builds(&ids).await?) {
            if let Some(Ok(template)) = build.map(|build| usable(record, build)) {
                all.push(template);
            }
        }
        let mut shown = self.built_in_templates().await?;
        shown.retain(|built_in| !built_in.missing && all.iter().all(|own| own.name != built_in.name));
        shown.extend(all);
        Ok(shown)
    }

    pub(super) async fn find_template(&self, caller: &Caller, reference: &Reference) -> Result<Option<Record>, Error> {
        let store = self.store();
        if let Some(organisation) = &reference.organisation {
            let found = store.template_by_name(organisation, &reference.name).await?;
            let found = match found {
                Some(record) => Some(record),
                // Of `organisation/ID` the id alone counts.
                None => self.template_by_live_id(&reference.name).await?,
            };
            return Ok(found
                .filter(|record| record.organisation == *organisation && record.is_visible_to(&caller.organisation)));
        }
        if let Some(record) = store.template_by_name(&caller.organisation, &reference.name).await? {
            return Ok(Some(record));
        }
        let found = self.template_by_live_id(&reference.name).await?;
        Ok(found.filter(|record| record.is_visible_to(&caller.organisation)))
    }

    async fn template_by_live_id(&self, id: &str) -> Result<Option<Record>, Error> {
        if id.len() != super::ID_LENGTH {
            return Ok(None);
        }
        let found = self.store().template_by_id(id).await?;
        Ok(found.filter(|record| record.deleted_at.is_none() && !record.is_built_in()))
    }

    /// The ready build that is meant.
    pub(crate) async fn chosen_build(&self, record: &Record, chosen: &Chosen) -> Result<Option<Build>, Error> {
        let id = match (chosen, chosen.tag()) {
            (Chosen::Build(id), _) => Some(id.clone()),
            (_, Some(tag)) => self.store().tagged(&record.id, tag).await?,
            (_, None) => None,
        };
        let Some(id) = id else { return Ok(None) };
        let build = self.store().build(&id).await?;
        Ok(build.filter(|build| build.template == record.id && build.state == State::Ready))
    }

    /// The provider of a new sandbox: the one that is asked for, else the one that has the template's files.
    pub(crate) fn provider_for(&self, template: &Template, asked: Option<&str>) -> Result<String, Error> {
        let bound = template.provider.as_deref().filter(|_| !template.image.root.over.is_empty());
        let provider = asked.or(bound).unwrap_or_else(|| self.default_provider());
        if let Some(bound) = bound.filter(|bound| *bound != provider) {
            return Err(Error::invalid(
                "provider",
                format!("the files of template {} are at provider {bound}", template.name),
            ));
        }
        if let Some(least) = template.isolation {
            self.check_isolation(provider, least)?;
        }
        Ok(provider.to_owned())
    }
}

/// A build as what a sandbox starts from. Where its files are on another server, they come when they are needed
/// (`peer/layers.rs`).
fn usable(record: &Record, build: Build) -> Result<Template, Error> {
    if record.inactive {
        return Err(Error::Conflict(format!("template {} is not active; activate it first", record.title())));
    }
    Ok(Template::of(record, build))
}

impl Template {
    /// A template with the build that was chosen.
    pub(crate) fn of(record: &Record, build: Build) -> Template {
        let defaults = build.defaults;
        Template {
            id: record.id.clone(),
            name: record.title().to_owned(),
            aliases: record.names.iter().skip(1).cloned().collect(),
            description: record.description.clone(),
            note: None,
            missing: false,
            image: build.image,
            limits: defaults.limits.unwrap_or_default(),
            env: defaults.env,
            user: defaults.user,
            cwd: defaults.cwd,
            start: defaults.start,
            ready: defaults.ready,
            isolation: defaults.isolation,
            interpreter: defaults.interpreter,
            organisation: Some(record.organisation.clone()),
            visibility: record.visibility,
            provider: Some(build.provider),
            build: Some(build.id),
            source_sandbox: build.source_sandbox,
            built_at: build.finished_at,
        }
    }

    pub fn is_public(&self) -> bool {
        self.organisation.is_none() || self.visibility == Visibility::Public
    }
}
