//! Network policies: what a client writes and what it is told are two forms.
//!
//! ```text
//!   asked  {"mode": "allow-all" | "deny-all"}   or   {allow: […] | {…}, subnets: {allow, deny}}
//!   told   {"mode": "allow-all" | "deny-all"}   or   {"mode": "custom", allowedDomains, allowedCIDRs, deniedCIDRs}
//! ```

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Value, json};

use super::error::{Answer, Refusal};
use crate::sandbox::NetworkPolicy;
use crate::sandbox::network::Access;

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Asked {
    mode: Option<Mode>,
    allow: Option<Allow>,
    subnets: Option<Subnets>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    AllowAll,
    DenyAll,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Allow {
    Names(Vec<String>),
    /// With rules for each.
    Rules(BTreeMap<String, Vec<Value>>),
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Subnets {
    allow: Vec<String>,
    deny: Vec<String>,
}

/// Every name.
const ANY: &str = "*";

impl Asked {
    pub fn policy(self) -> Answer<NetworkPolicy> {
        if let Some(mode) = self.mode {
            if self.allow.is_some() || self.subnets.is_some() {
                return Err(Refusal::bad("networkPolicy: a mode takes no rules beside it"));
            }
            return Ok(match mode {
                Mode::AllowAll => NetworkPolicy::open(),
                Mode::DenyAll => NetworkPolicy::closed(),
            });
        }
        let names: Vec<String> = match self.allow {
            None => Vec::new(),
            Some(Allow::Names(names)) => names,
            Some(Allow::Rules(rules)) => {
                if let Some((name, _)) = rules.iter().find(|(_, rules)| !rules.is_empty()) {
                    return Err(Refusal::not_offered(format!(
                        "networkPolicy.allow.{name}: rules that change requests are not offered"
                    )));
                }
                rules.into_keys().collect()
            }
        };
        if let Some(name) = names.iter().find(|name| *name != ANY) {
            return Err(Refusal::not_offered(format!(
                "networkPolicy.allow: names such as {name:?} are not offered; allow addresses in subnets.allow, or \"*\""
            )));
        }
        let Subnets { allow, deny } = self.subnets.unwrap_or_default();
        let access = if names.is_empty() { Access::Closed } else { Access::Open };
        Ok(NetworkPolicy { access, allow, deny, ..NetworkPolicy::default() })
    }
}

pub fn view(policy: &NetworkPolicy) -> Value {
    match (policy.access, policy.allow.is_empty(), policy.deny.is_empty()) {
        (Access::Open, true, true) => json!({"mode": "allow-all"}),
        (Access::Closed, true, _) => json!({"mode": "deny-all"}),
        (access, ..) => {
            let names: &[&str] = if access == Access::Open { &[ANY] } else { &[] };
            json!({
                "mode": "custom",
                "allowedDomains": names,
                "allowedCIDRs": policy.allow,
                "deniedCIDRs": policy.deny,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: Value) -> Answer<NetworkPolicy> {
        serde_json::from_value::<Asked>(text).unwrap().policy()
    }

    #[test]
    fn what_is_told_is_not_what_was_asked() {
        assert_eq!(view(&asked(json!({"mode": "allow-all"})).unwrap()), json!({"mode": "allow-all"}));
        assert_eq!(view(&asked(json!({"mode": "deny-all"})).unwrap()), json!({"mode": "deny-all"}));
        assert_eq!(asked(json!({})).unwrap(), NetworkPolicy::closed());
        let some = asked(json!({"allow": ["*"], "subnets": {"deny": ["10.0.0.0/8"]}})).unwrap();
        assert_eq!(
            view(&some),
            json!({"mode": "custom", "allowedDomains": ["*"], "allowedCIDRs": [], "deniedCIDRs": ["10.0.0.0/8"]})
        );
    }

    #[test]
    fn what_is_not_offered_is_refused_by_name() {
        let refused = asked(json!({"allow": ["github.com"]})).unwrap_err().message;
        assert!(refused.contains("\"github.com\""), "{refused}");
        let refused = asked(json!({"allow": {"a.example": [{"transform": []}]}})).unwrap_err().message;
        assert!(refused.contains("allow.a.example"), "{refused}");
        assert!(serde_json::from_value::<Asked>(json!({"mdoe": "deny-all"})).is_err());
        assert!(asked(json!({"mode": "deny-all", "allow": []})).is_err());
    }
}
