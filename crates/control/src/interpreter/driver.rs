//! Starts each language's driver and sends cells to it.
//!
//! A Python context is a copy of the sandbox's zygote: a driver that has all its imports done and never runs a cell
//! itself. The first named context starts it, or a warm pool or a template for cells does so ahead. Where there is none
//! for the default context, or a copy would differ (another environment at the start of Python, no room for another
//! process), the driver is started like any program: that is as fast as a zygote's own start, and the first cell waits
//! for nothing else.

use std::time::Duration;

use cove_protocol::process::{Command, OnDisconnect, Selector, Spec, Stdio};
use cove_protocol::{FailureKind, Reply, Request};
use serde_json::json;

use super::context::{Context, Language};
use super::{Cell, InterpreterError, bash};
use crate::guest::{Guest, GuestError, Item, Operation};

const NODE: &str = include_str!("drivers/node.js");
const JUPYTER: &str = include_str!("drivers/jupyter.py");

/// Reads the data from a figure.
pub const CHARTS: &str = include_str!("drivers/charts.py");

/// The Python driver and its modules, by name.
const PYTHON: [(&str, &str); 5] = [
    ("python", include_str!("drivers/python.py")),
    ("formats", include_str!("drivers/formats.py")),
    ("ipython", include_str!("drivers/ipython.py")),
    ("figures", include_str!("drivers/figures.py")),
    ("charts", CHARTS),
];
const ZYGOTE: &str = include_str!("drivers/zygote.py");

/// Reads the driver's sources from standard input, so that the command line stays short and the disk untouched.
const BOOTSTRAP: &str = "import os
requests=os.fdopen(os.dup(0),'rb',65536)
sources={}
for part in requests.readline().decode().split():
 name,size=part.split(':')
 sources[name]=requests.read(int(size)).decode()
exec(compile(sources['python'],'<cove>','exec'))";

/// The same from a socket that takes packets: ten digits say how much there is.
const BOOTSTRAP_ZYGOTE: &str = "import os
text=os.read(0,1<<20)
size=int(text[:10])+10
while len(text)<size:text+=os.read(0,1<<20)
head,_,text=text[10:].partition(b'\\n')
sources={}
for part in head.decode().split():
 name,size=part.split(':')
 sources[name],text=text[:int(size)].decode(),text[int(size):]
exec(compile(sources['python'],'<cove>','exec'))";

/// The tag of a zygote's process.
pub const ZYGOTE_TAG: &str = "cove.zygote python";

/// What a zygote of a pool imports: what most cells of a data template begin with.
pub const PRELOADED: [&str; 4] = ["numpy", "numpy.random", "pandas", "matplotlib.pyplot"];

/// The time limit for imports on a busy machine; a slower zygote is useless.
const WARM_WITHIN: Duration = Duration::from_secs(60);

/// A context's process, and the connection that started it.
pub struct Started {
    pub pid: u32,
    pub operation: Operation,
}

