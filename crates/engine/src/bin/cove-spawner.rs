//! A spawner and nothing else: for the engine's own tests and measurements, and for programs that embed the engine
//! and cannot re-exec themselves.

#![forbid(unsafe_code)]

fn main() {
    cove_engine::spawner_main()
}
