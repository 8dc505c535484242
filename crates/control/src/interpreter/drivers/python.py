"""The Python driver: keeps one context alive and runs cells in it.

Started by the guest with a short bootstrap that reads this source and its companions from standard input, so nothing lies on
the sandbox's disk. Requests follow as JSON lines there, events leave as JSON lines on standard output; both are moved to
private descriptors first, so that the user's code sees an empty standard input and can print, fork and exec as it likes:

    stdin  {"cell": "c1", "code": "6*7", "env": {"K": "V"}}
    stdout {"cell": "c1", "event": "started", "count": 1}
           {"cell": "c1", "event": "stdout", "text": "..."}
           {"cell": "c1", "event": "result", "main": true, "data": {"text/plain": "42"}}
           {"cell": "c1", "event": "error", "name": "...", "value": "...", "traceback": "..."}
           {"cell": "c1", "event": "done"}

IPython's shell runs the cells where it is installed; a plain interpreter does where it is not. The first cell waits for
every import and for every line that is compiled here. So this file has only what each cell needs, from modules that are part of
the interpreter itself (`_json`, `_ast`, `_signal`, `_thread`); the rest is in companions that are compiled when they are first
of use. With `zygote` among these it does not serve but stands ready, and each copy of it goes on as a context (zygote.py).
"""

import _ast
import _signal
import _thread
import builtins
import io
import os
import sys
import time

try:
    from _json import encode_basestring_ascii, make_encoder, make_scanner
except ImportError:  # a Python that has its JSON elsewhere
    make_encoder = None

# Given by the bootstrap: `sources`, the companions of this file, and `requests`, the buffered reader of standard input.
driver = None
sys.argv[:] = [""]
Module = type(sys)

# A value beyond this is refused with an error rather than sent: the host takes no longer line.
MAX_VALUE = 16 << 20
# Output is gathered for this long, so that a loop of prints is one event and a slow one is still live.
GATHER_SECONDS = 0.05
GATHER_BYTES = 32 << 10


