//! Brings our guest into a sandbox of a service, by the service's own calls.
//!
//! The guest is one static program: it needs nothing of the sandbox but a kernel. It is uploaded once for each version and
//! started beside whatever the service runs there, as root where that is to be had, so that it can be any user.

use std::time::Duration;

use bytes::Bytes;

use super::service::{Run, Service, finish};
use crate::provider::local;

/// Where it is put. `/tmp` is there in every image, and everybody may write to it.
const FOLDER: &str = "/tmp/.cove";

/// Pauses between looks at a guest that was just started.
pub const PATIENCE: [Duration; 8] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1500),
    Duration::from_millis(3000),
    Duration::from_millis(5000),
];

/// Says what the machine is, and whether this version is there already.
const LOOK: &str = r#"umask 077; mkdir -p "$1" || exit; uname -m; id -u; sudo -n true 2>/dev/null && echo sudo || echo plain
test -s "$1/$2" && echo there || echo absent"#;

/// Starts it, out of reach of whatever ends with this command. `$3` is what was uploaded, by whomever the service's daemon is.
const START: &str = r#"f="$1/$2"; test -s "$f" || { cp "$3" "$f.part" && chmod 0755 "$f.part" && mv "$f.part" "$f"; } || exit
rm -f "$3" "$1/socket"; as=; if [ "$4" = sudo ]; then as="sudo -n -E"; fi
s=; command -v setsid >/dev/null 2>&1 && s=setsid
$as $s "$f" --socket "$1/socket" --tunnel "$5" </dev/null >"$1/log" 2>&1 &
exit 0"#;

/// What the guest wants to be shown is handed to it in this.
const TOKEN: &str = "COVE_TUNNEL_TOKEN";

/// The user of commands: the one that is wanted, made where it can be.
const USER: &str = r#"id -u "$1" >/dev/null 2>&1 && exit
as=; if [ "$(id -u)" != 0 ]; then as="sudo -n"; fi
$as useradd -m -s /bin/bash "$1" 2>/dev/null || $as adduser -D "$1" 2>/dev/null"#;

/// Puts the guest in and starts it; the sentence says why that cannot be.
pub async fn guest(service: &dyn Service, name: &str, token: &str, port: u16) -> Result<(), String> {
    let program = local::guest_program();
    let file = format!("guest-{}", &checksum(program)[..12]);
    let look = run(service, name, &Run::script(LOOK, &[FOLDER, &file])).await?;
    let mut words = look.split_whitespace();
    let (machine, uid, sudo, there) = (words.next(), words.next(), words.next(), words.next());
    if machine != Some(std::env::consts::ARCH) {
        return Err(format!(
            "its machine is {}, and our guest is for {}",
            machine.unwrap_or("unknown"),
            std::env::consts::ARCH
        ));
    }
    // Beside the folder, which may be root's alone.
    let part = format!("{FOLDER}-{file}");
    if there != Some("there") {
        let sent = service.write(name, &part, Bytes::from_static(program)).await;
        sent.map_err(|trouble| format!("our guest cannot be uploaded: {trouble}"))?;
    }
    let rights = if uid != Some("0") && sudo == Some("sudo") { "sudo" } else { "plain" };
    let port = port.to_string();
    let mut start = Run::script(START, &[FOLDER, &file, &part, rights, &port]);
    start.env.insert(TOKEN.into(), token.to_owned());
    run(service, name, &start).await.map(drop)
}

/// The user that commands get: the wanted one where it is there or can be made, else the guest's own.
pub async fn user(service: &dyn Service, name: &str, wanted: &str) -> Option<String> {
    match run(service, name, &Run::script(USER, &[wanted])).await {
        Ok(_) => Some(wanted.to_owned()),
        Err(reason) => {
            tracing::info!(sandbox = name, user = wanted, reason, "the sandbox has no such user");
            None
        }
    }
}

/// What the guest complained of before it ended.
pub async fn last_words(service: &dyn Service, name: &str) -> Option<String> {
    let said = run(service, name, &Run::script(r#"tail -n 1 "$1/log""#, &[FOLDER])).await.ok()?;
    Some(said.trim().chars().filter(|letter| !letter.is_control()).take(200).collect())
        .filter(|said: &String| !said.is_empty())
}

/// As root where the service lets us, else as whom it likes.
async fn run(service: &dyn Service, name: &str, run: &Run) -> Result<String, String> {
    let as_root = Run { user: Some("root".into()), ..run.clone() };
    let no_root = |output: &super::Output| output.code != 0 && String::from_utf8_lossy(&output.err).contains("sudo");
    let output = match finish(service, name, &as_root).await {
        Ok(output) if !no_root(&output) => output,
        Ok(_) | Err(super::Trouble::Refused { .. } | super::Trouble::Unsupported(_)) => {
            finish(service, name, run).await.map_err(|trouble| trouble.to_string())?
        }
        Err(trouble) => return Err(trouble.to_string()),
    };
    match output.code {
        0 => Ok(String::from_utf8_lossy(&output.out).into_owned()),
        code => Err(format!("a command ended with {code}: {}", output.complaint())),
    }
}

/// Tells versions of the guest apart.
fn checksum(program: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(program))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn shell(script: &str, arguments: &[&str]) -> (i32, String) {
        let run = Run::script(script, arguments);
        let done = Command::new(&run.words[0]).args(&run.words[1..]).output().unwrap();
        (done.status.code().unwrap(), String::from_utf8(done.stdout).unwrap())
    }

    #[test]
    fn the_first_look_says_four_words() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep").display().to_string();
        let (code, said) = shell(LOOK, &[&path, "guest"]);
        let words: Vec<&str> = said.split_whitespace().collect();
        assert_eq!((code, words.len(), words[0], words[3]), (0, 4, std::env::consts::ARCH, "absent"), "{said}");
        std::fs::write(folder.path().join("deep/guest"), "x").unwrap();
        assert!(shell(LOOK, &[&path, "guest"]).1.ends_with("there\n"));
    }

    #[test]
    fn a_user_that_is_there_is_not_made() {
        assert_eq!(shell(USER, &["root"]).0, 0);
    }
}
