//! What a person reads when the server says no: its sentence, and what to do about it.
//!
//! The server speaks of fields (`limits.cpus`) and of "sandbox"; here they get the names that the person typed.

use reqwest::{Response, StatusCode};
use serde::Deserialize;

use super::conversation;
use crate::complaint::Complaint;
use crate::place::Place;

/// The body of every refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Body {
    code: String,
    message: String,
}

/// A refusal, and the request that it answers.
#[derive(Debug)]
pub struct Refusal {
    status: StatusCode,
    retry_after: Option<String>,
    /// The sandbox that the request named.
    sandbox: Option<String>,
    body: Body,
}

/// Where the request's key came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// `COVE_API_KEY`.
    OfTheEnvironment,
    /// Its file `api-key`, which the first start of a server writes.
    OfTheDataDirectory,
    None,
}

impl Refusal {
    pub async fn read(response: Response) -> Refusal {
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let (status, retry_after) = (response.status(), retry_after.map(str::to_owned));
        let sandbox = sandbox_of(response.url().path());
        let body = response.bytes().await.unwrap_or_default();
        Refusal { status, retry_after, sandbox, body: serde_json::from_slice(&body).unwrap_or_default() }
    }

    pub fn complaint(self, key: Key) -> Complaint {
        let message = match self.body.message.as_str() {
            "" => format!("the server answered {}", self.status),
            message => message.to_owned(),
        };
        if let Some(code) = conversation::program_code(&message) {
            return Complaint::engine(message).with_code(code);
        }
        // Some sentences of the server bring their remedy along.
        let (message, own) = match message.split_once("; hint: ") {
            Some((why, remedy)) => (why.to_owned(), Some(remedy.to_owned())),
            None => (message, None),
        };
        let remedy = own.or_else(|| self.remedy(key, &message));
        let complaint = Complaint::failed(self.in_the_persons_words(message));
        match remedy {
            Some(remedy) => complaint.hint(remedy),
            None => complaint,
        }
    }

    fn remedy(&self, key: Key, message: &str) -> Option<String> {
        match self.status {
            StatusCode::UNAUTHORIZED => Some(match key {
                Key::None => "set COVE_API_KEY; `cove serve` printed the first key when it started".into(),
                Key::OfTheEnvironment => "COVE_API_KEY is the key of another server, or was revoked".into(),
                Key::OfTheDataDirectory => {
                    let file = Place::new(None).data().join("api-key");
                    format!(
                        "{} has a key that was revoked: remove the file and start the server again for a new one, \
                         or set COVE_API_KEY",
                        file.display()
                    )
                }
            }),
            _ if message.starts_with("volume ") && message.ends_with(" is full") => {
                let volume = message.split(' ').nth(1).unwrap_or_default();
                Some(format!("cove volume resize {volume} MORE, or remove some of its files"))
            }
            _ if self.body.code == "quota_exceeded" && message.contains("GiB of volumes") => Some(
                "`cove volume ls`, `cove snapshot ls` and `cove template ls` list what is kept; who runs the server \
                 can raise the maximum: cove orgs quota ORGANISATION --storage MORE"
                    .into(),
            ),
            // Waiting changes nothing here.
            _ if self.body.code == "quota_exceeded" => Some(
                "`cove ls` lists what there is; who runs the server can raise the maximum: cove orgs quota ORGANISATION"
                    .into(),
            ),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                self.retry_after.as_ref().map(|seconds| format!("try again in {seconds} s"))
            }
            _ => match self.body.code.as_str() {
                "not_found" => list_of(message.split(' ').next().unwrap_or_default()).map(str::to_owned),
                "wrong_state" => self.way_back(message),
                "invalid" => limit(message),
                "forbidden" => scope(message),
                "conflict" => self.other_way(message),
                _ => None,
            },
        }
    }

    /// The verb after which the request would succeed.
    fn way_back(&self, message: &str) -> Option<String> {
        let sandbox = self.sandbox.as_ref()?;
        let verbs =
            [("; start it", "start"), ("; resume it", "resume"), ("; stop it", "stop"), ("; recover", "recover")];
        let (_, verb) = verbs.iter().find(|(part, _)| message.contains(part))?;
        Some(format!("cove {verb} {sandbox}"))
    }

    /// What leads to the same end where something is in the way.
    fn other_way(&self, message: &str) -> Option<String> {
        if message.contains("no checkpoint to go back to") {
            let sandbox = self.sandbox.as_ref()?;
            return Some(format!("`cove snapshot create {sandbox}` keeps a moment to go back to"));
        }
        // Where a sandbox is made, and not where one is named anew.
        let taken = message.strip_prefix("a sandbox named \"")?.strip_suffix("\" is there already")?;
        self.sandbox.is_none().then(|| {
            format!("`cove create --name {taken} --ensure` uses the one that is there, `cove rm {taken}` removes it")
        })
    }

    /// `limits.cpus: …` is what was typed as `--cpus`, and "sandbox is stopped" has a name.
    fn in_the_persons_words(&self, message: String) -> String {
        if let Some(rest) = message.strip_prefix("limits.") {
            return format!("--{rest}");
        }
        if let Some((flag, rest)) = FLAGS.iter().find_map(|(field, flag)| Some((flag, message.strip_prefix(field)?))) {
            return format!("{flag}: {rest}");
        }
        let (of_state, of_field) = (message.strip_prefix("sandbox is "), message.strip_prefix("sandbox: "));
        match (&self.sandbox, of_state, of_field) {
            (Some(sandbox), Some(rest), _) => format!("sandbox {sandbox} is {rest}"),
            (Some(sandbox), _, Some(rest)) => format!("sandbox {sandbox}: {rest}"),
            _ => message,
        }
    }
}

