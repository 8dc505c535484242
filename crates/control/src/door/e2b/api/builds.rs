//! Builds of templates: asked for, given their files, started, followed.
//!
//! ```text
//!   POST /v3/templates ─▶ a build that waits
//!   GET  …/files/{hash} ─▶ a link ─▶ PUT (upload.rs)      for each COPY
//!   POST /v2/…/builds/{build} ─▶ it goes on in the background
//!   GET  …/status?logsOffset= ─▶ its state, and what it said since
//! ```

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::super::error::ApiError;
use super::super::query::Query;
use super::super::upload;
use super::create::template_name;
use super::templates::{names, own, status as word, tell};
use super::{By, body};
use crate::build::{
    Act, Base, Build, Confidential, Credentials, Habits, Level, LogEntry, NewStep, Recipe, Request, State as Phase,
};
use crate::provider::Limits;
use crate::sandbox::LimitsChange;
use crate::template::{NewTemplate, Record, Visibility};
use crate::{App, Caller, Error};

/// Lines of one answer.
const LINES: u32 = 100;
/// More lines than any build has: where a search for a time ends.
const MOST_LINES: i64 = 1 << 20;
const MIB: u64 = 1 << 20;

/// The body of both versions.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wanted {
    name: Option<String>,
    tags: Option<Vec<String>>,
    /// What `name` was called before.
    alias: Option<String>,
    /// It is the key's own whatever is said.
    #[serde(rename = "teamID")]
    _team: Option<IgnoredAny>,
    cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    memory: Option<u64>,
    min_free_disk_mb: Option<u64>,
}

impl Wanted {
    fn into_template(self) -> Result<NewTemplate, ApiError> {
        let name = self.name.or(self.alias).filter(|name| !name.is_empty());
        let bytes = |mib: u64| mib.saturating_mul(MIB);
        // All of a sandbox's own room is free after the build: its steps are below it. There is never less than usual.
        let usual = Limits::default().disk.unwrap_or(u64::MAX);
        Ok(NewTemplate {
            name: name.ok_or_else(|| ApiError::bad("name: a template needs one"))?,
            tags: self.tags.unwrap_or_default(),
            limits: LimitsChange {
                cpus: self.cpu_count.map(f64::from),
                memory: self.memory.map(bytes),
                disk: self.min_free_disk_mb.map(bytes).filter(|bytes| *bytes > usual),
                pids: None,
            },
            ..NewTemplate::default()
        })
    }
}

pub async fn v3(State(app): State<App>, By(caller): By, bytes: Bytes) -> Result<Response, ApiError> {
    let (record, build) = request(&app, &caller, bytes).await?;
    let told = json!({
        "templateID": record.id,
        "buildID": build.id,
        "public": record.visibility == Visibility::Public,
        "names": names(&record),
        "tags": build.tags,
        "aliases": record.names,
    });
    Ok((StatusCode::ACCEPTED, axum::Json(told)).into_response())
}

/// With all that a list says of a template.
pub async fn v2(State(app): State<App>, By(caller): By, bytes: Bytes) -> Result<Response, ApiError> {
    let (record, build) = request(&app, &caller, bytes).await?;
    let mut told = tell(&app.template_overview(&caller, &record.id).await?);
    told["buildID"] = json!(build.id);
    Ok((StatusCode::ACCEPTED, axum::Json(told)).into_response())
}

async fn request(app: &App, caller: &Caller, bytes: Bytes) -> Result<(Record, Build), ApiError> {
    let wanted: Wanted = body(bytes).await?;
    let new = wanted.into_template()?;
    template_name(&new.name)?;
    Ok(app.create_template(caller, new).await?)
}

/// The first version built on the client's machine and pushed the image to a registry of the server's: no client has
/// spoken it for a year.
pub async fn v1(By(_): By) -> ApiError {
    let advice =
        "this version of the call needs docker and a registry; build with Template.build, or `e2b template create`";
    ApiError::new(StatusCode::GONE, advice)
}

