//! A client and what lasts beside its sandboxes: snapshots and the way back to them, copies, templates, volumes.
//!
//! What was acknowledged is there and is whole: a sandbox that is started from it has the files. Of what was asked and not
//! answered either all is there or nothing.

use std::time::{Duration, Instant};

use cove_testkit::wait::LIMIT;
use serde_json::{Value, json};

use super::client::{Care, Client, Cut, files_of};
use super::facts::Either;
use super::things::{Moment, Stage, Template, Volume};

/// Of each client, at most.
const MOMENTS: usize = 2;
const VOLUMES: usize = 2;
const TEMPLATES: usize = 1;

/// What the step of a template writes.
const WORD: &str = "/etc/word";

impl Client {
    /// What can be done beside the usual with a sandbox in this state. A snapshot or a copy is taken where all its files are
    /// known: then those of the other are known too.
    pub(super) fn moves(&self, index: usize, state: &str, most: usize) -> Vec<&'static str> {
        let facts = &self.sandboxes[index];
        let mut moves = Vec::new();
        if facts.known_files().is_none() || state == "archived" {
            return moves;
        }
        if self.moments.len() < MOMENTS {
            moves.push("snapshot");
        }
        if self.sandboxes.len() <= most {
            moves.push("fork");
        }
        if state != "paused" && self.moments.iter().any(|moment| moment.sandbox == facts.id) {
            moves.push("rollback");
        }
        moves
    }

    pub(super) fn snapshot(&mut self, index: usize) -> Result<(), Cut> {
        let name = self.fresh("moment");
        let facts = &self.sandboxes[index];
        let (sandbox, url) = (facts.id.clone(), facts.path("/snapshots"));
        let files = facts.known_files().expect("all its files are known");
        let there = Either(vec![false, true]);
        self.moments.push(Moment { name: name.clone(), id: None, sandbox: sandbox.clone(), there, files });
        let Some(taken) = self.ask(&url, &json!({ "name": name }), 201)? else {
            self.moments.pop();
            return Ok(());
        };
        let moment = self.moments.last_mut().expect("pushed above");
        (moment.there, moment.id) = (Either::surely(true), id_of(&taken));
        self.audited.push(("snapshot.create", sandbox));
        Ok(())
    }

    /// A request that a busy machine may refuse for now: `None`. Then nothing has changed.
    fn ask(&self, url: &str, body: &Value, wanted: u16) -> Result<Option<Value>, Cut> {
        let answer = self.in_time(self.api.json("POST", url, &[], Some(body)))?;
        if answer.status == 503 {
            return Ok(None);
        }
        assert_eq!(answer.status, wanted, "{}: POST {url} {body}: {}", self.name, answer.text());
        Ok(Some(answer.json()))
    }

    pub(super) fn rollback(&mut self, index: usize) -> Result<(), Cut> {
        let facts = &mut self.sandboxes[index];
        let of_it: Vec<&Moment> = self.moments.iter().filter(|moment| moment.sandbox == facts.id).collect();
        let Some(moment) = self.random.choose(&of_it) else { return Ok(()) };
        let (to, files) = (moment.name.clone(), moment.files.clone());
        let ran = facts.state.known() == Some(&"running");
        if ran {
            facts.state.or("stopped");
        }
        // Whether its processes have ended by then is open, too.
        facts.end_of_life();
        facts.rolled = Some(files.clone());
        let url = facts.path("/rollback");
        let back = self.send("POST", &url, Some(&json!({ "snapshot": to })), 200)?.json();
        let state = if ran { "running" } else { "stopped" };
        assert_eq!(back["sandbox"]["state"], state, "{}: {back}", self.name);
        let facts = &mut self.sandboxes[index];
        facts.state = Either::surely(state);
        facts.has(&files);
        facts.all_is_synced();
        self.audited.push(("sandbox.rollback", facts.id.clone()));
        self.look_inside(index)
    }

    pub(super) fn fork(&mut self, index: usize) -> Result<(), Cut> {
        let name = self.fresh("fork");
        let url = self.sandboxes[index].path("/fork");
        let copy = self.sandboxes[index].copy(name.clone());
        self.sandboxes.push(copy);
        let Some(forked) = self.ask(&url, &json!({ "names": [name] }), 200)? else {
            self.sandboxes.pop();
            return Ok(());
        };
        let id = id_of(&forked["forks"][0]["sandbox"]).unwrap_or_else(|| panic!("{}: {forked}", self.name));
        let place = self.sandboxes.len() - 1;
        let copy = &mut self.sandboxes[place];
        (copy.id, copy.state) = (id.clone(), Either::surely("running"));
        self.audited.push(("sandbox.fork", id));
        self.look_inside(place)
    }

    /// Something that is about no sandbox.
    pub(super) fn keep_things(&mut self) -> Result<(), Cut> {
        let mut choices = Vec::new();
        if self.volumes.len() < VOLUMES {
            choices.push("make volume");
        }
        if !self.volumes.is_empty() {
            choices.extend(["write", "write", "write", "drop volume"]);
        }
        choices.push(if self.templates.len() < TEMPLATES { "build" } else { "drop template" });
        if !self.moments.is_empty() {
            choices.push("drop moment");
        }
        match *self.random.choose(&choices).unwrap_or(&"make volume") {
            "make volume" => self.make_volume(),
            "write" => self.write_to_volume(),
            "drop volume" => self.drop_volume(),
            "build" => self.build(),
            "drop template" => self.drop_template(),
            _ => self.drop_moment(),
        }
    }

    fn any(&mut self, count: usize) -> usize {
        usize::try_from(self.random.below(count as u64)).unwrap_or(0)
    }

    fn make_volume(&mut self) -> Result<(), Cut> {
        let name = self.fresh("volume");
        let there = Either(vec![false, true]);
        self.volumes.push(Volume { name: name.clone(), id: None, there, files: Default::default() });
        let body = json!({ "name": name, "size": 64 << 20 });
        let made = self.send("POST", "/api/volumes", Some(&body), 201)?.json();
        let id = id_of(&made).expect("an id");
        self.audited.push(("volume.create", id.clone()));
        let volume = self.volumes.last_mut().expect("pushed above");
        (volume.there, volume.id) = (Either::surely(true), Some(id));
        Ok(())
    }

    fn write_to_volume(&mut self) -> Result<(), Cut> {
        let index = self.any(self.volumes.len());
        let path = format!("/deep/file{}", self.random.below(3));
        let bytes = self.some_bytes();
        let volume = &mut self.volumes[index];
        let url = format!("/api/volumes/{}/files/content?path={path}", volume.name);
        volume.files.entry(path.clone()).or_insert_with(|| Either::surely(None)).or(Some(bytes.clone()));
        let answer = self.in_time(self.api.send("PUT", &url, &[], Some(&bytes)))?;
        assert_eq!(answer.status, 200, "{}: PUT {url}: {}", self.name, answer.text());
        self.volumes[index].files.insert(path, Either::surely(Some(bytes)));
        Ok(())
    }

    fn drop_volume(&mut self) -> Result<(), Cut> {
        let index = self.any(self.volumes.len());
        let volume = &mut self.volumes[index];
        volume.there.or(false);
        let url = format!("/api/volumes/{}", volume.name);
        self.send("DELETE", &url, None, 204)?;
        let volume = self.volumes.swap_remove(index);
        self.audited.extend(volume.id.map(|id| ("volume.delete", id)));
        Ok(())
    }

    /// Builds a template to its end.
    fn build(&mut self) -> Result<(), Cut> {
        let (name, word) = (self.fresh("template"), self.fresh("word"));
        let there = Either(vec![false, true]);
        let asked = Template { name: name.clone(), id: None, word: word.clone(), there, stage: Stage::Asked };
        self.templates.push(asked);
        let step = json!({"run": {"command": format!("echo {word} > {WORD}"), "user": "root"}});
        let body = json!({"name": name, "from": {"template": "base", "steps": [step]}});
        let begun = self.send("POST", "/api/templates", Some(&body), 202)?.json();
        let id = id_of(&begun["template"]).expect("an id");
        self.audited.push(("template.create", id.clone()));
        let template = self.templates.last_mut().expect("pushed above");
        (template.there, template.id, template.stage) = (Either::surely(true), Some(id), Stage::Begun);
        let begun_at = Instant::now();
        loop {
            let told = self.send("GET", &format!("/api/templates/{name}"), None, 200)?.json();
            match told["state"].as_str() {
                Some("ready") => break,
                Some("waiting" | "building") => {}
                _ => panic!("{}: {told}", self.name),
            }
            assert!(begun_at.elapsed() < 2 * LIMIT, "{}: {name} is not built: {told}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(template) = self.templates.last_mut() {
            template.stage = Stage::Ready;
        }
        Ok(())
    }

    fn drop_template(&mut self) -> Result<(), Cut> {
        let index = self.any(self.templates.len());
        let template = &mut self.templates[index];
        template.there.or(false);
        let url = format!("/api/templates/{}", template.name);
        self.send("DELETE", &url, None, 204)?;
        let template = self.templates.swap_remove(index);
        self.audited.extend(template.id.map(|id| ("template.delete", id)));
        Ok(())
    }

    fn drop_moment(&mut self) -> Result<(), Cut> {
        let index = self.any(self.moments.len());
        let moment = &mut self.moments[index];
        moment.there.or(false);
        let url = format!("/api/snapshots/{}", moment.name);
        self.send("DELETE", &url, None, 204)?;
        let moment = self.moments.swap_remove(index);
        self.audited.extend(moment.id.map(|id| ("snapshot.delete", id)));
        Ok(())
    }

    /// After a restart: what was acknowledged is there, and what was left open is settled.
    pub(super) fn look_at_things(&mut self, care: Care) -> Result<(), Cut> {
        for index in (0..self.moments.len()).rev() {
            if !self.settle_moment(index, care)? {
                self.moments.swap_remove(index);
            }
        }
        for index in (0..self.templates.len()).rev() {
            if !self.settle_template(index, care)? {
                self.templates.swap_remove(index);
            }
        }
        for index in (0..self.volumes.len()).rev() {
            if !self.settle_volume(index)? {
                self.volumes.swap_remove(index);
            }
        }
        Ok(())
    }

    /// Whether it is there; that must be allowed.
    fn is_there(&mut self, url: &str, allowed: &Either<bool>) -> Result<Option<Value>, Cut> {
        let answer = self.in_time(self.api.json("GET", url, &[], None))?;
        assert!(matches!(answer.status, 200 | 404), "{}: GET {url}: {}", self.name, answer.text());
        let there = answer.status == 200;
        assert!(allowed.0.contains(&there), "{}: {url} is there: {there}, allowed was {allowed:?}", self.name);
        self.checked += 1;
        Ok(there.then(|| answer.json()))
    }

    fn settle_moment(&mut self, index: usize, care: Care) -> Result<bool, Cut> {
        let Moment { name, there, files, .. } = &self.moments[index];
        let (name, there, files) = (name.clone(), there.clone(), files.clone());
        if self.is_there(&format!("/api/snapshots/{name}"), &there)?.is_none() {
            return Ok(false);
        }
        // One of which nobody knows whether it was taken must be whole all the same.
        if there.known().is_none() || care == Care::All || self.random.one_in(4) {
            let sandbox = self.start_from(&name)?;
            let found = files_of(&self.api, self.line(), &sandbox)?;
            assert!(found == files, "{}: snapshot {name} does not have the files that its sandbox had", self.name);
            self.end_probe(&sandbox)?;
        }
        self.moments[index].there = Either::surely(true);
        Ok(true)
    }

    fn settle_template(&mut self, index: usize, care: Care) -> Result<bool, Cut> {
        let Template { name, word, there, stage, .. } = &self.templates[index];
        let (name, word, there, stage) = (name.clone(), word.clone(), there.clone(), *stage);
        let url = format!("/api/templates/{name}");
        let begun = Instant::now();
        let told = loop {
            let Some(told) = self.is_there(&url, &there)? else { return Ok(false) };
            let open = match told["state"].as_str() {
                Some("building") => true,
                // The server died between the row of the build and its start, and nobody was told of either.
                Some("waiting") => stage != Stage::Asked,
                _ => false,
            };
            if !open {
                break told;
            }
            assert!(begun.elapsed() < 2 * LIMIT, "{}: the build of {name} is not taken up again: {told}", self.name);
            std::thread::sleep(Duration::from_millis(20));
        };
        if told["state"] != "ready" {
            assert!(stage != Stage::Ready, "{}: {name} was ready: {told}", self.name);
            self.is_given_up(&url, &told)?;
            self.send("DELETE", &url, None, 204)?;
            return Ok(false);
        }
        if stage != Stage::Ready || care == Care::All || self.random.one_in(4) {
            let sandbox = self.start_from(&name)?;
            let path = format!("/api/sandboxes/{sandbox}/files/content?path={WORD}");
            let written = self.send("GET", &path, None, 200)?.text();
            assert_eq!(written.trim(), word, "{}: what the step of {name} wrote", self.name);
            self.end_probe(&sandbox)?;
        }
        let template = &mut self.templates[index];
        (template.there, template.stage) = (Either::surely(true), Stage::Ready);
        Ok(true)
    }

    /// A build fails for one reason alone: it was killed too often.
    fn is_given_up(&self, url: &str, told: &Value) -> Result<(), Cut> {
        if told["state"] == "waiting" {
            return Ok(());
        }
        let builds = self.send("GET", &format!("{url}/builds"), None, 200)?.json();
        let why = builds["items"][0]["failure"]["message"].as_str().unwrap_or_default();
        assert!(why.contains("again and again"), "{}: {told}: {why}", self.name);
        Ok(())
    }

    fn settle_volume(&mut self, index: usize) -> Result<bool, Cut> {
        let Volume { name, there, .. } = &self.volumes[index];
        let (url, there) = (format!("/api/volumes/{name}"), there.clone());
        let Some(told) = self.is_there(&url, &there)? else { return Ok(false) };
        assert_eq!(told["state"], "ready", "{}: {told}", self.name);
        let (api, volume) = (&self.api, &mut self.volumes[index]);
        volume.there = Either::surely(true);
        for (path, contents) in &mut volume.files {
            let url = format!("{url}/files/content?path={path}");
            let answer = api.send("GET", &url, &[], None).map_err(|_| Cut)?;
            assert!(matches!(answer.status, 200 | 404), "GET {url}: {}", answer.text());
            let found = (answer.status == 200).then_some(answer.body);
            assert!(contents.0.contains(&found), "{}: {path} of volume {} has other bytes", self.name, volume.name);
            *contents = Either::surely(found);
            self.checked += 1;
        }
        Ok(true)
    }

    /// A sandbox to look into, by its name.
    fn start_from(&mut self, template: &str) -> Result<String, Cut> {
        let name = self.fresh("probe");
        let body = json!({"name": name, "template": template, "limits": {"memory": 128 << 20}});
        self.send("POST", "/api/sandboxes", Some(&body), 201)?;
        Ok(name)
    }

    fn end_probe(&mut self, sandbox: &str) -> Result<(), Cut> {
        self.send("DELETE", &format!("/api/sandboxes/{sandbox}"), None, 204)?;
        self.checked += 1;
        Ok(())
    }

    pub(super) fn delete_things(&mut self) -> Result<(), Cut> {
        while !self.moments.is_empty() {
            self.drop_moment()?;
        }
        while !self.templates.is_empty() {
            self.drop_template()?;
        }
        while !self.volumes.is_empty() {
            self.drop_volume()?;
        }
        Ok(())
    }
}

fn id_of(thing: &Value) -> Option<String> {
    thing["id"].as_str().map(ToOwned::to_owned)
}
