//! `process.Process`.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{base64_bytes, enumeration_names};

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Empty {}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Size {
    #[prost(uint32, tag = "1")]
    pub cols: u32,
    #[prost(uint32, tag = "2")]
    pub rows: u32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct Pty {
    #[prost(message, optional, tag = "1")]
    pub size: Option<Size>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessConfig {
    #[prost(string, tag = "1")]
    pub cmd: String,
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    #[prost(map = "string, string", tag = "3")]
    pub envs: HashMap<String, String>,
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ProcessConfig>,
    #[prost(uint32, tag = "2")]
    pub pid: u32,
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<ProcessInfo>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct StartRequest {
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessConfig>,
    #[prost(message, optional, tag = "2")]
    pub pty: Option<Pty>,
    #[prost(string, optional, tag = "3")]
    pub tag: Option<String>,
    #[prost(bool, optional, tag = "4")]
    pub stdin: Option<bool>,
}

/// Which process: by number or by tag.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessSelector {
    #[prost(oneof = "Selector", tags = "1, 2")]
    #[serde(flatten)]
    pub selector: Option<Selector>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Selector {
    #[prost(uint32, tag = "1")]
    Pid(u32),
    #[prost(string, tag = "2")]
    Tag(String),
}

/// The request of every call that only names a process: Connect, CloseStdin.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessRequest {
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessSelector>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateRequest {
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessSelector>,
    #[prost(message, optional, tag = "2")]
    pub pty: Option<Pty>,
}

/// What Start and Connect stream.
#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct EventResponse {
    #[prost(message, optional, tag = "1")]
    pub event: Option<ProcessEvent>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessEvent {
    #[prost(oneof = "Event", tags = "1, 2, 3, 4")]
    #[serde(flatten)]
    pub event: Option<Event>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Event {
    #[prost(message, tag = "1")]
    Start(StartEvent),
    #[prost(message, tag = "2")]
    Data(DataEvent),
    #[prost(message, tag = "3")]
    End(EndEvent),
    #[prost(message, tag = "4")]
    Keepalive(Empty),
}

impl From<Event> for EventResponse {
    fn from(event: Event) -> Self {
        EventResponse { event: Some(ProcessEvent { event: Some(event) }) }
    }
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct StartEvent {
    #[prost(uint32, tag = "1")]
    pub pid: u32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct DataEvent {
    #[prost(oneof = "Output", tags = "1, 2, 3")]
    #[serde(flatten)]
    pub output: Option<Output>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Output {
    #[prost(bytes, tag = "1")]
    #[serde(with = "base64_bytes")]
    Stdout(Vec<u8>),
    #[prost(bytes, tag = "2")]
    #[serde(with = "base64_bytes")]
    Stderr(Vec<u8>),
    #[prost(bytes, tag = "3")]
    #[serde(with = "base64_bytes")]
    Pty(Vec<u8>),
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndEvent {
    #[prost(sint32, tag = "1")]
    pub exit_code: i32,
    #[prost(bool, tag = "2")]
    pub exited: bool,
    #[prost(string, tag = "3")]
    pub status: String,
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SendInputRequest {
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessSelector>,
    #[prost(message, optional, tag = "2")]
    pub input: Option<ProcessInput>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInput {
    #[prost(oneof = "Input", tags = "1, 2")]
    #[serde(flatten)]
    pub input: Option<Input>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Input {
    #[prost(bytes, tag = "1")]
    #[serde(with = "base64_bytes")]
    Stdin(Vec<u8>),
    #[prost(bytes, tag = "2")]
    #[serde(with = "base64_bytes")]
    Pty(Vec<u8>),
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct StreamInputRequest {
    #[prost(oneof = "StreamInput", tags = "1, 2, 3")]
    #[serde(flatten)]
    pub event: Option<StreamInput>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StreamInput {
    #[prost(message, tag = "1")]
    Start(ProcessRequest),
    #[prost(message, tag = "2")]
    Data(InputData),
    #[prost(message, tag = "3")]
    Keepalive(Empty),
}

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct InputData {
    #[prost(message, optional, tag = "2")]
    pub input: Option<ProcessInput>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Signal {
    Unspecified = 0,
    Sigkill = 9,
    Sigterm = 15,
}

impl Signal {
    const ALL: [Signal; 3] = [Signal::Unspecified, Signal::Sigkill, Signal::Sigterm];

    fn name(self) -> &'static str {
        match self {
            Signal::Unspecified => "SIGNAL_UNSPECIFIED",
            Signal::Sigkill => "SIGNAL_SIGKILL",
            Signal::Sigterm => "SIGNAL_SIGTERM",
        }
    }
}

enumeration_names!(signal_names, Signal);

#[derive(Clone, PartialEq, prost::Message, Serialize, Deserialize)]
#[serde(default)]
pub struct SendSignalRequest {
    #[prost(message, optional, tag = "1")]
    pub process: Option<ProcessSelector>,
    #[prost(enumeration = "Signal", tag = "2")]
    #[serde(with = "signal_names")]
    pub signal: i32,
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_start_is_read_as_the_sdk_writes_it() {
        let json = r#"{"process":{"cmd":"/bin/bash","args":["-l","-c","echo hi"]},"stdin":false,"later":1}"#;
        let request: StartRequest = serde_json::from_str(json).unwrap();
        let process = request.process.unwrap();
        assert_eq!((process.cmd.as_str(), process.args.len(), request.stdin), ("/bin/bash", 3, Some(false)));
        assert_eq!(process.cwd, None);
    }

    #[test]
    fn an_event_says_the_one_thing_that_happened() {
        let data = EventResponse::from(Event::Data(DataEvent { output: Some(Output::Stdout(b"hello\n".to_vec())) }));
        assert_eq!(serde_json::to_string(&data).unwrap(), r#"{"event":{"data":{"stdout":"aGVsbG8K"}}}"#);
        let ping = EventResponse::from(Event::Keepalive(Empty {}));
        assert_eq!(serde_json::to_string(&ping).unwrap(), r#"{"event":{"keepalive":{}}}"#);
    }

    #[test]
    fn selectors_and_signals_have_two_spellings() {
        let json = r#"{"process":{"pid":2230},"signal":"SIGNAL_SIGKILL"}"#;
        let request: SendSignalRequest = serde_json::from_str(json).unwrap();
        assert_eq!(request.signal, 9);
        assert_eq!(request.process.clone().unwrap().selector, Some(Selector::Pid(2230)));
        assert_eq!(SendSignalRequest::decode(request.encode_to_vec().as_slice()).unwrap(), request);
        assert_eq!(serde_json::to_string(&request).unwrap(), json);
        assert!(serde_json::from_str::<SendSignalRequest>(r#"{"signal":"SIGNAL_BOO"}"#).is_err());
    }

    #[test]
    fn binary_bytes_are_those_of_the_published_field_numbers() {
        let end = EventResponse::from(Event::End(EndEvent {
            exit_code: -1,
            exited: false,
            status: "signal: killed".into(),
            error: None,
        }));
        // event(1){ end(3){ exit_code(1, zigzag)=-1, status(3)="signal: killed" } }
        assert_eq!(end.encode_to_vec(), [b"\x0a\x14\x1a\x12\x08\x01\x1a\x0e".as_slice(), b"signal: killed"].concat());
    }
}
