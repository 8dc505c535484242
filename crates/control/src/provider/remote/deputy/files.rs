//! Files by scripts: what a service's own calls say of a file differs, what GNU's tools say does not.
//!
//! Bytes go by the service's own calls, because a command's output is text at some of them. Whether the user may have
//! them is asked first, by a command of that user.

use bytes::Bytes;
use cove_protocol::file::{Entry, FileKind, Match, WriteMode};
use cove_protocol::{Event, Failure, FailureKind, Kind, Reply};
use futures::StreamExt as _;

use super::{Deputy, Line, Outcome, Stop};
use crate::provider::remote::Output;
use crate::random;

/// Entries and matches in one event.
const BATCH: usize = 256;

/// The most that is found where no limit is given.
const FOUND: u32 = 100_000;

/// Makes `$p` of `$1`: relative to the user's home, which `~` means too. Messages are in one language.
const PATH: &str = r#"export LC_ALL=C; p=$1; case $p in "~") p=$HOME;; "~/"*) p=$HOME/${p#??};; /*) ;; *) p=$HOME/$p;; esac
"#;

/// What is printed of each file: thirteen fields, each with a NUL after it.
macro_rules! fields {
    () => {
        r#"'%y\0%s\0%m\0%U\0%G\0%u\0%g\0%T@\0%C@\0%A@\0%i\0%l\0%p\0'"#
    };
}
const FIELDS: usize = 13;

const STAT: &str = concat!(r#"find "$p" -maxdepth 0 -printf "#, fields!());
const STAT_FOLLOWED: &str = concat!(r#"find -H "$p" -maxdepth 0 -printf "#, fields!());
const LIST: &str = concat!(
    r#"[ -d "$p" ] || { [ -e "$p" ] && echo "$p: Not a directory" >&2 || echo "$p: No such file or directory" >&2; exit 1; }
find -H "$p" -mindepth 1 -maxdepth "$2" -printf "#,
    fields!()
);
const FIND: &str = concat!(r#"find -H "$p" -mindepth 1 -name "$2" -printf "#, fields!());
const READABLE: &str = concat!(
    r#"[ -d "$p" ] && { echo "$p: Is a directory" >&2; exit 1; }
if [ -e "$p" ] && ! [ -r "$p" ]; then echo "$p: Permission denied" >&2; exit 1; fi
readlink -f "$p"; find -H "$p" -maxdepth 0 -printf "#,
    fields!()
);
/// `$2` is what was uploaded, `$3` how it is written, `$4` where, `$5` the mode of a new file, `$6` whether directories are made.
const WRITE: &str = concat!(
    r#"set -e; umask 022; if [ "$6" = yes ]; then mkdir -p "${p%/*}/"; fi
if [ -d "$p" ]; then echo "$p: Is a directory" >&2; exit 1; fi
t=$p; if [ -L "$p" ]; then t=$(readlink -m "$p"); fi
new=no; [ -e "$t" ] || new=yes
case $3 in
  create) [ $new = yes ] || { echo "$p: File exists" >&2; exit 1; }; cat "$2" >"$t";;
  append) cat "$2" >>"$t";;
  at) dd if="$2" of="$t" bs=1M seek="$4" oflag=seek_bytes conv=notrunc status=none;;
  in_place) cat "$2" >"$t";;
  replace) part="${t%/*}/.${t##*/}.$$"; cat "$2" >"$part"
    if [ $new = no ]; then chmod --reference="$t" "$part"; chown --reference="$t" "$part" 2>/dev/null || true; fi
    mv -f "$part" "$t";;
