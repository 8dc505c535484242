//! Making a sandbox.
//!
//! The hot path: one write before the launch, one after. The row is there before the provider is asked, so that a
//! server that dies in between knows what to look for.

use cove_protocol::SandboxId;

use super::cause::Cause;
use super::housing::Choice;
use super::state::{Effect, Event};
use super::{IfExists, NetworkPolicy, NewSandbox, Repository, Sandbox, State, Timers};
use crate::border::field::{self, Characters};
use crate::border::shape;
use crate::git::{Cloning, Git};
use crate::interpreter::Warmth;
use crate::key::Quota;
use crate::ledger::{Claim, disk_of};
use crate::provider::Limits;
use crate::store::sandboxes::{Idempotency, Inserted};
use crate::template::Template;
use crate::{App, Caller, Error, Scope, random};

/// Names are for people and for host names.
const NAME_MAX: usize = 128;
const ENV_BYTES_MAX: usize = 128 << 10;

/// Characters of a URL, and of an image's name.
const LINE_MAX: usize = 4096;

/// What a creation came to.
pub(super) struct Housed {
    pub sandbox: Sandbox,
    /// It was not there before: a repeated request gets what the first one made.
    pub is_new: bool,
}

impl App {
    pub async fn create_sandbox(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, Error> {
        caller.require(Scope::Write)?;
        check(&new)?;
        if let Some(name) = &new.name {
            self.check_is_no_id(caller, name).await?;
        }
        if let Some(existing) = self.existing(caller, &new).await? {
            return Ok(existing);
        }
        let Housed { sandbox, is_new } = self.create_where_it_may_go(caller, &new).await?;
        match (new.repository, is_new) {
            (Some(repository), true) => self.with_repository(caller, sandbox, repository).await,
            _ => Ok(sandbox),
        }
    }

    /// One try at one provider.
    pub(super) async fn create_at(&self, caller: &Caller, new: &NewSandbox, choice: &Choice) -> Result<Housed, Error> {
        let template = self.origin_of(caller, new, choice.name()).await?;
        let provider = self.provider_by(choice, &template)?;
        let (sandbox, template) = self.draft_of(caller, new, template, provider).await?;
        let quota = self.quota(&caller.organisation).await?;
        let (app, caller, new) = (self.clone(), caller.clone(), new.clone());
        // The caller may hang up; what was begun is finished all the same.
        self.detached(async move {
            if app.may_be_pooled(&sandbox, &template)
                && let Some(sandbox) = app.take_from_pool(&caller, &sandbox, &new, &template).await?
            {
                return Ok(Housed { sandbox, is_new: true });
            }
            let place = app.ledger().reserve(&sandbox.organisation, &quota, disk_of(&sandbox))?;
            // Before a turn to launch is taken: what is on another server may take its time to come.
            let _layers = app.layers_here(&sandbox.provider, &sandbox.image.root).await?;
            let id = sandbox.id.clone();
            let made = match app.room_for(&sandbox).await {
                Ok(_turn) => app.make(&caller, sandbox, new, place, &quota).await,
                Err(error) => Err(error),
            };
            let is_new = made.as_ref().is_ok_and(|made| made.id == id);
            if !is_new {
                app.capacity().release(&id);
            }
            if let Ok(sandbox) = &made {
                app.prepare_interpreter(sandbox, &template);
                app.boot(sandbox, &template).await;
            }
            made.map(|sandbox| Housed { sandbox, is_new })
        })
        .await
    }

    /// Clones into a sandbox that was just made. One without what it was made for is of no use to anybody, and goes.
    async fn with_repository(
        &self,
        caller: &Caller,
        sandbox: Sandbox,
        repository: Repository,
    ) -> Result<Sandbox, Error> {
        let (app, caller) = (self.clone(), caller.clone());
        self.detached(async move {
            let (id, cwd) = (sandbox.id.clone(), sandbox.cwd.clone());
            let cloned = async {
                let (_, guest) = app.reach_into(sandbox.clone()).await?;
                let Repository { url, branch, path } = repository;
                let path = path.unwrap_or_else(|| name_of_repository(&url));
                let cloning = Cloning { url, path, branch, ..Cloning::default() };
                Git::new(guest, cwd).clone_repository(cloning).await.map_err(Error::from)
            };
            match cloned.await {
                Ok(()) => Ok(sandbox),
                Err(error) => {
                    if let Err(error) = app.destroy(&caller, id.as_str()).await {
                        tracing::warn!(sandbox = %id, %error, "remove a sandbox whose repository could not be cloned");
                    }
                    Err(match error {
                        Error::Invalid { field, message } if field == "git" => Error::invalid("git_url", message),
                        error => error,
                    })
                }
            }
        })
        .await
    }

    /// A name that is the id of another sandbox, or of one that is gone, would lead to that one: ids come first.
    pub(crate) async fn check_is_no_id(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        // Most names do not look like one, and cost nothing.
        let Ok(id) = name.parse::<SandboxId>() else { return Ok(()) };
        match self.store().sandbox_by_id(&id).await? {
            // Another organisation's does not exist, and hides nothing here.
            Some(found) if found.organisation == caller.organisation => {
                Err(Error::Conflict(format!("{name} is the id of a sandbox, and cannot be the name of another")))
            }
            _ => Ok(()),
        }
    }

    async fn existing(&self, caller: &Caller, new: &NewSandbox) -> Result<Option<Sandbox>, Error> {
        if new.if_exists == IfExists::Refuse {
            return Ok(None);
        }
        let Some(name) = &new.name else {
            return Err(Error::invalid("name", "get-or-create needs a name"));
        };
        let Some(found) = self.store().sandbox_by_name(&caller.organisation, name).await? else { return Ok(None) };
        let found = if found.state.is_in_transition() { self.settled(&found.id).await? } else { found };
        match found.state {
            State::Destroyed | State::Destroying => Ok(None),
            State::Running => Ok(Some(found)),
            _ if new.if_exists == IfExists::EnsureRunning => {
                let cause = Cause::requested("a running sandbox", self.now());
                Ok(Some(self.change_state(&found.id, Event::Start, cause).await?))
            }
            _ => Ok(Some(found)),
        }
    }

    pub(crate) async fn draft(&self, caller: &Caller, new: &NewSandbox) -> Result<(Sandbox, Template), Error> {
        let template = self.template(caller, new.template.as_deref().unwrap_or("base")).await?;
        let provider = self.provider_for(&template, new.provider.as_deref())?;
        self.draft_of(caller, new, template, provider).await
    }

    /// As [`App::draft`], of a template that was found and for a provider that was chosen.
    async fn draft_of(
        &self,
        caller: &Caller,
        new: &NewSandbox,
        template: Template,
        provider: String,
    ) -> Result<(Sandbox, Template), Error> {
        self.check_held(&provider, &new.limits)?;
        // What nobody asked for is never more than the organisation may have.
        let quota = self.quota(&caller.organisation).await?;
        let limits = new.limits.apply(quota.clamp(template.limits));
        self.check_limits(&caller.organisation, limits).await?;
        let now = self.now();
        let mut timers = self.default_timers();
        new.timers.apply(&mut timers, now);
        let mut env = template.env.clone();
        env.extend(new.env.clone());
        let volumes = self.find_mounts(caller, &provider, &new.volumes).await?;
        let id = new.id.clone().unwrap_or_else(random::sandbox_id);
        if let Some(name) = &new.id_variable {
            env.entry(name.clone()).or_insert_with(|| id.to_string());
        }
        let sandbox = Sandbox {
            id,
            organisation: caller.organisation.clone(),
            name: new.name.clone(),
            template: template.name.clone(),
            image: template.image.clone(),
            build: template.build.clone(),
            parent: None,
            clone_of: None,
            provider,
            handle: None,
            server: self.server().to_owned(),
            labels: new.labels.clone(),
            env,
            limits,
            network: new.network.clone(),
            volumes,
            checkpoints: new.checkpoints,
            timers,
            owner: new.owner.clone(),
            user: new.user.clone().unwrap_or_else(|| template.user.clone()),
            cwd: new.cwd.clone().or_else(|| template.cwd.clone()),
            public: new.public,
            state: State::Creating,
            cause: Cause::requested("a new sandbox", now),
            state_since: now,
            created_at: now,
            started_at: None,
            last_activity_at: now,
            updated_at: None,
            metered_from: now,
            access_token: random::token(),
            traffic_token: random::token(),
            door: new.door.clone(),
            pool: None,
            has_archive: false,
            manifest: None,
            sealing: false,
            generation: 0,
        };
        self.check_able(&sandbox)?;
        self.check_network(caller, &sandbox.network).await?;
        Ok((sandbox, template))
    }

    /// As the operator has them.
    fn default_timers(&self) -> Timers {
        let crate::config::Timers { lifetime_seconds, idle_seconds, idle_counts } = self.config().timers;
        let lifetime_seconds = (lifetime_seconds > 0).then_some(lifetime_seconds);
        Timers {
            deadline: lifetime_seconds.map(|seconds| crate::clock::after(self.now(), seconds)),
            lifetime_seconds,
            idle_seconds: (idle_seconds > 0).then_some(idle_seconds),
            idle_measure: idle_counts,
            ..Timers::default()
        }
    }

    async fn make(
        &self,
        caller: &Caller,
        sandbox: Sandbox,
        new: NewSandbox,
        mut place: Claim<'_>,
        quota: &Quota,
    ) -> Result<Sandbox, Error> {
        let _lock = self.locks().lock(&sandbox.id).await;
        let mut inserted = self.insert(caller, &sandbox, &new, quota).await?;
        if let (Inserted::Repeated(earlier), Some(key)) = (&inserted, &new.idempotency_key)
            && self.never_lived(earlier).await?
        {
            self.store().release_idempotency_key(&sandbox.organisation, key, earlier).await?;
            inserted = self.insert(caller, &sandbox, &new, quota).await?;
        }
        if matches!(inserted, Inserted::New) {
            place.is_written();
        }
        // What is there already was counted when it was made, and may need the place to start.
        drop(place);
        match inserted {
            Inserted::New => {
                let (id, handle, provider) = (sandbox.id.clone(), sandbox.handle(), sandbox.provider.clone());
                let made = self.launch_new(sandbox).await;
                // With a key the same request gets it when the database answers again; else nobody ever would.
                if new.idempotency_key.is_none() && made.as_ref().is_err_and(Error::is_of_the_database) {
                    self.nobody_knows(&id);
                    // Its row ends when the database answers again. Until then it does not run, however long that is.
                    if let Ok(provider) = self.provider(&provider)
                        && let Err(error) = provider.destroy(&handle).await
                    {
                        tracing::warn!(sandbox = %id, %error, "remove what nobody was told of, will be tried again");
                    }
                }
                made
            }
            Inserted::Repeated(earlier) => self.repeated(caller, &earlier).await,
            Inserted::NameTaken if new.if_exists != IfExists::Refuse => {
                // Lost a race with the same request: theirs is ours.
                self.existing(caller, &new).await?.ok_or_else(|| name_taken(&new))
            }
            Inserted::NameTaken => Err(name_taken(&new)),
            Inserted::KeyOfAnother => Err(Error::Conflict(format!(
                "the Idempotency-Key {:?} was used for another request; use a new one",
                new.idempotency_key.as_deref().unwrap_or_default()
            ))),
        }
    }

    async fn insert(
        &self,
        caller: &Caller,
        sandbox: &Sandbox,
        new: &NewSandbox,
        quota: &Quota,
    ) -> Result<Inserted, Error> {
        let asked = self.audit_entry(caller, "sandbox.create", sandbox.id.as_str());
        let fingerprint = new.fingerprint();
        let repeatable = new.idempotency_key.as_deref().map(|key| Idempotency { key, fingerprint: &fingerprint });
        self.store().insert_sandbox_asked(sandbox, repeatable, Some(&asked), Some(quota)).await
    }

    /// Whether a sandbox ended before its maker was told of it: its launch failed, or the server died at it.
    async fn never_lived(&self, id: &str) -> Result<bool, Error> {
        let id = id.parse().map_err(|_| Error::internal("idempotency key leads to no sandbox id"))?;
        let earlier = self.settled(&id).await?;
        Ok(matches!(earlier.state, State::Destroying | State::Destroyed) && earlier.started_at.is_none())
    }

    /// The first launch of a row that was just written. One that fails leaves nothing: nobody was told of it.
    pub(crate) async fn launch_new(&self, sandbox: Sandbox) -> Result<Sandbox, Error> {
        let made = self.pursue(sandbox, Effect::Launch).await?;
        match made.state {
            State::Running => Ok(made),
            state => Err(Error::Conflict(format!("sandbox {} became {state} while it was made", made.id))),
        }
    }

    /// A template for cells has its interpreter started while the caller still reads the answer. Should that fail, the
    /// first cell tries again and tells why.
    fn prepare_interpreter(&self, sandbox: &Sandbox, template: &Template) {
        let Ok(provider) = self.provider(&sandbox.provider) else { return };
        if !template.interpreter || sandbox.state != State::Running {
            return;
        }
        let (app, id, guest) = (self.clone(), sandbox.id.clone(), provider.guest(&sandbox.handle()));
        self.tasks().spawn(async move {
            if let Err(error) = app.interpreter().warm(&id, &guest, Warmth::Started).await {
                tracing::debug!(sandbox = %id, %error, "start the interpreter ahead of its first cell");
            }
        });
    }

    async fn repeated(&self, caller: &Caller, earlier: &str) -> Result<Sandbox, Error> {
        let id = earlier.parse().map_err(|_| Error::internal("idempotency key leads to no sandbox id"))?;
        self.settled(&id).await?;
        self.sandbox(caller, earlier).await
    }
}

fn name_taken(new: &NewSandbox) -> Error {
    Error::Conflict(format!("a sandbox named {:?} is there already", new.name.as_deref().unwrap_or_default()))
}

fn check(new: &NewSandbox) -> Result<(), Error> {
    if let Some(name) = &new.name {
        check_name(name)?;
    }
    check_labels(&new.labels)?;
    check_env(&new.env)?;
    new.owner.as_deref().map_or(Ok(()), check_owner)?;
    for (field, text) in [("user", &new.user), ("cwd", &new.cwd), ("template", &new.template)] {
        if let Some(text) = text {
            shape::judge_text(field, text, field::of(field).length, field::of(field).characters)?;
        }
    }
    let origins = [("template", &new.template), ("environment", &new.environment), ("image", &new.image)];
    let given: Vec<&str> = origins.iter().filter(|(_, text)| text.is_some()).map(|(field, _)| *field).collect();
    if let [first, second, ..] = given[..] {
        return Err(Error::invalid(second, format!("a sandbox starts from one thing, and {first} names one already")));
    }
    for (field, text) in &origins[1..] {
        if let Some(text) = text {
            check_line(field, text)?;
        }
    }
    if let Some(repository) = &new.repository {
        check_repository(repository, &new.network)?;
    }
    new.timers.check()?;
    if new.timers.lifetime_seconds == Some(Some(0)) {
        return Err(Error::invalid("lifetime_seconds", "must be greater than 0"));
    }
    if let Some(key) = &new.idempotency_key
        && (key.is_empty() || key.len() > 255)
    {
        return Err(Error::invalid("Idempotency-Key", "1 to 255 characters"));
    }
    Ok(())
}

pub(crate) fn check_name(name: &str) -> Result<(), Error> {
    let fits = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    if fits {
        return Ok(());
    }
    Err(Error::invalid("name", "1 to 128 letters, digits, '-', '_' and '.', not beginning with '-' or '.'"))
}

pub(crate) fn check_labels(labels: &std::collections::BTreeMap<String, String>) -> Result<(), Error> {
    if labels.len() > field::LABELS {
        return Err(Error::invalid("labels", format!("{} labels; at most {}", labels.len(), field::LABELS)));
    }
    for (key, value) in labels {
        if key.is_empty() {
            return Err(Error::invalid("labels", "a key has at least one character"));
        }
        shape::judge_text("labels", key, field::LABEL_KEY, Characters::Line)?;
        shape::judge_text(&format!("labels.{key}"), value, field::LABEL_VALUE, Characters::Text)?;
    }
    Ok(())
}

fn check_line(field: &str, text: &str) -> Result<(), Error> {
    if text.trim().is_empty() {
        return Err(Error::invalid(field, "must not be empty"));
    }
    Ok(shape::judge_text(field, text, LINE_MAX, Characters::Line)?)
}

fn check_repository(repository: &Repository, network: &NetworkPolicy) -> Result<(), Error> {
    check_line("git_url", &repository.url)?;
    for (field, text) in [("git_branch", &repository.branch), ("git_path", &repository.path)] {
        text.as_deref().map_or(Ok(()), |text| check_line(field, text))?;
    }
    let is_inside = repository.url.starts_with("file://") || repository.url.starts_with('/');
    if !is_inside && *network == NetworkPolicy::closed() {
        let message = "the sandbox has no network to clone by; hint: \"network\": {\"access\": \"open\"}";
        return Err(Error::invalid("git_url", message));
    }
    Ok(())
}

/// As git would call the folder: the last part of the URL, without `.git`.
fn name_of_repository(url: &str) -> String {
    let path = url.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let last = path.rsplit(['/', ':']).next().unwrap_or_default();
    let name = last.strip_suffix(".git").unwrap_or(last);
    let fits = !name.is_empty() && !name.starts_with(['.', '-']) && !name.contains('@');
    if fits { name.to_owned() } else { "repository".to_owned() }
}

/// Whom a sandbox is billed to.
fn check_owner(owner: &str) -> Result<(), Error> {
    Ok(shape::judge_text("owner", owner, field::OWNER, Characters::Line)?)
}

pub(crate) fn check_env(env: &std::collections::BTreeMap<String, String>) -> Result<(), Error> {
    if env.iter().map(|(key, value)| key.len() + value.len() + 2).sum::<usize>() > ENV_BYTES_MAX {
        return Err(Error::invalid("env", format!("at most {ENV_BYTES_MAX} bytes in all")));
    }
    let bad = env.iter().find(|(key, value)| key.is_empty() || key.contains(['=', '\0']) || value.contains('\0'));
    match bad {
        Some((key, _)) => Err(Error::invalid(format!("env.{key}"), "no empty name, '=' in a name, or NUL byte")),
        None => Ok(()),
    }
}

/// Process numbers are the whole host's. The local engine takes fewer where the host has few.
pub(crate) const MOST_PIDS: u32 = 32 << 10;

/// What every sandbox must have to work at all.
pub(crate) fn check_smallest(limits: Limits) -> Result<(), Error> {
    if !(limits.cpus.is_finite() && limits.cpus >= 0.01) {
        return Err(Error::invalid("limits.cpus", "at least 0.01"));
    }
    if limits.memory < 16 << 20 {
        return Err(Error::invalid("limits.memory", "at least 16 MiB"));
    }
    if limits.disk.is_some_and(|disk| disk < 1 << 20) {
        return Err(Error::invalid("limits.disk", "at least 1 MiB"));
    }
    if !(4..=MOST_PIDS).contains(&limits.pids) {
        return Err(Error::invalid("limits.pids", format!("4 to {MOST_PIDS}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_lies_in_a_folder_of_its_own_name() {
        for (url, name) in [
            ("https://example.com/acme/tools.git", "tools"),
            ("https://user:token@example.com/acme/tools/", "tools"),
            ("git@example.com:acme/tools.git", "tools"),
            ("https://example.com", "example.com"),
            ("https://example.com/.git", "repository"),
            ("https://user:token@", "repository"),
        ] {
            assert_eq!(name_of_repository(url), name, "{url}");
        }
    }

    #[test]
    fn a_clone_needs_a_way_out() {
        let repository = Repository { url: "https://example.com/a.git".into(), ..Repository::default() };
        assert!(check_repository(&repository, &NetworkPolicy::closed()).unwrap_err().to_string().contains("network"));
        check_repository(&repository, &NetworkPolicy::open()).unwrap();
        let inside = Repository { url: "/srv/a.git".into(), ..Repository::default() };
        check_repository(&inside, &NetworkPolicy::closed()).unwrap();
        assert!(!format!("{repository:?}").contains("example"), "a URL may have a password");
    }
}
