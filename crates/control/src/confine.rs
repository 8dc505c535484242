//! How a process of ours gives up everything but its memory and its open descriptors, to read what strangers wrote.
//!
//! The filter of system calls is compiled by the engine, which has the compiler for the sandboxes' own. That is all this
//! module is: the one thing of the engine that has nothing to do with where sandboxes run.

pub(crate) use cove_engine::confine_to_text as to_text;