/// Where the archive of a COPY is sent to; with a link even where it is there already, for those who send it anyway.
pub async fn files(
    State(app): State<App>,
    By(caller): By,
    Path((id, hash)): Path<(String, String)>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let record = own(&app, &caller, &template_name(&id)?).await?;
    let present = app.has_build_file(&caller, &hash).await?;
    let url = upload::link(&app, &caller, &record.id, &hash, (&uri, &headers));
    Ok((StatusCode::CREATED, axum::Json(json!({ "present": present, "url": url }))).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Start {
    from_image: Option<String>,
    from_template: Option<String>,
    from_image_registry: Option<Registry>,
    #[serde(default)]
    force: Option<bool>,
    #[serde(default)]
    steps: Option<Vec<WantedStep>>,
    start_cmd: Option<String>,
    ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WantedStep {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    args: Option<Vec<String>>,
    files_hash: Option<String>,
    #[serde(default)]
    force: Option<bool>,
    /// How the client packed its files; the archive says so itself.
    #[serde(rename = "gzip")]
    _gzip: Option<IgnoredAny>,
    #[serde(rename = "resolveSymlinks")]
    _resolve_symlinks: Option<IgnoredAny>,
    #[serde(rename = "forceUpload")]
    _force_upload: Option<IgnoredAny>,
}

/// Who may pull the image.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase", deny_unknown_fields)]
enum Registry {
    #[serde(rename = "registry")]
    Plain {
        username: String,
        password: String,
    },
    Gcp {
        service_account_json: Value,
    },
    Aws {
        #[serde(rename = "awsAccessKeyId")]
        _key: IgnoredAny,
        #[serde(rename = "awsSecretAccessKey")]
        _secret: IgnoredAny,
        #[serde(rename = "awsRegion")]
        _region: IgnoredAny,
    },
}

/// A secret is shown nowhere.
impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry(…)")
    }
}

impl Registry {
    fn into_credentials(self) -> Result<Credentials, ApiError> {
        match self {
            Registry::Plain { username, password } => Ok(Credentials { username, password }),
            // Google's registries take the account itself as the password of this user.
            Registry::Gcp { service_account_json } => {
                let password = match service_account_json {
                    Value::String(text) => text,
                    account => account.to_string(),
                };
                Ok(Credentials { username: "_json_key".into(), password })
            }
            Registry::Aws { .. } => Err(ApiError::bad(
                "fromImageRegistry: this server asks Amazon for no password; send type \"registry\" with the username AWS \
                 and what `aws ecr get-login-password` prints",
            )),
        }
    }
}

/// Starts a build that waits. Answered before anything is fetched.
pub async fn start(
    State(app): State<App>,
    By(caller): By,
    Path((id, build)): Path<(String, String)>,
    bytes: Bytes,
) -> Result<StatusCode, ApiError> {
    let wanted: Start = body(bytes).await?;
    let record = own(&app, &caller, &template_name(&id)?).await?;
    let (request, confidential) = wanted.into_request()?;
    match app.start_build(&caller, &record.id, &build, request, confidential).await {
        Ok(_) => Ok(StatusCode::ACCEPTED),
        // The dialect's own sentence, without the name of a field.
        Err(Error::Invalid { field, message }) if field == "build" => Err(ApiError::bad(message)),
        Err(error) => Err(error.into()),
    }
}

impl Start {
    fn into_request(self) -> Result<(Request, Confidential), ApiError> {
        let full = |text: Option<String>| text.filter(|text| !text.is_empty());
        let base = match (full(self.from_image), full(self.from_template)) {
            (Some(image), None) => Base::Image(image),
            (None, Some(template)) => Base::Template(template),
            _ => return Err(ApiError::bad("exactly one of fromImage and fromTemplate is needed")),
        };
        let registry = self.from_image_registry.map(Registry::into_credentials).transpose()?;
        let steps = self.steps.unwrap_or_default().into_iter().enumerate();
        let steps = steps.map(|(place, step)| step.into_step(place + 1)).collect::<Result<_, _>>()?;
        let request = Request {
            recipe: Recipe::Steps { base, steps },
            start: full(self.start_cmd),
            ready: full(self.ready_cmd),
            force: self.force.unwrap_or(false),
            habits: Habits::OfE2b,
            is_confidential: false,
            allow: Vec::new(),
        };
        Ok((request, Confidential { registry, ..Confidential::default() }))
    }
}

impl WantedStep {
    fn into_step(self, number: usize) -> Result<NewStep, ApiError> {
        let WantedStep { kind, args, files_hash, force, .. } = self;
        let wrong = |why: &str| ApiError::bad(format!("steps: step {number} ({kind}): {why}"));
        let mut args = args.unwrap_or_default().into_iter();
        let mut next = || args.next().filter(|word| !word.is_empty());
        let act = match kind.to_uppercase().as_str() {
            "RUN" => Act::Run {
                command: next().ok_or_else(|| wrong("a command is needed"))?,
                user: next(),
                secrets: Vec::new(),
            },
            "COPY" => {
                let (source, destination) = (next(), next());
                let (owner, mode) = (next(), next());
                let mode = mode.map(|text| u32::from_str_radix(&text, 8)).transpose();
                Act::Copy {
                    hash: files_hash.ok_or_else(|| wrong("filesHash is needed"))?,
                    source: source.ok_or_else(|| wrong("a source is needed"))?,
                    destination: destination.ok_or_else(|| wrong("a destination is needed"))?,
                    owner,
                    mode: mode.map_err(|_| wrong("a mode has octal digits"))?,
                }
            }
            "ENV" | "ARG" => {
                let words: Vec<String> = args.collect();
                if words.is_empty() || words.len() % 2 == 1 {
                    return Err(wrong("names and values are needed, in turn"));
                }
                Act::Env { values: words.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect() }
            }
            "WORKDIR" => Act::Workdir { path: next().ok_or_else(|| wrong("a path is needed"))? },
            "USER" => {
                let name = next().ok_or_else(|| wrong("a user is needed"))?;
                Act::User { name, sudo: next().as_deref() == Some("true") }
            }
            _ => return Err(wrong("not one of RUN, COPY, ENV, ARG, WORKDIR, USER")),
        };
        Ok(NewStep { act, force: force.unwrap_or(false) })
    }
}

/// The state of a build and a page of its log. An offset counts lines of the level that is asked for, and stays.
pub async fn status(
    State(app): State<App>,
    By(caller): By,
    Path((id, build)): Path<(String, String)>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let offset = match query.get("logsOffset").filter(|text| !text.is_empty()).map(str::parse::<u32>) {
        None => 0,
        Some(Ok(offset)) => i64::from(offset),
        Some(Err(_)) => return Err(ApiError::bad("logsOffset: not a number of lines")),
    };
    let lines = (level(&query)?, offset, limit(&query)?);
    let record = own(&app, &caller, &template_name(&id)?).await?;
    let found = app.build_status(&caller, &record.id, &build, lines).await?;
    let mut told = json!({
        "templateID": record.id,
        "buildID": found.build.id,
        "status": word(found.build.state),
        // What the first version said; always empty.
        "logs": [],
        "logEntries": found.lines.iter().map(entry).collect::<Vec<_>>(),
    });
    if let Some(failure) = found.build.failure.filter(|_| found.build.state != Phase::Ready) {
        told["reason"] = json!({ "message": failure.message, "logEntries": [] });
        if let Some(step) = failure.step {
            told["reason"]["step"] = json!(step);
        }
    }
    Ok(axum::Json(told))
}

/// A page of a build's log by time: `cursor` is in milliseconds. Forward it begins with the first line of that time, and
/// backward it ends before it.
pub async fn logs(
    State(app): State<App>,
    By(caller): By,
    Path((id, build)): Path<(String, String)>,
    uri: Uri,
) -> Result<axum::Json<Value>, ApiError> {
    let query = Query::of(&uri);
    let (level, limit) = (level(&query)?, limit(&query)?);
    let cursor = match query.get("cursor").filter(|text| !text.is_empty()).map(str::parse::<i64>) {
        None => None,
        Some(Ok(cursor)) => Some(cursor),
        Some(Err(_)) => return Err(ApiError::bad("cursor: not a number of milliseconds")),
    };
    if let Some(source) = query.get("source").filter(|word| !["", "persistent", "temporary"].contains(word)) {
        return Err(ApiError::bad(format!("source: '{source}' is neither persistent nor temporary")));
    }
    let record = own(&app, &caller, &template_name(&id)?).await?;
    let log = Log { app: &app, caller: &caller, template: &record.id, build: &build, level };
    let lines = match query.get("direction").unwrap_or_default() {
        "" | "forward" => {
            let skip = match cursor {
                Some(cursor) => log.lines_before(cursor).await?,
                None => 0,
            };
            log.read(skip, limit).await?
        }
        "backward" => {
            let end = log.lines_before(cursor.unwrap_or(i64::MAX)).await?;
            let skip = (end - i64::from(limit)).max(0);
            let mut lines = log.read(skip, u32::try_from(end - skip).unwrap_or(limit)).await?;
            lines.reverse();
            lines
        }
        other => return Err(ApiError::bad(format!("direction: '{other}' is neither forward nor backward"))),
    };
    Ok(axum::Json(json!({ "logs": lines.iter().map(entry).collect::<Vec<_>>() })))
}

/// A build's log, of one level and above.
struct Log<'a> {
    app: &'a App,
    caller: &'a Caller,
    template: &'a str,
    build: &'a str,
    level: Level,
}

