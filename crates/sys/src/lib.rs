//! The kernel's interface, each call safe for its caller: the only crate with unsafe code.
//!
//! One module per kernel facility, one system call per function. What `rustix` offers safely is not repeated here.

pub mod attack;
pub mod btrfs;
pub mod clone;
pub mod exec;
pub mod extents;
pub mod file_identity;
pub mod inherited;
pub mod loop_device;
pub mod mount;
pub mod namespace;
pub mod netlink;
pub mod network_namespace;
pub mod pidfd;
pub mod probe;
pub mod program;
pub mod quota;
pub mod replacement;
pub mod seccomp;
pub mod signal;
