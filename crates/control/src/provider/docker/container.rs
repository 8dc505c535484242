//! A sandbox as a container: its name, its labels, and what the daemon is told to make.
//!
//! ```text
//!   /.cove            of root, closed to others
//!     guest           our program: PID 1, put there before each start
//!     guest.sock      where it listens
//! ```
//! Rights: Docker's usual set without those that a sandbox needs least, Docker's own filter of system calls, no device, no
//! directory of the host. `no-new-privileges` is the operator's choice and off by default, because `sudo` in a sandbox, which
//! templates of E2B and Daytona rely on, is a program that gains privileges.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerUpdateBody, HealthConfig, HostConfig, HostConfigLogConfig,
    Mount, MountType, MountVolumeOptions,
};
use cove_engine::network::RESOLVER;
use cove_protocol::{SandboxId, VolumeId};
use serde::{Deserialize, Serialize};

use super::process::Process;
use crate::provider::{Access, Egress, Handle, Limit, Limits, Network, Order, ProviderError, Seen, VolumeMount};

pub const FOLDER: &str = "/.cove";
pub const PROGRAM: &str = "/.cove/guest";
pub const PROGRAM_NAME: &str = "guest";
pub const SOCKET: &str = "/.cove/guest.sock";
pub const SOCKET_NAME: &str = "guest.sock";

/// The sandbox's id.
pub const SANDBOX: &str = "cove.sandbox";
/// Which server and provider made it: others may use the same daemon.
pub const INSTALLATION: &str = "cove.installation";
/// An image that is this container's alone, and goes with it.
pub const OWN_IMAGE: &str = "cove.image";
/// The layer with what a rollback replaced.
pub const REPLACED: &str = "cove.replaced";

/// What our program reads; without the token it serves nobody.
const GUEST: &str = "COVE_GUEST";

/// The network of Docker's that is a loopback device and nothing else.
pub const NO_NETWORK: &str = "none";

/// 100 ms, as Docker has it.
const PERIOD: i64 = 100_000;

/// Bytes of what the guest says of its own start.
const LOG: &str = "64k";

#[derive(Serialize, Deserialize)]
struct Configuration {
    token: String,
}

/// What is the same for all containers of a provider.
#[derive(Debug, Clone)]
pub struct House {
    /// `SERVER/PROVIDER`.
    pub installation: String,
    pub runtime: Option<String>,
    pub no_new_privileges: bool,
    pub way: Way,
}

/// How a sandbox reaches the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// Through our proxy, which holds rules.
    Proxy,
    /// By a network of Docker's that the operator named; everything it leads to is reached.
    Network(String),
    /// Not at all; the clause says why.
    Nowhere(String),
}

impl Way {
    /// The network of Docker's that a sandbox has with this policy.
    pub fn network(&self, network: &Network) -> Result<&str, ProviderError> {
        match (self, network) {
            (Way::Proxy, _) | (_, Network::None) => Ok(NO_NETWORK),
            (Way::Network(name), Network::Full(egress)) if *egress == Egress::default() => Ok(name),
            (Way::Network(_), Network::Full(_)) => Err(ProviderError::Unsupported(
                "rules about who is reached cannot be held here: use an open or a closed network".into(),
            )),
            (Way::Nowhere(why), Network::Full(_)) => Err(ProviderError::Unsupported(format!(
                "sandboxes have no network here: {why}; close its network, or have the operator name a network of docker's \
                 (`network` in the provider's section)"
            ))),
        }
    }
}

pub fn name_of(id: &SandboxId) -> String {
    format!("cove-{id}")
}

pub fn handle_of(id: &SandboxId) -> Handle {
    Handle::new(name_of(id))
}

/// By its handle, or by the id where the handle was never noted.
pub fn id_of(handle: &Handle) -> Result<SandboxId, ProviderError> {
    let text = handle.as_str();
    text.strip_prefix("cove-").unwrap_or(text).parse().map_err(|_| ProviderError::NotFound(handle.clone()))
}

