//! Pulls and pushes against a registry of our own: one that behaves, and one that does not.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use axum::body::Bytes;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use rustix::fs::{Mode, OFlags};
use serde_json::json;

use super::fake::{Door, Fake, pieces, status};
use super::*;
use crate::manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST, Platform};

/// Loopback is what the tests have; a real judge refuses it.
fn anything(_host: &str, _address: std::net::SocketAddr) -> Result<(), String> {
    Ok(())
}

fn options() -> Options {
    let _there = rustls::crypto::ring::default_provider().install_default();
    let pause = Duration::from_millis(5);
    Options {
        pause,
        silence: Duration::from_secs(5),
        attempts: 3,
        ..Options::new(Names::default(), Arc::new(anything))
    }
}

/// A client, the image to pull, and where to.
struct Story {
    registry: Registry,
    reference: Reference,
    directory: tempfile::TempDir,
}

impl Story {
    fn new(fake: &Fake, options: Options) -> Self {
        let reference = Reference::parse(&format!("{}/a/b:tag", fake.host()), &options.names).unwrap();
        Story { registry: Registry::new(options), reference, directory: tempfile::tempdir().unwrap() }
    }

    fn target(&self) -> OwnedFd {
        rustix::fs::open(self.directory.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
    }

    async fn pull(&self) -> Result<Inspected, Error> {
        self.registry.pull(&self.reference, &Platform::host(), &self.target(), |_| {}).await
    }

    fn layer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        open_layer(self.target(), &Digest::of(bytes)).unwrap().read_to_end(&mut all).unwrap();
        all
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.directory.path()).unwrap().count()
    }
}

/// Not compressible, so that pieces differ.
fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        })
        .collect()
}

#[tokio::test]
async fn an_image_is_pulled_by_tag_and_kept_by_digest() {
    let fake = Fake::start().await;
    let (one, two) = (content(300_000, 1), content(10, 2));
    let digest = fake.image("a/b", "tag", &[&one, &two, &one]);
    let story = Story::new(&fake, options());
    let image = story.registry.inspect(&story.reference, &Platform::host()).await.unwrap();
    assert_eq!(image.digest, digest);
    assert_ne!(image.manifest_digest, digest, "the index is not the manifest");
    assert_eq!(image.layers().len(), 3);
    let told = Mutex::new(Vec::new());
    story.registry.fetch(&image, 0..3, &story.target(), |progress| told.lock().unwrap().push(progress)).await.unwrap();
    assert_eq!((story.layer(&one), story.layer(&two)), (one.clone(), two));
    assert_eq!(story.files(), 2, "a layer that is there twice is fetched once");
    let last = *told.lock().unwrap().iter().rfind(|progress| progress.layer == Digest::of(&one)).unwrap();
    assert_eq!((last.done, last.size), (300_000, 300_000));
    assert_eq!(fake.count(&Method::HEAD, "/manifests/tag"), 1);
    assert_eq!(fake.count(&Method::GET, "/manifests/tag"), 0, "manifests are fetched by digest");
    // Again: everything is there.
    story.registry.fetch(&image, 0..3, &story.target(), |_| {}).await.unwrap();
    assert_eq!(fake.count(&Method::GET, &format!("/blobs/{}", Digest::of(&one))), 1);
    assert_eq!(story.registry.resolve(&story.reference).await.unwrap(), digest);
}

#[tokio::test]
async fn only_the_layers_that_are_wanted_are_fetched() {
    let fake = Fake::start().await;
    let (one, two) = (content(10, 1), content(10, 2));
    fake.image("a/b", "tag", &[&one, &two]);
    let story = Story::new(&fake, options());
    let image = story.registry.inspect(&story.reference, &Platform::host()).await.unwrap();
    story.registry.fetch(&image, [1, 9], &story.target(), |_| {}).await.unwrap();
    assert_eq!(story.layer(&two), two);
    assert_eq!(story.files(), 1);
}

#[tokio::test]
async fn a_missing_image_is_said_to_be_missing() {
    let fake = Fake::start().await;
    let story = Story::new(&fake, options());
    let error = story.pull().await.unwrap_err();
    assert!(matches!(&error, Error::NotFound { what } if what.ends_with("/a/b:tag")), "{error}");
    assert_eq!(fake.count(&Method::HEAD, "/manifests/"), 1, "not asked twice");
}

