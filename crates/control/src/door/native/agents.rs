//! One shot: create, upload, run, always clean up.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use super::auth::Authenticated;
use super::error::ApiError;
use super::execute::seconds;
use super::extract::{Body, Path};
use crate::App;
use crate::session::agent::OneShot;

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OneShotBody {
    code: String,
    /// `python` where absent.
    language: Option<OneShotLanguage>,
    /// The template.
    environment: Option<String>,
    provider: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// Five minutes where absent.
    timeout_seconds: Option<f64>,
}

/// What runs as one file.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OneShotLanguage {
    Python,
    #[serde(rename = "javascript")]
    JavaScript,
    Bash,
}

impl OneShotLanguage {
    fn name(self) -> &'static str {
        match self {
            OneShotLanguage::Python => "python",
            OneShotLanguage::JavaScript => "javascript",
            OneShotLanguage::Bash => "bash",
        }
    }
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct OneShotResult {
    success: bool,
    exit_code: i32,
    /// Standard output, then standard error.
    output: String,
    stdout: String,
    stderr: String,
}

/// Run code once in a sandbox of its own
///
/// Nothing remains of it.
#[utoipa::path(post, path = "/agents/{agent_id}/execute", tag = "agents", request_body = OneShotBody,
    params(("agent_id" = String, Path, description = "any name of your own")),
    responses((status = 200, description = "It has ended, well or not", body = OneShotResult)))]
pub async fn execute(
    State(app): State<App>,
    Authenticated(caller): Authenticated,
    Path(agent_id): Path<String>,
    Body(body): Body<OneShotBody>,
) -> Result<Json<OneShotResult>, ApiError> {
    let shot = OneShot {
        agent: agent_id,
        code: body.code,
        language: body.language.map(|language| language.name().to_owned()),
        template: body.environment,
        provider: body.provider,
        env: body.env,
        timeout: seconds(body.timeout_seconds)?.unwrap_or(Duration::from_secs(300)),
    };
    let output = app.one_shot(&caller, shot).await?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Json(OneShotResult {
        success: output.exit.status() == 0,
        exit_code: output.exit.status(),
        output: format!("{stdout}{stderr}"),
        stdout,
        stderr,
    }))
}
