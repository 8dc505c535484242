//! The first launch of several sandboxes that are copies of one: one call of the provider for all of them.
//!
//! Each has a row in the state `creating`, as every new sandbox has. The provider makes all of them of one instant of their
//! source; from there on each goes its own way through the state machine.

use futures::StreamExt as _;

use super::lifecycle::Known;
use super::state::Effect;
use super::{Sandbox, State};
use crate::provider::{Handle, Order, ProviderError};
use crate::{App, Error};

/// Outcomes that are written at one time.
const AT_ONCE: usize = 16;

impl App {
    /// Launches copies of the sandbox that the provider knows as `source`. Each succeeds or fails for itself, in their order; one
    /// that fails leaves nothing: nobody was told of it. For those who hold the locks of all of them.
    pub(crate) async fn launch_copies(
        &self,
        provider: &str,
        source: &Handle,
        copies: Vec<Sandbox>,
    ) -> Vec<Result<Sandbox, Error>> {
        let outcomes = self.fork_all(provider, source, &copies).await;
        let each = |(copy, outcome): (Sandbox, Result<Known, Error>)| self.conclude_copy(copy, outcome);
        let all: Vec<(Sandbox, Result<Known, Error>)> = copies.into_iter().zip(outcomes).collect();
        futures::stream::iter(all).map(each).buffered(AT_ONCE).collect().await
    }

    async fn fork_all(&self, provider: &str, source: &Handle, copies: &[Sandbox]) -> Vec<Result<Known, Error>> {
        let orders: Result<Vec<Order>, Error> = copies.iter().map(Sandbox::order).collect();
        let asked = orders.and_then(|orders| Ok((self.provider(provider)?, orders)));
        let made: Vec<Result<Handle, ProviderError>> = match asked {
            Ok((provider, orders)) => provider.layers().forks(source, &orders).await,
            // The same for all: they differ in their names alone.
            Err(error) => vec![Err(ProviderError::Failed(error.to_string())); copies.len()],
        };
        let mut outcomes: Vec<Result<Known, Error>> =
            made.into_iter().map(|one| one.map(Known::As).map_err(Error::from)).collect();
        // A provider that answers for fewer has not made the others.
        outcomes.resize_with(copies.len(), || Err(Error::internal("the provider says nothing of a copy")));
        outcomes
    }

    async fn conclude_copy(&self, copy: Sandbox, outcome: Result<Known, Error>) -> Result<Sandbox, Error> {
        let made = self.pursue_from(copy, Effect::Launch, outcome).await?;
        match made.state {
            State::Running => Ok(made),
            state => Err(Error::Conflict(format!("sandbox {} became {state} while it was made", made.id))),
        }
    }
}
