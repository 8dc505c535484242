//! Parses DNS messages, as far as the proxy must: the question, the addresses of the answer, and refusals.
//!
//! Questions come from the sandbox and answers from the network: both are hostile. Every read is checked, every loop is
//! bounded by the message's length, nothing is followed backwards.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const SERVER_FAILURE: u8 = 2;
pub const REFUSED: u8 = 5;
const FORMAT_ERROR: u8 = 1;
const NOT_IMPLEMENTED: u8 = 4;

const HEADER: usize = 12;
const LONGEST_NAME: usize = 255;
/// A zone transfer is no question about a name.
const TRANSFERS: [u16; 2] = [251, 252];

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// In lower case, labels joined by dots, without the last one.
    pub name: String,
    pub kind: u16,
    /// Where the question ends in its message.
    end: usize,
}

/// A message that is not passed on, with the code of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanswerable(pub u8);

/// Reads a message that should be a question. Nothing else may be passed on to a resolver.
pub fn question(message: &[u8]) -> Result<Question, Unanswerable> {
    let header = message.first_chunk::<HEADER>().ok_or(Unanswerable(FORMAT_ERROR))?;
    let is_response = header[2] & 0x80 != 0;
    let operation = header[2] >> 3 & 0xf;
    let questions = u16::from_be_bytes([header[4], header[5]]);
    if is_response || questions != 1 {
        return Err(Unanswerable(FORMAT_ERROR));
    }
    if operation != 0 {
        return Err(Unanswerable(NOT_IMPLEMENTED));
    }
    let question = read_question(message).ok_or(Unanswerable(FORMAT_ERROR))?;
    if TRANSFERS.contains(&question.kind) { Err(Unanswerable(REFUSED)) } else { Ok(question) }
}

fn read_question(message: &[u8]) -> Option<Question> {
    let mut name = String::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*message.get(at)?);
        let label = message.get(at + 1..at + 1 + length)?;
        at += 1 + length;
        match length {
            0 => break,
            1..=63 => {
                if !name.is_empty() {
                    name.push('.');
                }
                // Labels may hold any byte; what is no plain text is escaped as zone files do it.
                for &byte in label {
                    match byte {
                        b'.' | b'\\' => name.extend(['\\', char::from(byte)]),
                        0x21..=0x7e => name.push(char::from(byte.to_ascii_lowercase())),
                        other => name.push_str(&format!("\\{other:03}")),
                    }
                }
            }
            // A pointer (nothing lies before the question to point at) or a reserved form.
            _ => return None,
        }
        if at - HEADER > LONGEST_NAME {
            return None;
        }
    }
    let kind = message.get(at..at + 2)?;
    message.get(at + 2..at + 4)?;
    Some(Question { name, kind: u16::from_be_bytes([kind[0], kind[1]]), end: at + 4 })
}

pub fn identifier(message: &[u8]) -> u16 {
    message.first_chunk::<2>().map_or(0, |bytes| u16::from_be_bytes(*bytes))
}

pub fn set_identifier(message: &mut [u8], identifier: u16) {
    if let Some(bytes) = message.first_chunk_mut::<2>() {
        *bytes = identifier.to_be_bytes();
    }
}

/// Whether `answer` answers `query`: a response with its identifier and its very question.
pub fn answers(answer: &[u8], query: &[u8]) -> bool {
    let Some(asked) = read_question(query) else { return false };
    let is_response = answer.get(2).is_some_and(|flags| flags & 0x80 != 0);
    is_response
        && identifier(answer) == identifier(query)
        && answer.get(HEADER..asked.end).is_some_and(|echoed| echoed.eq_ignore_ascii_case(&query[HEADER..asked.end]))
}

/// The addresses in an answer, whatever chain of aliases led to them.
pub fn addresses(answer: &[u8]) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let Some(question) = read_question(answer) else { return found };
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    let mut at = question.end;
    for _ in 0..count {
        let Some((record, next)) = read_record(answer, at) else { break };
        found.extend(record);
        at = next;
    }
    found
}

/// The address in the record at this place, and where the next record starts.
fn read_record(message: &[u8], mut at: usize) -> Option<(Option<IpAddr>, usize)> {
    loop {
        match *message.get(at)? {
            0 => {
                at += 1;
                break;
            }
            length @ 1..=63 => at += 1 + usize::from(length),
            0xc0.. => {
                at += 2;
                break;
            }
            _ => return None,
        }
    }
    let fixed = message.get(at..at + 10)?;
    let length = usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
    let data = message.get(at + 10..at + 10 + length)?;
    let address = match (u16::from_be_bytes([fixed[0], fixed[1]]), data.len()) {
        (1, 4) => data.first_chunk().map(|octets: &[u8; 4]| IpAddr::V4(Ipv4Addr::from(*octets))),
        (28, 16) => data.first_chunk().map(|octets: &[u8; 16]| IpAddr::V6(Ipv6Addr::from(*octets))),
        _ => None,
    };
    Some((address, at + 10 + length))
}

