//! `cove network`.

use std::net::IpAddr;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::change::Target;
use super::run::NetworkKind;
use crate::client::sandbox::path;
use crate::client::{Client, block_on, query_string};
use crate::complaint::Complaint;
use crate::reachable::Reachable;
use crate::render::{Rows, Tone, print_json, word};

/// Show or change what a sandbox can reach
///
/// A change replaces the whole policy and applies to new connections at once. Only a stopped sandbox can change from no
/// network at all to having one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove network box                                # show it
  cove network box full                           # the internet; private addresses stay closed
  cove network box full --deny 203.0.113.0/24     # all but this
  cove network box none --allow 10.1.2.3:5432     # this and nothing else
  cove network box none                           # nobody

To give a network to a sandbox that runs without one:
  cove stop box && cove network box full && cove start box")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// What can be reached besides --allow
    #[arg(value_name = "KIND", value_enum)]
    kind: Option<NetworkKind>,
    /// Allow this address, network or name (the addresses that it has now); can be repeated
    #[arg(long, value_name = "HOST|CIDR[:PORT]", requires = "kind")]
    allow: Vec<String>,
    /// Refuse this, even with `full`; can be repeated
    #[arg(long, value_name = "CIDR[:PORT]", requires = "kind")]
    deny: Vec<String>,
    /// Use this DNS server instead of the host's; can be repeated
    #[arg(long, value_name = "ADDRESS", requires = "kind")]
    resolver: Vec<IpAddr>,
}

/// The flags of `create`, named as those of `run`.
#[derive(Debug, Args)]
pub struct Policy {
    /// The network: none (the default), or the internet (never private addresses or the host)
    #[arg(long, value_name = "KIND", value_enum, help_heading = "Borders")]
    network: Option<NetworkKind>,
    /// Allow this address, network or name (the addresses that it has now), and without --network full nothing else;
    /// can be repeated
    #[arg(long, value_name = "HOST|CIDR[:PORT]", help_heading = "Borders")]
    allow: Vec<String>,
    /// Use this DNS server instead of the host's; can be repeated
    #[arg(long, value_name = "ADDRESS", help_heading = "Borders")]
    resolver: Vec<IpAddr>,
}

impl Policy {
    pub fn reachable(&self) -> Result<Reachable, Complaint> {
        Reachable::read(&self.allow)
    }

    /// In the API's form; `None` where no flag was given.
    pub fn body(&self, reachable: &Reachable, deny: &[String]) -> Option<Value> {
        let said = self.network.is_some() || !self.allow.is_empty();
        said.then(|| body(self.network.unwrap_or(NetworkKind::None), reachable, deny, &self.resolver))
    }
}

fn body(kind: NetworkKind, reachable: &Reachable, deny: &[String], resolvers: &[IpAddr]) -> Value {
    let access = match kind {
        NetworkKind::Full => "open",
        NetworkKind::None => "closed",
    };
    json!({ "access": access, "allow": reachable.texts(), "deny": deny, "resolvers": resolvers })
}

/// Makes the allowed names resolve inside.
pub async fn name_inside(client: &Client, sandbox: &str, reachable: &Reachable) -> Result<(), Complaint> {
    let Some(lines) = reachable.hosts() else { return Ok(()) };
    let query = query_string(&[("path", "/etc/hosts"), ("user", "root"), ("how", "append")]);
    let request = client.request(Method::PUT, &format!("{}/files/content{query}", path(sandbox)?));
    client.send(request.body(lines)).await.map(drop)
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let target = &arguments.target;
    let reachable = Reachable::read(&arguments.allow)?;
    let sandbox: Value = block_on(async {
        let Some(kind) = arguments.kind else { return client.sandbox(&target.sandbox).await };
        let body = body(kind, &reachable, &arguments.deny, &arguments.resolver);
        let changed = client.set(&target.sandbox, Method::PUT, "network", &body).await?;
        name_inside(&client, &target.sandbox, &reachable).await?;
        Ok(changed)
    })?;
    let policy = &sandbox["network"];
    if target.json {
        print_json(policy)?;
        return Ok(0);
    }
    let list = |name: &str| {
        let entries: Vec<&str> = policy[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if entries.is_empty() { "-".to_owned() } else { entries.join(" ") }
    };
    let otherwise = match word(policy, "access") {
        "open" => ("the internet", Tone::Plain),
        _ => ("nobody", Tone::Plain),
    };
    let mut rows = Rows::new(&["allow", "deny", "otherwise", "resolvers"]);
    rows.add(&[(&list("allow"), Tone::Good), (&list("deny"), Tone::Bad), otherwise, (&list("resolvers"), Tone::Faint)]);
    rows.print()?;
    Ok(0)
}
