//! Git's errors as kinds that a door can map.
//!
//! Git reports reasons as English sentences, and its exit status is nearly always 128 or 1. So this table matches the
//! sentences, with `LC_ALL=C` set. A sentence that matches nothing is passed on.

use crate::guest::GuestError;

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// Refused before git ran.
    #[error("{0}")]
    Invalid(String),
    #[error("the sandbox's template has no git program")]
    NoGit,
    #[error("{0}")]
    AuthenticationFailed(String),
    #[error("{0}")]
    RepositoryNotFound(String),
    #[error("{0}")]
    BranchNotFound(String),
    #[error("{0}")]
    BranchExists(String),
    /// A clone into a folder that is not empty.
    #[error("{0}")]
    PathTaken(String),
    /// The remote has commits that the sandbox has not.
    #[error("{0}")]
    PushRejected(String),
    /// The remote's own rules refused it.
    #[error("{0}")]
    RemoteRejected(String),
    #[error("{0}")]
    DirtyWorktree(String),
    #[error("{0}")]
    MergeConflict(String),
    #[error("{0}")]
    NothingToCommit(String),
    /// The remote could not be reached.
    #[error("{0}")]
    TransportFailed(String),
    #[error("git {command} did not end within {seconds} s")]
    Timeout { command: String, seconds: u64 },
    #[error("git {command} printed more than {limit} bytes")]
    TooLong { command: String, limit: usize },
    /// Anything else git says.
    #[error("{0}")]
    Failed(String),
    #[error(transparent)]
    Guest(#[from] GuestError),
}

/// For the native API: its own status, with git's sentence.
impl From<GitError> for crate::Error {
    fn from(error: GitError) -> Self {
        use crate::Error;
        let message = error.to_string();
        match error {
            GitError::Guest(error) => error.into(),
            GitError::NoGit => Error::Unsupported(message),
            GitError::AuthenticationFailed(_) | GitError::RemoteRejected(_) => Error::Forbidden(message),
            GitError::BranchExists(_)
            | GitError::PathTaken(_)
            | GitError::PushRejected(_)
            | GitError::DirtyWorktree(_)
            | GitError::MergeConflict(_)
            | GitError::NothingToCommit(_) => Error::Conflict(message),
            GitError::Timeout { seconds, .. } => GuestError::Timeout(std::time::Duration::from_secs(seconds)).into(),
            GitError::Invalid(_)
            | GitError::RepositoryNotFound(_)
            | GitError::BranchNotFound(_)
            // The caller chose the remote: when it does not answer, that is not an error of this server.
            | GitError::TransportFailed(_)
            | GitError::TooLong { .. }
            | GitError::Failed(_) => Error::invalid("git", message),
        }
    }
}

type Make = fn(String) -> GitError;

/// First match wins: the particular before the general ("unable to access" also precedes a 403).
const SENTENCES: &[(&str, Make)] = &[
    ("not a git repository", GitError::RepositoryNotFound),
    ("cannot change to", GitError::RepositoryNotFound),
    ("does not appear to be a git repository", GitError::RepositoryNotFound),
    ("Authentication failed", GitError::AuthenticationFailed),
    ("could not read Username", GitError::AuthenticationFailed),
    ("could not read Password", GitError::AuthenticationFailed),
    ("Permission denied (publickey", GitError::AuthenticationFailed),
    ("returned error: 401", GitError::AuthenticationFailed),
    ("returned error: 403", GitError::AuthenticationFailed),
    ("[remote rejected]", GitError::RemoteRejected),
    ("[rejected]", GitError::PushRejected),
    ("non-fast-forward", GitError::PushRejected),
    ("would be overwritten by", GitError::DirtyWorktree),
    ("Please commit your changes or stash them", GitError::DirtyWorktree),
    ("Automatic merge failed", GitError::MergeConflict),
    ("CONFLICT (", GitError::MergeConflict),
    ("unmerged files", GitError::MergeConflict),
    ("you need to resolve your current index first", GitError::MergeConflict),
    ("nothing to commit", GitError::NothingToCommit),
    ("nothing added to commit", GitError::NothingToCommit),
    ("no changes added to commit", GitError::NothingToCommit),
    ("and is not an empty directory", GitError::PathTaken),
    ("not found in upstream", GitError::BranchNotFound),
    ("couldn't find remote ref", GitError::BranchNotFound),
    ("did not match any file(s) known to git", GitError::BranchNotFound),
    ("src refspec", GitError::BranchNotFound),
    ("unknown revision", GitError::BranchNotFound),
    ("invalid reference", GitError::BranchNotFound),
    ("not a valid object name", GitError::BranchNotFound),
    ("reference is not a tree", GitError::BranchNotFound),
    ("Could not resolve host", GitError::TransportFailed),
    ("Failed to connect", GitError::TransportFailed),
    ("Connection refused", GitError::TransportFailed),
    ("Connection timed out", GitError::TransportFailed),
    ("early EOF", GitError::TransportFailed),
    ("SSL certificate problem", GitError::TransportFailed),
    ("returned error: 404", GitError::RepositoryNotFound),
    ("returned error: 5", GitError::TransportFailed),
    ("does not exist", GitError::RepositoryNotFound),
    ("unable to access", GitError::TransportFailed),
];

