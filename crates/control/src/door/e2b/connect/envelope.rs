//! Envelopes: one byte of flags, four of length (big-endian), the message.

use axum::body::{Body, BodyDataStream};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::StreamExt;

use super::{Code, MAX_MESSAGE, RpcError};
use crate::door::size;

const HEADER: usize = 5;
const COMPRESSED: u8 = 0x01;
const LAST: u8 = 0x02;

pub fn message(payload: &[u8]) -> Bytes {
    sealed(0, payload)
}

/// The last envelope of a response: how the call ended. Always JSON, whatever the messages were.
pub fn end(result: &Result<(), RpcError>) -> Bytes {
    let body = match result {
        Ok(()) => serde_json::json!({}),
        Err(error) => serde_json::json!({ "error": error.json() }),
    };
    sealed(LAST, body.to_string().as_bytes())
}

fn sealed(flags: u8, payload: &[u8]) -> Bytes {
    let mut envelope = BytesMut::with_capacity(HEADER + payload.len());
    envelope.put_u8(flags);
    envelope.put_u32(u32::try_from(payload.len()).expect("messages are far below 4 GiB"));
    envelope.put_slice(payload);
    envelope.freeze()
}

/// The messages of a request's body, as they arrive.
pub struct Incoming {
    body: BodyDataStream,
    buffer: BytesMut,
}

impl Incoming {
    pub fn new(body: Body) -> Self {
        Incoming { body: body.into_data_stream(), buffer: BytesMut::new() }
    }

    /// The next message; `None` when the client has said all.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RpcError> {
        loop {
            if let Some(message) = take(&mut self.buffer)? {
                return Ok(Some(message));
            }
            match self.body.next().await {
                Some(Ok(bytes)) => {
                    self.buffer.extend_from_slice(&bytes);
                    size::count(self.buffer.len())
                        .map_err(|error| RpcError::new(Code::Unavailable, error.to_string()))?;
                }
                Some(Err(error)) => return Err(RpcError::new(Code::Canceled, format!("request was cut off: {error}"))),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(RpcError::new(Code::InvalidArgument, "request ends inside an envelope")),
            }
        }
    }
}

/// The first whole message of the buffer, if one is there. The length is checked before anything waits for it.
fn take(buffer: &mut BytesMut) -> Result<Option<Bytes>, RpcError> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let flags = buffer[0];
    let length = u32::from_be_bytes([buffer[1], buffer[2], buffer[3], buffer[4]]) as usize;
    if flags & COMPRESSED != 0 {
        return Err(RpcError::new(Code::Internal, "compressed envelope, but no compression was agreed"));
    }
    if length > MAX_MESSAGE {
        let message = format!("message of {length} bytes is longer than the limit of {MAX_MESSAGE}");
        return Err(RpcError::new(Code::ResourceExhausted, message));
    }
    if buffer.len() < HEADER + length {
        return Ok(None);
    }
    buffer.advance(HEADER);
    Ok(Some(buffer.split_to(length).freeze()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_come_back_however_the_body_was_cut(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..6),
            cut in 1usize..50,
        ) {
            let wire: Vec<u8> = messages.iter().flat_map(|payload| message(payload).to_vec()).collect();
            let pieces: Vec<Result<Bytes, std::io::Error>> =
                wire.chunks(cut).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect();
            let mut incoming = Incoming::new(Body::from_stream(futures::stream::iter(pieces)));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let seen = runtime.block_on(async {
                let mut seen = Vec::new();
                while let Some(payload) = incoming.next().await.unwrap() {
                    seen.push(payload.to_vec());
                }
                seen
            });
            prop_assert_eq!(seen, messages);
        }

        #[test]
        fn any_bytes_are_a_message_or_an_error_never_a_panic(wire in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut buffer = BytesMut::from(wire.as_slice());
            while let Ok(Some(_)) = take(&mut buffer) {}
        }
    }

    #[test]
    fn a_huge_length_is_refused_before_it_is_waited_for() {
        let mut buffer = BytesMut::from([0u8, 0xff, 0xff, 0xff, 0xff].as_slice());
        assert_eq!(take(&mut buffer).unwrap_err().code, Code::ResourceExhausted);
    }

    #[test]
    fn the_end_says_how_it_went() {
        assert_eq!(&end(&Ok(()))[..], b"\x02\0\0\0\x02{}");
        let failed = end(&Err(RpcError::new(Code::NotFound, "no such process")));
        assert_eq!(&failed[HEADER..], br#"{"error":{"code":"not_found","message":"no such process"}}"#);
    }
}
