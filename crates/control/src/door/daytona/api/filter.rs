//! Which sandboxes a list is about. Every filter that an SDK can send is served, and one that means nothing is an error:
//! a list must never show more than was asked for.

use std::collections::BTreeMap;

use super::find::Item;
use crate::Caller;
use crate::clock::Timestamp;
use crate::door::daytona::Door;
use crate::door::daytona::problem::{Answer, Problem};
use crate::door::daytona::query::Pairs;
use crate::door::daytona::view::{self, CLASS, REGION};
use crate::sandbox::{Expiry, Filter, Order, Sandbox, State};

pub struct Wanted {
    /// What the store looks for.
    pub filter: Filter,
    pub order: Order,
    pub sort: Sort,
    /// What was asked for can be nobody: another region, a snapshot that is not there.
    pub nothing: bool,
    /// It can be nobody who is there: states alone that one has who waits for an image.
    pub none_made: bool,
    /// The states that were asked for, in the dialect's words; all where absent.
    words: Option<Vec<String>>,
    id_prefix: Option<String>,
    templates: Vec<String>,
    sizes: Vec<Size>,
    public: Option<bool>,
    recoverable: Option<bool>,
    changed: Span,
    destroyed_at: Span,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    Created,
    Name,
    Cpu,
    Memory,
    Disk,
    LastActivity,
    Updated,
    State,
    Snapshot,
    /// There is one region.
    Region,
}

impl Sort {
    const WORDS: [(&'static str, Sort); 12] = [
        ("createdAt", Sort::Created),
        ("name", Sort::Name),
        ("cpu", Sort::Cpu),
        ("memoryGib", Sort::Memory),
        ("memoryGiB", Sort::Memory),
        ("diskGib", Sort::Disk),
        ("diskGiB", Sort::Disk),
        ("lastActivityAt", Sort::LastActivity),
        ("updatedAt", Sort::Updated),
        ("state", Sort::State),
        ("snapshot", Sort::Snapshot),
        ("region", Sort::Region),
    ];

    /// Smallest first; those that are alike stay as they are.
    pub fn put_in_order(self, items: &mut [Item]) {
        let shown = |Item { sandbox, .. }: &Item| sandbox.name.clone().unwrap_or_else(|| sandbox.id.to_string());
        match self {
            Sort::Created | Sort::Region => {}
            Sort::Name => items.sort_by_key(shown),
            Sort::Cpu => items.sort_by(|one, other| one.sandbox.limits.cpus.total_cmp(&other.sandbox.limits.cpus)),
            Sort::Memory => items.sort_by_key(|item| item.sandbox.limits.memory),
            Sort::Disk => items.sort_by_key(|item| item.sandbox.limits.disk),
            Sort::LastActivity => items.sort_by_key(|item| item.sandbox.last_activity_at),
            Sort::Updated => items.sort_by_key(|item| view::updated_at(&item.sandbox)),
            Sort::State => items.sort_by_key(Item::state),
            Sort::Snapshot => items.sort_by_key(|item| item.sandbox.template.clone()),
        }
    }
}

/// A bound of cpu, memory, disk or GPUs, as they are shown.
struct Size {
    of: fn(&Sandbox) -> u64,
    least: Option<f64>,
    most: Option<f64>,
}

#[derive(Default)]
struct Span {
    after: Option<Timestamp>,
    before: Option<Timestamp>,
}

impl Span {
    fn read(pairs: &Pairs, after: &'static str, before: &'static str) -> Answer<Span> {
        Ok(Span { after: pairs.time(after)?, before: pairs.time(before)? })
    }

