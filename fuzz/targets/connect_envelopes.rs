//! What a client of the E2B dialect may send: envelopes cut anywhere, and the messages in them, as JSON and as protobuf.

#![no_main]

use axum::body::{Body, Bytes};
use cove_control::door::e2b::connect::Encoding;
use cove_control::door::e2b::connect::envelope::Incoming;
use cove_control::door::e2b::message::{filesystem, process};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((&cut, wire)) = bytes.split_first() else { return };
    let pieces = wire.chunks(usize::from(cut).max(1)).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece)));
    let body = Body::from_stream(futures::stream::iter(pieces.collect::<Vec<_>>()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let mut incoming = Incoming::new(body);
        while let Ok(Some(message)) = incoming.next().await {
            decode(&message);
        }
    });
    decode(wire);
});

fn decode(message: &[u8]) {
    for encoding in [Encoding::Json, Encoding::Proto] {
        if let Ok(request) = encoding.decode::<process::StartRequest>(message) {
            // What was understood can be said again.
            let again = encoding.encode(&request);
            assert!(encoding.decode::<process::StartRequest>(&again).is_ok());
        }
        drop(encoding.decode::<process::UpdateRequest>(message));
        drop(encoding.decode::<process::SendInputRequest>(message));
        drop(encoding.decode::<process::StreamInputRequest>(message));
        drop(encoding.decode::<process::SendSignalRequest>(message));
        drop(encoding.decode::<filesystem::ListDirRequest>(message));
        drop(encoding.decode::<filesystem::MoveRequest>(message));
        drop(encoding.decode::<filesystem::WatchRequest>(message));
    }
}
