//! Calls that talk to other machines: clone, push, pull; and the names of remotes.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::run::Call;
use super::{Credentials, Git, GitError, revision};

#[derive(Debug, Clone, Default)]
pub struct Cloning {
    /// A name and password in the URL are removed from it and used as `credentials`.
    pub url: String,
    pub path: String,
    pub branch: Option<String>,
    /// Checked out after the clone, on a detached head.
    pub commit: Option<String>,
    /// How many commits to fetch.
    pub depth: Option<u32>,
    pub credentials: Option<Credentials>,
    pub tls: Tls,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tls {
    #[default]
    Verified,
    /// For a server with an untrusted certificate.
    Unverified,
}

#[derive(Debug, Clone, Default)]
pub struct Push {
    pub repository: String,
    /// Where absent: the branch's own remote, or `origin`.
    pub remote: Option<String>,
    /// Where absent: the branch that is checked out.
    pub branch: Option<String>,
    /// Sets the remote's branch as the upstream.
    pub set_upstream: bool,
    pub credentials: Option<Credentials>,
}

#[derive(Debug, Clone, Default)]
pub struct Pull {
    pub repository: String,
    pub remote: Option<String>,
    pub branch: Option<String>,
    pub credentials: Option<Credentials>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = GitRemote)]
pub struct Remote {
    pub name: String,
    pub url: String,
}

impl Git {
    pub async fn clone_repository(&self, wanted: Cloning) -> Result<(), GitError> {
        let (url, inside) = Credentials::out_of_url(&wanted.url)?;
        if url.is_empty() || url.starts_with('-') || wanted.path.is_empty() {
            return Err(GitError::Invalid("a clone needs a url and a path".into()));
        }
        let credentials = wanted.credentials.or(inside);
        let mut call = Call::anywhere("clone").remote(&url, credentials.as_ref())?;
        if wanted.tls == Tls::Unverified {
            call = call.setting("http.sslVerify=false");
        }
        if let Some(branch) = &wanted.branch {
            call = call.with(["--branch".into(), revision("branch", branch)?]);
        }
        if let Some(depth) = wanted.depth {
            call = call.with(["--depth".into(), depth.max(1).to_string()]);
        }
        self.run(call.with(["--", &url, &wanted.path])).await?;
        match &wanted.commit {
            Some(commit) => self.checkout_commit(&wanted.path, commit, &url, credentials.as_ref()).await,
            None => Ok(()),
        }
    }

    /// Fetches a commit by its hash if a shallow or single-branch clone did not bring it.
    async fn checkout_commit(
        &self,
        repository: &str,
        commit: &str,
        url: &str,
        credentials: Option<&Credentials>,
    ) -> Result<(), GitError> {
        let commit = revision("commit", commit)?;
        let object = format!("{commit}^{{commit}}");
        let here = self.try_run(Call::at(repository, "cat-file").with(["-e".into(), object])).await?;
        if here.status != 0 {
            let fetch = Call::at(repository, "fetch").remote(url, credentials)?;
            self.run(fetch.with(["origin".to_owned(), commit.clone()])).await?;
        }
        self.run(Call::at(repository, "checkout").with(["--detach".to_owned(), commit])).await?;
        Ok(())
    }

    pub async fn push(&self, wanted: Push) -> Result<(), GitError> {
        let branch = match &wanted.branch {
            Some(branch) => revision("branch", branch)?,
            None => self.current_branch(&wanted.repository).await?.ok_or_else(|| {
                GitError::BranchNotFound("git push: no branch is checked out and none was named".into())
            })?,
        };
        let remote = self.remote_of(&wanted.repository, wanted.remote.as_deref(), &branch).await?;
        let url = self.remote_url(&wanted.repository, &remote, &["--push"]).await?;
        let mut call = Call::at(&wanted.repository, "push").remote(&url, wanted.credentials.as_ref())?;
        if wanted.set_upstream {
            call = call.with(["--set-upstream"]);
        }
        self.run(call.with([remote, branch])).await?;
        Ok(())
    }

    /// Fetches and merges; the caller resolves a conflict.
    pub async fn pull(&self, wanted: Pull) -> Result<(), GitError> {
        let current = self.current_branch(&wanted.repository).await?;
        let remote =
            self.remote_of(&wanted.repository, wanted.remote.as_deref(), current.as_deref().unwrap_or("HEAD")).await?;
        let url = self.remote_url(&wanted.repository, &remote, &[]).await?;
        let call = Call::at(&wanted.repository, "pull").remote(&url, wanted.credentials.as_ref())?;
        let mut call = call.with(["--no-rebase", "--no-edit"]).with([remote]);
        // Without an upstream: the remote's branch of the same name.
        let branch = match (&wanted.branch, current) {
            (Some(branch), _) => Some(revision("branch", branch)?),
            (None, Some(current)) if !self.has_upstream(&wanted.repository, &current).await? => Some(current),
            (None, _) => None,
        };
        call = call.with(branch);
        self.run(call).await?;
        Ok(())
    }

    pub async fn remotes(&self, repository: &str) -> Result<Vec<Remote>, GitError> {
        let names = self.run(Call::at(repository, "remote")).await?.text();
        let mut remotes = Vec::new();
        for name in names.lines() {
            let url = self.remote_url(repository, name, &[]).await?;
            remotes.push(Remote { name: name.into(), url });
        }
        Ok(remotes)
    }

    pub async fn add_remote(&self, repository: &str, name: &str, url: &str) -> Result<(), GitError> {
        let name = revision("remote", name)?;
        let (url, _) = Credentials::out_of_url(url)?;
        self.run(Call::at(repository, "remote").with(["add", "--", &name, &url])).await?;
        Ok(())
    }

    pub async fn set_remote_url(&self, repository: &str, name: &str, url: &str) -> Result<(), GitError> {
        let name = revision("remote", name)?;
        let (url, _) = Credentials::out_of_url(url)?;
        self.run(Call::at(repository, "remote").with(["set-url", "--", &name, &url])).await?;
        Ok(())
    }

    pub async fn fetch(&self, repository: &str, remote: &str) -> Result<(), GitError> {
        let name = revision("remote", remote)?;
        let url = self.remote_url(repository, &name, &[]).await?;
        self.run(Call::at(repository, "fetch").remote(&url, None)?.with([name])).await?;
        Ok(())
    }

    async fn remote_of(&self, repository: &str, named: Option<&str>, branch: &str) -> Result<String, GitError> {
        match named {
            Some(name) => revision("remote", name),
            None => {
                let key = format!("branch.{branch}.remote");
                let configured = self.configured(repository, &key).await?;
                Ok(configured.unwrap_or_else(|| "origin".into()))
            }
        }
    }

    async fn has_upstream(&self, repository: &str, branch: &str) -> Result<bool, GitError> {
        Ok(self.configured(repository, &format!("branch.{branch}.merge")).await?.is_some())
    }

    async fn configured(&self, repository: &str, key: &str) -> Result<Option<String>, GitError> {
        let output = self.try_run(Call::at(repository, "config").with(["--get", key])).await?;
        Ok((output.status == 0).then(|| output.text().trim().to_owned()).filter(|value| !value.is_empty()))
    }

    async fn remote_url(&self, repository: &str, remote: &str, which: &[&str]) -> Result<String, GitError> {
        let call = Call::at(repository, "remote").with(["get-url"]).with(which.iter().copied()).with(["--", remote]);
        Ok(self.run(call).await?.text().lines().next().unwrap_or_default().to_owned())
    }
}