/// Fields that have one flag, whichever verb sent them.
const FLAGS: [(&str, &str); 3] = [("provider: ", "--provider"), ("kinds: ", "--kind"), ("volumes.path: ", "--volume")];

/// `/api/sandboxes/NAME/…`
fn sandbox_of(path: &str) -> Option<String> {
    let name = path.split_once("/api/sandboxes/")?.1.split('/').next()?;
    let name = percent_encoding::percent_decode_str(name).decode_utf8().ok()?;
    (!name.is_empty()).then(|| name.into_owned())
}

/// What shows which ones there are.
fn list_of(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "sandbox" => "`cove ls` lists the sandboxes",
        "template" => "`cove template ls` lists the templates",
        "key" => "`cove keys ls` lists the keys",
        "organisation" => "`cove orgs ls` lists the organisations",
        "orphan" => "`cove orphans ls` lists the orphans",
        "pool" => "`cove pools ls` lists the pools",
        "snapshot" => "`cove snapshot ls` lists the snapshots",
        "volume" => "`cove volume ls` lists the volumes",
        "session" => "`cove sessions ls` lists the sessions",
        "webhook" => "`cove webhooks ls` lists the webhooks",
        _ => return None,
    })
}

/// What a key of too narrow a scope needs.
fn scope(message: &str) -> Option<String> {
    let scope = message.strip_prefix("this needs a key with scope ")?;
    let whose = if scope == "operator" { "who runs the server" } else { "an admin's key" };
    Some(format!("`cove whoami` shows what yours may do; {whose} can make one: cove keys create NAME --scope {scope}"))
}

