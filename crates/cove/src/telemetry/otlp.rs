//! OTLP over HTTP in its JSON form (OpenTelemetry protocol 1.x): ids in hexadecimal, 64-bit numbers as text.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    #[default]
    Internal = 1,
    Server = 2,
    Client = 3,
}

impl Kind {
    pub fn of(word: &str) -> Kind {
        match word {
            "server" => Kind::Server,
            "client" => Kind::Client,
            _ => Kind::Internal,
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    Text(String),
    Number(i64),
    Switch(bool),
}

/// A parent span, perhaps in another program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parent {
    pub trace: [u8; 16],
    pub span: [u8; 8],
}

impl Parent {
    /// `00-{trace}-{span}-{flags}`; anything else means no parent.
    pub fn parse(text: &str) -> Option<Parent> {
        let parts: Vec<&str> = text.trim().split('-').collect();
        let [version, trace, span, flags] = parts[..] else { return None };
        if version.len() != 2 || version == "ff" || flags.len() != 2 {
            return None;
        }
        let parent = Parent { trace: unhex(trace)?, span: unhex(span)? };
        (parent.trace != [0; 16] && parent.span != [0; 8]).then_some(parent)
    }
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A span that has ended.
#[derive(Debug, Clone)]
pub struct Finished {
    pub trace: [u8; 16],
    pub span: [u8; 8],
    pub parent: Option<[u8; 8]>,
    pub name: String,
    pub kind: Kind,
    pub failed: bool,
    pub began: SystemTime,
    pub ended: SystemTime,
    pub attributes: Vec<(&'static str, Attribute)>,
}

fn nanoseconds(at: SystemTime) -> String {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}

fn attribute(name: &str, value: &Attribute) -> Value {
    let value = match value {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
        Attribute::Switch(switch) => json!({ "boolValue": switch }),
    };
    json!({ "key": name, "value": value })
}

impl Finished {
    fn told(&self) -> Value {
        let attributes: Vec<Value> = self.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
        let mut span = json!({
            "traceId": hex(&self.trace),
            "spanId": hex(&self.span),
            "name": self.name,
            "kind": self.kind as u8,
            "startTimeUnixNano": nanoseconds(self.began),
            "endTimeUnixNano": nanoseconds(self.ended),
            "attributes": attributes,
            "status": if self.failed { json!({ "code": 2 }) } else { json!({}) },
        });
        if let Some(parent) = self.parent {
            span["parentSpanId"] = hex(&parent).into();
        }
        span
    }
}

/// The body of one export.
pub fn request(service: &str, spans: &[Finished]) -> Value {
    let text = |text: &str| Attribute::Text(text.to_owned());
    let resource = [("service.name", text(service)), ("service.version", text(env!("CARGO_PKG_VERSION")))];
    let resource: Vec<Value> = resource.iter().map(|(name, value)| attribute(name, value)).collect();
    json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{
            "scope": { "name": "cove", "version": env!("CARGO_PKG_VERSION") },
            "spans": spans.iter().map(Finished::told).collect::<Vec<_>>(),
        }],
    }] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_trace_is_joined_and_nonsense_is_not() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = Parent::parse(good).unwrap();
        assert_eq!((hex(&parent.trace), hex(&parent.span)), (good[3..35].to_owned(), good[36..52].to_owned()));
        for bad in ["", "00-0-0-0", &good.replace("0a", "+a"), &format!("00-{}-{}-01", "0".repeat(32), "0".repeat(16))]
        {
            assert_eq!(Parent::parse(bad), None, "{bad}");
        }
    }
}
