//! The resolvers of the host, from its `/etc/resolv.conf`, which may change while we run (a VPN, a new lease).

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const FRESH: Duration = Duration::from_secs(5);
/// As the C library has it.
const MOST: usize = 3;

#[derive(Debug)]
pub struct HostResolvers {
    file: PathBuf,
    read: Option<(Instant, Vec<IpAddr>)>,
}

impl HostResolvers {
    pub fn new(file: PathBuf) -> HostResolvers {
        HostResolvers { file, read: None }
    }

    pub fn current(&mut self, now: Instant) -> Vec<IpAddr> {
        if let Some((at, list)) = &self.read
            && now.duration_since(*at) < FRESH
        {
            return list.clone();
        }
        let list = parse(&std::fs::read_to_string(&self.file).unwrap_or_default());
        self.read = Some((now, list.clone()));
        list
    }
}

/// The servers of a `resolv.conf`; where it names none, the host's own, as the C library has it.
fn parse(text: &str) -> Vec<IpAddr> {
    let servers = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == "nameserver").then(|| words.next()?.parse().ok())?
    });
    let mut list: Vec<IpAddr> = servers.take(MOST).collect();
    if list.is_empty() {
        list.push(Ipv4Addr::LOCALHOST.into());
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_and_the_rest_is_not() {
        let text = "# nameserver 9.9.9.9\nsearch example.com\nnameserver 10.0.0.2\nnameserver fe80::1%eth0\nnameserver 2001:db8::53\noptions edns0\n";
        let expected: [IpAddr; 2] = ["10.0.0.2".parse().unwrap(), "2001:db8::53".parse().unwrap()];
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn an_empty_file_means_the_host_itself() {
        assert_eq!(parse(""), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
    }
}
