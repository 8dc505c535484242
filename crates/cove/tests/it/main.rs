//! Stories about the real program: what a person types and what they see.

mod archive;
mod bad_input;
mod bench;
mod capacity;
mod config;
mod crash;
mod doctor;
mod jobs;
mod last_words;
mod loadtest;
mod machine_readable;
mod object_store;
mod ordinary;
mod reboot;
mod reset;
mod restart;
mod run;
mod run_signals;
mod run_terminal;
mod security;
mod serve_terminal;
mod telemetry;
mod terminal_verbs;
mod tls;
mod two_servers;
mod verbs;