/// While a rollback puts another container in the place of one.
pub fn next_name_of(id: &SandboxId) -> String {
    format!("cove-{id}-next")
}

pub fn volume_name(volume: &VolumeId) -> String {
    format!("cove-{volume}")
}

/// What a container is made of beside its order.
#[derive(Debug, Clone, Default)]
pub struct Making {
    /// A name or an id of Docker's.
    pub image: String,
    pub token: String,
    /// Whether the image is this container's alone.
    pub own_image: bool,
    pub replaced: Option<String>,
    /// Limits that the daemon would refuse.
    pub unheld: Vec<Limit>,
}

impl House {
    pub fn body(&self, order: &Order, making: &Making) -> Result<ContainerCreateBody, ProviderError> {
        let network = self.way.network(&order.network)?.to_owned();
        let mut labels = HashMap::from([
            (SANDBOX.to_owned(), order.id.to_string()),
            (INSTALLATION.to_owned(), self.installation.clone()),
            // An image that was made of a container has that one's labels: each is set anew.
            (OWN_IMAGE.to_owned(), if making.own_image { making.image.clone() } else { String::new() }),
        ]);
        labels.insert(REPLACED.to_owned(), making.replaced.clone().unwrap_or_default());
        let configuration = Configuration { token: making.token.clone() };
        let configuration = serde_json::to_string(&configuration)
            .map_err(|error| ProviderError::Failed(format!("write the guest's configuration: {error}")))?;
        let bounds = bounds(&order.limits, &making.unheld);
        let host = HostConfig {
            memory: bounds.memory,
            memory_swap: bounds.memory_swap,
            cpu_period: bounds.cpu_period,
            cpu_quota: bounds.cpu_quota,
            pids_limit: bounds.pids_limit,
            storage_opt: disk(&order.limits, &making.unheld),
            network_mode: Some(network),
            dns: (self.way == Way::Proxy).then(|| vec![RESOLVER.to_string()]),
            mounts: Some(order.volumes.iter().map(mount).collect()),
            cap_drop: Some(self.dropped()),
            security_opt: self.no_new_privileges.then(|| vec!["no-new-privileges".to_owned()]),
            runtime: self.runtime.clone(),
            privileged: Some(false),
            init: Some(false),
            auto_remove: Some(false),
            ipc_mode: Some("private".to_owned()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("json-file".to_owned()),
                config: Some(HashMap::from([
                    ("max-size".to_owned(), LOG.to_owned()),
                    ("max-file".to_owned(), "1".to_owned()),
                ])),
            }),
            ..HostConfig::default()
        };
        Ok(ContainerCreateBody {
            image: Some(making.image.clone()),
            hostname: Some(order.hostname.clone()),
            // Our program becomes every user; who commands run as is told to it.
            user: Some("0:0".to_owned()),
            working_dir: Some("/".to_owned()),
            entrypoint: Some([PROGRAM, "--socket", SOCKET].map(ToOwned::to_owned).to_vec()),
            cmd: Some(Vec::new()),
            env: Some(vec![format!("{GUEST}={configuration}")]),
            // An image's own check would run commands that nobody asked for.
            healthcheck: Some(HealthConfig { test: Some(vec!["NONE".to_owned()]), ..HealthConfig::default() }),
            labels: Some(labels),
            stop_signal: Some("SIGTERM".to_owned()),
            tty: Some(false),
            open_stdin: Some(false),
            host_config: Some(host),
            ..ContainerCreateBody::default()
        })
    }

    /// Devices, packets under a false name on a network that others share, and, where the proxy's port must stay ours, low
    /// ports: those are open to everybody there.
    fn dropped(&self) -> Vec<String> {
        let low_ports = (self.way == Way::Proxy).then_some("NET_BIND_SERVICE");
        ["MKNOD", "NET_RAW"].into_iter().chain(low_ports).map(ToOwned::to_owned).collect()
    }
}

