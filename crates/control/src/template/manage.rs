//! Making, changing, listing and deleting templates. Their files are made by builds.

use super::name::{self, Chosen, Reference, check_name};
use super::record::{Kind, Record, Visibility};
use super::{Tag, base, built};
use crate::border::field::Characters;
use crate::border::shape;
use crate::build::{Build, Defaults, Kind as BuildKind, Origin, State};
use crate::event::{Kind as EventKind, NewEvent};
use crate::provider::{Image, Isolation, Limits};
use crate::sandbox::{LimitsChange, Listed};
use crate::store::Written;
use crate::store::builds::Unfinished;
use crate::store::templates::{Around, Beside, TemplateFilter};
use crate::{App, Caller, Error, Scope, random};

/// Aliases of one template.
const ALIASES_MAX: usize = 16;
const DESCRIPTION_MAX: usize = 1000;
/// Templates of one organisation, snapshots too.
const TEMPLATES_MAX: i64 = 100_000;
/// Builds of one organisation that wait to be started; an older one has been forgotten.
const WAITING_MAX: usize = 100;

/// A template to be built. One that has the name gets another build.
#[derive(Debug, Clone, Default)]
pub struct NewTemplate {
    /// `name` or `name:tag`.
    pub name: String,
    pub tags: Vec<String>,
    pub aliases: Vec<String>,
    pub description: Option<String>,
    pub visibility: Option<Visibility>,
    pub limits: LimitsChange,
    /// Limits that nobody asked for: what cannot be held of them is left out, what exceeds a quota is cut.
    pub usual_limits: LimitsChange,
    /// The weakest isolation that its sandboxes may have.
    pub isolation: Option<Isolation>,
    pub provider: Option<String>,
    /// The recipe that it is built of. Such a template may have the recipe's own names; where an operator builds it under
    /// the recipe's name, it is everybody's.
    pub recipe: Option<String>,
    /// For cells: its sandboxes start their interpreter ahead.
    pub interpreter: bool,
    /// Its files are for the version of Python that this machine has.
    pub host_python: bool,
    /// A word about this build.
    pub note: Option<String>,
    /// What a door remembers of its own.
    pub door: serde_json::Value,
}

/// Parts of a template to change; what is `None` stays.
#[derive(Debug, Clone, Default)]
pub struct TemplateChange {
    pub name: Option<String>,
    pub aliases: Option<Vec<String>>,
    pub description: Option<String>,
    pub visibility: Option<Visibility>,
    /// Whether sandboxes may be started from it.
    pub active: Option<bool>,
}

/// A template as its owner sees it: with its tags and its builds.
#[derive(Debug, Clone, PartialEq)]
pub struct Overview {
    pub record: Record,
    pub tags: Vec<Tag>,
    /// The build that its name leads to.
    pub current: Option<Build>,
    /// The build that was made last, in whatever state it is.
    pub newest: Option<Build>,
    pub builds: u64,
}

