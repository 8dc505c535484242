//! One verb, one file.

pub mod bench;
pub mod change;
pub mod completions;
pub mod cp;
pub mod create;
pub mod doctor;
pub mod events;
pub mod exec;
pub mod explain;
pub mod extend;
pub mod inspect;
pub mod keys;
pub mod loadtest;
pub mod logs;
pub mod ls;
pub mod pause;
pub mod redteam;
pub mod resume;
pub mod rm;
pub mod run;
pub mod secure;
pub mod serve;
pub mod shell;
pub mod start;
pub mod stop;
pub mod top;
