//! Listing processes.

use cove_protocol::process::{Command, Info};
use cove_protocol::{Frame, Kind, MAX_PAYLOAD, Reply};

use crate::connection::Connection;
use crate::failure::Result;
use crate::guest::Guest;

/// A command line is shown up to here when the list is too long for its frame.
const SHOWN: usize = 200;

pub fn list(guest: &Guest, connection: &mut Connection) -> Result<()> {
    let all: Vec<_> = guest.table().all().cloned().collect();
    let processes = all.iter().map(|process| process.info()).collect();
    connection.reply(&fitted(processes))
}

/// The list in one frame: the environments go first, then the ends of long command lines, then the oldest finished.
fn fitted(mut processes: Vec<Info>) -> Reply {
    let reply = |processes: &[Info]| Reply::Processes { processes: processes.to_vec() };
    let fits = |processes: &[Info]| Frame::json(Kind::Reply, &reply(processes)).payload.len() <= MAX_PAYLOAD;
    if !fits(&processes) {
        processes.iter_mut().for_each(|info| info.env.clear());
    }
    if !fits(&processes) {
        processes.iter_mut().for_each(|info| shorten(&mut info.command));
    }
    while !processes.is_empty() && !fits(&processes) {
        let half = processes.len().div_ceil(2);
        let mut place = 0;
        processes.retain(|info| {
            place += 1;
            place > half || info.exit.is_none()
        });
        if place == processes.len() {
            processes.drain(..half);
        }
    }
    reply(&processes)
}

fn shorten(command: &mut Command) {
    match command {
        Command::Shell(line) => cut(line),
        Command::Argv(words) => {
            words.truncate(8);
            words.iter_mut().for_each(cut);
        }
    }
}

fn cut(text: &mut String) {
    if text.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, size: usize) -> Info {
        Info {
            pid,
            tag: None,
            command: Command::Argv(vec!["é".repeat(size)]),
            env: [("A".to_owned(), "x".repeat(size))].into(),
            cwd: None,
            user: None,
            terminal: false,
            started_at_ms: 0,
            exit: None,
            output_end: 0,
            output_start: 0,
        }
    }

    #[test]
    fn a_list_too_long_for_a_frame_loses_detail_and_no_process() {
        let Reply::Processes { processes } = fitted((0..20).map(|pid| process(pid, 100_000)).collect()) else {
            panic!("not a list");
        };
        assert_eq!(processes.len(), 20);
        assert!(processes.iter().all(|info| info.env.is_empty()));
    }
}