impl Log<'_> {
    async fn read(&self, skip: i64, limit: u32) -> Result<Vec<LogEntry>, Error> {
        let lines = (self.level, skip, limit);
        Ok(self.app.build_status(self.caller, self.template, self.build, lines).await?.lines)
    }

    /// How many lines were said before a time: they are in its order, so halving finds it.
    async fn lines_before(&self, time: i64) -> Result<i64, Error> {
        let mut halves = Halves { low: 0, high: MOST_LINES };
        while let Some(middle) = halves.middle() {
            let line = self.read(middle, 1).await?;
            halves.look(middle, line.first().is_some_and(|line| line.at.as_millisecond() < time));
        }
        Ok(halves.low)
    }
}

/// Finds the first place of a list that is not before something.
struct Halves {
    low: i64,
    high: i64,
}

impl Halves {
    fn middle(&self) -> Option<i64> {
        (self.low < self.high).then(|| self.low + (self.high - self.low) / 2)
    }

    fn look(&mut self, middle: i64, is_before: bool) {
        if is_before {
            self.low = middle + 1;
        } else {
            self.high = middle;
        }
    }
}

fn entry(line: &LogEntry) -> Value {
    let mut told = json!({ "timestamp": line.at, "level": line.level.as_str(), "message": line.message });
    if let Some(step) = &line.step {
        told["step"] = json!(step);
    }
    told
}

