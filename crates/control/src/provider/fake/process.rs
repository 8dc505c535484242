//! The fake guest's processes: tasks with kept output.

use std::sync::{Arc, Mutex};

use cove_protocol::process::{Exit, Info, Spec, Stdio};
use tokio::sync::{mpsc, watch};

use super::shell::Deed;
use crate::guest::Item;

pub struct Process {
    info: Mutex<Info>,
    output: Mutex<Vec<Item>>,
    /// Rises with everything that happens.
    pub news: watch::Sender<u64>,
    input: Mutex<Option<mpsc::UnboundedSender<Vec<u8>>>>,
    kill: watch::Sender<Option<i32>>,
}

impl Process {
    pub fn start(pid: u32, spec: &Spec, deeds: Vec<Deed>) -> Arc<Self> {
        let (input, mut from_input) = mpsc::unbounded_channel();
        let (kill, mut killed) = watch::channel(None);
        let info = Info {
            pid,
            tag: spec.tag.clone(),
            command: spec.command.clone(),
            env: spec.env.clone(),
            cwd: spec.cwd.clone(),
            user: spec.user.clone(),
            terminal: matches!(spec.stdio, Stdio::Terminal(_)),
            started_at_ms: jiff::Timestamp::now().as_millisecond() as u64,
            exit: None,
            output_end: 0,
            output_start: 0,
        };
        let terminal = info.terminal;
        let process = Arc::new(Process {
            info: Mutex::new(info),
            output: Mutex::default(),
            news: watch::channel(0).0,
            input: Mutex::new((spec.stdio != Stdio::Closed).then_some(input)),
            kill,
        });
        let me = Arc::clone(&process);
        let timeout = spec.timeout_ms.map(std::time::Duration::from_millis);
        tokio::spawn(async move {
            let work = async {
                for deed in deeds {
                    match deed {
                        Deed::Stdout(bytes) if terminal => me.say(Item::Pty(bytes)),
                        Deed::Stderr(bytes) if terminal => me.say(Item::Pty(bytes)),
                        Deed::Stdout(bytes) => me.say(Item::Stdout(bytes)),
                        Deed::Stderr(bytes) => me.say(Item::Stderr(bytes)),
                        Deed::Sleep(time) => tokio::time::sleep(time).await,
                        Deed::CopyInput => {
                            while let Some(bytes) = from_input.recv().await {
                                me.say(if terminal { Item::Pty(bytes) } else { Item::Stdout(bytes) });
                            }
                        }
                        Deed::Exit(code) => return exit(Some(code), None),
                    }
                }
                exit(Some(0), None)
            };
            let late = async {
                match timeout {
                    Some(time) => tokio::time::sleep(time).await,
                    None => std::future::pending().await,
                }
            };
            let signalled = async {
                let signal = killed.wait_for(Option::is_some).await.ok().and_then(|signal| *signal);
                exit(None, signal)
            };
            let ended = tokio::select! {
                ended = work => ended,
                ended = signalled => ended,
                () = late => Exit { timed_out: true, ..exit(None, Some(9)) },
            };
            me.info.lock().expect("no panic while held").exit = Some(ended);
            me.input.lock().expect("no panic while held").take();
            me.news.send_modify(|count| *count += 1);
        });
        process
    }

    fn say(&self, item: Item) {
        let length = match &item {
            Item::Stdout(bytes) | Item::Stderr(bytes) | Item::Pty(bytes) | Item::Data(bytes) => bytes.len() as u64,
            Item::Event(_) => 0,
        };
        self.output.lock().expect("no panic while held").push(item);
        self.info.lock().expect("no panic while held").output_end += length;
        self.news.send_modify(|count| *count += 1);
    }

    pub fn info(&self) -> Info {
        self.info.lock().expect("no panic while held").clone()
    }

    /// The output after the `from`-th piece.
    pub fn output_after(&self, from: usize) -> Vec<Item> {
        self.output.lock().expect("no panic while held").get(from..).unwrap_or_default().to_vec()
    }

    pub fn pieces(&self) -> usize {
        self.output.lock().expect("no panic while held").len()
    }

    /// `false` where its input is closed.
    pub fn input(&self, bytes: Vec<u8>) -> bool {
        self.input.lock().expect("no panic while held").as_ref().is_some_and(|input| input.send(bytes).is_ok())
    }

    pub fn close_input(&self) {
        self.input.lock().expect("no panic while held").take();
    }

    pub fn signal(&self, signal: i32) {
        self.kill.send_replace(Some(signal));
    }
}

fn exit(code: Option<i32>, signal: Option<i32>) -> Exit {
    Exit { code, signal, timed_out: false, out_of_memory: false }
}
