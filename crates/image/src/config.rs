//! How an image wants to be run: its environment, user, directory, commands, ports.
//!
//! The config is a document of a stranger. Only the parts that mean something here are read, into [`Defaults`]; names and
//! values that no process could be given (a NUL byte, a name with `=`) are left out.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::manifest::{LARGEST, Platform, or_nothing};

/// What a config says, as far as it matters here. Written again by [`crate::export`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(default, deserialize_with = "or_nothing")]
    pub config: Run,
    pub rootfs: Rootfs,
    #[serde(default, deserialize_with = "or_nothing", skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<History>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(deserialize_with = "or_nothing")]
    pub diff_ids: Vec<Digest>,
}

impl Default for Rootfs {
    fn default() -> Self {
        Rootfs { kind: "layers".into(), diff_ids: Vec::new() }
    }
}

/// One step of how the image came to be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_layer: Option<bool>,
}

/// The `config` object within the config, with Docker's names.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Run {
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_nothing")]
    pub user: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_nothing")]
    pub exposed_ports: BTreeMap<String, Nothing>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_nothing")]
    pub env: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_nothing")]
    pub entrypoint: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_nothing")]
    pub cmd: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_nothing")]
    pub volumes: BTreeMap<String, Nothing>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_nothing")]
    pub working_dir: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_nothing")]
    pub labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "String::is_empty", deserialize_with = "or_nothing")]
    pub stop_signal: String,
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_nothing")]
    pub shell: Vec<String>,
    /// Dockerfile instructions that are due in whoever builds on this image.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_nothing")]
    pub on_build: Vec<String>,
}

/// `{}`, whatever else is in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nothing {}

/// What a sandbox of the image starts with.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Defaults {
    /// In the image's order; of a name given twice, the last.
    pub env: Vec<(String, String)>,
    /// `name`, `id`, `name:group` …, as the image has it.
    pub user: Option<String>,
    /// An absolute path.
    pub workdir: Option<String>,
    pub entrypoint: Vec<String>,
    pub command: Vec<String>,
    pub ports: Vec<Port>,
    pub labels: BTreeMap<String, String>,
    pub volumes: Vec<String>,
    pub stop_signal: Option<String>,
    /// What `RUN` of a build uses; empty: `/bin/sh -c`.
    pub shell: Vec<String>,
    pub on_build: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    pub number: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
}

impl Port {
    /// `8080` or `8080/udp`.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        let protocol = protocol.to_ascii_lowercase();
        let number = number.parse().ok().filter(|number| *number != 0)?;
        matches!(protocol.as_str(), "tcp" | "udp" | "sctp").then_some(Port { number, protocol })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the image's config has {0} bytes, more than 4 MiB")]
    TooLarge(u64),
    #[error("the image's config cannot be read: {0}")]
    NotUnderstood(String),
    #[error("the image's files are {0:?}, not layers")]
    NoLayers(String),
    #[error("the image's manifest has {manifest} layers, its config {config}")]
    LayersDiffer { manifest: usize, config: usize },
    #[error("the image is for {there}, not for {wanted}")]
    OtherPlatform { there: String, wanted: Platform },
}

impl Config {
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        if bytes.len() as u64 > LARGEST {
            return Err(Refused::TooLarge(bytes.len() as u64));
        }
        if bytes.trim_ascii_start().first() != Some(&b'{') {
            return Err(Refused::NotUnderstood("it is no JSON object".into()));
        }
        let config: Config =
            serde_json::from_slice(bytes).map_err(|error| Refused::NotUnderstood(error.to_string()))?;
        if config.rootfs.kind != "layers" {
            return Err(Refused::NoLayers(config.rootfs.kind.chars().take(100).collect()));
        }
        Ok(config)
    }

    /// Whether it belongs to a manifest with so many layers.
    pub fn check_layers(&self, count: usize) -> Result<(), Refused> {
        match self.rootfs.diff_ids.len() == count {
            true => Ok(()),
            false => Err(Refused::LayersDiffer { manifest: count, config: self.rootfs.diff_ids.len() }),
        }
    }

    /// Whether its programs can run there. A config that does not say is believed to.
    pub fn check_platform(&self, platform: &Platform) -> Result<(), Refused> {
        let other = |there: &str, wanted: &str| !there.is_empty() && there != wanted;
        match other(&self.os, &platform.os) || other(&self.architecture, &platform.architecture) {
            false => Ok(()),
            true => {
                let there = format!("{}/{}", self.os, self.architecture).chars().take(100).collect();
                Err(Refused::OtherPlatform { there, wanted: platform.clone() })
            }
        }
    }

    pub fn defaults(&self) -> Defaults {
        let run = &self.config;
        let mut env: Vec<(String, String)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        for entry in &run.env {
            let Some((name, value)) = entry.split_once('=') else { continue };
            if name.is_empty() || entry.contains('\0') {
                continue;
            }
            let place = *places.entry(name).or_insert(env.len());
            match env.get_mut(place) {
                Some((_, there)) => value.clone_into(there),
                None => env.push((name.to_owned(), value.to_owned())),
            }
        }
        let usable = |text: &String| Some(text.clone()).filter(|text| !text.is_empty() && !text.contains('\0'));
        let words = |words: &[String]| match words.iter().any(|word| word.contains('\0')) {
            true => Vec::new(),
            false => words.to_vec(),
        };
        // Docker takes a relative directory as one below `/`.
        let workdir =
            usable(&run.working_dir).map(|path| if path.starts_with('/') { path } else { format!("/{path}") });
        Defaults {
            env,
            user: usable(&run.user),
            workdir,
            entrypoint: words(&run.entrypoint),
            command: words(&run.cmd),
            ports: run.exposed_ports.keys().filter_map(|port| Port::parse(port)).collect(),
            labels: run.labels.clone(),
            volumes: run.volumes.keys().filter(|path| path.starts_with('/') && !path.contains('\0')).cloned().collect(),
            stop_signal: usable(&run.stop_signal),
            shell: words(&run.shell),
            on_build: run.on_build.clone(),
        }
    }
}

