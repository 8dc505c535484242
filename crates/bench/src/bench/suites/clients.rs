//! Many clients at once, none of whom ever thinks: create, exec, file up, file down, delete.

use std::time::Duration;

use super::super::Bench;
use crate::loadtest::{Deed, Habits, Load, Until, suite_of};
use crate::measure::report::{Mishap, Suite, Unit};

pub async fn measure(bench: &Bench) -> Suite {
    let Some(server) = &bench.server else {
        let mut suite = Suite::new("clients", "Many clients at once", "");
        bench.note_absent(&mut suite);
        return suite;
    };
    let (users, think) = (bench.effort.clients, Duration::ZERO);
    let habits = Habits { deeds: vec![Deed::Exec, Deed::Files], think, until: Until::Once };
    bench.bar.set_message(format!("{users} clients at once"));
    let tally = Load { users, habits }.put_on(&server.api, &indicatif::ProgressBar::hidden()).await;
    let mut suite = suite_of(&tally, users, think);
    suite.row("errors", Unit::Count, &[tally.errors() as f64]);
    suite.row("over capacity", Unit::Count, &[tally.busy() as f64]);
    for Mishap { step, count, example, .. } in tally.mishaps() {
        suite.absent(&format!("{count} × {step}"), example);
    }
    suite
}
