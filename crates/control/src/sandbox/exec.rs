//! One command: from start to end with its output gathered, or started and left to itself.

use cove_protocol::process::{Exit, Selector, Spec};
use cove_protocol::{Event, Reply, Request};

use crate::guest::{Guest, GuestError, Item};

/// Bytes kept of each stream; the rest is counted and reported.
pub const KEPT: usize = 8 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    pub pid: u32,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// Bytes that were not kept.
    pub dropped: u64,
    pub exit: Exit,
}

/// Starts the command, feeds it, waits for its end.
pub async fn run_to_end(guest: &Guest, spec: Spec, input: Option<&[u8]>) -> Result<Output, GuestError> {
    let (reply, operation) = guest.open(&Request::Start(spec)).await?;
    let Reply::Started { pid, .. } = reply else {
        return Err(GuestError::Protocol(format!("start answered {reply:?}")));
    };
    let (mut from, mut to) = operation.split();
    let feed = async {
        if let Some(input) = input {
            // It is no error if a command does not read all of its input.
            let _unread = to.stdin(input).await;
            let _unread = to.end().await;
        }
        // Kept until the command has ended: dropping it would be a disconnect.
        std::future::pending::<()>().await
    };
    let gather = async {
        let mut output = Output { pid, stdout: Vec::new(), stderr: Vec::new(), dropped: 0, exit: NO_EXIT };
        while let Some(item) = from.next().await? {
            match item {
                Item::Stdout(bytes) | Item::Pty(bytes) => keep(&mut output.stdout, &mut output.dropped, &bytes),
                Item::Stderr(bytes) => keep(&mut output.stderr, &mut output.dropped, &bytes),
                Item::Event(Event::Exited { exit }) => output.exit = exit,
                Item::Event(Event::Lost { bytes }) => output.dropped += bytes,
                Item::Event(_) | Item::Data(_) => {}
            }
        }
        Ok(output)
    };
    tokio::select! {
        output = gather => output,
        () = feed => Err(GuestError::Protocol("input ended the command".into())),
    }
}

/// Starts the command and leaves it to itself. Its input is given to it as it reads, in the background, and then ends.
pub async fn start_in_background(guest: &Guest, spec: Spec, input: Option<Vec<u8>>) -> Result<u32, GuestError> {
    let (reply, _) = guest.open(&Request::Start(spec)).await?;
    let Reply::Started { pid, .. } = reply else {
        return Err(GuestError::Protocol(format!("start answered {reply:?}")));
    };
    if let Some(input) = input {
        let guest = guest.clone();
        tokio::spawn(async move {
            // A command that ends or closes its input before it has read all of it is not wrong.
            if let Err(error) = feed(&guest, pid, &input).await {
                tracing::debug!(pid, %error, "the rest of a background command's input was not wanted");
            }
        });
    }
    Ok(pid)
}

async fn feed(guest: &Guest, pid: u32, input: &[u8]) -> Result<(), GuestError> {
    let process = Selector::Pid(pid);
    let mut operation = guest.send(&Request::Input { process: process.clone() }).await?;
    operation.to.stdin(input).await?;
    operation.to.end().await?;
    operation.reply().await?;
    guest.call(&Request::CloseStdin { process }).await?;
    Ok(())
}

const NO_EXIT: Exit = Exit { code: None, signal: None, timed_out: false, out_of_memory: false };

fn keep(stream: &mut Vec<u8>, dropped: &mut u64, bytes: &[u8]) {
    let room = KEPT.saturating_sub(stream.len()).min(bytes.len());
    stream.extend_from_slice(&bytes[..room]);
    *dropped += (bytes.len() - room) as u64;
}
