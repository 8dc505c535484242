#!/usr/bin/env bash
# run.sh [prepare]: the engine and the program on another kernel: the distribution's own, control groups version 2 alone, in an emulated machine.
#
# All other tests run on this machine's kernel. This one shows what its age and its configuration do without, and that limits hold
# on a real tree of version 2. The machine is emulated in software: it needs no KVM and proves nothing about speed. Its file system
# is a Debian of its own, made once and kept in COVE_CACHE. Where it cannot be made, does not start or stands still, the emulation
# failed and nothing is known of the engine: that is told, with exit code 77. Whatever fails inside is a failure.
set -uo pipefail
cd "$(dirname "$0")/../.."
. tests/common.sh
PATH=$PATH:/usr/sbin:/sbin
tests=(cgroup launch walls)
store=$COVE_CACHE/kernel clone=$PWD

untried() { printf 'not run: %s\n' "$1"; shift; for hint in "$@"; do printf 'hint: %s\n' "$hint"; done; exit 77; }
for pair in qemu-system-x86_64:qemu-system-x86 debootstrap:debootstrap mke2fs:e2fsprogs busybox:busybox-static cpio:cpio modprobe:kmod; do
    command -v "${pair%%:*}" >/dev/null || untried "${pair%%:*} is not installed" "sudo apt-get install --no-install-recommends ${pair#*:}"
done

# The kernel, a first file system that finds the disk, and the disk. Says why it could not.
make_machine() {
    local new=$store.new release
    rm -rf "$new"; mkdir -p "$new"/{package,tree,first/bin,first/modules,first/dev,first/proc,first/disk}
    # The package lists of a fresh machine are often empty or stale.
    download_kernel "$new" || { apt-get -qq update && download_kernel "$new"; } || return 1
    dpkg-deb -x "$new"/linux-image-*.deb "$new/package" || return 1
    release=$(ls "$new/package/lib/modules") && depmod --basedir "$new/package" "$release" || return 1
    mv "$new/package/boot/vmlinuz-$release" "$new/vmlinuz"

    cp "$(command -v busybox)" "$new/first/bin/busybox"
    local number=10 module
    for module in $(for name in virtio_pci virtio_blk; do modprobe --dirname "$new/package" --set-version "$release" --show-depends "$name"; done |
        awk '/^insmod/ && !seen[$2]++ { print $2 }'); do
        cp "$module" "$new/first/modules/$((number++)).ko"
    done
    install -m 755 tests/kernel/first "$new/first/init"
    (cd "$new/first" && find . | cpio --quiet --create --format=newc) | gzip -1 >"$new/first.gz" || return 1

    timeout 600 debootstrap --variant=minbase --include=python3,iproute2,procps,kmod,btrfs-progs,uidmap,sudo,git \
        "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$new/tree" || return 1
    rm -rf "$new"/tree/var/cache/apt/* "$new"/tree/var/lib/apt/lists/*
    mkdir -p "$new/tree/lib/modules" && mv "$new/package/lib/modules/$release" "$new/tree/lib/modules/" || return 1
    mke2fs -q -t ext4 -O ^has_journal -d "$new/tree" -F "$new/disk" 20G || return 1
    rm -rf "$new"/{package,tree,first} "$new"/*.deb "$store" && mv "$new" "$store"
}
download_kernel() { # download_kernel DIRECTORY
    local package
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    [ -n "$package" ] && (cd "$1" && timeout 300 apt-get -o Acquire::Retries=3 download "$package")
}
if [ ! -e "$store/disk" ]; then
    ((EUID == 0)) || untried "the emulated machine's file system is made by root" "run once as root: tests/kernel/run.sh"
    mkdir -p "$COVE_CACHE"
    echo "making an emulated machine (once, about a minute)"
    make_machine >"$store.log" 2>&1 || { tail -n 20 "$store.log"; untried "the emulated machine could not be made"; }
    rm "$store.log"
fi

[ "${1-}" = prepare ] && exit

scripts/claim
programs=$(cargo test --workspace --no-run --locked --message-format=json 2>/dev/null | python3 -c '
import json, sys
for made in map(json.loads, sys.stdin):
    target = made.get("target", {})
    if made.get("executable") and target.get("kind") == ["test"] and "/crates/engine/" in target["src_path"]:
        print(target["name"], made["executable"])
') || die "the tests do not compile"

scratch=$(mktemp -d -t cove-kernel-XXXX); trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/orders"
cp "$CARGO_TARGET_DIR/debug/cove" "$CARGO_TARGET_DIR/debug/cove-spawner" tests/kernel/{init,people} "$scratch/orders/"
for name in "${tests[@]}"; do
    program=$(awk -v name="$name" '$1 == name { print $2 }' <<<"$programs")
    cp "${program:?there is no test program $name}" "$scratch/orders/test-$name"
done
# Tests know their spawner and their sources by path.
printf 'spawner=%q\nclone=%q\ntests=%q\n' "$CARGO_TARGET_DIR/debug/cove-spawner" "$clone" "${tests[*]}" >"$scratch/orders/orders"
mke2fs -q -t ext4 -O ^has_journal -d "$scratch/orders" -F "$scratch/orders.disk" 2G || die "no disk for the orders"
rm -r "$scratch/orders"

: >"$scratch/log"
disk() { printf 'file=%s,if=virtio,format=raw,snapshot=on' "$1"; }
TMPDIR=$scratch timeout "${COVE_STAGE_LIMIT:-840}" qemu-system-x86_64 -accel tcg,thread=multi -machine q35 -cpu max -smp 2 -m 3G -nodefaults -no-user-config \
    -no-reboot -display none -serial stdio -kernel "$store/vmlinuz" -initrd "$store/first.gz" -append 'console=ttyS0 quiet panic=-1 mitigations=off' \
    -drive "$(disk "$store/disk")" -drive "$(disk "$scratch/orders.disk")" -pidfile "$scratch/pid" -monitor "unix:$scratch/monitor,server=on,wait=off" \
    </dev/null 2>&1 | sed -u 's/\r//' | tee -a "$scratch/log" &
machine=$! stands_still=no
# Whatever runs inside is ended there after a time that is shorter: a machine that is silent for so long stands still itself.
while kill -0 "$machine" 2>/dev/null; do
    sleep 1
    if (($(date +%s) - $(stat -c %Y "$scratch/log") > 240)); then
        echo 'the emulated machine stands still; its processors:'
        python3 -c '
import socket, sys, time
try:
    monitor = socket.socket(socket.AF_UNIX); monitor.settimeout(5); monitor.connect(sys.argv[1])
    monitor.sendall(b"info registers -a\n"); time.sleep(1)
    print(*[line for line in monitor.recv(1 << 16).decode().splitlines() if line.startswith(("CPU#", "RIP"))], sep="\n")
except OSError as error:
    print("the emulator does not answer:", error)
' "$scratch/monitor"
        stands_still=yes
        kill -KILL "$(cat "$scratch/pid")"
        break
    fi
done
wait "$machine" 2>/dev/null

read -r passed failed results < <(awk '/^test result: / { ok += $4; bad += $6; results++ } END { print ok + 0, bad + 0, results + 0 }' "$scratch/log")
grep -q '^=== Linux' "$scratch/log" || untried "the emulated machine did not start" "what it said stands above"
[ "$stands_still" = yes ] && ((failed == 0)) && untried "the emulated machine stood still" "what it said before stands above"
# Every program told its result (the people's own comes last), and the last word was said.
if ((results != ${#tests[@]} + 1)) || ! grep -q '^=== end' "$scratch/log"; then
    echo 'the machine did not get through'
    failed=$((failed + 1))
fi
told
