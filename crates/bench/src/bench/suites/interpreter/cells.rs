//! The cells after the first.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

use reqwest::Method;

use super::super::super::Bench;
use super::super::super::contest::milliseconds;
use super::{PYTHON, execute, session};
use crate::measure::api::{Api, Trouble};
use crate::measure::report::{Suite, Unit};

const COUNT: usize = 1000;

/// Cells of a plain `exec()`, one a line.
const PLAIN: &str = "
import sys
space = {}
for line in sys.stdin:
    exec(line, space)
    print('done', flush=True)
";

/// Many cells of one context, beside a plain `exec()` in a process that is spoken to over a pipe.
pub async fn measure(bench: &Bench, api: &Api, template: &str) -> Suite {
    let mut suite = Suite::new(
        "cells",
        "The cells after it",
        &format!(
            "{COUNT} cells `x += 1` in one context of `{template}` over HTTP, and as many through a plain `exec()` in a python3 over a pipe. The last \
             tenth is a row of its own: the 1,000th cell must not be slower than the first."
        ),
    );
    bench.bar.set_message("cells");
    bench.bar.set_length(COUNT as u64);
    let ours = async {
        let (session, _) = session(api, template).await?;
        execute(api, &session, "x = 0").await?;
        let mut samples = Vec::new();
        for number in 0..COUNT {
            let began = Instant::now();
            execute(api, &session, "x += 1").await?;
            samples.push(milliseconds(began.elapsed()));
            bench.bar.set_position(number as u64);
        }
        api.call(Method::DELETE, &format!("/api/sessions/{session}"), None).await?;
        Ok::<_, Trouble>(samples)
    };
    match ours.await {
        Ok(samples) => {
            suite.row("cove, all", Unit::Milliseconds, &samples);
            suite.row("cove, the last tenth", Unit::Milliseconds, &samples[samples.len() * 9 / 10..]);
        }
        Err(trouble) => suite.absent("cove", trouble.to_string()),
    }
    match tokio::task::block_in_place(plain) {
        Ok(samples) => suite.row("plain exec()", Unit::Milliseconds, &samples),
        Err(error) => suite.absent("plain exec()", error.to_string()),
    }
    suite.compare_to(&["plain exec()"]);
    suite
}

fn plain() -> std::io::Result<Vec<f64>> {
    let mut child = Command::new(PYTHON).args(["-c", PLAIN]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Ok(Vec::new()) };
    let (mut output, mut line, mut samples) = (BufReader::new(output), String::new(), Vec::new());
    input.write_all(b"x = 0\n")?;
    output.read_line(&mut line)?;
    for _ in 0..COUNT {
        let began = Instant::now();
        input.write_all(b"x += 1\n")?;
        output.read_line(&mut line)?;
        samples.push(milliseconds(began.elapsed()));
    }
    drop(input);
    child.wait()?;
    Ok(samples)
}
