//! Which provider a new sandbox goes to, and the next one where that is ill.
//!
//! A caller who names a provider gets that one or an error. Otherwise the operator's rules put several in an order
//! (`provider/route.rs`), and a creation that fails for a fault of the provider is tried at the next. A creation that
//! fails leaves nothing behind, so each try is whole.

use super::create::Housed;
use super::{NewSandbox, Sandbox};
use crate::provider::route::{self, Ask};
use crate::template::Template;
use crate::{App, Caller, Error, random};

/// How a provider came to be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// The caller named it.
    Asked(String),
    /// A rule of the operator's did.
    Routed(String),
    /// Nobody did.
    Default,
}

impl Choice {
    pub(super) fn name(&self) -> Option<&str> {
        match self {
            Choice::Asked(name) | Choice::Routed(name) => Some(name),
            Choice::Default => None,
        }
    }
}

impl App {
    /// The providers to try, in this order; at least one.
    fn choices(&self, new: &NewSandbox) -> Vec<Choice> {
        if let Some(asked) = &new.provider {
            return vec![Choice::Asked(asked.clone())];
        }
        let ask = Ask { labels: &new.labels, origin: new.origin() };
        let chosen = route::choose(self.routes(), &ask, |name| self.is_well(name), random::fraction());
        match chosen.is_empty() {
            true => vec![Choice::Default],
            false => chosen.into_iter().map(|name| Choice::Routed(name.to_owned())).collect(),
        }
    }

    /// Makes it where it may go.
    pub(super) async fn create_where_it_may_go(&self, caller: &Caller, new: &NewSandbox) -> Result<Housed, Error> {
        let choices = self.choices(new);
        let last = choices.len() - 1;
        for (number, choice) in choices.into_iter().enumerate() {
            match self.create_at(caller, new, &choice).await {
                Err(error) if number < last && is_of_the_provider(&error) => {
                    let provider = choice.name().unwrap_or_default();
                    tracing::warn!(provider, %error, detail = error.detail(), "a creation goes on to the next provider");
                }
                done => return done,
            }
        }
        Err(Error::internal("a creation without a provider"))
    }

    /// Where it goes by a choice. Files of a template are where they are, whatever a rule says.
    pub(super) fn provider_by(&self, choice: &Choice, template: &Template) -> Result<String, Error> {
        let bound = template.provider.as_deref().filter(|_| !template.image.root.over.is_empty());
        match choice {
            Choice::Routed(name) if bound.is_some_and(|bound| bound != name) => self.provider_for(template, None),
            choice => self.provider_for(template, choice.name()),
        }
    }

    /// Whether a warm pool may have it: its members are where nobody names a provider.
    pub(super) fn may_be_pooled(&self, draft: &Sandbox, template: &Template) -> bool {
        self.provider_for(template, None).is_ok_and(|usual| usual == draft.provider)
    }
}

/// Whether another provider may do what this one did not: it has no room, is broken, or cannot do it at all.
fn is_of_the_provider(error: &Error) -> bool {
    matches!(
        error,
        Error::Exhausted { .. } | Error::Full(_) | Error::Internal { .. } | Error::Unsupported(_) | Error::Guest(_)
    )
}
