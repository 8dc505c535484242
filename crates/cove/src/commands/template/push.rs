//! A template or a snapshot to a registry: the server pushes, this program shows how far it is.

use clap::Args;
use serde_json::{Value, json};

use super::follow;
use super::order::registry;
use super::tone_of;
use crate::client::{Client, segment};
use crate::complaint::Complaint;
use crate::render::{List, Tone, moment, print, print_json, say, word};

/// Where an image goes, and as whom.
#[derive(Debug, Args)]
pub struct To {
    /// The name in the registry, `REGISTRY/REPOSITORY:TAG`
    image: String,
    /// Who pushes; the password is read from COVE_REGISTRY_PASSWORD
    #[arg(long, value_name = "USER")]
    registry_user: Option<String>,
    /// Print the push's id and leave; it goes on
    #[arg(short, long)]
    detach: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `of` is the path of what is pushed.
pub async fn run(client: &Client, of: &str, to: &To) -> Result<u8, Complaint> {
    let mut body = json!({ "image": to.image });
    if let Some(who) = registry(to.registry_user.as_deref())? {
        body["registry"] = who;
    }
    let begun: Value = client.post(&format!("{of}/push"), &body).await?;
    if to.detach {
        match to.json {
            true => print_json(&begun)?,
            false => print(word(&begun, "id"))?,
        }
        say("hint: cove template pushes");
        return Ok(0);
    }
    let ended = follow::or_cancelled(client, &path(word(&begun, "id"))).await?;
    judge(&ended)?;
    match to.json {
        true => print_json(&ended)?,
        false => print(&named(&ended))?,
    }
    Ok(0)
}

fn path(push: &str) -> String {
    format!("/pushes/{}", segment(push))
}

/// What the registry has, by a name that means it for ever.
fn named(push: &Value) -> String {
    let image = word(push, "image");
    // The colon before a slash is a port's.
    let repository = match image.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => image,
    };
    format!("{repository}@{}", word(push, "digest"))
}

fn judge(push: &Value) -> Result<(), Complaint> {
    match word(push, "state") {
        "done" => Ok(()),
        "cancelled" => Err(Complaint::failed("the push was cancelled")),
        state => {
            let why = word(push, "failure");
            Err(Complaint::failed(format!("the push failed: {}", if why.is_empty() { state } else { why })))
        }
    }
}

/// The latest.
pub async fn list(client: &Client, as_json: bool) -> Result<u8, Complaint> {
    let mut page: Value = client.get("/pushes?limit=100").await?;
    let pushes: Vec<Value> = serde_json::from_value(page["items"].take()).unwrap_or_default();
    let headings = ["id", "name", "image", "state", "created", "why"];
    List { headings, empty: "no pushes" }.show(&pushes, as_json, |push| {
        let tone = match word(push, "state") {
            "done" => Tone::Good,
            "pushing" => Tone::Warning,
            state => tone_of(state),
        };
        [
            (word(push, "id").to_owned(), Tone::Plain),
            (word(push, "name").to_owned(), Tone::Plain),
            (word(push, "image").to_owned(), Tone::Plain),
            (word(push, "state").to_owned(), tone),
            (moment(push, "created_at"), Tone::Faint),
            (word(push, "failure").to_owned(), Tone::Faint),
        ]
    })
}

pub async fn cancel(client: &Client, push: &str, as_json: bool) -> Result<u8, Complaint> {
    let ended: Value = client.post(&format!("{}/cancel", path(push)), &json!({})).await?;
    match as_json {
        true => print_json(&ended)?,
        false => print(&format!("{} {}", word(&ended, "id"), word(&ended, "state")))?,
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_pushed_is_named_for_ever() {
        let of = |image: &str| named(&json!({ "image": image, "digest": "sha256:ab" }));
        assert_eq!(of("registry.example/team/app:v2"), "registry.example/team/app@sha256:ab");
        assert_eq!(of("127.0.0.1:5000/app:v2"), "127.0.0.1:5000/app@sha256:ab");
        assert_eq!(of("127.0.0.1:5000/app"), "127.0.0.1:5000/app@sha256:ab");
    }

    #[test]
    fn a_push_that_failed_says_why() {
        let failed = json!({ "state": "error", "failure": "the registry asks for credentials" });
        assert_eq!(
            judge(&failed).unwrap_err().to_string(),
            "error: the push failed: the registry asks for credentials"
        );
        assert!(judge(&json!({ "state": "cancelled" })).unwrap_err().to_string().ends_with("was cancelled"));
        assert!(judge(&json!({ "state": "done" })).is_ok());
    }
}
