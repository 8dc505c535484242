//! Templates that were built for everybody: recipes (`recipe/`) that an operator had built.
//!
//! Each has a row of no organisation, with the recipe's name for its id, and builds of the organisation that ordered them.
//! The build that its tag `default` leads to is what everybody's sandboxes start from; a note tells `cove run` of it.

use super::built::{Built, Unusable, has_python};
use super::name::{Chosen, DEFAULT_TAG, Reference};
use super::record::{Kind, Record, Visibility};
use super::{Template, base};
use crate::build::{Build, State};
use crate::recipe::Recipe;
use crate::store::builds::Unfinished;
use crate::store::templates::Beside;
use crate::{App, Caller, Error};

/// Builds of one template that are looked at when a new one is ready.
const LOOKED_AT: u32 = 1000;

impl App {
    /// The row of a template that was built for everybody, or is being built.
    pub(super) async fn installed_record(&self, name: &str) -> Result<Record, Error> {
        let unknown = || Error::not_found("template", name);
        let reference = Reference::parse(name).map_err(|_| unknown())?;
        if reference.organisation.is_some() {
            return Err(unknown());
        }
        let found = self.store().template_by_name("", &reference.name).await?;
        found.filter(Record::is_built_in).ok_or_else(unknown)
    }

    /// The row for a recipe, made where there is none.
    pub(super) async fn ensure_installed_record(&self, recipe: &Recipe) -> Result<Record, Error> {
        let taken = || Error::Conflict(format!("another template has one of the names of recipe {}", recipe.name));
        if let Some(record) = self.store().template_by_id(&recipe.name).await? {
            return if record.is_built_in() { Ok(record) } else { Err(taken()) };
        }
        let now = self.now();
        let record = Record {
            id: recipe.name.clone(),
            organisation: String::new(),
            kind: Kind::Built,
            names: std::iter::once(recipe.name.clone()).chain(recipe.aliases.clone()).collect(),
            visibility: Visibility::Public,
            description: recipe.description.clone(),
            source_sandbox: None,
            inactive: false,
            door: serde_json::Value::Null,
            created_at: now,
            updated_at: now,
            deleted_at: None,
        };
        if self.store().insert_template(&record, None, Beside::default()).await? {
            return Ok(record);
        }
        // Another server made it at this moment, or another recipe has one of its names.
        let found = self.store().template_by_id(&recipe.name).await?;
        found.filter(Record::is_built_in).ok_or_else(taken)
    }

    /// A built-in template by name or alias; its only tag is `default`. One that is not built says so.
    pub(super) async fn built_in_template(&self, reference: &Reference) -> Result<Option<Template>, Error> {
        if reference.organisation.is_some() || reference.chosen.tag() != Some(DEFAULT_TAG) {
            return Ok(None);
        }
        // Most sandboxes start from it: nothing else is looked at.
        let base = base();
        if base.answers_to(&reference.name) {
            return Ok(Some(base));
        }
        if let Some(recipe) = self.recipes().find(&reference.name) {
            return Ok(Some(self.installed(recipe).await?));
        }
        // What was built stays usable without its recipe.
        match self.store().template_by_name("", &reference.name).await? {
            Some(record) => self.installed_build(&record).await.map(|build| build.map(|build| shown(&record, build))),
            None => Ok(None),
        }
    }

    /// All built-in templates, those that are not built too.
    pub(super) async fn built_in_templates(&self) -> Result<Vec<Template>, Error> {
        let mut all = vec![base()];
        for recipe in self.recipes().all.values() {
            all.push(self.installed(recipe).await?);
        }
        Ok(all)
    }

    /// What everybody's sandboxes of a recipe start from on this server.
    pub(crate) async fn installed(&self, recipe: &Recipe) -> Result<Template, Error> {
        let record = self.store().template_by_id(&recipe.name).await?.filter(Record::is_built_in);
        if let Some(record) = record
            && let Some(build) = self.installed_build(&record).await?
        {
            let python = build.defaults.python.clone();
            if has_python(&python) {
                return Ok(shown(&record, build));
            }
            let mut template = Template::of_recipe(recipe);
            template.lacks(recipe, &Unusable::OtherPython(recipe.name.clone(), python));
            return Ok(template);
        }
        let mut template = Template::of_recipe(recipe);
        match Built::load(&self.config().data, &recipe.name) {
            Ok(built) => {
                let python = built.python.clone();
                built.describe(&mut template);
                self.adopt_note(&mut template, python).await?;
            }
            Err(unusable) => template.lacks(recipe, &unusable),
        }
        Ok(template)
    }

