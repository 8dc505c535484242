//! What a provider can do, and the sentence that a caller reads where it cannot.
//!
//! The API shows these, and [`App::require`] refuses by them before a provider is asked: what is shown is what holds.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{App, Error};

/// What a provider can do. Every provider answers for every ability: one that is added must be thought of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// What isolates a sandbox from its host, as the API reports it.
    pub isolation: Isolation,
    pub pause: Can,
    pub resize: Can,
    pub persistent: Can,
    pub network_policy: Can,
    pub archive: Can,
    pub snapshot: Can,
    pub fork: Can,
    pub volumes: Can,
    pub manifest: Can,
}

/// Whether, and if not, why not: a clause that follows a colon, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Can {
    Yes,
    No(Cow<'static, str>),
}

impl Can {
    pub const fn not(why: &'static str) -> Can {
        Can::No(Cow::Borrowed(why))
    }

    pub fn is_yes(&self) -> bool {
        *self == Can::Yes
    }
}

/// What can be asked of a provider beside making and removing sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ability {
    /// Freeze a sandbox in memory.
    Pause,
    /// Give a running sandbox other limits.
    Resize,
    /// Keep files over a stop.
    Persistent,
    /// Hold rules about who is reached from inside.
    NetworkPolicy,
    /// Pack a stopped sandbox's files, and unpack them again.
    Archive,
    /// Keep a sandbox's files as they are at a moment.
    Snapshot,
    /// Make a sandbox from another's files.
    Fork,
    /// Show volumes inside.
    Volumes,
    /// Write down what files a paused or stopped sandbox has, and prove it later.
    Manifest,
}

impl Ability {
    pub const ALL: [Ability; 9] = [
        Ability::Pause,
        Ability::Resize,
        Ability::Persistent,
        Ability::NetworkPolicy,
        Ability::Archive,
        Ability::Snapshot,
        Ability::Fork,
        Ability::Volumes,
        Ability::Manifest,
    ];

    /// As in `provider x cannot …`.
    fn verb(self) -> &'static str {
        match self {
            Ability::Pause => "pause",
            Ability::Resize => "resize a running sandbox",
            Ability::Persistent => "keep files over a stop",
            Ability::NetworkPolicy => "hold a network policy",
            Ability::Archive => "archive",
            Ability::Snapshot => "take snapshots",
            Ability::Fork => "fork",
            Ability::Volumes => "mount volumes",
            Ability::Manifest => "keep a manifest of files",
        }
    }
}

impl Capabilities {
    pub fn of(&self, ability: Ability) -> &Can {
        match ability {
            Ability::Pause => &self.pause,
            Ability::Resize => &self.resize,
            Ability::Persistent => &self.persistent,
            Ability::NetworkPolicy => &self.network_policy,
            Ability::Archive => &self.archive,
            Ability::Snapshot => &self.snapshot,
            Ability::Fork => &self.fork,
            Ability::Volumes => &self.volumes,
            Ability::Manifest => &self.manifest,
        }
    }

    /// Every ability that it lacks, with the reason.
    pub fn refusals(&self) -> impl Iterator<Item = (Ability, &str)> {
        Ability::ALL.into_iter().filter_map(|ability| match self.of(ability) {
            Can::Yes => None,
            Can::No(why) => Some((ability, why.as_ref())),
        })
    }
}

/// Degrees of isolation, weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// For tests: none.
    None,
    Namespaces,
    Gvisor,
    Microvm,
}

impl App {
    /// Refuses what a provider cannot do. The one place that does.
    pub(crate) fn require(&self, provider: &str, ability: Ability) -> Result<(), Error> {
        match self.provider(provider)?.capabilities().of(ability) {
            Can::Yes => Ok(()),
            Can::No(why) => Err(Error::Unsupported(format!("provider {provider} cannot {}: {why}", ability.verb()))),
        }
    }

    /// Whether a provider can do it; one that is not configured cannot.
    pub(crate) fn is_able(&self, provider: &str, ability: Ability) -> bool {
        self.provider(provider).is_ok_and(|provider| provider.capabilities().of(ability).is_yes())
    }
}
