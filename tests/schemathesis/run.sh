#!/usr/bin/env bash
# run.sh [schemathesis arguments]: requests made from the API document, against a real server with real sandboxes.
#
# Also: the metrics after all that, read by Prometheus' own parser. What must hold for every request: no fault of the server's, no status, content type or body that the document does
# not announce, and every wrong request refused. COVE_LONG=1 tries many more of them, and chains of calls.
# Packages are kept in $COVE_CACHE/schemathesis, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${COVE_CACHE:=$HOME/.cache/cove}"
: "${COVE_BIN:=${CARGO_TARGET_DIR:-$COVE_CACHE/target}/debug/cove}"
version=4.32.5
packages=$COVE_CACHE/schemathesis/python-$version

die() { printf 'error: %s\n' "$1" >&2; shift; for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done; exit 1; }
[ -x "$COVE_BIN" ] || die "$COVE_BIN is not there" "cargo build, or COVE_BIN=…"
((EUID == 0)) || die "the server wants root for its sandboxes" "sudo -E $0"

if [ "$(cat "$packages/complete" 2>/dev/null)" != 'with prometheus' ]; then
    rm -rf "$packages"
    python3 -m venv "$packages" && "$packages/bin/pip" install --quiet "schemathesis==$version" prometheus_client &&
        echo 'with prometheus' >"$packages/complete" || die "cannot install schemathesis $version" "look at the message of pip above"
fi

exec "$packages/bin/python" -B "$here/conformance.py" "$COVE_BIN" "$packages/bin/schemathesis" "$@"
