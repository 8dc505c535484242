//! Plots as SVG, drawn here: a report opens anywhere, without a network and without a script.

use std::fmt::Write as _;

use super::report::{Plot, PlotKind, Series, figure};

const WIDTH: f64 = 760.0;
/// Grey, which is everybody else's where dots are plotted, comes last.
const COLOURS: [usize; 8] = [0, 2, 3, 4, 5, 6, 7, 1];

pub fn svg(plot: &Plot) -> String {
    match plot.kind {
        PlotKind::Distribution => distribution(plot),
        PlotKind::Lines => lines(plot),
    }
}

/// One lane for each series, every sample a dot, the median a bar, on a logarithmic axis.
fn distribution(plot: &Plot) -> String {
    const LANE: f64 = 26.0;
    const LEFT: f64 = 190.0;
    const RIGHT: f64 = 60.0;
    let values = plot.series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let Some(axis) = Axis::logarithmic(values, LEFT, WIDTH - RIGHT) else { return String::new() };
    let bottom = LANE * plot.series.len() as f64 + 8.0;
    let mut svg = open(plot, bottom + 38.0);
    for (value, label) in &axis.ticks {
        let x = axis.at(*value);
        let _ = write!(svg, r#"<line class="grid" x1="{x:.1}" y1="4" x2="{x:.1}" y2="{bottom:.1}"/>"#);
        let y = bottom + 16.0;
        let _ = write!(svg, r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#);
    }
    for (lane, series) in plot.series.iter().enumerate() {
        let middle = LANE * lane as f64 + LANE / 2.0 + 4.0;
        let colour = if series.name.starts_with("cove") { 0 } else { 1 };
        let name = escape(&series.name);
        let y = middle + 4.0;
        let _ = write!(svg, r#"<text class="name" x="{:.1}" y="{y:.1}" text-anchor="end">{name}</text>"#, LEFT - 10.0);
        for (at, (_, value)) in series.points.iter().enumerate() {
            // Spread evenly and not at random: the same numbers give the same picture.
            let offset = ((at * 7) % 13) as f64 - 6.0;
            let (x, y) = (axis.at(*value), middle + offset);
            let _ = write!(svg, r#"<circle class="dot c{colour}" cx="{x:.1}" cy="{y:.1}" r="2.2"/>"#);
        }
        let mut sorted: Vec<f64> = series.points.iter().map(|point| point.1).collect();
        sorted.sort_by(f64::total_cmp);
        if let Some(median) = sorted.get((sorted.len().saturating_sub(1)) / 2) {
            let x = axis.at(*median);
            let (top, end) = (middle - 10.0, middle + 10.0);
            let _ =
                write!(svg, r#"<line class="median c{colour}" x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{end:.1}"/>"#);
            let y = middle + 4.0;
            let label = figure(*median);
            let _ = write!(svg, r#"<text class="value" x="{:.1}" y="{y:.1}">{label}</text>"#, WIDTH - RIGHT + 8.0);
        }
    }
    let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, bottom + 32.0);
    let label = escape(&plot.y);
    let _ = write!(
        svg,
        r#"<text class="axis" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}, median at the right</text>"#
    );
    svg.push_str("</svg>");
    svg
}

/// y against x, both from zero, a colour for each series and its name at its end.
fn lines(plot: &Plot) -> String {
    const LEFT: f64 = 62.0;
    const RIGHT: f64 = 170.0;
    const HEIGHT: f64 = 300.0;
    const BOTTOM: f64 = HEIGHT - 42.0;
    let points = || plot.series.iter().flat_map(|series| series.points.iter());
    let (Some(across), Some(up)) = (
        Axis::from_zero(points().map(|point| point.0), LEFT, WIDTH - RIGHT),
        Axis::from_zero(points().map(|point| point.1), BOTTOM, 12.0),
    ) else {
        return String::new();
    };
    let mut svg = open(plot, HEIGHT);
    for (value, label) in &up.ticks {
        let y = up.at(*value);
        let _ = write!(svg, r#"<line class="grid" x1="{LEFT}" y1="{y:.1}" x2="{:.1}" y2="{y:.1}"/>"#, WIDTH - RIGHT);
        let (x, y) = (LEFT - 8.0, y + 4.0);
        let _ = write!(svg, r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="end">{label}</text>"#);
    }
    for (value, label) in &across.ticks {
        let (x, y) = (across.at(*value), BOTTOM + 18.0);
        let _ = write!(svg, r#"<text class="tick" x="{x:.1}" y="{y:.1}" text-anchor="middle">{label}</text>"#);
    }
    let mut ends: Vec<(f64, usize, &Series)> = Vec::new();
    for (number, series) in plot.series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let path: Vec<_> =
            series.points.iter().map(|(x, y)| format!("{:.1},{:.1}", across.at(*x), up.at(*y))).collect();
        let _ = write!(svg, r#"<polyline class="line c{colour}" points="{}"/>"#, path.join(" "));
        for (x, y) in series.points.iter().take(40) {
            let (x, y) = (across.at(*x), up.at(*y));
            let _ = write!(svg, r#"<circle class="mark c{colour}" cx="{x:.1}" cy="{y:.1}" r="3"/>"#);
        }
        if let Some((_, y)) = series.points.last() {
            ends.push((up.at(*y), colour, series));
        }
    }
    // Names side by side with the ends of their lines, pushed apart where those are close.
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = 12.0;
    for (y, colour, series) in ends {
        let y = y.max(free);
        free = y + 15.0;
        let (x, name) = (WIDTH - RIGHT + 10.0, escape(&series.name));
        let _ = write!(svg, r#"<text class="name t{colour}" x="{x:.1}" y="{:.1}">{name}</text>"#, y + 4.0);
    }
    let (x, y) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 4.0);
    let (across, up) = (escape(&plot.x), escape(&plot.y));
    let _ = write!(svg, r#"<text class="axis" x="{x:.1}" y="{y:.1}" text-anchor="middle">{across}</text>"#);
    let _ = write!(
        svg,
        r#"<text class="axis" transform="translate(13 {:.1}) rotate(-90)" text-anchor="middle">{up}</text>"#,
        BOTTOM / 2.0
    );
    svg.push_str("</svg>");
    svg
}

fn open(plot: &Plot, height: f64) -> String {
    let title = escape(&plot.title);
    format!(r#"<svg viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-label="{title}">"#)
}

/// From values to places.
struct Axis {
    ticks: Vec<(f64, String)>,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    scale: fn(f64) -> f64,
}

impl Axis {
    fn logarithmic(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Axis> {
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high == 0.0 {
            return None;
        }
        let (first, last) = (low.log10().floor() as i32, (high * 1.02).log10().ceil() as i32);
        let decades = (first..=last).map(|power| 10f64.powi(power));
        let between = if last - first <= 3 { vec![1.0, 2.0, 5.0] } else { vec![1.0] };
        let ticks = decades.flat_map(|decade| between.iter().map(move |step| step * decade).collect::<Vec<_>>());
        let (low, high) = (low / 1.1, high * 1.1);
        let ticks = ticks.filter(|tick| *tick >= low && *tick <= high).map(|tick| (tick, plain(tick)));
        Some(Axis { ticks: ticks.collect(), low, high, from, to, scale: f64::log10 })
    }

    fn from_zero(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Option<Axis> {
        let most = values.filter(|value| value.is_finite()).fold(0f64, f64::max);
        if most <= 0.0 {
            return None;
        }
        let rough = most / 5.0;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|by| by * decade).find(|step| *step >= rough)?;
        let count = (most / step).ceil() as usize;
        let ticks = (0..=count).map(|tick| (tick as f64 * step, plain(tick as f64 * step))).collect();
        Some(Axis { ticks, low: 0.0, high: count as f64 * step, from, to, scale: |value| value })
    }

    fn at(&self, value: f64) -> f64 {
        let [low, high, value] = [self.low, self.high, value.max(self.low)].map(self.scale);
        self.from + (value - low) / (high - low) * (self.to - self.from)
    }
}

/// Without the digits that only computers see.
fn plain(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_covers_what_was_seen_and_has_round_ticks() {
        let axis = Axis::from_zero([3.0, 47.0].into_iter(), 0.0, 100.0).unwrap();
        assert_eq!((axis.at(0.0), axis.at(50.0)), (0.0, 100.0));
        assert_eq!(axis.ticks.last().unwrap().1, "50");
        let labels = |most: f64| Axis::from_zero([most].into_iter(), 0.0, 1.0).unwrap().ticks;
        let labels: Vec<_> = labels(2.0).into_iter().map(|tick| tick.1).collect();
        assert_eq!(labels, ["0", "0.5", "1", "1.5", "2"]);
        let axis = Axis::logarithmic([1.0, 100.0].into_iter(), 0.0, 100.0).unwrap();
        assert!((axis.at(10.0) - 50.0).abs() < 0.1);
        assert!(Axis::from_zero(std::iter::empty(), 0.0, 1.0).is_none());
    }

    #[test]
    fn names_are_shown_and_never_obeyed() {
        let series = vec![Series { name: "<script>".into(), points: vec![(0.0, 1.0), (1.0, 2.0)] }];
        for kind in [PlotKind::Distribution, PlotKind::Lines] {
            let plot = Plot { kind, title: "t".into(), x: "x".into(), y: "y".into(), series: series.clone() };
            assert!(!svg(&plot).contains("<script>") && svg(&plot).contains("&lt;script&gt;"));
        }
    }
}
