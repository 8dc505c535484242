//! One pass over JSON before it is parsed: how deep, how many, how long.
//!
//! `[[],[],…]` of 39 MB becomes a gigabyte once it is parsed, so it must be judged as text. The pass allocates nothing but
//! a stack of at most the allowed depth. It does not judge whether the text is JSON: for what is, its answer is exact, and
//! what is not the parser refuses.

use std::borrow::Cow;
use std::ops::Range;

use super::field::{self, Budget, Characters, Keys};
use super::{DEPTH, Excess, VALUES};

/// What an object that is not empty weighs beside its values: it takes several hundred bytes once it is parsed.
pub const OBJECT: usize = 10;
/// Digits of a number.
const DIGITS: usize = 1024;

/// Refuses what a client may not send, by field.
pub fn check(text: &[u8]) -> Result<(), Excess> {
    Scan::new(text, Limits { depth: DEPTH, weight: VALUES, fields: Fields::Judged }).run().map(drop)
}

/// What the values of a sandbox's words weigh, in units of about 64 bytes of memory; refused beyond `most`.
pub fn weigh(text: &[u8], most: usize) -> Result<usize, Excess> {
    Scan::new(text, Limits { depth: 100, weight: most, fields: Fields::Free }).run()
}

#[derive(Clone, Copy)]
struct Limits {
    depth: usize,
    weight: usize,
    fields: Fields,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fields {
    Judged,
    Free,
}

/// A list or an object that is not at its end.
struct Open {
    kind: Kind,
    count: usize,
    /// Of what is directly in it; in an object of ours each key has its own.
    budget: Budget,
    /// The key that was read last, with its quotes.
    key: Range<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    List,
    Object(Next),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Key,
    Value,
}

struct Scan<'a> {
    text: &'a [u8],
    limits: Limits,
    open: Vec<Open>,
    weight: usize,
}

impl<'a> Scan<'a> {
    fn new(text: &'a [u8], limits: Limits) -> Self {
        Scan { text, limits, open: Vec::new(), weight: 0 }
    }

    fn run(mut self) -> Result<usize, Excess> {
        let mut at = 0;
        while let Some(&byte) = self.text.get(at) {
            at = match byte {
                b'{' | b'[' => self.enter(byte, at)?,
                b'}' | b']' => {
                    self.open.pop();
                    at + 1
                }
                b',' => {
                    if let Some(Open { kind: kind @ Kind::Object(_), .. }) = self.open.last_mut() {
                        *kind = Kind::Object(Next::Key);
                    }
                    at + 1
                }
                b'"' => self.string(at)?,
                b':' | b' ' | b'\n' | b'\r' | b'\t' => at + 1,
                _ => self.scalar(at)?,
            };
        }
        Ok(self.weight)
    }

    fn enter(&mut self, byte: u8, at: usize) -> Result<usize, Excess> {
        let budget = self.value()?;
        if self.open.len() >= self.limits.depth {
            return Err(self.excess(format!("nested deeper than {} levels", self.limits.depth)));
        }
        let kind = if byte == b'[' { Kind::List } else { Kind::Object(Next::Key) };
        self.open.push(Open { kind, count: 0, budget, key: 0..0 });
        Ok(at + 1)
    }

    /// Counts a value that begins here and returns its budget.
    fn value(&mut self) -> Result<Budget, Excess> {
        self.add(1)?;
        let Some(open) = self.open.last_mut() else { return Ok(field::of("")) };
        match open.kind {
            Kind::List => {
                open.count += 1;
                let (count, budget) = (open.count, open.budget);
                if self.limits.fields == Fields::Judged && count > budget.items {
                    self.open.pop();
                    return Err(self.excess(format!("more than {} entries", budget.items)));
                }
                Ok(budget)
            }
            Kind::Object(_) => {
                open.kind = Kind::Object(Next::Value);
                Ok(match (self.limits.fields, open.budget.keys) {
                    (Fields::Judged, Keys::Fields) => field::of(&text_of(&self.text[open.key.clone()])),
                    _ => open.budget,
                })
            }
        }
    }

