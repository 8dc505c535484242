//! TypeScript without a compiler in the template: types are taken off on the host and node runs what is left.
//!
//! The code is hostile and the parser recursive: nesting that overflows a stack would end the server. So a cell is at most
//! [`MAX_CODE`] long and is parsed in a thread whose stack no cell of that length can exhaust (the pages are only
//! reserved; an ordinary cell touches a few).

use std::path::Path;
use std::thread;

use oxc_allocator::Allocator;
use oxc_codegen::Codegen;
use oxc_parser::Parser;
use oxc_semantic::SemanticBuilder;
use oxc_span::SourceType;
use oxc_transformer::{TransformOptions, Transformer, TypeScriptOptions};

const MAX_CODE: usize = 64 << 10;
/// 16 KiB for each byte of the longest cell: several times what one level of nesting takes in an unoptimised build.
const STACK: usize = MAX_CODE * (16 << 10);

/// The cell as JavaScript, or the first thing wrong with it. Types are not checked, as node's own stripping does not.
pub async fn strip(code: String) -> Result<String, String> {
    if code.len() > MAX_CODE {
        return Err(format!(
            "a TypeScript cell may have {MAX_CODE} bytes, this one has {}: write it to a file and import it",
            code.len()
        ));
    }
    let (to, stripped) = tokio::sync::oneshot::channel();
    let work = move || {
        // The receiver waits for as long as we run.
        let _ = to.send(strip_here(&code));
    };
    if let Err(error) = thread::Builder::new().name("typescript".into()).stack_size(STACK).spawn(work) {
        return Err(format!("the TypeScript cell could not be read: {error}"));
    }
    stripped.await.unwrap_or_else(|_| Err("the TypeScript cell could not be read".into()))
}

fn strip_here(code: &str) -> Result<String, String> {
    let allocator = Allocator::default();
    let parsed = Parser::new(&allocator, code, SourceType::ts()).parse();
    if let Some(error) = parsed.diagnostics.first() {
        return Err(error.to_string());
    }
    let mut program = parsed.program;
    let scoping = SemanticBuilder::new().with_enum_eval(true).build(&program).semantic.into_scoping();
    let options = TransformOptions {
        // A cell's import may be for a later cell.
        typescript: TypeScriptOptions { only_remove_type_imports: true, ..TypeScriptOptions::default() },
        ..TransformOptions::default()
    };
    let transformed =
        Transformer::new(&allocator, Path::new("cell.ts"), &options).build_with_scoping(scoping, &mut program);
    if let Some(error) = transformed.diagnostics.first() {
        return Err(error.to_string());
    }
    let javascript = Codegen::new().build(&program).code;
    // The printer ends every statement with a semicolon; at the end of a cell that would hide its value.
    let hides = code.trim_end().ends_with(';');
    Ok(if hides { javascript } else { javascript.trim_end().trim_end_matches(';').to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn stripped(code: &str) -> Result<String, String> {
        strip(code.to_owned()).await
    }

    #[tokio::test]
    async fn types_go_and_code_stays() {
        let javascript = stripped("interface P { x: number }\nconst p: P = { x: 1 };\np.x as number").await.unwrap();
        assert!(!javascript.contains("interface") && !javascript.contains(": P"), "{javascript}");
        assert!(javascript.contains("p.x"), "{javascript}");
    }

    #[tokio::test]
    async fn the_last_value_is_hidden_only_by_the_cells_own_semicolon() {
        assert!(stripped("const z: number = 5; z").await.unwrap().ends_with('z'));
        assert!(stripped("1 as number;").await.unwrap().trim_end().ends_with(';'));
    }

    #[tokio::test]
    async fn an_enum_becomes_code() {
        assert!(stripped("enum Colour { Red, Green }").await.unwrap().contains("Red"));
    }

    #[tokio::test]
    async fn top_level_await_is_allowed() {
        stripped("const x: number = await Promise.resolve(1); x").await.unwrap();
    }

    #[tokio::test]
    async fn what_cannot_be_parsed_is_told() {
        assert!(stripped("const = 5").await.unwrap_err().contains("nexpected"));
    }

    #[tokio::test]
    async fn cannot_overflow_the_servers_stack_with_nesting() {
        for (open, middle, close) in
            [("(", "1", ")"), ("[", "", "]"), ("!", "1", ""), ("-1+", "1", ""), ("a=>", "1", ""), ("if(a)", ";", "")]
        {
            let levels = (MAX_CODE - 8) / (open.len() + close.len());
            let _ = stripped(&format!("{}{middle}{}", open.repeat(levels), close.repeat(levels))).await;
        }
        assert!(stripped(&" ".repeat(MAX_CODE + 1)).await.unwrap_err().contains("may have"));
    }
}
