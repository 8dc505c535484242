//! A sandbox's files and those of its layers written out and noted in a manifest, and compared with it later.

use super::House;
use crate::error::Error;
use crate::spec::{LayerId, SandboxId, Storage};
use crate::storage::{Against, Checked, Digest, Sealed, Watch};

impl House {
    pub fn seal(&self, id: &SandboxId, watch: Watch<'_>) -> Result<Sealed, Error> {
        let _turn = self.turns.take(id);
        let spec = self.spec(id)?;
        if spec.storage == Storage::Memory {
            return Err(Error::Invalid(format!("the files of sandbox {id} are in memory, and no manifest keeps them")));
        }
        self.unless_it_moves(id, || {
            let mut layers = Vec::new();
            for layer in &spec.root.over {
                let found = self.shelves.hold(layer)?;
                layers.push((*layer, self.store.seal_layer(&found.layer, watch)?.digest));
            }
            Ok(self.store.seal(id, &layers, watch)?)
        })
    }

    pub fn check(&self, id: &SandboxId, digest: Option<&Digest>, watch: Watch<'_>) -> Result<Checked, Error> {
        self.unless_it_moves(id, || Ok(self.store.check(id, digest, watch)?))
    }

    pub fn check_layer(&self, id: &LayerId, against: Against, watch: Watch<'_>) -> Result<Checked, Error> {
        let found = self.shelves.hold(id)?;
        Ok(self.store.check_layer(&found.layer, against, watch)?)
    }

    /// Does something with the files of a sandbox that is paused or does not run. One that is paused stays so meanwhile.
    fn unless_it_moves<T>(&self, id: &SandboxId, act: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let live = match self.running(id) {
            Ok(live) => live,
            Err(Error::NotRunning(_)) => return act(),
            // A power failure can take a record and leave the files.
            Err(Error::NotFound(_)) if self.store.has(id)? => return act(),
            Err(error) => return Err(error),
        };
        let _alone = live.stillness();
        if live.is_gone() {
            return act();
        }
        if !live.group()?.is_frozen()? {
            return Err(Error::AlreadyRunning(id.clone()));
        }
        act()
    }
}
