//! What the images are made of: programs of this machine, and files that are made here.
//!
//! ```text
//!   context/Dockerfile   from nothing: two COPYs, two RUNs
//!   context/root/        a shell and a few programs of this machine, with the libraries that they are linked with
//!   context/app/         many small files
//!   root.tar             of context/root: an image of one layer
//!   layers/N/            files of an image that is pulled
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest as _, Sha256};

use super::super::super::peers::{make_skeleton, said};

/// What the scripts of these suites call.
const PROGRAMS: [&str; 8] = ["cat", "cp", "head", "mkdir", "seq", "sh", "sleep", "true"];

/// Everybody's builder understands it, without a network. The label is how a daemon's images are found again.
const DOCKERFILE: &str = "\
FROM scratch
LABEL cove-bench=1
ENV PATH=/usr/bin:/bin
COPY root/ /
COPY app/ /app/
RUN mkdir /made && for n in $(seq 500); do echo $n > /made/$n; done
RUN cp -r /app /copied
";
const APP_FILES: usize = 500;

/// Layers of an image that is pulled.
pub const LAYERS: usize = 4;
const FILE: usize = 16 << 10;
const IN_A_DIRECTORY: usize = 256;

pub struct Material {
    directory: PathBuf,
}

/// As a registry keeps it.
pub struct Layer {
    /// Of the tar, before it is compressed.
    pub diff_id: String,
    pub digest: String,
    pub bytes: Vec<u8>,
}

impl Material {
    pub fn make(directory: &Path) -> Result<Material, String> {
        let material = Material { directory: directory.to_owned() };
        let root = material.context().join("root");
        make_root(&root)?;
        material.make_context().map_err(|error| error.to_string())?;
        pack(&root, &material.archive())?;
        Ok(material)
    }

    /// The folder of a build.
    pub fn context(&self) -> PathBuf {
        self.directory.join("context")
    }

    /// The tar of a root.
    pub fn archive(&self) -> PathBuf {
        self.directory.join("root.tar")
    }

    fn make_context(&self) -> io::Result<()> {
        let app = self.context().join("app");
        fs::create_dir_all(&app)?;
        for number in 0..APP_FILES {
            fs::write(app.join(number.to_string()), format!("line of file {number}\n").repeat(100))?;
        }
        fs::write(self.context().join("Dockerfile"), DOCKERFILE)
    }

    fn layer_path(&self, number: usize) -> PathBuf {
        self.directory.join("layers").join(number.to_string())
    }

    /// The files of all layers, once.
    pub fn make_layers(&self, mib: usize) -> io::Result<()> {
        let files = (mib << 20) / FILE / LAYERS;
        for number in 0..LAYERS {
            for file in 0..files {
                let folder = self.layer_path(number).join(format!("data-{number}/{}", file / IN_A_DIRECTORY));
                fs::create_dir_all(&folder)?;
                fs::write(folder.join(file.to_string()), content((number * files + file) as u64, FILE))?;
            }
        }
        Ok(())
    }

    /// One of them, different in each round: nobody has it from the round before.
    pub fn layer(&self, number: usize, round: usize) -> Result<Layer, String> {
        let told = |error: io::Error| error.to_string();
        let folder = self.layer_path(number);
        fs::write(folder.join(format!("round-{number}")), round.to_string()).map_err(told)?;
        let archive = self.directory.join("layer.tar");
        pack(&folder, &archive)?;
        let diff_id = digest(&fs::read(&archive).map_err(told)?);
        let words = ["gzip", "-1", "-n", "-f", &archive.display().to_string()].map(str::to_owned);
        said(&words, Stdio::null())?;
        let bytes = fs::read(self.directory.join("layer.tar.gz")).map_err(told)?;
        Ok(Layer { diff_id, digest: digest(&bytes), bytes })
    }
}

pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

