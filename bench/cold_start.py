"""From nothing to the first byte of a command's output, and to the end of everything, against other runtimes.

All contenders run the same program on the same files (this machine's /usr, read-only) with the same borders (user, pid,
mount, network, ipc and uts namespaces). Rounds are interleaved, so that a busy moment of the machine hits all of them alike;
ratios within one run are what counts, not the milliseconds.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

COMMAND = ["/bin/sh", "-c", "echo ready"]


def bwrap():
    if not shutil.which("bwrap"):
        return None
    argv = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/tmp", "--tmpfs", "/home", "--tmpfs", "/etc"]
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            argv += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    return argv + ["--"] + COMMAND


def oci(runtime, directory):
    """runc or crun on a bundle whose root shows the same /usr."""
    if not shutil.which(runtime) or os.geteuid() != 0:
        return None
    bundle = directory / runtime
    root = bundle / "rootfs"
    for name in ("usr", "proc", "dev", "tmp", "home", "etc", "sys"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            (root / name).symlink_to(os.readlink(f"/{name}"))
    mapping = [{"containerID": 0, "hostID": 100000, "size": 65536}]
    bind = lambda source, target: {"destination": target, "type": "bind", "source": source, "options": ["rbind", "ro"]}
    config = {
        "ociVersion": "1.0.2",
        "process": {"terminal": False, "user": {"uid": 0, "gid": 0}, "args": COMMAND, "cwd": "/", "env": ["PATH=/usr/bin:/bin"],
                    "noNewPrivileges": True},
        "root": {"path": str(root), "readonly": True},
        "hostname": "bench",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
            {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"},
            bind("/usr", "/usr"),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "user")],
                  "uidMappings": mapping, "gidMappings": mapping},
    }
    (bundle / "config.json").write_text(json.dumps(config))
    for path in [directory, bundle, root]:
        path.chmod(0o755)
    counter = iter(range(1 << 30))
    return lambda: [runtime, "run", "--bundle", str(bundle), f"cove-bench-{os.getpid()}-{next(counter)}"]


def engine(name):
    """docker or podman with an image of nothing but busybox, where one answers."""
    if not shutil.which(name) or not shutil.which("busybox"):
        return None
    try:
        if subprocess.run([name, "info"], capture_output=True, timeout=20).returncode != 0:
            return None
        with tempfile.TemporaryDirectory() as directory:
            root = pathlib.Path(directory)
            (root / "bin").mkdir()
            shutil.copy(shutil.which("busybox"), root / "bin/busybox")
            (root / "bin/sh").symlink_to("busybox")
            archive = subprocess.run(["tar", "-C", directory, "-c", "."], capture_output=True, check=True).stdout
            subprocess.run([name, "import", "-", "cove-bench"], input=archive, capture_output=True, check=True, timeout=120)
    except (subprocess.SubprocessError, OSError):
        return None
    return [name, "run", "--rm", "--network", "none", "cove-bench"] + COMMAND


def once(argv):
    """Seconds to the first byte and to the end."""
    argv = argv() if callable(argv) else argv
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = process.stdout.read(1)
    to_first = time.perf_counter() - start
    _, said = process.communicate()
    total = time.perf_counter() - start
    if process.returncode != 0 or first != b"r":
        raise RuntimeError(f"{argv[0]}: exit {process.returncode}: {said.decode(errors='replace').strip()}")
    return to_first, total


def throughput(argv, workers, seconds=3.0):
    """Runs per second with so many under way at once."""
    deadline = time.perf_counter() + seconds
    start, done, running = time.perf_counter(), 0, {}

    def take_one():
        pid, status = os.wait()
        # Told to the object as well, or it would wait for the same child when it goes.
        running.pop(pid).returncode = os.waitstatus_to_exitcode(status)
        return status == 0

    while time.perf_counter() < deadline:
        while len(running) < workers:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            running[process.pid] = process
        done += take_one()
    while running:
        done += take_one()
    return done / (time.perf_counter() - start)


def main():
    cove, rounds, slow_rounds = sys.argv[1], int(os.environ.get("ROUNDS", "60")), int(os.environ.get("SLOW_ROUNDS", "5"))
    with tempfile.TemporaryDirectory(prefix="cove-bench-") as directory:
        directory = pathlib.Path(directory)
        contenders = {
            "fork + exec, no borders": (COMMAND, rounds),
            "cove run": ([cove, "run", "--"] + COMMAND, rounds),
            "bubblewrap": (bwrap(), rounds),
            "crun": (oci("crun", directory), rounds),
            "runc": (oci("runc", directory), max(slow_rounds, rounds // 4)),
            "podman": (engine("podman"), slow_rounds),
            "docker": (engine("docker"), slow_rounds),
        }
        times, absent = {name: [] for name in contenders}, {}
        for round_number in range(-2, rounds):
            for name, (argv, limit) in contenders.items():
                if name in absent or round_number >= limit:
                    continue
                if argv is None:
                    absent[name] = "not here"
                    continue
                try:
                    result = once(argv)
                except (RuntimeError, OSError) as error:
                    absent[name] = str(error)[:80]
                    continue
                if round_number >= 0:
                    times[name].append(result)
        print("## From nothing to the first output, and to the end\n")
        print("`sh -c 'echo ready'`, median over interleaved rounds; ratios to bubblewrap in the same run.\n")
        print("| | first byte, ms | p95, ms | to the end, ms | first byte : bwrap | to the end : bwrap |")
        print("|---|---|---|---|---|---|")
        base = times.get("bubblewrap") or times["fork + exec, no borders"]
        base_first, base_total = (statistics.median(part) for part in zip(*base))
        for name, results in times.items():
            if name in absent or not results:
                print(f"| {name} | {absent.get(name, 'no result')} | | | | |")
                continue
            firsts, totals = zip(*results)
            first, total = statistics.median(firsts), statistics.median(totals)
            p95 = sorted(firsts)[int(len(firsts) * 0.95)]
            print(f"| {name} | {first * 1e3:.2f} | {p95 * 1e3:.2f} | {total * 1e3:.2f} | {first / base_first:.2f} | {total / base_total:.2f} |")
        print("\n## Runs per second\n")
        print(f"`true`, {os.cpu_count()} processors.\n")
        print("| at once | cove run | bubblewrap | ratio |")
        print("|---|---|---|---|")
        wrapped = bwrap()
        for workers in (1, 2, 4, 8):
            ours = throughput([cove, "run", "--", "true"], workers)
            theirs = throughput(wrapped[: -len(COMMAND)] + ["true"], workers) if wrapped else float("nan")
            print(f"| {workers} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")


main()