/// A variable for the environment of commands that the daemon runs inside: they inherit that of the container.
pub fn without_token() -> String {
    format!("{GUEST}=")
}

/// Limits that can be changed, without those that are not enforced.
pub fn bounds(limits: &Limits, unheld: &[Limit]) -> ContainerUpdateBody {
    let held = |limit: Limit| !unheld.contains(&limit);
    let memory = held(Limit::Memory).then(|| signed(limits.memory));
    ContainerUpdateBody {
        memory,
        // Swap included: a sum.
        memory_swap: memory,
        cpu_period: held(Limit::Cpus).then_some(PERIOD),
        cpu_quota: held(Limit::Cpus).then(|| (limits.cpus * PERIOD as f64).round().max(1000.0) as i64),
        pids_limit: held(Limit::Pids).then(|| i64::from(limits.pids)),
        ..ContainerUpdateBody::default()
    }
}

/// What it may write, which is decided when it is made.
pub fn disk(limits: &Limits, unheld: &[Limit]) -> Option<HashMap<String, String>> {
    let bytes = limits.disk.filter(|_| !unheld.contains(&Limit::Disk))?;
    Some(HashMap::from([("size".to_owned(), bytes.to_string())]))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn mount(volume: &VolumeMount) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(volume_name(&volume.volume)),
        target: Some(volume.target.clone()),
        read_only: Some(volume.access == Access::ReadOnly),
        volume_options: Some(MountVolumeOptions {
            // What the image has there stays the image's.
            no_copy: Some(true),
            subpath: volume.subpath.clone().filter(|path| !path.is_empty()),
            ..MountVolumeOptions::default()
        }),
        ..Mount::default()
    }
}

/// A container as the daemon sees it.
#[derive(Debug, Clone)]
pub struct Found {
    pub sandbox: SandboxId,
    /// Docker's own id.
    pub container: String,
    pub state: Seen,
    /// The process with our program, while it runs.
    pub pid: Option<u32>,
    /// When it was last started, as the daemon writes it; no two starts have the same.
    pub started: String,
    pub exit: i64,
    pub out_of_memory: bool,
    /// What docker says went wrong with its start or end.
    pub error: String,
    /// Empty for one that is not ours.
    pub token: String,
    pub installation: String,
    /// The image's own id.
    pub image: String,
    pub own_image: Option<String>,
    pub replaced: Option<String>,
    pub disk_limit: Option<String>,
    pub memory_limit: u64,
    /// Networks of Docker's that it is in.
    pub networks: Vec<String>,
    /// Directories of the image that Docker keeps elsewhere.
    pub anonymous: Vec<String>,
    /// Bytes that it has written, where that was asked.
    pub written: Option<u64>,
}

