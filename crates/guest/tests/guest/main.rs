//! Stories about the real guest, told over its socket.

mod client;
mod files;
mod hostile;
mod processes;
mod terminals;