impl App {
    /// A template and a build of it that waits to be started.
    pub async fn create_template(&self, caller: &Caller, new: NewTemplate) -> Result<(Record, Build), Error> {
        caller.require(Scope::Write)?;
        let reference = Reference::parse(&new.name)?;
        let mut tags = new.tags.clone();
        match &reference.chosen {
            Chosen::Default => {}
            Chosen::Tag(tag) => tags.insert(0, tag.clone()),
            Chosen::Build(_) => return Err(Error::invalid("name", "a tag, not a build, follows the colon")),
        }
        let tags = name::tags(tags)?;
        if reference.organisation.as_ref().is_some_and(|organisation| *organisation != caller.organisation) {
            return Err(Error::Forbidden(
                "a template is made in one's own organisation; leave out what is before the slash".into(),
            ));
        }
        let recipe = new.recipe.as_deref();
        self.check_not_built_in(&reference.name, recipe)?;
        let provider = new.provider.clone().unwrap_or_else(|| self.default_provider().to_owned());
        let defaults = self.asked_defaults(caller, &provider, &new).await?;
        let build = |template: &str| Build {
            note: new.note.clone(),
            ..self.new_build(caller, template, BuildKind::Steps, &provider, tags.clone(), defaults.clone())
        };
        if self.store().unfinished_builds(Unfinished::OfOrganisation(&caller.organisation)).await?.len() >= WAITING_MAX
        {
            return Err(Error::Quota {
                message: format!("the organisation has {WAITING_MAX} builds that are not finished; wait for some"),
            });
        }
        // Of two who make the same name at once, the second finds the first's.
        for _ in 0..2 {
            if let Some(record) = self.store().template_by_name(&caller.organisation, &reference.name).await? {
                let build = build(&record.id);
                let asked = self.audit_entry(caller, "template.build", &record.id);
                self.store().insert_build(&build, Beside { audit: Some(&asked), event: None }).await?;
                return Ok((record, build));
            }
            let own = reference.organisation.is_some();
            if recipe == Some(reference.name.as_str()) && !own && caller.may(Scope::Operator) {
                if tags != [name::DEFAULT_TAG] {
                    let message = "what is built for everybody has no tag but default; give it a name of your own";
                    return Err(Error::invalid("tags", message));
                }
                let recipes = self.recipes();
                let record = self.ensure_installed_record(recipes.wanted(&reference.name)?).await?;
                let build = build(&record.id);
                let asked = self.audit_entry(caller, "template.build", &record.id);
                self.store().insert_build(&build, Beside { audit: Some(&asked), event: None }).await?;
                return Ok((record, build));
            }
            let record = self.new_record(caller, &reference.name, &new)?;
            self.check_template_count(&caller.organisation).await?;
            let build = build(&record.id);
            let asked = self.audit_entry(caller, "template.create", &record.id);
            let beside = Beside { audit: Some(&asked), event: None };
            if self.store().insert_template(&record, Some(&build), beside).await? {
                return Ok((record, build));
            }
        }
        Err(Error::Conflict(format!("a template has one of the names of {:?} already", reference.name)))
    }

    fn new_record(&self, caller: &Caller, name: &str, new: &NewTemplate) -> Result<Record, Error> {
        let now = self.now();
        let description = new.description.clone().unwrap_or_default();
        check_description(&description)?;
        Ok(Record {
            id: random::template_id(),
            organisation: caller.organisation.clone(),
            kind: Kind::Built,
            names: self.names(name, &new.aliases, new.recipe.as_deref())?,
            visibility: new.visibility.unwrap_or_default(),
            description,
            source_sandbox: None,
            inactive: false,
            door: new.door.clone(),
            created_at: now,
            updated_at: now,
            deleted_at: None,
        })
    }

    /// The name and then the aliases, each once; of a template that is built of this recipe.
    fn names(&self, name: &str, aliases: &[String], recipe: Option<&str>) -> Result<Vec<String>, Error> {
        let mut names = vec![name.to_lowercase()];
        for alias in aliases {
            let alias = alias.trim().to_lowercase();
            if !names.contains(&alias) {
                names.push(alias);
            }
        }
        if names.len() > ALIASES_MAX + 1 {
            return Err(Error::invalid("aliases", format!("at most {ALIASES_MAX}")));
        }
        for name in &names {
            check_name(name)?;
            self.check_not_built_in(name, recipe)?;
        }
        Ok(names)
    }

    /// A built-in name that always works means the same to everybody, unless it is built of that recipe. Names of other
    /// recipes are free: an organisation's own template comes first.
    pub(crate) fn check_not_built_in(&self, name: &str, of: Option<&str>) -> Result<(), Error> {
        let recipes = self.recipes();
        let mut reserved = recipes.all.values().filter(|recipe| recipe.until_built && of != Some(recipe.name.as_str()));
        if base().answers_to(name) || reserved.any(|recipe| recipe.answers_to(name)) {
            return Err(Error::Conflict(format!("{name:?} is the name of a built-in template; choose another")));
        }
        Ok(())
    }

    pub(crate) async fn check_template_count(&self, organisation: &str) -> Result<(), Error> {
        if self.store().count_templates(organisation).await? >= TEMPLATES_MAX {
            return Err(Error::Quota {
                message: format!("the organisation has its maximum of {TEMPLATES_MAX} templates; delete some"),
            });
        }
        Ok(())
    }