#[tokio::test]
async fn a_token_is_fetched_once_and_again_when_it_is_refused() {
    let fake = Fake::start().await;
    let one = content(1000, 1);
    fake.image("a/b", "tag", &[&one]);
    fake.lock(Door::Token { realm: None, password: None });
    let story = Story::new(&fake, options());
    let image = story.registry.inspect(&story.reference, &Platform::host()).await.unwrap();
    assert_eq!(fake.count(&Method::GET, "/token"), 1);
    let asked = fake.seen().iter().find(|seen| seen.path == "/token").unwrap().query.clone();
    assert_eq!(asked, "scope=repository%3Aa%2Fb%3Apull&service=test");
    // In the middle of a long pull the token ends.
    *fake.0.token.lock().unwrap() += 1;
    story.registry.fetch(&image, [0], &story.target(), |_| {}).await.unwrap();
    assert_eq!(story.layer(&one), one);
    assert_eq!(fake.count(&Method::GET, "/token"), 2);
}

#[tokio::test]
async fn credentials_go_to_the_realm_of_their_registry() {
    for (door, credentials) in [
        (
            Door::Token { realm: None, password: Some("u:p") },
            Credentials::Password { user: "u".into(), password: "p".into() },
        ),
        (Door::Token { realm: None, password: Some("idem") }, Credentials::Identity("idem".into())),
        (Door::Token { realm: None, password: None }, Credentials::Token("t0".into())),
        (Door::Basic("u:p"), Credentials::Password { user: "u".into(), password: "p".into() }),
    ] {
        let fake = Fake::start().await;
        fake.image("a/b", "tag", &[b"layer"]);
        fake.lock(door);
        let mut options = options();
        let without = Story::new(&fake, options.clone()).pull().await;
        options.credentials.insert("elsewhere.example".into(), credentials.clone());
        let elsewhere = Story::new(&fake, options.clone()).pull().await;
        options.credentials.insert(fake.host(), credentials.clone());
        Story::new(&fake, options).pull().await.unwrap();
        if credentials != Credentials::Token("t0".into()) {
            assert!(matches!(without, Err(Error::Unauthorized { .. })), "{without:?}");
            assert!(matches!(elsewhere, Err(Error::Unauthorized { .. })), "{elsewhere:?}");
        }
    }
}

#[tokio::test]
async fn a_registry_that_always_refuses_is_not_asked_for_ever() {
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[b"layer"]);
    fake.lock(Door::Token { realm: None, password: None });
    fake.hook(|seen| {
        let challenge = format!("Bearer realm=\"http://{}/token\"", seen.header(header::HOST).unwrap());
        let refusal = (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response();
        (seen.path != "/token").then_some(refusal)
    });
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    assert!(fake.seen().len() <= 8, "{}", fake.seen().len());
}

#[tokio::test]
async fn odd_challenges_are_refused_with_a_reason() {
    for challenge in [
        "",
        "Negotiate",
        "Bearer",
        "Bearer realm=\"no url\"",
        "Bearer realm=\"http://u:p@127.0.0.1/token\"",
        "Bearer realm=\"file:///etc/passwd\"",
    ] {
        let fake = Fake::start().await;
        fake.hook(move |_| Some((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, challenge)]).into_response()));
        let error = Story::new(&fake, options()).pull().await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. } | Error::Insecure { .. }), "{challenge}: {error}");
    }
    // A realm that answers nonsense, or without end.
    for answer in ["", "{}", r#"{"token": ""}"#, r#"{"token": "a\nb"}"#, "<html>"] {
        let fake = Fake::start().await;
        fake.lock(Door::Token { realm: None, password: None });
        fake.hook(move |seen| (seen.path == "/token").then(|| answer.into_response()));
        let error = Story::new(&fake, options()).pull().await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{answer}: {error}");
    }
    let fake = Fake::start().await;
    fake.lock(Door::Token { realm: None, password: None });
    fake.hook(|seen| {
        (seen.path == "/token")
            .then(|| pieces(200, None, (0..4).map(|_| Ok(Bytes::from(vec![b' '; 1 << 20]))).collect()))
    });
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
}

