//! `cove tls`: what clients must trust. tests/e2b has the whole way, with clients.

use std::time::Duration;

use cove_testkit::TestServer;
use cove_testkit::server::{KEY, TestDirectory};
use cove_testkit::wait::{LIMIT, until_some};
use serde_json::{Value, json};

#[test]
fn the_first_use_makes_the_authority_and_the_next_finds_it() {
    let place = TestDirectory::new();
    let first = place.cove(["tls"]).finish().expect_success();
    assert!(first.stderr.contains("hint: no server of this data directory has listened with TLS yet"), "{first:?}");
    let authority = place.data().join("tls/authority.pem");
    for line in [
        format!("authority  {}", authority.display()),
        format!("export SSL_CERT_FILE={}", place.data().join("tls/bundle.pem").display()),
        format!("export NODE_EXTRA_CA_CERTS={}", authority.display()),
    ] {
        assert!(first.stdout.contains(&line), "{line} is missing in\n{}", first.stdout);
    }
    assert_eq!(first.stdout, place.cove(["tls"]).finish().expect_success().stdout);
}

#[test]
fn the_environment_is_lines_for_a_shell_and_nothing_else() {
    let place = TestDirectory::new();
    let finished = place.cove(["tls", "env"]).finish().expect_success();
    assert_eq!(finished.stdout.lines().count(), 3);
    assert!(finished.stdout.lines().all(|line| line.starts_with("export ") && line.contains('=')), "{finished:?}");
}

#[test]
fn renewing_changes_the_certificate_and_a_new_key_says_what_that_means() {
    let place = TestDirectory::new();
    let authority = || std::fs::read_to_string(place.data().join("tls/authority.pem")).unwrap();
    let key = || std::fs::read_to_string(place.data().join("tls/authority-key.pem")).unwrap();
    place.cove(["tls"]).finish().expect_success();
    let (first, first_key) = (authority(), key());
    place.cove(["tls", "renew"]).finish().expect_success();
    assert_ne!(authority(), first);
    assert_eq!(key(), first_key);
    let finished = place.cove(["tls", "renew", "--new-key"]).finish().expect_success();
    assert_ne!(key(), first_key);
    assert!(finished.stderr.contains("hint: clients that trust a copy"), "{finished:?}");
}

#[test]
fn half_an_authority_is_named() {
    let place = TestDirectory::new();
    place.cove(["tls"]).finish().expect_success();
    std::fs::remove_file(place.data().join("tls/authority.pem")).unwrap();
    let finished = place.cove(["tls"]).finish().expect_code(1);
    assert!(finished.stderr.contains("authority.pem is missing"), "{finished:?}");
}

/// A client that trusts the server's authority, and finds its names on this machine.
fn client(server: &TestServer, names: &[String], address: &str) -> reqwest::Client {
    // A second test in the same process has set it already.
    let _there = rustls::crypto::ring::default_provider().install_default();
    let authority = std::fs::read(server.data().join("tls/authority.pem")).unwrap();
    let mut builder = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(20))
        .tls_certs_only([reqwest::Certificate::from_pem(&authority).unwrap()]);
    for name in names {
        builder = builder.resolve(name, address.parse().unwrap());
    }
    builder.build().unwrap()
}

/// A name below `localhost` is this machine, whatever the system's resolver says.
#[test]
fn the_verbs_reach_a_server_by_its_own_name() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = TestServer::start_with(&["--tls", &free.to_string()]);
    let plain = format!("http://cove.localhost:{}", server.address().rsplit(':').next().unwrap());
    for url in [plain, format!("https://cove.localhost:{}", free.port())] {
        let cove = |arguments: &[&str]| {
            let cove = server.cove(arguments.iter().copied()).env("COVE_URL", &url);
            cove.env("SSL_CERT_FILE", server.data().join("tls/authority.pem")).finish().expect_success().stdout
        };
        let name = cove(&["create"]);
        // The second goes over a WebSocket.
        assert_eq!(cove(&["exec", name.trim(), "--", "echo", "hi"]), "hi\n", "{url}");
        assert!(cove(&["ls"]).contains(name.trim()), "{url}");
    }
    // Who does not trust it yet, or takes the wrong door, reads what to do.
    let refused = |url: String, verb: &str| {
        let words: &[&str] = if verb == "exec" { &["exec", "box", "--", "true"] } else { &["ls"] };
        server.cove(words.iter().copied()).env("COVE_URL", url).finish().expect_code(1).stderr
    };
    for verb in ["ls", "exec"] {
        let untrusted = refused(format!("https://{free}"), verb);
        assert!(untrusted.contains("is not trusted") && untrusted.contains("hint: on its own machine"), "{untrusted}");
    }
    let secure = refused(format!("http://{free}"), "ls");
    assert!(secure.contains("speaks TLS") && secure.contains("https://"), "{secure}");
    let plain = refused(format!("https://{}", server.address()), "ls");
    assert!(plain.contains("does not speak TLS"), "{plain}");
}

#[test]
fn links_lead_back_the_way_that_the_client_came() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let server = TestServer::start_with(&["--tls", &free]);
    let made = server.request("POST", "/api/sandboxes", Some(&json!({"public": true}))).expect_status(201).json();
    let id = made["id"].as_str().unwrap();
    let line = json!({"shell": "echo here > index.html; python3 -m http.server 8000", "background": true});
    server.request("POST", &format!("/api/sandboxes/{id}/exec"), Some(&line)).expect_status(200);
    let plain = server.request("GET", &format!("/api/sandboxes/{id}/ports/8000/link"), None).expect_status(200).json();
    assert!(plain["url"].as_str().unwrap().starts_with(&server.url()), "{plain}");

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let name = format!("8000-{id}.cove.localhost");
    let client = client(&server, &[name], &free);
    let get = |url: String| {
        let request = client.get(url).bearer_auth(KEY);
        runtime.block_on(async { request.send().await.ok()?.error_for_status().ok()?.text().await.ok() })
    };
    let link = get(format!("https://{free}/api/sandboxes/{id}/ports/8000/link")).expect("a link by https");
    let link: Value = serde_json::from_str(&link).unwrap();
    for field in ["url", "host_url"] {
        let url = link[field].as_str().unwrap().to_owned();
        assert!(url.starts_with("https://"), "{field} of {link}");
        let page = until_some("the page", LIMIT, || get(url.clone()));
        assert_eq!(page, "here\n", "{field} of {link}");
    }
}
