//! One client: sandboxes of its own, operations one after another, and a memory of what was acknowledged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cove_testkit::Random;
use cove_testkit::http::Answer;
use cove_testkit::server::Api;
use cove_testkit::wait::{LIMIT, until_some};
use serde_json::{Value, json};

use super::facts::{Either, Facts, Files, GONE, NAMES};
use super::follow;
use super::things::{Moment, Template, Volume};

/// Sandboxes that a client makes at most; copies may be one more.
const MOST: usize = 3;
/// How far a background command counts.
pub const LINES: usize = 300;

/// What the rounds and the clients share.
#[derive(Default)]
pub struct Line {
    /// Operations so far.
    pub begun: AtomicUsize,
    /// From now on an answer may fail to come, and one that comes is too late to count.
    pub killing: AtomicBool,
}

impl Line {
    /// A new round.
    pub fn begin(&self) {
        self.begun.store(0, Ordering::SeqCst);
        self.killing.store(false, Ordering::SeqCst);
    }
}

/// What ends a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blow {
    /// The server is killed. Sandboxes live on, and what they wrote is there.
    Kill,
    /// The power goes: processes end, and what was not synced may be lost.
    Power,
}

/// The server went away before it answered.
#[derive(Debug)]
pub struct Cut;

pub struct Client {
    pub(super) name: String,
    pub(super) api: Api,
    line: Arc<Line>,
    blow: Blow,
    pub(super) random: Random,
    pub(super) sandboxes: Vec<Facts>,
    pub(super) moments: Vec<Moment>,
    pub(super) templates: Vec<Template>,
    pub(super) volumes: Vec<Volume>,
    /// The key of a creation that was not answered.
    unanswered: Option<String>,
    serial: usize,
    /// Entries that the audit log must have.
    pub(super) audited: Vec<(&'static str, String)>,
    /// Facts that were looked for and found.
    pub checked: usize,
}

/// How much is looked at of what lasts: to start from each takes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    Some,
    All,
}

/// All files of a sandbox that runs. Late answers count no more, whatever they say.
pub fn files_of(api: &Api, line: &Line, sandbox: &str) -> Result<Files, Cut> {
    let mut files = Files::new();
    for path in NAMES {
        let url = format!("/api/sandboxes/{sandbox}/files/content?path={path}");
        let answer = api.send("GET", &url, &[], None).map_err(|_| Cut)?;
        if line.killing.load(Ordering::SeqCst) {
            return Err(Cut);
        }
        assert!(matches!(answer.status, 200 | 404), "GET {url}: {}", answer.text());
        files.insert(path.to_owned(), (answer.status == 200).then_some(answer.body));
    }
    Ok(files)
}

