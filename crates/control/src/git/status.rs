//! What changed in a work tree: parses `git status --porcelain=v2`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::run::Call;
use super::{Git, GitError};

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = GitStatus)]
pub struct Status {
    /// The branch checked out; absent on a detached head.
    pub branch: Option<String>,
    /// The commit checked out; absent before the first one.
    pub head: Option<String>,
    pub upstream: Option<String>,
    /// Commits the upstream has not.
    pub ahead: u64,
    /// Commits only the upstream has.
    pub behind: u64,
    /// The upstream branch exists, as far as the last fetch knows.
    pub published: bool,
    pub files: Vec<FileStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitFileStatus)]
pub struct FileStatus {
    pub path: String,
    /// The old name of a rename or copy.
    pub from: Option<String>,
    /// Between the last commit and what is staged.
    pub staged: Change,
    /// Between what is staged and the file itself.
    pub worktree: Change,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = GitChange)]
pub enum Change {
    Unmodified,
    Untracked,
    Modified,
    /// From a file to a link, or the like.
    TypeChanged,
    Added,
    Deleted,
    Renamed,
    Copied,
    /// In conflict.
    Unmerged,
}

impl Change {
    fn from_letter(letter: u8) -> Self {
        match letter {
            b'M' => Change::Modified,
            b'T' => Change::TypeChanged,
            b'A' => Change::Added,
            b'D' => Change::Deleted,
            b'R' => Change::Renamed,
            b'C' => Change::Copied,
            b'U' => Change::Unmerged,
            b'?' => Change::Untracked,
            _ => Change::Unmodified,
        }
    }
}

impl Git {
    pub async fn status(&self, repository: &str) -> Result<Status, GitError> {
        let call = Call::at(repository, "status")
            // A status must not take the index's lock from a commit under way.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .with(["--porcelain=v2", "--branch", "--untracked-files=all", "-z"]);
        Ok(parse(&self.run(call).await?.text()))
    }
}

fn parse(text: &str) -> Status {
    let mut status = Status::default();
    let mut records = text.split('\0');
    while let Some(record) = records.next() {
        let Some((kind, rest)) = record.split_once(' ') else { continue };
        match kind {
            "#" => header(&mut status, rest),
            "1" => status.files.extend(file(rest, 7, None)),
            // The old name is a record of its own.
            "2" => status.files.extend(file(rest, 8, records.next())),
            "u" => status.files.extend(file(rest, 9, None).map(|file| FileStatus {
                staged: Change::Unmerged,
                worktree: Change::Unmerged,
                ..file
            })),
            "?" => status.files.push(FileStatus {
                path: rest.into(),
                from: None,
                staged: Change::Untracked,
                worktree: Change::Untracked,
            }),
            _ => {}
        }
    }
    status
}

fn header(status: &mut Status, line: &str) {
    let Some((name, value)) = line.split_once(' ') else { return };
    match name {
        "branch.oid" if value != "(initial)" => status.head = Some(value.into()),
        "branch.head" if value != "(detached)" => status.branch = Some(value.into()),
        "branch.upstream" => status.upstream = Some(value.into()),
        // Present only where the upstream's commit is known.
        "branch.ab" => {
            status.published = true;
            for count in value.split(' ') {
                match count.split_at_checked(1) {
                    Some(("+", count)) => status.ahead = count.parse().unwrap_or(0),
                    Some(("-", count)) => status.behind = count.parse().unwrap_or(0),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// `XY` and then `skip` fields before the path, which may contain spaces.
fn file(record: &str, skip: usize, from: Option<&str>) -> Option<FileStatus> {
    let mut fields = record.splitn(skip + 1, ' ');
    let letters = fields.next()?.as_bytes();
    let path = fields.nth(skip - 1)?;
    Some(FileStatus {
        path: path.into(),
        from: from.map(Into::into),
        staged: Change::from_letter(*letters.first()?),
        worktree: Change::from_letter(*letters.get(1)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_counts_and_every_kind_of_line_are_read() {
        let status = parse(concat!(
            "# branch.oid 1111\0# branch.head main\0# branch.upstream origin/main\0# branch.ab +2 -1\0",
            "1 .M N... 100644 100644 100644 aaaa bbbb with space.txt\0",
            "2 R. N... 100644 100644 100644 aaaa bbbb R100 new.txt\0old.txt\0",
            "u UU N... 100644 100644 100644 100644 aa bb cc fight.txt\0",
            "? fresh.txt\0",
        ));
        assert_eq!((status.branch.as_deref(), status.ahead, status.behind), (Some("main"), 2, 1));
        assert!(status.published);
        let seen: Vec<_> = status.files.iter().map(|f| (f.path.as_str(), f.staged, f.worktree)).collect();
        assert_eq!(
            seen,
            [
                ("with space.txt", Change::Unmodified, Change::Modified),
                ("new.txt", Change::Renamed, Change::Unmodified),
                ("fight.txt", Change::Unmerged, Change::Unmerged),
                ("fresh.txt", Change::Untracked, Change::Untracked),
            ]
        );
        assert_eq!(status.files[1].from.as_deref(), Some("old.txt"));
    }

    #[test]
    fn a_repository_without_a_commit_has_a_branch_and_no_head() {
        let status = parse("# branch.oid (initial)\0# branch.head main\0");
        assert_eq!((status.branch.as_deref(), status.head, status.published), (Some("main"), None, false));
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_sandbox_prints_never_panics(text in "[\\x00-\\x7f]{0,300}") {
            parse(&text);
        }
    }
}