fn send_on(to: String) -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, to)]).into_response()
}

#[tokio::test]
async fn a_redirect_loses_the_key_and_is_judged() {
    let (fake, storage) = (Fake::start().await, Fake::start().await);
    let one = content(5000, 1);
    fake.image("a/b", "tag", &[&one]);
    storage.blob(&one, OCI_LAYER);
    fake.lock(Door::Token { realm: None, password: None });
    let (there, wanted) = (storage.host(), Digest::of(&one));
    fake.hook(move |seen| {
        let is_layer = seen.path.ends_with(&wanted.to_string()) && seen.headers.contains_key(header::AUTHORIZATION);
        is_layer.then(|| send_on(format!("http://{there}{}?signature=secret", seen.path)))
    });
    let dialled = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&dialled);
    let judge = move |_: &str, address: std::net::SocketAddr| {
        told.lock().unwrap().push(address);
        Ok(())
    };
    let story = Story::new(&fake, Options { judge: Arc::new(judge), ..options() });
    story.pull().await.unwrap();
    assert_eq!(story.layer(&one), one);
    let seen = storage.seen();
    assert_eq!(seen.len(), 1);
    assert!(!seen[0].headers.contains_key(header::AUTHORIZATION), "the storage is not the registry");
    assert!(dialled.lock().unwrap().contains(&storage.address()));

    // The judge refuses the storage.
    let forbidden = storage.address();
    let judge = move |_: &str, address| if address == forbidden { Err("it is the storage".to_owned()) } else { Ok(()) };
    let error = Story::new(&fake, Options { judge: Arc::new(judge), ..options() }).pull().await.unwrap_err();
    assert!(matches!(&error, Error::Forbidden { why, .. } if why == "it is the storage"), "{error}");
    assert_eq!(storage.seen().len(), 1);
    assert!(!error.to_string().contains("secret"));
}

#[tokio::test]
async fn a_place_that_it_is_sent_on_to_cannot_ask_for_the_registrys_password() {
    let one = content(5000, 1);
    for scheme in ["Bearer", "Basic"] {
        let (fake, storage) = (Fake::start().await, Fake::start().await);
        fake.image("a/b", "tag", &[&one]);
        fake.lock(Door::Basic("u:p"));
        let (there, wanted) = (storage.host(), Digest::of(&one));
        fake.hook(move |seen| {
            let is_layer = seen.path.ends_with(&wanted.to_string()) && seen.headers.contains_key(header::AUTHORIZATION);
            is_layer.then(|| send_on(format!("http://{there}/steal")))
        });
        let realm = format!("{scheme} realm=\"http://{}/token\"", storage.host());
        storage.hook(move |seen| {
            let refusal = (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, realm.clone())]).into_response();
            (seen.path != "/token").then_some(refusal)
        });
        let mut options = options();
        let password = Credentials::Password { user: "u".into(), password: "p".into() };
        options.credentials.insert(fake.host(), password);
        let error = Story::new(&fake, options).pull().await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
        let seen = storage.seen();
        assert!(!seen.is_empty() && seen.iter().all(|seen| seen.path != "/token"), "{scheme}: {seen:?}");
        assert!(seen.iter().all(|seen| !seen.headers.contains_key(header::AUTHORIZATION)), "{scheme}: {seen:?}");
    }
}

#[tokio::test]
async fn cannot_be_sent_to_the_hosts_neighbourhood() {
    let secret = Fake::start().await;
    // The registry itself may be reached, everything else on this machine may not.
    for kind in ["redirect", "realm"] {
        for place in
            [secret.host(), format!("localhost:{}", secret.address().port()), "[::1]:80".into(), "2130706433:80".into()]
        {
            let fake = Fake::start().await;
            fake.image("a/b", "tag", &[b"layer"]);
            let allowed = fake.address();
            let url = format!("http://{place}/token");
            match kind {
                "realm" => fake.lock(Door::Token { realm: Some(url), password: None }),
                _ => fake.hook(move |seen| (seen.method == Method::GET).then(|| send_on(url.clone()))),
            }
            let judge = move |host: &str, address| {
                if address == allowed { Ok(()) } else { Err(format!("{host} is this machine")) }
            };
            let error = Story::new(&fake, Options { judge: Arc::new(judge), ..options() }).pull().await.unwrap_err();
            assert!(
                matches!(&error, Error::Forbidden { why, .. } if why.contains("this machine")),
                "{kind} {place}: {error}"
            );
        }
    }
    assert!(secret.seen().is_empty());
}

