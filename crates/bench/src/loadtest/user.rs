//! One user's day.

use std::future::Future;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::json;

use super::{Deed, Step, Tally, Until, load_name};
use crate::measure::api::{Api, Trouble, lost, text_of};

/// A server may ask for no more patience than this.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
const COME_AGAIN: Duration = Duration::from_secs(1);
/// Hundreds of web servers that start at once on few processors take their time.
const PAGE_WITHIN: Duration = Duration::from_secs(120);
/// People reload less often the longer they wait.
const RELOAD_AFTER: Duration = Duration::from_millis(50);
const LONGEST_RELOAD: Duration = Duration::from_secs(2);
const FILE_SIZE: usize = 64 << 10;
const PORT: u16 = 8000;

#[derive(Debug, Clone)]
pub struct Habits {
    pub deeds: Vec<Deed>,
    pub think: Duration,
    pub until: Until,
}

/// Comes again and again until `end`; once where there is none.
pub async fn live(api: &Api, habits: &Habits, end: Option<Instant>, tally: &Tally) {
    let user = User { api, habits, end, tally };
    // People do not arrive all in the same instant, unless none of them ever thinks.
    user.think().await;
    loop {
        let welcome = user.visit().await;
        if user.is_over() {
            return;
        }
        if welcome.is_none() {
            // A server that is down is not asked a thousand times a second.
            tokio::time::sleep(COME_AGAIN).await;
        }
        user.think().await;
        if user.is_over() {
            return;
        }
    }
}

struct User<'a> {
    api: &'a Api,
    habits: &'a Habits,
    end: Option<Instant>,
    tally: &'a Tally,
}

impl User<'_> {
    fn is_over(&self) -> bool {
        self.end.is_none_or(|end| Instant::now() >= end)
    }

    async fn think(&self) {
        let longest = self.habits.think.as_secs_f64() * 2.0;
        if longest > 0.0 {
            let left = self.end.map_or(f64::MAX, |end| end.saturating_duration_since(Instant::now()).as_secs_f64());
            tokio::time::sleep(Duration::from_secs_f64(rand::random_range(0.0..longest).min(left))).await;
        }
    }

    /// From the first request to the clean desk. A step that fails ends the visit, never the cleaning.
    /// `None` where there was no sandbox to be had.
    async fn visit(&self) -> Option<()> {
        let labels = json!({ "loadtest": load_name() });
        let id = self.step(Step::Create, || self.api.create(labels.clone())).await?;
        for deed in &self.habits.deeds {
            self.think().await;
            let went_on = match deed {
                Deed::Exec => self.commands(&id).await,
                Deed::Files => self.files(&id).await,
                Deed::Preview => self.preview(&id).await,
                Deed::Interpreter => self.cells(&id).await,
            };
            if went_on.is_none() || (self.end.is_some() && self.is_over()) {
                break;
            }
        }
        self.step(Step::Delete, || self.api.delete(&id)).await;
        Some(())
    }

    /// Does it, again where there was no room. `None` when it failed, or when it is too late to come again.
    async fn step<T, F: Future<Output = Result<T, Trouble>>>(&self, step: Step, act: impl Fn() -> F) -> Option<T> {
        loop {
            let began = Instant::now();
            match act().await {
                Ok(value) => {
                    self.tally.succeeded(step, began.elapsed());
                    return Some(value);
                }
                Err(trouble) => {
                    self.tally.troubled(step, &trouble);
                    let Trouble::Busy { retry_after, .. } = trouble else { return None };
                    // What was made must be removed, however late it is.
                    if self.end.is_some() && self.is_over() && step != Step::Delete {
                        return None;
                    }
                    tokio::time::sleep(retry_after.unwrap_or(Duration::from_secs(1)).min(LONGEST_WAIT)).await;
                }
            }
        }
    }

    async fn commands(&self, id: &str) -> Option<()> {
        for word in ["first", "second"] {
            let told = || async {
                let told = self.api.exec(id, &["/bin/sh", "-c", &format!("echo {word}")]).await?;
                expect(told.trim(), word)
            };
            self.step(Step::Exec, told).await?;
            self.think().await;
        }
        Some(())
    }

    async fn files(&self, id: &str) -> Option<()> {
        let path = format!("/api/sandboxes/{id}/files/content?path=/home/user/data");
        let content: Vec<u8> = (0..FILE_SIZE).map(|at| (at * 31 % 251) as u8).collect();
        let up = || async { self.api.send(self.api.request(Method::PUT, &path).body(content.clone())).await.map(drop) };
        self.step(Step::Upload, up).await?;
        self.think().await;
        let down = || async {
            let bytes = self.api.send(self.api.request(Method::GET, &path)).await?.bytes().await.map_err(lost)?;
            if bytes == content {
                Ok(())
            } else {
                Err(Trouble::Wrong(format!("{} bytes came back that are not the {FILE_SIZE} sent", bytes.len())))
            }
        };
        self.step(Step::Download, down).await
    }

    /// A web server inside, seen from outside.
    async fn preview(&self, id: &str) -> Option<()> {
        let serve =
            json!({ "command": ["python3", "-m", "http.server", PORT.to_string()], "cwd": "/tmp", "background": true });
        let exec = format!("/api/sandboxes/{id}/exec");
        self.step(Step::Exec, || self.api.call(Method::POST, &exec, Some(serve.clone()))).await?;
        let page = format!("/api/sandboxes/{id}/ports/{PORT}/proxy/");
        let look = || async {
            let (began, mut pause) = (Instant::now(), RELOAD_AFTER);
            loop {
                match self.api.call_text(&page).await {
                    Ok(text) if text.contains("Directory listing") => return Ok(()),
                    Ok(text) => return Err(Trouble::Wrong(text)),
                    // Not up yet.
                    Err(Trouble::Refused { status: 502, .. }) if began.elapsed() < PAGE_WITHIN => {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(LONGEST_RELOAD);
                    }
                    Err(trouble) => return Err(trouble),
                }
            }
        };
        self.step(Step::Preview, look).await
    }

    /// Two cells that share a variable.
    async fn cells(&self, id: &str) -> Option<()> {
        let session = || async {
            let made = self.api.call(Method::POST, "/api/sessions", Some(json!({ "sandbox_id": id }))).await?;
            text_of(&made, "session_id")
        };
        let session = self.step(Step::Cell, session).await?;
        for (code, told) in [("x = 6", ""), ("print(x * 7)", "42")] {
            let body = json!({ "session_id": session, "code": code });
            let run = || async {
                let done = self.api.call(Method::POST, "/api/execute", Some(body.clone())).await?;
                expect(text_of(&done, "stdout")?.trim(), told)
            };
            self.step(Step::Cell, run).await?;
            self.think().await;
        }
        Some(())
    }
}

fn expect(got: &str, wanted: &str) -> Result<(), Trouble> {
    if got == wanted { Ok(()) } else { Err(Trouble::Wrong(format!("`{got}` instead of `{wanted}`"))) }
}
