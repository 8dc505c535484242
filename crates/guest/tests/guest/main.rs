//! Stories about the real guest, told over its socket.

mod archives;
mod client;
mod containers;
mod copies;
mod files;
mod first;
mod hostile;
mod ports;
mod processes;
mod terminals;
mod trees;
mod watching;