/// A refusal, so that the client does not wait for a timeout.
pub fn refusal(query: &[u8], code: u8) -> Vec<u8> {
    let mut answer = vec![0; HEADER];
    let copied = query.len().min(HEADER);
    answer[..copied].copy_from_slice(&query[..copied]);
    answer[2] = answer[2] & 0x79 | 0x80; // a response; operation and "recursion desired" as asked
    answer[3] = 0x80 | code; // recursion is available
    answer[4..].fill(0);
    if let Some(question) = read_question(query) {
        answer[5] = 1;
        answer.extend(&query[HEADER..question.end]);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn query(name: &str, kind: u16) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(label.len() as u8);
            message.extend(label.bytes());
        }
        message.push(0);
        message.extend(kind.to_be_bytes());
        message.extend([0, 1]);
        message
    }

    fn answer(query: &[u8], records: &[(u16, &[u8])]) -> Vec<u8> {
        let mut message = query.to_vec();
        message[2] |= 0x80;
        message[7] = records.len() as u8;
        for (kind, data) in records {
            message.extend([0xc0, 12]);
            message.extend(kind.to_be_bytes());
            message.extend([0, 1, 0, 0, 0, 60]);
            message.extend((data.len() as u16).to_be_bytes());
            message.extend(*data);
        }
        message
    }

    #[test]
    fn a_question_is_read() {
        let asked = question(&query("WWW.Example.com", 28)).unwrap();
        assert_eq!((asked.name.as_str(), asked.kind), ("www.example.com", 28));
        assert_eq!(question(&query("", 2)).unwrap().name, "");
    }

    #[test]
    fn only_plain_questions_are_passed_on() {
        assert_eq!(question(b"short"), Err(Unanswerable(FORMAT_ERROR)));
        assert_eq!(question(&query("example.com", 252)), Err(Unanswerable(REFUSED)), "a zone transfer");
        let mut update = query("example.com", 1);
        update[2] = 5 << 3;
        assert_eq!(question(&update), Err(Unanswerable(NOT_IMPLEMENTED)));
        let mut response = query("example.com", 1);
        response[2] |= 0x80;
        assert_eq!(question(&response), Err(Unanswerable(FORMAT_ERROR)));
        let mut pointer = query("example.com", 1);
        pointer[12] = 0xc0;
        assert_eq!(question(&pointer), Err(Unanswerable(FORMAT_ERROR)));
        let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(63)].join(".");
        assert_eq!(question(&query(&long, 1)), Err(Unanswerable(FORMAT_ERROR)));
    }

    #[test]
    fn addresses_are_found_behind_aliases() {
        let asked = query("example.com", 1);
        let six = Ipv6Addr::LOCALHOST.octets();
        let answer = answer(&asked, &[(5, b"\x03www\xc0\x0c"), (1, &[203, 0, 113, 7]), (28, &six), (1, &[1, 2])]);
        assert!(answers(&answer, &asked));
        assert_eq!(addresses(&answer), ["203.0.113.7".parse::<IpAddr>().unwrap(), Ipv6Addr::LOCALHOST.into()]);
    }

    #[test]
    fn an_answer_to_another_question_is_none() {
        let asked = query("example.com", 1);
        assert!(!answers(&answer(&query("example.org", 1), &[]), &asked));
        assert!(!answers(&asked, &asked), "a question is no answer");
        let mut other = answer(&asked, &[]);
        set_identifier(&mut other, 7);
        assert!(!answers(&other, &asked));
    }

    #[test]
    fn a_refusal_answers_its_question() {
        let asked = query("example.com", 1);
        let refused = refusal(&asked, REFUSED);
        assert!(answers(&refused, &asked));
        assert_eq!(refused[3] & 0xf, REFUSED);
        assert_eq!(refusal(b"\x01\x02", FORMAT_ERROR).len(), HEADER);
    }

    proptest! {
        #[test]
        fn no_message_is_too_strange(message in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = question(&message);
            let _ = addresses(&message);
            let _ = answers(&message, &message);
            prop_assert!(refusal(&message, SERVER_FAILURE).len() >= HEADER);
        }

        #[test]
        fn a_damaged_answer_is_survived(at in 0usize..80, value: u8) {
            let mut damaged = answer(&query("example.com", 1), &[(5, b"\x03www\xc0\x0c"), (1, &[203, 0, 113, 7])]);
            let at = at % damaged.len();
            damaged[at] = value;
            let _ = addresses(&damaged);
            let _ = answers(&damaged, &query("example.com", 1));
        }
    }
}
