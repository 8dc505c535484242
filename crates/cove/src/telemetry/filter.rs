//! What the log shows (`log.filter`, `COVE_LOG`): levels, and targets with or without a level, separated by commas.
//!
//! A target is a part of the program: `cove_control`, `cove::access`, `hyper`. Of several that fit, the longest counts.

use tracing_subscriber::filter::{LevelFilter, Targets};

use crate::complaint::Complaint;

pub fn read(text: &str) -> Result<Targets, Complaint> {
    let wrong = |why: String| {
        Complaint::usage(format!("log.filter: {why}")).hint("write for example info, or warn,cove_control=debug")
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    let mut filter = Targets::new();
    if parts.is_empty() {
        filter = filter.with_default(LevelFilter::ERROR);
    }
    for part in parts {
        filter = match (part.split_once('='), part.parse::<LevelFilter>()) {
            (None, Ok(level)) => filter.with_default(level),
            // All that it says.
            (None, Err(_)) if is_target(part) => filter.with_target(part, LevelFilter::TRACE),
            (Some((target, level)), _) if is_target(target) => {
                // The library takes nothing for `error`.
                let level = if level.is_empty() { None } else { level.parse::<LevelFilter>().ok() };
                let level = level.ok_or_else(|| {
                    wrong(format!("`{part}` does not end with a level: off, error, warn, info, debug or trace"))
                })?;
                filter.with_target(target, level)
            }
            _ => return Err(wrong(format!("`{part}` is neither a level nor a part of the program"))),
        };
    }
    Ok(filter)
}

fn is_target(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "_-:.".contains(letter))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn the_longest_target_that_fits_counts() {
        let filter = read("info, cove::access=debug,hyper=off,cove_engine").unwrap();
        for (target, level, shown) in [
            ("cove_control::app", Level::INFO, true),
            ("cove_control::app", Level::DEBUG, false),
            ("cove::access", Level::DEBUG, true),
            ("cove::access", Level::TRACE, false),
            ("hyper::client", Level::ERROR, false),
            ("cove_engine::pool", Level::TRACE, true),
        ] {
            assert_eq!(filter.would_enable(target, &level), shown, "{target} {level}");
        }
    }

    #[test]
    fn targets_alone_silence_the_others_and_nothing_means_errors() {
        let filter = read("cove_control=warn").unwrap();
        assert!(filter.would_enable("cove_control", &Level::WARN) && !filter.would_enable("hyper", &Level::ERROR));
        let filter = read("").unwrap();
        assert!(filter.would_enable("hyper", &Level::ERROR) && !filter.would_enable("hyper", &Level::WARN));
    }

    #[test]
    fn what_is_no_filter_is_named() {
        for (text, named) in [
            ("(((", "`(((` is neither"),
            ("info,cove=loud", "`cove=loud` does not end with a level"),
            ("cove=", "`cove=` does not end"),
            ("=info", "`=info` is neither"),
            ("a=b=info", "`a=b=info` does not end"),
            ("cove[span]=info", "`cove[span]=info` is neither"),
        ] {
            let refused = read(text).unwrap_err().to_string();
            assert!(refused.contains(named) && refused.contains("hint: "), "{text}: {refused}");
        }
    }
}
