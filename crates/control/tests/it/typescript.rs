//! TypeScript that would fill, hang or crash whoever reads it: read by a process of its own, within its bounds.

use std::time::{Duration, Instant};

use cove_control::interpreter::typescript::Typescript;

fn typescript() -> Typescript {
    Typescript::of(env!("CARGO_BIN_EXE_cove-typescript"))
}

/// Members that double a string: 2^40 characters by constant folding, in some 300 bytes.
pub fn doubling() -> String {
    let members: Vec<String> = (1..=36).map(|n| format!("a{n}=a{m}+a{m}", m = n - 1)).collect();
    format!("enum E{{a0='xxxxxxxxxxxxxxxx',{}}}", members.join(","))
}

#[tokio::test]
async fn types_go_and_code_stays() {
    let typescript = typescript();
    let javascript =
        typescript.strip("o", "interface P { x: number }\nconst p: P = { x: 1 }; p.x as number").await.unwrap();
    assert!(!javascript.contains("interface") && javascript.contains("p.x"), "{javascript}");
    let refused = typescript.strip("o", "const = 5").await.unwrap_err();
    assert!(refused.contains("nexpected"), "{refused}");
    // By the worker that was made ready meanwhile, or by a new one.
    assert!(typescript.strip("o", "enum Colour { Red, Green }").await.unwrap().contains("Red"));
}

#[tokio::test]
async fn a_cell_that_grows_without_bound_is_refused_with_the_bound() {
    let typescript = typescript();
    let refused = typescript.strip("o", &doubling()).await.unwrap_err();
    // Which of the bounds it meets first depends on how fast the machine is.
    assert!(refused.contains("more than 256 MiB of memory") || refused.contains("more than 2 s to read"), "{refused}");
    assert!(typescript.strip("o", "1 as number").await.is_ok());
}

#[tokio::test]
async fn a_cell_that_is_nested_too_deeply_is_refused_with_the_bound() {
    let typescript = typescript();
    for (open, middle, close) in
        [("(", "1", ")"), ("[", "", "]"), ("!", "1", ""), ("-1+", "1", ""), ("a=>", "1", ""), ("if(a)", ";", "")]
    {
        let levels = ((64 << 10) - 8) / (open.len() + close.len());
        let cell = format!("{}{middle}{}", open.repeat(levels), close.repeat(levels));
        match typescript.strip("o", &cell).await {
            // Some of it nests less than it looks.
            Ok(_) => {}
            Err(refused) => {
                let bound = ["nested too deeply", "MiB of memory", "s to read", "KiB of JavaScript"];
                assert!(bound.iter().any(|bound| refused.contains(bound)), "{open}: {refused}");
            }
        }
    }
    assert!(typescript.strip("o", &"(".repeat(20_000)).await.is_err());
    assert!(typescript.strip("o", &" ".repeat((64 << 10) + 1)).await.unwrap_err().contains("may have"));
}

#[tokio::test]
async fn hostile_cells_of_one_organisation_do_not_keep_anothers() {
    let typescript = typescript();
    let bombs: Vec<_> = (0..8)
        .map(|_| {
            let typescript = typescript.clone();
            tokio::spawn(async move { typescript.strip("hostile", &doubling()).await })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        typescript.strip("other", "const x: number = 1; x").await.unwrap();
        slowest = slowest.max(begun.elapsed());
    }
    // Behind all eight it would wait for the last of them.
    assert!(bombs.iter().any(|bomb| !bomb.is_finished()), "the others' cells were read before: {slowest:?}");
    for bomb in bombs {
        assert!(bomb.await.unwrap().is_err());
    }
}
