//! `RUN --mount`: secrets are supported, caches are ordinary directories, the rest is refused by name.

use super::Problem;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mount {
    Secret(Secret),
    /// Nothing is mounted: the directory is the image's own, and its content stays in it. Whoever runs the build says so in
    /// the log.
    Cache {
        target: String,
    },
}

/// A file, or a variable, that the command sees and the image does not keep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    pub id: String,
    /// Where the file is; `None` if only a variable is wanted.
    pub target: Option<String>,
    /// The variable that holds it.
    pub env: Option<String>,
    pub is_required: bool,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
}

pub(super) fn parse(text: &str, line: usize) -> Result<Mount, Problem> {
    let wrong = |why: String| Problem::new(line, format!("RUN --mount: {why}"));
    let fields: Vec<(String, Option<&str>)> = text
        .split(',')
        .map(|field| match field.split_once('=') {
            Some((key, value)) => (key.trim().to_ascii_lowercase(), Some(value.trim())),
            None => (field.trim().to_ascii_lowercase(), None),
        })
        .collect();
    let field = |names: &[&str]| {
        fields
            .iter()
            .find(|(key, _)| names.contains(&key.as_str()))
            .map(|(_, value)| value.unwrap_or_default().to_owned())
    };
    let known = |allowed: &[&str]| match fields.iter().find(|(key, _)| !allowed.contains(&key.as_str())) {
        Some((key, _)) => {
            Err(wrong(format!("{:?} is unknown here", key.chars().take(40).collect::<String>())).remedy("leave it out"))
        }
        None => Ok(()),
    };
    match field(&["type"]).as_deref() {
        Some("secret") => {
            known(&["type", "id", "target", "dst", "destination", "env", "required", "mode", "uid", "gid"])?;
            secret(&field, line)
        }
        Some("cache") => {
            known(&["type", "id", "target", "dst", "destination", "sharing", "mode", "uid", "gid", "readonly", "ro"])?;
            let target = field(&["target", "dst", "destination"]).filter(|target| target.starts_with('/'));
            let remedy = "write --mount=type=cache,target=/DIRECTORY";
            let target = target.ok_or_else(|| wrong("a cache needs an absolute target".into()).remedy(remedy))?;
            Ok(Mount::Cache { target })
        }
        None | Some("bind") => {
            Err(wrong("bind mounts are not supported by this builder".into()).remedy("COPY the files before the RUN"))
        }
        Some("ssh") => {
            Err(wrong("ssh mounts are not supported by this builder".into())
                .remedy("use a secret with a key or a token"))
        }
        Some("tmpfs") => Err(wrong("tmpfs mounts are not supported by this builder".into())
            .remedy("delete the files at the end of the RUN")),
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            Err(wrong(format!("the type {shown:?} is unknown")).remedy("secret and cache are known"))
        }
    }
}

fn secret(field: &impl Fn(&[&str]) -> Option<String>, line: usize) -> Result<Mount, Problem> {
    let wrong = |why: &str| Problem::new(line, format!("RUN --mount: {why}"));
    let target = field(&["target", "dst", "destination"]);
    let env = field(&["env"]);
    let last = |path: &String| path.rsplit('/').next().map(str::to_owned).filter(|name| !name.is_empty());
    let id = field(&["id"]).or_else(|| target.as_ref().and_then(last)).filter(|id| !id.is_empty());
    let id = id.ok_or_else(|| wrong("a secret needs an id").remedy("write --mount=type=secret,id=NAME"))?;
    let is_good = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if !id.chars().all(is_good) || id.len() > 128 || matches!(id.as_str(), "." | "..") {
        return Err(wrong("a secret's id has letters, digits, _, - and ."));
    }
    if target.as_ref().is_some_and(|target| target.ends_with('/') || target.split('/').any(|part| part == "..")) {
        return Err(wrong("a secret's target is a file"));
    }
    let target = match (target, &env) {
        (Some(target), _) if target.starts_with('/') => Some(target),
        (Some(target), _) => Some(format!("/run/secrets/{target}")),
        (None, None) => Some(format!("/run/secrets/{id}")),
        (None, Some(_)) => None,
    };
    let number = |names: &[&str], radix, otherwise| match field(names) {
        None => Ok(otherwise),
        Some(text) => u32::from_str_radix(&text, radix).map_err(|_| wrong("mode, uid and gid are numbers")),
    };
    let is_required = match field(&["required"]).as_deref() {
        None | Some("false" | "0") => false,
        Some("" | "true" | "1") => true,
        Some(_) => return Err(wrong("required is true or false")),
    };
    let (mode, user, group) =
        (number(&["mode"], 8, 0o400)? & 0o777, number(&["uid"], 10, 0)?, number(&["gid"], 10, 0)?);
    Ok(Mount::Secret(Secret { id, target, env, is_required, mode, user, group }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match parse(text, 3) {
            Ok(Mount::Secret(secret)) => {
                format!(
                    "{} at {:?} as {:?} {:o} {}",
                    secret.id, secret.target, secret.env, secret.mode, secret.is_required
                )
            }
            Ok(Mount::Cache { target }) => format!("cache {target}"),
            Err(problem) => problem.to_string(),
        }
    }

    #[test]
    fn secrets_are_read_and_the_rest_is_refused_by_name() {
        assert_eq!(shown("type=secret,id=npm"), "npm at Some(\"/run/secrets/npm\") as None 400 false");
        let npm = shown("type=secret,target=/root/.npmrc,required,mode=0440");
        assert_eq!(npm, ".npmrc at Some(\"/root/.npmrc\") as None 440 true");
        assert_eq!(shown("type=secret,id=t,env=TOKEN"), "t at None as Some(\"TOKEN\") 400 false");
        assert_eq!(shown("type=cache,target=/root/.cache"), "cache /root/.cache");
        for (text, why) in [
            ("type=bind,source=.,target=/x", "bind mounts are not supported by this builder; COPY"),
            ("target=/x", "bind mounts"),
            ("type=ssh", "ssh mounts"),
            ("type=tmpfs,target=/x", "tmpfs mounts"),
            ("type=magic", "\"magic\" is unknown"),
            ("type=secret", "needs an id"),
            ("type=secret,id=../x", "letters, digits"),
            ("type=secret,id=x,target=/a/../b", "is a file"),
            ("type=secret,id=x,colour=red", "\"colour\" is unknown here"),
            ("type=cache", "absolute target"),
        ] {
            assert!(shown(text).contains(why), "{text}: {}", shown(text));
            assert!(shown(text).starts_with("Dockerfile line 3: "));
        }
    }
}
