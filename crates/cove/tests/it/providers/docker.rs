//! What only containers have: people with `docker` in their hands, and a daemon that goes away.

use std::time::Duration;

use cove_control::provider::{Ended, Handle, Order, Seen};
use cove_protocol::{Reply, Request};

use super::place::{Place, SMALL};

const PATIENCE: Duration = Duration::from_secs(120);

/// After all stories: no container, no volume, and no image but the one that they started from.
pub fn nothing_is_left(place: &Place) {
    let Some(docker) = &place.docker else { return };
    assert_eq!((docker.containers(), docker.volumes()), (Vec::new(), Vec::new()));
    assert_eq!(docker.images(), [format!("{}:{}", SMALL.0, SMALL.1)]);
}

/// A daemon that goes takes its containers along. Whoever waits is told when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn ends_are_told_also_where_the_daemon_was_away() {
    let Some(mut place) = Place::docker() else { return };
    let provider = place.open();
    let (killed, other): (Order, Order) = (place.order(), place.order());
    let handle = provider.launch(&killed).await.unwrap();
    let heard = async { tokio::time::timeout(PATIENCE, provider.departure()).await.expect("its end is told") };
    let by_hand = async {
        let docker = place.docker.as_ref().unwrap();
        docker.done("POST", &format!("/containers/{handle}/kill"));
    };
    let (departure, ()) = tokio::join!(heard, by_hand);
    assert_eq!((departure.id, departure.ended), (killed.id.clone(), Ended::Killed { signal: 9 }));

    let second = provider.launch(&other).await.unwrap();
    let docker = place.docker.as_mut().unwrap();
    docker.stop();
    assert!(provider.answers().await.is_err());
    docker.launch();
    let departure = tokio::time::timeout(PATIENCE, provider.departure()).await.expect("its end is told");
    assert_eq!(departure.id, other.id, "{:?}", departure.ended);
    let back = provider.launch(&Order { earlier: Some(second.clone()), ..other.clone() }).await.unwrap();
    assert_eq!(back, second);
    for handle in [handle, second] {
        provider.destroy(&handle).await.unwrap();
    }
    nothing_is_left(&place);
}

/// One that a server began and did not finish is begun again: nothing runs that was not told what it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_somebody_else_started_is_not_taken_for_a_sandbox_that_runs() {
    let Some(place) = Place::docker() else { return };
    let provider = place.open();
    let order = place.order();
    let handle = provider.launch(&order).await.unwrap();
    provider.stop(&handle, Duration::ZERO).await.unwrap();
    place.docker.as_ref().unwrap().done("POST", &format!("/containers/{handle}/start"));
    let seen = provider.sighting(&handle).await.unwrap().unwrap();
    assert_eq!(seen.state, Seen::Stopped, "no launch has come to its end");
    provider.launch(&Order { earlier: Some(handle.clone()), ..order.clone() }).await.unwrap();
    assert_eq!(provider.sighting(&Handle::from(&order.id)).await.unwrap().unwrap().state, Seen::Running);
    assert!(matches!(provider.guest(&handle).call(&Request::Ping).await, Ok(Reply::Pong { .. })));
    provider.destroy(&handle).await.unwrap();
    nothing_is_left(&place);
}