#[tokio::test]
async fn cannot_be_sent_to_plain_http_elsewhere() {
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://registry.example/x",
        "ftp://127.0.0.1/x",
        "file:///etc/shadow",
    ] {
        let fake = Fake::start().await;
        fake.image("a/b", "tag", &[b"layer"]);
        fake.hook(move |seen| (seen.method == Method::GET).then(|| send_on(url.to_owned())));
        let error = Story::new(&fake, options()).pull().await.unwrap_err();
        assert!(matches!(error, Error::Insecure { .. }), "{url}: {error}");
    }
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[b"layer"]);
    fake.hook(|seen| {
        (seen.method == Method::GET)
            .then(|| send_on(format!("http://{}{}x", seen.header(header::HOST).unwrap(), seen.path)))
    });
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(error.to_string().contains("more than 5 times"), "{error}");
}

/// Answers for the only layer of an image, and nothing else.
async fn lying(layer: &[u8], answer: impl Fn(&[u8]) -> Response + Send + 'static) -> (Fake, Error) {
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[layer]);
    let (path, bytes) = (format!("/v2/a/b/blobs/{}", Digest::of(layer)), layer.to_vec());
    fake.hook(move |seen| (seen.path == path).then(|| answer(&bytes)));
    let story = Story::new(&fake, options());
    let error = story.pull().await.unwrap_err();
    assert!(open_layer(story.target(), &Digest::of(layer)).is_err(), "a wrong layer was kept");
    (fake, error)
}

#[tokio::test]
async fn a_layer_that_is_not_what_it_is_called_is_refused() {
    let layer = content(50_000, 1);
    let (_, other) = lying(&layer, |bytes| [&[!bytes[0]], &bytes[1..]].concat().into_response()).await;
    assert!(matches!(&other, Error::Content { why, .. } if why.contains("another content")), "{other}");
    let (_, longer) = lying(&layer, |bytes| [bytes, b"x"].concat().into_response()).await;
    assert!(matches!(&longer, Error::Content { why, .. } if why.contains("50001 bytes follow")), "{longer}");
    let (_, shorter) = lying(&layer, |bytes| bytes[1..].to_vec().into_response()).await;
    assert!(matches!(&shorter, Error::Content { why, .. } if why.contains("49999 bytes follow")), "{shorter}");
    // Without a length, and without an end.
    let endless = |bytes: &[u8]| {
        let piece = Bytes::copy_from_slice(bytes);
        let body = futures::stream::repeat_with(move || Ok::<_, std::io::Error>(piece.clone()));
        Response::new(axum::body::Body::from_stream(body))
    };
    let (_, endless) = lying(&layer, endless).await;
    assert!(matches!(&endless, Error::Content { why, .. } if why.contains("larger than the 50000 bytes")), "{endless}");
    // Shorter without a length: it could be a connection that broke, so it is tried again, but not for ever.
    let (fake, cut) = lying(&layer, |bytes| pieces(200, None, vec![Ok(Bytes::copy_from_slice(&bytes[..9]))])).await;
    assert!(matches!(&cut, Error::Unreachable { why, .. } if why.contains("ends after 9 of 50000")), "{cut}");
    assert!(fake.count(&Method::GET, "/blobs/") < 10);
}

