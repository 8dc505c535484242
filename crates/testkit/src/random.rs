//! Randomness that can be repeated: a test prints its seed and takes it from `COVE_SEED`.

use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64: small, and every seed is a good one.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The seed of this run: `COVE_SEED` where it is set.
    ///
    /// # Panics
    /// If `COVE_SEED` is no number.
    pub fn seed() -> u64 {
        match std::env::var("COVE_SEED") {
            Ok(text) => text.parse().expect("COVE_SEED is a number"),
            Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64),
        }
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to one less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    pub fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(from.len() as u64);
        from.get(usize::try_from(index).unwrap_or(0))
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.number() as u8).collect()
    }
}
