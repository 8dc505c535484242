//! Stories about the real guest, told over its socket.

mod client;
mod hostile;
mod processes;
mod terminals;
