//! `cove migrate`: sandboxes of a service, or of another server, become sandboxes of this one.
//!
//! ```text
//!   found ──▶ made (with an Idempotency-Key) ──▶ copied: tar of each folder ──▶ verified: digests inside both ──▶ done
//!     └────────────── after each step the mapping file says how far it is: the same command goes on ──────────────┘
//! ```
//! The old id stays an alias of the new sandbox, at every door. The origin is left as it was. A *passport* is a file with
//! everything of some sandboxes, for moves without a network between the two.

mod mapping;
mod origin;
mod passport;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use clap::Args;
use reqwest::{Body, Method};
use serde_json::{Value, json};

use self::mapping::{Mapping, Row, Stage};
use self::origin::{Found, Named, Origin, is_own, quoted, run_in};
use super::create::parse_pair;
use crate::client::{Client, block_on, query_string, segment};
use crate::complaint::{Complaint, code, doing};
use crate::progress::Far;
use crate::render::{Rows, Tone, print, print_json, say, word};

/// Where files go whose folder has no other place here.
const HOME: &str = "/home/user";

/// Move sandboxes here from Daytona, E2B or another Cove server
///
/// Files, environment, labels, timers, names and the state of git come along; the old id stays an alias at every door.
/// What was copied is verified by digests that both sandboxes compute. How far it is, is in the mapping file: the same
/// command goes on where it was broken off. The origin is left as it was. Its address and key are those of its own
/// variables (`DAYTONA_API_KEY`, `E2B_API_KEY` …) unless flags say otherwise.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove migrate --from daytona --to local --dry-run
  cove migrate --from e2b --to local --label project=demo --mapping moved.csv
  cove migrate --from cove --from-url https://old.example.com --from-key-file ./old.key --to docker
  cove migrate --from daytona --passport ./boxes.passport
  cove migrate --from-passport ./boxes.passport --to local")]
pub struct Arguments {
    /// Where they are: daytona, e2b or cove
    #[arg(long, value_name = "KIND", required_unless_present = "from_passport", value_parser = ["cove", "daytona", "e2b"])]
    from: Option<String>,
    /// The address of the service or server
    #[arg(long, value_name = "URL", requires = "from")]
    from_url: Option<String>,
    /// A file with the key for it
    #[arg(long, value_name = "FILE", requires = "from")]
    from_key_file: Option<PathBuf>,
    /// Take them out of this passport
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    from_passport: Option<PathBuf>,
    /// The provider of this server that they go to [default: as for every new sandbox]
    #[arg(long, value_name = "PROVIDER")]
    to: Option<String>,
    /// Write a passport instead of making sandboxes
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "from_passport"])]
    passport: Option<PathBuf>,
    /// What they start from here
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// Only these, by their ids at the origin
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Only those with this label; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,
    /// A folder that is moved, and where to; can be repeated [default: the home of the origin's user to /home/user]
    #[arg(long, value_name = "FOLDER[:HERE]")]
    path: Vec<String>,
    /// Which became which, and how far it is: JSON, or CSV where it ends with .csv
    #[arg(long, value_name = "FILE", default_value = "cove-migration.json")]
    mapping: PathBuf,
    /// Only list what would be moved
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A folder of the origin, and its place here.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Folder {
    there: String,
    here: String,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let mut mapping = Mapping::open(&arguments.mapping)?;
    if let Some(file) = &arguments.from_passport {
        let client = Client::from_environment()?;
        block_on(take_in(arguments, &client, file, &mut mapping))?;
        return tell(&mapping, arguments.json);
    }
    let key = arguments.from_key_file.as_deref().map(|file| {
        let read = std::fs::read_to_string(file).map_err(doing(format!("read {}", file.display())));
        read.map(|key| key.trim().to_owned())
    });
    let kind = arguments.from.as_deref().unwrap_or_default();
    let origin = Origin::open(Named { kind, url: arguments.from_url.clone(), key: key.transpose()? })?;
    let found = block_on(origin.list())?;
    let meant: Vec<Found> = found.into_iter().filter(|found| arguments.means(found)).collect();
    if let Some(missing) = arguments.ids.iter().find(|id| !meant.iter().any(|found| found.id == **id)) {
        return Err(Complaint::failed(format!("{kind} has no sandbox {missing}")));
    }
    if arguments.dry_run {
        return list(&meant, &mapping, arguments.json);
    }
    let folders = arguments.folders(origin.home());
    match &arguments.passport {
        Some(file) => {
            block_on(passport::write(&origin, &meant, &folders, file))?;
            say(&format!("hint: cove migrate --from-passport {} on the other machine", file.display()));
            print(&file.display().to_string())?;
            Ok(0)
        }
        None => {
            let client = Client::from_environment()?;
            block_on(move_all(arguments, &client, &origin, &meant, &folders, &mut mapping))?;
            tell(&mapping, arguments.json)
        }
    }
}

