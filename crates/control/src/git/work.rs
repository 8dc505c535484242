//! Calls that change the work tree, the index and the configuration.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::run::Call;
use super::{Credentials, Git, GitError, revision};

#[derive(Debug, Clone, Default)]
pub struct NewCommit {
    pub repository: String,
    pub message: String,
    pub author: String,
    pub email: String,
    pub allow_empty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ResetMode {
    Soft,
    #[default]
    Mixed,
    Hard,
    Merge,
    Keep,
}

#[derive(Debug, Clone, Default)]
pub struct Reset {
    pub repository: String,
    pub mode: ResetMode,
    pub target: Option<String>,
    /// Only these paths are unstaged; the mode is then ignored.
    pub files: Vec<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Restore {
    pub repository: String,
    pub files: Vec<String>,
    /// The index; the work tree is restored where neither is asked for.
    pub staged: bool,
    pub worktree: bool,
    pub source: Option<String>,
}

/// Which configuration file is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// The user's own.
    Global,
    /// The repository's, at this path.
    Local(String),
    System,
}

impl Scope {
    fn call(&self) -> Call<'static> {
        match self {
            Scope::Global => Call::anywhere("config").with(["--global"]),
            Scope::System => Call::anywhere("config").with(["--system"]),
            Scope::Local(repository) => Call::at(repository, "config").with(["--local"]),
        }
    }
}

impl ResetMode {
    fn option(self) -> &'static str {
        match self {
            ResetMode::Soft => "--soft",
            ResetMode::Mixed => "--mixed",
            ResetMode::Hard => "--hard",
            ResetMode::Merge => "--merge",
            ResetMode::Keep => "--keep",
        }
    }
}

impl Git {
    pub async fn init(&self, path: &str, initial_branch: Option<&str>) -> Result<(), GitError> {
        self.init_with(path, initial_branch, &[]).await
    }

    /// Without a work tree: something to push to.
    pub async fn init_bare(&self, path: &str, initial_branch: Option<&str>) -> Result<(), GitError> {
        self.init_with(path, initial_branch, &["--bare"]).await
    }

    async fn init_with(&self, path: &str, initial_branch: Option<&str>, how: &[&str]) -> Result<(), GitError> {
        let mut call = Call::anywhere("init").with(how.iter().copied());
        if let Some(branch) = initial_branch {
            call = call.with([format!("--initial-branch={}", revision("branch", branch)?)]);
        }
        self.run(call.with(["--", path])).await?;
        Ok(())
    }

    /// Stages deletions too; `.` is everything.
    pub async fn add(&self, repository: &str, files: &[String]) -> Result<(), GitError> {
        if files.is_empty() {
            return Err(GitError::Invalid("no files to add were named; \".\" is everything".into()));
        }
        self.run(Call::at(repository, "add").with(["--all", "--"]).with(files.iter().cloned())).await?;
        Ok(())
    }

    /// Commits what is staged, by this author. Returns the commit's hash.
    pub async fn commit(&self, wanted: NewCommit) -> Result<String, GitError> {
        if wanted.message.trim().is_empty() {
            return Err(GitError::Invalid("a commit needs a message".into()));
        }
        let mut call = Call::at(&wanted.repository, "commit").with(["--file=-"]).input(wanted.message);
        for (name, value) in [("NAME", &wanted.author), ("EMAIL", &wanted.email)] {
            if !value.is_empty() {
                call = call.env(&format!("GIT_AUTHOR_{name}"), value).env(&format!("GIT_COMMITTER_{name}"), value);
            }
        }
        if wanted.allow_empty {
            call = call.with(["--allow-empty"]);
        }
        self.run(call).await?;
        let head = self.run(Call::at(&wanted.repository, "rev-parse").with(["HEAD"])).await?;
        Ok(head.text().trim().to_owned())
    }

    pub async fn reset(&self, wanted: Reset) -> Result<(), GitError> {
        let target = wanted.target.as_deref().map(|target| revision("commit", target)).transpose()?;
        let call = Call::at(&wanted.repository, "reset").with(["--quiet"]);
        let call = if wanted.files.is_empty() {
            call.with([wanted.mode.option()]).with(target)
        } else {
            call.with(target).with(["--".to_owned()]).with(wanted.files)
        };
        self.run(call).await?;
        Ok(())
    }

    pub async fn restore(&self, wanted: Restore) -> Result<(), GitError> {
        let mut call = Call::at(&wanted.repository, "restore");
        if wanted.staged {
            call = call.with(["--staged"]);
        }
        if wanted.worktree || !wanted.staged {
            call = call.with(["--worktree"]);
        }
        if let Some(source) = &wanted.source {
            call = call.with([format!("--source={}", revision("commit", source)?)]);
        }
        self.run(call.with(["--".to_owned()]).with(wanted.files)).await?;
        Ok(())
    }

    /// `None` where the key is not set.
    pub async fn config(&self, scope: &Scope, key: &str) -> Result<Option<String>, GitError> {
        let key = revision("key", key)?;
        let output = self.try_run(scope.call().with(["--get".to_owned(), key])).await?;
        match output.status {
            0 => Ok(Some(output.text().trim_end_matches('\n').to_owned())),
            1 => Ok(None),
            status => Err(GitError::from_output("config", status, &output.stderr, "")),
        }
    }

    pub async fn set_config(&self, scope: &Scope, key: &str, value: &str) -> Result<(), GitError> {
        let key = revision("key", key)?;
        self.run(scope.call().with(["--replace-all", "--", &key, value])).await?;
        Ok(())
    }

    /// Hands credentials to git's own cache inside the sandbox, which keeps them in memory for a day: for callers that
    /// want plain `git push` to work in a shell there. From then on the sandbox's code can use them.
    pub async fn lend_credentials(&self, place: &str, credentials: &Credentials) -> Result<(), GitError> {
        let Some((protocol, host)) = place.split_once("://") else {
            return Err(GitError::Invalid(format!("{place:?} is not a scheme and a host")));
        };
        self.set_config(&Scope::Global, "credential.helper", "cache --timeout=86400").await?;
        let mut spoken = format!("protocol={protocol}\nhost={host}\n").into_bytes();
        if spoken.iter().filter(|b| **b == b'\n').count() != 2 {
            return Err(GitError::Invalid("a host cannot hold line breaks".into()));
        }
        spoken.extend(credentials.spoken());
        spoken.push(b'\n');
        self.run(Call::anywhere("credential").with(["approve"]).input(spoken)).await?;
        Ok(())
    }
}