    fn add(&mut self, weight: usize) -> Result<(), Excess> {
        self.weight += weight;
        if self.weight <= self.limits.weight {
            return Ok(());
        }
        Err(Excess { field: "body".into(), problem: format!("more than {} values in all", self.limits.weight) })
    }

    fn string(&mut self, start: usize) -> Result<usize, Excess> {
        let is_key = matches!(self.open.last(), Some(Open { kind: Kind::Object(Next::Key), .. }));
        let budget = if is_key { None } else { Some(self.value()?) };
        let read = measure(self.text, start);
        match budget {
            None => self.key(start..read.end, &read)?,
            Some(budget) if self.limits.fields == Fields::Judged => {
                self.judge(&read, budget.length, budget.characters)?
            }
            Some(_) => {}
        }
        Ok(read.end)
    }

    fn key(&mut self, range: Range<usize>, read: &Measured) -> Result<(), Excess> {
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        open.key = range;
        open.kind = Kind::Object(Next::Value);
        open.count += 1;
        let (count, budget) = (open.count, open.budget);
        if count == 1 {
            self.add(OBJECT)?;
        }
        if self.limits.fields == Fields::Free {
            return Ok(());
        }
        match budget.keys {
            Keys::Chosen(_) if count > budget.items => {
                self.open.pop();
                Err(self.excess(format!("more than {} entries", budget.items)))
            }
            Keys::Chosen(length) => self.judge(read, length, Characters::Line),
            Keys::Fields => self.judge(read, 256, Characters::Line),
        }
    }

    fn judge(&self, read: &Measured, length: usize, characters: Characters) -> Result<(), Excess> {
        if read.length > length {
            return Err(self.excess(format!("{} characters; at most {length}", read.length)));
        }
        if read.worst > characters.worst() {
            return Err(self.excess(read.worst.named().into()));
        }
        Ok(())
    }

    fn scalar(&mut self, start: usize) -> Result<usize, Excess> {
        self.value()?;
        let rest = &self.text[start..];
        let length = rest.iter().position(|byte| b",]}:\" \n\r\t".contains(byte)).unwrap_or(rest.len()).max(1);
        if length > DIGITS {
            return Err(self.excess(format!("a number of {length} digits; at most {DIGITS}")));
        }
        Ok(start + length)
    }

    /// With the path to where the scan is, as people write it.
    fn excess(&self, problem: String) -> Excess {
        let keys = self.open.iter().filter(|open| !open.key.is_empty());
        let words: Vec<String> = keys.map(|open| shortened(&text_of(&self.text[open.key.clone()]))).collect();
        let field = if words.is_empty() { "body".to_owned() } else { words.join(".") };
        Excess { field, problem }
    }
}

/// What stands in quotes, decoded.
fn text_of(quoted: &[u8]) -> Cow<'_, str> {
    let inner = quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default();
    if !inner.contains(&b'\\') {
        return String::from_utf8_lossy(inner);
    }
    serde_json::from_slice::<String>(quoted).map_or_else(|_| String::from_utf8_lossy(inner), Cow::Owned)
}

/// A key that is itself too long is not told in full, nor are its control characters.
fn shortened(key: &str) -> String {
    const TOLD: usize = 64;
    let mut told: String = key.chars().take(TOLD).flat_map(char::escape_default).collect();
    if key.chars().nth(TOLD).is_some() {
        told.push('…');
    }
    told
}

/// A string as it was read: where it ends, how many characters it has, the worst of them.
struct Measured {
    end: usize,
    length: usize,
    worst: Worst,
}

/// The least welcome kind of character in a string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Worst {
    Printable,
    LineEnd,
    Control,
    Nul,
}

impl Worst {
    fn of(character: u32) -> Worst {
        match character {
            0 => Worst::Nul,
            0x09 | 0x0a | 0x0d => Worst::LineEnd,
            0x01..=0x1f | 0x7f..=0x9f => Worst::Control,
            _ => Worst::Printable,
        }
    }

