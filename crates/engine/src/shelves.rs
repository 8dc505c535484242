//! Where a launch looks for layers: in its own data directory, then in those that this one was pointed to.
//!
//! `cove run` keeps its sandboxes apart from the server's and uses the server's templates
//! ([`Config::layers`](crate::Config)); a data directory whose `layers` is a link shares those of another.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Error;
use crate::spec::LayerId;
use crate::storage::{self, HeldLayer, Store, linked_data};

#[derive(Debug)]
pub struct Shelves {
    own: Arc<Store>,
    others: Vec<PathBuf>,
    /// Those of the others that were looked into. A store is opened when a layer is not in the ones before it.
    opened: Mutex<Vec<Arc<Store>>>,
}

/// A layer, and whether it lies in another data directory: nobody there knows that it is used here.
#[derive(Debug)]
pub struct Found {
    pub layer: HeldLayer,
    pub is_foreign: bool,
}

impl Shelves {
    pub fn new(own: Arc<Store>, data: &Path, layers: Option<&Path>) -> Shelves {
        let mut others: Vec<PathBuf> = Vec::new();
        for place in layers.into_iter().map(Path::to_owned).chain(linked_data(data)).chain(layers.and_then(linked_data))
        {
            if place != data && !others.contains(&place) {
                others.push(place);
            }
        }
        Shelves { own, others, opened: Mutex::default() }
    }

    pub fn hold(&self, id: &LayerId) -> Result<Found, Error> {
        match self.own.hold_layer(id) {
            Ok(layer) => return Ok(Found { layer, is_foreign: false }),
            Err(storage::Error::LayerMissing(_)) => {}
            Err(error) => return Err(error.into()),
        }
        for number in 0..self.others.len() {
            match self.other(number)?.hold_layer(id) {
                Ok(layer) => return Ok(Found { layer, is_foreign: true }),
                Err(storage::Error::LayerMissing(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::LayerMissing(*id))
    }

    /// Data directories that drafts and layers of ours may lie in.
    pub fn places(&self) -> &[PathBuf] {
        &self.others
    }

    fn other(&self, number: usize) -> Result<Arc<Store>, Error> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        while opened.len() <= number {
            let place = &self.others[opened.len()];
            opened.push(Arc::new(Store::open(place)?));
        }
        Ok(Arc::clone(&opened[number]))
    }
}
