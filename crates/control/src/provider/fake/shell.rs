//! The fake guest's shell: enough commands for tests. `;` separates statements.

use std::collections::BTreeMap;

use super::files::{Files, absolute};

/// One thing a command does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deed {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Sleep(std::time::Duration),
    /// Standard input to standard output until it ends.
    CopyInput,
    Exit(i32),
}

/// The steps of a command line.
pub fn plan(line: &str, env: &BTreeMap<String, String>, cwd: &str, files: &mut Files) -> Vec<Deed> {
    let mut deeds = Vec::new();
    for statement in line.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let words: Vec<&str> = statement.split_whitespace().collect();
        match words.as_slice() {
            ["echo", rest @ ..] => {
                let (rest, to_error) = match rest {
                    [rest @ .., ">&2"] => (rest, true),
                    rest => (rest, false),
                };
                match rest {
                    [text @ .., ">", path] => {
                        let content = format!("{}\n", unquote(text)).into_bytes();
                        if let Err(failure) = files.write(&absolute(path), content, Default::default(), None, true) {
                            deeds.push(Deed::Stderr(format!("{failure}\n").into_bytes()));
                        }
                    }
                    text => {
                        let bytes = format!("{}\n", unquote(text)).into_bytes();
                        deeds.push(if to_error { Deed::Stderr(bytes) } else { Deed::Stdout(bytes) });
                    }
                }
            }
            ["cat"] => deeds.push(Deed::CopyInput),
            ["cat", path] => match files.read(&absolute(path)) {
                Ok(content) => deeds.push(Deed::Stdout(content)),
                Err(failure) => {
                    deeds.push(Deed::Stderr(format!("cat: {failure}\n").into_bytes()));
                    deeds.push(Deed::Exit(1));
                    return deeds;
                }
            },
            ["pwd"] => deeds.push(Deed::Stdout(format!("{cwd}\n").into_bytes())),
            ["printenv", name] => {
                deeds.push(Deed::Stdout(format!("{}\n", env.get(*name).cloned().unwrap_or_default()).into_bytes()));
            }
            ["sleep", seconds] => {
                let seconds = seconds.parse::<f64>().unwrap_or(0.0).clamp(0.0, 1e6);
                deeds.push(Deed::Sleep(std::time::Duration::from_secs_f64(seconds)));
            }
            ["true"] => {}
            ["false"] => {
                deeds.push(Deed::Exit(1));
                return deeds;
            }
            ["exit", code] => {
                deeds.push(Deed::Exit(code.parse().unwrap_or(2)));
                return deeds;
            }
            [word, ..] => {
                deeds.push(Deed::Stderr(format!("{word}: command not found\n").into_bytes()));
                deeds.push(Deed::Exit(127));
                return deeds;
            }
            [] => {}
        }
    }
    deeds.push(Deed::Exit(0));
    deeds
}

fn unquote(words: &[&str]) -> String {
    words.join(" ").replace(['\'', '"'], "")
}
