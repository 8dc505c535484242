//! A client that takes no for an answer, and writes down every yes.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cove_testkit::Random;
use cove_testkit::http::Answer;
use cove_testkit::server::Api;
use cove_testkit::wait::{LIMIT, until_some};
use serde_json::{Value, json};

const FILES: u64 = 24;

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Yes,
    /// And when to come again.
    No,
    /// Nothing, as where a connection breaks.
    Nothing,
}

pub struct Client {
    name: String,
    api: Api,
    random: Random,
    answers_within: Duration,
    sandbox: Option<String>,
    session: Option<String>,
    /// Contents that may be there, by path: one where the last write was answered.
    files: BTreeMap<String, Vec<Option<Vec<u8>>>>,
    /// Values that the label may have.
    label: Vec<Option<String>>,
    words: Vec<String>,
    /// Sandboxes that were made and destroyed, and whether the end was answered.
    gone: Vec<(String, bool)>,
    serial: u64,
    /// Answers so far: yes and no.
    pub yes: usize,
    pub no: usize,
}

impl Client {
    pub fn new(number: u64, api: Api, random: Random, answers_within: Duration) -> Client {
        Client {
            name: format!("client{number}"),
            api,
            random,
            answers_within,
            sandbox: None,
            session: None,
            files: BTreeMap::new(),
            label: vec![None],
            words: Vec::new(),
            gone: Vec::new(),
            serial: 0,
            yes: 0,
            no: 0,
        }
    }

    pub fn work(&mut self, over: &AtomicBool) {
        while !over.load(Ordering::SeqCst) {
            self.operate();
        }
    }

    fn operate(&mut self) {
        let Some(id) = self.sandbox.clone() else {
            let body = json!({"name": self.name, "limits": {"memory": 128 << 20}, "timers": {"idle_seconds": null}});
            self.sandbox = self.made("/api/sandboxes", &body, "id");
            return;
        };
        let Some(session) = self.session.clone() else {
            self.session = self.made("/api/sessions", &json!({"sandbox_id": id}), "session_id");
            return;
        };
        match self.random.below(6) {
            0..=2 => self.write(&id),
            3 => self.label(&id),
            4 => self.speak(&session),
            _ => self.come_and_go(),
        }
    }

    /// Makes one where there is none of this name yet, whoever answered or did not.
    fn made(&mut self, path: &str, body: &Value, field: &str) -> Option<String> {
        self.serial += 1;
        let key = format!("{}-{path}", self.name);
        let (said, answer) = self.ask("POST", path, &[("idempotency-key", key.as_str())], body, 201);
        (said == Said::Yes).then(|| answer.expect("a yes").json()[field].as_str().expect("an id").to_owned())
    }

    fn ask(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &Value,
        wanted: u16,
    ) -> (Said, Option<Answer>) {
        let begun = Instant::now();
        let answer = self.api.json(method, path, headers, Some(body));
        self.judge(method, path, begun, answer, wanted)
    }

    /// Yes, or no with a word on when to come again; nothing else, and in time.
    fn judge(
        &mut self,
        method: &str,
        path: &str,
        begun: Instant,
        answer: io::Result<Answer>,
        wanted: u16,
    ) -> (Said, Option<Answer>) {
        let took = begun.elapsed();
        let Ok(answer) = answer else {
            // A body that nobody read breaks the connection. Not this often.
            std::thread::sleep(Duration::from_millis(5));
            return (Said::Nothing, None);
        };
        assert!(took < self.answers_within, "{}: {method} {path} took {took:?}: {}", self.name, answer.text());
        if answer.status == wanted {
            self.yes += 1;
            return (Said::Yes, Some(answer));
        }
        let text = answer.text();
        assert!(matches!(answer.status, 503 | 507), "{}: {method} {path}: {} {text}", self.name, answer.status);
        let again = answer.header("retry-after").and_then(|seconds| seconds.parse::<u64>().ok());
        assert!(again.is_some(), "{}: {method} {path}: {} without Retry-After: {text}", self.name, answer.status);
        self.no += 1;
        // As a client that behaves, but for the seconds.
        std::thread::sleep(Duration::from_millis(20));
        (Said::No, Some(answer))
    }

