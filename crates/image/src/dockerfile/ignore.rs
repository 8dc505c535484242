//! `.dockerignore`: what of the context a build does not see.
//!
//! The last line that matches a path, or a folder above it, decides; a line with `!` takes a path back in.

use super::Problem;
use super::pattern::{Pattern, Stars};

/// As many lines as count.
const MOST: usize = 4096;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignore {
    rules: Vec<Rule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Rule {
    pattern: Pattern,
    takes_back: bool,
}

impl Ignore {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut rules = Vec::new();
        for (number, line) in text.lines().enumerate() {
            if line.starts_with('#') || line.trim().is_empty() {
                continue;
            }
            let (takes_back, line) = match line.trim().strip_prefix('!') {
                Some(rest) => (true, rest.trim()),
                None => (false, line.trim()),
            };
            let wrong = |why: String| Problem::new(number + 1, format!(".dockerignore: {why}"));
            let cleaned = clean(line);
            if cleaned.is_empty() {
                // `!` alone, or the context itself.
                if takes_back && line.is_empty() {
                    return Err(wrong("! stands alone".into()));
                }
                continue;
            }
            let pattern = Pattern::new(&cleaned, Stars::Deep).map_err(wrong)?;
            rules.push(Rule { pattern, takes_back });
            if rules.len() > MOST {
                return Err(wrong(format!("it has more than {MOST} lines")));
            }
        }
        Ok(Ignore { rules })
    }

    /// Whether a path (relative, with `/`) is left out.
    pub fn excludes(&self, path: &str) -> bool {
        let path = clean(path);
        let folders: Vec<&str> = path.match_indices('/').filter_map(|(at, _)| path.get(..at)).collect();
        let mut is_out = false;
        for rule in &self.rules {
            // It would change nothing.
            if rule.takes_back != is_out {
                continue;
            }
            if rule.pattern.matches(&path) || folders.iter().any(|folder| rule.pattern.matches(folder)) {
                is_out = !rule.takes_back;
            }
        }
        is_out
    }

    /// Whether nothing below a folder can come back in: it need not be walked.
    pub fn excludes_all_below(&self, folder: &str) -> bool {
        self.excludes(folder) && !self.rules.iter().any(|rule| rule.takes_back)
    }
}

/// Without `.`, `..`, double and outer slashes.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn excluded(rules: &str, path: &str) -> bool {
        Ignore::parse(rules).unwrap().excludes(path)
    }

    #[test]
    fn the_last_match_decides() {
        let rules =
            "# comment\n\n*.md\n!README.md\nREADME-secret.md\n/node_modules/\n**/*.tmp\n.git\nbuild/*\n!build/keep\n";
        for (path, expected) in [
            ("a.md", true),
            ("README.md", false),
            ("README-secret.md", true),
            ("docs/a.md", false),
            ("node_modules", true),
            ("node_modules/a/b.js", true),
            ("src/node_modules/a", false),
            ("a/b/c.tmp", true),
            (".git/config", true),
            ("./.git/config", true),
            ("build/x", true),
            ("build/keep", false),
            ("build/keep/below", false),
            ("build", false),
            ("src/main.rs", false),
        ] {
            assert_eq!(excluded(rules, path), expected, "{path}");
        }
        // A folder that is out, with something in it that is not.
        assert!(excluded("a\n!a/b", "a/c"));
        assert!(!excluded("a\n!a/b", "a/b"));
        assert!(excluded("!a/b\na", "a/b"), "the order counts");
        assert!(!excluded("*\n!*", "x"));
    }

    #[test]
    fn a_folder_is_walked_if_something_below_may_come_back() {
        assert!(Ignore::parse("a").unwrap().excludes_all_below("a"));
        assert!(!Ignore::parse("a\n!a/b").unwrap().excludes_all_below("a"));
    }

    #[test]
    fn wrong_lines_are_named() {
        assert_eq!(Ignore::parse("a\n[x").unwrap_err().line, 2);
        assert_eq!(Ignore::parse("!").unwrap_err().line, 1);
        assert!(Ignore::parse(&"a\n".repeat(5000)).is_err());
        assert_eq!(Ignore::parse("").unwrap(), Ignore::default());
        assert!(!excluded(".", "a"));
    }

    proptest! {
        #[test]
        fn any_text_is_rules_or_a_problem(text in "[!*/a.\\[\\n# -]{0,40}", path in "[a/.]{0,20}") {
            if let Ok(ignore) = Ignore::parse(&text) {
                let _ = ignore.excludes(&path);
            }
        }
    }
}
