//! `devcontainer.json`: what a repository says about the machine it wants to be worked on in.
//!
//! JSON with comments and commas at the end of lists. Read: the image or the Dockerfile, the variables, the user, and what is
//! run once the sandbox is there. Features are refused by name if they come from elsewhere: they are programs of strangers
//! that run as root, and a repository that counts on one would not work without it. What only an editor cares about is
//! passed over.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

/// The largest file.
const LARGEST: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("devcontainer.json: {0}")]
pub struct Problem(String);

/// What a repository asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Devcontainer {
    pub name: Option<String>,
    pub origin: Origin,
    /// Variables of every process.
    pub container_env: BTreeMap<String, String>,
    /// Variables of what a person or an agent runs.
    pub remote_env: BTreeMap<String, String>,
    /// Who that runs as.
    pub remote_user: Option<String>,
    pub container_user: Option<String>,
    pub workspace_folder: Option<String>,
    pub forward_ports: Vec<u16>,
    /// In the order they are run in: `onCreateCommand`, `updateContentCommand`, `postCreateCommand`.
    pub create_commands: Vec<Hook>,
    /// `postStartCommand`: with every start.
    pub start_commands: Vec<Hook>,
    /// Folders of the repository with an `install.sh`, and their options.
    pub features: Vec<Feature>,
}

/// What the machine is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    Image(String),
    /// Paths are relative to the folder of the `devcontainer.json`.
    Build {
        dockerfile: String,
        context: String,
        arguments: BTreeMap<String, String>,
        target: Option<String>,
    },
}

/// One moment's commands: those of an object run at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hook {
    /// As the file calls it.
    pub name: &'static str,
    pub commands: Vec<Command>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The key, where an object has several.
    pub label: Option<String>,
    pub form: crate::dockerfile::Form,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feature {
    /// `./folder`.
    pub path: String,
    pub options: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    name: Option<String>,
    image: Option<String>,
    build: Option<RawBuild>,
    // The older form of `build.dockerfile` and `build.context`.
    docker_file: Option<String>,
    context: Option<String>,
    docker_compose_file: Option<Value>,
    container_env: BTreeMap<String, Value>,
    remote_env: BTreeMap<String, Value>,
    remote_user: Option<String>,
    container_user: Option<String>,
    workspace_folder: Option<String>,
    forward_ports: Vec<Value>,
    on_create_command: Option<Value>,
    update_content_command: Option<Value>,
    post_create_command: Option<Value>,
    post_start_command: Option<Value>,
    features: BTreeMap<String, Value>,
    privileged: Option<bool>,
    run_args: Vec<Value>,
    mounts: Vec<Value>,
    cap_add: Vec<Value>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawBuild {
    dockerfile: Option<String>,
    context: Option<String>,
    args: BTreeMap<String, Value>,
    target: Option<String>,
}

impl Devcontainer {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        if text.len() > LARGEST {
            return Err(wrong(format!("it has {} bytes; {LARGEST} are allowed", text.len())));
        }
        let text = plain(text)?;
        // serde would take a list for the fields in their order.
        if text.trim_start().starts_with('[') {
            return Err(wrong("it is a list, not an object"));
        }
        let raw: Raw = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        // What would open the walls, or be missed if it were left out.
        for (is_there, what, remedy) in [
            (raw.docker_compose_file.is_some(), "dockerComposeFile", "use image or build"),
            (raw.privileged == Some(true), "privileged", "leave it out: a sandbox keeps its walls"),
            (!raw.run_args.is_empty(), "runArgs", "leave them out: they are options of another program"),
            (!raw.mounts.is_empty(), "mounts", "use a volume"),
            (!raw.cap_add.is_empty(), "capAdd", "leave it out: a sandbox keeps its walls"),
        ] {
            if is_there {
                return Err(wrong(format!("{what} is not supported here; {remedy}")));
            }
        }
        let hook = |name, value: &Option<Value>| hook(name, value.as_ref());
        let mut create_commands = Vec::new();
        create_commands.extend(hook("onCreateCommand", &raw.on_create_command)?);
        create_commands.extend(hook("updateContentCommand", &raw.update_content_command)?);
        create_commands.extend(hook("postCreateCommand", &raw.post_create_command)?);
        Ok(Devcontainer {
            origin: origin(&raw)?,
            container_env: texts("containerEnv", &raw.container_env)?,
            remote_env: texts("remoteEnv", &raw.remote_env)?,
            create_commands,
            start_commands: hook("postStartCommand", &raw.post_start_command)?.into_iter().collect(),
            features: features(&raw.features)?,
            forward_ports: raw.forward_ports.iter().map(port).collect::<Result<_, _>>()?,
            name: raw.name,
            remote_user: raw.remote_user,
            container_user: raw.container_user,
            workspace_folder: raw.workspace_folder,
        })
    }
}