    fn named(self) -> &'static str {
        match self {
            Worst::Nul => "must not hold a NUL character",
            _ => "must not hold control characters",
        }
    }
}

impl Characters {
    /// The worst that is allowed.
    fn worst(self) -> Worst {
        match self {
            Characters::Any => Worst::Nul,
            Characters::NoNul => Worst::Control,
            Characters::Text => Worst::LineEnd,
            Characters::Line => Worst::Printable,
        }
    }
}

/// Reads the string whose opening quote is at `start`.
fn measure(text: &[u8], start: usize) -> Measured {
    let (mut at, mut length, mut worst) = (start + 1, 0, Worst::Printable);
    while let Some(&byte) = text.get(at) {
        match byte {
            b'"' => return Measured { end: at + 1, length, worst },
            b'\\' => {
                let (size, character) = escape(&text[at..]);
                at += size;
                // Of a pair of surrogates the second one counts.
                length += usize::from(!(0xd800..0xdc00).contains(&character));
                worst = worst.max(Worst::of(character));
                continue;
            }
            // U+0080 to U+009F.
            0xc2 if text.get(at + 1).is_some_and(|next| *next < 0xa0) => worst = worst.max(Worst::Control),
            0x00..=0x1f | 0x7f => worst = worst.max(Worst::of(u32::from(byte))),
            _ => {}
        }
        // Continuations of a character do not count again.
        length += usize::from(byte & 0xc0 != 0x80);
        at += 1;
    }
    Measured { end: text.len(), length, worst }
}

/// The size of an escape and its character.
fn escape(text: &[u8]) -> (usize, u32) {
    match text.get(1) {
        Some(b'u') => {
            let digits = text.get(2..6).and_then(|digits| std::str::from_utf8(digits).ok());
            (6, digits.and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0xfffd))
        }
        Some(b'n') => (2, 0x0a),
        Some(b't') => (2, 0x09),
        Some(b'r') => (2, 0x0d),
        Some(b'b') => (2, 0x08),
        Some(b'f') => (2, 0x0c),
        Some(&other) => (2, u32::from(other)),
        None => (1, 0xfffd),
    }
}

