//! Manifests of the fake provider: the digest of each file by its path, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use cove_protocol::SandboxId;
use sha2::{Digest as _, Sha256};

use super::files::Files;
use super::{Fake, id_of};
use crate::provider::images::{Layers as _, Volumes as _};
use crate::provider::manifest::{Checked, How, Manifests, Problem, ProblemKind, Pulse, Sealed, Thing};
use crate::provider::{Handle, ProviderError, Seen};

/// The digest of each file.
pub type Noted = BTreeMap<String, String>;

fn noted(files: &Files) -> Noted {
    files.all_below("/").into_iter().map(|(path, content)| (path, hex::encode(Sha256::digest(content)))).collect()
}

fn digest_of(noted: &Noted) -> String {
    let mut digest = Sha256::new();
    for (path, content) in noted {
        digest.update(format!("{path}\0{content}\0"));
    }
    hex::encode(digest.finalize())
}

fn checked(how: How, files: u64) -> Checked {
    Checked {
        how,
        files,
        bytes: 0,
        missing: 0,
        added: 0,
        changed: 0,
        unreadable: 0,
        problems: Vec::new(),
        layers: Vec::new(),
    }
}

impl Fake {
    /// Changes a file as a disk does that fails: without a word.
    pub fn tamper(&self, id: &SandboxId, path: &str, content: &[u8]) {
        let changed = self.with(&super::handle_of(id), |entry| {
            let mut files = entry.guest.copy_of_files();
            files.write(path, content.to_vec(), Default::default(), None, true)?;
            entry.guest.exchange_files(files);
            Ok::<_, cove_protocol::Failure>(())
        });
        changed.expect("the sandbox is there").expect("the file can be written");
    }

    /// A paused or stopped sandbox's files as they are.
    fn at_rest(&self, handle: &Handle) -> Result<Noted, ProviderError> {
        let (state, files) = self.with(handle, |entry| (entry.state, entry.guest.copy_of_files()))?;
        match state {
            Seen::Running => Err(ProviderError::Exhausted("the sandbox runs".into())),
            Seen::Paused | Seen::Stopped => Ok(noted(&files)),
        }
    }

    fn compare(&self, handle: &Handle, digest: Option<&str>) -> Result<Checked, ProviderError> {
        let now = self.at_rest(handle)?;
        let Some(digest) = digest else { return Ok(checked(How::Read, now.len() as u64)) };
        let mut found = checked(How::Manifest, now.len() as u64);
        let all = self.manifests.lock().expect("no panic while held");
        let before = id_of(handle).and_then(|id| all.get(&id).cloned());
        let Some(before) = before.filter(|before| digest_of(before) == digest) else {
            let detail = "the manifest is not there".to_owned();
            found.problems.push(Problem { kind: ProblemKind::Manifest, path: String::new(), detail });
            return Ok(found);
        };
        for path in before.keys().chain(now.keys().filter(|path| !before.contains_key(*path))) {
            let (kind, count) = match (before.get(path), now.get(path)) {
                (Some(_), None) => (ProblemKind::Missing, &mut found.missing),
                (None, _) => (ProblemKind::Added, &mut found.added),
                (Some(before), Some(now)) if before != now => (ProblemKind::Changed, &mut found.changed),
                (Some(_), Some(_)) => continue,
            };
            *count += 1;
            found.problems.push(Problem { kind, path: path.clone(), detail: String::new() });
        }
        Ok(found)
    }
}

#[async_trait]
impl Manifests for Fake {
    async fn seal(&self, handle: &Handle, pulse: Arc<Pulse>) -> Result<Sealed, ProviderError> {
        self.trouble("seal")?;
        let noted = self.at_rest(handle)?;
        let id = id_of(handle).ok_or_else(|| ProviderError::NotFound(handle.clone()))?;
        let sealed = Sealed { digest: digest_of(&noted), files: noted.len() as u64, bytes: 0 };
        let _never_given_up = pulse.beat(sealed.files, 0);
        self.manifests.lock().expect("no panic while held").insert(id, noted);
        self.pass("seal").await;
        Ok(sealed)
    }

    async fn check(&self, thing: Thing, pulse: Arc<Pulse>) -> Result<Checked, ProviderError> {
        self.trouble("check")?;
        let found = match thing {
            Thing::Sandbox { handle, digest } => self.compare(&handle, digest.as_deref())?,
            Thing::Layer { layer, .. } => {
                let layer = self.layer(layer).await?.ok_or(ProviderError::Refused("no such layer".into()))?;
                checked(How::Read, layer.files)
            }
            Thing::Volume(volume) => {
                self.volume_usage(&volume).await?;
                checked(How::Names, 0)
            }
        };
        let _never_given_up = pulse.beat(found.files, found.bytes);
        self.pass("check").await;
        Ok(found)
    }
}
