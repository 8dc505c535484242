#!/usr/bin/env bash
# run.sh [prepare | TARGET…]: each fuzz target from its corpus for FUZZ_SECONDS (5), on stable Rust. A finding stays in fuzz/artifacts and fails the run.
#
# `cargo +nightly fuzz run TARGET` works too, for long runs with a sanitizer.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/common.sh
: "${FUZZ_SECONDS:=5}"
# Its few packages of its own come with the build.
[ "${1-}" = prepare ] && exit
scripts/claim
command -v c++ >/dev/null || die 'no C++ compiler' 'sudo apt-get install g++'
# The workspace's own versions: what both depend on is built once, and is what people run.
cp Cargo.lock fuzz/Cargo.lock
RUSTC_WRAPPER=$PWD/fuzz/rustc cargo build --quiet --manifest-path fuzz/Cargo.toml || exit 1

targets=("$@")
((${#targets[@]})) || targets=($(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' fuzz/Cargo.toml))
scratch=$(mktemp -d -t cove-fuzz-XXXX); trap 'rm -rf "$scratch"' EXIT
export FUZZ_SECONDS scratch
# Each has one thread: as many at a time as there are processors, every one for its whole time.
fuzz() { # fuzz TARGET
    # New inputs go to the scratch directory: the corpus of the clone stays as it is.
    mkdir -p "$scratch/$1" "$scratch/$1.tmp" "fuzz/artifacts/$1"
    TMPDIR=$scratch/$1.tmp timeout $((FUZZ_SECONDS * 4 + 60)) "$CARGO_TARGET_DIR/debug/$1" -max_total_time="$FUZZ_SECONDS" -timeout=10 -rss_limit_mb=2048 \
        -max_len=8192 -artifact_prefix="fuzz/artifacts/$1/" "$scratch/$1" "fuzz/corpus/$1" >"$scratch/$1.log" 2>&1 && touch "$scratch/$1.passed"
}
export -f fuzz
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I {} bash -c 'fuzz {} || true'
for target in "${targets[@]}"; do
    if [ -e "$scratch/$target.passed" ]; then
        printf '%s: %s\n' "$target" "$(grep -a '^Done' "$scratch/$target.log" | tail -n 1)"
        passed=$((passed + 1))
    else
        printf '%s: FAILED\n' "$target"; tail -n 40 "$scratch/$target.log"
        failed=$((failed + 1))
    fi
done
told