/// Starts the context's process and gives it its driver. Returns once it has that; the driver may still be loading, and
/// accepts cells meanwhile, by this connection and by others.
pub async fn start(guest: &Guest, context: &Context) -> Result<Started, InterpreterError> {
    if context.language == Language::Python
        && let Some(started) = copy(guest, context).await?
    {
        return Ok(started);
    }
    let (argv, text) = command(&context.language);
    let started = open(guest, context, spec(context, argv)).await?;
    if let Some(text) = text {
        match give(guest, started.pid, &[&text]).await {
            // It ended, or reads nothing: whoever follows it learns how it ended.
            Ok(()) | Err(GuestError::Failed(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(started)
}

/// Writes to a process's standard input. On a connection with a reply: what others send it next, each on a connection of
/// its own, must not overtake this.
async fn give(guest: &Guest, pid: u32, texts: &[&[u8]]) -> Result<(), GuestError> {
    let given = tokio::time::timeout(WARM_WITHIN, async {
        let mut input = guest.send(&Request::Input { process: Selector::Pid(pid) }).await?;
        for text in texts {
            input.to.stdin(text).await?;
        }
        input.to.end().await?;
        input.reply().await
    });
    given.await.map_err(|_| GuestError::Timeout(WARM_WITHIN))?.map(drop)
}

/// Makes sure that a zygote runs, without waiting for its imports.
pub async fn stand_ready(guest: &Guest) -> Result<(), InterpreterError> {
    if !has_zygote(guest).await? {
        start_zygote(guest, &[]).await?;
    }
    Ok(())
}

/// Makes sure that a zygote is ready, with these modules imported if it is started now.
pub async fn warm(guest: &Guest, preload: &[&str]) -> Result<(), InterpreterError> {
    if has_zygote(guest).await? {
        return Ok(());
    }
    let mut zygote = start_zygote(guest, preload).await?;
    let ready = tokio::time::timeout(WARM_WITHIN, async {
        loop {
            match zygote.from.next().await? {
                Some(Item::Stdout(_)) => return Ok(()),
                Some(Item::Stderr(_)) => {}
                _ => return Err(GuestError::Unreachable("the interpreter ended while it was warmed".into())),
            }
        }
    });
    ready.await.map_err(|_| GuestError::Timeout(WARM_WITHIN))??;
    Ok(())
}

async fn has_zygote(guest: &Guest) -> Result<bool, InterpreterError> {
    match guest.call(&Request::Processes).await? {
        Reply::Processes { processes } => {
            Ok(processes.iter().any(|process| process.exit.is_none() && process.tag.as_deref() == Some(ZYGOTE_TAG)))
        }
        other => Err(GuestError::Protocol(format!("processes answered {other:?}")).into()),
    }
}

/// The context as a copy of the zygote, which is started if there is none, but not for the default context. `None`
/// where a copy would differ.
async fn copy(guest: &Guest, context: &Context) -> Result<Option<Started>, InterpreterError> {
    let wanted = Spec { copy_of: Some(ZYGOTE_TAG.into()), ..spec(context, vec!["python3".into()]) };
    for start in [true, false] {
        match guest.open(&Request::Start(wanted.clone())).await {
            Ok((Reply::Started { pid, .. }, operation)) => return Ok(Some(Started { pid, operation })),
            Ok((other, _)) => return Err(GuestError::Protocol(format!("start answered {other:?}")).into()),
            Err(GuestError::Failed(failure)) if is_about_directory(context, &failure.message) => {
                return Err(about_directory(context, failure.kind));
            }
            Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound && start => {
                if context.id.is_default() {
                    return Ok(None);
                }
                // A sandbox without room for two interpreters still has room for one.
                match start_zygote(guest, &[]).await {
                    Err(InterpreterError::Guest(GuestError::Failed(_))) => return Ok(None),
                    started => drop(started?),
                }
            }
            Err(GuestError::Failed(failure)) => {
                tracing::debug!(context = %context.id, reason = failure.message, "context is started without the zygote");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

async fn start_zygote(guest: &Guest, preload: &[&str]) -> Result<Operation, InterpreterError> {
    let preload = preload.join(" ");
    let text = sources(PYTHON.into_iter().chain([("zygote", ZYGOTE), ("preload", preload.as_str())]));
    let spec = Spec {
        stdio: Stdio::Socket,
        tag: Some(ZYGOTE_TAG.into()),
        on_disconnect: OnDisconnect::Keep,
        ..Spec::new(Command::Argv(["python3", "-c", BOOTSTRAP_ZYGOTE].map(str::to_owned).to_vec()))
    };
    let (pid, operation) = match guest.open(&Request::Start(spec)).await {
        Ok((Reply::Started { pid, .. }, operation)) => (pid, operation),
        Ok((other, _)) => return Err(GuestError::Protocol(format!("start answered {other:?}")).into()),
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => {
            return Err(no_program(&Language::Python, "python3"));
        }
        Err(error) => return Err(error.into()),
    };
    give(guest, pid, &[format!("{:010}", text.len()).as_bytes(), &text]).await?;
    Ok(operation)
}

fn spec(context: &Context, argv: Vec<String>) -> Spec {
    Spec {
        env: context.env.clone(),
        cwd: context.cwd.clone(),
        user: context.user.clone(),
        stdio: Stdio::Piped,
        tag: Some(context.tag()),
        on_disconnect: OnDisconnect::Keep,
        ..Spec::new(Command::Argv(argv))
    }
}

async fn open(guest: &Guest, context: &Context, spec: Spec) -> Result<Started, InterpreterError> {
    let program = match &spec.command {
        Command::Argv(words) => words.first().cloned().unwrap_or_default(),
        Command::Shell(_) => "a shell".to_owned(),
    };
    match guest.open(&Request::Start(spec)).await {
        Ok((Reply::Started { pid, .. }, operation)) => Ok(Started { pid, operation }),
        Ok((other, _)) => Err(GuestError::Protocol(format!("start answered {other:?}")).into()),
        Err(GuestError::Failed(failure)) if is_about_directory(context, &failure.message) => {
            Err(about_directory(context, failure.kind))
        }
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => {
            Err(no_program(&context.language, &program))
        }
        Err(error) => Err(error.into()),
    }
}

fn about_directory(context: &Context, kind: FailureKind) -> InterpreterError {
    let directory = context.cwd.clone().unwrap_or_default();
    match kind {
        FailureKind::PermissionDenied => InterpreterError::ClosedDirectory(directory),
        _ => InterpreterError::NoDirectory(directory),
    }
}

fn is_about_directory(context: &Context, message: &str) -> bool {
    message.starts_with("enter the working directory") && context.cwd.is_some()
}

fn no_program(language: &Language, program: &str) -> InterpreterError {
    InterpreterError::NoProgram(format!(
        "{language} cells need {program}, which this template does not have: choose a template with it"
    ))
}

fn command(language: &Language) -> (Vec<String>, Option<Vec<u8>>) {
    let argv = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    match language {
        Language::Python => (argv(&["python3", "-c", BOOTSTRAP]), Some(sources(PYTHON))),
        Language::Kernel(name) => {
            (argv(&["python3", "-c", BOOTSTRAP]), Some(sources([("python", JUPYTER), ("kernel", name)])))
        }
        Language::JavaScript | Language::TypeScript => (argv(&["node", "--no-warnings", "-e", NODE]), None),
        Language::Bash => (argv(&["bash", "--norc", "--noprofile"]), None),
    }
}

/// Sources by name: one line with names and sizes, then all of them.
pub fn sources<'a>(parts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<u8> {
    let (mut head, mut texts) = (Vec::new(), String::new());
    for (name, text) in parts {
        head.push(format!("{name}:{}", text.len()));
        texts.push_str(text);
    }
    format!("{}\n{texts}", head.join(" ")).into_bytes()
}

/// The bytes that send a cell to the language's driver.
pub fn request(language: &Language, id: &str, cell: &Cell) -> Vec<u8> {
    match language {
        Language::Bash => bash::request(id, cell),
        _ => line(&json!({"cell": id, "code": cell.code, "env": cell.env})),
    }
}

fn line(message: &serde_json::Value) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("JSON always serialises");
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use cove_protocol::{Failure, Frame, Kind, frame};
    use tokio::io::DuplexStream;

    use super::*;
    use crate::guest::{Connect, Pipe};

    /// A guest without a zygote that is too busy to pass on what the connection of a start brings. Keeps what a process was
    /// given in another way.
    #[derive(Clone, Default)]
    struct Busy(Arc<Mutex<Vec<u8>>>);

    #[async_trait]
    impl Connect for Busy {
        async fn connect(&self) -> Result<Box<dyn Pipe>, GuestError> {
            let (ours, theirs) = tokio::io::duplex(1 << 20);
            tokio::spawn(self.clone().serve(theirs));
            Ok(Box::new(ours))
        }
    }

    impl Busy {
        async fn serve(self, pipe: DuplexStream) {
            let (mut from, mut to) = tokio::io::split(pipe);
            let request: Request = frame::read_async(&mut from).await.unwrap().unwrap().parse().unwrap();
            let answer = match request {
                Request::Start(Spec { copy_of: Some(_), .. }) => {
                    Frame::json(Kind::Failure, &Failure::new(FailureKind::NotFound, "there is none"))
                }
                Request::Start(_) => Frame::json(Kind::Reply, &Reply::Started { pid: 7, output_start: 0 }),
                Request::Input { process: Selector::Pid(7) } => {
                    while let Some(Frame { kind: Kind::Stdin, payload }) = frame::read_async(&mut from).await.unwrap() {
                        self.0.lock().unwrap().extend(payload);
                    }
                    Frame::json(Kind::Reply, &Reply::Done)
                }
                other => panic!("{other:?}"),
            };
            frame::write_async(&mut to, answer.kind, &answer.payload).await.unwrap();
            std::future::pending::<()>().await;
        }
    }

    #[tokio::test]
    async fn a_cell_by_another_connection_does_not_overtake_the_driver() {
        let busy = Busy::default();
        let guest = Guest::new(Arc::new(busy.clone()));
        let started = start(&guest, &Context::default_of(&Language::Python)).await.unwrap();
        assert_eq!(started.pid, 7);
        // Whoever joins the process from now on writes behind this.
        assert!(*busy.0.lock().unwrap() == sources(PYTHON), "the process does not have its driver yet");
    }
}
