//! Archives as programs write them, and as nobody should.

use std::fs;
use std::io::Write;

use ::tar::{Builder, EntryType, Header};
use cove_testkit::need;
use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};

use super::*;
use crate::manifest::{OCI_CONFIG, OCI_LAYER_GZIP, OCI_MANIFEST};
use crate::unpack::Tree;

fn header(kind: EntryType, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size as u64);
    header.set_mode(0o644);
    header
}

/// A tar of files; a value that begins with `->` is a link.
fn tar(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (path, data) in files {
        match data.strip_prefix(b"->") {
            None => builder.append_data(&mut header(EntryType::Regular, data.len()), path, *data).unwrap(),
            Some(target) => {
                let target = std::str::from_utf8(target).unwrap();
                builder.append_link(&mut header(EntryType::Symlink, 0), path, target).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

fn layer(text: &str) -> Vec<u8> {
    tar(&[("file", text.as_bytes())])
}

fn config(layers: &[&[u8]]) -> Vec<u8> {
    let diff_ids: Vec<Digest> = layers.iter().map(|layer| Digest::of(layer)).collect();
    let platform = Platform::host();
    let whole = json!({"os": "linux", "architecture": platform.architecture, "config": {"Env": ["A=b"]}, "rootfs": {"type": "layers", "diff_ids": diff_ids}});
    whole.to_string().into_bytes()
}

fn open(bytes: &[u8]) -> Result<Archive, Error> {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    Archive::open(file, tempfile::tempfile, &Limits::default())
}

fn docker(manifest: &Value, files: &[(&str, &[u8])]) -> Result<Archive, Error> {
    let manifest = manifest.to_string();
    let mut files = files.to_vec();
    files.push(("manifest.json", manifest.as_bytes()));
    open(&tar(&files))
}

/// What the image's last `file` says once it is unpacked.
fn unpacked(image: &Image) -> Result<String, crate::unpack::Error> {
    let directory = tempfile::tempdir().unwrap();
    let root = rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut tree = Tree::new(root, Limits::default())?;
    for layer in &image.layers {
        tree.apply(layer.open(), layer.diff_id.as_ref())?;
    }
    Ok(fs::read_to_string(directory.path().join("file")).unwrap())
}

fn only(archive: &Archive) -> Result<Image, Error> {
    archive.image(None, &Platform::host())
}

#[test]
fn a_saved_image_is_found_behind_its_layers() {
    if !need::root() {
        return;
    }
    let (one, two) = (layer("one"), layer("two"));
    let config = config(&[&one, &two, &one]);
    let manifest =
        json!([{"Config": "abc.json", "RepoTags": ["a:1"], "Layers": ["x/layer.tar", "y/layer.tar", "z/layer.tar"]}]);
    let files: [(&str, &[u8]); 6] = [
        ("one.tar", &one),
        ("x/layer.tar", b"->../one.tar"),
        ("y/layer.tar", &two),
        ("z/layer.tar", b"->../x/layer.tar"),
        ("abc.json", &config),
        ("repositories", b"{}"),
    ];
    let archive = docker(&manifest, &files).unwrap();
    assert_eq!(archive.kind(), Kind::Docker);
    let image = only(&archive).unwrap();
    assert_eq!((image.names.as_slice(), image.digest), (&["a:1".to_owned()][..], Some(Digest::of(&config))));
    assert_eq!(image.config.defaults().env, [("A".to_owned(), "b".to_owned())]);
    assert_eq!(unpacked(&image).unwrap(), "one");
    assert_eq!(archive.image(Some("a:1"), &Platform::host()).unwrap().layers.len(), 3);
    let missing = archive.image(Some("b"), &Platform::host()).unwrap_err().to_string();
    assert_eq!(missing, "the image archive has no image b; there are: a:1");
}

#[test]
fn a_compressed_archive_is_decoded_first() {
    if !need::root() {
        return;
    }
    let one = layer("one");
    let manifest = json!([{"Config": "c", "RepoTags": null, "Layers": ["l"]}]).to_string();
    let whole = tar(&[("l", &one), ("c", &config(&[&one])), ("manifest.json", manifest.as_bytes())]);
    let packed = zstd::encode_all(&whole[..], 3).unwrap();
    assert_eq!(unpacked(&only(&open(&packed).unwrap()).unwrap()).unwrap(), "one");
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&packed).unwrap();
    let small = Limits { bytes: 1000, ..Limits::default() };
    let error = Archive::open(file, tempfile::tempfile, &small).err().unwrap().to_string();
    assert!(error.contains("larger than 1000 bytes"), "{error}");
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&packed).unwrap();
    let late = Limits { deadline: Some(std::time::Instant::now()), ..Limits::default() };
    let error = Archive::open(file, tempfile::tempfile, &late).err().unwrap().to_string();
    assert!(error.contains("takes too long"), "{error}");
    // Whoever waits for it may have gone, or the disk may be full.
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&zstd::encode_all(std::io::repeat(0).take(3 * PIECE), 3).unwrap()).unwrap();
    let asked = std::cell::Cell::new(0);
    let stop = || {
        asked.set(asked.get() + 1);
        Err(std::io::Error::other("no more"))
    };
    let error = Archive::open_while(file, tempfile::tempfile, &Limits::default(), &stop).err().unwrap().to_string();
    assert!(error.contains("no more") && asked.get() == 1, "{error}");
}

#[test]
fn what_a_saved_image_says_is_checked() {
    if !need::root() {
        return;
    }
    let (one, two) = (layer("one"), layer("two"));
    let entry = |layers: &[&str]| json!([{"Config": "c", "RepoTags": [], "Layers": layers}]);
    // Another layer than the config says.
    let archive = docker(&entry(&["l"]), &[("l", &two), ("c", &config(&[&one]))]).unwrap();
    assert!(unpacked(&only(&archive).unwrap()).unwrap_err().to_string().contains("its image says"));
    let archive = docker(&entry(&["l"]), &[("l", &two), ("c", &config(&[]))]).unwrap();
    assert!(matches!(only(&archive), Err(Error::Config(config::Refused::LayersDiffer { .. }))));
    for target in ["missing", "../../../etc/shadow", "/etc/shadow", "loop"] {
        let files: [(&str, &[u8]); 2] = [("loop", b"->loop"), ("c", &config(&[&one]))];
        let archive = docker(&entry(&[target]), &files).unwrap();
        assert!(only(&archive).unwrap_err().to_string().contains("missing"), "{target}");
    }
    let arm = String::from_utf8(config(&[&one])).unwrap().replace(&Platform::host().architecture, "s390x");
    let archive = docker(&entry(&["l"]), &[("l", &one), ("c", arm.as_bytes())]).unwrap();
    assert!(matches!(only(&archive), Err(Error::Config(config::Refused::OtherPlatform { .. }))));
    let both = json!([{"Config": "c", "RepoTags": ["a:1"], "Layers": []}, {"Config": "d", "RepoTags": ["b:latest"], "Layers": []}]);
    let archive = docker(&both, &[("c", &config(&[])), ("d", &config(&[]))]).unwrap();
    assert_eq!(
        only(&archive).unwrap_err().to_string(),
        "the image archive has several images, say which: a:1, b:latest"
    );
    assert!(archive.image(Some("b"), &Platform::host()).is_ok());
}

#[test]
fn a_root_with_a_manifest_of_its_own_is_a_root() {
    if !need::root() {
        return;
    }
    for (name, text) in
        [("manifest.json", r#"{"name": "app"}"#), ("index.json", "{}"), ("manifest.json", "[]"), ("oci-layout", "{}")]
    {
        let archive = open(&tar(&[("file", b"root"), (name, text.as_bytes())])).unwrap();
        assert_eq!(archive.kind(), Kind::Root, "{name}");
        let image = only(&archive).unwrap();
        assert_eq!(unpacked(&image).unwrap(), "root");
        assert_eq!((image.digest, image.layers[0].diff_id), (None, None));
    }
    assert!(matches!(open(b"no tar at all"), Err(Error::Broken(_))));
}

#[test]
fn an_archive_that_was_cut_off_is_no_smaller_archive() {
    let whole = tar(&[("one", b"1"), ("two", b"2")]);
    assert!(open(&whole).is_ok());
    // Nothing at all, and between two entries: a header and a block of data each.
    for length in [0, 1024, 2048] {
        let error = open(&whole[..length]).err().unwrap().to_string();
        assert!(error.contains("cut off"), "{length}: {error}");
    }
    let mut empty = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    empty.write_all(b"").unwrap();
    assert!(open(&empty.finish().unwrap()).is_err());
    // One with more names than are kept.
    let mut builder = Builder::new(Vec::new());
    for number in 0..66_000 {
        builder.append_data(&mut header(EntryType::Regular, 0), number.to_string(), io::empty()).unwrap();
    }
    let many = builder.into_inner().unwrap();
    assert_eq!(open(&many).unwrap().kind(), Kind::Root);
    assert!(open(&many[..many.len() - 1024]).is_err());
}

/// The files of a layout with these images: names and layers.
fn layout(images: &[(Option<&str>, &[&[u8]])]) -> Vec<(String, Vec<u8>)> {
    let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion": "1.0.0"}"#.to_vec())];
    let mut blob = |bytes: &[u8], media_type: &str| {
        files.push((format!("blobs/sha256/{}", Digest::of(bytes).hex()), bytes.to_vec()));
        json!({"mediaType": media_type, "digest": Digest::of(bytes), "size": bytes.len()})
    };
    let mut manifests = Vec::new();
    for (name, layers) in images {
        let config = blob(&config(layers), OCI_CONFIG);
        let layers: Vec<Value> = layers
            .iter()
            .map(|layer| {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(layer).unwrap();
                blob(&encoder.finish().unwrap(), OCI_LAYER_GZIP)
            })
            .collect();
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
        let mut descriptor = blob(manifest.as_bytes(), OCI_MANIFEST);
        if let Some(name) = name {
            descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        }
        manifests.push(descriptor);
    }
    files.push(("index.json".into(), json!({"schemaVersion": 2, "manifests": manifests}).to_string().into_bytes()));
    files
}

fn packed(files: &[(String, Vec<u8>)]) -> Archive {
    let files: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    open(&tar(&files)).unwrap()
}

#[test]
fn a_layout_is_read_packed_and_as_a_directory() {
    if !need::root() {
        return;
    }
    let (one, two) = (layer("one"), layer("two"));
    let files = layout(&[(Some("first"), &[&one]), (Some("second"), &[&one, &two])]);
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("blobs/sha256")).unwrap();
    for (name, bytes) in &files {
        fs::write(directory.path().join(name), bytes).unwrap();
    }
    let opened = rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    for archive in [packed(&files), Archive::open_directory(opened).unwrap()] {
        assert_eq!(archive.kind(), Kind::Layout);
        assert_eq!(unpacked(&archive.image(Some("first"), &Platform::host()).unwrap()).unwrap(), "one");
        let second = archive.image(Some("second"), &Platform::host()).unwrap();
        assert_eq!((unpacked(&second).unwrap().as_str(), second.names.as_slice()), ("two", &["second".to_owned()][..]));
        assert!(matches!(only(&archive), Err(Error::Several(names)) if names == "first, second"));
        assert!(matches!(archive.image(Some("third"), &Platform::host()), Err(Error::NotThere { .. })));
    }
    assert_eq!(unpacked(&only(&packed(&layout(&[(None, &[&two])]))).unwrap()).unwrap(), "two");
}

#[test]
fn blobs_that_are_not_what_they_are_called_are_refused() {
    if !need::root() {
        return;
    }
    let one = layer("one");
    let whole = layout(&[(None, &[&one])]);
    let blobs: Vec<usize> = (0..whole.len()).filter(|number| whole[*number].0.starts_with("blobs")).collect();
    for number in blobs {
        let mut changed = whole.clone();
        let last = changed[number].1.len() - 1;
        changed[number].1[last] ^= 1;
        let archive = packed(&changed);
        let outcome = only(&archive).map_err(|error| error.to_string());
        let outcome = outcome.and_then(|image| unpacked(&image).map_err(|error| error.to_string()));
        assert!(outcome.is_err(), "blob {number}");
        let mut longer = whole.clone();
        longer[number].1.push(b' ');
        let error = only(&packed(&longer)).unwrap_err().to_string();
        assert!(error.contains("bytes, not"), "{error}");
    }
}

#[test]
fn a_layouts_directory_has_no_links() {
    if !need::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let opened = || rustix::fs::open(directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    assert!(Archive::open_directory(opened()).is_err());
    std::os::unix::fs::symlink("/etc/hostname", directory.path().join("index.json")).unwrap();
    assert!(Archive::open_directory(opened()).err().unwrap().to_string().contains("link"));
}