esac
if [ $new = yes ]; then chmod "$5" "$t"; fi
find -H "$p" -maxdepth 0 -printf "#,
    fields!()
);
const MAKE: &str = concat!(
    r#"if [ -d "$p" ]; then echo existed; else if [ -n "$2" ]; then mkdir -p -m "$2" "$p"; else mkdir -p "$p"; fi && echo made; fi || exit
find -H "$p" -maxdepth 0 -printf "#,
    fields!()
);
const MOVE: &str = concat!(
    r#"q=$2; case $q in "~") q=$HOME;; "~/"*) q=$HOME/${q#??};; /*) ;; *) q=$HOME/$q;; esac
mv -fT "$p" "$q" && find "$q" -maxdepth 0 -printf "#,
    fields!()
);
const REMOVE: &str = r#"if ! [ -e "$p" ] && ! [ -L "$p" ]; then echo "$p: No such file or directory" >&2; exit 1; fi
if [ "$2" = all ]; then rm -rf "$p"; elif [ -d "$p" ] && ! [ -L "$p" ]; then rmdir "$p"; else rm -f "$p"; fi"#;
const ATTRIBUTES: &str = concat!(
    r#"if [ -n "$2" ]; then chmod "$2" "$p" || exit; fi; if [ -n "$3" ]; then chown "$3" "$p" || exit; fi
find "$p" -maxdepth 0 -printf "#,
    fields!()
);
const LINK: &str = concat!(r#"ln -sT "$2" "$p" && find "$p" -maxdepth 0 -printf "#, fields!());
const GREP: &str = r#"[ -e "$p" ] || { echo "$p: No such file or directory" >&2; exit 2; }
grep -rnIFHZ -e "$2" "$p" | head -n "$3"; exit 0"#;
const PACK: &str = r#"[ -e "$p" ] || { echo "$p: No such file or directory" >&2; exit 1; }
if [ -d "$p" ]; then tar -C "$p" -cf "$2" .; else tar -C "${p%/*}/" -cf "$2" "${p##*/}"; fi && chmod 0644 "$2""#;
const UNPACK: &str = r#"mkdir -p "$p" && tar -C "$p" -xf "$2""#;

pub struct Wanted<'a> {
    pub path: &'a str,
    pub user: Option<&'a str>,
    pub how: WriteMode,
    pub mode: Option<u32>,
    pub parents: bool,
}

pub struct Attributes<'a> {
    pub mode: Option<u32>,
    pub owner: Option<&'a str>,
    pub group: Option<&'a str>,
}

impl Deputy {
    /// A script of this file that does what it is meant to, or the reason why not.
    async fn act(
        &self,
        what: &str,
        path: &str,
        more: &[&str],
        user: Option<&str>,
        script: &str,
    ) -> Result<Output, Stop> {
        let arguments: Vec<&str> = std::iter::once(path).chain(more.iter().copied()).collect();
        let output = self.script(&format!("{PATH}{script}"), &arguments, user).await?;
        if output.code == 0 { Ok(output) } else { Err(refusal(what, path, &output).into()) }
    }

    async fn entry(
        &self,
        what: &str,
        path: &str,
        more: &[&str],
        user: Option<&str>,
        script: &str,
    ) -> Result<Entry, Stop> {
        let output = self.act(what, path, more, user, script).await?;
        one(&output.out)
    }

    pub(super) async fn stat(&self, path: &str, user: Option<&str>, follow: bool, line: &mut Line) -> Outcome {
        let script = if follow { STAT_FOLLOWED } else { STAT };
        let entry = self.entry("stat", path, &[], user, script).await?;
        line.reply(&Reply::Entry { entry }).await
    }

    pub(super) async fn list(&self, path: &str, user: Option<&str>, depth: u32, line: &mut Line) -> Outcome {
        let output = self.act("list", path, &[&depth.max(1).to_string()], user, LIST).await?;
        told(entries(&output.out)?, line).await
    }

    pub(super) async fn find(
        &self,
        path: &str,
        pattern: &str,
        user: Option<&str>,
        limit: Option<u32>,
        line: &mut Line,
    ) -> Outcome {
        let pattern = if pattern.contains(['*', '?', '[']) { pattern.to_owned() } else { format!("*{pattern}*") };
        let output = self.act("find", path, &[&pattern], user, FIND).await?;
        let mut found = entries(&output.out)?;
        found.truncate(limit.unwrap_or(FOUND) as usize);
        told(found, line).await
    }

