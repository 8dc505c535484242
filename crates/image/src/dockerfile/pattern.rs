//! `*`, `?`, `[a-z]` and `**` against paths. Matched in one pass over the path, however the pattern was made.

/// A pattern, ready to be matched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Letter(char),
    /// `?`
    One,
    /// `*`
    Some,
    /// `**` at the end: anything.
    Anything,
    /// `**/`: this part may be passed over, the next one is the folders.
    Fork,
    Folders,
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
}

/// Whether `**` crosses folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stars {
    Deep,
    Shallow,
}

const LONGEST: usize = 4096;

impl Pattern {
    /// The error is a sentence.
    pub fn new(text: &str, stars: Stars) -> Result<Self, String> {
        if text.len() > LONGEST {
            return Err("the pattern is too long".into());
        }
        let mut parts = Vec::new();
        let mut letters = text.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '*' if letters.peek() == Some(&'*') => {
                    while letters.next_if_eq(&'*').is_some() {}
                    match stars {
                        Stars::Shallow => parts.push(Part::Some),
                        Stars::Deep if letters.next_if_eq(&'/').is_some() => parts.extend([Part::Fork, Part::Folders]),
                        Stars::Deep => parts.push(Part::Anything),
                    }
                }
                '*' => parts.push(Part::Some),
                '?' => parts.push(Part::One),
                '[' => {
                    parts.push(class(&mut letters).ok_or_else(|| format!("the brackets of {text:?} make no sense"))?)
                }
                '\\' => parts.push(Part::Letter(letters.next().ok_or_else(|| format!("{text:?} ends with a \\"))?)),
                other => parts.push(Part::Letter(other)),
            }
        }
        Ok(Pattern { parts })
    }

    /// Whether the whole path matches.
    pub fn matches(&self, path: &str) -> bool {
        path.chars().fold(self.beginning(), |now, letter| self.after(&now, letter)).last() == Some(&true)
    }

    /// Whether the path matches, or one of the folders that it lies in. In one pass, too.
    pub fn covers(&self, path: &str) -> bool {
        let mut now = self.beginning();
        for letter in path.chars() {
            if letter == '/' && now.last() == Some(&true) {
                return true;
            }
            now = self.after(&now, letter);
        }
        now.last() == Some(&true)
    }

    /// The places of the pattern that are reached before the first letter; the last of them is its end.
    fn beginning(&self) -> Vec<bool> {
        let mut now = vec![false; self.parts.len() + 1];
        self.reach(&mut now, 0);
        now
    }

    /// Those that are reached after one letter more.
    fn after(&self, now: &[bool], letter: char) -> Vec<bool> {
        let mut next = vec![false; self.parts.len() + 1];
        for (at, part) in self.parts.iter().enumerate().filter(|(at, _)| now.get(*at) == Some(&true)) {
            match part {
                Part::Letter(wanted) if *wanted == letter => self.reach(&mut next, at + 1),
                Part::One if letter != '/' => self.reach(&mut next, at + 1),
                Part::Some if letter != '/' => self.reach(&mut next, at),
                Part::Anything => self.reach(&mut next, at),
                Part::Folders => {
                    self.reach(&mut next, at);
                    if letter == '/' {
                        self.reach(&mut next, at + 1);
                    }
                }
                Part::Class { is_negated, ranges } if letter != '/' => {
                    let is_in = ranges.iter().any(|(first, last)| (*first..=*last).contains(&letter));
                    if is_in != *is_negated {
                        self.reach(&mut next, at + 1);
                    }
                }
                _ => {}
            }
        }
        next
    }

    /// Marks a place, and those that are reached from it for nothing.
    fn reach(&self, places: &mut [bool], mut at: usize) {
        loop {
            match places.get_mut(at) {
                Some(place) if !*place => *place = true,
                _ => return,
            }
            match self.parts.get(at) {
                Some(Part::Some | Part::Anything) => at += 1,
                Some(Part::Fork) => {
                    if let Some(folders) = places.get_mut(at + 1) {
                        *folders = true;
                    }
                    at += 2;
                }
                _ => return,
            }
        }
    }
}

/// After a `[`.
fn class(letters: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<Part> {
    let is_negated = letters.next_if(|letter| matches!(letter, '^' | '!')).is_some();
    let mut ranges = Vec::new();
    loop {
        let mut one = || match letters.next()? {
            '\\' => letters.next().map(|letter| (letter, true)),
            letter => Some((letter, false)),
        };
        let (first, is_escaped) = one()?;
        if first == ']' && !is_escaped && !ranges.is_empty() {
            return Some(Part::Class { is_negated, ranges });
        }
        let last = if letters.next_if_eq(&'-').is_some() {
            match letters.next()? {
                '\\' => letters.next()?,
                letter => letter,
            }
        } else {
            first
        };
        if last < first {
            return None;
        }
        ranges.push((first, last));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_as_in_docker() {
        for (pattern, path, expected) in [
            ("*.md", "README.md", true),
            ("*.md", "docs/README.md", false),
            ("**/*.md", "docs/a/README.md", true),
            ("**/*.md", "README.md", true),
            ("docs/**", "docs/a/b", true),
            ("docs/**", "docs", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "a/xb", false),
            ("**", "anything/at/all", true),
            ("**/b", "ab", false),
            ("?.txt", "a.txt", true),
            ("?.txt", "ab.txt", false),
            ("a?b", "a/b", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("temp?", "temp/", false),
            ("ä*", "äü", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern, Stars::Deep).unwrap().matches(path), expected, "{pattern} {path}");
        }
        let covers = |pattern: &str, path: &str| Pattern::new(pattern, Stars::Deep).unwrap().covers(path);
        assert!(covers("a/cache", "a/cache/y/z") && covers("a/cache", "a/cache") && covers("**/*.pyc", "b/z.pyc"));
        assert!(!covers("a/cache", "a/cached/y") && !covers("a/cache", "a"));
        let shallow = Pattern::new("a/**", Stars::Shallow).unwrap();
        assert!(shallow.matches("a/b") && !shallow.matches("a/b/c"));
        for wrong in ["[", "[a", "[z-a]", "a\\", "[\\"] {
            assert!(Pattern::new(wrong, Stars::Deep).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pattern_cannot_take_for_ever() {
        let begun = std::time::Instant::now();
        let pattern = Pattern::new(&"*a".repeat(500), Stars::Deep).unwrap();
        assert!(!pattern.matches(&("a".repeat(4000) + "x")));
        assert!(pattern.matches(&"a".repeat(4000)));
        assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    }

    proptest! {
        #[test]
        fn any_pattern_is_matched_or_refused(pattern in "[*?\\[\\]a/\\\\^-]{0,12}", path in "[a/]{0,12}") {
            if let Ok(pattern) = Pattern::new(&pattern, Stars::Deep) {
                let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
                let folders = ends.into_iter().any(|end| pattern.matches(&path[..end]));
                prop_assert_eq!(pattern.covers(&path), folders);
            }
        }

        #[test]
        fn a_path_matches_itself(path in "[a-z/.]{0,30}") {
            prop_assert!(Pattern::new(&path, Stars::Deep).unwrap().matches(&path));
        }
    }
}