fn wrong(why: impl Into<String>) -> Problem {
    Problem(why.into())
}

fn origin(raw: &Raw) -> Result<Origin, Problem> {
    let empty = RawBuild::default();
    let build = raw.build.as_ref().unwrap_or(&empty);
    let dockerfile = build.dockerfile.as_ref().or(raw.docker_file.as_ref());
    match (&raw.image, dockerfile) {
        (Some(_), Some(_)) => Err(wrong("it has an image and a Dockerfile; keep one of them")),
        (Some(image), None) => Ok(Origin::Image(image.clone())),
        (None, Some(dockerfile)) => {
            let context = build.context.as_ref().or(raw.context.as_ref());
            Ok(Origin::Build {
                dockerfile: relative("the Dockerfile", dockerfile)?,
                context: relative("the context", context.map_or(".", String::as_str))?,
                arguments: texts("build.args", &build.args)?,
                target: build.target.clone(),
            })
        }
        (None, None) => {
            Err(wrong("it names neither an image nor a Dockerfile; add \"image\" or \"build\": {\"dockerfile\": …}"))
        }
    }
}

/// Relative to the file's folder. It may lead up once, to the repository's top, and the caller resolves it beneath that.
fn relative(what: &str, path: &str) -> Result<String, Problem> {
    let is_odd = path.is_empty() || path.starts_with('/') || path.contains(['\0', '\\']);
    match is_odd || path.split('/').filter(|part| *part == "..").count() > 1 {
        true => Err(wrong(format!("{what} {path:?} does not lie in the repository"))),
        false => Ok(path.to_owned()),
    }
}

fn texts(what: &str, values: &BTreeMap<String, Value>) -> Result<BTreeMap<String, String>, Problem> {
    let text = |value: &Value| match value {
        Value::String(text) if !text.contains('\0') => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(truth) => Some(truth.to_string()),
        _ => None,
    };
    let pairs = values.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(wrong(format!("{what}: {name:?} is no name")));
        }
        let value = text(value).ok_or_else(|| wrong(format!("{what}.{name} is no text")))?;
        Ok((name.clone(), value))
    });
    pairs.collect()
}

fn port(value: &Value) -> Result<u16, Problem> {
    let number = match value {
        Value::Number(number) => number.as_u64().and_then(|number| u16::try_from(number).ok()),
        // `host:port`
        Value::String(text) => text.rsplit(':').next().and_then(|digits| digits.parse().ok()),
        _ => None,
    };
    number.filter(|number| *number != 0).ok_or_else(|| wrong(format!("forwardPorts: {value} is no port")))
}

fn hook(name: &'static str, value: Option<&Value>) -> Result<Option<Hook>, Problem> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let commands = match value {
        Value::Object(all) => {
            let labelled = all.iter().map(|(label, value)| command(name, Some(label), value));
            labelled.collect::<Result<Vec<_>, _>>()?
        }
        other => vec![command(name, None, other)?],
    };
    let commands: Vec<Command> = commands.into_iter().filter(|command| !is_empty(&command.form)).collect();
    Ok((!commands.is_empty()).then_some(Hook { name, commands }))
}

fn is_empty(form: &crate::dockerfile::Form) -> bool {
    match form {
        crate::dockerfile::Form::Shell(text) => text.trim().is_empty(),
        crate::dockerfile::Form::Exec(words) => words.is_empty(),
    }
}