impl GitError {
    /// From what git printed before it gave up.
    pub(super) fn from_output(command: &str, status: i32, stderr: &str, stdout: &str) -> Self {
        let text = if stderr.trim().is_empty() { stdout } else { stderr };
        let said = format!("git {command}: {}", sentence(text, status));
        if stderr.contains("a branch named") && stderr.contains("already exists") {
            return GitError::BranchExists(said);
        }
        // `branch 'x' not found.` and, before git 2.43, `branch 'x' not found`; the path of a clone may be between.
        if stderr.contains("error: branch '") && stderr.contains("not found") {
            return GitError::BranchNotFound(said);
        }
        if stderr.contains("fatal: repository '") && stderr.contains("not found") {
            return GitError::RepositoryNotFound(said);
        }
        let both = [stderr, stdout];
        match SENTENCES.iter().find(|(sentence, _)| both.iter().any(|text| text.contains(sentence))) {
            Some((_, make)) => make(said),
            None => GitError::Failed(said),
        }
    }
}

/// The lines that carry the reason, without progress and hints.
fn sentence(text: &str, status: i32) -> String {
    const MOST: usize = 2000;
    let telling = |line: &&str| !line.is_empty() && !line.starts_with("hint:") && !line.starts_with("Cloning into");
    let mut lines: Vec<&str> = text.lines().map(str::trim).filter(telling).collect();
    if let Some(first) = lines.iter().position(|line| line.starts_with("fatal:") || line.starts_with("error:")) {
        lines.drain(..first);
    }
    let mut joined = lines.join("; ");
    if joined.is_empty() {
        joined = format!("ended with status {status}");
    }
    if let Some((cut, _)) = joined.char_indices().nth(MOST) {
        joined.truncate(cut);
        joined.push('…');
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(stderr: &str) -> GitError {
        GitError::from_output("push", 1, stderr, "")
    }

    #[test]
    fn a_403_is_a_refusal_and_not_a_broken_line() {
        let said = "fatal: unable to access 'https://h/x.git/': The requested URL returned error: 403";
        assert!(matches!(of(said), GitError::AuthenticationFailed(_)));
        let said = "fatal: unable to access 'https://h/x.git/': Could not resolve host: h";
        assert!(matches!(of(said), GitError::TransportFailed(_)));
    }

    #[test]
    fn the_remotes_own_no_is_told_from_a_race() {
        assert!(matches!(of(" ! [remote rejected] main -> main (hook declined)"), GitError::RemoteRejected(_)));
        assert!(matches!(of(" ! [rejected]        main -> main (fetch first)"), GitError::PushRejected(_)));
    }

    #[test]
    fn hints_and_progress_are_left_out() {
        let error = of("Cloning into 'x'...\nfatal: odd thing\nhint: try harder");
        assert_eq!(error.to_string(), "git push: fatal: odd thing");
    }
}
