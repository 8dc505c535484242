//! What a `devcontainer.json` describes, as the source of a template: a Dockerfile with what follows its image.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use cove_image::devcontainer::{Devcontainer, Feature, Origin};
use cove_image::dockerfile::Form;
use serde_json::{Value, json};

use super::context::Context;
use super::order::dockerfile_text;
use crate::client::Client;
use crate::complaint::Complaint;

/// Where the file lies, in the order in which it is looked for.
const PLACES: [&str; 2] = [".devcontainer/devcontainer.json", ".devcontainer.json"];
/// Where local features are while they are installed.
const ROOM: &str = "/tmp/.devcontainer-features";

/// The folder of the file, or the file itself, says the same.
fn file_of(folder: &Path) -> Option<PathBuf> {
    let places = PLACES.iter().map(|place| folder.join(place));
    places.chain([folder.join("devcontainer.json"), folder.to_owned()]).find(|path| path.is_file())
}

/// The top of the project that a folder with the file belongs to.
fn project_of(home: &Path) -> Result<PathBuf, Complaint> {
    let home = if home.as_os_str().is_empty() { Path::new(".") } else { home };
    let home = home.canonicalize().map_err(|error| Complaint::failed(format!("{}: {error}", home.display())))?;
    match home.parent() {
        Some(above) if home.file_name().is_some_and(|name| name == ".devcontainer") => Ok(above.to_owned()),
        _ => Ok(home),
    }
}

/// A path of the file, which must lie in the project, links followed: what it names is sent to the server, and whoever
/// wrote the file also wrote what is done with it there.
fn within(project: &Path, path: &Path) -> Result<PathBuf, Complaint> {
    let found = path.canonicalize().map_err(|error| Complaint::failed(format!("{}: {error}", path.display())))?;
    match found.starts_with(project) {
        true => Ok(found),
        false => {
            Err(Complaint::failed(format!("{} lies outside of the project {}", path.display(), project.display()))
                .hint("a devcontainer.json uses files of its own project alone: copy them there"))
        }
    }
}

/// Reads the file of a folder, sends the files that it needs, and returns the `from` of a template.
pub async fn source(client: &Client, folder: &Path) -> Result<Value, Complaint> {
    let file = file_of(folder).ok_or_else(|| {
        Complaint::failed(format!("{}: no devcontainer.json", folder.display()))
            .hint(format!("it is looked for in {} and {}", PLACES[0], PLACES[1]))
    })?;
    let wrong = |why: String| Complaint::failed(format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|error| wrong(error.to_string()))?;
    let described = Devcontainer::parse(&text).map_err(|problem| wrong(problem.to_string()))?;
    let home = file.parent().unwrap_or(folder);
    let project = project_of(home)?;
    let (mut files, mut arguments, mut wanted) = (Vec::new(), BTreeMap::new(), None);
    let mut text = match &described.origin {
        Origin::Image(image) => format!("FROM {image}\n"),
        Origin::Build { dockerfile, context, arguments: given, target } => {
            if target.is_some() && adds_something(&described) {
                return Err(wrong("build.target cannot be joined with features, commands, a user or variables".into())
                    .hint("write these into the stage of the Dockerfile"));
            }
            let dockerfile = within(&project, &home.join(dockerfile))?;
            let context = within(&project, &home.join(context))?;
            files.push(Context::of(&context, Some(&dockerfile))?.send(client).await?);
            (arguments, wanted) = (given.clone(), target.clone());
            dockerfile_text(&dockerfile)?
        }
    };
    if !described.features.is_empty() {
        files.push(Context::of(home, None)?.send(client).await?);
    }
    write(&described, &mut text).map_err(wrong)?;
    let mut source = json!({ "dockerfile": text, "files": files, "arguments": arguments });
    if let Some(target) = wanted {
        source["target"] = json!(target);
    }
    Ok(source)
}

fn user(described: &Devcontainer) -> Option<&String> {
    described.remote_user.as_ref().or(described.container_user.as_ref())
}

fn adds_something(described: &Devcontainer) -> bool {
    let nothing = described.features.is_empty()
        && described.container_env.is_empty()
        && described.remote_env.is_empty()
        && described.create_commands.is_empty()
        && user(described).is_none();
    !nothing
}

