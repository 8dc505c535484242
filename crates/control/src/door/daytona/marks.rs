//! What a program inside can read of where it runs: variables of the sandbox's own environment, under the names that the
//! dialect gives them, and its user's name.

use std::collections::BTreeMap;

use cove_protocol::file::WriteMode;
use cove_protocol::{Reply, Request};

use super::view::REGION;
use crate::guest::{Guest, GuestError, Item};

/// The user of a sandbox that names no other. It is the template's own by another name, with a home of its own.
pub const USER: &str = "daytona";

/// Holds the sandbox's id.
pub const ID: &str = "DAYTONA_SANDBOX_ID";

const SNAPSHOT: &str = "DAYTONA_SANDBOX_SNAPSHOT";
const OF_USER: &str = "DAYTONA_SANDBOX_USER";
const ORGANISATION: &str = "DAYTONA_ORGANIZATION_ID";
const OF_REGION: &str = "DAYTONA_REGION_ID";

/// Root by its number: a sandbox may have lost the name.
const ROOT: &str = "0";

/// The caller's variables with ours, which give way to the caller's. The id is added when it is known.
pub fn with(env: BTreeMap<String, String>, snapshot: &str, user: &str, organisation: &str) -> BTreeMap<String, String> {
    let ours = [(SNAPSHOT, snapshot), (OF_USER, user), (ORGANISATION, organisation), (OF_REGION, REGION)];
    let mut all: BTreeMap<String, String> =
        ours.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    all.extend(env);
    all
}

/// What the caller gave, for views: the original shows that alone.
pub fn without(env: &BTreeMap<String, String>) -> BTreeMap<&String, &String> {
    let ours = [ID, SNAPSHOT, OF_USER, ORGANISATION, OF_REGION];
    env.iter().filter(|(name, _)| !ours.contains(&name.as_str())).collect()
}

/// Lets the numbers of the user and its group bear this dialect's name first (`whoami`, `ls -l`), where the template
/// knows it.
pub async fn name_user(guest: &Guest) -> Result<(), GuestError> {
    for list in ["/etc/passwd", "/etc/group"] {
        name_first(guest, list).await?;
    }
    Ok(())
}

async fn name_first(guest: &Guest, list: &str) -> Result<(), GuestError> {
    let read = Request::Read { path: list.into(), user: Some(ROOT.into()), offset: 0, length: None };
    let mut operation = guest.open(&read).await?.1.gathered();
    let mut bytes = Vec::new();
    while let Some(item) = operation.from.next().await? {
        if let Item::Data(piece) = item {
            bytes.extend(piece);
        }
    }
    let Some(text) = String::from_utf8(bytes).ok().and_then(|text| first_by_name(&text)) else { return Ok(()) };
    let write = Request::Write {
        path: list.into(),
        user: Some(ROOT.into()),
        how: WriteMode::InPlace,
        mode: None,
        parents: false,
    };
    let mut operation = guest.send(&write).await?;
    operation.to.data(text.as_bytes()).await?;
    operation.to.end().await?;
    match operation.reply().await? {
        Reply::Entry { .. } | Reply::Done => Ok(()),
        other => Err(GuestError::Protocol(format!("write answered {other:?}"))),
    }
}

/// The lines of a list with ours before the first other one of its number; `None` where nothing is to be done.
fn first_by_name(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let number = |line: &str| line.split(':').nth(2).map(str::to_owned);
    let ours = lines.iter().position(|line| line.split(':').next() == Some(USER))?;
    let first = lines.iter().position(|line| number(line) == number(lines[ours]))?;
    if first == ours {
        return None;
    }
    let mut ordered = lines.clone();
    ordered.remove(ours);
    ordered.insert(first, lines[ours]);
    Some(ordered.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_variable_wins_and_is_the_only_one_shown() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned()), (OF_USER.to_owned(), "mine".to_owned())]);
        let all = with(env, "base", USER, "acme");
        assert_eq!(
            (all[OF_USER].as_str(), all[SNAPSHOT].as_str(), all[ORGANISATION].as_str()),
            ("mine", "base", "acme")
        );
        assert_eq!(without(&all).into_keys().collect::<Vec<_>>(), ["A"]);
    }

    #[test]
    fn the_dialects_name_comes_first_for_its_number() {
        let text = "root:*:0:0::/root:\nuser:*:1000:1000::/home/user:\ndaytona:*:1000:1000::/home/daytona:\n";
        let ordered = first_by_name(text).unwrap();
        assert_eq!(ordered, "root:*:0:0::/root:\ndaytona:*:1000:1000::/home/daytona:\nuser:*:1000:1000::/home/user:\n");
        assert_eq!(first_by_name(&ordered), None);
        assert_eq!(first_by_name("root:*:0:0::/root:\n"), None);
        let groups = "root:*:0:\nsudo:*:27:user,daytona\nuser:*:1000:\ndaytona:*:1000:\n";
        let ordered = "root:*:0:\nsudo:*:27:user,daytona\ndaytona:*:1000:\nuser:*:1000:\n";
        assert_eq!(first_by_name(groups).unwrap(), ordered);
    }
}
