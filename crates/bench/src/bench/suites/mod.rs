//! What is measured, one file each.

mod alive;
mod clients;
mod cold;
mod exec;
mod files;
mod images;
mod interpreter;
mod pause;
mod providers;
mod sdk;
mod throughput;
mod tti;

use clap::ValueEnum;
pub use images::PROGRAMS as OF_IMAGES;
pub use throughput::rate;

use super::Bench;
use crate::measure::report::Suite;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SuiteName {
    /// From nothing to the first output, and back to nothing
    Cold,
    /// A command in a sandbox that lives
    Exec,
    /// Sandboxes made and removed a second, 1 to 8 at once
    Throughput,
    /// Time to interactive: create, then `node -v`, one after another, staggered, and 100 at once
    Tti,
    /// Freeze and thaw
    Pause,
    /// First cell of Python, and the ones after it
    Interpreter,
    /// A large file up and down
    Files,
    /// Images: pull, start, build; snapshots and forks, of much and many at once
    Images,
    /// Create and exec at every provider: docker, and services that a second server plays
    Providers,
    /// 200 clients at once
    Clients,
    /// The E2B SDK for Python
    Sdk,
    /// Memory of many idle sandboxes
    Density,
    /// The server killed and started again with all of them alive
    Restart,
}

impl SuiteName {
    /// In the order of `ALL`, whatever the order on the command line.
    pub fn wanted(only: &[SuiteName]) -> Vec<SuiteName> {
        let all = SuiteName::value_variants().iter().copied();
        all.filter(|suite| only.is_empty() || only.contains(suite)).collect()
    }

    pub fn has_peers(self) -> bool {
        matches!(
            self,
            SuiteName::Cold
                | SuiteName::Exec
                | SuiteName::Throughput
                | SuiteName::Tti
                | SuiteName::Pause
                | SuiteName::Images
                | SuiteName::Providers
        )
    }
}

/// All that are wanted. One that cannot be measured is reported with its reason.
pub async fn measure(bench: &mut Bench, wanted: &[SuiteName]) -> Vec<Suite> {
    let mut suites = Vec::new();
    // What a sandbox costs is seen before others have come and gone: the kernel keeps memory of those that ended at hand for the next. Filling
    // is the long part, so both suites use the same sandboxes.
    let of_many = alive::measure(bench, wanted).await;
    for name in wanted {
        match name {
            SuiteName::Cold => suites.extend(cold::measure(bench).await),
            SuiteName::Exec => suites.extend(exec::measure(bench).await),
            SuiteName::Throughput => suites.push(throughput::measure(bench).await),
            SuiteName::Tti => suites.push(tti::measure(bench).await),
            SuiteName::Pause => suites.push(pause::measure(bench).await),
            SuiteName::Interpreter => suites.extend(interpreter::measure(bench).await),
            SuiteName::Files => suites.push(files::measure(bench).await),
            SuiteName::Images => suites.extend(images::measure(bench).await),
            SuiteName::Providers => suites.extend(providers::measure(bench).await),
            SuiteName::Clients => suites.push(clients::measure(bench).await),
            SuiteName::Sdk => suites.push(sdk::measure(bench).await),
            SuiteName::Density | SuiteName::Restart => {}
        }
    }
    suites.extend(of_many);
    suites
}
