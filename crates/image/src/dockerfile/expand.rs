//! `$name`, `${name:-else}` and quotes in a word, as Dockerfiles have them: close to a shell, but not one.

use std::borrow::Cow;
use std::iter::Peekable;
use std::str::Chars;

/// How deep `${a:-${b:-…}}` may be.
const DEEPEST: usize = 32;
/// The longest value: execve(2) takes no longer one (MAX_ARG_STRLEN).
pub(super) const LONGEST: usize = 128 << 10;

/// What a name stands for. Not copied: a word may name a long value as often as it has letters, and use none of it.
pub(super) type Lookup<'a> = dyn Fn(&str) -> Option<Cow<'a, str>> + 'a;

/// Replaces variables and takes quotes and escapes away. The error is a sentence without the line.
pub(super) fn word(text: &str, lookup: &Lookup<'_>, escape: char) -> Result<String, String> {
    let mut expander = Expander { letters: text.chars().peekable(), lookup, escape, depth: 0 };
    let (expanded, _) = expander.until(None, Quotes::Matter)?;
    Ok(expanded)
}

/// Replaces variables in a text whose quotes mean nothing, such as a heredoc.
pub(super) fn text(text: &str, lookup: &Lookup<'_>, escape: char) -> Result<String, String> {
    let mut expander = Expander { letters: text.chars().peekable(), lookup, escape, depth: 0 };
    let (expanded, _) = expander.until(None, Quotes::AreLetters)?;
    Ok(expanded)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Quotes {
    Matter,
    AreLetters,
}

struct Expander<'a, 'b, 'c> {
    letters: Peekable<Chars<'a>>,
    lookup: &'b Lookup<'c>,
    escape: char,
    depth: usize,
}

impl<'c> Expander<'_, '_, 'c> {
    /// Up to a letter that is taken away too, or to the end. Returns whether the letter was there.
    fn until(&mut self, stop: Option<char>, quotes: Quotes) -> Result<(String, bool), String> {
        let mut out = String::new();
        while let Some(letter) = self.letters.next() {
            if out.len() > LONGEST {
                return Err(format!("it becomes longer than {LONGEST} bytes"));
            }
            match letter {
                _ if Some(letter) == stop => return Ok((out, true)),
                '\'' if quotes == Quotes::Matter => self.single(&mut out)?,
                '"' if quotes == Quotes::Matter => self.double(&mut out)?,
                '$' => out.push_str(&self.dollar()?),
                _ if letter == self.escape && quotes == Quotes::Matter => out.extend(self.letters.next()),
                // In a text only these are worth protecting.
                _ if letter == self.escape
                    && matches!(self.letters.peek(), Some(next) if *next == '$' || *next == self.escape) =>
                {
                    out.extend(self.letters.next());
                }
                _ => out.push(letter),
            }
        }
        match out.len() > LONGEST {
            true => Err(format!("it becomes longer than {LONGEST} bytes")),
            false => Ok((out, false)),
        }
    }

    fn single(&mut self, out: &mut String) -> Result<(), String> {
        for letter in self.letters.by_ref() {
            if letter == '\'' {
                return Ok(());
            }
            out.push(letter);
        }
        Err("a single quote (') is not closed".into())
    }

    fn double(&mut self, out: &mut String) -> Result<(), String> {
        while let Some(letter) = self.letters.next() {
            match letter {
                '"' => return Ok(()),
                '$' => out.push_str(&self.dollar()?),
                _ if letter == self.escape => match self.letters.next() {
                    Some(next) if next == '"' || next == '$' || next == self.escape => out.push(next),
                    next => {
                        out.push(letter);
                        out.extend(next);
                    }
                },
                _ => out.push(letter),
            }
            if out.len() > LONGEST {
                return Err(format!("it becomes longer than {LONGEST} bytes"));
            }
        }
        Err("a double quote (\") is not closed".into())
    }

