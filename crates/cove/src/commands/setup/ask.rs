//! Questions on the terminal, each with its answer in case of Enter.

use std::io::{self, BufRead, IsTerminal, Write};

use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};

use crate::complaint::{Complaint, doing};

/// Whether there is somebody to ask.
pub fn is_anybody_there() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks until the answer is one that `read` takes. Enter is `usual`.
pub fn ask<T>(question: &str, usual: Option<&str>, read: impl Fn(&str) -> Result<T, String>) -> Result<T, Complaint> {
    loop {
        let shown = usual.map_or_else(String::new, |usual| format!(" [{usual}]"));
        let answer = line(&format!("{question}{shown}: "))?;
        let answer = if answer.is_empty() { usual.unwrap_or_default().to_owned() } else { answer };
        match read(&answer) {
            Ok(value) => return Ok(value),
            Err(why) => writeln!(io::stderr(), "  {why}")?,
        }
    }
}

/// A secret, which the terminal does not show; empty where Enter was pressed.
pub fn ask_secret(question: &str) -> Result<String, Complaint> {
    let stdin = io::stdin();
    let before = tcgetattr(&stdin).map_err(|errno| doing("read the terminal's settings")(errno.into()))?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    let set = |modes| tcsetattr(&stdin, OptionalActions::Now, modes);
    set(&silent).map_err(|errno| doing("silence the terminal")(errno.into()))?;
    let answer = line(&format!("{question} (not shown): "));
    let restored = set(&before);
    writeln!(io::stderr())?;
    restored.map_err(|errno| doing("set the terminal back")(errno.into()))?;
    answer
}

fn line(prompt: &str) -> Result<String, Complaint> {
    let mut stderr = io::stderr().lock();
    write!(stderr, "{prompt}")?;
    stderr.flush()?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer).map_err(doing("read the answer"))?;
    if read == 0 {
        return Err(Complaint::failed("the answers ended; nothing was written"));
    }
    Ok(answer.trim().to_owned())
}