    pub(super) async fn read(
        &self,
        path: &str,
        user: Option<&str>,
        offset: u64,
        length: Option<u64>,
        line: &mut Line,
    ) -> Outcome {
        let output = self.act("read", path, &[], user, READABLE).await?;
        let end = output.out.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let place = String::from_utf8_lossy(&output.out[..end]).into_owned();
        let entry = one(&output.out[end + 1..])?;
        let mut stream = self.service.read(&self.name, &place).await?;
        line.reply(&Reply::Entry { entry }).await?;
        let (mut skip, mut left) = (offset, length.unwrap_or(u64::MAX));
        while left > 0
            && let Some(piece) = stream.next().await
        {
            let mut piece: Bytes = piece?;
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            piece = piece.slice(skipped as usize..);
            piece.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= piece.len() as u64;
            line.bulk(Kind::Data, &piece).await?;
        }
        line.end().await
    }

    pub(super) async fn write(&self, wanted: &Wanted<'_>, line: &mut Line) -> Outcome {
        let content = line.upload().await?;
        let upload = self.put(content).await?;
        let (how, at) = match wanted.how {
            WriteMode::Replace => ("replace", 0),
            WriteMode::Create => ("create", 0),
            WriteMode::Append => ("append", 0),
            WriteMode::At(offset) => ("at", offset),
            WriteMode::InPlace => ("in_place", 0),
        };
        let (at, mode) = (at.to_string(), format!("{:o}", wanted.mode.unwrap_or(0o644)));
        let parents = if wanted.parents { "yes" } else { "no" };
        let written = self.entry("write", wanted.path, &[&upload, how, &at, &mode, parents], wanted.user, WRITE).await;
        self.drop_upload(&upload).await;
        line.reply(&Reply::Entry { entry: written? }).await
    }

    pub(super) async fn make_directory(
        &self,
        path: &str,
        user: Option<&str>,
        mode: Option<u32>,
        line: &mut Line,
    ) -> Outcome {
        let mode = mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let output = self.act("make", path, &[&mode], user, MAKE).await?;
        let end = output.out.iter().position(|byte| *byte == b'\n').unwrap_or(0);
        let existed = &output.out[..end] == b"existed";
        line.reply(&Reply::Made { entry: one(&output.out[end + 1..])?, existed }).await
    }

    pub(super) async fn rename(&self, from: &str, to: &str, user: Option<&str>, line: &mut Line) -> Outcome {
        let entry = self.entry("move", from, &[to], user, MOVE).await?;
        line.reply(&Reply::Entry { entry }).await
    }

    pub(super) async fn remove(&self, path: &str, user: Option<&str>, recursive: bool, line: &mut Line) -> Outcome {
        let extent = if recursive { "all" } else { "one" };
        self.act("remove", path, &[extent], user, REMOVE).await?;
        line.reply(&Reply::Done).await
    }

    pub(super) async fn set_attributes(
        &self,
        path: &str,
        user: Option<&str>,
        wanted: &Attributes<'_>,
        line: &mut Line,
    ) -> Outcome {
        let mode = wanted.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
        let owner = match (wanted.owner, wanted.group) {
            (None, None) => String::new(),
            (owner, None) => owner.unwrap_or_default().to_owned(),
            (owner, Some(group)) => format!("{}:{group}", owner.unwrap_or_default()),
        };
        let entry = self.entry("change", path, &[&mode, &owner], user, ATTRIBUTES).await?;
        line.reply(&Reply::Entry { entry }).await
    }

    pub(super) async fn symlink(&self, path: &str, target: &str, user: Option<&str>, line: &mut Line) -> Outcome {
        let entry = self.entry("link", path, &[target], user, LINK).await?;
        line.reply(&Reply::Entry { entry }).await
    }