fn level(query: &Query) -> Result<Level, ApiError> {
    let Some(word) = query.get("level").filter(|word| !word.is_empty()) else { return Ok(Level::Debug) };
    let known = Level::ALL.map(Level::as_str).join(", ");
    Level::parse(word).ok_or_else(|| ApiError::bad(format!("level: '{word}' is not one of {known}")))
}

fn limit(query: &Query) -> Result<u32, ApiError> {
    match query.get("limit").filter(|text| !text.is_empty()).map(str::parse::<u32>) {
        None => Ok(LINES),
        Some(Ok(limit)) if limit <= LINES => Ok(limit),
        Some(_) => Err(ApiError::bad(format!("limit must be at most {LINES}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(json: Value) -> Result<(Request, Confidential), String> {
        let start: Start = serde_json::from_value(json).map_err(|error| error.to_string())?;
        start.into_request().map_err(|error| format!("{:?}", error.into_response().status()))
    }

    fn acts(json: Value) -> Vec<Act> {
        let (request, _) = started(json!({"fromImage": "e2bdev/base", "steps": json})).unwrap();
        let Recipe::Steps { steps, .. } = request.recipe else { panic!("not of steps") };
        steps.into_iter().map(|step| step.act).collect()
    }

    #[test]
    fn the_steps_of_both_sdks_are_understood() {
        let hash = "ab".repeat(32);
        let read = acts(json!([
            {"type": "COPY", "args": ["folder/*", "folder", "", ""], "filesHash": hash, "force": false,
             "forceUpload": true, "resolveSymlinks": false, "gzip": true},
            {"type": "COPY", "args": ["a", "/b/", "root", "0755"], "filesHash": hash},
            {"type": "RUN", "args": ["echo hi"], "force": true},
            {"type": "RUN", "args": ["id", "root"]},
            {"type": "ENV", "args": ["A", "", "B", "c"]},
            {"type": "WORKDIR", "args": ["/app"]},
            {"type": "USER", "args": ["user", "true"]},
        ]));
        let copy = |source: &str, destination: &str, owner: Option<&str>, mode| Act::Copy {
            hash: hash.clone(),
            source: source.into(),
            destination: destination.into(),
            owner: owner.map(Into::into),
            mode,
        };
        assert_eq!(
            read,
            [
                copy("folder/*", "folder", None, None),
                copy("a", "/b/", Some("root"), Some(0o755)),
                Act::Run { command: "echo hi".into(), user: None, secrets: Vec::new() },
                Act::Run { command: "id".into(), user: Some("root".into()), secrets: Vec::new() },
                Act::Env { values: vec![("A".into(), String::new()), ("B".into(), "c".into())] },
                Act::Workdir { path: "/app".into() },
                Act::User { name: "user".into(), sudo: true },
            ]
        );
    }

    #[test]
    fn a_step_that_cannot_be_done_is_refused_with_its_number() {
        for step in [
            json!({"type": "RUN", "args": []}),
            json!({"type": "COPY", "args": ["a", "b"]}),
            json!({"type": "COPY", "args": ["a", "b", "", "rwx"], "filesHash": "x"}),
            json!({"type": "ENV", "args": ["A"]}),
            json!({"type": "VOLUME", "args": ["/x"]}),
        ] {
            assert_eq!(started(json!({"fromImage": "x", "steps": [step]})).unwrap_err(), "400", "{step}");
        }
        assert!(started(json!({"fromImage": "x", "steps": [{"type": "RUN", "arg": []}]})).unwrap_err().contains("arg"));
    }

    #[test]
    fn there_is_one_beginning() {
        assert!(started(json!({"fromImage": "a", "fromTemplate": "b"})).is_err());
        assert!(started(json!({})).is_err());
        let (request, _) =
            started(json!({"fromTemplate": "base", "force": true, "startCmd": "", "readyCmd": "true"})).unwrap();
        assert_eq!((request.start, request.ready.as_deref(), request.force), (None, Some("true"), true));
    }

    #[test]
    fn registries_get_the_user_that_they_want() {
        let of = |registry: Value| {
            let read = started(json!({"fromImage": "x", "fromImageRegistry": registry}));
            read.map(|(_, confidential)| confidential.registry.map(|known| (known.username, known.password)))
        };
        let plain = of(json!({"type": "registry", "username": "ada", "password": "p"})).unwrap();
        assert_eq!(plain, Some(("ada".into(), "p".into())));
        let account = of(json!({"type": "gcp", "serviceAccountJson": "{}"})).unwrap();
        assert_eq!(account, Some(("_json_key".into(), "{}".into())));
        let amazon = json!({"type": "aws", "awsAccessKeyId": "a", "awsSecretAccessKey": "b", "awsRegion": "c"});
        assert_eq!(of(amazon).unwrap_err(), "400");
        assert!(of(json!({"type": "registry", "username": "a", "passwort": "b"})).unwrap_err().contains("passwort"));
    }

    #[test]
    fn a_time_in_a_log_is_found_by_halving() {
        let before = |time: i64| {
            let (mut halves, mut looks) = (Halves { low: 0, high: MOST_LINES }, 0);
            while let Some(middle) = halves.middle() {
                halves.look(middle, middle < 5000 && middle / 2 * 10 < time);
                looks += 1;
            }
            assert!(looks < 64, "{looks}");
            halves.low
        };
        assert_eq!([0, 10, 11, i64::MAX].map(before), [0, 2, 4, 5000]);
    }
}