#[tokio::test]
async fn manifests_and_configs_are_compared_with_their_digests() {
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[b"layer"]);
    let real = fake.0.manifests.lock().unwrap().clone();
    // What HEAD said is what is fetched: a tag that moves in between changes nothing.
    let mover = fake.clone();
    fake.hook(move |seen| {
        if seen.method == Method::GET {
            mover.0.manifests.lock().unwrap().insert(("a/b".into(), "tag".into()), b"{}".to_vec());
        }
        None
    });
    Story::new(&fake, options()).pull().await.unwrap();
    *fake.0.manifests.lock().unwrap() = real;
    // Another content under a digest.
    fake.hook(|seen| {
        (seen.method == Method::GET && seen.path.contains("/manifests/sha256:")).then(|| "{}".into_response())
    });
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(error.to_string().contains("the manifest has another content"), "{error}");
    // A manifest without end.
    fake.hook(|seen| {
        let endless = || pieces(200, None, (0..8).map(|_| Ok(Bytes::from(vec![b' '; 1 << 20]))).collect());
        (seen.method == Method::GET).then(endless)
    });
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    // A config of another size or content.
    for (config, why) in [("{}", "bytes, the manifest says"), (" ", "bytes, the manifest says")] {
        fake.hook(move |seen| seen.path.contains("/blobs/").then(|| config.into_response()));
        let error = Story::new(&fake, options()).pull().await.unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn an_image_for_another_machine_or_too_large_is_refused() {
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[&content(100_000, 1)]);
    let story = Story::new(&fake, options());
    let other = Platform::parse("linux/s390x").unwrap();
    let error = story.registry.inspect(&story.reference, &other).await.unwrap_err();
    assert!(error.to_string().contains("it has no image for linux/s390x; there are: linux/"), "{error}");
    let error = Story::new(&fake, Options { largest: 50_000, ..options() }).pull().await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(fake.count(&Method::GET, &format!("/blobs/{}", Digest::of(&content(100_000, 1)))), 0);
}

#[tokio::test]
async fn a_broken_transfer_goes_on_where_it_stopped() {
    for ranges in ["ranges", "no ranges"] {
        let fake = Fake::start().await;
        let layer = content(200_000, 1);
        fake.image("a/b", "tag", &[&layer]);
        let (path, bytes, tries) =
            (format!("/v2/a/b/blobs/{}", Digest::of(&layer)), layer.clone(), AtomicUsize::new(0));
        fake.hook(move |seen| {
            if seen.path != path {
                return None;
            }
            match tries.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    let cut = vec![Ok(Bytes::copy_from_slice(&bytes[..120_000])), Err(std::io::Error::other("gone"))];
                    Some(pieces(200, Some(bytes.len()), cut))
                }
                1 => Some(pieces(200, None, vec![Ok(Bytes::copy_from_slice(&bytes[..120_000]))])),
                _ if ranges == "ranges" => None,
                _ => Some(bytes.clone().into_response()),
            }
        });
        let story = Story::new(&fake, options());
        story.pull().await.unwrap();
        assert_eq!(story.layer(&layer), layer, "{ranges}");
        let asked: Vec<_> =
            fake.seen().iter().filter_map(|seen| seen.header(header::RANGE).map(str::to_owned)).collect();
        assert_eq!(asked.last().map(String::as_str), Some("bytes=120000-"));
    }
}

#[tokio::test]
async fn what_a_former_pull_left_is_used_if_it_is_right() {
    let layer = content(100_000, 1);
    for (left, ranges) in
        [(layer[..40_000].to_vec(), 1), (vec![0; 40_000], 1), (vec![0; 200_000], 0), (layer.clone(), 0), (vec![], 0)]
    {
        let fake = Fake::start().await;
        fake.image("a/b", "tag", &[&layer]);
        let story = Story::new(&fake, options());
        std::fs::write(story.directory.path().join(format!("{}.part", Digest::of(&layer).hex())), left).unwrap();
        story.pull().await.unwrap();
        assert_eq!(story.layer(&layer), layer);
        assert_eq!(fake.seen().iter().filter(|seen| seen.headers.contains_key(header::RANGE)).count(), ranges);
        assert_eq!(story.files(), 1);
    }
    // A whole file of that name is read before it is believed.
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[&layer]);
    let story = Story::new(&fake, options());
    std::fs::write(story.directory.path().join(Digest::of(&layer).hex()), vec![0; 100_000]).unwrap();
    story.pull().await.unwrap();
    assert_eq!(story.layer(&layer), layer);
}

