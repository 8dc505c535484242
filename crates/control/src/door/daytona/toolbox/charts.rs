//! The charts of the figures that a Python program shows, as `code-run` tells them.
//!
//! A program that speaks of matplotlib is run by a few lines of ours (`charts.py`), which tell each chart in the program's own output
//! behind a mark that is new with each run; here they are taken out again. What they say is the sandbox's word: JSON of
//! an object, or nothing.

use serde_json::Value;

use crate::border::shape;
use crate::interpreter::driver;

const RUN: &str = include_str!("charts.py");

/// What the values of all charts of a run may weigh.
const MOST_VALUES: usize = 200_000;

/// What a run tells its charts behind.
pub struct Mark(String);

impl Mark {
    /// Only where it can matter: a program is otherwise run as it is.
    pub fn wanted(language: &str, code: &str) -> Option<Mark> {
        (language == "python" && code.contains("matplotlib"))
            .then(|| Mark(format!("\u{1}cove-chart-{}:", hex::encode(rand::random::<[u8; 8]>()))))
    }

    /// The words after the interpreter's name.
    pub fn words(&self) -> [&str; 4] {
        ["-u", "-c", RUN, &self.0]
    }

    /// What the program's standard input brings.
    pub fn input(code: &str) -> Vec<u8> {
        driver::sources([("charts", driver::CHARTS), ("code", code)])
    }

    /// The output without the charts, and the charts.
    pub fn part(&self, output: &str) -> (String, Vec<Value>) {
        let mut pieces = output.split(&self.0);
        let mut rest = pieces.next().unwrap_or_default().to_owned();
        let mut charts = Vec::new();
        let mut room = MOST_VALUES;
        for piece in pieces {
            let (told, after) = piece.split_once('\n').unwrap_or((piece, ""));
            rest.push_str(after);
            // The sandbox wrote it: weighed before it is parsed, all of them together.
            let Ok(weight) = shape::weigh(told.as_bytes(), room) else { continue };
            if let Ok(chart @ Value::Object(_)) = serde_json::from_str(told) {
                room -= weight;
                charts.push(in_this_dialect(chart));
            }
        }
        (rest, charts)
    }
}

/// Figures of several charts have another name here, values are text, and what is not known is left out.
fn in_this_dialect(mut chart: Value) -> Value {
    if let Some(fields) = chart.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
        if fields.get("type").and_then(Value::as_str) == Some("superchart") {
            fields.insert("type".into(), "composite_chart".into());
        }
        if let Some(value) = fields.get_mut("value").filter(|value| value.is_number()) {
            *value = value.to_string().into();
        }
        if let Some(Value::Array(elements)) = fields.get_mut("elements") {
            elements.iter_mut().for_each(|element| *element = in_this_dialect(element.take()));
        }
    }
    chart
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn charts_are_taken_out_of_the_output_wherever_they_stand() {
        let mark = Mark::wanted("python", "import matplotlib").unwrap();
        let chart =
            json!({"type": "superchart", "title": null, "elements": [{"type": "bar", "elements": [{"value": 1.5}]}]});
        let output = format!("before, {}{chart}\nafter\n{}no chart\n", mark.0, mark.0);
        let (rest, charts) = mark.part(&output);
        assert_eq!(rest, "before, after\n");
        let element = json!({"type": "bar", "elements": [{"value": "1.5"}]});
        assert_eq!(charts, [json!({"type": "composite_chart", "elements": [element]})]);
    }

    #[test]
    fn a_program_without_figures_is_run_as_it_is() {
        assert!(Mark::wanted("python", "print(1)").is_none() && Mark::wanted("javascript", "matplotlib").is_none());
    }
}
