#!/usr/bin/env bash
# run.sh [prepare | pytest arguments]: the Daytona SDKs of today and of a while ago against a server of the program under test.
#
# Packages are kept in $COVE_CACHE/daytona, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
cache=$COVE_CACHE/daytona
# What is newest now, and two that people have pinned; langchain and deepagents come with the newest.
pythons=("daytona==0.226.1 langchain-daytona==0.0.9 deepagents==0.7.32" "daytona==0.190.1" "daytona==0.155.0")
javascript=0.218.0

python_folder() { printf '%s/python-%s' "$cache" "$(tr -c 'a-z0-9.\n' '-' <<<"$1")"; }

for packages in "${pythons[@]}"; do
    # shellcheck disable=SC2086 # several requirements
    python_packages "$(python_folder "$packages")" $packages pytest pytest-asyncio pytest-timeout
done
node_packages "$cache/node-$javascript" "@daytonaio/sdk@$javascript"
export DAYTONA_NODE_PACKAGES=$cache/node-$javascript/package.json
[ "${1-}" = prepare ] && exit
needs_the_program
built_template

once=()
for packages in "${pythons[@]}"; do
    printf '\n=== %s (Python)\n' "$packages"
    run_pytest "$(python_folder "$packages")/bin/python" "${once[@]}" "$@"
    # The TypeScript SDK is the same for all of them.
    once=(--ignore=test_typescript.py)
done
told