    fn write(&mut self, id: &str) {
        let path = format!("/home/user/file{}", self.random.below(FILES));
        let length = usize::try_from(self.random.below(60_000)).unwrap_or(0);
        let bytes = self.random.bytes(length);
        let url = format!("/api/sandboxes/{id}/files/content?path={path}");
        let begun = Instant::now();
        let answer = self.api.send("PUT", &url, &[], Some(&bytes));
        let (said, _) = self.judge("PUT", &url, begun, answer, 200);
        let known = self.files.entry(path).or_insert_with(|| vec![None]);
        match said {
            Said::Yes => *known = vec![Some(bytes)],
            // A file is replaced when it is whole.
            Said::No | Said::Nothing => known.push(Some(bytes)),
        }
    }

    fn label(&mut self, id: &str) {
        self.serial += 1;
        let value = format!("{}", self.serial);
        let body = json!({"labels": {"serial": value}});
        let (said, _) = self.ask("PUT", &format!("/api/sandboxes/{id}/labels"), &[], &body, 200);
        match said {
            Said::Yes => self.label = vec![Some(value)],
            Said::No | Said::Nothing => self.label.push(Some(value)),
        }
    }

    fn speak(&mut self, session: &str) {
        self.serial += 1;
        let word = format!("{}-said-{}", self.name, self.serial);
        let body = json!({"session_id": session, "language": "bash", "code": format!("echo {word}")});
        let (said, answer) = self.ask("POST", "/api/execute", &[], &body, 200);
        if said == Said::Yes {
            assert_eq!(answer.expect("a yes").json()["stdout"], format!("{word}\n"));
            self.words.push(word);
        }
    }

    /// A sandbox that is made and destroyed again.
    fn come_and_go(&mut self) {
        let body = json!({"limits": {"memory": 128 << 20}, "timers": {"idle_seconds": null}});
        let (said, answer) = self.ask("POST", "/api/sandboxes", &[], &body, 201);
        if said != Said::Yes {
            return;
        }
        let id = answer.expect("a yes").json()["id"].as_str().expect("an id").to_owned();
        let (said, _) = self.ask("DELETE", &format!("/api/sandboxes/{id}"), &[], &json!({}), 204);
        self.gone.push((id, said == Said::Yes));
    }

    /// Every fact, in a server that is well. Says how many.
    pub fn look(&mut self) -> usize {
        let mut facts = 0;
        let get = |path: &str| self.api.json("GET", path, &[], None).expect("an answer");
        let Some(id) = &self.sandbox else { return 0 };
        // What was begun in the trouble may still be on its way.
        let found = until_some("a lasting state", LIMIT, || {
            let found = get(&format!("/api/sandboxes/{id}")).expect_status(200).json();
            let state = found["state"].as_str().unwrap_or_default();
            let lasts = state == "running" || !state.ends_with("ing");
            lasts.then_some(found)
        });
        assert!(matches!(found["state"].as_str(), Some("running" | "stopped")), "{}: {found}", self.name);
        if found["state"] == "stopped" {
            let url = format!("/api/sandboxes/{id}/start");
            self.api.json("POST", &url, &[], None).expect("an answer").expect_status(200);
        }
        let label = found["labels"]["serial"].as_str().map(ToOwned::to_owned);
        assert!(self.label.contains(&label), "{}: label {label:?}, not one of {:?}", self.name, self.label);
        self.label = vec![label];
        for (path, known) in &mut self.files {
            let answer = get(&format!("/api/sandboxes/{id}/files/content?path={path}"));
            let status = answer.status;
            assert!(matches!(status, 200 | 404), "{}: {path} of {id}: {status} {}", self.name, answer.text());
            let found = (status == 200).then_some(answer.body);
            assert!(known.contains(&found), "{}: {path} of {id} has other bytes", self.name);
            *known = vec![found];
            facts += 1;
        }
        if let Some(session) = &self.session {
            let mut journal = String::new();
            let mut from = 1;
            loop {
                let page = get(&format!("/api/sessions/{session}/journal?seq={from}")).expect_status(200);
                let page = page.json();
                let entries = page.as_array().expect("a list");
                let Some(last) = entries.last() else { break };
                from = last["seq"].as_i64().expect("a number") + 1;
                journal.push_str(&page.to_string());
            }
            for word in &self.words {
                assert!(journal.contains(word.as_str()), "{}: {word} is not in the journal", self.name);
                facts += 1;
            }
        }
        for (id, answered) in self.gone.drain(..) {
            let status = get(&format!("/api/sandboxes/{id}")).status;
            assert!(status == 404 || !answered, "{}: {id} was destroyed and is there: {status}", self.name);
            facts += 1;
        }
        facts + 2
    }
}