/// The same judgement of a text that was not JSON.
pub fn judge_text(field: &str, text: &str, length: usize, characters: Characters) -> Result<(), Excess> {
    let excess = |problem: String| Err(Excess { field: shortened(field), problem });
    // A character has at most four bytes: most texts need not be counted.
    if text.len() > length && text.chars().count() > length {
        return excess(format!("{} characters; at most {length}", text.chars().count()));
    }
    let worst = text.chars().map(|character| Worst::of(u32::from(character))).max().unwrap_or(Worst::Printable);
    if worst > characters.worst() { excess(worst.named().into()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn refused(text: &str) -> String {
        let begins: String = text.chars().take(60).collect();
        check(text.as_bytes()).expect_err(&begins).to_string()
    }

    #[test]
    fn what_is_too_large_is_refused_by_field_and_limit() {
        let many =
            |field: &str, entry: &str, count: usize| format!("{{\"{field}\":[{}]}}", vec![entry; count].join(","));
        assert_eq!(refused(&json!({"owner": "x".repeat(300)}).to_string()), "owner: 300 characters; at most 255");
        assert_eq!(refused(&many("resolvers", "\"1.1.1.1\"", 500_000)), "resolvers: more than 8 entries");
        assert_eq!(refused(&many("kinds", "\"a\"", 1_200_000)), "kinds: more than 64 entries");
        let nested = json!({"network": {"allow": vec!["1.2.3.4"; 1025]}});
        assert_eq!(refused(&nested.to_string()), "network.allow: more than 1024 entries");
        let labels: serde_json::Map<String, Value> = (0..65).map(|n| (format!("k{n}"), "v".into())).collect();
        assert_eq!(refused(&json!({ "labels": labels }).to_string()), "labels: more than 64 entries");
        assert_eq!(refused(&"[".repeat(100_000)), "body: nested deeper than 32 levels");
        assert_eq!(
            refused(&format!("{{\"x\":{}1", "{\"a\":".repeat(40))),
            format!("x{}: nested deeper than 32 levels", ".a".repeat(31))
        );
        let rows = format!("[{}]", vec![format!("[{}]", vec!["1"; 999].join(",")); 100].join(","));
        assert_eq!(refused(&rows), "body: more than 50000 values in all");
        assert_eq!(refused(&format!("{{\"n\":{}}}", "1".repeat(2000))), "n: a number of 2000 digits; at most 1024");
    }

    #[test]
    fn characters_that_a_store_or_a_kernel_does_not_take_are_refused() {
        assert_eq!(refused(r#"{"labels":{"a\u0000b":"x"}}"#), "labels.a\\u{0}b: must not hold a NUL character");
        assert_eq!(refused(r#"{"labels":{"a":"\u0000"}}"#), "labels.a: must not hold a NUL character");
        assert_eq!(refused(r#"{"name":"a\tb"}"#), "name: must not hold control characters");
        assert_eq!(refused("{\"name\":\"a\u{9b}b\"}"), "name: must not hold control characters");
        for fine in [r#"{"labels":{"a":"two\nlines"}}"#, r#"{"stdin":"\u0000"}"#, r#"{"env":{"A":"\u001b[0m"}}"#] {
            assert_eq!(check(fine.as_bytes()), Ok(()), "{fine}");
        }
    }

    #[test]
    fn a_field_does_not_hide_behind_escapes_or_a_chosen_key() {
        let owner = json!("x".repeat(300)).to_string();
        assert_eq!(refused(&format!("{{\"\\u006fwner\":{owner}}}")), "owner: 300 characters; at most 255");
        let long = json!("x".repeat(5000)).to_string();
        assert_eq!(
            refused(&format!("{{\"labels\":{{\"stdin\":{long}}}}}")),
            "labels.stdin: 5000 characters; at most 4096"
        );
        assert_eq!(refused(&format!("{{\"kinds\":[\"}}\",{long}]}}")), "kinds: 5000 characters; at most 64");
    }

    #[test]
    fn characters_are_counted_as_the_document_counts_them() {
        let text = "\u{1f600}".repeat(255);
        assert_eq!(check(json!({ "owner": text }).to_string().as_bytes()), Ok(()));
        assert_eq!(check(format!("{{\"owner\":\"{}\"}}", "\\ud83d\\ude00".repeat(255)).as_bytes()), Ok(()));
        assert!(refused(&json!({ "owner": format!("{text}x") }).to_string()).starts_with("owner: 256 characters"));
    }

    #[test]
    fn the_words_of_a_sandbox_are_weighed_before_they_are_parsed() {
        let bomb = format!("{{\"data\":[{}]}}", vec!["[]"; 2_000_000].join(","));
        assert_eq!(weigh(bomb.as_bytes(), 1_000_000).unwrap_err().problem, "more than 1000000 values in all");
        assert_eq!(weigh(br#"{"a":[1,2,{}],"b":{"c":"d"}}"#, 100), Ok(1 + OBJECT + 1 + 3 + 1 + OBJECT + 1));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map(".{0,4}", inner, 0..8)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn weight(value: &Value) -> usize {
        1 + match value {
            Value::Array(values) => values.iter().map(weight).sum(),
            Value::Object(map) if !map.is_empty() => OBJECT + map.values().map(weight).sum::<usize>(),
            _ => 0,
        }
    }

    proptest! {
        #[test]
        fn the_weight_of_json_is_exact(value in any_json()) {
            prop_assert_eq!(weigh(value.to_string().as_bytes(), usize::MAX), Ok(weight(&value)));
            prop_assert_eq!(weigh(serde_json::to_string_pretty(&value).unwrap().as_bytes(), usize::MAX), Ok(weight(&value)));
        }

        #[test]
        fn no_text_breaks_it(text in prop::collection::vec(prop::sample::select(b"{}[]\",:\\u0 1tn\xc2\x80".to_vec()), 0..200)) {
            let _ = check(&text);
            let _ = weigh(&text, 1000);
        }
    }
}
