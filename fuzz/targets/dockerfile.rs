//! A Dockerfile is steps that can be carried out, or a problem that names a line.

#![no_main]

use cove_image::config::Defaults;
use cove_image::dockerfile::{Action, Context, Dockerfile, Order, Problem, triggers};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let lines = text.split('\n').count();
    let check = |problem: Problem| {
        assert!(!problem.message.is_empty() && problem.line >= 1 && problem.line <= lines + 1, "{problem}");
    };
    let file = match Dockerfile::parse(text) {
        Ok(file) => file,
        Err(problem) => return check(problem),
    };
    let plan = match file.plan(&Order::default()) {
        Ok(plan) => plan,
        Err(problem) => return check(problem),
    };
    assert!(plan.needed.last().is_some_and(|last| *last < plan.stages.len()));
    for (number, stage) in plan.stages.iter().enumerate() {
        let mut context = Context::new(&plan, number, Defaults::default());
        for step in &stage.steps {
            match context.step(step) {
                Err(problem) => check(problem),
                Ok(Action::Copy(transfer)) => {
                    assert!(transfer.destination.starts_with('/'));
                    for path in transfer.paths.iter().chain([&transfer.destination]) {
                        assert!(!path.split('/').any(|part| part == ".."), "{path}");
                    }
                }
                Ok(action) => drop(action.words()),
            }
        }
        // What was put off can be taken up.
        let mut defaults = context.into_defaults();
        triggers(&mut defaults).expect("an instruction that was read once");
    }
});
