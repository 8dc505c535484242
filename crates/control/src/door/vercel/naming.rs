//! What sandboxes, sessions and commands are called here.
//!
//! A session is `sbx_`, the sandbox's id and the moment of its start in milliseconds: it needs no row of its own, and
//! whether it is the present one is seen by comparing.

use cove_protocol::SandboxId;

use crate::sandbox::Sandbox;

const SESSION: &str = "sbx_";
const COMMAND: &str = "cmd_";

/// The name of a sandbox: its own, or its id.
pub fn name_of(sandbox: &Sandbox) -> String {
    sandbox.name.clone().unwrap_or_else(|| sandbox.id.to_string())
}

/// When the present or last session began.
pub fn begun(sandbox: &Sandbox) -> i64 {
    sandbox.started_at.unwrap_or(sandbox.created_at).as_millisecond()
}

/// The present session, or the last one.
pub fn session_of(sandbox: &Sandbox) -> String {
    format!("{SESSION}{}{}", sandbox.id, begun(sandbox))
}

/// The id of the sandbox that a session is of.
pub fn sandbox_of(session: &str) -> Option<&str> {
    let rest = session.strip_prefix(SESSION)?;
    let (id, begun) = rest.split_at_checked(SandboxId::LENGTH)?;
    let is_moment = !begun.is_empty() && begun.bytes().all(|byte| byte.is_ascii_digit());
    (is_moment && id.parse::<SandboxId>().is_ok()).then_some(id)
}

pub fn new_command() -> String {
    format!("{COMMAND}{}", crate::random::hex(12))
}

/// The tag of a command's process. `None` for what can be no command's name.
pub fn tag_of(command: &str) -> Option<String> {
    let rest = command.strip_prefix(COMMAND)?;
    let fits = !rest.is_empty() && rest.len() <= 64 && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
    fits.then(|| format!("vercel:{command}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_names_its_sandbox() {
        let id = "abcdefghij0123456789";
        assert_eq!(sandbox_of(&format!("sbx_{id}1700000000000")), Some(id));
        for wrong in
            ["", "sbx_", "sbx_abc", &format!("sbx_{id}"), &format!("sbx_{id}x"), id, "sbx_é".repeat(9).as_str()]
        {
            assert_eq!(sandbox_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_command_is_letters_and_digits() {
        assert!(tag_of(&new_command()).is_some());
        for wrong in ["", "cmd_", "cmd_a/b", "x"] {
            assert_eq!(tag_of(wrong), None, "{wrong}");
        }
    }
}