impl Client {
    pub fn new(number: u64, api: Api, line: Arc<Line>, blow: Blow, random: Random) -> Client {
        Client {
            name: format!("client{number}"),
            api,
            line,
            blow,
            random,
            sandboxes: Vec::new(),
            moments: Vec::new(),
            templates: Vec::new(),
            volumes: Vec::new(),
            unanswered: None,
            serial: 0,
            audited: Vec::new(),
            checked: 0,
        }
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Every sandbox that is there, and whether it has processes.
    pub fn sandboxes(&self) -> Vec<(String, bool)> {
        let runs = |facts: &Facts| matches!(facts.state.known(), Some(&("running" | "paused")));
        self.sandboxes.iter().map(|facts| (facts.id.clone(), runs(facts))).collect()
    }

    /// One operation after another until the server is gone.
    pub fn work(&mut self) {
        while self.operate().is_ok() {}
        let expected = self.line.killing.load(Ordering::SeqCst);
        assert!(expected, "{}: the connection was cut while the server lived", self.name);
    }

    /// An answer that came before the blow.
    pub(super) fn in_time<T>(&self, answer: io::Result<T>) -> Result<T, Cut> {
        let answer = answer.map_err(|_| Cut)?;
        if self.line.killing.load(Ordering::SeqCst) { Err(Cut) } else { Ok(answer) }
    }

    fn operate(&mut self) -> Result<(), Cut> {
        self.line.begun.fetch_add(1, Ordering::SeqCst);
        if self.sandboxes.len() < MOST && (self.sandboxes.is_empty() || self.random.one_in(4)) {
            return self.create();
        }
        if self.random.one_in(5) {
            return self.keep_things();
        }
        let index = usize::try_from(self.random.below(self.sandboxes.len() as u64)).unwrap_or(0);
        let Some(&state) = self.sandboxes[index].state.known() else { panic!("a state was left open") };
        let mut choices: Vec<&str> = match state {
            "running" => vec!["write", "write", "sync", "exec", "exec", "count", "session", "pause", "stop", "delete"],
            "paused" => vec!["resume", "resume", "stop", "delete"],
            "stopped" => vec!["start", "start", "archive", "delete"],
            "archived" => vec!["start", "start", "delete"],
            other => panic!("{} is {other}", self.sandboxes[index].id),
        };
        choices.extend(self.moves(index, state, MOST));
        match *self.random.choose(&choices).unwrap_or(&"write") {
            "snapshot" => self.snapshot(index),
            "rollback" => self.rollback(index),
            "fork" => self.fork(index),
            "write" => self.write(index),
            "sync" => self.write_and_sync(index),
            "exec" => self.exec(index),
            "count" => self.count(index),
            "session" => self.session(index),
            "delete" => self.delete(index),
            "pause" => self.change(index, "pause", "paused"),
            "stop" => self.change(index, "stop", "stopped"),
            "archive" => self.change(index, "archive", "archived"),
            verb => self.change(index, verb, "running"),
        }
    }

    pub(super) fn send(&self, method: &str, path: &str, body: Option<&Value>, wanted: u16) -> Result<Answer, Cut> {
        let answer = self.in_time(self.api.json(method, path, &[], body))?;
        assert_eq!(answer.status, wanted, "{}: {method} {path} {body:?}: {}", self.name, answer.text());
        Ok(answer)
    }

    pub(super) fn fresh(&mut self, what: &str) -> String {
        self.serial += 1;
        format!("{}-{what}-{}", self.name, self.serial)
    }

    fn create(&mut self) -> Result<(), Cut> {
        let key = self.unanswered.take().unwrap_or_else(|| self.fresh("box"));
        self.unanswered = Some(key.clone());
        let answer = self.ask_for(&key)?;
        self.unanswered = None;
        let id = answer["id"].as_str().expect("an id").to_owned();
        self.audited.push(("sandbox.create", id.clone()));
        self.sandboxes.push(Facts::new(id, key));
        Ok(())
    }

    /// Makes the sandbox of this key, or gets it again.
    fn ask_for(&self, key: &str) -> Result<Value, Cut> {
        let body = json!({"name": key, "limits": {"memory": 128 << 20}});
        let headers = [("idempotency-key", key)];
        let answer = self.in_time(self.api.json("POST", "/api/sandboxes", &headers, Some(&body)))?;
        assert_eq!(answer.status, 201, "{}: create {key}: {}", self.name, answer.text());
        Ok(answer.json())
    }

    fn write(&mut self, index: usize) -> Result<(), Cut> {
        self.write_some(index).map(|_| ())
    }

    /// What was synced inside outlives a power cut too.
    fn write_and_sync(&mut self, index: usize) -> Result<(), Cut> {
        let path = self.write_some(index)?;
        let url = self.sandboxes[index].path("/exec");
        let body = json!({"command": ["sync", path, "/home/user"]});
        let synced = self.send("POST", &url, Some(&body), 200)?.json();
        assert_eq!(synced["exit"]["status"], 0, "{}: sync {path}: {synced}", self.name);
        self.sandboxes[index].is_synced(&path);
        Ok(())
    }

    fn write_some(&mut self, index: usize) -> Result<String, Cut> {
        let path = (*self.random.choose(&NAMES).unwrap_or(&NAMES[0])).to_owned();
        let bytes = self.some_bytes();
        let facts = &mut self.sandboxes[index];
        facts.synced.remove(&path);
        let url = facts.path(&format!("/files/content?path={path}"));
        // What was lost may be anything until it is written.
        if !facts.lost.contains(&path) {
            facts.files.entry(path.clone()).or_insert_with(|| Either::surely(None)).or(Some(bytes.clone()));
        }
        let answer = self.in_time(self.api.send("PUT", &url, &[], Some(&bytes)))?;
        assert_eq!(answer.status, 200, "{}: PUT {url}: {}", self.name, answer.text());
        self.sandboxes[index].lost.remove(&path);
        self.sandboxes[index].files.insert(path.clone(), Either::surely(Some(bytes)));
        Ok(path)
    }

    pub(super) fn some_bytes(&mut self) -> Vec<u8> {
        let length = usize::try_from(self.random.below(60_000)).unwrap_or(0);
        self.random.bytes(length)
    }

    fn exec(&mut self, index: usize) -> Result<(), Cut> {
        let tag = self.fresh("exit");
        let status = i64::try_from(self.random.below(200)).unwrap_or(0);
        let body = json!({"shell": format!("echo {tag}; exit {status}"), "tag": tag});
        let url = self.sandboxes[index].path("/exec");
        let result = self.send("POST", &url, Some(&body), 200)?.json();
        assert_eq!((&result["stdout"], &result["exit"]["status"]), (&json!(format!("{tag}\n")), &json!(status)));
        self.sandboxes[index].exits.insert(tag, status);
        Ok(())
    }

    /// A command that continues while the server is gone.
    fn count(&mut self, index: usize) -> Result<(), Cut> {
        if self.sandboxes[index].counting.is_some() {
            return self.exec(index);
        }
        let tag = self.fresh("count");
        let body = json!({"shell": follow::counting(), "tag": tag, "background": true});
        self.sandboxes[index].counting = Some((tag.clone(), false));
        self.send("POST", &self.sandboxes[index].path("/exec"), Some(&body), 200)?;
        self.sandboxes[index].counting = Some((tag, true));
        Ok(())
    }

    fn session(&mut self, index: usize) -> Result<(), Cut> {
        let id = self.sandboxes[index].id.clone();
        let session = match &self.sandboxes[index].session {
            Some((session, _)) => session.clone(),
            None => {
                let made = self.send("POST", "/api/sessions", Some(&json!({"sandbox_id": id})), 201)?.json();
                let session = made["session_id"].as_str().expect("an id").to_owned();
                self.sandboxes[index].session = Some((session.clone(), Vec::new()));
                session
            }
        };
        let word = self.fresh("said");
        let body = json!({"session_id": session, "language": "bash", "code": format!("echo {word}")});
        let result = self.send("POST", "/api/execute", Some(&body), 200)?.json();
        assert_eq!(result["stdout"], format!("{word}\n"), "{result}");
        if let Some((_, words)) = &mut self.sandboxes[index].session {
            words.push(word);
        }
        Ok(())
    }

    fn change(&mut self, index: usize, verb: &'static str, to: &'static str) -> Result<(), Cut> {
        let state = &mut self.sandboxes[index].state;
        if state.known() == Some(&"archived") {
            // Half-way its files are back and nothing runs yet.
            state.or("stopped");
        }
        state.or(to);
        let url = self.sandboxes[index].path(&format!("/{verb}"));
        let changed = self.send("POST", &url, None, 200)?.json();
        assert_eq!(changed["state"], to, "{verb} {changed}");
        let action = match verb {
            "start" => "sandbox.start",
            "stop" => "sandbox.stop",
            "pause" => "sandbox.pause",
            "resume" => "sandbox.resume",
            _ => "sandbox.archive",
        };
        self.audited.push((action, self.sandboxes[index].id.clone()));
        let was = self.sandboxes[index].state.0[0];
        self.sandboxes[index].state = Either::surely(to);
        match (was, verb) {
            (_, "stop") => {
                self.sandboxes[index].end_of_life();
                self.sandboxes[index].all_is_synced();
                Ok(())
            }
            ("stopped" | "archived", "start") => self.look_inside(index),
            _ => Ok(()),
        }
    }

    fn delete(&mut self, index: usize) -> Result<(), Cut> {
        self.sandboxes[index].state.or(GONE);
        self.send("DELETE", &self.sandboxes[index].path(""), None, 204)?;
        let facts = self.sandboxes.swap_remove(index);
        self.audited.push(("sandbox.destroy", facts.id));
        Ok(())
    }

    /// The power went: no process runs, and only what was synced is sure to be there.
    pub fn lose_power(&mut self) {
        for facts in &mut self.sandboxes {
            facts.lose_power();
        }
    }

    /// After a restart: every fact, and what was left open is settled.
    pub fn look_for_everything(&mut self) {
        let looked = self.try_to_look();
        assert!(looked.is_ok(), "{}: the server is gone again", self.name);
    }

    fn try_to_look(&mut self) -> Result<(), Cut> {
        if let Some(key) = self.unanswered.take() {
            let found = self.ask_for(&key)?;
            let id = found["id"].as_str().expect("an id").to_owned();
            // One whose answer the power took does not run any more.
            let state = match (self.blow, found["state"].as_str()) {
                (_, Some("running")) => "running",
                (Blow::Power, Some("stopped")) => "stopped",
                _ => panic!("{}: repeated creation: {found}", self.name),
            };
            self.audited.push(("sandbox.create", id.clone()));
            self.sandboxes.push(Facts { state: Either::surely(state), ..Facts::new(id, key) });
        }
        for index in (0..self.sandboxes.len()).rev() {
            if !self.settle(index)? {
                self.sandboxes.swap_remove(index);
                continue;
            }
            let facts = &self.sandboxes[index];
            if let Some(key) = &facts.key {
                let again = self.ask_for(key)?;
                assert_eq!(again["id"], facts.id, "{}: the same key gives the same sandbox", self.name);
            }
            self.look_inside(index)?;
        }
        self.look_at_things(Care::Some)?;
        self.look_for_audit()
    }

    /// Whether it is still there.
    fn settle(&mut self, index: usize) -> Result<bool, Cut> {
        let facts = &mut self.sandboxes[index];
        // What takes long is finished behind the server's back: a state in transition ends.
        let (state, answer) = until_some("a lasting state", LIMIT, || {
            let answer = match self.api.json("GET", &facts.path(""), &[], None) {
                Ok(answer) => answer,
                Err(_) => return Some(Err(Cut)),
            };
            let state = if answer.status == 404 { GONE.to_owned() } else { answer.json()["state"].to_string() };
            let state = state.trim_matches('"').to_owned();
            (!state.ends_with("ing") || state == "running").then_some(Ok((state, answer)))
        })?;
        let found = facts.state.0.iter().copied().find(|&known| known == state);
        let Some(found) = found else {
            panic!("{}: sandbox {} is {state}, not one of {:?}: {}", self.name, facts.id, facts.state.0, answer.text())
        };
        facts.state = Either::surely(found);
        if matches!(found, "stopped" | "archived") {
            facts.end_of_life();
        }
        self.checked += 1;
        if found == GONE {
            return Ok(false);
        }
        // A copy was known by its name alone.
        facts.id = answer.json()["id"].as_str().expect("an id").to_owned();
        Ok(true)
    }

    /// Files, exits and running commands of a sandbox that can be asked.
    pub(super) fn look_inside(&mut self, index: usize) -> Result<(), Cut> {
        let (api, facts) = (&self.api, &mut self.sandboxes[index]);
        if facts.state.known() != Some(&"running") {
            return Ok(());
        }
        let found = files_of(api, &self.line, &facts.id)?;
        if !facts.allows(&found) {
            let of = |files: &Files| -> Vec<(String, Option<usize>)> {
                files.iter().map(|(path, bytes)| (path.clone(), bytes.as_ref().map(Vec::len))).collect()
            };
            let (has, other) = (of(&found), facts.rolled.as_ref().map(of));
            panic!("{}: {} has other files: {has:?}; a rollback would have left {other:?}", self.name, facts.id);
        }
        self.checked += facts.files.len();
        let synced = std::mem::take(&mut facts.synced);
        facts.has(&found);
        facts.synced = synced;
        for (tag, status) in &facts.exits {
            let url = format!("/api/sandboxes/{}/processes/{tag}", facts.id);
            let answer = api.json("GET", &url, &[], None).map_err(|_| Cut)?;
            assert_eq!(answer.status, 200, "{}: {url}: {}", self.name, answer.text());
            assert_eq!(answer.json()["exit"]["status"], *status, "{}: {url}", self.name);
            self.checked += 1;
        }
        if let Some((tag, acknowledged)) = facts.counting.clone() {
            let url = format!("/api/sandboxes/{}/processes/{tag}", facts.id);
            let there = api.json("GET", &url, &[], None).map_err(|_| Cut)?.status == 200;
            assert!(there || !acknowledged, "{}: the running command {tag} of {} is lost", self.name, facts.id);
            facts.counting = there.then(|| (tag.clone(), true));
            if there {
                // Some lines that come now, so that it is known to go on.
                let seen = follow::lines(api, &facts.id, &tag, 1)?.0.len();
                let (lines, exit) = follow::lines(api, &facts.id, &tag, seen + 3)?;
                follow::check(&lines, &tag);
                if let Some(status) = exit {
                    assert_eq!((lines.len(), status), (LINES, 9), "{}: the whole of {tag}", self.name);
                    facts.counting = None;
                    facts.exits.insert(tag, 9);
                }
                self.checked += 1;
            }
        }
        if let Some((session, words)) = &facts.session {
            let url = format!("/api/sessions/{session}/journal");
            let journal = api.json("GET", &url, &[], None).map_err(|_| Cut)?.expect_status(200).text();
            for word in words {
                assert!(journal.contains(word.as_str()), "{}: {word} is not in the journal {journal}", self.name);
                self.checked += 1;
            }
        }
        Ok(())
    }

    fn look_for_audit(&mut self) -> Result<(), Cut> {
        let log = self.api.json("GET", "/api/audit?limit=1000", &[], None).map_err(|_| Cut)?;
        let log = log.expect_status(200).json();
        for (action, id) in self.audited.drain(..) {
            let told =
                log.as_array().expect("a list").iter().any(|entry| entry["action"] == action && entry["subject"] == id);
            assert!(told, "{}: {action} of {id} is not in the audit log", self.name);
            self.checked += 1;
        }
        Ok(())
    }

    /// All that it has made goes.
    pub fn delete_everything(&mut self) {
        let deleted = self.try_to_delete_everything();
        assert!(deleted.is_ok(), "{}: the server is gone", self.name);
    }

    fn try_to_delete_everything(&mut self) -> Result<(), Cut> {
        self.look_at_things(Care::All)?;
        while !self.sandboxes.is_empty() {
            self.delete(0)?;
        }
        self.delete_things()?;
        self.look_for_audit()
    }

    /// At the end every sandbox must run again, with its files, and every command must have counted to its end.
    pub fn bring_up_and_look(&mut self) {
        let looked = self.try_to_bring_up();
        assert!(looked.is_ok(), "{}: the server is gone", self.name);
    }

    fn try_to_bring_up(&mut self) -> Result<(), Cut> {
        for index in 0..self.sandboxes.len() {
            let verb = if self.sandboxes[index].state.known() == Some(&"paused") { "resume" } else { "start" };
            self.change(index, verb, "running")?;
            self.look_inside(index)?;
            let facts = &self.sandboxes[index];
            if let Some((tag, _)) = &facts.counting {
                let (lines, exit) = follow::lines(&self.api, &facts.id, tag, usize::MAX)?;
                follow::check(&lines, tag);
                assert_eq!((lines.len(), exit), (LINES, Some(9)), "{}: the whole of {tag}", self.name);
                self.checked += 1;
            }
        }
        Ok(())
    }
}
