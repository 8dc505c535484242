//! Stories about the real guest, told over its socket.

mod archives;
mod client;
mod files;
mod first;
mod hostile;
mod ports;
mod processes;
mod terminals;
mod trees;
mod watching;
