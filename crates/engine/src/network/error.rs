//! What can go wrong with a sandbox's network, each with the step that failed.

use std::io;

use crate::spec::SandboxId;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{step}: {source}")]
    Step { step: &'static str, source: io::Error },

    #[error(
        "put the egress rules into a network namespace: {0} (the kernel needs nf_tables, nft_nat and nft_chain_nat)"
    )]
    Firewall(#[source] io::Error),

    #[error("open the egress proxy's sockets in the sandbox's network namespace: {0}")]
    Listen(#[source] io::Error),

    #[error("egress policy: {0}")]
    Policy(String),

    #[error(
        "no file descriptors left for another sandbox's network: the limit of this process is {0} (raise LimitNOFILE or ulimit -n)"
    )]
    Descriptors(usize),

    #[error("sandbox {0} has no egress to change")]
    NotAttached(SandboxId),

    #[error("the egress proxy has stopped")]
    ProxyGone,
}

impl Error {
    /// For `map_err`: says which step the system refused.
    pub fn step(step: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Step { step, source }
    }

    /// What the kernel said, without the step, where it was the kernel that refused.
    pub fn into_io(self) -> io::Error {
        match self {
            Error::Step { source, .. } | Error::Firewall(source) | Error::Listen(source) => source,
            other => io::Error::other(other),
        }
    }
}