class Scanned:
    """How JSON is read: as the standard library does it."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


def load(text):
    """json.loads, without the imports that it brings along."""
    if make_encoder is None:
        import json

        return json.loads(text)
    return make_scanner(Scanned)(text, 0)[0]


def dump(value, default=str, allow_nan=True):
    """json.dumps, likewise."""
    if make_encoder is None:
        import json

        return json.dumps(value, default=default, allow_nan=allow_nan)
    encode = make_encoder({}, default, encode_basestring_ascii, None, ": ", ", ", False, False, allow_nan)
    return "".join(encode(value, 0))


def companion(name):
    """A module made of one of the sources, when it is first needed."""
    full = "cove_" + name
    if full not in sys.modules:
        module = sys.modules[full] = Module(full)
        module.core = core
        exec(compile(sources[name], f"<cove {name}>", "exec"), module.__dict__)
    return sys.modules[full]


class Channel:
    """The private way to the host. One lock: events from threads and from the capture never mix."""

    def __init__(self):
        self.requests = self.fd = self.cell = None
        self.lock = _thread.RLock()
        self.held = b""

    def send(self, event, **fields):
        data = dump({"cell": self.cell, "event": event, **fields}).encode() + b"\n"
        with self.lock:
            data, self.held = memoryview(self.held + data), b""
            while data:
                data = data[os.write(self.fd, data):]

    def begin(self, cell, count):
        """That a cell has begun goes out with what it says first."""
        self.cell = cell
        self.held = dump({"cell": cell, "event": "started", "count": count}).encode() + b"\n"


class Stream(io.TextIOBase):
    """Stands in for sys.stdout or sys.stderr: gathers text and sends it as events."""

    encoding, errors, newlines, closed, mode = "utf-8", "replace", None, False, "w"

    def __init__(self, output, name, fd):
        self.output, self.name, self._fd = output, name, fd
        self.buffer = RawStream(self)

    def write(self, text):
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        self.output.put(self, text)
        return len(text)

    def flush(self):
        self.output.flush()

    close = flush

    def fileno(self):
        return self._fd

    def isatty(self):
        return False

    def writable(self):
        return True

    def reconfigure(self, **options):
        pass


class RawStream:
    """sys.stdout.buffer: bytes, decoded as they come."""

    def __init__(self, stream):
        self.stream, self.flush, self.fileno = stream, stream.flush, stream.fileno

    def write(self, data):
        self.stream.write(bytes(data).decode("utf-8", "replace"))
        return len(data)


class Output:
    """Both streams in the order they were written; a change of stream sends what was gathered."""

    def __init__(self, channel):
        self.channel = channel
        self.lock = _thread.RLock()
        self.parts, self.size, self.current = [], 0, None
        self.quiet = _thread.allocate_lock()
        self.quiet.acquire()
        self.forked = False
        self.stdout = Stream(self, "stdout", 1)
        self.stderr = Stream(self, "stderr", 2)

    def put(self, stream, text):
        if self.forked:  # a child of the user's: its words go by the descriptor, the parent gathers them there
            os.write(stream._fd, text.encode("utf-8", "replace"))
            return
        if not text:
            return
        with self.lock:
            if self.current is not stream:
                self.flush()
                self.current = stream
            self.parts.append(text)
            self.size += len(text)
            if self.size >= GATHER_BYTES:
                self.flush()
            if self.quiet.locked():
                self.quiet.release()

    def flush(self):
        with self.lock:
            if self.parts:
                text = "".join(self.parts)
                self.parts, self.size = [], 0
                for start in range(0, len(text), 1 << 18):
                    self.channel.send(self.current.name, text=text[start:start + (1 << 18)])

    def tick(self):
        """Sends what a cell left behind; runs in a thread of its own, asleep while it is quiet."""
        while True:
            self.quiet.acquire()
            time.sleep(GATHER_SECONDS)
            self.flush()


class Capture:
    """Descriptors 1 and 2 as pipes: what subprocesses and C code write becomes events too."""

    def __init__(self, output):
        self.output = output
        self.sources = []
        for stream in (output.stdout, output.stderr):
            reading, writing = os.pipe()
            os.dup2(writing, stream._fd)
            os.close(writing)
            os.set_blocking(reading, False)
            self.sources.append((reading, stream))

    def drain(self):
        """Takes what lies in the pipes now."""
        for fd, stream in self.sources:
            while True:
                try:
                    data = os.read(fd, 1 << 16)
                except BlockingIOError:
                    break
                if not data:
                    break
                self.output.put(stream, data.decode("utf-8", "replace"))

    def pump(self):
        import select

        poll = select.poll()
        for fd, _ in self.sources:
            poll.register(fd, select.POLLIN)
        while True:
            poll.poll()
            with self.output.lock:
                self.drain()


class Driver:
    def __init__(self):
        self.channel = Channel()
        self.output = Output(self.channel)
        self.pid = os.getpid()
        self.count = 0
        self.errored = False

    def take(self, requests, fd):
        """Takes over the process: from here on its standard streams are the user's."""
        self.channel.requests, self.channel.fd = requests, fd
        empty = os.open(os.devnull, os.O_RDONLY)
        os.dup2(empty, 0)
        os.close(empty)
        self.capture = Capture(self.output)
        sys.stdout = sys.__stdout__ = self.output.stdout
        sys.stderr = sys.__stderr__ = self.output.stderr
        builtins.input = refuse_input
        os.register_at_fork(before=self.output.flush, after_in_child=self._after_fork)
        # For output that lingers. No module is imported there that takes note of its first thread (threading).
        _thread.start_new_thread(self.output.tick, ())
        _thread.start_new_thread(self.capture.pump, ())

    def _after_fork(self):
        self.output.forked = True
        self.output.lock = _thread.RLock()
        self.output.parts = []

    def show(self, value, main=False):
        self.display(companion("formats").of(value), main)

    def display(self, data, main=False):
        """One result, as MIME type to value; what is too large is refused by name."""
        kept, refused = companion("formats").fit(data)
        with self.output.lock:
            self.capture.drain()
            self.output.flush()
        if kept:
            self.channel.send("result", main=main, data=kept)
        elif refused:
            self.error("ResultTooLarge", refused, "")

    def error(self, name, value, trace):
        if self.errored:
            return
        self.errored = True
        self.output.flush()
        self.channel.send("error", name=name, value=value[:1 << 20], traceback=trace[:1 << 20])

    def serve(self, shell):
        """One request after the other until the host closes."""
        for line in self.channel.requests:
            request = load(line.decode())
            self.errored = False
            saved = {}
            for key, value in (request.get("env") or {}).items():
                saved[key] = os.environ.get(key)
                os.environ[key] = value
            self.count += 1
            self.channel.begin(request["cell"], self.count)
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)
            try:
                try:
                    shell.run(request["code"], self.count)
                finally:
                    if os.getpid() != self.pid:
                        os._exit(0)  # a fork that ran to the end of the cell ends with it
                    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
                if "cove_figures" in sys.modules:
                    companion("figures").after_cell()
            except BaseException as failure:  # an interrupt in the gap, or a broken hook: the context must go on
                self.error(type(failure).__name__, str(failure), "")
            with self.output.lock:
                self.capture.drain()
                self.output.flush()
            for key, value in saved.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value
            self.channel.send("done")
            self.channel.cell = None


