//! How often a change of a sandbox's row is tried.
//!
//! A row is written only where its generation is still the one that was read. Another server may write in between: then the
//! newer row is read, the rules are asked again, and the write is tried again.

use cove_protocol::SandboxId;

use crate::Error;

const MOST: usize = 8;

pub(super) struct Attempts<'a> {
    id: &'a SandboxId,
    left: usize,
}

impl<'a> Attempts<'a> {
    pub(super) fn on(id: &'a SandboxId) -> Attempts<'a> {
        Attempts { id, left: MOST }
    }

    /// Counts one more; refuses when others have come first too often.
    pub(super) fn again(&mut self) -> Result<(), Error> {
        if self.left == 0 {
            return Err(Error::Conflict(format!("sandbox {} is being changed by others; try again", self.id)));
        }
        self.left -= 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_is_always_overtaken_ends_with_a_conflict() {
        let id = "a".repeat(SandboxId::LENGTH).parse().unwrap();
        let mut attempts = Attempts::on(&id);
        for _ in 0..MOST {
            attempts.again().unwrap();
        }
        let refused = attempts.again().unwrap_err();
        assert!(matches!(&refused, Error::Conflict(why) if why.contains("changed by others")), "{refused}");
    }
}