fn make_root(root: &Path) -> Result<(), String> {
    let told = |error: io::Error| format!("{}: {error}", root.display());
    make_skeleton(root).map_err(told)?;
    for name in ["bin", "sbin", "lib", "lib64"] {
        if let Ok(target) = fs::read_link(root.join(name)) {
            fs::create_dir_all(root.join(target.strip_prefix("/").unwrap_or(&target))).map_err(told)?;
        }
    }
    let mut files = BTreeSet::new();
    for name in PROGRAMS {
        let found =
            ["/usr/bin", "/bin"].into_iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists());
        let program = found.ok_or_else(|| format!("this machine has no {name}"))?;
        files.extend(libraries(&program));
        files.insert(program);
    }
    for file in files {
        place(root, &file).map_err(|error| format!("copy {}: {error}", file.display()))?;
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\n").map_err(told)?;
    fs::write(root.join("etc/group"), "root:x:0:\n").map_err(told)
}

/// What a program is linked with. A static one has nothing, and the loader says so with an error.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let words = ["ldd".to_owned(), program.display().to_string()];
    said(&words, Stdio::null()).map(|told| paths_in(&told)).unwrap_or_default()
}

/// `libc.so.6 => /lib/libc.so.6 (0x…)`, `/lib64/ld.so (0x…)`.
fn paths_in(told: &str) -> Vec<PathBuf> {
    told.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from).collect()
}

/// At the same place below `root`, in the folder that the machine's own links lead to.
fn place(root: &Path, file: &Path) -> io::Result<()> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else { return Ok(()) };
    let folder = fs::canonicalize(folder)?;
    let target = root.join(folder.strip_prefix("/").unwrap_or(&folder));
    fs::create_dir_all(&target)?;
    fs::copy(file, target.join(name)).map(drop)
}

fn pack(folder: &Path, archive: &Path) -> Result<(), String> {
    let [folder, archive] = [folder, archive].map(|path| path.display().to_string());
    let own = ["tar", "-C", &folder, "--owner=0", "--group=0", "--numeric-owner", "-cf", &archive, "."];
    said(&own.map(str::to_owned), Stdio::null()).map(drop)
}

/// Half of it compresses well and half not at all, as with programs; the same for the same seed.
fn content(seed: u64, size: usize) -> Vec<u8> {
    // xorshift64: any state but zero will do.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[2]
    };
    (0..size).map(|at| if at % 64 < 32 { b'.' } else { next() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_what_the_loader_tells() {
        let told = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x/libc.so.6 (0x2)\n\t/lib64/ld.so.2 (0x3)\n";
        assert_eq!(paths_in(told), [Path::new("/lib/x/libc.so.6"), Path::new("/lib64/ld.so.2")]);
    }

    #[test]
    fn a_root_has_a_shell_with_all_that_it_needs() {
        let place = tempfile::tempdir().unwrap();
        let material = Material::make(place.path()).unwrap();
        let root = material.context().join("root");
        assert!(root.join("usr/bin/sh").is_file() || root.join("bin/sh").is_file());
        for library in libraries(Path::new("/bin/sh")) {
            // Links of the image lead to where the machine has it.
            assert!(root.join(library.strip_prefix("/").unwrap()).is_file(), "{}", library.display());
        }
        assert!(fs::metadata(material.archive()).unwrap().len() > 100_000);
        assert_eq!(fs::read_dir(material.context().join("app")).unwrap().count(), APP_FILES);
    }

    #[test]
    fn no_round_has_a_layer_of_another() {
        let place = tempfile::tempdir().unwrap();
        let material = Material { directory: place.path().to_owned() };
        material.make_layers(1).unwrap();
        let of = |number, round| material.layer(number, round).unwrap();
        let layers = [of(0, 1), of(1, 1), of(0, 2), of(1, 2)];
        let (digests, diff_ids): (BTreeSet<_>, BTreeSet<_>) =
            layers.iter().map(|layer| (layer.digest.as_str(), layer.diff_id.as_str())).unzip();
        assert_eq!((digests.len(), diff_ids.len()), (4, 4));
        // A quarter of the MiB, half of which compresses.
        let size = layers[0].bytes.len();
        assert!((100 << 10..240 << 10).contains(&size), "{size}");
        assert_eq!(digest(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
