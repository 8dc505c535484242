//! Secrets of a build: there for one command, in memory of the sandbox, and in no layer.
//!
//! The file lies in `/dev/shm`, which is memory and no part of what is captured; where the command looks for it is a
//! symbolic link, removed before the capture. A link that cannot be removed ends the build.

use cove_protocol::file::WriteMode;
use cove_protocol::{FailureKind, Request};

use super::execute::{Variables, owner_of};
use super::people;
use super::plan::Run;
use super::request::Confidential;
use super::workshop::Workshop;
use crate::guest::GuestError;
use crate::{Error, random};

const MEMORY: &str = "/dev/shm";
const USUAL: &str = "/run/secrets";

/// A secret as a log may show it: whole, and where it is a URL, its user and password alone, as they are written in it and
/// as they are meant.
pub fn pieces(secret: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = vec![secret.to_vec()];
    for word in String::from_utf8_lossy(secret).split_whitespace() {
        let Some((_, rest)) = word.split_once("://") else { continue };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let Some((who, _)) = authority.rsplit_once('@') else { continue };
        let password = who.split_once(':').map_or(who, |(_, password)| password);
        for piece in [who, password] {
            pieces.push(piece.as_bytes().to_vec());
            pieces.push(percent_encoding::percent_decode_str(piece).collect());
        }
    }
    pieces
}

/// What was laid out for one command.
pub struct Secrets {
    /// The directory in memory.
    folder: Option<String>,
    links: Vec<String>,
    variables: Variables,
}

impl Secrets {
    pub async fn lay_out(
        workshop: &Workshop,
        run: &Run,
        confidential: &Confidential,
        user: &str,
    ) -> Result<Secrets, Error> {
        let mut secrets = Secrets { folder: None, links: Vec::new(), variables: Variables::new() };
        for mount in &run.secrets {
            let Some(value) = confidential.secrets.get(&mount.name) else {
                if mount.required {
                    return Err(Error::invalid("run", format!("the secret {:?} was not given", mount.name)));
                }
                continue;
            };
            if let Some(variable) = &mount.variable {
                let text = String::from_utf8(value.clone())
                    .map_err(|_| Error::invalid("run", format!("the secret {:?} is no text", mount.name)))?;
                secrets.variables.insert(variable.clone(), text);
                if mount.path.is_none() {
                    continue;
                }
            }
            let path = mount.path.clone().unwrap_or_else(|| format!("{USUAL}/{}", mount.name));
            let laid = secrets.lay(workshop, &mount.name, value, &path, user).await;
            if let Err(error) = laid {
                secrets.take_away(workshop).await?;
                return Err(error);
            }
        }
        Ok(secrets)
    }

    async fn lay(
        &mut self,
        workshop: &Workshop,
        name: &str,
        value: &[u8],
        path: &str,
        user: &str,
    ) -> Result<(), Error> {
        let folder = self.folder.get_or_insert_with(|| format!("{MEMORY}/.cove-{}", random::hex(8))).clone();
        let file = format!("{folder}/{name}");
        people::write(workshop, &file, value, WriteMode::Create, 0o400).await?;
        let (uid, gid) = owner_of(workshop, user).await?;
        people::set_owner(workshop, &folder, uid, gid).await?;
        people::set_owner(workshop, &file, uid, gid).await?;
        if let Some((parent, _)) = path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
            people::make_directory(workshop, parent).await?;
        }
        let link = Request::Symlink { path: path.into(), target: file, user: Some("root".into()) };
        workshop.guest().call(&link).await?;
        self.links.push(path.to_owned());
        Ok(())
    }

    pub fn variables(&self) -> Variables {
        self.variables.clone()
    }

    /// Nothing of them is left when this returns.
    pub async fn take_away(&self, workshop: &Workshop) -> Result<(), Error> {
        for path in self.links.iter().chain(&self.folder) {
            let remove = Request::Remove { path: path.clone(), user: Some("root".into()), recursive: true };
            match workshop.guest().call(&remove).await {
                Ok(_) => {}
                Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_a_url_is_a_secret_of_its_own() {
        let of = |secret: &str| -> Vec<String> {
            pieces(secret.as_bytes()).into_iter().map(|piece| String::from_utf8(piece).unwrap()).collect()
        };
        let found = of("https://ada:p%40ss@index.example/simple");
        for piece in ["https://ada:p%40ss@index.example/simple", "ada:p%40ss", "p%40ss", "p@ss"] {
            assert!(found.iter().any(|one| one == piece), "{piece}: {found:?}");
        }
        // A token may stand in the place of the user.
        assert!(of("http://token@h/").contains(&"token".to_owned()));
        assert_eq!(of("hunter2"), ["hunter2"]);
        assert_eq!(of("https://h/a@b"), ["https://h/a@b"]);
    }
}