impl Found {
    /// `None` for a container that is no sandbox.
    pub fn of(told: ContainerInspectResponse) -> Option<Found> {
        let config = told.config.unwrap_or_default();
        let labels = config.labels.unwrap_or_default();
        let label = |name: &str| labels.get(name).cloned().filter(|value| !value.is_empty());
        let state = told.state.unwrap_or_default();
        let running = state.running.unwrap_or(false);
        let host = told.host_config.unwrap_or_default();
        let own = |name: &String| name.strip_prefix("cove-").is_some_and(|rest| rest.parse::<VolumeId>().is_ok());
        let anonymous = told.mounts.unwrap_or_default().into_iter().filter_map(|mount| {
            let kept = mount.typ.as_deref() == Some("volume") && !mount.name.as_ref().is_some_and(own);
            mount.destination.filter(|_| kept)
        });
        let networks = told.network_settings.and_then(|settings| settings.networks).unwrap_or_default();
        Some(Found {
            sandbox: label(SANDBOX)?.parse().ok()?,
            container: told.id.unwrap_or_default(),
            state: match (running, state.paused.unwrap_or(false)) {
                (true, true) => Seen::Paused,
                (true, false) => Seen::Running,
                (false, _) => Seen::Stopped,
            },
            pid: state.pid.filter(|_| running).and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0),
            started: state.started_at.unwrap_or_default(),
            exit: state.exit_code.unwrap_or(0),
            out_of_memory: state.oom_killed.unwrap_or(false),
            error: state.error.unwrap_or_default(),
            token: token_of(&config.env.unwrap_or_default()),
            installation: label(INSTALLATION).unwrap_or_default(),
            image: told.image.unwrap_or_default(),
            own_image: label(OWN_IMAGE),
            replaced: label(REPLACED),
            disk_limit: host.storage_opt.and_then(|mut options| options.remove("size")),
            memory_limit: host.memory.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            networks: networks.into_keys().collect(),
            anonymous: anonymous.collect(),
            written: told.size_rw.and_then(|bytes| u64::try_from(bytes).ok()),
        })
    }

    pub fn process(&self) -> Option<Process> {
        Some(Process { pid: self.pid?, container: self.container.clone() })
    }

    /// Files that are not among its own cannot be kept with them.
    pub fn check_whole(&self, what: &str) -> Result<(), ProviderError> {
        let Some(path) = self.anonymous.first() else { return Ok(()) };
        Err(ProviderError::Unsupported(format!(
            "{what} would lack {path}: its image says that docker keeps this directory in a volume of its own; mount a \
             volume of yours there, or use an image without VOLUME"
        )))
    }
}