impl Arguments {
    fn means(&self, found: &Found) -> bool {
        let named = self.ids.is_empty() || self.ids.contains(&found.id);
        named && self.label.iter().all(|(name, value)| found.labels.get(name) == Some(value))
    }

    fn folders(&self, home: &str) -> Vec<Folder> {
        if self.path.is_empty() {
            return vec![Folder { there: home.to_owned(), here: HOME.to_owned() }];
        }
        let read = |text: &String| match text.split_once(':') {
            Some((there, here)) => Folder { there: there.to_owned(), here: here.to_owned() },
            None => Folder { there: text.clone(), here: text.clone() },
        };
        self.path.iter().map(read).collect()
    }
}

/// What would be moved.
fn list(meant: &[Found], mapping: &Mapping, as_json: bool) -> Result<u8, Complaint> {
    if as_json {
        print_json(&meant)?;
        return Ok(0);
    }
    let mut rows = Rows::new(&["sandbox", "name", "labels", "runs", "here"]);
    for found in meant {
        let labels: Vec<String> = found.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let here = mapping.row(&found.id).map_or("-", |row| row.stage.word());
        rows.add(&[
            (&found.id, Tone::Plain),
            (found.name.as_deref().unwrap_or("-"), Tone::Plain),
            (&labels.join(" "), Tone::Faint),
            (if found.runs { "yes" } else { "no" }, Tone::Plain),
            (here, Tone::Faint),
        ]);
    }
    if meant.is_empty() {
        say("nothing to move");
    } else {
        rows.print()?;
        say(&format!("{} would be moved", meant.len()));
    }
    Ok(0)
}

async fn move_all(
    arguments: &Arguments,
    client: &Client,
    origin: &Origin,
    meant: &[Found],
    folders: &[Folder],
    mapping: &mut Mapping,
) -> Result<(), Complaint> {
    let far = Far::new("migrate");
    for (number, found) in meant.iter().enumerate() {
        far.tell(&format!("{} of {}: {}", number + 1, meant.len(), found.id));
        if mapping.row(&found.id).is_some_and(|row| row.stage == Stage::Done) {
            continue;
        }
        // One that fails does not keep the others.
        if let Err(complaint) = move_one(arguments, client, origin, found, folders, mapping).await {
            mapping.note(&found.id, |row| row.note = complaint.message().to_owned())?;
        }
    }
    Ok(())
}

async fn move_one(
    arguments: &Arguments,
    client: &Client,
    origin: &Origin,
    found: &Found,
    folders: &[Folder],
    mapping: &mut Mapping,
) -> Result<(), Complaint> {
    // One that a run which was broken off has woken was not running.
    let woken = !found.runs || mapping.row(&found.id).is_some_and(|row| row.woken);
    if woken {
        mapping.note(&found.id, |row| row.woken = true)?;
    }
    origin.wake(found).await?;
    let found = &Found { runs: !woken, ..found.clone() };
    let moved = async {
        let mut found = found.clone();
        if found.env.is_empty() && !matches!(origin, Origin::Daytona(_)) {
            found.env = environment(&origin.run(&found, ENVIRONMENT).await?);
        }
        let mut pieces = Vec::new();
        for folder in folders {
            let sum = Sum::read(&origin.run(&found, &summing(&folder.there)).await?)?;
            let mut file = spool()?;
            origin.fetch(&found, &folder.there, &mut file).await?;
            pieces.push(Piece { here: folder.here.clone(), sum, file });
        }
        settle(arguments, client, &found, pieces, mapping).await
    };
    let moved = moved.await;
    if woken {
        let back = origin.put_back(found).await;
        if back.is_ok() {
            mapping.note(&found.id, |row| row.woken = false)?;
        }
        // The first of the two is the reason.
        return moved.and(back);
    }
    moved
}

/// A folder on its way.
struct Piece {
    here: String,
    sum: Sum,
    file: File,
}