    pub(super) async fn grep(
        &self,
        path: &str,
        pattern: &str,
        user: Option<&str>,
        limit: Option<u32>,
        line: &mut Line,
    ) -> Outcome {
        let most = limit.unwrap_or(FOUND).to_string();
        let output = self.act("search", path, &[pattern, &most], user, GREP).await?;
        line.reply(&Reply::Done).await?;
        for matches in matches(&output.out).chunks(BATCH) {
            line.event(&Event::Matches { matches: matches.to_vec() }).await?;
        }
        line.end().await
    }

    pub(super) async fn tar_out(&self, path: &str, user: Option<&str>, line: &mut Line) -> Outcome {
        let archive = upload_name();
        let packed = async {
            self.act("pack", path, &[&archive], user, PACK).await?;
            let mut stream = self.service.read(&self.name, &archive).await?;
            line.reply(&Reply::Done).await?;
            while let Some(piece) = stream.next().await {
                let piece: Bytes = piece?;
                line.bulk(Kind::Data, &piece).await?;
            }
            line.end().await
        };
        let packed: Outcome = packed.await;
        self.drop_upload(&archive).await;
        packed
    }

    pub(super) async fn tar_in(&self, path: &str, user: Option<&str>, line: &mut Line) -> Outcome {
        let content = line.upload().await?;
        let upload = self.put(content).await?;
        let unpacked = self.act("unpack", path, &[&upload], user, UNPACK).await;
        self.drop_upload(&upload).await;
        unpacked?;
        line.reply(&Reply::Done).await
    }

    /// Bytes as a file of their own, for a script to take.
    async fn put(&self, content: Bytes) -> Result<String, Stop> {
        let name = upload_name();
        self.service.write(&self.name, &name, content).await?;
        Ok(name)
    }