/// What follows the image, as lines of a Dockerfile.
fn write(described: &Devcontainer, text: &mut String) -> Result<(), String> {
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut line = |line: String| {
        // Writing into a string does not fail.
        let _ = writeln!(text, "{line}");
    };
    if !described.features.is_empty() {
        line("USER root".into());
    }
    for feature in &described.features {
        install(feature, &mut line)?;
    }
    for (name, value) in described.container_env.iter().chain(&described.remote_env) {
        if value.contains("${") {
            return Err(format!("{name}: variables such as {value} are not known here; write the value"));
        }
        if value.contains('\n') {
            return Err(format!("{name}: a value of one line is needed"));
        }
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$");
        line(format!("ENV {name}=\"{value}\""));
    }
    if let Some(user) = user(described) {
        line(format!("USER {user}"));
    }
    for hook in &described.create_commands {
        for command in &hook.commands {
            match &command.form {
                Form::Shell(text) if text.contains('\n') => {
                    return Err(format!("{}: a command of one line is needed; join several by &&", hook.name));
                }
                Form::Shell(text) => line(format!("RUN {text}")),
                Form::Exec(words) => line(format!("RUN {}", json!(words))),
            }
        }
    }
    Ok(())
}

fn install(feature: &Feature, line: &mut impl FnMut(String)) -> Result<(), String> {
    let folder = feature.path.trim_start_matches("./").trim_end_matches('/');
    if !folder.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./_-".contains(&byte)) {
        return Err(format!("feature {}: letters, digits, '.', '_', '-' and '/' make its path", feature.path));
    }
    // As the specification writes them: upper case, with underscores.
    let name = |option: &str| -> String {
        let kept = |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_uppercase() } else { '_' };
        option.chars().map(kept).collect()
    };
    let options: Vec<String> =
        feature.options.iter().map(|(option, value)| format!("{}={} ", name(option), quoted(value))).collect();
    line(format!("COPY {folder}/ {ROOM}/{folder}/"));
    line(format!(
        "RUN cd {ROOM}/{folder} && chmod +x install.sh && {}./install.sh && rm -rf {ROOM}/{folder}",
        options.concat()
    ));
    Ok(())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_nothing_outside_of_its_project() {
        let around = tempfile::tempdir().unwrap();
        let project = around.path().join("project");
        let home = project.join(".devcontainer");
        std::fs::create_dir_all(&home).unwrap();
        std::fs::write(around.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("..", project.join("up")).unwrap();
        // The folder of the project itself may have the file, too.
        for (home, top) in [(&home, ".."), (&project, ".")] {
            let top_of = project_of(home).unwrap();
            assert_eq!(top_of, project.canonicalize().unwrap());
            assert_eq!(within(&top_of, &home.join(top)).unwrap(), top_of);
        }
        let top = project_of(&project).unwrap();
        for outside in ["..", "up", "up/secret", ".devcontainer/../.."] {
            let refused = within(&top, &project.join(outside)).unwrap_err();
            assert!(format!("{refused:?}").contains("outside of the project"), "{outside}: {refused:?}");
        }
        assert!(within(&top, &project.join("nowhere")).is_err());
    }

    fn written(text: &str) -> Result<String, String> {
        let mut written = String::from("FROM x");
        write(&Devcontainer::parse(text).unwrap(), &mut written).map(|()| written)
    }

    #[test]
    fn the_file_is_found_from_its_project_its_folder_and_itself() {
        let project = tempfile::tempdir().unwrap();
        let (folder, file) = (project.path().join(".devcontainer"), project.path().join(PLACES[0]));
        assert_eq!(file_of(project.path()), None);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "{}").unwrap();
        for place in [project.path(), &folder, &file] {
            assert_eq!(file_of(place).as_ref(), Some(&file), "{}", place.display());
        }
    }

    #[test]
    fn what_follows_the_image_is_lines_of_a_dockerfile() {
        let text = r#"{
            // the image
            "image": "debian:12",
            "containerEnv": { "PRICE": "5$ \"net\"", },
            "remoteUser": "ada",
            "postCreateCommand": ["echo", "it's"],
        }"#;
        let expected = "FROM x\nENV PRICE=\"5\\$ \\\"net\\\"\"\nUSER ada\nRUN [\"echo\",\"it's\"]\n";
        assert_eq!(written(text).unwrap(), expected);
    }

    #[test]
    fn local_features_are_installed_by_root_before_the_commands() {
        let text = r#"{ "image": "a", "features": { "./tool": { "version": "1", "with-docs": true } },
            "onCreateCommand": "make deps" }"#;
        let written = written(text).unwrap();
        let at = |part: &str| written.find(part).unwrap_or_else(|| panic!("{part} is not in {written}"));
        assert!(at("USER root") < at("COPY tool/ /tmp/.devcontainer-features/tool/"));
        assert!(at("VERSION='1' WITH_DOCS='true' ./install.sh") < at("RUN make deps"));
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let env = r#"{ "image": "a", "containerEnv": { "A": "${localEnv:HOME}" } }"#;
        assert!(written(env).unwrap_err().contains("A: variables"));
        let lines = r#"{ "image": "a", "postCreateCommand": "a\nb" }"#;
        assert!(written(lines).unwrap_err().contains("postCreateCommand"));
    }
}
