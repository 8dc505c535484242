//! File name patterns: `*`, `?`, `[a-z]`, `[!x]`, `\` before a character that is meant.

/// A pattern; one without special characters matches every name that holds it.
pub struct Glob {
    tokens: Vec<Token>,
}

enum Token {
    One(char),
    Any,
    Star,
    Class { ranges: Vec<(char, char)>, negated: bool },
}

impl Glob {
    pub fn new(pattern: &str) -> Glob {
        let mut characters = pattern.chars().collect::<Vec<_>>().into_iter().peekable();
        let mut tokens = Vec::new();
        let mut special = false;
        while let Some(character) = characters.next() {
            tokens.push(match character {
                '*' => Token::Star,
                '?' => Token::Any,
                '\\' => Token::One(characters.next().unwrap_or('\\')),
                '[' => match class(&mut characters.clone()) {
                    Some((token, length)) => {
                        // `length` characters were looked at on a copy.
                        characters.by_ref().take(length).for_each(drop);
                        token
                    }
                    None => Token::One('['),
                },
                other => Token::One(other),
            });
            special |= !matches!(tokens.last(), Some(Token::One(_))) || character == '\\';
        }
        if !special {
            tokens.insert(0, Token::Star);
            tokens.push(Token::Star);
        }
        Glob { tokens }
    }

    /// Linear in the name for each star: no pattern makes it explode.
    pub fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut at, mut token) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while at < name.len() {
            match (self.tokens.get(token), name.get(at)) {
                (Some(Token::Star), _) => {
                    star = Some((token, at));
                    token += 1;
                }
                (Some(one), Some(character)) if one.takes(*character) => {
                    token += 1;
                    at += 1;
                }
                _ => {
                    // Let the last star take one more.
                    let Some((place, taken)) = star else { return false };
                    star = Some((place, taken + 1));
                    token = place + 1;
                    at = taken + 1;
                }
            }
        }
        self.tokens.iter().skip(token).all(|token| matches!(token, Token::Star))
    }
}

impl Token {
    fn takes(&self, character: char) -> bool {
        match self {
            Token::One(one) => *one == character,
            Token::Any => true,
            Token::Star => false,
            Token::Class { ranges, negated } => {
                ranges.iter().any(|(from, to)| (*from..=*to).contains(&character)) != *negated
            }
        }
    }
}

/// The set between brackets, and its length in characters; `None` where they are not closed.
fn class(characters: &mut dyn Iterator<Item = char>) -> Option<(Token, usize)> {
    let inside: Vec<char> = characters.collect();
    let negated = matches!(inside.first(), Some('!' | '^'));
    let begin = usize::from(negated);
    // A bracket right at the beginning is meant as one.
    let end = inside.iter().enumerate().skip(begin + 1).find(|(_, character)| **character == ']')?.0;
    let mut ranges = Vec::new();
    let mut rest = inside.get(begin..end)?;
    while let Some((from, tail)) = rest.split_first() {
        if let [dash, to, tail @ ..] = tail
            && *dash == '-'
        {
            ranges.push((*from, *to));
            rest = tail;
        } else {
            ranges.push((*from, *from));
            rest = tail;
        }
    }
    Some((Token::Class { ranges, negated }, end + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_mean_what_a_shell_means() {
        let yes = [
            ("*.rs", "main.rs"),
            ("*", ""),
            ("a?c", "abc"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "zx"),
            ("[]]", "]"),
            ("*a*b*", "xxaxxbxx"),
            ("\\*", "*"),
            ("main", "domain.rs"),
            ("[", "a[b"),
            ("é*", "été"),
        ];
        let no =
            [("*.rs", "main.rc"), ("a?c", "ac"), ("[a-c]x", "dx"), ("\\*", "a"), ("?", ""), ("main.rs?", "main.rs")];
        for (pattern, name) in yes {
            assert!(Glob::new(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in no {
            assert!(!Glob::new(pattern).matches(name), "{pattern} {name}");
        }
    }

    #[test]
    fn many_stars_do_not_explode() {
        assert!(!Glob::new(&"a*".repeat(100)).matches(&"a".repeat(99)));
        assert!(!Glob::new(&format!("{}b", "*a".repeat(50))).matches(&"a".repeat(5000)));
    }

    proptest! {
        #[test]
        fn any_pattern_and_name_give_an_answer(pattern in "\\PC{0,30}", name in "\\PC{0,30}") {
            Glob::new(&pattern).matches(&name);
        }
    }
}
