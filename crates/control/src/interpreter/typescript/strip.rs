//! Types taken off a cell. Recursive, and as large as the cell wants: runs in a process of its own alone (`worker`).

use std::path::Path;

use oxc_allocator::Allocator;
use oxc_codegen::Codegen;
use oxc_parser::Parser;
use oxc_semantic::SemanticBuilder;
use oxc_span::SourceType;
use oxc_transformer::{TransformOptions, Transformer, TypeScriptOptions};

/// The cell as JavaScript, or the first thing wrong with it. Types are not checked, as node's own stripping does not.
pub(crate) fn strip(code: &str) -> Result<String, String> {
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

    #[test]
    fn types_go_and_code_stays() {
        let javascript = strip("interface P { x: number }\nconst p: P = { x: 1 };\np.x as number").unwrap();
        assert!(!javascript.contains("interface") && !javascript.contains(": P"), "{javascript}");
        assert!(javascript.contains("p.x"), "{javascript}");
    }

    #[test]
    fn the_last_value_is_hidden_only_by_the_cells_own_semicolon() {
        assert!(strip("const z: number = 5; z").unwrap().ends_with('z'));
        assert!(strip("1 as number;").unwrap().trim_end().ends_with(';'));
    }

    #[test]
    fn an_enum_becomes_code() {
        assert!(strip("enum Colour { Red, Green }").unwrap().contains("Red"));
    }

    #[test]
    fn top_level_await_is_allowed() {
        strip("const x: number = await Promise.resolve(1); x").unwrap();
    }

    #[test]
    fn what_cannot_be_parsed_is_told() {
        assert!(strip("const = 5").unwrap_err().contains("nexpected"));
    }
}
