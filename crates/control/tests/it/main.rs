//! Tests of the control plane on the fake provider: fast, and valid wherever the provider does not matter.

mod api;
mod borders;
mod capacity;
mod contract;
mod dialects;
mod doors;
mod faults;
mod harness;
mod lifecycle;
mod live;
mod metrics;
mod order;
mod orphans;
mod routes;
mod strangers;
mod strict;
mod unfinished;