    async fn installed_build(&self, record: &Record) -> Result<Option<Build>, Error> {
        self.chosen_build(record, &Chosen::Default).await
    }

    /// Writes the note of a build that is ready, and lets go of those before it. The template is usable without the note: a
    /// failure is logged, and the next start of the server writes it.
    pub(crate) async fn publish(&self, record: &Record, build: &Build) {
        if let Err(error) = self.write_down(record, build).await {
            tracing::warn!(template = record.id, %error, detail = error.detail(), "write a template's note for `cove run`");
        }
        if let Err(error) = self.forget_earlier(record, build).await {
            tracing::warn!(template = record.id, %error, detail = error.detail(), "remove a template's earlier builds");
        }
    }

    async fn write_down(&self, record: &Record, build: &Build) -> Result<(), Error> {
        let template = shown(record, build.clone());
        let note = Built {
            layers: build.image.root.over.clone(),
            under: Some(build.image.root.under),
            python: build.defaults.python.clone(),
            packages: Vec::new(),
            env: template.env,
            bytes: build.bytes,
            built_at: template.built_at.map(|at| at.to_string()).unwrap_or_default(),
            build: Some(build.id.clone()),
            aliases: template.aliases,
            description: Some(template.description),
            user: Some(template.user),
            cwd: template.cwd,
            start: template.start,
            ready: template.ready,
            limits: build.defaults.limits,
            isolation: template.isolation,
        };
        let (data, name) = (self.config().data.clone(), record.id.clone());
        let written = tokio::task::spawn_blocking(move || note.save(&data, &name)).await;
        let written = written.map_err(|error| Error::internal(format!("write a note: {error}")))?;
        written.map_err(|error| Error::internal(format!("write a note: {error}")))
    }

    /// Those that no sandbox stands on. What failed keeps its log.
    async fn forget_earlier(&self, record: &Record, build: &Build) -> Result<(), Error> {
        for other in self.store().builds_of_template(&record.id, None, LOOKED_AT).await?.items {
            let is_earlier = other.id != build.id && other.created_at <= build.created_at;
            // A sandbox that starts again looks for its start command there.
            if is_earlier && other.state == State::Ready && self.store().count_sandboxes_of_build(&other.id).await? == 0
            {
                self.store().remove_build(&other.id).await?;
            }
        }
        Ok(())
    }

    /// Nothing is started from it any more, until it is built again. Sandboxes keep what they stand on.
    pub(super) async fn forget_installed(&self, caller: &Caller, record: &Record) -> Result<(), Error> {
        for build in self.store().unfinished_builds(Unfinished::OfTemplate(&record.id)).await? {
            self.end_build(&build.id, "its template was deleted").await?;
        }
        let (data, name) = (self.config().data.clone(), record.id.clone());
        let removed = tokio::task::spawn_blocking(move || Built::remove(&data, &name)).await;
        let removed = removed.map_err(|error| Error::internal(format!("remove a note: {error}")))?;
        removed.map_err(|error| Error::internal(format!("remove a note: {error}")))?;
        for build in self.store().builds_of_template(&record.id, None, LOOKED_AT).await?.items {
            self.store().remove_build(&build.id).await?;
        }
        self.audit(caller, "template.delete", &record.id).await
    }

    /// Notes that a server did not come to write, and files that are no recipes.
    pub(crate) async fn look_at_recipes(&self) -> Result<(), Error> {
        let recipes = self.recipes();
        for bad in &recipes.bad {
            tracing::warn!("{bad}");
        }
        for recipe in recipes.all.values() {
            let Some(record) = self.store().template_by_id(&recipe.name).await?.filter(Record::is_built_in) else {
                continue;
            };
            let Some(build) = self.installed_build(&record).await? else { continue };
            let noted = Built::load(&self.config().data, &recipe.name).ok().and_then(|built| built.build);
            if build.server == self.server() && noted.as_ref() != Some(&build.id) {
                self.publish(&record, &build).await;
            }
        }
        Ok(())
    }
}

/// As everybody sees it.
fn shown(record: &Record, build: Build) -> Template {
    let description = build.note.clone();
    let template = Template::of(record, build);
    Template {
        description: description.unwrap_or_else(|| template.description.clone()),
        organisation: None,
        ..template
    }
}
