#!/usr/bin/env bash
# run.sh [pytest arguments]: the Daytona SDKs of today and of a while ago against a server of the program under test.
#
# Packages are kept in $COVE_CACHE/daytona, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${COVE_CACHE:=$HOME/.cache/cove}"
: "${COVE_BIN:=${CARGO_TARGET_DIR:-$COVE_CACHE/target}/debug/cove}"
export COVE_BIN
cache=$COVE_CACHE/daytona
# What is newest now, and two that people have pinned; langchain and deepagents come with the newest.
pythons=("daytona==0.226.1 langchain-daytona==0.0.9 deepagents==0.7.32" "daytona==0.190.1" "daytona==0.155.0")
javascript=0.218.0

die() { printf 'error: %s\n' "$1" >&2; shift; for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done; exit 1; }
[ -x "$COVE_BIN" ] || die "$COVE_BIN is not there" "cargo build, or COVE_BIN=…"
((EUID == 0)) || die "the server wants root for its sandboxes" "sudo -E $0"

python_folder() { printf '%s/python-%s' "$cache" "$(tr -c 'a-z0-9.\n' '-' <<<"$1")"; }

python_packages() { # python_packages "REQUIREMENT…"
    local folder; folder=$(python_folder "$1")
    [ -e "$folder/complete" ] && return
    rm -rf "$folder"
    # shellcheck disable=SC2086 # several requirements
    python3 -m venv "$folder" &&
        "$folder/bin/pip" install --quiet $1 pytest pytest-asyncio pytest-timeout && touch "$folder/complete" ||
        die "cannot install $1" "look at the message of pip above"
}

node_packages() {
    local folder=$cache/node-$javascript
    export DAYTONA_NODE_PACKAGES=$folder/package.json
    [ -e "$folder/complete" ] && return
    rm -rf "$folder" && mkdir -p "$folder" && echo '{"private":true}' >"$folder/package.json"
    (cd "$folder" && npm install --silent --no-progress "@daytonaio/sdk@$javascript") && touch "$folder/complete" ||
        die "cannot install the npm package @daytonaio/sdk" "look at the message of npm above"
}

mkdir -p "$cache"
for packages in "${pythons[@]}"; do python_packages "$packages"; done
if command -v npm >/dev/null; then node_packages; else echo "hint: no npm here: the TypeScript SDK is not tested" >&2; fi

log=$(mktemp); trap 'rm -f "$log"' EXIT
passed=0 failed=0
for packages in "${pythons[@]}"; do
    printf '\n=== %s (Python)\n' "$packages"
    (cd "$here" && PYTHONDONTWRITEBYTECODE=1 "$(python_folder "$packages")/bin/python" -m pytest -q "$@") 2>&1 | tee "$log"
    last=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | tail -n 1)
    number() { grep -oE "[0-9]+ $1" <<<"$last" | grep -oE '[0-9]+' || echo 0; }
    ok=$(number passed) bad=$(($(number failed) + $(number error)))
    # A run that says nothing of tests did not happen.
    ((ok + bad)) || bad=1
    passed=$((passed + ok)) failed=$((failed + bad))
    # The packages of the other world need testing once.
    unset DAYTONA_NODE_PACKAGES
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
