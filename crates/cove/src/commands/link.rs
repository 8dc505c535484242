//! `cove link`.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::change::Target;
use crate::client::sandbox::path;
use crate::client::{Client, block_on, is_this_machine, query_string};
use crate::complaint::Complaint;
use crate::quantity::parse_duration;
use crate::render::{moment, print, print_json, say, word};

/// Make a link to a port of a sandbox, for a browser
///
/// The link carries a token of its own and needs no API key. A browser keeps it as a cookie for that sandbox alone, so that
/// styles, images and WebSockets of the page load too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove link box 8000
  cove link box 8000 --expires 10m
  cove link box 8000 --public         # its ports are open to all from now on
  curl -s \"$(cove link box 8000)\"")]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// The port that something listens on inside
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    port: u16,
    /// How long the link works
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    expires: Option<Duration>,
    /// Open all ports of the sandbox to everybody who knows the address
    #[arg(long, conflicts_with = "private")]
    public: bool,
    /// Require a token again
    #[arg(long)]
    private: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    let client = Client::from_environment()?;
    let (target, port) = (&arguments.target, arguments.port);
    let expires = arguments.expires.map(|time| (time.as_secs_f64().ceil() as u64).to_string());
    let (link, listening): (Value, Listening) = block_on(async {
        if arguments.public || arguments.private {
            let body = json!({ "public": arguments.public });
            let _: Value = client.set(&target.sandbox, Method::PUT, "visibility", &body).await?;
        }
        let query: Vec<_> = expires.as_deref().map(|seconds| ("expires_in_seconds", seconds)).into_iter().collect();
        let link = client.get(&format!("{}/ports/{port}/link{}", path(&target.sandbox)?, query_string(&query))).await?;
        Ok((link, listening(&client, &target.sandbox, port).await))
    })?;
    let sandbox = &target.sandbox;
    match &listening {
        Listening::No => {
            say(&format!("hint: nothing listens on port {port} inside yet; `cove ports {sandbox}` lists what does"));
        }
        Listening::Away(state) => say(&format!("hint: {sandbox} is {state}: the link leads nowhere until it runs")),
        Listening::Yes | Listening::Unknown => {}
    }
    if target.json {
        print_json(&link)?;
        return Ok(0);
    }
    let (by_path, by_name) = (word(&link, "url"), word(&link, "host_url"));
    let leads_here = is_reachable(by_name, by_path);
    let link_here = if leads_here { by_name } else { by_path };
    if arguments.public {
        print(&without_token(link_here))?;
        say(&format!(
            "hint: everybody who knows the address can open all ports; `cove link {sandbox} {port} --private` ends that"
        ));
    } else {
        print(link_here)?;
        say(&format!("hint: it opens port {port} until {}", moment(&link, "expires_at")));
    }
    if !leads_here {
        say(
            "hint: pages with absolute links need a host name: set `domain` on the server to one whose subdomains lead to it",
        );
    }
    Ok(0)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Listening {
    Yes,
    No,
    /// It is in this state, and no request wakes it.
    Away(String),
    /// It cannot be asked.
    Unknown,
}

/// Does not wake the sandbox: whoever opens the link does.
async fn listening(client: &Client, sandbox: &str, port: u16) -> Listening {
    let ask = async {
        let known = client.sandbox(sandbox).await?;
        match word(&known, "state") {
            "running" => {}
            _ if known["timers"]["auto_resume"] == true => return Ok(Listening::Unknown),
            state => return Ok(Listening::Away(state.to_owned())),
        }
        let ports: Vec<Value> = client.get(&format!("{}/ports", path(sandbox)?)).await?;
        let found = ports.iter().any(|one| one["port"] == port);
        Ok::<_, Complaint>(if found { Listening::Yes } else { Listening::No })
    };
    // The link is good all the same.
    ask.await.unwrap_or(Listening::Unknown)
}

/// The address alone, for ports that are open to all.
fn without_token(link: &str) -> String {
    match reqwest::Url::parse(link) {
        Ok(mut url) => {
            url.set_query(None);
            url.to_string()
        }
        Err(_) => link.to_owned(),
    }
}

/// Whether the host name of a link leads to the server from here: names below `localhost` lead to this machine alone.
fn is_reachable(by_name: &str, by_path: &str) -> bool {
    let host = |url: &str| reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(ToOwned::to_owned));
    match (host(by_name), host(by_path)) {
        (Some(name), Some(path)) => !is_this_machine(&name) || is_this_machine(&path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_port_needs_no_token() {
        assert_eq!(without_token("http://80-x.localhost:7070/?cove_token=secret"), "http://80-x.localhost:7070/");
    }

    #[test]
    fn a_name_below_localhost_is_for_those_who_are_on_the_servers_machine() {
        for (by_name, by_path, wanted) in [
            ("http://80-x.localhost:7070/", "http://127.0.0.1:7070/a", true),
            ("http://80-x.localhost:7070/", "http://[::1]:7070/a", true),
            ("http://80-x.localhost:7070/", "http://10.0.0.7:7070/a", false),
            ("https://80-x.sbx.example/", "http://10.0.0.7:7070/a", true),
        ] {
            assert_eq!(is_reachable(by_name, by_path), wanted, "{by_name} {by_path}");
        }
    }
}
