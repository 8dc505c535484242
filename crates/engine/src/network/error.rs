//! What can go wrong with a sandbox's network, each with the step that failed.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },

    #[error(
        "put the egress rules into a network namespace: {0} (the kernel needs nf_tables, nft_nat and nft_chain_nat)"
    )]
    Firewall(#[source] io::Error),
}

impl Error {
    /// For `map_err`: says which step the system refused.
    pub fn step(step: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Step { step, source }
    }
}
