#!/usr/bin/env bash
# run.sh [prepare | pytest arguments]: what the guides of docs/how-to/ and the files of deploy/ promise, tried with real proxies and databases.
#
# Proxies are unpacked from the distribution's packages into $COVE_CACHE/deploy and never installed: that would start them.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
cache=$COVE_CACHE/deploy
sdk=2.63.0

proxies() {
    [ -x "$cache/proxies/usr/sbin/nginx" ] && [ -x "$cache/proxies/usr/bin/caddy" ] && return
    local fetched
    fetched=$(mktemp -d)
    (cd "$fetched" && { apt-get -qq download nginx caddy || { apt-get -qq update && apt-get -qq download nginx caddy; }; }) >/dev/null 2>&1 ||
        die "cannot fetch the packages nginx and caddy" "apt-get download nginx caddy"
    rm -rf "$cache/proxies" && mkdir -p "$cache/proxies"
    for package in "$fetched"/*.deb; do dpkg -x "$package" "$cache/proxies" || die "cannot unpack $package"; done
    rm -rf "$fetched"
}

python_packages "$cache/python-$sdk" "e2b==$sdk" pytest pytest-timeout
proxies
[ "${1-}" = prepare ] && exit
needs_the_program
export COVE_PROXIES=$cache/proxies
run_pytest "$cache/python-$sdk/bin/python" "$@"
told
