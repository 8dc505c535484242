//! What a hostile guest may say: frames, and the messages in them.

#![no_main]

use cove_protocol::frame::{self, Frame};
use cove_protocol::{Event, Failure, Kind, MAX_PAYLOAD, Reply, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    let mut seen = Vec::new();
    while let Ok(Some((frame, length))) = frame::split(rest) {
        assert!(frame.payload.len() <= MAX_PAYLOAD && length <= rest.len());
        rest = &rest[length..];
        seen.push(frame);
    }
    // A stream gives the same frames as a buffer.
    let mut stream = bytes;
    for expected in &seen {
        assert_eq!(frame::read(&mut stream).ok().flatten().as_ref(), Some(expected));
    }
    for frame in seen {
        parse(&frame);
        let mut wire = Vec::new();
        frame::write(&mut wire, frame.kind, &frame.payload).expect("what was read can be written");
        assert_eq!(frame::split(&wire).ok().flatten(), Some((frame, wire.len())));
    }
});

fn parse(frame: &Frame) {
    match frame.kind {
        Kind::Reply => drop(frame.parse::<Reply>()),
        Kind::Event => drop(frame.parse::<Event>()),
        Kind::Failure => drop(frame.parse::<Failure>()),
        _ => drop(frame.parse::<Request>()),
    }
}
