//! What a run found, as data: the JSON form is the one truth, every other form is made from it.

use serde::{Deserialize, Serialize};

use super::machine::Machine;
use super::summary::Summary;

/// Rises when a reader of an older form could misunderstand a newer one.
pub const VERSION: u32 = 1;
/// A plot needs no more dots than a screen has room for.
const MOST_DOTS: usize = 300;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub version: u32,
    /// `bench` or `loadtest`.
    pub kind: String,
    /// One line for people.
    pub title: String,
    pub machine: Machine,
    pub seconds: f64,
    /// What is said of this product, and whether this run bears it out.
    #[serde(default)]
    pub promises: Vec<Promise>,
    /// The whole in a sentence, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// What went wrong, by cause.
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "errors_by_kind")]
    pub mishaps: Vec<Mishap>,
    pub suites: Vec<Suite>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mishap {
    pub step: String,
    pub kind: String,
    pub count: u64,
    pub example: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Promise {
    pub what: String,
    pub target: String,
    /// As measured in this run, in words; `None` where it was not.
    pub measured: Option<String>,
    pub kept: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suite {
    /// As `--only` takes it.
    pub name: String,
    pub title: String,
    /// How it was measured.
    pub method: String,
    pub rows: Vec<Row>,
    #[serde(default)]
    pub absent: Vec<Absent>,
    #[serde(default)]
    pub plots: Vec<Plot>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub who: String,
    pub unit: Unit,
    #[serde(flatten)]
    pub summary: Summary,
    /// To the row named by `ratio_to`, of the medians in the same run.
    pub ratio: Option<f64>,
    pub ratio_to: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    #[serde(rename = "ms")]
    Milliseconds,
    #[serde(rename = "per second")]
    PerSecond,
    #[serde(rename = "MiB/s")]
    MebibytesPerSecond,
    #[serde(rename = "MiB")]
    Mebibytes,
    #[serde(rename = "count")]
    Count,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Unit::Milliseconds => "ms",
            Unit::PerSecond => "per s",
            Unit::MebibytesPerSecond => "MiB/s",
            Unit::Mebibytes => "MiB",
            Unit::Count => "",
        }
    }
}

/// Somebody who did not take part, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absent {
    pub who: String,
    pub why: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    pub kind: PlotKind,
    pub title: String,
    /// What the axes count.
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlotKind {
    /// Every sample of each series as a dot, on a logarithmic axis.
    Distribution,
    /// y against x.
    Lines,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

impl Suite {
    pub fn new(name: &str, title: &str, method: &str) -> Suite {
        let [name, title, method] = [name, title, method].map(str::to_owned);
        Suite { name, title, method, rows: Vec::new(), absent: Vec::new(), plots: Vec::new() }
    }

    /// Adds a row of samples; nobody's samples are no row.
    pub fn row(&mut self, who: &str, unit: Unit, samples: &[f64]) {
        if let Some(summary) = Summary::of(samples) {
            let row = Row { who: who.to_owned(), unit, summary, ratio: None, ratio_to: None, note: None };
            self.rows.push(row);
        }
    }

    pub fn absent(&mut self, who: &str, why: impl Into<String>) {
        self.absent.push(Absent { who: who.to_owned(), why: why.into() });
    }

    pub fn find(&self, who: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.who == who)
    }

    /// Gives every row its ratio to the first of `bases` that took part.
    pub fn compare_to(&mut self, bases: &[&str]) {
        let Some(base) = bases.iter().find_map(|base| self.find(base)).cloned() else { return };
        for row in &mut self.rows {
            if row.unit == base.unit && base.summary.p50 > 0.0 {
                row.ratio = Some(row.summary.p50 / base.summary.p50);
                row.ratio_to = Some(base.who.clone());
            }
        }
    }

    /// Gives one row its ratio to another.
    pub fn compare(&mut self, who: &str, base: &str) {
        let Some(base) = self.find(base).cloned() else { return };
        // Nothing is a multiple of nothing.
        if let Some(row) = self.rows.iter_mut().find(|row| row.who == who && base.summary.p50 > 0.0) {
            row.ratio = Some(row.summary.p50 / base.summary.p50);
            row.ratio_to = Some(base.who);
        }
    }

    /// Whom all rows are compared to, where it is one.
    pub fn common_base(&self) -> Option<&str> {
        let mut bases = self.rows.iter().filter_map(|row| row.ratio_to.as_deref());
        let first = bases.next()?;
        bases.all(|base| base == first).then_some(first)
    }

    /// How a row's ratio is written: with its base where the rows have several.
    pub fn ratio_of(&self, row: &Row) -> String {
        match (row.ratio, &row.ratio_to) {
            (Some(ratio), Some(base)) if self.common_base().is_none() => format!("{} × {base}", figure(ratio)),
            (Some(ratio), _) => figure(ratio),
            _ => String::new(),
        }
    }

    pub fn distribution(&mut self, title: &str, samples: &[(String, Vec<f64>)]) {
        let series = samples.iter().filter(|(_, values)| !values.is_empty()).map(|(name, values)| {
            let step = values.len().div_ceil(MOST_DOTS);
            let points = values.iter().step_by(step).enumerate().map(|(at, value)| (at as f64, *value)).collect();
            Series { name: name.clone(), points }
        });
        let series: Vec<_> = series.collect();
        if !series.is_empty() {
            let (x, y) = (String::new(), "milliseconds".to_owned());
            self.plots.push(Plot { kind: PlotKind::Distribution, title: title.to_owned(), x, y, series });
        }
    }

    pub fn lines(&mut self, title: &str, x: &str, y: &str, series: Vec<Series>) {
        let series: Vec<_> = series.into_iter().filter(|series| !series.points.is_empty()).collect();
        if !series.is_empty() {
            let [title, x, y] = [title, x, y].map(str::to_owned);
            self.plots.push(Plot { kind: PlotKind::Lines, title, x, y, series });
        }
    }
}

impl Report {
    pub fn suite(&self, name: &str) -> Option<&Suite> {
        self.suites.iter().find(|suite| suite.name == name)
    }
}

/// Three digits that matter.
pub fn figure(value: f64) -> String {
    match value.abs() {
        0.0 => "0".into(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_to_the_first_base_that_took_part() {
        let mut suite = Suite::new("cold", "", "");
        suite.row("ours", Unit::Milliseconds, &[2.0]);
        suite.row("theirs", Unit::Milliseconds, &[8.0]);
        suite.row("size", Unit::Mebibytes, &[1.0]);
        suite.compare_to(&["nobody", "theirs"]);
        assert_eq!(suite.find("ours").unwrap().ratio, Some(0.25));
        assert_eq!(suite.find("ours").unwrap().ratio_to.as_deref(), Some("theirs"));
        assert_eq!(suite.find("size").unwrap().ratio, None);
    }

    #[test]
    fn figures_have_three_digits_that_matter() {
        let shown = [0.0, 0.01234, 0.5, 2.345, 23.45, 234.5].map(figure);
        assert_eq!(shown, ["0", "0.012", "0.50", "2.35", "23.4", "234"]);
    }
}
