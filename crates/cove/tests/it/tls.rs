//! `cove tls`: what clients must trust. The whole way, with clients, is told in tests/e2b.

use cove_testkit::server::TestDirectory;

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
