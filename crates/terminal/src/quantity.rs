//! Sizes, times and processor shares, as people write and read them.
//!
//! Units of size are powers of 1024 whatever their spelling (`M`, `MB` and `MiB` are the same), as container tools do it.

use std::time::Duration;

const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];

/// `268435456`, `256M`, `1.5GiB`, `500 MB` → bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let power = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(format!("`{unit}` is not a unit of size; write for example 256M or 1.5G")),
    };
    let number = parse_number(number).ok_or("not a size; write a number and a unit, for example 256M or 1.5G")?;
    let bytes = number * 1024f64.powi(power);
    if bytes < 1.0 || bytes >= u64::MAX as f64 {
        return Err("not a possible size; write for example 256M or 1.5G".into());
    }
    Ok(bytes as u64)
}

/// `30`, `30s`, `500ms`, `1h30m`, `2d` → duration. A bare number is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXAMPLE: &str = "not a time; write for example 30s, 5m, 1h30m or 500ms";
    let mut rest = text.trim();
    let mut total = 0f64;
    if rest.is_empty() {
        return Err(EXAMPLE.into());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let letters = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let seconds = match unit {
            "ms" => 0.001,
            "" | "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return Err(format!("`{unit}` is not a unit of time; write for example 30s, 5m, 1h30m or 500ms")),
        };
        total += parse_number(number).ok_or(EXAMPLE)? * seconds;
        rest = after.trim_start();
    }
    if total < 0.001 {
        return Err("a time must be longer than zero".into());
    }
    Duration::try_from_secs_f64(total).map_err(|_| format!("{text} is too long a time"))
}

/// A time, or never.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(Option<Duration>);

impl Span {
    /// For the API: whole seconds, rounded up; `null` is never.
    pub fn seconds(self) -> serde_json::Value {
        self.0.map_or(serde_json::Value::Null, |time| serde_json::json!(time.as_secs_f64().ceil() as u64))
    }
}

/// As [`parse_duration`], and `never`.
pub fn parse_span(text: &str) -> Result<Span, String> {
    if text == "never" { Ok(Span(None)) } else { parse_duration(text).map(Some).map(Span) }
}

/// `0.5`, `2` → processors.
pub fn parse_cpus(text: &str) -> Result<f64, String> {
    let cpus = parse_number(text).ok_or("not a number; write for example 0.5 or 2")?;
    if cpus < 0.01 { Err("at least 0.01 of a processor is needed".into()) } else { Ok(cpus) }
}

/// Bytes with three digits that matter: `256 MiB`, `1.50 GiB`.
pub fn show_size(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let unit_name = UNITS[unit];
    match unit {
        0 => format!("{bytes} B"),
        _ if value.fract() == 0.0 || value >= 100.0 => format!("{value:.0} {unit_name}"),
        _ => format!("{value:.1} {unit_name}"),
    }
}

/// The two largest units: `2d 3h`, `5m 12s`, `340ms`.
pub fn show_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let pair = |large: u64, a: &str, small: u64, b: &str| {
        if small == 0 { format!("{large}{a}") } else { format!("{large}{a} {small}{b}") }
    };
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => pair(seconds / 60, "m", seconds % 60, "s"),
        3600..86400 => pair(seconds / 3600, "h", seconds % 3600 / 60, "m"),
        _ => pair(seconds / 86400, "d", seconds % 86400 / 3600, "h"),
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

fn parse_number(text: &str) -> Option<f64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|value: &f64| plain && value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("1024", 1024),
            ("256M", 256 << 20),
            ("256m", 256 << 20),
            ("256MiB", 256 << 20),
            ("256 MB", 256 << 20),
            ("1.5G", 3 << 29),
            ("64k", 64 << 10),
            ("2T", 2 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "12Q", "-5M", "0", "1e400", "inf", "5 M B", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, millis) in [
            ("30", 30_000),
            ("30s", 30_000),
            ("500ms", 500),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("1.5m", 90_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "5 fortnights", "-1s", "0", "1..5s", "9999999999999999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_and_times_are_shown_short() {
        let sizes = [0, 999, 1024, 1536, 256 << 20, (1 << 30) + (1 << 29), 5 << 40].map(show_size);
        assert_eq!(sizes, ["0 B", "999 B", "1 KiB", "1.5 KiB", "256 MiB", "1.5 GiB", "5 TiB"]);
        let times = [0.34, 5.0, 312.0, 3600.0, 9000.0, 183_600.0].map(|s| show_duration(Duration::from_secs_f64(s)));
        assert_eq!(times, ["340ms", "5s", "5m 12s", "1h", "2h 30m", "2d 3h"]);
    }
}
