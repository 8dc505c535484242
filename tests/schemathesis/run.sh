#!/usr/bin/env bash
# run.sh [prepare | schemathesis arguments]: requests made from the API document, against a real server with real sandboxes.
#
# Also: the metrics after all that, read by Prometheus' own parser. What must hold for every request: no fault of the server's, no status, content type or body that the document does
# not announce, and every wrong request refused. COVE_LONG=1 tries many more of them, and chains of calls.
# Packages are kept in $COVE_CACHE/schemathesis, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
version=4.32.5
packages=$COVE_CACHE/schemathesis/python-$version

python_packages "$packages" "schemathesis==$version" prometheus_client
[ "${1-}" = prepare ] && exit
needs_the_program
exec "$packages/bin/python" -B "$here/conformance.py" "$COVE_BIN" "$packages/bin/schemathesis" "$@"