    /// Defaults that a caller asked for; what sandboxes may not have is refused at once.
    async fn asked_defaults(&self, caller: &Caller, provider: &str, new: &NewTemplate) -> Result<Defaults, Error> {
        self.check_held(provider, &new.limits)?;
        if let Some(least) = new.isolation {
            self.check_isolation(provider, least)?;
        }
        let quota = self.quota(&caller.organisation).await?;
        let limits = new.limits.apply(quota.clamp(new.usual_limits.apply(Limits::default())));
        self.check_limits(&caller.organisation, limits).await?;
        let limits = (!new.limits.is_empty() || !new.usual_limits.is_empty()).then_some(limits);
        let python = if new.host_python { built::host_python() } else { String::new() };
        Ok(Defaults {
            limits,
            isolation: new.isolation,
            interpreter: new.interpreter,
            python,
            user: "user".into(),
            ..Defaults::default()
        })
    }

    /// Refuses a provider that isolates less than a template demands.
    pub(crate) fn check_isolation(&self, provider: &str, least: Isolation) -> Result<(), Error> {
        let has = self.provider(provider)?.capabilities().isolation;
        if has >= least {
            return Ok(());
        }
        let word = |isolation: Isolation| {
            serde_json::to_value(isolation).ok().and_then(|value| value.as_str().map(ToOwned::to_owned))
        };
        Err(Error::Unsupported(format!(
            "provider {provider} isolates by {}, and the template demands {} at least",
            word(has).unwrap_or_default(),
            word(least).unwrap_or_default()
        )))
    }

    pub(crate) fn new_build(
        &self,
        caller: &Caller,
        template: &str,
        kind: BuildKind,
        provider: &str,
        tags: Vec<String>,
        defaults: Defaults,
    ) -> Build {
        Build {
            id: random::uuid(),
            template: template.to_owned(),
            organisation: caller.organisation.clone(),
            kind,
            state: State::Waiting,
            server: self.server().to_owned(),
            provider: provider.to_owned(),
            tags,
            image: Image::default(),
            delta: None,
            defaults,
            source_sandbox: None,
            parent_build: None,
            origin: Origin::Asked,
            note: None,
            bytes: 0,
            failure: None,
            created_at: self.now(),
            started_at: None,
            finished_at: None,
            last_used_at: None,
            generation: 0,
        }
    }

    /// Templates of the organisation, those that cannot be used yet too; newest first.
    pub async fn catalogue(
        &self,
        caller: &Caller,
        filter: &TemplateFilter,
        cursor: Option<&str>,
        limit: u32,
    ) -> Result<Listed<Overview>, Error> {
        let page = self.store().list_templates(&caller.organisation, filter, cursor, limit).await?;
        Ok(Listed { items: self.overviews(page.items).await?, next: page.next })
    }

    /// One template with its tags and its latest build.
    pub async fn template_overview(&self, caller: &Caller, name: &str) -> Result<Overview, Error> {
        let record = self.template_record(caller, name).await?;
        self.overview(record).await
    }

    /// As [`App::template_overview`], of one that the caller may change.
    pub(crate) async fn changeable_overview(&self, caller: &Caller, name: &str) -> Result<Overview, Error> {
        let record = self.changeable_template(caller, name).await?;
        self.overview(record).await
    }

    pub(crate) async fn overview(&self, record: Record) -> Result<Overview, Error> {
        let Around { tags, current, newest, builds } =
            self.store().around_templates(&[&record.id]).await?.pop().unwrap_or_default();
        Ok(Overview { record, tags, current, newest, builds })
    }

    /// The same of many, in their order: it costs as much as of one.
    async fn overviews(&self, records: Vec<Record>) -> Result<Vec<Overview>, Error> {
        let ids: Vec<&str> = records.iter().map(|record| record.id.as_str()).collect();
        let around = self.store().around_templates(&ids).await?;
        let both = records.into_iter().zip(around);
        let overview =
            |(record, Around { tags, current, newest, builds })| Overview { record, tags, current, newest, builds };
        Ok(both.map(overview).collect())
    }

