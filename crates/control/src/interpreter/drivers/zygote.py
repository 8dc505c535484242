"""The Python driver as a zygote: stands ready with all its imports done, and copies itself for each context.

It never runs a cell: what a context does stays in that context. The guest asks by a packet on standard input with three
descriptors; the copy is forked twice, so that it becomes the guest's own child, and answers itself once it is one:

    guest  {"env": {...}, "directories": ["/home/user"]} and descriptors of standard input, output and error
    copy   {"ready": true}, or {"failed": errno} where it cannot enter the directory
    zygote {"refused": "why"} for what a copy cannot become any more

A fork copies one thread: with others alive it would copy locks that nobody gives back, so then nobody is copied. A zygote
whose site directories have changed (pip) ends: the next one imports what is there now.
"""

import _socket
import gc
import importlib

# Read by Python or its libraries when they start: no copy can have another value.
FIXED = ("PYTHON", "LD_", "LC_", "LANG", "HOME", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "MPL")


def site_directories():
    """Where packages are, with the time of the last change. Those that pip would make later count too."""
    import site

    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    found = {}
    for path in {*site.getsitepackages(), *user, *sys.path[1:]}:
        try:
            found[path] = os.stat(path).st_mtime_ns
        except OSError:
            found[path] = None
    return found


def environment_at_start():
    with open("/proc/self/environ", "rb") as file:
        pairs = (pair.partition(b"=") for pair in file.read().split(b"\0") if pair)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def count_threads():
    return len(os.listdir("/proc/self/task"))


def have_one_thread():
    if count_threads() > 1:
        # Libraries of linear algebra end their threads before a fork and start them again when they compute.
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
    return count_threads() == 1


def stand_ready(modules):
    """Returns in each copy, with the reader of its requests."""
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, os.dup(0))
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    born_with = environment_at_start()
    # Python itself chooses a locale where none is set, and tells its children (PEP 538).
    chosen = {name: value for name, value in os.environ.items() if name not in born_with and name.startswith("LC_")}
    os.environ.setdefault("MPLBACKEND", "module://cove_matplotlib")
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:
            pass  # a template without it needs it no sooner than its cells do
    if modules and "matplotlib.pyplot" in sys.modules:
        FIGURES().chart_module()
    sites = site_directories()
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    os.write(1, b'{"cell": null, "event": "ready"}\n')
    while True:
        packet, ancillary, _, _ = link.recvmsg(1 << 20, 256)
        if not packet or site_directories() != sites:
            os._exit(0)
        streams = descriptors(ancillary)
        wanted = json.loads(packet)
        refused = unlike(born_with, wanted["env"])
        if not refused and not have_one_thread():
            refused = "it has threads"
        if not refused:
            wanted["env"] = {**chosen, **wanted["env"]}
            refused = copy(link, wanted, streams)
            if refused is None:
                return os.fdopen(os.dup(0), "rb", 65536)
        for fd in streams:
            os.close(fd)
        if refused:
            link.send(json.dumps({"refused": refused}).encode())


def descriptors(ancillary):
    found = []
    for level, kind, data in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            found += [int.from_bytes(data[at:at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]
    return found


def unlike(born_with, env):
    for name in {*born_with, *env}:
        if name.startswith(FIXED) and born_with.get(name) != env.get(name):
            return f"{name} is read when Python starts"
    return ""


def copy(link, wanted, streams):
    """None in the copy; in the zygote "" when there is one, or why there is none."""
    orphaned, tell = os.pipe()
    try:
        middle = os.fork()
    except OSError as failure:
        os.close(orphaned)
        os.close(tell)
        return f"fork: {failure.strerror}"
    if middle == 0:
        try:
            child = os.fork()
        except OSError:
            os._exit(1)
        if child:
            os._exit(0)
        try:
            os.close(tell)
            os.read(orphaned, 1)
            os.close(orphaned)
            become(link, wanted, streams)
        except BaseException as failure:
            link.send(json.dumps({"refused": f"{type(failure).__name__}: {failure}"}).encode())
            os._exit(1)
        return None
    _, status = os.waitpid(middle, 0)
    # From here on the copy is the guest's child.
    os.close(orphaned)
    os.close(tell)
    return "" if status == 0 else "fork: no room for another process"


def become(link, wanted, streams):
    os.setsid()
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
        os.close(fd)
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    failed = None
    for directory in wanted["directories"]:
        try:
            os.chdir(directory)
            break
        except OSError as failure:
            failed = failed or failure.errno
    else:
        link.send(json.dumps({"failed": failed}).encode())
        os._exit(0)
    # Python's own generator is seeded anew by the fork; numpy's is not.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(shell, "moved"):
        shell.moved()
    link.send(b'{"ready": true}')
    link.close()