    fn holds(&self, at: Option<Timestamp>) -> bool {
        match at {
            Some(at) => self.after.is_none_or(|after| at >= after) && self.before.is_none_or(|before| at <= before),
            None => self.after.is_none() && self.before.is_none(),
        }
    }
}

impl Wanted {
    /// What the store cannot look for.
    pub fn keeps(&self, sandbox: &Sandbox) -> bool {
        let is = |wanted: Option<bool>, is: bool| wanted.is_none_or(|wanted| wanted == is);
        let fits = |size: &Size| {
            let amount = (size.of)(sandbox) as f64;
            size.least.is_none_or(|least| amount >= least) && size.most.is_none_or(|most| amount <= most)
        };
        let destroyed_at = sandbox.timers.deadline.filter(|_| sandbox.timers.at_deadline == Expiry::Destroy);
        self.id_prefix.as_ref().is_none_or(|prefix| sandbox.id.as_str().starts_with(prefix))
            && (self.templates.is_empty() || self.templates.contains(&sandbox.template))
            && self.sizes.iter().all(fits)
            && is(self.public, sandbox.public)
            && is(self.recoverable, sandbox.state == State::Failed)
            && self.changed.holds(Some(view::updated_at(sandbox)))
            && self.destroyed_at.holds(destroyed_at)
    }
}

impl Wanted {
    /// The same for one that waits for its image, which the store does not look for.
    pub fn keeps_waiting(&self, item: &Item) -> bool {
        let (sandbox, filter) = (&item.sandbox, &self.filter);
        let begins = |prefix: &String| {
            let name = sandbox.name.as_deref().unwrap_or_default().to_lowercase();
            name.starts_with(&prefix.to_lowercase())
        };
        self.words.as_ref().is_none_or(|words| words.iter().any(|word| word == item.state()))
            && filter.name_prefix.as_ref().is_none_or(begins)
            && filter.labels.iter().all(|(label, value)| sandbox.labels.get(label) == Some(value))
            && filter.created_after.is_none_or(|after| sandbox.created_at >= after)
            && filter.created_before.is_none_or(|before| sandbox.created_at < before)
            && self.templates.is_empty()
            && self.keeps(sandbox)
    }
}

pub async fn read(door: &Door, caller: &Caller, pairs: &Pairs) -> Answer<Wanted> {
    if pairs.switch("includeWarm")? == Some(true) {
        let reason = "a sandbox of a warm pool is nobody's until it is handed out";
        return Err(Problem::bad_request(format!("includeWarm is not offered by this server: {reason}")));
    }
    // None here failed on its way out: the background sees it through.
    pairs.switch("includeErroredDeleted")?;
    pairs.switch("verbose")?;
    let (words, states) = states(pairs)?.unzip();
    let templates = templates(door, caller, pairs).await?;
    let elsewhere = |name: &'static str, ours: &str| {
        let mut named = pairs.all(name).flat_map(|words| words.split(',')).peekable();
        named.peek().is_some() && !named.any(|word| word == ours)
    };
    let nothing = templates.as_ref().is_some_and(Vec::is_empty)
        || elsewhere("regionIds", REGION)
        || elsewhere("regions", REGION)
        || elsewhere("sandboxClasses", CLASS);
    Ok(Wanted {
        none_made: states.as_ref().is_some_and(Vec::is_empty),
        words,
        filter: Filter {
            labels: labels(pairs)?,
            states: states.unwrap_or_default(),
            name_prefix: pairs.one("name").map(str::to_owned),
            created_after: pairs.time("createdAtAfter")?,
            created_before: pairs.time("createdAtBefore")?,
            ..Filter::default()
        },
        order: order(pairs)?,
        sort: sort(pairs)?,
        nothing,
        id_prefix: pairs.one("id").map(str::to_lowercase),
        templates: templates.unwrap_or_default(),
        sizes: sizes(pairs)?,
        public: pairs.switch("isPublic")?,
        recoverable: pairs.switch("isRecoverable")?,
        changed: Span::read(pairs, "lastEventAfter", "lastEventBefore")?,
        destroyed_at: Span::read(pairs, "autoDestroyAtAfter", "autoDestroyAtBefore")?,
    })
}

/// A JSON object of strings; SDKs before 0.190 write `null` where they are given none.
fn labels(pairs: &Pairs) -> Answer<BTreeMap<String, String>> {
    let Some(text) = pairs.one("labels") else { return Ok(BTreeMap::new()) };
    let labels: Option<BTreeMap<String, String>> =
        serde_json::from_str(text).map_err(|_| Problem::bad_request("labels must be a JSON object of strings"))?;
    Ok(labels.unwrap_or_default())
}

/// The words, and the states of ours that they stand for.
fn states(pairs: &Pairs) -> Answer<Option<(Vec<String>, Vec<State>)>> {
    let words: Vec<&str> = pairs.all("states").flat_map(|words| words.split(',')).collect();
    if words.is_empty() {
        return Ok(None);
    }
    let mut states = Vec::new();
    for word in &words {
        let meant = view::states(word).ok_or_else(|| {
            let known = view::WORDS.join(", ");
            Problem::bad_request(format!("states: {word:?} is no state of a sandbox; there are {known}"))
        })?;
        states.extend(meant);
    }
    Ok(Some((words.into_iter().map(ToOwned::to_owned).collect(), states)))
}

/// By any of their names; one that is nobody's template is in no sandbox.
async fn templates(door: &Door, caller: &Caller, pairs: &Pairs) -> Answer<Option<Vec<String>>> {
    let names: Vec<&str> = pairs.all("snapshots").flat_map(|words| words.split(',')).collect();
    if names.is_empty() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for name in names {
        found.extend(super::create::template(door, caller, name).await?.map(|template| template.name));
    }
    Ok(Some(found))
}

fn sizes(pairs: &Pairs) -> Answer<Vec<Size>> {
    type Bound = (&'static str, &'static str, fn(&Sandbox) -> u64);
    const BOUNDS: [Bound; 4] = [
        ("minCpu", "maxCpu", view::cpu),
        ("minMemoryGiB", "maxMemoryGiB", view::memory),
        ("minDiskGiB", "maxDiskGiB", view::disk),
        ("minGpu", "maxGpu", |_| 0),
    ];
    BOUNDS
        .into_iter()
        .map(|(least, most, of)| Ok(Size { of, least: pairs.number(least)?, most: pairs.number(most)? }))
        .collect()
}

fn order(pairs: &Pairs) -> Answer<Order> {
    match pairs.one("order") {
        None | Some("desc") => Ok(Order::NewestFirst),
        Some("asc") => Ok(Order::OldestFirst),
        Some(other) => Err(Problem::bad_request(format!("order: {other:?} is neither asc nor desc"))),
    }
}

fn sort(pairs: &Pairs) -> Answer<Sort> {
    let Some(word) = pairs.one("sort") else { return Ok(Sort::Created) };
    let found = Sort::WORDS.iter().find(|(name, _)| *name == word).map(|(_, sort)| *sort);
    found.ok_or_else(|| {
        let known: Vec<&str> = Sort::WORDS.iter().map(|(name, _)| *name).collect();
        Problem::bad_request(format!("sort: {word:?} is not one of {}", known.join(", ")))
    })
}
