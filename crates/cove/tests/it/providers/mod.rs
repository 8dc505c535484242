//! What every provider does alike, told once and seen on each of them.
//!
//! * [`place`]: a provider with all that it needs, which can be opened again as a server that comes back does
//! * [`stories`]: the contract; [`docker`]: what only that provider has; [`far`]: services, each played by a second server
//! * [`servers`]: a whole server on each of them, killed in the middle
//!
//! Whoever adds a provider adds a place for it, and a test here that tells all stories there.

mod docker;
mod far;
mod place;
mod servers;
mod stories;

use self::place::Place;

#[tokio::test(flavor = "multi_thread")]
async fn local_keeps_the_contract() {
    if let Some(place) = Place::local() {
        stories::tell_all(&place).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_keeps_the_contract() {
    if let Some(place) = Place::docker() {
        stories::tell_all(&place).await;
        docker::nothing_is_left(&place);
    }
}

/// The same daemon as if it were on another machine: no process of its containers is entered.
#[tokio::test(flavor = "multi_thread")]
async fn docker_by_network_keeps_the_contract() {
    if let Some(place) = Place::docker_by_network() {
        stories::tell_all(&place).await;
        docker::nothing_is_left(&place);
    }
}