    /// Another name, other aliases, another visibility.
    pub async fn update_template(&self, caller: &Caller, name: &str, change: TemplateChange) -> Result<Record, Error> {
        caller.require(Scope::Write)?;
        let mut record = self.own_template(caller, name).await?;
        if change.name.is_some() || change.aliases.is_some() {
            let first = change.name.clone().or_else(|| record.names.first().cloned());
            let aliases = change.aliases.unwrap_or_else(|| record.names.iter().skip(1).cloned().collect());
            let first = first.ok_or_else(|| Error::invalid("name", "a template with aliases has a name"))?;
            // Names that it has as the template of a recipe are no others' to take, and its own to keep.
            let kept = record.names.clone();
            let recipe =
                self.recipes().all.values().find(|recipe| kept.contains(&recipe.name)).map(|one| one.name.clone());
            record.names = self.names(&first, &aliases, recipe.as_deref())?;
        }
        if let Some(description) = change.description {
            check_description(&description)?;
            record.description = description;
        }
        record.visibility = change.visibility.unwrap_or(record.visibility);
        record.inactive = change.active.map_or(record.inactive, |active| !active);
        record.updated_at = self.now();
        let asked = self.audit_entry(caller, "template.update", &record.id);
        match self.store().update_template(&record, Beside { audit: Some(&asked), event: None }).await? {
            Some(Written::Done) => Ok(record),
            Some(Written::Overtaken) => Err(Error::not_found("template", name)),
            None => Err(Error::Conflict("a template has one of these names already".into())),
        }
    }

    /// Its names are free and nothing is started from it any more. Sandboxes that were keep what they stand on. With a tag
    /// or a build after the colon, that one alone goes.
    pub async fn delete_template(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        caller.require(Scope::Write)?;
        let unknown = || Error::not_found("template", name);
        let reference = Reference::parse(name).map_err(|_| unknown())?;
        let record = self.changeable_template(caller, name).await?;
        if record.is_built_in() {
            // Its only tag is `default`.
            if reference.chosen.tag() != Some(name::DEFAULT_TAG) {
                return Err(unknown());
            }
            return self.forget_installed(caller, &record).await;
        }
        match &reference.chosen {
            Chosen::Default => self.delete_record(caller, &record).await,
            Chosen::Tag(tag) => self.delete_tag(caller, &record, tag).await,
            Chosen::Build(id) => self.delete_build(caller, &record, id).await,
        }
    }

    pub(crate) async fn delete_record(&self, caller: &Caller, record: &Record) -> Result<(), Error> {
        for build in self.store().unfinished_builds(Unfinished::OfTemplate(&record.id)).await? {
            self.end_build(&build.id, "its template was deleted").await?;
        }
        let (action, kind) = match record.kind {
            Kind::Built => ("template.delete", EventKind::TemplateDeleted),
            Kind::Snapshot | Kind::Checkpoints => ("snapshot.delete", EventKind::SnapshotDeleted),
        };
        let asked = self.audit_entry(caller, action, &record.id);
        let event = self.template_event(record, None, kind);
        let beside = Beside { audit: Some(&asked), event: Some(&event) };
        let now = self.now().as_millisecond();
        match self.store().delete_template(&record.id, now, beside).await? {
            Written::Done => Ok(()),
            Written::Overtaken => Err(Error::not_found("template", record.title())),
        }
    }

    pub(crate) fn template_event(&self, record: &Record, build: Option<&Build>, kind: EventKind) -> NewEvent {
        // What is everybody's is told to whoever had it built.
        let builder = build.filter(|_| record.is_built_in()).map(|build| &build.organisation);
        NewEvent {
            organisation: builder.unwrap_or(&record.organisation).clone(),
            sandbox: build.and_then(|build| build.source_sandbox.clone()).or_else(|| record.source_sandbox.clone()),
            kind,
            at: self.now(),
            data: serde_json::json!({
                "template": record.id,
                "name": record.names.first(),
                "build": build.map(|build| &build.id),
                "tags": build.map(|build| &build.tags),
                "failure": build.and_then(|build| build.failure.as_ref()),
            }),
        }
    }
}

fn check_description(description: &str) -> Result<(), Error> {
    Ok(shape::judge_text("description", description, DESCRIPTION_MAX, Characters::Text)?)
}
