//! Making a sandbox, in both versions of the call.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use serde_json::Value;

use super::super::error::ApiError;
use super::super::facts::{Facts, VolumeMount};
use super::super::marks;
use super::network::Network;
use super::{By, body, describe, domain};
use crate::door::known::says_something;
use crate::provider::Access;
use crate::sandbox::{Expiry, NewSandbox, Sandbox, State as Life, TimersChange};
use crate::template::name::Reference;
use crate::volume::Mount;
use crate::{App, Caller, Error};

const TIMEOUT_V1: i64 = 15;
const TIMEOUT_V2: i64 = 300;

/// Every field that an SDK since 1.0 sends.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wanted {
    #[serde(rename = "templateID")]
    template: String,
    timeout: Option<i64>,
    #[serde(default)]
    auto_pause: bool,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    /// The first version only.
    secure: Option<bool>,
    iam: Option<Value>,
    mcp: Option<Value>,
    volume_mounts: Option<Vec<VolumeMount>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AutoResume {
    #[serde(default)]
    enabled: Option<bool>,
    /// What `enabled` was called before.
    #[serde(default)]
    policy: Option<ResumePolicy>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ResumePolicy {
    Any,
    Off,
}

impl AutoResume {
    fn is_on(&self) -> bool {
        self.enabled.unwrap_or(self.policy == Some(ResumePolicy::Any))
    }
}

pub async fn v1(
    State(app): State<App>,
    By(caller): By,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Wanted = body(bytes).await?;
    // Clients from before tokens existed say nothing and send none. Unless the operator lets them, who says nothing gets the
    // daemon with its token: an id alone, which every preview shows, must not open it.
    let secure = wanted.secure.unwrap_or(!app.config().e2b.tokens_optional);
    create(&app, &caller, (&uri, &headers), wanted, TIMEOUT_V1, secure).await
}

pub async fn v2(
    State(app): State<App>,
    By(caller): By,
    uri: Uri,
    headers: HeaderMap,
    bytes: Bytes,
) -> Result<Response, ApiError> {
    let wanted: Wanted = body(bytes).await?;
    if wanted.secure == Some(false) {
        return Err(ApiError::bad("secure: always true in this version of the call"));
    }
    create(&app, &caller, (&uri, &headers), wanted, TIMEOUT_V2, true).await
}

async fn create(
    app: &App,
    caller: &Caller,
    (uri, headers): (&Uri, &HeaderMap),
    wanted: Wanted,
    default_timeout: i64,
    secure: bool,
) -> Result<Response, ApiError> {
    let default_timeout = match app.config().e2b.timeout_seconds {
        0 => default_timeout,
        seconds => seconds.try_into().unwrap_or(i64::MAX),
    };
    let timers = timers(&wanted, default_timeout)?;
    refuse_unserved(&wanted)?;
    let network = Network::read(wanted.network.as_ref(), wanted.allow_internet_access)?;
    if !network.public && !secure {
        return Err(ApiError::bad("a sandbox without public traffic must be secure"));
    }
    let facts = Facts {
        secure,
        mask_request_host: network.mask_request_host,
        network: network.told,
        allow_internet_access: wanted.allow_internet_access,
        volume_mounts: wanted.volume_mounts.unwrap_or_default(),
    };
    let template = template_name(&wanted.template)?;
    let template_of = Reference::parse(&template)?.name;
    let volumes = facts.volume_mounts.iter().map(|mount| Mount {
        volume: mount.name.clone(),
        path: mount.path.clone(),
        subpath: None,
        access: Access::ReadWrite,
    });
    let volumes = volumes.collect();
    let new = NewSandbox {
        template: Some(template),
        labels: wanted.metadata.unwrap_or_default(),
        env: marks::with(wanted.env_vars.unwrap_or_default(), &template_of),
        id_variable: Some(marks::ID.into()),
        network: network.policy,
        timers,
        public: network.public,
        volumes,
        idempotency_key: idempotency_key(headers)?,
        door: facts.into_note(&Value::Null),
        ..NewSandbox::default()
    };
    let sandbox = app.create_sandbox(caller, new).await.map_err(in_body)?;
    leave_marks(app, &sandbox).await;
    let told = describe::handle(&sandbox, &domain(app, headers, uri));
    Ok((StatusCode::CREATED, axum::Json(told)).into_response())
}

/// The dialect calls a volume that is not there a wrong request. What the domain says of volumes is of `volumeMounts`.
fn in_body(error: Error) -> ApiError {
    match error {
        Error::NotFound { kind: "volume", id } => ApiError::bad(format!("volumeMounts: volume '{id}' not found")),
        Error::Invalid { field, message } if field == "volumes" || field.starts_with("volumes.") => {
            ApiError::bad(format!("volumeMounts: {message}"))
        }
        error => error.into(),
    }
}

/// In a sandbox that was just made. A repeated call may find it asleep, or on another server: it has its marks.
pub async fn leave_marks(app: &App, sandbox: &Sandbox) {
    if sandbox.state != Life::Running || !app.is_here(sandbox) {
        return;
    }
    let left = async {
        let (sandbox, guest) = app.reach_into(sandbox.clone()).await?;
        marks::leave(&guest, &sandbox).await.map_err(crate::Error::from)
    };
    if let Err(error) = left.await {
        tracing::warn!(sandbox = %sandbox.id, %error, "leave the marks of the dialect");
    }
}

fn timers(wanted: &Wanted, default_timeout: i64) -> Result<TimersChange, ApiError> {
    let lifetime = match wanted.timeout.unwrap_or(default_timeout) {
        seconds if seconds <= 0 => return Err(ApiError::bad("Timeout must be greater than 0")),
        seconds => seconds.unsigned_abs(),
    };
    let auto_resume = wanted.auto_resume.as_ref().is_some_and(AutoResume::is_on);
    let at_deadline = match (wanted.auto_pause, wanted.auto_pause_memory) {
        (false, Some(false)) => return Err(ApiError::bad("autoPauseMemory needs autoPause")),
        (true, Some(false)) if auto_resume => {
            return Err(ApiError::bad("a sandbox that is paused without its memory cannot resume by itself"));
        }
        (true, Some(false)) => Expiry::Stop,
        (true, _) => Expiry::Pause,
        (false, _) => Expiry::Destroy,
    };
    Ok(TimersChange {
        lifetime_seconds: Some(Some(lifetime)),
        at_deadline: Some(at_deadline),
        // The dialect knows one clock: the deadline.
        idle_seconds: Some(None),
        auto_resume: Some(auto_resume),
        ..TimersChange::default()
    })
}

/// What would change who may do what, and is not served, is refused rather than left out.
fn refuse_unserved(wanted: &Wanted) -> Result<(), ApiError> {
    if says_something(wanted.iam.as_ref()) {
        return Err(ApiError::bad("iam: identity tokens are not served"));
    }
    if says_something(wanted.mcp.as_ref()) {
        return Err(ApiError::bad(
            "mcp: the gateway for MCP servers is not served; run one in the sandbox and reach its port",
        ));
    }
    Ok(())
}

/// A template's name, with or without an organisation and a tag, as the domain reads it. What is no such name is the
/// caller's mistake; whether it leads anywhere is seen later.
pub fn template_name(text: &str) -> Result<String, ApiError> {
    match Reference::parse(text) {
        Ok(_) => Ok(text.trim().to_lowercase()),
        Err(_) => Err(ApiError::bad(format!("'{text}' is no name of a template"))),
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get("idempotency-key") else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let fits = (1..=255).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
    if fits { Ok(Some(text.to_owned())) } else { Err(ApiError::bad("Idempotency-Key: 1 to 255 of a-z, 0-9 and '-'")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(json: serde_json::Value) -> Wanted {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn the_body_of_each_client_is_understood() {
        let python = wanted(serde_json::json!({"templateID":"base","metadata":{},"envVars":{}}));
        let timers = timers(&python, TIMEOUT_V2).ok().unwrap();
        assert_eq!(timers.lifetime_seconds, Some(Some(300)));
        assert_eq!((timers.at_deadline, timers.idle_seconds), (Some(Expiry::Destroy), Some(None)));
        let old = wanted(serde_json::json!({
            "templateID":"base","allow_internet_access":true,"autoPause":false,"envVars":{},"metadata":{},
            "secure":true,"timeout":300
        }));
        assert_eq!((old.secure, old.allow_internet_access), (Some(true), Some(true)));
    }

    #[test]
    fn pausing_without_memory_has_its_conditions() {
        let ask = |json| timers(&wanted(json), TIMEOUT_V2);
        assert!(ask(serde_json::json!({"templateID":"b","autoPauseMemory":false})).is_err());
        assert!(
            ask(serde_json::json!({
                "templateID":"b","autoPause":true,"autoPauseMemory":false,"autoResume":{"enabled":true}
            }))
            .is_err()
        );
        assert!(ask(serde_json::json!({"templateID":"b","timeout":0})).is_err());
        let stops = ask(serde_json::json!({"templateID":"b","autoPause":true,"autoPauseMemory":false}));
        assert_eq!(stops.ok().unwrap().at_deadline, Some(Expiry::Stop));
    }

    #[test]
    fn what_is_no_name_of_a_template_is_told_from_one_that_leads_nowhere() {
        for (text, wanted) in [("base", "base"), (" Base:V1", "base:v1"), ("team/base", "team/base")] {
            assert_eq!(template_name(text).ok().as_deref(), Some(wanted));
        }
        for wrong in ["bad name!", "", "a/b/c", "name:", ":tag"] {
            assert!(template_name(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn volumes_are_named_with_their_places() {
        let asked = wanted(serde_json::json!({"templateID":"base","volumeMounts":[{"name":"data","path":"/mnt/d"}]}));
        let mounts = asked.volume_mounts.unwrap();
        assert_eq!(mounts, [VolumeMount { name: "data".into(), path: "/mnt/d".into() }]);
        let strange =
            serde_json::json!({"templateID":"base","volumeMounts":[{"name":"d","path":"/d","readOnly":true}]});
        assert!(serde_json::from_value::<Wanted>(strange).is_err());
    }
}
