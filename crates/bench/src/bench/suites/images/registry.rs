//! A registry of our own for one measurement: Debian's docker-registry on a port and in a directory of its own.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, LOCATION};
use serde_json::json;

use super::super::super::peers::ContainerEngine;
use super::material::{Layer, digest};
use crate::measure::api::{Api, Trouble};

/// As Debian calls it, and as its makers do.
const NAMES: [&str; 2] = ["docker-registry", "registry"];
const READY_WITHIN: Duration = Duration::from_secs(15);
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

pub struct Registry {
    /// Ends with us.
    _server: Server,
    api: Api,
    address: String,
    repository: String,
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended already cannot be killed, and that is well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Registry {
    pub async fn start(directory: &Path) -> Result<Registry, String> {
        let told = |error: std::io::Error| error.to_string();
        fs::create_dir_all(directory).map_err(told)?;
        let address = free_address().map_err(told)?;
        // JSON is YAML.
        let config = json!({
            "version": "0.1",
            "log": { "level": "error", "accesslog": { "disabled": true } },
            "storage": { "filesystem": { "rootdirectory": directory.join("blobs") } },
            "http": { "addr": address },
        });
        let (file, log) = (directory.join("config.yml"), directory.join("log"));
        fs::write(&file, config.to_string()).map_err(told)?;
        let mut server = serve(&file, &log)?;
        let api = Api::new(&format!("http://{address}"), "").map_err(|complaint| complaint.to_string())?;
        let began = Instant::now();
        while api.call_text("/v2/").await.is_err() {
            if began.elapsed() > READY_WITHIN || !matches!(server.0.try_wait(), Ok(None)) {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("it did not start: {}", said.lines().last().unwrap_or("it said nothing")));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(Registry { _server: server, api, address, repository: ContainerEngine::image_name("pull") })
    }

    /// An image of these layers; returns the name by which anybody pulls it.
    pub async fn push(&self, tag: &str, layers: Vec<Layer>) -> Result<String, Trouble> {
        let (mut diff_ids, mut parts) = (Vec::new(), Vec::new());
        for Layer { diff_id, digest, bytes } in layers {
            parts.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": digest, "size": bytes.len(),
            }));
            diff_ids.push(diff_id);
            self.push_blob(&digest, bytes).await?;
        }
        let config = json!({
            "architecture": architecture(), "os": "linux", "config": {},
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        let config = config.to_string().into_bytes();
        let (name, size) = (digest(&config), config.len());
        self.push_blob(&name, config).await?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "layers": parts,
            "config": { "mediaType": "application/vnd.oci.image.config.v1+json", "digest": name, "size": size },
        });
        let request = self.api.request(Method::PUT, &format!("/v2/{}/manifests/{tag}", self.repository));
        self.api.send(request.header(CONTENT_TYPE, MANIFEST).body(manifest.to_string())).await?;
        Ok(format!("{}/{}:{tag}", self.address, self.repository))
    }

    async fn push_blob(&self, digest: &str, bytes: Vec<u8>) -> Result<(), Trouble> {
        let begin = self.api.request(Method::POST, &format!("/v2/{}/blobs/uploads/", self.repository)).body("");
        let begun = self.api.send(begin).await?;
        let place = begun.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let place = place.ok_or_else(|| Trouble::Wrong("the registry does not say where to upload".into()))?;
        let path = upload_path(place, &self.api.url, digest);
        self.api.send(self.api.request(Method::PUT, &path).body(bytes)).await.map(drop)
    }
}

/// Where the whole of a blob goes: the registry names a URL, with or without a host, with or without a query.
fn upload_path(place: &str, url: &str, digest: &str) -> String {
    let path = place.strip_prefix(url).unwrap_or(place);
    let mark = if path.contains('?') { '&' } else { '?' };
    format!("{path}{mark}digest={digest}")
}

fn serve(config: &Path, log: &Path) -> Result<Server, String> {
    for name in NAMES {
        let log = File::create(log).map_err(|error| error.to_string())?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new(name);
        // Ctrl-C is for us: it ends when we let go of it.
        command.arg("serve").arg(config).process_group(0).stdin(Stdio::null()).stdout(copy).stderr(log);
        match command.spawn() {
            Ok(child) => return Ok(Server(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{name}: {error}")),
        }
    }
    Err("docker-registry is not installed; `make bench` provides it".into())
}

/// A port that was free a moment ago: the registry does not tell which one it got.
fn free_address() -> std::io::Result<String> {
    TcpListener::bind("127.0.0.1:0")?.local_addr().map(|address| address.to_string())
}

/// As images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_goes_on_where_the_registry_says() {
        let url = "http://127.0.0.1:5000";
        let told = upload_path("http://127.0.0.1:5000/v2/x/uploads/1?_state=s", url, "sha256:0");
        assert_eq!(told, "/v2/x/uploads/1?_state=s&digest=sha256:0");
        assert_eq!(upload_path("/v2/x/uploads/1", url, "sha256:0"), "/v2/x/uploads/1?digest=sha256:0");
    }
}