#[tokio::test]
async fn a_busy_registry_is_given_time_but_not_all_of_it() {
    let fake = Fake::start().await;
    fake.image("a/b", "tag", &[b"layer"]);
    let tries = AtomicUsize::new(0);
    fake.hook(move |_| {
        let busy =
            |after: &'static str| (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after)]).into_response();
        // The first request finds out whether the host speaks TLS; it never arrives here.
        match tries.fetch_add(1, Ordering::Relaxed) {
            0 => Some(busy("1")),
            1 => Some(status(502)),
            _ => None,
        }
    });
    let begun = Instant::now();
    Story::new(&fake, options()).pull().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // A year is too long.
    fake.hook(|_| Some((StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, "31536000")]).into_response()));
    let begun = Instant::now();
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(matches!(error, Error::Busy { wait, .. } if wait.as_secs() == 31_536_000), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    // A server that is broken for good is tried as often as configured.
    let before = fake.seen().len();
    fake.hook(|_| Some(status(500)));
    let error = Story::new(&fake, options()).pull().await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: 500, .. }), "{error}");
    assert_eq!(fake.seen().len() - before, 3);
}

#[tokio::test]
async fn a_silent_registry_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Options { silence: Duration::from_millis(200), attempts: 2, ..options() };
    let reference = Reference::parse(&format!("{}/a/b", listener.local_addr().unwrap()), &options.names).unwrap();
    let begun = Instant::now();
    let error = Registry::new(options).inspect(&reference, &Platform::host()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn mirrors_are_tried_in_their_order() {
    let (registry, mirror) = (Fake::start().await, Fake::start().await);
    let layer = content(1000, 1);
    registry.image("a/b", "tag", &[&layer]);
    let mut options = options();
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    options.names.mirrors.insert(registry.host(), vec![dead.to_string(), format!("{}/proxy", mirror.host())]);
    // Neither of the mirrors has it.
    Story::new(&registry, options.clone()).pull().await.unwrap();
    assert_eq!(mirror.count(&Method::HEAD, "/v2/proxy/a/b/manifests/tag"), 1);
    // The second one has.
    mirror.image("proxy/a/b", "tag", &[&layer]);
    let before = registry.seen().len();
    Story::new(&registry, options.clone()).pull().await.unwrap();
    assert_eq!(registry.seen().len(), before, "not asked");
    // It has the manifest and a wrong layer: the registry's is taken.
    mirror.0.blobs.lock().unwrap().insert(Digest::of(&layer), content(1000, 2));
    let story = Story::new(&registry, options);
    story.pull().await.unwrap();
    assert_eq!(story.layer(&layer), layer);
}

/// An image of one layer, ready to be pushed.
struct Outgoing {
    manifest: Manifest,
    blobs: BTreeMap<Digest, Arc<File>>,
}

fn outgoing(layer: &[u8]) -> Outgoing {
    let host = Platform::host();
    let config = json!({"os": host.os, "architecture": host.architecture, "rootfs": {"type": "layers", "diff_ids": [Digest::of(layer)]}});
    let config = config.to_string().into_bytes();
    let file = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        Arc::new(file)
    };
    let part = |media_type, bytes: &[u8]| Descriptor::new(media_type, Digest::of(bytes), bytes.len() as u64);
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(OCI_MANIFEST.into()),
        config: part(OCI_CONFIG, &config),
        layers: vec![part(OCI_LAYER, layer)],
    };
    let blobs = [layer, &config].map(|bytes| (Digest::of(bytes), file(bytes))).into();
    Outgoing { manifest, blobs }
}

impl Story {
    async fn push(&self, image: &Outgoing) -> Result<Pushed, Error> {
        self.registry.push(&self.reference, &image.manifest, &image.blobs, None, |_| {}).await
    }
}