impl Defaults {
    /// Back into the form of a config.
    pub fn to_run(&self) -> Run {
        Run {
            user: self.user.clone().unwrap_or_default(),
            exposed_ports: self
                .ports
                .iter()
                .map(|port| (format!("{}/{}", port.number, port.protocol), Nothing {}))
                .collect(),
            env: self.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            entrypoint: self.entrypoint.clone(),
            cmd: self.command.clone(),
            volumes: self.volumes.iter().map(|path| (path.clone(), Nothing {})).collect(),
            working_dir: self.workdir.clone().unwrap_or_default(),
            labels: self.labels.clone(),
            stop_signal: self.stop_signal.clone().unwrap_or_default(),
            shell: self.shell.clone(),
            on_build: self.on_build.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(run: serde_json::Value) -> Config {
        let whole = json!({
            "architecture": "amd64", "os": "linux", "config": run, "container": "0123", "docker_version": "20",
            "rootfs": {"type": "layers", "diff_ids": [Digest::of(b"")]}, "history": null,
        });
        Config::parse(whole.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_config_becomes_defaults() {
        let defaults = config(json!({
            "Hostname": "x", "Env": ["PATH=/bin", "A=1=2", "A=3", "broken", "=x", "N=\u{0}"], "User": "app:app",
            "WorkingDir": "srv", "Entrypoint": ["/e"], "Cmd": ["a", "b"], "ExposedPorts": {"80/tcp": {}, "53/udp": {}, "x": {}},
            "Labels": {"k": "v"}, "Volumes": {"/data": {}}, "StopSignal": "SIGINT", "OnBuild": ["RUN x"],
        }))
        .defaults();
        assert_eq!(defaults.env, [("PATH".into(), "/bin".into()), ("A".into(), "3".into())]);
        assert_eq!(defaults.user.as_deref(), Some("app:app"));
        assert_eq!(defaults.workdir.as_deref(), Some("/srv"));
        assert_eq!((defaults.entrypoint, defaults.command), (vec!["/e".into()], vec!["a".into(), "b".into()]));
        let ports: Vec<_> = defaults.ports.iter().map(|port| (port.number, port.protocol.as_str())).collect();
        assert_eq!(ports, [(53, "udp"), (80, "tcp")]);
        assert_eq!(defaults.volumes, ["/data"]);
        assert_eq!(defaults.stop_signal.as_deref(), Some("SIGINT"));
        assert_eq!(defaults.on_build, ["RUN x"]);
    }

    #[test]
    fn nulls_are_empty() {
        let nulls = config(json!({
            "Env": null, "User": null, "Cmd": null, "Entrypoint": null, "ExposedPorts": null, "Labels": null,
            "Volumes": null, "WorkingDir": null, "OnBuild": null, "StopSignal": null, "Shell": null,
        }));
        assert_eq!(nulls.defaults(), Defaults::default());
        assert_eq!(config(json!(null)).defaults(), Defaults::default());
    }

    #[test]
    fn defaults_survive_an_export() {
        let run = json!({"Env": ["A=b"], "User": "u", "WorkingDir": "/w", "ExposedPorts": {"80/tcp": {}}, "Shell": ["/bin/bash", "-c"]});
        let defaults = config(run).defaults();
        let again = Config { config: defaults.to_run(), ..Config::default() };
        let bytes = serde_json::to_vec(&again).unwrap();
        assert_eq!(Config::parse(&bytes).unwrap().defaults(), defaults);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let there = config(json!({}));
        assert_eq!(there.check_layers(2), Err(Refused::LayersDiffer { manifest: 2, config: 1 }));
        assert!(there.check_platform(&Platform::parse("linux/arm64").unwrap()).is_err());
        assert!(there.check_platform(&Platform::parse("linux/amd64").unwrap()).is_ok());
        let windows = br#"{"rootfs": {"type": "layers+base", "diff_ids": []}}"#;
        assert!(matches!(Config::parse(windows), Err(Refused::NoLayers(_))));
        assert!(matches!(Config::parse(b"{}"), Err(Refused::NotUnderstood(_))));
        assert!(matches!(Config::parse(b"[]"), Err(Refused::NotUnderstood(_))));
        assert!(matches!(Config::parse(&vec![b' '; (4 << 20) + 1]), Err(Refused::TooLarge(_))));
        let wrong = br#"{"rootfs": {"type": "layers", "diff_ids": ["sha256:1"]}}"#;
        assert!(matches!(Config::parse(wrong), Err(Refused::NotUnderstood(_))));
    }
}
