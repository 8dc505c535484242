//! Tests of the control plane on the fake provider: fast, and valid wherever the provider does not matter.

mod api;
mod borders;
mod budgets;
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
mod retention;
mod routes;
mod strangers;
mod strict;
mod typescript;
mod unfinished;
