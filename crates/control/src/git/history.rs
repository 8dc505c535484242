//! Commits, and differences between two points.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::run::Call;
use super::{Git, GitError, revision};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitCommit)]
pub struct Commit {
    pub hash: String,
    pub author: String,
    pub email: String,
    /// ISO 8601, with the author's own offset.
    pub time: String,
    pub message: String,
}

/// The two sides of a diff.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DiffRange {
    /// What is not staged yet.
    #[default]
    Worktree,
    /// What the next commit would contain.
    Staged,
    /// From a commit to the work tree.
    Since(String),
    Between(String, String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitDiff)]
pub struct Diff {
    pub files: Vec<FileDiff>,
    /// In the unified format.
    pub patch: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitFileDiff)]
pub struct FileDiff {
    pub path: String,
    /// Lines; absent for a binary file.
    pub added: Option<u64>,
    pub removed: Option<u64>,
}

const FIELD: char = '\u{1f}';

impl Git {
    /// Newest first, from what is checked out; none where nothing is committed yet.
    pub async fn history(&self, repository: &str, most: Option<u32>) -> Result<Vec<Commit>, GitError> {
        let head = self.try_run(Call::at(repository, "rev-parse").with(["--verify", "--quiet", "HEAD"])).await?;
        if head.status == 1 {
            return Ok(Vec::new());
        }
        let mut call =
            Call::at(repository, "log").with(["-z", "--no-show-signature", "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%B"]);
        if let Some(most) = most {
            call = call.with([format!("--max-count={most}")]);
        }
        Ok(self.run(call).await?.text().split('\0').filter_map(commit).collect())
    }

    pub async fn diff(&self, repository: &str, range: &DiffRange, paths: &[String]) -> Result<Diff, GitError> {
        let patch = self.run(diff_call(repository, range, &["--patch"], paths)?).await?.text();
        let counted = self.run(diff_call(repository, range, &["--numstat", "-z"], paths)?).await?.text();
        Ok(Diff { files: counted.split('\0').filter_map(counts).collect(), patch })
    }
}

fn diff_call(repository: &str, range: &DiffRange, how: &[&str], paths: &[String]) -> Result<Call<'static>, GitError> {
    // Otherwise the repository's configured diff program would run and could print anything.
    let call = Call::at(repository, "diff")
        .with(["--no-color", "--no-ext-diff", "--no-textconv", "--no-renames"])
        .with(how.iter().copied());
    let call = match range {
        DiffRange::Worktree => call,
        DiffRange::Staged => call.with(["--cached"]),
        DiffRange::Since(from) => call.with([revision("commit", from)?]),
        DiffRange::Between(from, to) => call.with([revision("commit", from)?, revision("commit", to)?]),
    };
    Ok(call.with(["--".to_owned()]).with(paths.iter().cloned()))
}

fn commit(record: &str) -> Option<Commit> {
    let mut fields = record.splitn(5, FIELD).map(str::to_owned);
    Some(Commit {
        hash: fields.next().filter(|hash| !hash.is_empty())?,
        author: fields.next()?,
        email: fields.next()?,
        time: fields.next()?,
        message: fields.next()?.trim_end().to_owned(),
    })
}

fn counts(record: &str) -> Option<FileDiff> {
    let mut fields = record.splitn(3, '\t');
    let (added, removed, path) = (fields.next()?, fields.next()?, fields.next()?);
    Some(FileDiff { path: path.into(), added: added.parse().ok(), removed: removed.parse().ok() })
}
