//! Small things that several services need to say.

use std::collections::BTreeMap;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::provider::{Network, ProviderError};

/// A token for one sandbox, the same on every server that has the service's key.
pub fn proof(secret: &str, sandbox: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key of any length will do");
    mac.update(b"cove tunnel ");
    mac.update(sandbox.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

/// A word that a shell takes as it is.
pub fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// A line for a shell that runs the words with these variables, in this directory.
pub fn line(words: &[String], env: &BTreeMap<String, String>, cwd: Option<&str>) -> String {
    let mut line = String::new();
    if let Some(cwd) = cwd {
        line.push_str(&format!("cd {} && ", quoted(cwd)));
    }
    line.push_str("exec ");
    if !env.is_empty() {
        line.push_str("env ");
        for (name, value) in env {
            line.push_str(&format!("{} ", quoted(&format!("{name}={value}"))));
        }
    }
    line.push_str(&words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    line
}

/// Addresses and ranges without ports, for services that know no others.
pub struct Addresses {
    pub allow: Vec<String>,
    pub deny: Vec<String>,
    /// What becomes of a connection that neither names.
    pub open: bool,
    pub resolvers: Vec<String>,
}

/// A network as most services take it; what they cannot hold is refused by name.
pub fn addresses(service: &str, network: &Network) -> Result<Addresses, ProviderError> {
    let Network::Full(egress) = network else {
        return Ok(Addresses { allow: Vec::new(), deny: Vec::new(), open: false, resolvers: Vec::new() });
    };
    if let Some(target) = egress.allow.iter().chain(&egress.deny).find(|target| target.port.is_some()) {
        let message = format!("network: {target} names a port, and {service} knows addresses and ranges alone");
        return Err(ProviderError::Refused(message));
    }
    // Without the brackets that a port would need.
    let text = |target: &cove_policy::Target| match (target.address, target.prefix) {
        (address @ std::net::IpAddr::V4(_), 32) | (address @ std::net::IpAddr::V6(_), 128) => address.to_string(),
        (address, prefix) => format!("{address}/{prefix}"),
    };
    let texts = |targets: &[cove_policy::Target]| targets.iter().map(text).collect();
    Ok(Addresses {
        allow: texts(&egress.allow),
        deny: texts(&egress.deny),
        open: egress.otherwise == cove_policy::Verdict::Allow,
        resolvers: egress.resolvers.iter().map(ToString::to_string).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_gives_back_the_words_that_it_was_given() {
        let words = ["echo", "it's", "", "a b", "$HOME", "`x`", "plain-1.2/3", "é\n"].map(str::to_owned);
        let env = BTreeMap::from([("A B".to_owned(), "c'd".to_owned())]);
        let line = line(&words[..3], &env, Some("/a b"));
        assert_eq!(line, r"cd '/a b' && exec env 'A B=c'\''d' echo 'it'\''s' ''");
        let script = format!("printf '%s\\0' {}", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
        let said = std::process::Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let heard: Vec<&str> = std::str::from_utf8(&said).unwrap().trim_end_matches('\0').split('\0').collect();
        assert_eq!(heard, words);
    }

    #[test]
    fn a_token_is_the_same_on_every_server_and_of_one_sandbox_alone() {
        assert_eq!(proof("key", "a"), proof("key", "a"));
        assert_ne!(proof("key", "a"), proof("key", "b"));
        assert_ne!(proof("key", "a"), proof("other", "a"));
    }

    #[test]
    fn a_port_is_refused_where_nobody_holds_it() {
        let policy = crate::sandbox::NetworkPolicy { allow: vec!["1.2.3.4:443".into()], ..Default::default() };
        let refused = addresses("x", &policy.to_network().unwrap()).err().unwrap().to_string();
        assert_eq!(refused, "network: 1.2.3.4:443 names a port, and x knows addresses and ranges alone");
    }
}
