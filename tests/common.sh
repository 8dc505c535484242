# For tests/*/run.sh: the program under test, packages that are kept outside the clone, and the sum of runs of pytest.
#
# `run.sh prepare` fetches what the stage needs and ends. It needs no program, so scripts/test runs it while the compiler works.
: "${COVE_CACHE:=$HOME/.cache/cove}"
: "${CARGO_TARGET_DIR:=$COVE_CACHE/target}"
: "${COVE_BIN:=$CARGO_TARGET_DIR/debug/cove}"
export COVE_CACHE CARGO_TARGET_DIR COVE_BIN
passed=0 failed=0 skipped=0

die() { printf 'error: %s\n' "$1" >&2; shift; for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done; exit 1; }

needs_the_program() {
    [ -x "$COVE_BIN" ] || die "$COVE_BIN is not there" "cargo build, or COVE_BIN=…"
    ((EUID == 0)) || die "the server wants root for its sandboxes" "sudo -E $0"
}

# The template `code-interpreter`, built of the program's own recipe; again when the recipe or Python changes.
built_template() {
    local recipe=$here/../../crates/control/recipes/code-interpreter key
    key=$(cat "$recipe"/* <(/usr/bin/python3 --version) | sha256sum | cut -c1-12)
    export COVE_TEMPLATES=$COVE_CACHE/templates-$key
    [ -e "$COVE_TEMPLATES/templates/code-interpreter.json" ] && return
    "$here/../../scripts/built-template" "$COVE_BIN" "$COVE_TEMPLATES" code-interpreter ||
        die "cannot build the template code-interpreter" "look at the message above"
}

# A registry and a dockerd, unpacked from the distribution's packages into $COVE_CACHE/images and never installed: that would start them.
daemons() {
    local folder=$COVE_CACHE/images/daemons fetched package packages=(docker.io containerd docker-registry)
    export COVE_DAEMONS=$folder
    [ "$(cat "$folder/complete" 2>/dev/null)" = "${packages[*]}" ] && return
    fetched=$(mktemp -d)
    (cd "$fetched" && { apt-get -qq download "${packages[@]}" || { apt-get -qq update && apt-get -qq download "${packages[@]}"; }; }) >/dev/null 2>&1 ||
        die "cannot fetch the packages ${packages[*]}" "apt-get download ${packages[*]}"
    rm -rf "$folder" && mkdir -p "$folder"
    for package in "$fetched"/*.deb; do dpkg -x "$package" "$folder" || die "cannot unpack $package"; done
    rm -rf "$fetched"
    echo "${packages[*]}" >"$folder/complete"
}

# The file `complete` lists what a folder holds; a folder that holds something else is made again.
python_packages() { # python_packages FOLDER REQUIREMENT…
    local folder=$1; shift
    [ "$(cat "$folder/complete" 2>/dev/null)" = "$*" ] && return
    rm -rf "$folder" && mkdir -p "${folder%/*}" && python3 -m venv "$folder" && "$folder/bin/pip" install --quiet "$@" &&
        echo "$*" >"$folder/complete" || die "cannot install $*" "look at the message of pip above"
}

# Packages of npm as they were on this day, with all that they depend on: those move, and some ask for versions that a mirror lacks.
npm_before=2026-10-15

node_packages() { # node_packages FOLDER PACKAGE…
    local folder=$1; shift
    command -v npm >/dev/null || die "npm is not installed: the JavaScript packages cannot be tested" "scripts/setup test"
    [ "$(cat "$folder/complete" 2>/dev/null)" = "$*" ] && return
    rm -rf "$folder" && mkdir -p "$folder" && echo '{"private":true}' >"$folder/package.json" &&
        (cd "$folder" && npm install --silent --no-progress "--before=$npm_before" "$@") &&
        echo "$*" >"$folder/complete" || die "cannot install $*" "look at the message of npm above"
}

# Runs the tests of this folder and adds them to passed, failed and skipped; pytest names each skip (-rs).
run_pytest() { # run_pytest PYTHON ARGUMENT…
    local log last ok bad
    log=$(mktemp)
    (cd "$here" && PYTHONDONTWRITEBYTECODE=1 "$1" -m pytest -q -rs "${@:2}") 2>&1 | tee "$log"
    last=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | tail -n 1)
    rm -f "$log"
    number() { grep -oE "[0-9]+ $1" <<<"$last" | grep -oE '[0-9]+' || echo 0; }
    ok=$(number passed) bad=$(($(number failed) + $(number error)))
    # No number in the last line: pytest did not run.
    ((ok + bad)) || bad=1
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + $(number skipped)))
}

# Prints the stage's sum; its status is the stage's exit code.
told() {
    printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0))
}
