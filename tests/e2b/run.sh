#!/usr/bin/env bash
# run.sh [prepare | pytest arguments]: the E2B SDKs of today and of a while ago against a server of the program under test.
#
# Packages are kept in $COVE_CACHE/e2b, outside the clone. COVE_BIN names the program.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
cache=$COVE_CACHE/e2b
# Of today and of a while ago: the Python SDK, the JavaScript SDK and the command line.
newest=(2.63.0 2.51.0 2.19.0) pinned=(2.30.0 2.45.0 2.16.0) interpreter=2.11.5 javascript_interpreter=2.8.0

test_packages=(pytest pytest-asyncio pytest-timeout)
python_packages "$cache/python-${newest[0]}" "e2b==${newest[0]}" "e2b-code-interpreter==$interpreter" "${test_packages[@]}"
python_packages "$cache/python-${pinned[0]}" "e2b==${pinned[0]}" "${test_packages[@]}"
for versions in "${newest[*]:1}" "${pinned[*]:1}"; do
    read -r javascript cli <<<"$versions"
    node_packages "$cache/node-$javascript-$cli" "e2b@$javascript" "@e2b/cli@$cli"
done
# The code interpreter's own SDK for JavaScript; it brings the rest along.
node_packages "$cache/node-interpreter-$javascript_interpreter" "@e2b/code-interpreter@$javascript_interpreter"
export E2B_INTERPRETER_PACKAGES=$cache/node-interpreter-$javascript_interpreter/package.json
# For test_providers.py.
daemons
[ "${1-}" = prepare ] && exit
needs_the_program
built_template

for versions in "${newest[*]}" "${pinned[*]}"; do
    read -r version javascript cli <<<"$versions"
    printf '\n=== e2b %s (Python), %s (JavaScript), command line %s\n' "$version" "$javascript" "$cli"
    export E2B_NODE_PACKAGES=$cache/node-$javascript-$cli/package.json
    run_pytest "$cache/python-$version/bin/python" "$@"
done
told
