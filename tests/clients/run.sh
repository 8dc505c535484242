#!/usr/bin/env bash
# run.sh [prepare | WORD…]: clients that people use, in the versions they have pinned, against a server of the program under test.
#
# A slice (the oldest and the newest SDK of each vendor) runs always; COVE_LONG=1 runs all of clients.toml and writes the table of
# docs/clients.md. Words pick clients by name. Packages are kept in $COVE_CACHE/clients, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
all=()
[ -n "${COVE_LONG-}" ] && all=(--all)
if [ "${1-}" = prepare ]; then exec python3 -B "$here/matrix.py" prepare "${all[@]}"; fi
needs_the_program
if [ -n "${COVE_LONG-}" ] || (($#)); then built_template; fi
exec python3 -B "$here/matrix.py" run "${all[@]}" "$@"
