"""The Python driver as a zygote: stands ready with all its imports done, and is copied for each context.

It never runs a cell: what a context does stays in that context. One copy is always made ahead, the *spare*: forked twice, so that
it is the guest's own child, with its streams set up, waiting for the guest's packet. Whoever gets the packet becomes the
context, and the zygote makes the next spare:

    guest  {"env": {...}, "directories": ["/home/user"]} and descriptors of standard input, output and error
    spare  {"ready": true}, or {"failed": errno} where it cannot enter the directory,
           or {"refused": "why"} for what a copy cannot become any more

A fork copies one thread: with others alive it would copy locks that nobody gives back, so then nobody is copied. Where the site
directories have changed (pip) all end: the next zygote imports what is there now.
"""

import _socket
import gc
import os
import select
import sys
import time

core = core  # given by python.py

# Read by Python or its libraries when they start: no copy can have another value.
FIXED = ("PYTHON", "LD_", "LC_", "LANG", "HOME", "MALLOC_", "GLIBC_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "MPL")

# What a spare tells its zygote.
TAKEN, OUTDATED = b"t", b"o"


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


class Zygote:
    def __init__(self):
        self.link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, os.dup(0))
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        self.born_with = environment_at_start()
        # Python itself chooses a locale where none is set, and tells its children (PEP 538).
        fresh = {name: value for name, value in os.environ.items() if name not in self.born_with}
        self.chosen = {name: value for name, value in fresh.items() if name.startswith("LC_")}

    def refuse_one(self, why):
        packet, streams = self.receive()
        if not packet:
            os._exit(0)
        for fd in streams:
            os.close(fd)
        self.answer({"refused": why})

    def receive(self):
        packet, ancillary, _, _ = self.link.recvmsg(1 << 20, 256)
        streams = []
        for level, kind, data in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                streams += [int.from_bytes(data[at:at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]
        return packet, streams

    def answer(self, answer):
        self.link.send(core.dump(answer).encode())

    def unlike(self, env):
        for name in {*self.born_with, *env}:
            if name.startswith(FIXED) and self.born_with.get(name) != env.get(name):
                return f"{name} is read when Python starts"
        return ""


def fork_spare(zygote):
    """In the spare, the way to tell the zygote, and one that ends with it; in the zygote None and the spare's words."""
    heard, tell = os.pipe()
    alive, living = os.pipe()
    middle = os.fork()
    if middle == 0:
        os.close(heard)
        os.close(living)
        try:
            child = os.fork()
        except OSError:
            os._exit(1)
        if child:
            os._exit(0)
        return tell, alive
    os.close(tell)
    os.close(alive)
    _, status = os.waitpid(middle, 0)
    if status != 0:
        os.close(heard)
        os.close(living)
        raise BlockingIOError("no room for another process")
    return None, (heard, living)


def stand_ready(modules):
    """Never returns: not in the zygote, nor in a copy, which serves."""
    zygote = Zygote()
    os.environ.setdefault("MPLBACKEND", "module://cove_matplotlib")
    for name in modules:
        try:
            __import__(name)
        except Exception:
            pass  # a template without it needs it no sooner than its cells do
    if modules and "matplotlib.pyplot" in sys.modules:
        core.companion("figures")
        core.companion("charts")
    core.companion("formats")
    sites = site_directories()
    gc.collect()
    gc.freeze()
    sys.stdout.flush()
    told = False
    while True:
        why, tell = "it has threads", None
        if have_one_thread():
            try:
                tell, other = fork_spare(zygote)
                why = ""
            except OSError as failure:
                why = f"fork: {failure.strerror or failure}"
        if tell is not None:
            serve_as_context(zygote, sites, tell, other)
        if not told:
            told = True
            os.write(1, b'{"cell": null, "event": "ready"}\n')
        if why:
            zygote.refuse_one(why)
            continue
        heard, living = other
        word = os.read(heard, 1)
        if word == OUTDATED or not word and outlived(zygote):
            os._exit(0)
        os.close(heard)
        os.close(living)


def outlived(zygote):
    """Whether the spare ended because the guest has closed the link, rather than being killed."""
    poll = select.poll()
    poll.register(zygote.link, select.POLLIN)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def serve_as_context(zygote, sites, tell, alive):
    """The spare's life: waits for a packet that it can follow, then serves to its end."""
    driver = core.driver = core.Driver()
    # Not the zygote's output: whoever reads that waits for the zygote's word alone.
    driver.take(None, None)
    poll = select.poll()
    poll.register(zygote.link, select.POLLIN)
    poll.register(alive, select.POLLIN)
    rehearse(zygote)
    while True:
        if any(fd == alive for fd, _ in poll.poll()):
            os._exit(0)
        packet, streams = zygote.receive()
        if not packet:
            os._exit(0)
        if site_directories() != sites:
            os.write(tell, OUTDATED)
            os._exit(0)
        wanted = core.load(packet.decode())
        refused = zygote.unlike(wanted["env"])
        if not refused and len(streams) == 3:
            break
        for fd in streams:
            os.close(fd)
        zygote.answer({"refused": refused or "it was given too few descriptors"})
    try:
        become(zygote, wanted, streams)
    except BaseException as failure:
        zygote.answer({"refused": f"{type(failure).__name__}: {failure}"})
        os._exit(1)
    os.write(tell, TAKEN)
    os.close(tell)
    os.close(alive)
    driver.serve(core.shell)
    sys.exit(0)


def rehearse(zygote):
    """Walks the way of a first cell once: the pages that are written on it are this copy's own before anybody waits."""
    packet = core.dump({"env": zygote.born_with, "directories": ["/"]})
    zygote.unlike(core.load(packet)["env"])
    site_directories()
    os.environ.update(zygote.born_with)
    exec(compile("x = 1", "<cove>", "exec"), {})


def become(zygote, wanted, streams):
    os.setsid()
    os.environ.clear()
    os.environ.update({**zygote.chosen, **wanted["env"]})
    os.environ.setdefault("MPLBACKEND", "module://cove_matplotlib")
    time.tzset()
    failed = None
    for directory in wanted["directories"]:
        try:
            os.chdir(directory)
            break
        except OSError as failure:
            failed = failed or failure.errno
    else:
        zygote.answer({"failed": failed})
        os._exit(0)
    # Python's own generator is seeded anew by the fork; numpy's is not.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if hasattr(core.shell, "moved"):
        core.shell.moved()
    requests, output, errors = streams
    os.close(errors)
    for fd in (requests, output):
        os.set_inheritable(fd, False)
    channel = core.driver.channel
    channel.requests, channel.fd = os.fdopen(requests, "rb", 65536), output
    zygote.link.send(b'{"ready": true}')
    zygote.link.close()
