//! What an epoll event is about, in the 64 bits that the kernel hands back with it.

use super::arena::Key;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Somebody has orders for the worker.
    Wake,
    Connections(Key),
    Questions(Key),
    Client(Key),
    Server(Key),
    Lookup(Key),
    StreamClient(Key),
    StreamServer(Key),
}

impl Source {
    pub fn encode(self) -> u64 {
        let (kind, key) = match self {
            Source::Wake => (0, Key { index: 0, generation: 0 }),
            Source::Connections(key) => (1, key),
            Source::Questions(key) => (2, key),
            Source::Client(key) => (3, key),
            Source::Server(key) => (4, key),
            Source::Lookup(key) => (5, key),
            Source::StreamClient(key) => (6, key),
            Source::StreamServer(key) => (7, key),
        };
        kind << 56 | u64::from(key.generation) << 32 | u64::from(key.index)
    }

    pub fn decode(word: u64) -> Source {
        let key = Key { index: word as u32, generation: (word >> 32) as u32 & 0x00ff_ffff };
        match word >> 56 {
            1 => Source::Connections(key),
            2 => Source::Questions(key),
            3 => Source::Client(key),
            4 => Source::Server(key),
            5 => Source::Lookup(key),
            6 => Source::StreamClient(key),
            7 => Source::StreamServer(key),
            _ => Source::Wake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let key = Key { index: u32::MAX, generation: (1 << 24) - 1 };
        for source in [
            Source::Wake,
            Source::Connections(key),
            Source::Questions(key),
            Source::Client(key),
            Source::Server(key),
            Source::Lookup(key),
            Source::StreamClient(key),
            Source::StreamServer(key),
        ] {
            assert_eq!(Source::decode(source.encode()), source);
        }
    }
}
