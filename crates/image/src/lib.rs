//! Container images, without a container runtime: find one, fetch it, unpack it, build it, write it out again.
//!
//! The server pulls what strangers named from machines that strangers own. So every byte here is hostile: bounded while
//! it is read, compared with its digest, and put in place by descriptor. Nothing in this crate knows sandboxes, tenants
//! or a database: the caller gives directories, rules and limits, and gets trees and facts.
//!
//! # Layout
//! * [`reference`]: `name:tag@digest` as people write it; [`digest`]: what content is named by
//! * [`manifest`]: what a registry or an archive says an image consists of; [`config`]: how it wants to be run
//! * [`registry`]: fetch from and push to a registry (async)
//! * [`archive`]: images in files: `docker save`, OCI layout, a plain tar of a root
//! * [`unpack`]: layers, one after the other, onto one tree; [`chain`]: what such a tree is called
//! * [`export`]: layers of overlays back into an image
//! * [`dockerfile`]: a Dockerfile into stages and steps; [`devcontainer`]: what `devcontainer.json` asks for
//! * [`tar`]: headers, pax records and holes, read and written

#![forbid(unsafe_code)]

pub mod archive;
pub mod chain;
pub mod config;
pub mod devcontainer;
pub mod digest;
pub mod dockerfile;
pub mod export;
pub mod manifest;
pub mod reference;
pub mod registry;
pub mod tar;
pub mod unpack;

pub use digest::Digest;
pub use manifest::Platform;
pub use reference::Reference;
