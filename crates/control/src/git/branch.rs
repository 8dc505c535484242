//! Branches, and which one is checked out.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::run::Call;
use super::{Git, GitError, revision};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitBranches)]
pub struct Branches {
    /// Absent on a detached head.
    pub current: Option<String>,
    pub names: Vec<String>,
}

impl Git {
    pub async fn branches(&self, repository: &str) -> Result<Branches, GitError> {
        let listed =
            self.run(Call::at(repository, "for-each-ref").with(["--format=%(refname:short)", "refs/heads"])).await?;
        let mut names: Vec<String> = listed.text().lines().map(str::to_owned).collect();
        let current = self.current_branch(repository).await?;
        // A branch without a commit has no ref yet, but it is where the first commit will go.
        if let Some(current) = &current
            && !names.contains(current)
        {
            names.push(current.clone());
        }
        Ok(Branches { current, names })
    }

    /// The branch checked out; `None` on a detached head.
    pub async fn current_branch(&self, repository: &str) -> Result<Option<String>, GitError> {
        let output = self.try_run(Call::at(repository, "symbolic-ref").with(["--quiet", "--short", "HEAD"])).await?;
        Ok((output.status == 0).then(|| output.text().trim().to_owned()))
    }

    /// From what is checked out; does not check it out.
    pub async fn create_branch(&self, repository: &str, name: &str) -> Result<(), GitError> {
        self.run(Call::at(repository, "branch").with([revision("branch", name)?])).await?;
        Ok(())
    }

    /// Merged or not.
    pub async fn delete_branch(&self, repository: &str, name: &str) -> Result<(), GitError> {
        self.run(Call::at(repository, "branch").with(["-D".into(), revision("branch", name)?])).await?;
        Ok(())
    }

    /// A branch (also one that only the remote has yet), a tag or a commit.
    pub async fn checkout(&self, repository: &str, target: &str) -> Result<(), GitError> {
        self.run(Call::at(repository, "checkout").with([revision("branch", target)?, "--".into()])).await?;
        Ok(())
    }
}
