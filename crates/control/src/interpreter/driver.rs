//! How each language's driver is started, and how a cell is put to it.

use cove_protocol::process::{Command, OnDisconnect, Spec, Stdio};
use cove_protocol::{FailureKind, Reply, Request};
use serde_json::json;

use super::context::{Context, Language};
use super::{Cell, InterpreterError, bash};
use crate::guest::{Guest, GuestError, Operation};

const PYTHON: &str = include_str!("drivers/python.py");
const IPYTHON: &str = include_str!("drivers/ipython.py");
const FIGURES: &str = include_str!("drivers/figures.py");
const CHARTS: &str = include_str!("drivers/charts.py");
const NODE: &str = include_str!("drivers/node.js");
const JUPYTER: &str = include_str!("drivers/jupyter.py");

/// Reads the driver's sources from standard input, so that the command line stays short and the disk untouched.
const BOOTSTRAP: &str = "import json,os;requests=os.fdopen(os.dup(0),'rb',65536);sources=json.loads(requests.readline());\
                         exec(compile(sources['python'],'<cove>','exec'))";

/// Starts the context's process and gives it its driver. Returns once the process stands; the driver may still be
/// loading, and takes cells meanwhile.
pub async fn start(guest: &Guest, context: &Context) -> Result<Operation, InterpreterError> {
    let (argv, first_line) = command(&context.language);
    let program = argv[0].clone();
    let spec = Spec {
        env: context.env.clone(),
        cwd: context.cwd.clone(),
        stdio: Stdio::Piped,
        tag: Some(context.tag()),
        on_disconnect: OnDisconnect::Keep,
        ..Spec::new(Command::Argv(argv))
    };
    let mut operation = match guest.open(&Request::Start(spec)).await {
        Ok((Reply::Started { .. }, operation)) => operation,
        Ok((other, _)) => return Err(GuestError::Protocol(format!("start answered {other:?}")).into()),
        Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => {
            return Err(match &context.cwd {
                Some(cwd) if failure.message.contains(cwd.as_str()) => InterpreterError::NoDirectory(cwd.clone()),
                _ => InterpreterError::NoProgram(format!(
                    "{} cells need {program}, which this template does not have: choose a template with it",
                    context.language
                )),
            });
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(line) = first_line {
        operation.to.stdin(&line).await?;
    }
    Ok(operation)
}

fn command(language: &Language) -> (Vec<String>, Option<Vec<u8>>) {
    let argv = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    match language {
        Language::Python => {
            let sources = json!({"python": PYTHON, "ipython": IPYTHON, "figures": FIGURES, "charts": CHARTS});
            (argv(&["python3", "-c", BOOTSTRAP]), Some(line(&sources)))
        }
        Language::Kernel(name) => {
            let sources = json!({"python": JUPYTER, "kernel": name});
            (argv(&["python3", "-c", BOOTSTRAP]), Some(line(&sources)))
        }
        Language::JavaScript | Language::TypeScript => (argv(&["node", "--no-warnings", "-e", NODE]), None),
        Language::Bash => (argv(&["bash", "--norc", "--noprofile"]), None),
    }
}

/// The bytes that put a cell to the language's driver.
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