    async fn drop_upload(&self, name: &str) {
        // The service's daemon may have been root when it wrote it.
        for user in [Some("root"), None] {
            let run = super::Run::script(r#"rm -f "$1""#, &[name]).by(user);
            match super::finish(&*self.service, &self.name, &run).await {
                Ok(output) if output.code == 0 => return,
                Ok(_) => {}
                Err(trouble) => tracing::debug!(sandbox = %self.name, %trouble, "remove what was uploaded"),
            }
        }
    }
}

fn upload_name() -> String {
    format!("/tmp/.cove-{}", random::hex(12))
}

async fn told(entries: Vec<Entry>, line: &mut Line) -> Outcome {
    line.reply(&Reply::Done).await?;
    for entries in entries.chunks(BATCH) {
        line.event(&Event::Entries { entries: entries.to_vec() }).await?;
    }
    line.end().await
}

/// Why a tool failed, by what it said.
fn refusal(what: &str, path: &str, output: &Output) -> Failure {
    let said = output.complaint();
    let kinds = [
        ("No such file or directory", FailureKind::NotFound),
        ("nonexistent", FailureKind::NotFound),
        ("Permission denied", FailureKind::PermissionDenied),
        ("Operation not permitted", FailureKind::PermissionDenied),
        ("File exists", FailureKind::AlreadyExists),
        ("Not a directory", FailureKind::NotADirectory),
        ("Is a directory", FailureKind::IsADirectory),
        ("Directory not empty", FailureKind::NotEmpty),
        ("No space left", FailureKind::Exhausted),
        ("invalid user", FailureKind::UnknownUser),
        ("unknown user", FailureKind::UnknownUser),
        ("invalid group", FailureKind::UnknownUser),
    ];
    let found = kinds.iter().find(|(words, _)| said.contains(words));
    match found {
        Some((words, kind)) => Failure::new(*kind, format!("{what} {path}: {}", words.to_lowercase())),
        None => Failure::new(FailureKind::Internal, format!("{what} {path}: {said}")),
    }
}

fn one(printed: &[u8]) -> Result<Entry, Stop> {
    let unread =
        || Failure::new(FailureKind::Internal, "the sandbox's find says nothing of the file: it must be GNU's");
    entries(printed)?.into_iter().next().ok_or_else(|| unread().into())
}

fn entries(printed: &[u8]) -> Result<Vec<Entry>, Stop> {
    let printed = printed.strip_suffix(b"\0").unwrap_or(printed);
    if printed.is_empty() {
        return Ok(Vec::new());
    }
    let fields: Vec<String> =
        printed.split(|byte| *byte == 0).map(|field| String::from_utf8_lossy(field).into_owned()).collect();
    if !fields.len().is_multiple_of(FIELDS) {
        let message = "the sandbox's find prints what cannot be read: it must be GNU's";
        return Err(Failure::new(FailureKind::Internal, message).into());
    }
    Ok(fields.chunks(FIELDS).map(entry).collect())
}

fn entry(fields: &[String]) -> Entry {
    let number = |place: usize| fields[place].parse().unwrap_or_default();
    let ms = |place: usize| fields[place].parse::<f64>().map_or(0, |seconds| (seconds * 1000.0) as i64);
    let path = fields[12].clone();
    let kind = match fields[0].as_str() {
        "f" => FileKind::File,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        _ => FileKind::Other,
    };
    Entry {
        name: path.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned(),
        kind,
        size: number(1),
        mode: u32::from_str_radix(&fields[2], 8).unwrap_or_default(),
        uid: number(3) as u32,
        gid: number(4) as u32,
        owner: fields[5].clone(),
        group: fields[6].clone(),
        modified_ms: ms(7),
        changed_ms: ms(8),
        accessed_ms: ms(9),
        inode: number(10),
        target: Some(fields[11].clone()).filter(|target| !target.is_empty()),
        metadata: Default::default(),
        path,
    }
}

/// Lines of `PATH NUL NUMBER:TEXT`.
fn matches(printed: &[u8]) -> Vec<Match> {
    let text = String::from_utf8_lossy(printed);
    let read = |line: &str| {
        let (path, rest) = line.split_once('\0')?;
        let (number, text) = rest.split_once(':')?;
        Some(Match { path: path.to_owned(), line: number.parse().ok()?, text: text.to_owned() })
    };
    text.lines().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::remote::Run;

    /// A script as a service would run it, on this machine.
    fn run(script: &str, arguments: &[&str]) -> Output {
        let run = Run::script(&format!("{PATH}{script}"), arguments);
        let done = std::process::Command::new(&run.words[0]).args(&run.words[1..]).output().unwrap();
        Output { code: done.status.code().unwrap(), out: done.stdout, err: done.stderr }
    }

    fn kind_of(what: &str, output: &Output) -> FailureKind {
        assert_ne!(output.code, 0, "{what}");
        refusal(what, "x", output).kind
    }

    #[test]
    fn files_are_made_listed_moved_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("upload"), "hello").unwrap();
        let write = |path: &str, how: &str, place: &str, parents: &str| {
            run(WRITE, &[path, &at("upload"), how, place, "640", parents])
        };
        let made = write(&at("a b/c.txt"), "replace", "0", "yes");
        let entry = entries(&made.out).ok().unwrap().remove(0);
        assert_eq!((entry.name.as_str(), entry.size, entry.mode, entry.kind), ("c.txt", 5, 0o640, FileKind::File));
        assert_eq!(entry.path, at("a b/c.txt"));
        assert!(entry.modified_ms > 1_600_000_000_000, "{entry:?}");

        assert_eq!(kind_of("create", &write(&at("a b/c.txt"), "create", "0", "no")), FailureKind::AlreadyExists);
        assert_eq!(kind_of("write", &write(&at("no/such"), "replace", "0", "no")), FailureKind::NotFound);
        assert_eq!(kind_of("write", &write(&at("a b"), "replace", "0", "no")), FailureKind::IsADirectory);
        assert_eq!(write(&at("a b/c.txt"), "append", "0", "no").code, 0);
        assert_eq!(write(&at("a b/c.txt"), "at", "3", "no").code, 0);
        assert_eq!(std::fs::read_to_string(at("a b/c.txt")).unwrap(), "helhellolo");

