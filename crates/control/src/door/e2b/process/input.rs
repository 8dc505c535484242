//! What a process reads: single writes, a stream of them, and the end of input.

use cove_protocol::{FailureKind, Reply, Request as Ask};

use super::super::connect::stream::Requests;
use super::super::connect::{Code, Ending, RpcError};
use super::super::envd::{Envd, unexpected};
use super::super::message::process::{
    Empty, Input, ProcessInput, ProcessRequest, SendInputRequest, StreamInput, StreamInputRequest,
};
use super::{of_process, selector};
use crate::guest::{GuestError, Operation};

pub async fn send(envd: &Envd, request: SendInputRequest) -> Result<Empty, Ending> {
    let bytes = bytes_of(request.input)?;
    let process = selector(request.process)?;
    let written = async {
        let mut operation = envd.guest.send(&Ask::Input { process: process.clone() }).await?;
        // A guest that refused has closed already: its reason is the reply, not the broken pipe.
        if operation.to.stdin(&bytes).await.is_ok() {
            let _refused = operation.to.end().await;
        }
        operation.reply().await
    };
    match written.await {
        Ok(_) => Ok(Empty {}),
        Err(error) => Err(not_written(error, &process)),
    }
}

/// Messages in the order they were sent, on one connection: the first names the process.
pub async fn stream(envd: &Envd, mut requests: Requests<StreamInputRequest>) -> Result<Empty, Ending> {
    let mut opened = None;
    while let Some(request) = requests.next().await? {
        match request.event {
            Some(StreamInput::Start(ProcessRequest { process })) => {
                if opened.is_some() {
                    return Err(RpcError::new(Code::InvalidArgument, "the stream names a process twice").into());
                }
                let process = selector(process)?;
                let operation = envd.guest.send(&Ask::Input { process: process.clone() }).await?;
                opened = Some((operation, process));
            }
            Some(StreamInput::Data(data)) => {
                let Some((operation, process)) = &mut opened else {
                    return Err(RpcError::new(Code::InvalidArgument, "input before the process was named").into());
                };
                let bytes = bytes_of(data.input)?;
                if operation.to.stdin(&bytes).await.is_err() {
                    return Err(refused(operation, process).await);
                }
            }
            Some(StreamInput::Keepalive(_)) | None => {}
        }
    }
    let Some((mut operation, process)) = opened else {
        return Err(RpcError::new(Code::InvalidArgument, "the stream names no process").into());
    };
    let _refused = operation.to.end().await;
    match operation.reply().await {
        Ok(Reply::Done) => Ok(Empty {}),
        Ok(_) => Err(unexpected().into()),
        Err(error) => Err(not_written(error, &process)),
    }
}

pub async fn close(envd: &Envd, request: ProcessRequest) -> Result<Empty, Ending> {
    let process = selector(request.process)?;
    match envd.guest.call(&Ask::CloseStdin { process: process.clone() }).await {
        Ok(_) => Ok(Empty {}),
        Err(error) => Err(of_process(error, &process)),
    }
}

async fn refused(operation: &mut Operation, process: &cove_protocol::process::Selector) -> Ending {
    match operation.reply().await {
        Ok(_) => unexpected().into(),
        Err(error) => not_written(error, process),
    }
}

fn not_written(error: GuestError, process: &cove_protocol::process::Selector) -> Ending {
    match &error {
        GuestError::Failed(failure) if failure.kind == FailureKind::WrongState => {
            RpcError::new(Code::Internal, "error writing to stdin: stdin not enabled or closed").into()
        }
        _ => of_process(error, process),
    }
}

fn bytes_of(input: Option<ProcessInput>) -> Result<Vec<u8>, RpcError> {
    match input.and_then(|input| input.input) {
        Some(Input::Stdin(bytes) | Input::Pty(bytes)) => Ok(bytes),
        None => Err(RpcError::new(Code::InvalidArgument, "no input: give stdin or pty bytes")),
    }
}