/// A text is for a shell, a list is run by itself.
fn command(name: &str, label: Option<&str>, value: &Value) -> Result<Command, Problem> {
    use crate::dockerfile::Form;
    let odd = || wrong(format!("{name} is neither a text, a list of texts, nor an object of them"));
    let form = match value {
        Value::String(text) => Form::Shell(text.clone()),
        Value::Array(words) => Form::Exec(
            words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<_>>().ok_or_else(odd)?,
        ),
        _ => return Err(odd()),
    };
    let has_zero = match &form {
        Form::Shell(text) => text.contains('\0'),
        Form::Exec(words) => words.iter().any(|word| word.contains('\0')),
    };
    if has_zero { Err(odd()) } else { Ok(Command { label: label.map(str::to_owned), form }) }
}

fn features(all: &BTreeMap<String, Value>) -> Result<Vec<Feature>, Problem> {
    let mut found = Vec::new();
    for (path, options) in all {
        if !path.starts_with("./") {
            return Err(wrong(format!(
                "the feature {path:?} would be fetched and run as root, which is not done here; put it into the repository \
                 (./{}), or install it in a Dockerfile",
                path.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default()
            )));
        }
        let options = match options {
            // A text is the version.
            Value::String(version) => [("version".to_owned(), version.clone())].into(),
            Value::Object(options) => texts(
                &format!("features.{path}"),
                &options.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
            )?,
            _ => BTreeMap::new(),
        };
        found.push(Feature { path: relative("the feature", path)?, options });
    }
    Ok(found)
}

