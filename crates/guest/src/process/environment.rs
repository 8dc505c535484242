//! The environment, arguments and directory a process starts with.

use std::collections::BTreeMap;
use std::ffi::CString;

use cove_protocol::Failure;
use cove_protocol::process::{Command, LANG, PATH, Stdio};
use rustix::fs::{Access, access};

use crate::failure::{Result, invalid};
use crate::users::User;

/// The user's default variables, then the sandbox's, then the process's.
pub fn compose(
    user: &User,
    stdio: Stdio,
    sandbox: &BTreeMap<String, String>,
    own: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>> {
    let mut environment = BTreeMap::from([
        ("HOME".to_owned(), user.home.clone()),
        ("USER".to_owned(), user.name.clone()),
        ("LOGNAME".to_owned(), user.name.clone()),
        ("SHELL".to_owned(), user.shell.clone()),
        ("LANG".to_owned(), LANG.to_owned()),
        ("PATH".to_owned(), PATH.to_owned()),
    ]);
    if let Stdio::Terminal(_) = stdio {
        environment.insert("TERM".to_owned(), "xterm-256color".to_owned());
    }
    for (name, value) in sandbox.iter().chain(own) {
        if name.is_empty() || name.contains('=') {
            return Err(invalid(format!(
                "environment variable {name:?}: a name must not be empty nor hold an equals sign"
            )));
        }
        environment.insert(name.clone(), value.clone());
    }
    let home = environment.get("HOME").cloned().unwrap_or_default();
    if let Some(path) = environment.get_mut("PATH").filter(|path| path.starts_with("~/") || path.contains(":~/")) {
        *path = at_home(path, &home);
    }
    Ok(environment)
}

/// The path with the home for each `~` that begins an entry, as a shell would have put it.
fn at_home(path: &str, home: &str) -> String {
    let home = home.trim_end_matches('/');
    let entries = path.split(':').map(|entry| match entry.strip_prefix("~/") {
        Some(rest) => format!("{home}/{rest}"),
        None => entry.to_owned(),
    });
    entries.collect::<Vec<_>>().join(":")
}

pub fn encode(environment: &BTreeMap<String, String>) -> Result<Vec<CString>> {
    environment.iter().map(|(name, value)| terminated("environment variable", format!("{name}={value}"))).collect()
}

/// What to run: the arguments, and the candidate paths of the program.
pub struct Words {
    pub arguments: Vec<CString>,
    pub candidates: Vec<CString>,
    /// For messages.
    pub program: String,
}

pub fn words(command: &Command, environment: &BTreeMap<String, String>) -> Result<Words> {
    let arguments = match command {
        Command::Argv(arguments) => arguments.clone(),
        Command::Shell(line) => shell(line),
    };
    let Some(program) = arguments.first().filter(|program| !program.is_empty()).cloned() else {
        return Err(invalid("command is empty: name a program"));
    };
    let candidates = if program.contains('/') {
        vec![terminated("program", program.clone())?]
    } else {
        let path = environment.get("PATH").map_or("/usr/bin:/bin", String::as_str);
        path.split(':')
            .map(|directory| if directory.is_empty() { "." } else { directory })
            .map(|directory| terminated("program", format!("{directory}/{program}")))
            .collect::<Result<_>>()?
    };
    let arguments = arguments.into_iter().map(|word| terminated("argument", word)).collect::<Result<_>>()?;
    Ok(Words { arguments, candidates, program })
}

fn shell(line: &str) -> Vec<String> {
    if access("/bin/bash", Access::EXEC_OK).is_ok() {
        ["/bin/bash", "-l", "-c", line].map(str::to_owned).to_vec()
    } else {
        ["/bin/sh", "-c", line].map(str::to_owned).to_vec()
    }
}

/// Where it starts: the requested directory alone; otherwise the sandbox's default, the home, or the root.
pub fn directories(user: &User, asked: Option<&str>, default: Option<&str>) -> Result<Vec<CString>> {
    let paths = match asked.or(default) {
        Some(path) => vec![user.absolute(path)],
        None => vec![user.home.clone(), "/".to_owned()],
    };
    paths.into_iter().map(|path| terminated("working directory", path)).collect()
}

fn terminated(what: &str, text: String) -> std::result::Result<CString, Failure> {
    CString::new(text).map_err(|error| {
        let shown = String::from_utf8_lossy(&error.into_vec()).replace('\0', "\\0");
        invalid(format!("{what} {shown:?} holds a zero byte"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user() -> User {
        User {
            name: "user".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/user".into(),
            shell: "/bin/bash".into(),
        }
    }

    #[test]
    fn the_process_wins_over_the_sandbox_and_the_sandbox_over_the_user() {
        let sandbox = BTreeMap::from([("HOME".into(), "/sandbox".into()), ("A".into(), "sandbox".into())]);
        let own = BTreeMap::from([("A".into(), "own".into())]);
        let environment = compose(&user(), Stdio::Closed, &sandbox, &own).unwrap();
        assert_eq!(environment["HOME"], "/sandbox");
        assert_eq!(environment["A"], "own");
        assert_eq!(environment["USER"], "user");
        assert_eq!(environment["LANG"], "C.UTF-8");
        assert!(
            environment["PATH"].starts_with("/sandbox/.local/bin:/opt/cove/shims:/usr/local/sbin:"),
            "{environment:?}"
        );
        assert!(!environment.contains_key("TERM"));
    }

    #[test]
    fn names_and_words_that_cannot_be_passed_on_are_refused() {
        let bad = BTreeMap::from([("A=B".into(), String::new())]);
        assert!(compose(&user(), Stdio::Closed, &bad, &BTreeMap::new()).is_err());
        assert!(encode(&BTreeMap::from([("A".into(), "\0".into())])).is_err());
        assert!(words(&Command::Argv(vec![]), &BTreeMap::new()).is_err());
        assert!(words(&Command::Argv(vec!["a\0b".into()]), &BTreeMap::new()).is_err());
    }

    #[test]
    fn a_bare_name_is_looked_for_along_the_path_and_a_path_is_taken_as_it_is() {
        let environment = BTreeMap::from([("PATH".into(), "/a::/b".into())]);
        let found = words(&Command::Argv(vec!["ls".into()]), &environment).unwrap();
        assert_eq!(found.candidates, [c"/a/ls".to_owned(), c"./ls".to_owned(), c"/b/ls".to_owned()]);
        let found = words(&Command::Argv(vec!["./ls".into()]), &environment).unwrap();
        assert_eq!(found.candidates, [c"./ls".to_owned()]);
    }

    #[test]
    fn a_directory_that_was_asked_for_has_no_fallback() {
        assert_eq!(directories(&user(), Some("work"), None).unwrap(), [c"/home/user/work".to_owned()]);
        assert_eq!(directories(&user(), Some("~/x"), Some("/d")).unwrap(), [c"/home/user/x".to_owned()]);
        assert_eq!(directories(&user(), None, Some("/d")).unwrap(), [c"/d".to_owned()]);
        assert_eq!(directories(&user(), None, None).unwrap(), [c"/home/user".to_owned(), c"/".to_owned()]);
    }
}
