#!/usr/bin/env bash
# run.sh [prepare | pytest arguments]: images, builds, snapshots and forks beside a real registry, a real dockerd and Debian's own tools; then
# hostile images, kills at random moments and full disks.
#
# The Debian that packages are installed into is made once, in $COVE_CACHE/images. COVE_LONG=1 kills the server more often, COVE_SEED repeats a run.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../common.sh"
PATH=$PATH:/usr/sbin:/sbin
cache=$COVE_CACHE/images
# What is asked of the Debian; another list makes another one.
included=python3,python3-pip,sudo,npm

# As a layer. Half of it is left out: what no test runs need not be read, compared and written each time.
debian() {
    [ "$(cat "$cache/debian.complete" 2>/dev/null)" = "$included" ] && return
    ((EUID == 0)) || die "the Debian of the tests is made by root" "run once as root: tests/images/run.sh prepare"
    echo "making a Debian (once, some minutes)"
    local tree=$cache/debian.new log=$cache/debian.log
    rm -rf "$tree" && mkdir -p "$tree"
    {
        timeout 500 debootstrap --variant=minbase "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$tree" &&
            printf 'path-exclude=/usr/share/%s/*\n' doc man locale info >"$tree/etc/dpkg/dpkg.cfg.d/small" &&
            DEBIAN_FRONTEND=noninteractive timeout 500 chroot "$tree" apt-get -y -qq install --no-install-recommends ${included//,/ }
    } >"$log" 2>&1 || { tail -n 20 "$log"; die "the Debian of the tests could not be made" "the whole log: $log"; }
    (cd "$tree" && rm -rf usr/share/{doc,man,locale,info,zoneinfo}/* usr/include usr/lib/*/gconv var/{log,cache/apt}/* var/lib/apt/lists/* \
        usr/share/nodejs/{@babel,@types,core-js,core-js-pure,webpack,es-abstract,web-streams-polyfill,caniuse-lite,eslint,lodash-es,terser,@webassemblyjs,regenerate-unicode-properties} &&
        find . '(' -name __pycache__ -o -name '*.a' ')' -prune -exec rm -rf {} + && chroot . npm --version && chroot . pip --version) >>"$log" 2>&1 ||
        { tail -n 5 "$log"; die "the Debian of the tests does not work"; }
    tar -C "$tree" --numeric-owner --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* -cf - . | zstd -q -3 -f -o "$cache/debian.tar.zst" || die "cannot pack the Debian"
    rm -rf "$tree" "$log"
    echo "$included" >"$cache/debian.complete"
}

for pair in skopeo:skopeo umoci:umoci zstd:zstd runc:runc apt-ftparchive:apt-utils dpkg-deb:dpkg debootstrap:debootstrap busybox:busybox-static \
    mke2fs:e2fsprogs curl:curl perl:perl; do
    command -v "${pair%%:*}" >/dev/null || die "${pair%%:*} is not installed" "scripts/setup test, or: sudo apt-get install --no-install-recommends ${pair#*:}"
done
mkdir -p "$cache"
python_packages "$cache/python" pytest pytest-timeout
daemons
debian
[ "${1-}" = prepare ] && exit
needs_the_program
export COVE_DEBIAN=$cache/debian.tar.zst
run_pytest "$cache/python/bin/python" "$@"
told
