//! The user of this dialect's sandboxes and its directory.
//!
//! Templates have other users. The dialect's own is the first ordinary one by another name: the same number, a home of
//! its own, and the right to become root, as clients expect.

use cove_protocol::process::{Command, Spec};

use crate::guest::{Guest, GuestError};
use crate::sandbox::exec::run_to_end;

pub const USER: &str = "vercel-sandbox";
pub const CWD: &str = "/vercel/sandbox";

/// Root by its number: a sandbox may have lost the name.
pub const ROOT: &str = "0";

/// `$1` is the user, `$2` the directory. Said again it changes nothing.
const MAKE: &str = r#"set -e
if ! grep -q "^$1:" /etc/passwd; then
  line="$1:*:1000:1000:$1:/home/$1:/bin/bash"
  old=$(cat /etc/passwd)
  { printf '%s\n' "$old" | sed '/^[^:]*:[^:]*:1000:/,$d'; echo "$line"
    printf '%s\n' "$old" | sed -n '/^[^:]*:[^:]*:1000:/,$p'; } > /etc/passwd
  grep -q '^[^:]*:[^:]*:1000:' /etc/group || echo "$1:*:1000:" >> /etc/group
  if [ -f /etc/sudoers ]; then echo "$1 ALL=(ALL:ALL) NOPASSWD: ALL" >> /etc/sudoers; fi
fi
mkdir -p "/home/$1" "$2"
chown 1000:1000 "/home/$1" "$2""#;

/// Makes them, in a sandbox that was just made.
pub async fn make(guest: &Guest) -> Result<(), GuestError> {
    let words = ["sh", "-c", MAKE, "sh", USER, CWD].map(str::to_owned);
    let mut spec = Spec::new(Command::Argv(words.to_vec()));
    spec.user = Some(ROOT.into());
    spec.cwd = Some("/".into());
    let output = run_to_end(guest, spec, None).await?;
    match output.exit.status() {
        0 => Ok(()),
        code => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(GuestError::Protocol(format!("making the user {USER} ended with {code}: {}", said.trim())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_comes_before_the_others_of_its_number_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let passwd = folder.path().join("passwd");
        let before = "root:*:0:0::/root:\nuser:*:1000:1000::/home/user:\nnobody:*:65534:65534:::\n";
        std::fs::write(&passwd, before).unwrap();
        // The part that writes the file, on another file.
        let script = MAKE.split("  grep -q '^[^:]*:[^:]*:1000:' /etc/group").next().unwrap().to_owned() + "fi";
        let script = script.replace("/etc/passwd", &passwd.display().to_string());
        for _ in 0..2 {
            let done = std::process::Command::new("sh").args(["-c", &script, "sh", USER, CWD]).status().unwrap();
            assert!(done.success());
        }
        let names: Vec<String> = std::fs::read_to_string(&passwd)
            .unwrap()
            .lines()
            .map(|line| line.split(':').next().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["root", USER, "user", "nobody"]);
    }
}
