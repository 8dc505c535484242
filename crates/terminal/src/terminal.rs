//! The person's terminal: its size and raw mode, restored at the end.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use cove_protocol::process::TerminalSize;
use rustix::termios::{self, OptionalActions, Termios};

/// Standard input in raw mode: every key goes to the sandbox, Ctrl-C and Ctrl-Z too. Dropping it restores the terminal.
pub struct Raw {
    before: Termios,
}

impl Raw {
    pub fn enter() -> io::Result<Raw> {
        let before = termios::tcgetattr(io::stdin())?;
        let raw = Raw { before };
        raw.apply()?;
        Ok(raw)
    }

    /// Raw mode again, after the program was stopped and the shell changed the terminal.
    pub fn apply(&self) -> io::Result<()> {
        let mut raw = self.before.clone();
        raw.make_raw();
        Ok(termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?)
    }

    pub fn restore(&self) -> io::Result<()> {
        Ok(termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before)?)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // The terminal may be gone (SIGHUP): then there is nothing to restore.
        let _ = self.restore();
    }
}

/// The size of the terminal: of the output's first, as programs do.
pub fn size() -> Option<TerminalSize> {
    let (input, output) = (io::stdin(), io::stdout());
    [output.as_fd(), input.as_fd()].into_iter().find_map(|fd| {
        let size = termios::tcgetwinsize(fd).ok()?;
        (size.ws_row > 0 && size.ws_col > 0).then_some(TerminalSize { rows: size.ws_row, columns: size.ws_col })
    })
}

/// Whether stdout may have colour: it is a terminal, and nothing forbids it (no-color.org).
pub fn has_colour(stream: &impl IsTerminal) -> bool {
    let unset = |name| std::env::var_os(name).is_none_or(|value| value.is_empty());
    stream.is_terminal() && unset("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}
