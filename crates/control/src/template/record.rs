//! A template's own row: names and owner. Its files are its builds'.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// What a template is to its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = TemplateKind)]
pub enum Kind {
    /// Made to start sandboxes from.
    #[default]
    Built,
    /// A sandbox's files, frozen in time.
    Snapshot,
    /// The checkpoints of one sandbox; no list shows it.
    Checkpoints,
}

impl Kind {
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Built => "built",
            Kind::Snapshot => "snapshot",
            Kind::Checkpoints => "checkpoints",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Kind::Built, Kind::Snapshot, Kind::Checkpoints].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Who may start sandboxes from a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// The organisation that owns it.
    #[default]
    Private,
    /// Everybody of the installation.
    Public,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// 20 letters and digits.
    pub id: String,
    /// Empty: the installation's own, for everybody.
    pub organisation: String,
    pub kind: Kind,
    /// The name and then the aliases; none for a snapshot without a name.
    #[serde(skip)]
    pub names: Vec<String>,
    pub visibility: Visibility,
    #[serde(default)]
    pub description: String,
    /// The sandbox that it is a snapshot of.
    #[serde(default)]
    pub source_sandbox: Option<String>,
    /// No sandbox may be started from it for now.
    #[serde(default)]
    pub inactive: bool,
    /// What a door remembers of its own.
    #[serde(default)]
    pub door: serde_json::Value,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default)]
    pub deleted_at: Option<Timestamp>,
}

impl Record {
    /// What people call it: its name, or its id where it has none.
    pub fn title(&self) -> &str {
        self.names.first().map_or(self.id.as_str(), String::as_str)
    }

    pub fn is_built_in(&self) -> bool {
        self.organisation.is_empty()
    }

    /// Whether sandboxes of the organisation may start from it.
    pub fn is_visible_to(&self, organisation: &str) -> bool {
        self.is_built_in() || self.organisation == organisation || self.visibility == Visibility::Public
    }
}

/// A word that leads to one of a template's builds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Tag {
    pub tag: String,
    pub build: String,
    /// When it was set.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}