    /// After a `$`.
    fn dollar(&mut self) -> Result<Cow<'c, str>, String> {
        if self.letters.next_if_eq(&'{').is_none() {
            let name = self.name();
            return Ok(if name.is_empty() { "$".into() } else { (self.lookup)(&name).unwrap_or_default() });
        }
        let name = self.name();
        if name.is_empty() {
            return Err("${ is not followed by the name of a variable".into());
        }
        let value = (self.lookup)(&name);
        let not_closed = || format!("${{{name} is not closed");
        let mut operator = self.letters.next().ok_or_else(not_closed)?;
        // With a colon, an empty variable counts as one that is not there.
        let is_strict = operator == ':';
        if is_strict {
            operator = self.letters.next().ok_or_else(not_closed)?;
        }
        let there = value.filter(|value| !is_strict || !value.is_empty());
        match operator {
            '}' if !is_strict => Ok(there.unwrap_or_default()),
            '-' | '+' | '?' => {
                let other = self.rest(not_closed)?;
                match (operator, there) {
                    ('-', there) => Ok(there.unwrap_or(other.into())),
                    ('+', Some(_)) => Ok(other.into()),
                    ('+', None) => Ok(Cow::default()),
                    (_, Some(there)) => Ok(there),
                    (_, None) if other.is_empty() => Err(format!("the variable {name} is not set")),
                    (_, None) => Err(format!("the variable {name} is not set: {other}")),
                }
            }
            other => Err(format!(
                "${{{name}{}{other}…}} is unknown here; :- :+ :? - + ? are known",
                if is_strict { ":" } else { "" }
            )),
        }
    }

    fn rest(&mut self, not_closed: impl Fn() -> String) -> Result<String, String> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("its variables are within each other too deep".into());
        }
        let (rest, is_closed) = self.until(Some('}'), Quotes::Matter)?;
        self.depth -= 1;
        if is_closed { Ok(rest) } else { Err(not_closed()) }
    }

    /// A name, or a single digit.
    fn name(&mut self) -> String {
        let mut name = String::new();
        if let Some(digit) = self.letters.next_if(char::is_ascii_digit) {
            name.push(digit);
            return name;
        }
        while let Some(letter) = self.letters.next_if(|letter| letter.is_ascii_alphanumeric() || *letter == '_') {
            name.push(letter);
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lookup(name: &str) -> Option<Cow<'static, str>> {
        match name {
            "A" => Some("apple".into()),
            "EMPTY" => Some("".into()),
            "SPACE" => Some("a b".into()),
            _ => None,
        }
    }

    fn expanded(text: &str) -> String {
        word(text, &lookup, '\\').unwrap_or_else(|why| format!("error: {why}"))
    }

    #[test]
    fn variables_are_replaced_as_dockerfiles_have_them() {
        for (from, to) in [
            ("$A", "apple"),
            ("x$A.y", "xapple.y"),
            ("${A}s", "apples"),
            ("$Ab", ""),
            ("$", "$"),
            ("a$ b", "a$ b"),
            ("${NONE:-x}", "x"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY-x}", ""),
            ("${NONE-x}", "x"),
            ("${A:-x}", "apple"),
            ("${A:+x}", "x"),
            ("${EMPTY:+x}", ""),
            ("${EMPTY+x}", "x"),
            ("${NONE+x}", ""),
            ("${NONE:-${A}/y}", "apple/y"),
            ("${NONE:-'a}b'}", "a}b"),
            ("${NONE:-}", ""),
            ("${A:?why}", "apple"),
            ("'$A'", "$A"),
            ("\"$A b\"", "apple b"),
            ("\"a\\\"b\"", "a\"b"),
            ("\"a\\nb\"", "a\\nb"),
            ("\\$A", "$A"),
            ("a\\ b", "a b"),
            ("it''s", "its"),
            ("$SPACE", "a b"),
            ("$1x", "x"),
            ("a\\", "a"),
        ] {
            assert_eq!(expanded(from), to, "{from}");
        }
        assert_eq!(word("a\\b`$c", &lookup, '`').unwrap(), "a\\b$c", "another escape character");
        assert_eq!(text("'$A' \\$A \"${A}\" \\n", &lookup, '\\').unwrap(), "'apple' $A \"apple\" \\n");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (from, why) in [
            ("'a", "single quote"),
            ("\"a", "double quote"),
            ("${A", "not closed"),
            ("${A:-x", "not closed"),
            ("${}", "name of a variable"),
            ("${A:}", "unknown here"),
            ("${A%.txt}", "unknown here"),
            ("${NONE:?is needed}", "NONE is not set: is needed"),
            ("${NONE?}", "NONE is not set"),
        ] {
            assert!(expanded(from).contains(why), "{from}: {}", expanded(from));
        }
        let deep = format!("{}{}", "${N:-".repeat(1000), "}".repeat(1000));
        assert!(expanded(&deep).contains("too deep"));
        let long = |name: &str| (name == "L").then(|| Cow::Owned("x".repeat(100_000)));
        assert!(word("$L$L", &long, '\\').unwrap_err().contains("longer than"));
        assert!(word("\"$L$L\"", &long, '\\').unwrap_err().contains("longer than"));
    }

    proptest! {
        #[test]
        fn any_text_is_expanded_or_refused(text in "[$\\{}:+?a-c'\"\\\\ -]{0,40}") {
            let _ = expanded(&text);
            let _ = super::text(&text, &lookup, '\\');
        }
    }
}
