//! Stories about the real program: what a person types and what they see.

mod bad_input;
mod bench;
mod config;
mod doctor;
mod loadtest;
mod ordinary;
mod run;
mod run_signals;
mod run_terminal;
mod security;
mod telemetry;
mod terminal_verbs;
mod tls;
mod verbs;
