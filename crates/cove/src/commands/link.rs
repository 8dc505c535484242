//! `cove link`.

use std::time::Duration;

use clap::Args;
use reqwest::Method;
use serde_json::{Value, json};

use super::change::Target;
use crate::client::sandbox::path;
use crate::client::{Client, block_on, query_string};
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
    let link: Value = block_on(async {
        if arguments.public || arguments.private {
            let body = json!({ "public": arguments.public });
            let _: Value = client.set(&target.sandbox, Method::PUT, "visibility", &body).await?;
        }
        let query: Vec<_> = expires.as_deref().map(|seconds| ("expires_in_seconds", seconds)).into_iter().collect();
        client.get(&format!("{}/ports/{port}/link{}", path(&target.sandbox)?, query_string(&query))).await
    })?;
    if target.json {
        print_json(&link)?;
        return Ok(0);
    }
    let (by_path, by_name) = (word(&link, "url"), word(&link, "host_url"));
    let leads_here = is_reachable(by_name, by_path);
    print(if leads_here { by_name } else { by_path })?;
    say(&format!("hint: it opens port {port} until {}", moment(&link, "expires_at")));
    if !leads_here {
        say(
            "hint: pages with absolute links need a host name: set `domain` on the server to one whose subdomains lead to it",
        );
    }
    Ok(0)
}

/// Whether the host name of a link leads to the server from here: names below `localhost` lead to this machine alone.
fn is_reachable(by_name: &str, by_path: &str) -> bool {
    let host = |url: &str| reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(ToOwned::to_owned));
    let is_local = |host: &str| {
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost" || host.ends_with(".localhost") || address.is_ok_and(|address| address.is_loopback())
    };
    match (host(by_name), host(by_path)) {
        (Some(name), Some(path)) => !is_local(&name) || is_local(&path),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
