//! TypeScript in a template that has node and no compiler: types are taken off on the host.
//!
//! SDKs before 0.171 have no call for a program's text. They put it into a command line of their own, which decodes it and
//! fetches a compiler from the internet. That line is recognised, and runs what is left without the types instead.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Machine;

/// Before the program's text in base64.
const OPENING: &str = "sh -c 'echo ";
/// Between the text and its arguments.
const COMPILER: &str = " | base64 --decode | npx ts-node -O \"{\\\"module\\\":\\\"CommonJS\\\"}\" -e \"$(cat)\" x ";
/// After the arguments.
const CLOSING: &str = " 2>&1 | grep -vE \"npm notice\"'";

/// Around the line, where Python's SDK sends it: variables, then the line itself in base64.
const WRAPPING: &str = "sh -c \"";
const WRAPPED: &str = "echo '";
const UNWRAPPING: &str = "' | base64 -d | sh\"";

/// The command line of an old SDK that runs TypeScript.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    code: String,
    /// As the line has them, to be read by the same shell.
    arguments: String,
    /// What stands before the line in its wrapping; `None` without one.
    exports: Option<String>,
}

impl Command {
    pub fn of(line: &str) -> Option<Self> {
        let wrapped = line.trim().strip_prefix(WRAPPING).and_then(|rest| rest.strip_suffix(UNWRAPPING));
        let Some(wrapped) = wrapped else { return Self::plain(line) };
        let (exports, text) = wrapped.rsplit_once(WRAPPED)?;
        let command = Self::plain(&decoded(text)?)?;
        Some(Command { exports: Some(exports.to_owned()), ..command })
    }

    fn plain(line: &str) -> Option<Self> {
        let (text, rest) = line.trim().strip_prefix(OPENING)?.split_once(COMPILER)?;
        let arguments = rest.strip_suffix(CLOSING)?.to_owned();
        Some(Command { code: decoded(text)?, arguments, exports: None })
    }

    /// The same for node alone, or what is wrong with the text.
    pub async fn without_compiler<F>(self, strip: impl FnOnce(String) -> F) -> Result<String, String>
    where
        F: Future<Output = Result<String, String>>,
    {
        let code = strip(self.code).await?;
        let module = if is_module(&code) { "--input-type=module " } else { "" };
        let text = STANDARD.encode(&code);
        let line = format!("{OPENING}{text} | base64 -d | node {module}- {} 2>&1'", self.arguments);
        Ok(match self.exports {
            Some(exports) => format!("{WRAPPING}{exports}{WRAPPED}{}{UNWRAPPING}", STANDARD.encode(line)),
            None => line,
        })
    }
}

fn decoded(text: &str) -> Option<String> {
    String::from_utf8(STANDARD.decode(text).ok()?).ok()
}

/// JavaScript, or the message that node itself would have.
pub async fn without_types(machine: &Machine, code: String) -> Result<String, String> {
    let stripped = machine.app.interpreter().typescript().strip(&machine.sandbox.organisation, &code).await;
    stripped.map_err(|said| format!("SyntaxError: {said}\n"))
}

/// Whether what was written with `import` must be run as a module.
pub fn is_module(code: &str) -> bool {
    code.lines().any(|line| line.starts_with("import ") || line.starts_with("export "))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In the test's own process: its program is no worker.
    async fn here(code: String) -> Result<String, String> {
        crate::interpreter::typescript::strip_here(&code).map_err(|said| format!("SyntaxError: {said}\n"))
    }

    fn line(code: &str, arguments: &str) -> String {
        let text = STANDARD.encode(code);
        format!(
            " sh -c 'echo {text} | base64 --decode | npx ts-node -O \"{{\\\"module\\\":\\\"CommonJS\\\"}}\" \
             -e \"$(cat)\" x {arguments} 2>&1 | grep -vE \"npm notice\"' "
        )
    }

    #[tokio::test]
    async fn an_old_sdks_line_runs_without_a_compiler() {
        let line = line("const n: number = 1; console.log(n)", "a b");
        let command = Command::of(&line).unwrap();
        assert_eq!(command.arguments, "a b");
        let ran = command.without_compiler(here).await.unwrap();
        let (text, rest) = ran.strip_prefix(OPENING).unwrap().split_once(" | ").unwrap();
        let code = String::from_utf8(STANDARD.decode(text).unwrap()).unwrap();
        assert!(code.contains("const n = 1"), "{code}");
        assert_eq!(rest, "base64 -d | node - a b 2>&1'");
    }

    #[tokio::test]
    async fn pythons_sdk_wraps_the_line_and_it_stays_wrapped() {
        let inner = STANDARD.encode(line("const n: number = 1; console.log(n)", "a"));
        let wrapped = format!("sh -c \"export A=$(echo 'Yg==' | base64 -d); echo '{inner}' | base64 -d | sh\"");
        let ran = Command::of(&wrapped).unwrap().without_compiler(here).await.unwrap();
        let rest = ran.strip_prefix("sh -c \"export A=$(echo 'Yg==' | base64 -d); echo '").unwrap();
        let line = decoded(rest.strip_suffix("' | base64 -d | sh\"").unwrap()).unwrap();
        assert!(line.ends_with("base64 -d | node - a 2>&1'"), "{line}");
    }

    #[tokio::test]
    async fn other_lines_stay_and_a_wrong_text_is_told() {
        for other in ["echo hi", "sh -c 'echo aGk= | base64 --decode'", &line("x", "").replace("ts-node", "tsx")] {
            assert_eq!(Command::of(other), None, "{other}");
        }
        let wrong = line("const n: = 1", "");
        assert!(Command::of(&wrong).unwrap().without_compiler(here).await.unwrap_err().starts_with("SyntaxError: "));
    }
}