class PlainShell:
    """A context without IPython: the last expression is the result, top-level await works."""

    def __init__(self):
        self.loop = None
        module = Module("__main__")
        module.__builtins__ = builtins
        sys.modules["__main__"] = module
        self.namespace = module.__dict__
        self.namespace["display"] = self.display

    def display(self, *objects):
        for value in objects:
            driver.show(value)

    def run(self, code, count):
        name = f"<cell {count}>"
        try:
            tree = compile(code, name, "exec", _ast.PyCF_ONLY_AST, True)
            last = None
            if tree.body and isinstance(tree.body[-1], _ast.Expr) and not code.rstrip().endswith(";"):
                last = _ast.Expression(tree.body.pop().value)
            Hooks.remember(name, code)
            self._execute(tree, name, "exec")
            if last is not None:
                value = self._execute(last, name, "eval")
                if value is not None:
                    self.namespace["_"] = value
                    driver.show(value, main=True)
        except BaseException as failure:
            driver.error(*companion("formats").explained(failure, code))

    def _execute(self, tree, name, mode):
        code = compile(tree, name, mode, _ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
        value = eval(code, self.namespace)
        if code.co_flags & 0x80:  # CO_COROUTINE: the cell awaits
            import asyncio

            if self.loop is None:
                self.loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self.loop)
            value = self.loop.run_until_complete(value)
        return value


class Hooks:
    """Looks at three imports: matplotlib gets a backend that shows figures as results, PIL.Image.save shows what it saves,
    and linecache, which most cells do without, learns the cells' lines when something asks for it."""

    hooked = {"cove_matplotlib", "PIL.Image", "linecache"}
    cells = {}

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name not in cls.hooked:
            return None
        if name != "linecache":
            return companion("figures").find_spec(name, path, cls)
        cls.hooked.discard(name)
        spec = PathFinder.find_spec(name)
        cls.loader, spec.loader = spec.loader, cls
        return spec

    @classmethod
    def create_module(cls, spec):
        return None

    @classmethod
    def exec_module(cls, module):
        module.__loader__ = module.__spec__.loader = cls.loader
        cls.loader.exec_module(module)
        module.cache.update(cls.cells)
        cls.cells = module.cache

    @classmethod
    def remember(cls, name, code):
        cls.cells[name] = (len(code), None, [line + "\n" for line in code.splitlines()], name)


class Installed:
    """Comes last: finds packages that were installed since the interpreter began. Python reads the folders of packages once,
    at its start, and the user's own is there only after its first `pip install`."""

    seen = None

    @classmethod
    def folders(cls):
        site = sys.modules.get("site")
        if site is None:
            return {}
        user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        found = {}
        for path in [*user, *site.getsitepackages()]:
            try:
                found[path] = os.stat(path).st_mtime_ns
            except OSError:
                pass
        return found

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if path is not None:  # a module within a package: that has been found already
            return None
        found = cls.folders()
        if found == cls.seen:
            return None
        cls.seen = found
        for folder in found:
            if folder not in sys.path:
                # Where Python puts it at its start: before those of the system, after the standard library.
                others = [place for place, other in enumerate(sys.path) if str(other).endswith("-packages")]
                sys.path.insert(others[0] if others else len(sys.path), folder)
                sys.modules["site"].addsitedir(folder)  # for its .pth files
        PathFinder.invalidate_caches()
        return PathFinder.find_spec(name)


def refuse_input(prompt=""):
    raise RuntimeError(
        "input() cannot be answered here: nobody sits at this interpreter. Pass the value in the code or as an "
        "environment variable"
    )


def begin(requests, fd):
    """Takes over the process and serves."""
    global driver
    os.environ.setdefault("MPLBACKEND", "module://cove_matplotlib")
    driver = Driver()
    driver.take(requests, fd)
    driver.serve(shell)


core = sys.modules["__main__"]
PathFinder = sys.modules["_frozen_importlib_external"].PathFinder
_signal.signal(_signal.SIGINT, _signal.SIG_IGN)
sys.meta_path.insert(0, Hooks)
sys.meta_path.append(Installed)
shell = PlainShell() if PathFinder.find_spec("IPython") is None else companion("ipython").Shell()
if "zygote" in sources:
    companion("zygote").stand_ready(sources["preload"].split())
else:
    begin(requests, os.dup(1))