/// JSON without comments and without commas before a closing bracket. Positions stay as they were.
fn plain(text: &str) -> Result<String, Problem> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    // Where a comma was written that may have to go.
    let mut comma = None;
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('"', _) => {
                comma = None;
                out.push('"');
                while let Some(letter) = letters.next() {
                    out.push(letter);
                    match letter {
                        '\\' => out.extend(letters.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => while letters.next_if(|letter| *letter != '\n').is_some() {},
            ('/', Some('*')) => {
                letters.next();
                let mut before = ' ';
                loop {
                    let letter = letters.next().ok_or_else(|| wrong("a comment (/*) is not closed"))?;
                    if letter == '\n' {
                        out.push('\n');
                    }
                    if before == '*' && letter == '/' {
                        break;
                    }
                    before = letter;
                }
            }
            (',', _) => {
                comma = Some(out.len());
                out.push(',');
            }
            ('}' | ']', _) => {
                if let Some(at) = comma.take() {
                    out.replace_range(at..=at, " ");
                }
                out.push(letter);
            }
            _ => {
                if !letter.is_whitespace() {
                    comma = None;
                }
                out.push(letter);
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dockerfile::Form;

    fn parsed(text: &str) -> Devcontainer {
        Devcontainer::parse(text).unwrap_or_else(|problem| panic!("{problem}"))
    }

    #[test]
    fn a_file_with_comments_is_read() {
        let found = parsed(
            r#"// For format details, see the documentation
            {
                "name": "Rust", /* an image // of strangers */
                "image": "some.example/rust:1", // not "build"
                "containerEnv": { "A": "b, // no comment", "N": 1, "T": true, },
                "remoteUser": "vscode",
                "forwardPorts": [3000, "db:5432"],
                "customizations": {"vscode": {"extensions": ["x",]}},
                "postCreateCommand": "cargo build && echo \"done, /* yes */\"",
                "updateContentCommand": ["cargo", "fetch"],
                "onCreateCommand": {"one": "a", "two": ["b", "c"], "none": ""},
                "postStartCommand": "",
            }"#,
        );
        assert_eq!(found.origin, Origin::Image("some.example/rust:1".into()));
        assert_eq!(found.container_env["A"], "b, // no comment");
        assert_eq!((found.container_env["N"].as_str(), found.container_env["T"].as_str()), ("1", "true"));
        assert_eq!((found.remote_user.as_deref(), found.forward_ports), (Some("vscode"), vec![3000, 5432]));
        let names: Vec<_> = found.create_commands.iter().map(|hook| (hook.name, hook.commands.len())).collect();
        assert_eq!(names, [("onCreateCommand", 2), ("updateContentCommand", 1), ("postCreateCommand", 1)]);
        assert_eq!(found.create_commands[0].commands[1].form, Form::Exec(vec!["b".into(), "c".into()]));
        assert_eq!(found.create_commands[0].commands[1].label.as_deref(), Some("two"));
        assert_eq!(
            found.create_commands[2].commands[0].form,
            Form::Shell("cargo build && echo \"done, /* yes */\"".into())
        );
        assert!(found.start_commands.is_empty());
    }

    #[test]
    fn a_dockerfile_is_found_in_both_forms() {
        let build = |text| match parsed(text).origin {
            Origin::Build { dockerfile, context, arguments, target } => (dockerfile, context, arguments, target),
            other => panic!("{other:?}"),
        };
        let (dockerfile, context, arguments, target) =
            build(r#"{"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"V": "1"}, "target": "dev"}}"#);
        assert_eq!((dockerfile.as_str(), context.as_str(), target.as_deref()), ("Dockerfile", "..", Some("dev")));
        assert_eq!(arguments["V"], "1");
        assert_eq!(build(r#"{"dockerFile": "Dockerfile"}"#).1, ".");
    }

    #[test]
    fn features_of_the_repository_are_kept_and_others_refused_by_name() {
        let found = parsed(r#"{"image": "x", "features": {"./tool": {"version": "2", "fast": true}, "./other": "3"}}"#);
        assert_eq!(found.features.len(), 2);
        assert_eq!(found.features[1].options["fast"], "true");
        assert_eq!(found.features[0].options["version"], "3");
        let remote = r#"{"image": "x", "features": {"some.example/devcontainers/features/node:1": {}}}"#;
        let error = Devcontainer::parse(remote).unwrap_err().to_string();
        assert!(error.contains("some.example/devcontainers/features/node:1") && error.contains("./node"), "{error}");
        for path in ["/etc/feature", "../../x", "node", "https://some.example/x.tgz"] {
            assert!(
                Devcontainer::parse(&format!(r#"{{"image": "x", "features": {{"{path}": {{}}}}}}"#)).is_err(),
                "{path}"
            );
        }
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (text, why) in [
            ("", "EOF"),
            ("{", "EOF"),
            ("[]", "it is a list"),
            ("{}", "neither an image nor a Dockerfile"),
            ("/* open", "not closed"),
            (r#"{"image": "x", "build": {"dockerfile": "y"}}"#, "keep one of them"),
            (r#"{"dockerComposeFile": "x"}"#, "dockerComposeFile is not supported"),
            (r#"{"image": "x", "privileged": true}"#, "privileged is not supported"),
            (r#"{"image": "x", "runArgs": ["--privileged"]}"#, "runArgs is not supported"),
            (r#"{"image": "x", "mounts": ["source=/,target=/host"]}"#, "mounts is not supported"),
            (r#"{"image": "x", "capAdd": ["SYS_ADMIN"]}"#, "capAdd is not supported"),
            (r#"{"build": {"dockerfile": "/etc/passwd"}}"#, "does not lie in the repository"),
            (r#"{"build": {"dockerfile": "../../x"}}"#, "does not lie in the repository"),
            (r#"{"image": "x", "postCreateCommand": 5}"#, "neither a text"),
            (r#"{"image": "x", "postCreateCommand": [1]}"#, "neither a text"),
            (r#"{"image": "x", "containerEnv": {"A": []}}"#, "containerEnv.A is no text"),
            (r#"{"image": "x", "containerEnv": {"A=B": ""}}"#, "is no name"),
            (r#"{"image": "x", "forwardPorts": [99999]}"#, "is no port"),
            (r#"{"image": "x",, }"#, "comma"),
        ] {
            let error = Devcontainer::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(Devcontainer::parse(&" ".repeat(LARGEST + 1)).is_err());
        assert!(Devcontainer::parse(&"[".repeat(100_000)).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[{}\\[\\],:\"/*a-c\\\\\n 0-9]{0,60}") {
            let _ = Devcontainer::parse(&text);
        }

        #[test]
        fn json_without_comments_stays_as_it_is(text in "[a-z/*, ]{0,20}") {
            let value = serde_json::json!({"a": text, "b": [1, {"c": text}]});
            let plain = plain(&value.to_string()).unwrap();
            prop_assert_eq!(serde_json::from_str::<Value>(&plain).unwrap(), value);
        }
    }
}
