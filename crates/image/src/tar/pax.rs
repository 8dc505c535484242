//! pax records: what does not fit into a header, in front of it.
//!
//! A record is `length key=value\n`. The length counts itself, so a value can be any bytes.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};

use super::Time;

/// The records of a block; `None` where they are none.
pub(super) fn records(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
        let digits = std::str::from_utf8(bytes.get(..space)?).ok()?;
        if !digits.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        let length: usize = digits.parse().ok()?;
        let record = bytes.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (record.get(..equals)?, record.get(equals + 1..)?);
        if key.is_empty() {
            return None;
        }
        found.push((key, value));
        bytes = bytes.get(length..)?;
    }
    Some(found)
}

/// One record.
pub(super) fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + rest.to_string().len();
    length = rest + length.to_string().len();
    [format!("{length} {key}=").as_bytes(), value, b"\n"].concat()
}

pub(super) fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?;
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
}

/// `-12.5`: seconds with a fraction of any length.
pub(super) fn time(value: &[u8]) -> Option<Time> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !fraction.bytes().all(|digit| digit.is_ascii_digit()) || whole.starts_with('+') {
        return None;
    }
    let seconds: i64 = whole.parse().ok()?;
    let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanoseconds: u32 = digits.parse().ok()?;
    match whole.starts_with('-') && nanoseconds > 0 {
        // The kernel counts the nanoseconds upwards.
        true => Some(Time { seconds: seconds.checked_sub(1)?, nanoseconds: 1_000_000_000 - nanoseconds }),
        false => Some(Time { seconds, nanoseconds }),
    }
}

pub(super) fn time_text(time: Time) -> String {
    match (time.seconds, time.nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (seconds @ ..0, nanoseconds) => {
            let sign = if seconds == -1 { "-" } else { "" };
            format!("{sign}{}.{:09}", seconds + 1, 1_000_000_000 - nanoseconds)
        }
        (seconds, nanoseconds) => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// An extended attribute, if the record is one: as it is, or libarchive's base64 with an encoded name.
pub(super) fn attribute(key: &str, value: &[u8]) -> Option<(String, Vec<u8>)> {
    if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
        return Some((name.to_owned(), value.to_vec()));
    }
    let name = percent_decoded(key.strip_prefix("LIBARCHIVE.xattr.")?)?;
    let value = STANDARD.decode(value).or_else(|_| STANDARD_NO_PAD.decode(value)).ok()?;
    Some((name, value))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let mut byte = [0];
        hex::decode_to_slice(rest.get(..2)?, &mut byte).ok()?;
        bytes.push(byte[0]);
        rest = rest.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_time_has_nanoseconds() {
        let at = |seconds, nanoseconds| Some(Time { seconds, nanoseconds });
        assert_eq!(time(b"12"), at(12, 0));
        assert_eq!(time(b"12.5"), at(12, 500_000_000));
        assert_eq!(time(b"12.0000000019"), at(12, 1));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-0.25"), at(-1, 750_000_000));
        for wrong in ["", "x", "1.x", "1.-5", "+1", "1e3", "99999999999999999999"] {
            assert_eq!(time(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn an_attribute_has_any_bytes_in_either_form() {
        let value = b"\x01\n=\0\xff".to_vec();
        let record = record("SCHILY.xattr.user.a", &value);
        let found = records(&record).unwrap();
        assert_eq!(found, [(&b"SCHILY.xattr.user.a"[..], &value[..])]);
        assert_eq!(attribute("SCHILY.xattr.user.a", &value), Some(("user.a".into(), value.clone())));
        assert_eq!(attribute("LIBARCHIVE.xattr.user.%61", b"AQo9AP8="), Some(("user.a".into(), value)));
        assert_eq!(attribute("LIBARCHIVE.xattr.user.%6", b"AQo9AP8="), None);
        assert_eq!(attribute("comment", b"x"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_records_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = records(&bytes);
        }

        #[test]
        fn records_count_themselves(value in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let record = record("path", &value);
            prop_assert_eq!(records(&record), Some(vec![(&b"path"[..], value.as_slice())]));
        }

        #[test]
        fn a_time_reads_back(seconds in -1_000_000_i64..1_000_000, nanoseconds in 0_u32..1_000_000_000) {
            let at = Time { seconds, nanoseconds };
            prop_assert_eq!(time(time_text(at).as_bytes()), Some(at));
        }
    }
}
