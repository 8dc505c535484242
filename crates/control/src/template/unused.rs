//! Removes unused layers: an earlier build of a template whose last sandbox is gone.
//!
//! A layer is removed when no template's note names it, no sandbox in the store does (stopped and archived ones too),
//! and no `cove run` uses it. If a note was written a moment ago, a creation may have read the previous one: then
//! nothing is removed.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cove_engine::spec::Root;

use super::built::{Built, layers_of};
use crate::{App, Error};

/// This long after the last build no creation can still use the previous note.
const SETTLED: Duration = Duration::from_secs(600);

/// Layers that are being removed; if a server dies meanwhile, the next one finds them here.
const GOING: &str = "removed-";

/// A lock on the layers of a sandbox that is in no store; they stay while it is held.
#[derive(Debug)]
pub struct Held {
    _layers: Vec<File>,
}

/// Locks the layers of a root.
pub fn hold(root: &Root) -> io::Result<Held> {
    let paths = match root {
        Root::Base => &[],
        Root::BaseWith(paths) | Root::Layers(paths) => paths.as_slice(),
    };
    let held = paths.iter().map(|path| {
        // What is mounted is below the directory with the layer's name.
        let layer = File::open(path.parent().unwrap_or(path))?;
        layer.lock_shared()?;
        // It may have been removed between reading the note and locking.
        path.metadata()?;
        Ok(layer)
    });
    Ok(Held { _layers: held.collect::<io::Result<_>>()? })
}

impl App {
    /// Removes unused layers.
    pub(crate) async fn remove_unused_layers(&self) -> Result<(), Error> {
        let data = self.config().data.clone();
        let trouble = |error: io::Error| Error::internal(format!("look for unused layers: {error}"));
        for name in unnamed(&data, SystemTime::now()).map_err(trouble)? {
            if !name.starts_with(GOING) && self.store().is_mentioned_by_sandboxes(&name).await? {
                continue;
            }
            let path = layers_of(&data).join(&name);
            let removed = tokio::task::spawn_blocking(move || remove(&path)).await;
            match removed.map_err(|error| Error::internal(error.to_string()))? {
                Ok(true) => tracing::info!(layer = name, "removed an unused layer"),
                Ok(false) => {}
                Err(error) => tracing::warn!(layer = name, %error, "remove an unused layer"),
            }
        }
        Ok(())
    }
}

/// Layers that no note names, by the names of their directories. Empty where that is not certain.
fn unnamed(data: &Path, now: SystemTime) -> io::Result<Vec<String>> {
    let layers = layers_of(data);
    // A link belongs to somebody else.
    if !layers.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(Vec::new());
    }
    let Some(named) = named(data, now)? else { return Ok(Vec::new()) };
    let mut unnamed = Vec::new();
    for entry in fs::read_dir(&layers)? {
        let entry = entry?;
        let changed = UNIX_EPOCH + Duration::from_secs(entry.metadata()?.ctime().unsigned_abs());
        let name = entry.file_name().to_string_lossy().into_owned();
        let settled = now.duration_since(changed).is_ok_and(|age| age > SETTLED);
        if name.starts_with(GOING) || settled && is_digest(&name) && !named.contains(&name) {
            unnamed.push(name);
        }
    }
    Ok(unnamed)
}

/// The layers of all templates; `None` shortly after a build, or where a note cannot be read.
fn named(data: &Path, now: SystemTime) -> io::Result<Option<HashSet<String>>> {
    let notes = match fs::read_dir(data.join("templates")) {
        Ok(notes) => notes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut named = HashSet::new();
    for note in notes {
        let note = note?;
        let age = now.duration_since(note.metadata()?.modified()?).unwrap_or_default();
        let built: Option<Built> = serde_json::from_slice(&fs::read(note.path())?).ok();
        let Some(built) = built.filter(|_| age > SETTLED) else { return Ok(None) };
        named.extend(built.layers);
    }
    Ok(Some(named))
}

fn is_digest(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// `false` where somebody uses it.
fn remove(layer: &Path) -> io::Result<bool> {
    let lock = File::open(layer)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let going = going(layer);
    if going != layer {
        fs::rename(layer, &going)?;
    }
    fs::remove_dir_all(going)?;
    Ok(true)
}

/// Renames the layer before it is deleted, so that no new note finds half of it.
fn going(layer: &Path) -> PathBuf {
    let name = layer.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with(GOING) { layer.to_owned() } else { layer.with_file_name(format!("{GOING}{name}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(data: &Path, letter: &str) -> String {
        let name = letter.repeat(64);
        fs::create_dir_all(layers_of(data).join(&name).join("usr")).unwrap();
        name
    }

    fn build(data: &Path, layer: &str) {
        let built = Built {
            layers: vec![layer.into()],
            python: String::new(),
            packages: Vec::new(),
            env: Default::default(),
            bytes: 0,
            built_at: String::new(),
        };
        built.save(data, "code-interpreter").unwrap();
    }

    #[test]
    fn a_layer_that_a_later_build_replaced_is_unnamed_once_the_build_has_settled() {
        let data = tempfile::tempdir().unwrap();
        let later = || SystemTime::now() + SETTLED * 2;
        let (earlier, newer) = (layer(data.path(), "a"), layer(data.path(), "b"));
        assert!(unnamed(data.path(), later()).unwrap().is_empty(), "without a note nothing is known");
        build(data.path(), &newer);
        assert!(
            unnamed(data.path(), SystemTime::now()).unwrap().is_empty(),
            "a creation may have read the note before"
        );
        assert_eq!(unnamed(data.path(), later()).unwrap(), [earlier]);
        fs::write(data.path().join("templates/other.json"), "{").unwrap();
        assert!(unnamed(data.path(), later()).unwrap().is_empty(), "a note that cannot be read may name anything");
    }

    #[test]
    fn a_layer_that_is_held_stays() {
        let data = tempfile::tempdir().unwrap();
        let path = layers_of(data.path()).join(layer(data.path(), "a"));
        let held = hold(&Root::BaseWith(vec![path.join("usr")])).unwrap();
        assert!(!remove(&path).unwrap() && path.exists());
        drop(held);
        assert!(remove(&path).unwrap() && !path.exists());
        assert!(hold(&Root::BaseWith(vec![path.join("usr")])).is_err());
    }
}
