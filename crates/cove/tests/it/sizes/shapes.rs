//! What is put where something ordinary belongs.

use super::routes::{Place, Route};

/// A value that is wrong by its size or its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A text of so many characters.
    Long(usize),
    /// Lists in lists, so deep.
    Deep(usize),
    /// A list of so many different addresses: what most lists take as an entry.
    Many(usize),
    /// `[[],[],…]`.
    Hollow(usize),
    /// An object of so many keys.
    Keys(usize),
    Nul,
    Control,
    Negative,
    Enormous,
    /// A number of so many digits.
    Digits(usize),
    Switch,
    Null,
    Object,
    Empty,
    /// Half of a pair of surrogates.
    HalfCharacter,
    NoUtf8,
    /// The same twice.
    Repeated(usize),
}

impl Shape {
    /// Whether the request is no HTTP any more, so that hanging up is an answer.
    pub fn is_no_http(self) -> bool {
        matches!(self, Shape::NoUtf8 | Shape::Nul | Shape::Control | Shape::Long(_) | Shape::Repeated(_))
    }

    /// As JSON; not always as valid JSON.
    pub fn json(self) -> Vec<u8> {
        let list = |count: usize, entry: &dyn Fn(usize) -> String| {
            let entries: Vec<String> = (0..count).map(entry).collect();
            format!("[{}]", entries.join(",")).into_bytes()
        };
        match self {
            Shape::Long(length) => format!("\"{}\"", "x".repeat(length)).into_bytes(),
            Shape::Deep(levels) => format!("{}{}", "[".repeat(levels), "]".repeat(levels)).into_bytes(),
            Shape::Many(count) => list(count, &|n| format!("\"8.{}.{}.{}\"", n >> 16 & 255, n >> 8 & 255, n & 255)),
            Shape::Hollow(count) => list(count, &|_| "[]".into()),
            Shape::Keys(count) => {
                let fields: Vec<String> = (0..count).map(|n| format!("\"k{n}\":\"v\"")).collect();
                format!("{{{}}}", fields.join(",")).into_bytes()
            }
            Shape::Nul => br#""a\u0000b""#.to_vec(),
            Shape::Control => br#""a\u001b[31mb\u0007""#.to_vec(),
            Shape::Negative => b"-1".to_vec(),
            Shape::Enormous => b"1e308".to_vec(),
            Shape::Digits(count) => "9".repeat(count).into_bytes(),
            Shape::Switch => b"true".to_vec(),
            Shape::Null => b"null".to_vec(),
            Shape::Object => br#"{"a":{"b":["c"]}}"#.to_vec(),
            Shape::Empty => b"\"\"".to_vec(),
            Shape::HalfCharacter => br#""\ud800""#.to_vec(),
            Shape::NoUtf8 => b"\"a\xff\xfe\"".to_vec(),
            Shape::Repeated(_) => b"\"x\"".to_vec(),
        }
    }

    /// As a part of a path or a value in a query.
    pub fn escaped(self) -> String {
        match self {
            Shape::Long(length) => "x".repeat(length.min(60_000)),
            Shape::Many(count) => {
                let pairs: Vec<String> = (0..count.min(3000)).map(|n| format!("k{n}%3Dv")).collect();
                pairs.join("%2C")
            }
            Shape::Deep(levels) => format!("{}{}", "%5B".repeat(levels.min(5000)), "%5D".repeat(levels.min(5000))),
            Shape::Nul => "a%00b".into(),
            Shape::Control => "a%1B%0D%0Ab".into(),
            Shape::Negative => "-1".into(),
            Shape::Enormous => "1e308".into(),
            Shape::Digits(count) => "9".repeat(count.min(5000)),
            Shape::NoUtf8 | Shape::HalfCharacter => "a%ff%fe".into(),
            Shape::Object => "%7B%22a%22%3A1%7D".into(),
            Shape::Switch => "true".into(),
            Shape::Hollow(_) | Shape::Keys(_) | Shape::Null | Shape::Empty | Shape::Repeated(_) => String::new(),
        }
    }

    /// As a header's value.
    pub fn header(self) -> String {
        match self {
            Shape::Long(length) => "x".repeat(length.min(100_000)),
            Shape::Many(count) => vec!["0-1"; count.min(4000)].join(","),
            Shape::Negative => "-1".into(),
            Shape::Digits(count) => "9".repeat(count.min(5000)),
            Shape::NoUtf8 => "a\u{ff}b".into(),
            Shape::Control => "a\tb".into(),
            _ => String::new(),
        }
    }
}

/// What is tried in a place.
pub fn all(place: &Place) -> Vec<Shape> {
    use Shape::*;
    match place {
        Place::Field(_) => vec![
            Long(10_000),
            Long(2 << 20),
            Long(18 << 20),
            Deep(100),
            Deep(200_000),
            Many(2000),
            Many(500_000),
            Hollow(1_000_000),
            Keys(2000),
            Keys(100_000),
            Nul,
            Control,
            Negative,
            Enormous,
            Digits(100_000),
            Switch,
            Null,
            Object,
            Empty,
            HalfCharacter,
            NoUtf8,
            Repeated(2),
        ],
        Place::Query(_) => vec![
            Long(5000),
            Long(60_000),
            Many(900),
            Deep(2000),
            Nul,
            Control,
            Negative,
            Enormous,
            Digits(400),
            NoUtf8,
            Object,
            Switch,
            Empty,
            Repeated(2),
            Repeated(2000),
        ],
        Place::Path(_) => vec![Long(1000), Long(50_000), Nul, Control, Negative, NoUtf8, Empty, Digits(400)],
        Place::Header(_) => {
            vec![
                Long(300),
                Long(20_000),
                Long(100_000),
                Many(2000),
                Negative,
                NoUtf8,
                Digits(400),
                Control,
                Empty,
                Repeated(50),
            ]
        }
        Place::Body => vec![
            Deep(100_000),
            Hollow(5_000_000),
            Keys(200_000),
            NoUtf8,
            Null,
            Switch,
            Long(17 << 20),
            Empty,
            Many(1_000_000),
        ],
    }
}

/// What froze, filled or broke a server once.
pub fn is_known_to_hurt(route: &Route, place: &Place, shape: &Shape) -> bool {
    let (path, last) = (route.path.as_str(), place.last());
    match (last, shape) {
        ("resolvers" | "allow" | "deny", Shape::Many(_)) => path.ends_with("/network") || path == "/api/sandboxes",
        ("label" | "labels", Shape::Many(_) | Shape::Nul) => true,
        ("owner", Shape::Long(_)) => path == "/api/sandboxes",
        ("kinds", Shape::Many(_)) => true,
        ("name", Shape::Nul) => true,
        _ => false,
    }
}