        assert_eq!(run(LINK, &[&at("link"), "a b/c.txt"]).code, 0);
        assert_eq!(write(&at("link"), "replace", "0", "no").code, 0);
        assert_eq!(std::fs::read_to_string(at("a b/c.txt")).unwrap(), "hello", "a link is written through");
        let link = entries(&run(STAT, &[&at("link")]).out).ok().unwrap().remove(0);
        assert_eq!((link.kind, link.target.as_deref()), (FileKind::Symlink, Some("a b/c.txt")));
        let followed = entries(&run(STAT_FOLLOWED, &[&at("link")]).out).ok().unwrap().remove(0);
        assert_eq!((followed.kind, followed.size), (FileKind::File, 5));

        let made = run(MAKE, &[&at("d/e"), ""]);
        assert!(made.out.starts_with(b"made\n"));
        assert!(run(MAKE, &[&at("d/e"), ""]).out.starts_with(b"existed\n"));
        let names = |depth: &str| {
            let mut names: Vec<String> =
                entries(&run(LIST, &[&at(""), depth]).out).ok().unwrap().into_iter().map(|entry| entry.name).collect();
            names.sort();
            names
        };
        assert_eq!(names("1"), ["a b", "d", "link", "upload"]);
        assert_eq!(names("2"), ["a b", "c.txt", "d", "e", "link", "upload"]);
        assert_eq!(kind_of("list", &run(LIST, &[&at("upload"), "1"])), FailureKind::NotADirectory);
        assert_eq!(kind_of("list", &run(LIST, &[&at("nowhere"), "1"])), FailureKind::NotFound);

        let moved = run(MOVE, &[&at("link"), &at("moved")]);
        assert_eq!(entries(&moved.out).ok().unwrap()[0].name, "moved");
        assert_eq!(kind_of("move", &run(MOVE, &[&at("link"), &at("x")])), FailureKind::NotFound);
        let changed = run(ATTRIBUTES, &[&at("upload"), "600", ""]);
        assert_eq!(entries(&changed.out).ok().unwrap()[0].mode, 0o600);
        assert_eq!(kind_of("remove", &run(REMOVE, &[&at("d"), "one"])), FailureKind::NotEmpty);
        assert_eq!(run(REMOVE, &[&at("d"), "all"]).code, 0);
        assert_eq!(kind_of("remove", &run(REMOVE, &[&at("d"), "all"])), FailureKind::NotFound);
    }

    #[test]
    fn files_are_found_searched_and_packed() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::create_dir(at("in")).unwrap();
        std::fs::write(at("in/a:1.txt"), "one\ntwo: 2\n").unwrap();
        let found = entries(&run(FIND, &[&at("in"), "*.txt"]).out).ok().unwrap();
        assert_eq!(found[0].name, "a:1.txt");
        let seen = matches(&run(GREP, &[&at("in"), "two", "10"]).out);
        assert_eq!(seen, [Match { path: at("in/a:1.txt"), line: 2, text: "two: 2".into() }]);
        assert!(matches(&run(GREP, &[&at("in"), "nobody", "10"]).out).is_empty());
        assert_eq!(run(PACK, &[&at("in"), &at("archive")]).code, 0);
        assert_eq!(run(UNPACK, &[&at("out"), &at("archive")]).code, 0);
        assert_eq!(std::fs::read_to_string(at("out/a:1.txt")).unwrap(), "one\ntwo: 2\n");
        let read = run(READABLE, &[&at("in/a:1.txt")]);
        assert!(String::from_utf8(read.out).unwrap().starts_with(&format!("{}\n", at("in/a:1.txt"))));
        assert_eq!(kind_of("read", &run(READABLE, &[&at("in")])), FailureKind::IsADirectory);
        assert_eq!(kind_of("read", &run(READABLE, &[&at("in/none")])), FailureKind::NotFound);
    }
}
