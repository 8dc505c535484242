#!/usr/bin/env bash
# run.sh [pytest arguments]: the E2B SDKs of today and of a while ago against a server of the program under test.
#
# Packages are kept in $COVE_CACHE/e2b, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${COVE_CACHE:=$HOME/.cache/cove}"
: "${COVE_BIN:=${CARGO_TARGET_DIR:-$COVE_CACHE/target}/debug/cove}"
export COVE_BIN
cache=$COVE_CACHE/e2b
# Of today and of a while ago: the Python SDK, the JavaScript SDK and the command line.
newest=(2.63.0 2.51.0 2.19.0) pinned=(2.30.0 2.45.0 2.16.0) interpreter=2.11.5 javascript_interpreter=2.8.0

die() { printf 'error: %s\n' "$1" >&2; shift; for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done; exit 1; }
[ -x "$COVE_BIN" ] || die "$COVE_BIN is not there" "cargo build, or COVE_BIN=…"
((EUID == 0)) || die "the server wants root for its sandboxes" "sudo -E $0"

python_packages() { # python_packages VERSION [PACKAGE…]
    local version=$1 folder=$cache/python-$1; shift
    # A folder is complete for what was asked of it then.
    [ "$(cat "$folder/complete" 2>/dev/null)" = "packages $*" ] && return
    rm -rf "$folder"
    python3 -m venv "$folder" &&
        "$folder/bin/pip" install --quiet "e2b==$version" "$@" pytest pytest-asyncio pytest-timeout &&
        echo "packages $*" >"$folder/complete" ||
        die "cannot install the Python package e2b $version" "look at the message of pip above"
}

node_packages() { # node_packages SDK CLI
    local folder=$cache/node-$1-$2
    [ -e "$folder/complete" ] && return
    rm -rf "$folder" && mkdir -p "$folder" && echo '{"private":true}' >"$folder/package.json"
    (cd "$folder" && npm install --silent --no-progress "e2b@$1" "@e2b/cli@$2") && touch "$folder/complete" ||
        die "cannot install the npm packages e2b $1 and @e2b/cli $2" "look at the message of npm above"
}

# The code interpreter's own SDK for JavaScript; it brings the rest along.
interpreter_packages() { # interpreter_packages VERSION
    local folder=$cache/node-interpreter-$1
    export E2B_INTERPRETER_PACKAGES=$folder/package.json
    [ -e "$folder/complete" ] && return
    rm -rf "$folder" && mkdir -p "$folder" && echo '{"private":true}' >"$folder/package.json"
    (cd "$folder" && npm install --silent --no-progress "@e2b/code-interpreter@$1") && touch "$folder/complete" ||
        die "cannot install the npm package @e2b/code-interpreter $1" "look at the message of npm above"
}

# The template `code-interpreter`, built with the program's own recipe; again when the recipe or Python changes.
built_template() {
    local recipe=$here/../../crates/cove/src/commands/template key
    key=$(cat "$recipe"/build.rs "$recipe"/*.sh <(/usr/bin/python3 --version) | sha256sum | cut -c1-12)
    export COVE_TEMPLATES=$COVE_CACHE/templates-$key
    [ -e "$COVE_TEMPLATES/templates/code-interpreter.json" ] && return
    PIP_CACHE_DIR=${PIP_CACHE_DIR:-$COVE_CACHE/pip} "$COVE_BIN" template build code-interpreter --data "$COVE_TEMPLATES" ||
        die "cannot build the template code-interpreter" "look at the message above"
}

mkdir -p "$cache"
built_template
python_packages "${newest[0]}" "e2b-code-interpreter==$interpreter"
python_packages "${pinned[0]}"
if command -v npm >/dev/null; then
    node_packages "${newest[@]:1}" && node_packages "${pinned[@]:1}" && interpreter_packages "$javascript_interpreter"
else
    echo "hint: no npm here: the JavaScript SDK is not tested" >&2
fi

log=$(mktemp); trap 'rm -f "$log"' EXIT
passed=0 failed=0
for versions in "${newest[*]}" "${pinned[*]}"; do
    read -r version javascript cli <<<"$versions"
    printf '\n=== e2b %s (Python), %s (JavaScript), command line %s\n' "$version" "$javascript" "$cli"
    export E2B_NODE_PACKAGES=$cache/node-$javascript-$cli/package.json
    [ -e "$E2B_NODE_PACKAGES" ] || unset E2B_NODE_PACKAGES
    (cd "$here" && PYTHONDONTWRITEBYTECODE=1 "$cache/python-$version/bin/python" -m pytest -q "$@") 2>&1 | tee "$log"
    last=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | tail -n 1)
    number() { grep -oE "[0-9]+ $1" <<<"$last" | grep -oE '[0-9]+' || echo 0; }
    ok=$(number passed) bad=$(($(number failed) + $(number error)))
    # A run that says nothing of tests did not happen.
    ((ok + bad)) || bad=1
    passed=$((passed + ok)) failed=$((failed + bad))
done
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