fn limit(message: &str) -> Option<String> {
    let (field, why) = message.strip_prefix("limits.")?.split_once(": ")?;
    if why.contains("the organisation's maximum") {
        // Which one it is, `cove whoami` says; raising it takes a key that may.
        return Some(format!("who runs the server can raise it: cove orgs quota ORGANISATION --{field} MORE"));
    }
    let is_size = matches!(field, "memory" | "disk") && why.starts_with("at least");
    is_size.then(|| "sizes without a unit are bytes; write 512M for 512 MiB".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str, message: &str, path: &str) -> String {
        let refusal = Refusal {
            status: StatusCode::from_u16(status).unwrap(),
            retry_after: Some("7".into()),
            sandbox: sandbox_of(path),
            body: Body { code: code.into(), message: message.into() },
        };
        refusal.complaint(Key::OfTheEnvironment).to_string()
    }

    #[test]
    fn what_is_not_there_is_looked_for_where_it_would_be() {
        for (message, hint) in [
            ("sandbox x does not exist", "hint: `cove ls`"),
            ("template x does not exist", "hint: `cove template ls`"),
            ("key x does not exist", "hint: `cove keys ls`"),
            ("pool x does not exist", "hint: `cove pools ls`"),
            ("webhook x does not exist", "hint: `cove webhooks ls`"),
        ] {
            let said = refused(404, "not_found", message, "/api/things/x");
            assert!(said.contains(hint), "{said}");
        }
        assert!(!refused(404, "not_found", "process 7 does not exist", "/api/x").contains("hint"));
    }

    #[test]
    fn a_sandbox_in_another_state_is_named_with_the_way_back() {
        let path = "/api/sandboxes/my%20box/exec/stream";
        assert_eq!(
            refused(409, "wrong_state", "sandbox is stopped and cannot be used; start it first", path),
            "error: sandbox my box is stopped and cannot be used; start it first\nhint: cove start my box"
        );
        let said = refused(409, "wrong_state", "sandbox is paused and cannot be used; resume it first", path);
        assert!(said.ends_with("hint: cove resume my box"), "{said}");
    }

    #[test]
    fn a_limit_is_called_as_it_was_typed() {
        let said =
            refused(400, "invalid", "limits.cpus: 64 asked for, the organisation's maximum for one sandbox is 4", "/x");
        assert!(said.starts_with("error: --cpus: 64 asked for") && said.contains("hint: "), "{said}");
        let said = refused(400, "invalid", "limits.memory: at least 16 MiB", "/x");
        assert!(said.contains("without a unit are bytes"), "{said}");
    }

    #[test]
    fn a_field_with_one_flag_is_called_by_it() {
        let said = refused(400, "invalid", "kinds: \"x\" is no kind of event", "/api/webhooks");
        assert_eq!(said, "error: --kind: \"x\" is no kind of event");
        let other = "provider local cannot pause: no group";
        assert_eq!(refused(400, "unsupported", other, "/x"), format!("error: {other}"));
        let said = refused(400, "invalid", "sandbox: it was started without a network", "/api/sandboxes/box/network");
        assert_eq!(said, "error: sandbox box: it was started without a network");
    }

    #[test]
    fn a_key_that_may_not_do_it_and_a_name_that_is_taken_have_a_way_out() {
        let said = refused(403, "forbidden", "this needs a key with scope write", "/x");
        assert!(said.contains("`cove whoami`") && said.ends_with("cove keys create NAME --scope write"), "{said}");
        let taken = "a sandbox named \"box\" is there already";
        let said = refused(409, "conflict", taken, "/api/sandboxes");
        assert!(said.contains("--name box --ensure") && said.contains("cove rm box"), "{said}");
        assert!(!refused(409, "conflict", taken, "/api/sandboxes/lab/name").contains("hint"));
        let none = "the sandbox has no checkpoint to go back to";
        let said = refused(409, "conflict", none, "/api/sandboxes/box/rollback");
        assert!(said.ends_with("`cove snapshot create box` keeps a moment to go back to"), "{said}");
    }

    #[test]
    fn a_remedy_of_the_server_has_a_line_of_its_own() {
        let said =
            refused(400, "unsupported", "limits.memory cannot be held: no group; hint: on that machine: x", "/x");
        assert_eq!(said, "error: --memory cannot be held: no group\nhint: on that machine: x");
    }

    #[test]
    fn a_full_volume_is_resized_and_full_storage_is_looked_through() {
        let said = refused(507, "full", "volume data is full", "/x");
        assert!(said.contains("hint: cove volume resize data MORE"), "{said}");
        let kept = "the organisation keeps 1.0 GiB of templates and 2.0 GiB of volumes, and may keep 3.0 GiB";
        let said = refused(429, "quota_exceeded", kept, "/x");
        assert!(said.contains("hint: `cove volume ls`") && said.contains("--storage MORE"), "{said}");
    }

    #[test]
    fn a_server_without_room_says_when_to_come_back() {
        assert_eq!(refused(503, "no_capacity", "no room", "/x"), "error: no room\nhint: try again in 7 s");
        assert_eq!(refused(502, "", "", "/x"), "error: the server answered 502 Bad Gateway");
        let quota = refused(429, "quota_exceeded", "the organisation has its maximum of 1 running sandboxes", "/x");
        assert!(quota.contains("hint: `cove ls`") && !quota.contains("try again"), "{quota}");
    }
}