/// Makes the sandbox if it is not made yet, fills and verifies it.
async fn settle(
    arguments: &Arguments,
    client: &Client,
    found: &Found,
    pieces: Vec<Piece>,
    mapping: &mut Mapping,
) -> Result<(), Complaint> {
    let known = mapping.row(&found.id).and_then(|row| row.new_id.clone());
    let id = made(arguments, client, found, known).await?;
    mapping.note(&found.id, |row| {
        row.new_id = Some(id.clone());
        row.name = found.name.clone();
        row.stage = Stage::Made;
        row.note = String::new();
    })?;
    let (mut files, mut bytes, mut digests) = (0, 0, Vec::new());
    for mut piece in pieces {
        piece.file.seek(SeekFrom::Start(0)).map_err(doing("read what was fetched"))?;
        let folder = json!({ "path": piece.here });
        client.post::<Value>(&format!("/sandboxes/{}/files/directory", segment(&id)), &folder).await.or_else(ignore)?;
        let path = format!("/sandboxes/{}/files/tar{}", segment(&id), query_string(&[("path", &piece.here)]));
        let file = tokio::fs::File::from_std(piece.file);
        client.send(client.request(Method::PUT, &path).body(Body::from(file))).await?;
        let (status, said) = run_in(client, &id, &summing(&piece.here)).await?;
        let now = Sum::read(&said)?;
        if status != 0 || now != piece.sum {
            return Err(Complaint::failed(format!(
                "{} is not what it was: {} files with digest {} there, {} with {} here",
                piece.here, piece.sum.files, piece.sum.digest, now.files, now.digest
            )));
        }
        files += now.files;
        bytes += now.bytes;
        digests.push(now.digest);
    }
    mapping.note(&found.id, |row| {
        row.stage = Stage::Verified;
        (row.files, row.bytes, row.digest) = (files, bytes, digests.join(" "));
    })?;
    let alias = format!("/sandboxes/{}/aliases/{}", segment(&id), segment(&found.id));
    client.send(client.request(Method::PUT, &alias)).await?;
    if !found.runs {
        client.post::<Value>(&format!("/sandboxes/{}/stop", segment(&id)), &json!({})).await?;
    }
    mapping.note(&found.id, |row| row.stage = Stage::Done)
}

/// A folder that is there already is as good.
fn ignore(_already: Complaint) -> Result<Value, Complaint> {
    Ok(Value::Null)
}

/// The one that an earlier run has made, if it is there; it runs. For one that was not noted, the same request makes the same
/// sandbox, however often it is sent.
async fn made(
    arguments: &Arguments,
    client: &Client,
    found: &Found,
    known: Option<String>,
) -> Result<String, Complaint> {
    if let Some(id) = known
        && let Some(there) = client.find::<Value>(&format!("/sandboxes/{}", segment(&id))).await?
    {
        return running(client, &there).await;
    }
    let mut body = json!({ "labels": found.labels, "env": found.env, "timers": found.timers });
    if found.network.is_object() {
        body["network"] = found.network.clone();
    }
    for (key, value) in [("name", &found.name), ("provider", &arguments.to), ("template", &arguments.template)] {
        if let Some(value) = value {
            body[key] = json!(value);
        }
    }
    let key = format!("migrate-{}", found.id);
    let request = client.request(Method::POST, "/sandboxes").header("Idempotency-Key", key).json(&body);
    let made: Value = client.read(client.send(request).await?).await?;
    running(client, &made).await
}

/// Its id, when it runs.
async fn running(client: &Client, sandbox: &Value) -> Result<String, Complaint> {
    if word(sandbox, "state") != "running" {
        client.post::<Value>(&format!("/sandboxes/{}/start", segment(word(sandbox, "id"))), &json!({})).await?;
    }
    Ok(word(sandbox, "id").to_owned())
}

/// Out of a passport.
async fn take_in(arguments: &Arguments, client: &Client, file: &Path, mapping: &mut Mapping) -> Result<(), Complaint> {
    let far = Far::new("migrate");
    let mut reader = passport::Reader::open(file)?;
    while let Some((found, pieces)) = reader.next(arguments)? {
        far.tell(&found.id);
        if mapping.row(&found.id).is_some_and(|row| row.stage == Stage::Done) {
            continue;
        }
        if let Err(complaint) = settle(arguments, client, &found, pieces, mapping).await {
            mapping.note(&found.id, |row| row.note = complaint.message().to_owned())?;
        }
    }
    Ok(())
}

