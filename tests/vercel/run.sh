#!/usr/bin/env bash
# run.sh [prepare | pytest arguments]: the Vercel Sandbox SDK of today and of a while ago against a server of the program under test.
#
# Packages are kept in $COVE_CACHE/vercel, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
cache=$COVE_CACHE/vercel
versions=(3.5.0 3.1.0)

python_packages "$cache/python" pytest pytest-timeout
for version in "${versions[@]}"; do
    node_packages "$cache/node-$version" "@vercel/sandbox@$version"
done
[ "${1-}" = prepare ] && exit
needs_the_program

for version in "${versions[@]}"; do
    printf '\n=== @vercel/sandbox %s\n' "$version"
    export VERCEL_NODE_PACKAGES=$cache/node-$version/package.json
    run_pytest "$cache/python/bin/python" "$@"
done
told