fn token_of(env: &[String]) -> String {
    let prefix = format!("{GUEST}=");
    let text = env.iter().rev().find_map(|entry| entry.strip_prefix(&prefix)).unwrap_or_default();
    serde_json::from_str(text).map_or_else(|_| String::new(), |Configuration { token }| token)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bollard::models::{ContainerConfig, ContainerState, MountPoint};

    use super::*;
    use crate::provider::{Durability, Image};

    fn order() -> Order {
        Order {
            id: "a".repeat(20).parse().unwrap(),
            earlier: None,
            image: Image::default(),
            durability: Durability::Durable,
            limits: Limits { cpus: 1.5, memory: 64 << 20, pids: 40, disk: Some(1 << 30), inodes: None },
            network: Network::None,
            volumes: vec![VolumeMount {
                volume: "v".repeat(20).parse().unwrap(),
                subpath: None,
                target: "/data".into(),
                access: Access::ReadOnly,
            }],
            hostname: "box".into(),
            env: BTreeMap::new(),
            user: "user".into(),
            cwd: None,
        }
    }

    fn house(way: Way) -> House {
        House { installation: "server_x/docker".into(), runtime: None, no_new_privileges: false, way }
    }

    fn body(way: Way) -> ContainerCreateBody {
        let making = Making { image: "debian:12".into(), token: "secret".into(), ..Making::default() };
        house(way).body(&order(), &making).unwrap()
    }

    #[test]
    fn a_container_has_the_limits_of_its_order_and_no_rights_over_the_host() {
        let body = body(Way::Proxy);
        let host = body.host_config.unwrap();
        assert_eq!((host.memory, host.memory_swap, host.pids_limit), (Some(64 << 20), Some(64 << 20), Some(40)));
        assert_eq!((host.cpu_quota, host.cpu_period), (Some(150_000), Some(100_000)));
        assert_eq!(host.storage_opt.unwrap()["size"], (1u64 << 30).to_string());
        assert_eq!((host.privileged, host.binds, host.devices, host.port_bindings), (Some(false), None, None, None));
        assert_eq!((host.security_opt, host.cap_add), (None, None), "the filter of system calls stays docker's own");
        assert_eq!(host.cap_drop.unwrap(), ["MKNOD", "NET_RAW", "NET_BIND_SERVICE"]);
        assert_eq!((host.network_mode.as_deref(), host.dns.unwrap()), (Some("none"), vec!["10.200.0.1".to_owned()]));
        let mount = &host.mounts.unwrap()[0];
        assert_eq!((mount.read_only, mount.target.as_deref()), (Some(true), Some("/data")));
        assert_eq!(body.entrypoint.unwrap(), [PROGRAM, "--socket", SOCKET]);
        assert_eq!((body.user.as_deref(), body.hostname.as_deref()), (Some("0:0"), Some("box")));
    }

    #[test]
    fn limits_that_nobody_enforces_are_not_asked_for() {
        let unheld = vec![Limit::Disk, Limit::Memory];
        let making = Making { unheld: unheld.clone(), ..Making::default() };
        let host = house(Way::Proxy).body(&order(), &making).unwrap().host_config.unwrap();
        assert_eq!((host.storage_opt, host.memory, host.memory_swap), (None, None, None));
        assert_eq!(bounds(&order().limits, &unheld).pids_limit, Some(40));
        let smallest = Limits { cpus: 0.001, ..Limits::default() };
        assert_eq!(bounds(&smallest, &[]).cpu_quota, Some(1000), "the kernel takes no less");
    }

    #[test]
    fn an_open_network_is_one_that_an_operator_named() {
        let (open, ruled) = (
            Network::Full(Egress::default()),
            Network::Full(Egress { deny: vec!["1.2.3.4".parse().unwrap()], ..Egress::default() }),
        );
        let named = Way::Network("walled".into());
        assert_eq!(named.network(&open).unwrap(), "walled");
        assert_eq!(named.network(&Network::None).unwrap(), "none");
        assert!(named.network(&ruled).unwrap_err().to_string().contains("cannot be held here"));
        let nowhere = Way::Nowhere("docker is reached by network".into());
        let refused = nowhere.network(&open).unwrap_err().to_string();
        assert!(refused.contains("docker is reached by network") && refused.contains("`network`"), "{refused}");
        assert_eq!(nowhere.network(&Network::None).unwrap(), "none");
        for network in [open, ruled, Network::None] {
            assert_eq!(Way::Proxy.network(&network).unwrap(), "none", "the proxy is behind the loopback device");
        }
    }

    #[test]
    fn what_was_made_is_found_again() {
        let body = body(Way::Proxy);
        let told = ContainerInspectResponse {
            id: Some("c".repeat(64)),
            config: Some(ContainerConfig { env: body.env, labels: body.labels, ..ContainerConfig::default() }),
            state: Some(ContainerState { running: Some(true), pid: Some(7), ..ContainerState::default() }),
            mounts: Some(vec![
                MountPoint {
                    typ: Some("volume".into()),
                    name: Some(volume_name(&order().volumes[0].volume)),
                    destination: Some("/data".into()),
                    ..MountPoint::default()
                },
                MountPoint {
                    typ: Some("volume".into()),
                    name: Some("0f".repeat(32)),
                    destination: Some("/var/lib/postgresql".into()),
                    ..MountPoint::default()
                },
            ]),
            ..ContainerInspectResponse::default()
        };
        let found = Found::of(told.clone()).unwrap();
        assert_eq!((found.sandbox, found.token.as_str(), found.pid), (order().id, "secret", Some(7)));
        assert_eq!((found.own_image, found.replaced, found.state), (None, None, Seen::Running));
        assert_eq!(found.anonymous, ["/var/lib/postgresql"]);
        let refused = Found::of(told).unwrap().check_whole("a snapshot").unwrap_err().to_string();
        assert!(refused.starts_with("a snapshot would lack /var/lib/postgresql"), "{refused}");
        assert!(Found::of(ContainerInspectResponse::default()).is_none(), "no sandbox of ours");
    }

    #[test]
    fn a_handle_is_the_containers_name_or_the_id() {
        let id = order().id;
        assert_eq!(id_of(&handle_of(&id)).unwrap(), id);
        assert_eq!(id_of(&Handle::from(&id)).unwrap(), id);
        for wrong in ["", "cove-", "cove-short", "../../x"] {
            assert!(matches!(id_of(&Handle::new(wrong)), Err(ProviderError::NotFound(_))), "{wrong}");
        }
    }
}
