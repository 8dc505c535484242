//! Errors, as people read them.
//!
//! A complaint is one sentence that names the thing, any number of hints that name the remedy, and the exit code that
//! a script sees. Commands return it; `main` alone prints it and ends the program.

use std::fmt;
use std::io;

/// The program's exit codes, as shells and container tools use them.
pub mod code {
    /// The command failed.
    pub const FAILED: u8 = 1;
    /// The command line or a value on it is wrong.
    pub const USAGE: u8 = 2;
    /// `--timeout` expired.
    pub const TIMED_OUT: u8 = 124;
    /// The sandbox could not be made or was lost.
    pub const ENGINE: u8 = 125;
    /// The program inside exists but cannot be run.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The program inside does not exist.
    pub const NOT_FOUND: u8 = 127;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Complaint {
    message: String,
    hints: Vec<String>,
    code: u8,
}

impl Complaint {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Complaint { message: message.into(), hints: Vec::new(), code }
    }

    pub fn failed(message: impl Into<String>) -> Self {
        Complaint::new(code::FAILED, message)
    }

    pub fn usage(message: impl Into<String>) -> Self {
        Complaint::new(code::USAGE, message)
    }

    pub fn engine(message: impl Into<String>) -> Self {
        Complaint::new(code::ENGINE, message)
    }

    /// Nothing to print. Also when the reader of our output went away: `cove ls | head` is not an error.
    pub fn silent() -> Self {
        Complaint::new(0, "")
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    pub fn with_code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn code(&self) -> u8 {
        self.code
    }

    pub fn is_silent(&self) -> bool {
        self.message.is_empty()
    }
}

/// As it goes to stderr: the sentence, then a line for each hint.
impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        for hint in &self.hints {
            write!(f, "\nhint: {hint}")?;
        }
        Ok(())
    }
}

/// What was being done, and with what, when the system refused: its own errors name nothing. Silent where the reader of
/// our output went away.
pub fn doing(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Complaint {
    move |error| match error.kind() {
        io::ErrorKind::BrokenPipe => Complaint::silent(),
        _ => Complaint::failed(format!("{what}: {error}")),
    }
}

/// For our own output alone; everything else says what it was [`doing`].
impl From<io::Error> for Complaint {
    fn from(error: io::Error) -> Self {
        doing("write the output")(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_says_what_was_being_done() {
        let denied = doing("make /srv/x")(io::ErrorKind::PermissionDenied.into());
        assert_eq!(
            (denied.to_string().as_str(), denied.code()),
            ("error: make /srv/x: permission denied", code::FAILED)
        );
        let full = Complaint::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(full.message().starts_with("write the output: "), "{full}");
        // The reader went away: `cove ls | head`.
        assert!(Complaint::from(io::Error::from(io::ErrorKind::BrokenPipe)).is_silent());
    }
}
