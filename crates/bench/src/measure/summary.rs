//! Percentiles of many samples, by nearest rank: each is a value that was really seen.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub n: usize,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub min: f64,
    pub max: f64,
}

impl Summary {
    /// `None` of nothing.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted[rank.clamp(1, sorted.len()) - 1]
        };
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Summary { n: sorted.len(), p50: at(0.50), p95: at(0.95), p99: at(0.99), min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let samples: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let summary = Summary::of(&samples).unwrap();
        assert_eq!((summary.p50, summary.p95, summary.p99), (50.0, 95.0, 99.0));
        assert_eq!((summary.min, summary.max, summary.n), (1.0, 100.0, 100));
        let one = Summary::of(&[7.0]).unwrap();
        assert_eq!((one.p50, one.p99), (7.0, 7.0));
        assert!(Summary::of(&[]).is_none());
    }
}
