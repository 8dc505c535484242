//! `filesystem.Filesystem`.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{enumeration_names, integer_text};

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathRequest {
    #[prost(string, tag = "1")]
    pub path: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MoveRequest {
    #[prost(string, tag = "1")]
    pub source: String,
    #[prost(string, tag = "2")]
    pub destination: String,
}

/// The answer of Stat, MakeDir and Move.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct EntryResponse {
    #[prost(message, optional, tag = "1")]
    pub entry: Option<EntryInfo>,
}

impl From<EntryInfo> for EntryResponse {
    fn from(entry: EntryInfo) -> Self {
        EntryResponse { entry: Some(entry) }
    }
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListDirRequest {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(uint32, tag = "2")]
    pub depth: u32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ListDirResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<EntryInfo>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EntryInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(enumeration = "FileType", tag = "2")]
    #[serde(with = "file_type_names")]
    pub r#type: i32,
    #[prost(string, tag = "3")]
    pub path: String,
    #[prost(int64, tag = "4")]
    #[serde(with = "integer_text")]
    pub size: i64,
    #[prost(uint32, tag = "5")]
    pub mode: u32,
    #[prost(string, tag = "6")]
    pub permissions: String,
    #[prost(string, tag = "7")]
    pub owner: String,
    #[prost(string, tag = "8")]
    pub group: String,
    #[prost(message, optional, tag = "9")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<Timestamp>,
    #[prost(string, optional, tag = "10")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    #[prost(map = "string, string", tag = "11")]
    #[serde(skip_serializing_if = "HashMap::is_empty")]
    pub metadata: HashMap<String, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FileType {
    Unspecified = 0,
    File = 1,
    Directory = 2,
    Symlink = 3,
}

impl FileType {
    const ALL: [FileType; 4] = [FileType::Unspecified, FileType::File, FileType::Directory, FileType::Symlink];

    fn name(self) -> &'static str {
        match self {
            FileType::Unspecified => "FILE_TYPE_UNSPECIFIED",
            FileType::File => "FILE_TYPE_FILE",
            FileType::Directory => "FILE_TYPE_DIRECTORY",
            FileType::Symlink => "FILE_TYPE_SYMLINK",
        }
    }
}

enumeration_names!(file_type_names, FileType);

/// A moment: RFC 3339 in JSON.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Timestamp {
    pub fn from_milliseconds(milliseconds: i64) -> Self {
        let nanos = milliseconds.rem_euclid(1000) * 1_000_000;
        Timestamp { seconds: milliseconds.div_euclid(1000), nanos: i32::try_from(nanos).unwrap_or(0) }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        // Beyond the years that RFC 3339 can write there is no text; the sandbox chose the time, so it gets the epoch.
        to.collect_str(&jiff::Timestamp::new(self.seconds, self.nanos).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let moment: jiff::Timestamp = String::deserialize(from)?.parse().map_err(D::Error::custom)?;
        Ok(Timestamp { seconds: moment.as_second(), nanos: moment.subsec_nanosecond() })
    }
}

/// The request of WatchDir and CreateWatcher.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct WatchRequest {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(bool, tag = "2")]
    pub recursive: bool,
    #[prost(bool, tag = "3")]
    #[serde(alias = "include_entry")]
    pub include_entry: bool,
    /// Watching is refused on a network mount unless this is set; a sandbox has none, so that either is served.
    #[prost(bool, tag = "4")]
    #[serde(alias = "allow_network_mounts")]
    pub allow_network_mounts: bool,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct FilesystemEvent {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(enumeration = "EventType", tag = "2")]
    #[serde(with = "event_type_names")]
    pub r#type: i32,
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EventType {
    Unspecified = 0,
    Create = 1,
    Write = 2,
    Remove = 3,
    Rename = 4,
    Chmod = 5,
}

impl EventType {
    const ALL: [EventType; 6] = [
        EventType::Unspecified,
        EventType::Create,
        EventType::Write,
        EventType::Remove,
        EventType::Rename,
        EventType::Chmod,
    ];

    fn name(self) -> &'static str {
        match self {
            EventType::Unspecified => "EVENT_TYPE_UNSPECIFIED",
            EventType::Create => "EVENT_TYPE_CREATE",
            EventType::Write => "EVENT_TYPE_WRITE",
            EventType::Remove => "EVENT_TYPE_REMOVE",
            EventType::Rename => "EVENT_TYPE_RENAME",
            EventType::Chmod => "EVENT_TYPE_CHMOD",
        }
    }
}

enumeration_names!(event_type_names, EventType);

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchResponse {
    #[prost(oneof = "WatchEvent", tags = "1, 2, 3")]
    #[serde(flatten)]
    pub event: Option<WatchEvent>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "prost decodes into the variants as they stand; one is alive per message"
)]
#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchEvent {
    #[prost(message, tag = "1")]
    Start(super::process::Empty),
    #[prost(message, tag = "2")]
    Filesystem(FilesystemEvent),
    #[prost(message, tag = "3")]
    Keepalive(super::process::Empty),
}

impl From<WatchEvent> for WatchResponse {
    fn from(event: WatchEvent) -> Self {
        WatchResponse { event: Some(event) }
    }
}

/// Names a watcher: the answer of CreateWatcher, the request of GetWatcherEvents and RemoveWatcher.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct WatcherId {
    #[prost(string, tag = "1")]
    #[serde(alias = "watcher_id")]
    pub watcher_id: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct WatcherEvents {
    #[prost(message, repeated, tag = "1")]
    pub events: Vec<FilesystemEvent>,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn an_entry_is_written_as_proto3_json_and_reads_back_in_both_encodings() {
        let entry = EntryInfo {
            name: "a.txt".into(),
            r#type: FileType::File as i32,
            path: "/home/user/a.txt".into(),
            size: 5,
            mode: 0o644,
            permissions: "-rw-r--r--".into(),
            owner: "user".into(),
            group: "user".into(),
            modified_time: Some(Timestamp::from_milliseconds(1_700_000_000_250)),
            ..EntryInfo::default()
        };
        let json = serde_json::to_value(&entry).unwrap();
        assert_eq!(json["size"], "5");
        assert_eq!(json["type"], "FILE_TYPE_FILE");
        assert_eq!(json["modifiedTime"], "2023-11-14T22:13:20.25Z");
        assert_eq!(serde_json::from_value::<EntryInfo>(json).unwrap(), entry);
        assert_eq!(EntryInfo::decode(entry.encode_to_vec().as_slice()).unwrap(), entry);
    }

    #[test]
    fn both_spellings_of_a_field_are_read() {
        for json in [r#"{"path":"/tmp","includeEntry":true}"#, r#"{"path":"/tmp","include_entry":true}"#] {
            assert!(serde_json::from_str::<WatchRequest>(json).unwrap().include_entry, "{json}");
        }
    }
}
