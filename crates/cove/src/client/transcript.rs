//! The output of a process and how it ended, kept for `--json` instead of being shown.

use serde_json::{Value, json};

use super::conversation::Exit;

/// Bytes kept of each stream; the rest is counted.
const KEPT: usize = 64 << 20;

#[derive(Debug, Default)]
pub struct Transcript {
    pub(super) pid: Option<u32>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    lost: u64,
    exit: Option<Exit>,
}

impl Transcript {
    /// A transcript of a process whose number is known.
    pub fn of(pid: u32) -> Transcript {
        Transcript { pid: Some(pid), ..Transcript::default() }
    }

    pub fn hear(&mut self, stream: u8, bytes: &[u8]) {
        let kept = if stream == 2 { &mut self.stderr } else { &mut self.stdout };
        let room = KEPT.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
        self.lost += (bytes.len() - room) as u64;
    }

    pub(super) fn lose(&mut self, bytes: u64) {
        self.lost += bytes;
    }

    pub(super) fn end(&mut self, exit: &Exit) {
        self.exit = Some(exit.clone());
    }

    /// `exit_code` is null while it runs.
    pub fn to_json(&self) -> Value {
        let exit = self.exit.as_ref();
        json!({
            "pid": self.pid,
            "exit_code": exit.map(|exit| exit.status),
            "timed_out": exit.is_some_and(|exit| exit.timed_out),
            "out_of_memory": exit.is_some_and(|exit| exit.out_of_memory),
            "stdout": String::from_utf8_lossy(&self.stdout),
            "stderr": String::from_utf8_lossy(&self.stderr),
            "lost_bytes": self.lost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_counted() {
        let mut transcript = Transcript::default();
        transcript.hear(1, &vec![b'x'; KEPT]);
        transcript.hear(1, b"more");
        transcript.hear(2, b"\xffbad");
        let told = transcript.to_json();
        assert_eq!(told["stdout"].as_str().unwrap().len(), KEPT);
        assert_eq!((&told["lost_bytes"], &told["stderr"]), (&json!(4), &json!("\u{fffd}bad")));
        assert!(told["exit_code"].is_null());
    }
}
