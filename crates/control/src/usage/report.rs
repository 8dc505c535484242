//! The sum of all use, with prices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::open_span;
use crate::clock::Timestamp;
use crate::sandbox::{Filter, Order, Page};
use crate::store::usage::Span;
use crate::{App, Caller, Error};

/// Dollars an hour.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    pub cpu_hour: f64,
    pub memory_gib_hour: f64,
    pub disk_gib_hour: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Prices { cpu_hour: 0.0504, memory_gib_hour: 0.0162, disk_gib_hour: 0.000108 }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Amount {
    /// Seconds in which anything was used.
    pub seconds: f64,
    pub cpu_seconds: f64,
    pub memory_gib_seconds: f64,
    pub disk_gib_seconds: f64,
    /// Dollars.
    pub cost: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Report {
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    pub prices: Prices,
    pub total: Amount,
    pub by_sandbox: BTreeMap<String, Amount>,
    /// Sandboxes without an owner have the empty name.
    pub by_owner: BTreeMap<String, Amount>,
}

const GIB: f64 = (1u64 << 30) as f64;

impl Amount {
    fn of(span: &Span, from: Timestamp, to: Timestamp, prices: &Prices) -> Self {
        let begin = span.from.max(from).as_millisecond();
        let end = span.to.min(to).as_millisecond();
        let seconds = (end - begin).max(0) as f64 / 1000.0;
        let cpu_seconds = seconds * span.rate.cpus;
        let memory_gib_seconds = seconds * span.rate.memory as f64 / GIB;
        let disk_gib_seconds = seconds * span.rate.disk as f64 / GIB;
        let cost = (cpu_seconds * prices.cpu_hour
            + memory_gib_seconds * prices.memory_gib_hour
            + disk_gib_seconds * prices.disk_gib_hour)
            / 3600.0;
        Amount { seconds, cpu_seconds, memory_gib_seconds, disk_gib_seconds, cost }
    }

    fn add(&mut self, other: Amount) {
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
        self.memory_gib_seconds += other.memory_gib_seconds;
        self.disk_gib_seconds += other.disk_gib_seconds;
        self.cost += other.cost;
    }
}

impl App {
    /// Use between two times, of the organisation or of one sandbox; a current span counts up to now.
    pub async fn usage(
        &self,
        caller: &Caller,
        id_or_name: Option<&str>,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
    ) -> Result<Report, Error> {
        let now = self.now();
        let to = to.unwrap_or(now);
        let from = from.unwrap_or_else(|| crate::clock::from_millisecond(to.as_millisecond() - 30 * 24 * 3_600_000));
        if from > to {
            return Err(Error::invalid("from", "must not be after `to`"));
        }
        let one = match id_or_name {
            Some(id) => Some(self.sandbox_even_destroyed(caller, id).await?),
            None => None,
        };
        let only = one.as_ref().map(|sandbox| sandbox.id.to_string());
        let mut spans = self.store().usage_spans(&caller.organisation, only.as_deref(), from, to).await?;
        match &one {
            Some(sandbox) => spans.extend(open_span(sandbox, now)),
            None => {
                let mut page = Page { limit: 1000, cursor: None, order: Order::OldestFirst };
                loop {
                    let listed = self.list_sandboxes(caller, &Filter::default(), &page).await?;
                    spans.extend(listed.items.iter().filter_map(|sandbox| open_span(sandbox, now)));
                    match listed.next {
                        Some(next) => page.cursor = Some(next),
                        None => break,
                    }
                }
            }
        }
        let prices = self.config().prices;
        let mut report = Report {
            from,
            to,
            prices,
            total: Amount::default(),
            by_sandbox: BTreeMap::new(),
            by_owner: BTreeMap::new(),
        };
        for span in &spans {
            let amount = Amount::of(span, from, to, &prices);
            report.total.add(amount);
            report.by_sandbox.entry(span.sandbox.clone()).or_default().add(amount);
            report.by_owner.entry(span.owner.clone().unwrap_or_default()).or_default().add(amount);
        }
        Ok(report)
    }
}