#[tokio::test]
async fn an_image_is_pushed_and_pulled_again() {
    let fake = Fake::start().await;
    fake.lock(Door::Token { realm: None, password: None });
    let layer = content(250_000, 1);
    let image = outgoing(&layer);
    // In three pieces.
    let story = Story::new(&fake, Options { piece: 100_000, ..options() });
    let told = Mutex::new(BTreeMap::new());
    let note = |progress: Progress| {
        told.lock().unwrap().insert(progress.layer, (progress.done, progress.size));
    };
    let pushed = story.registry.push(&story.reference, &image.manifest, &image.blobs, None, note).await.unwrap();
    assert_eq!((pushed.sent, fake.count(&Method::PATCH, "/uploads/")), (2, 2));
    assert_eq!(told.lock().unwrap()[&Digest::of(&layer)], (250_000, 250_000), "it is told to its end");
    // One token for everything, also for what only asks.
    for seen in fake.seen().iter().filter(|seen| seen.path == "/token") {
        assert_eq!(seen.query, "scope=repository%3Aa%2Fb%3Apull%2Cpush&service=test");
    }
    let pulled = story.pull().await.unwrap();
    assert_eq!((pulled.digest, story.layer(&layer)), (pushed.manifest, layer.clone()));
    // What is there is not sent again.
    assert_eq!(story.push(&image).await.unwrap().sent, 0);
    // HEAD does not see another repository's blobs, mounting does.
    fake.hook(|seen| (seen.method == Method::HEAD).then(|| status(404)));
    let mounted = story.registry.push(&story.reference, &image.manifest, &image.blobs, Some("other"), |_| {}).await;
    assert_eq!(mounted.unwrap().sent, 0);
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_begun_again_a_few_times() {
    let fake = Fake::start().await;
    let layer = content(250_000, 1);
    let image = outgoing(&layer);
    let story = Story::new(&fake, Options { piece: 100_000, parallel: 1, ..options() });
    let mut left = 2;
    fake.hook(move |seen| {
        let breaks = seen.method == Method::PATCH && left > 0;
        left -= u32::from(breaks);
        // An upload that a registry forgot is no reason to give up either.
        breaks.then(|| status(if left == 0 { 404 } else { 503 }))
    });
    assert_eq!(story.push(&image).await.unwrap().sent, 2);
    assert_eq!(story.pull().await.map(|_| story.layer(&layer)).unwrap(), layer);
    // Not for ever.
    let fake = Fake::start().await;
    let story = Story::new(&fake, options());
    fake.hook(|seen| (seen.method == Method::PUT).then(|| status(500)));
    let error = story.push(&image).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: 500, .. }), "{error}");
    assert!(fake.count(&Method::POST, "/uploads/") <= 2 * 3, "{}", fake.count(&Method::POST, "/uploads/"));
}

#[tokio::test]
async fn what_is_pushed_goes_to_the_registry_that_was_named_and_nowhere_else() {
    let (fake, other) = (Fake::start().await, Fake::start().await);
    let image = outgoing(b"a layer");
    let allowed = fake.address();
    let judge = move |_: &str, address: std::net::SocketAddr| match address == allowed {
        true => Ok(()),
        false => Err(format!("{address} is none of theirs")),
    };
    let options = Options { judge: Arc::new(judge), ..options() };
    let elsewhere = format!("http://{}/v2/a/b/blobs/uploads/u0", other.host());
    let sent_on = |status: StatusCode| {
        let place = elsewhere.clone();
        move || (status, [(header::LOCATION, place.clone())]).into_response()
    };
    // Where the upload goes on, and answers that send it on: when it begins, with its last piece, with the manifest.
    for (method, part, code, words) in [
        (Method::POST, "/uploads/", StatusCode::ACCEPTED, "another host"),
        (Method::POST, "/uploads/", StatusCode::TEMPORARY_REDIRECT, "another place"),
        (Method::PUT, "/uploads/", StatusCode::PERMANENT_REDIRECT, "another place"),
        (Method::PUT, "/manifests/", StatusCode::TEMPORARY_REDIRECT, "another place"),
        (Method::HEAD, "/blobs/", StatusCode::TEMPORARY_REDIRECT, "may not be reached"),
    ] {
        let (asked, answer) = (method.clone(), sent_on(code));
        fake.hook(move |seen| (seen.method == asked && seen.path.contains(part)).then(&answer));
        let error = Story::new(&fake, options.clone()).push(&image).await.unwrap_err();
        assert!(error.to_string().contains(words), "{method} {part}: {error}");
        fake.0.blobs.lock().unwrap().clear();
    }
    assert!(other.seen().is_empty(), "{:?}", other.seen());
}

