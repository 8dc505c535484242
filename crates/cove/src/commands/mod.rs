//! One verb, one file.

pub mod change;
pub mod completions;
pub mod create;
pub mod doctor;
pub mod explain;
pub mod inspect;
pub mod ls;
pub mod pause;
pub mod redteam;
pub mod resume;
pub mod rm;
pub mod run;
pub mod serve;
pub mod start;
pub mod stop;