/// A file without a name, gone when it is closed.
fn spool() -> Result<File, Complaint> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!(
        "cove-migrate-{}-{}",
        std::process::id(),
        NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    ));
    let made = File::options().read(true).write(true).create_new(true).open(&path);
    let file = made.map_err(doing(format!("make {}", path.display())))?;
    std::fs::remove_file(&path).map_err(doing(format!("remove {}", path.display())))?;
    Ok(file)
}

static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

/// What a folder holds, as the sandbox itself says.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Sum {
    files: u64,
    bytes: u64,
    digest: String,
}

impl Sum {
    /// `FILES BYTES DIGEST`, in the last line that was printed.
    fn read(said: &str) -> Result<Sum, Complaint> {
        let words: Vec<&str> = said.lines().last().unwrap_or_default().split_whitespace().collect();
        let read = || {
            let [files, bytes, digest] = words[..] else { return None };
            let fits = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
            fits.then_some(Sum { files: files.parse().ok()?, bytes: bytes.parse().ok()?, digest: digest.to_owned() })
        };
        read().ok_or_else(|| Complaint::failed(format!("unexpected digest of a folder: {:?}", said.trim())))
    }
}

/// A line of shell that prints how many files a folder has, their bytes, and one digest over all names, links and contents.
fn summing(folder: &str) -> String {
    format!(
        "cd {} && LC_ALL=C && export LC_ALL && files=$(find . -type f | wc -l) && \
         bytes=$(find . -type f -printf '%s\\n' | awk '{{ sum += $1 }} END {{ printf \"%d\", sum }}') && \
         digest=$({{ find . -type f -print0 | sort -z | xargs -0 -r sha256sum; find . -type l -printf '%p -> %l\\n' | sort; \
         find . -type d | sort; }} | sha256sum | cut -d' ' -f1) && echo $files $bytes $digest",
        quoted(folder)
    )
}

/// Prints the environment of commands, in one line.
const ENVIRONMENT: &str = "env -0 | base64 | tr -d '\\n'";

/// Without what every sandbox has by itself.
fn environment(said: &str) -> BTreeMap<String, String> {
    use base64::Engine as _;
    let bytes = base64::engine::general_purpose::STANDARD.decode(said.trim()).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(name, _)| !is_own(name)).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The report; code 1 where something was not moved.
fn tell(mapping: &Mapping, as_json: bool) -> Result<u8, Complaint> {
    let left = mapping.rows().filter(|row| row.stage != Stage::Done).count();
    if as_json {
        print_json(&mapping.rows().collect::<Vec<&Row>>())?;
        return Ok(if left == 0 { 0 } else { code::FAILED });
    }
    let mut rows = Rows::new(&["was", "is", "name", "", "files", "note"]);
    for row in mapping.rows() {
        let tone = if row.stage == Stage::Done { Tone::Good } else { Tone::Bad };
        rows.add(&[
            (&row.old_id, Tone::Plain),
            (row.new_id.as_deref().unwrap_or("-"), Tone::Plain),
            (row.name.as_deref().unwrap_or("-"), Tone::Plain),
            (row.stage.word(), tone),
            (&row.files.to_string(), Tone::Plain),
            (&row.note, Tone::Faint),
        ]);
    }
    rows.print()?;
    print(&format!("{} moved and verified, {left} left", mapping.rows().count() - left))?;
    if left > 0 {
        say("hint: the same command goes on with what is left");
    }
    Ok(if left == 0 { 0 } else { code::FAILED })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_the_last_line() {
        let digest = "ab".repeat(32);
        let sum = Sum::read(&format!("noise\n3 17 {digest}\n")).unwrap();
        assert_eq!((sum.files, sum.bytes, sum.digest.as_str()), (3, 17, digest.as_str()));
        for wrong in ["", "3 17", "3 17 xyz", &format!("x 17 {digest}")] {
            assert!(Sum::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_environment_is_what_somebody_set() {
        use base64::Engine as _;
        let said =
            base64::engine::general_purpose::STANDARD.encode("PATH=/bin\0TOKEN=a=b\nc\0E2B_SANDBOX=true\0LC_ALL=C\0");
        assert_eq!(environment(&said), [("TOKEN".to_owned(), "a=b\nc".to_owned())].into());
        assert!(environment("not base64!").is_empty());
    }
}