#[tokio::test]
async fn a_registry_that_says_it_has_something_else_is_not_believed() {
    let image = outgoing(b"a layer");
    let wrong = Digest::of(b"something else").to_string();
    for (method, part) in [(Method::HEAD, "/blobs/"), (Method::PUT, "/uploads/"), (Method::PUT, "/manifests/")] {
        let fake = Fake::start().await;
        let (asked, claims) = (method.clone(), wrong.clone());
        fake.hook(move |seen| {
            let answer = || (StatusCode::CREATED, [("docker-content-digest", claims.clone())]).into_response();
            (seen.method == asked && seen.path.contains(part)).then(answer)
        });
        let error = Story::new(&fake, options()).push(&image).await.unwrap_err();
        assert!(
            matches!(error, Error::Content { .. }) && error.to_string().contains(&wrong),
            "{method} {part}: {error}"
        );
    }
    // Uploads without a place, and endless answers.
    let fake = Fake::start().await;
    fake.hook(|seen| (seen.method == Method::POST).then(|| status(202)));
    let error = Story::new(&fake, options()).push(&image).await.unwrap_err();
    assert!(error.to_string().contains("where to upload"), "{error}");
    fake.hook(|seen| {
        let endless = || {
            let body = futures::stream::repeat_with(|| Ok::<_, std::io::Error>(Bytes::from_static(&[b'x'; 4096])));
            Response::builder().status(400).body(axum::body::Body::from_stream(body)).unwrap()
        };
        (seen.method == Method::POST).then(endless)
    });
    let error = Story::new(&fake, options()).push(&image).await.unwrap_err();
    assert!(matches!(error, Error::Answer { status: 400, .. }), "{error}");
}

#[tokio::test]
async fn without_the_right_credentials_nothing_is_pushed() {
    let image = outgoing(b"a layer");
    for (door, given) in [
        (Door::Basic("u:p"), None),
        (Door::Basic("u:p"), Some("wrong")),
        (Door::Token { realm: None, password: Some("u:p") }, None),
        (Door::Token { realm: None, password: Some("u:p") }, Some("wrong")),
    ] {
        let fake = Fake::start().await;
        fake.lock(door);
        let mut options = options();
        if let Some(password) = given {
            let who = Credentials::Password { user: "u".into(), password: password.into() };
            options.credentials.insert(fake.host(), who);
        }
        let error = Story::new(&fake, options).push(&image).await.unwrap_err();
        assert!(matches!(error, Error::Unauthorized { .. }), "{given:?}: {error}");
        assert_eq!(fake.count(&Method::POST, "/uploads/"), 0);
    }
}

/// Answers as a registry does until a body comes, of which it reads nothing.
async fn reads_nothing() -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                loop {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            // The beginning of TLS, which this one does not speak.
                            Ok(0x16) | Err(_) => return,
                            Ok(byte) => head.push(byte),
                        }
                    }
                    let answer: &[u8] = match &head[..4] {
                        b"HEAD" => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
                        b"POST" => b"HTTP/1.1 202 Accepted\r\nlocation: /up\r\ncontent-length: 0\r\n\r\n",
                        b"GET " => b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
                        _ => std::future::pending().await,
                    };
                    if stream.write_all(answer).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn a_peer_that_takes_nothing_is_given_up_and_one_that_is_slow_is_not() {
    let address = reads_nothing().await;
    let image = outgoing(&vec![7; 1 << 20]);
    let silence = Duration::from_millis(300);
    let options = Options { silence, attempts: 1, ..options() };
    let reference = Reference::parse(&format!("{address}/a/b:tag"), &options.names).unwrap();
    let begun = Instant::now();
    let pushed = Registry::new(options.clone()).push(&reference, &image.manifest, &image.blobs, None, |_| {}).await;
    assert!(matches!(&pushed, Err(Error::Unreachable { why, .. }) if why.contains("takes nothing")), "{pushed:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // Longer than a peer may be silent, and something is taken all the time.
    let (registry, taken, end) = (Registry::new(options), AtomicU64::new(0), tokio::sync::Notify::new());
    let tell = |_: u64| {
        if taken.fetch_add(1, Ordering::Relaxed) == 5 {
            end.notify_one();
        }
    };
    let slow = async {
        end.notified().await;
        Err(Error::NotFound { what: "its end".into() })
    };
    let ended = registry.while_taken("x", send::Upload { taken: &taken, tell: &tell }, slow).await;
    assert!(matches!(ended, Err(Error::NotFound { .. })), "{ended:?}");
}
