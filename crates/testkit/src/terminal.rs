//! A real pseudo-terminal with a program in it.
//!
//! `setsid --ctty` (util-linux) makes the terminal the program's own, so that Ctrl-C, Ctrl-Z and a resize reach it as
//! the kernel delivers them to a person's programs.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::program::{cove_path, pid_of, wait_within};
use crate::wait::{LIMIT, until, until_some};

pub struct Terminal {
    keyboard: File,
    /// The far side, kept open to check in which mode it is left.
    far: File,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of the screen earlier waits have read.
    seen: usize,
    child: Child,
}

impl Terminal {
    /// A program in a terminal of 24 × 80.
    pub fn start<S: AsRef<OsStr>>(data: &Path, argv: impl IntoIterator<Item = S>) -> Terminal {
        let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("open a pseudo-terminal");
        grantpt(&near).expect("grant it");
        unlockpt(&near).expect("unlock it");
        let name = ptsname(&near, Vec::new()).expect("name it").into_string().expect("its name is text");
        let far = || File::options().read(true).write(true).open(&name).expect("open the far side");
        let near = File::from(near);
        let kept = far();
        set_size(&near, 24, 80);

        let mut command = Command::new("setsid");
        command.arg("--ctty").args(argv).env("COVE_DATA", data).env("TERM", "xterm").env("PS1", "ready$ ");
        command.env("COVE", cove_path()).env_remove("NO_COLOR").env_remove("COVE_URL").env_remove("COVE_API_KEY");
        let far_end = |file: File| OwnedFd::from(file);
        command.stdin(far_end(far())).stdout(far_end(far())).stderr(far_end(far()));
        let child = command.spawn().expect("start in a terminal");

        let screen = Arc::new(Mutex::new(Vec::new()));
        let (shown, mut reader) = (Arc::clone(&screen), near.try_clone().expect("copy a descriptor"));
        // Ends with EIO when the last holder of the far side closes it.
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                shown.lock().expect("no panic holds it").extend_from_slice(&buffer[..count]);
            }
        });
        Terminal { keyboard: near, far: kept, screen, seen: 0, child }
    }

    /// `cove` with these arguments.
    pub fn cove<S: AsRef<OsStr>>(data: &Path, arguments: impl IntoIterator<Item = S>) -> Terminal {
        let mut argv = vec![cove_path().into_os_string()];
        argv.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        Terminal::start(data, argv)
    }

    pub fn types(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("type");
    }

    /// Waits until the text shows after what earlier calls saw.
    #[track_caller]
    pub fn sees(&mut self, text: &str) {
        let find = |screen: &[u8], from: usize| {
            screen[from..].windows(text.len()).position(|window| window == text.as_bytes()).map(|at| from + at)
        };
        let start = std::time::Instant::now();
        loop {
            if let Some(at) = find(&self.screen.lock().expect("no panic holds it"), self.seen) {
                self.seen = at + text.len();
                return;
            }
            assert!(start.elapsed() < LIMIT, "waited in vain for {text:?}; the screen shows:\n{}", self.screen());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// All that was shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().expect("no panic holds it")).into_owned()
    }

    /// Resizes the terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        set_size(&self.keyboard, rows, columns);
    }

    /// Whether keys are edited by line and Ctrl-C makes signals, as a shell expects to find its terminal.
    pub fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.far).expect("ask for the modes").local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    pub fn waits_for_raw_mode(&self) {
        until("raw mode", LIMIT, || !self.is_cooked());
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(pid_of(&self.child), signal).expect("signal");
    }

    /// The exit code, as a shell reports it.
    #[track_caller]
    pub fn ends(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let status = wait_within(&mut self.child, LIMIT);
        let status = status.unwrap_or_else(|| panic!("did not end; the screen shows:\n{}", self.screen()));
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
    }

    /// A number after `label` on the screen, for tests that need a pid.
    pub fn number_after(&mut self, label: &str) -> u32 {
        until_some(label, LIMIT, || {
            let screen = self.screen();
            let rest = &screen[screen.rfind(label)? + label.len()..];
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            rest[..end].parse().ok()
        })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn set_size(terminal: &File, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).expect("set the size");
}
